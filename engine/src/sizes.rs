//! How large everything is that reading a prompt allocates, known before it is allocated. Prefill makes its buffers by these
//! numbers and [`crate::Engine::estimate`] adds them up, so the figures before and after come from one place.

mod buffers;
mod kept;

use kept_cuda::RowKind;
use kept_kernels::{CacheType, PackedRows};
use kept_models::Model;
use kept_policies::{
    ClassTable, ModelShape, Needs, Policy, Positions, PromptShape, Retention, WeightedWindow,
    Window,
};

use crate::EngineError;
use crate::compact::{EXACT, Stored};
use crate::decode::{GpuDecodePlan, SelectedCapacity};
use crate::reconstruction_plan::ReconstructionPlan;
use crate::shape::shape_of;

pub(crate) use kept::{full_cache_bytes, kept_bytes, places_bytes, window_bytes};

/// What becomes of one layer of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LayerKeeps {
    /// What the method says: this is its layer of that number.
    Cut(usize),
    /// The last positions, as many as its window; no method knows of it.
    Window(usize),
}

impl LayerKeeps {
    /// `[layers of the model]`
    pub(crate) fn of(model: &Model) -> Vec<Self> {
        let mut cut = 0..;
        let keeps = model.config().kinds.iter().map(|kind| match kind.window {
            Some(window) => Self::Window(window),
            None => Self::Cut(cut.next().unwrap_or_default()),
        });
        keeps.collect()
    }
}

/// # Errors
/// [`EngineError::GpuRows`] where rows of that type would have to be on a GPU, which has none such.
pub(crate) fn refuse_on_gpu(cache: CacheType, on_gpu: bool) -> Result<(), EngineError> {
    match on_gpu && RowKind::of(cache).is_none() {
        true => Err(EngineError::GpuRows { cache }),
        false => Ok(()),
    }
}

/// # Errors
/// [`EngineError::CacheType`] for quantised types under methods that change rows time and again: each change would be rounded anew.
pub(crate) fn refuse_repeated_rounding(
    cache: CacheType,
    policy: &dyn Policy,
    merges: bool,
) -> Result<(), EngineError> {
    let why = match (merges, policy.merges_values_in_decode()) {
        (true, _) => "merges rows while it answers",
        (_, true) => "adds to rows while it answers",
        _ => return Ok(()),
    };
    match cache.is_quantised() {
        true => Err(EngineError::CacheType {
            cache,
            method: policy.name(),
            why,
        }),
        false => Ok(()),
    }
}

/// The sizes of one reading. Layers are those of the method, which are not all of the model's: see [`LayerKeeps`].
pub(crate) struct Sizes {
    /// Tokens of the prompt.
    pub(crate) tokens: usize,
    /// Tokens that run through a layer together.
    pub(crate) chunk: usize,
    /// Tokens that may follow.
    pub(crate) max_new_tokens: usize,
    /// `[layers of the model]`
    pub(crate) keeps: Vec<LayerKeeps>,
    /// `[layers]`: rows per kv head that the method may keep.
    pub(crate) rows: Vec<usize>,
    /// `[layers]`: what is measured, as far as the prompt reaches; nothing where nothing is cut.
    pub(crate) needs: Vec<Needs>,
    /// `[layers]`: slots per kv head on average, room for the answer included.
    pub(crate) capacities: Vec<usize>,
    /// Slots that the largest head of any layer may need.
    pub(crate) max_capacity: usize,
    /// `[layers]`: the look-up table with its room for entries, where the method merges.
    pub(crate) tables: Vec<Option<ClassTable>>,
    /// Bytes that the method itself holds.
    pub(crate) method: u64,
    /// Where kept rows stand.
    pub(crate) positions: Positions,
    /// `[layers]`: tokens that enter; all of the prompt, but for methods that drop tokens on the way.
    pub(crate) layer_input_tokens: Vec<usize>,
    /// The document's repetition, where a layer asks for it.
    pub(crate) reconstruction_plan: Option<ReconstructionPlan>,
    /// Whether a first reading only measures, and a second one cuts.
    pub(crate) has_score_pass: bool,
    /// First tokens whose rows come from a vault: they do not run through the layers.
    known: usize,
    /// Bytes that reading from a vault and writing to it takes.
    vault: u64,
    /// How its rows are stored, where there may be one.
    vault_rows: Option<PackedRows>,
    /// Whether a layer's weights are rearranged for many rows.
    pub(crate) rearranges: bool,
    /// How kept rows are stored.
    pub(crate) cache: CacheType,
    /// Whether it is a GPU that reads and answers.
    on_gpu: bool,
    /// Whether the residual stream lies on the host, because that GPU has no room for it.
    pub(crate) residual_on_host: bool,
    /// Bytes on that GPU for a layer of the vault that is brought while another is looked at; 0 where none is.
    pub(crate) prefetch: usize,
    /// Whether kept rows stay on that GPU, where the answer is written, and the host has their books alone.
    pub(crate) rows_on_gpu: bool,
    /// Whether they may: kept rows are copies, and this method's alone.
    may_stay: bool,
    /// Whether evicted tokens leave their values to kept ones.
    pub(crate) value_merges: bool,
    /// `[layers]`: whether rows are replaced while the answer is written.
    replaced: Vec<bool>,
    /// Whether heads share rows over all layers: then each has exactly its own.
    settled: bool,
    shape: ModelShape,
    width: usize,
    /// Pairs that RoPE rotates in a head.
    pairs: usize,
}

impl Sizes {
    /// The sizes for a `prompt` under `policy` and a `budget`, with `max_new_tokens` for the answer. Calls [`Policy::rows`] and then
    /// [`Policy::needs`], as a reading begins.
    pub(crate) fn new(
        model: &Model,
        policy: &mut dyn Policy,
        prompt: &PromptShape,
        budget: usize,
        max_new_tokens: usize,
        chunk: usize,
    ) -> Result<Self, EngineError> {
        let (shape, tokens) = (shape_of(model), prompt.tokens);
        let prompt = &PromptShape {
            max_new_tokens,
            ..*prompt
        };
        let rows = policy.rows(&shape, prompt, budget)?;
        let keeps = LayerKeeps::of(model);
        let rings = model.config().windows();
        let widest_ring = rings.map(|w| w.min(tokens + max_new_tokens)).max();
        let table = |layer: usize| {
            policy.table(layer).map(|table| ClassTable {
                entries: (tokens + max_new_tokens).min(table.entries.saturating_add(1)),
                ..table
            })
        };
        let layer_input_tokens = |layer| policy.layer_input_tokens(layer).unwrap_or(tokens);
        let mut sizes = Self {
            tokens,
            tables: (0..shape.layers).map(table).collect(),
            chunk: chunk.clamp(1, tokens.max(1)),
            max_new_tokens,
            keeps,
            needs: Vec::new(),
            capacities: Vec::new(),
            max_capacity: widest_ring.unwrap_or(0),
            layer_input_tokens: (0..shape.layers).map(layer_input_tokens).collect(),
            reconstruction_plan: None,
            has_score_pass: policy.has_score_pass(),
            known: 0,
            vault: 0,
            vault_rows: None,
            rearranges: true,
            cache: CacheType::F32,
            on_gpu: model.gpu().is_some(),
            residual_on_host: false,
            prefetch: 0,
            rows_on_gpu: false,
            may_stay: model.gpu().is_some() && !policy.merges_values(),
            value_merges: policy.merges_values(),
            replaced: Vec::new(),
            settled: false,
            rows,
            method: policy.bytes(),
            positions: policy.positions(),
            shape,
            width: model.config().width,
            pairs: model.config().rope.dims / 2,
        };
        if sizes.drops_tokens() && model.config().windows().next().is_some() {
            return Err(EngineError::ThinnedWindows {
                method: policy.name(),
                model: model.name().to_owned(),
            });
        }
        sizes.measure(policy);
        let asked = sizes.needs.iter().find_map(|needs| needs.reconstruction);
        if let Some(asked) = asked.filter(|_| !prompt.document().is_empty()) {
            sizes.reconstruction_plan =
                Some(ReconstructionPlan::new(model, prompt.document(), asked)?);
        }
        Ok(sizes)
    }

    /// The rows of the first `known` tokens come from a vault, which takes `bytes` of memory; of the repetition too, where
    /// `repeated`.
    pub(crate) fn begin_behind(&mut self, known: usize, bytes: u64, repeated: bool) {
        self.known = known;
        self.vault = bytes;
        if repeated {
            self.reconstruction_plan = None;
        }
    }

    /// Rows that run through a layer at once: a chunk, or fewer where no more are read.
    fn rows_at_once(&self) -> usize {
        match self.reconstruction_plan {
            Some(_) => self.chunk,
            None => self.chunk.min(self.tokens - self.known),
        }
    }

    /// The same with a vault whose rows are stored as `kind`, if there may be one.
    pub(crate) fn with_vault(mut self, kind: Option<PackedRows>) -> Self {
        self.vault_rows = kind;
        self
    }

    /// Layers of the vault, of `bytes` bytes, may be brought while others are looked at: in the place of the residual stream of tokens that
    /// are known, where that is larger.
    pub(crate) fn may_prefetch(&mut self, bytes: usize) {
        let saved = self.known * self.width * size_of::<f32>();
        self.prefetch = if bytes <= saved { bytes } else { 0 };
    }

    /// The same of one of several methods that cut a reading: what they keep is on the host until each answers.
    pub(crate) fn shared(mut self) -> Self {
        self.may_stay = false;
        self
    }

    /// Whether kept rows may stay on the GPU that reads: nothing but the answer that it writes by itself will ask for them.
    pub(crate) fn may_stay(&self) -> bool {
        self.may_stay && self.gpu_decode_plan().graph_decoder()
    }

    /// How the rows of a vault are stored that is used or made.
    pub(crate) fn vault_rows(&self) -> Option<PackedRows> {
        self.vault_rows
    }

    /// The same with kept rows stored as `cache`.
    ///
    /// # Errors
    /// [`EngineError::CacheType`] for types that the method does not work with, [`EngineError::GpuRows`].
    pub(crate) fn with_cache(
        mut self,
        cache: CacheType,
        policy: &dyn Policy,
    ) -> Result<Self, EngineError> {
        refuse_on_gpu(cache, self.on_gpu)?;
        refuse_repeated_rounding(cache, policy, self.tables.iter().any(Option::is_some))?;
        self.cache = cache;
        Ok(self)
    }

    /// After a survey: the rows that layers have come to share, and what the second reading needs.
    pub(crate) fn allocate_budget(&mut self, policy: &mut dyn Policy) {
        self.rows = policy.allocate_budget();
        self.settled = true;
        self.reconstruction_plan = None;
        self.measure(policy);
    }

    /// What is measured in every layer, and what each may come to hold.
    fn measure(&mut self, policy: &dyn Policy) {
        let layers = 0..self.rows.len();
        let needs = layers.clone().map(|layer| self.needs_of(policy, layer));
        self.needs = needs.collect();
        let replaced = layers
            .clone()
            .map(|layer| policy.decode_rows(layer).is_some());
        self.replaced = replaced.collect();
        let (tokens, max_new_tokens) = (self.tokens, self.max_new_tokens);
        let capacity = |layer: usize| {
            let rows = tokens.min(self.rows[layer]);
            match policy.decode_rows(layer) {
                Some(most) => (rows + max_new_tokens).min(most.max(rows).saturating_add(1)),
                None => rows + max_new_tokens,
            }
        };
        self.capacities = layers.clone().map(capacity).collect();
        let widest = layers.map(|layer| {
            let rows = self.rows[layer];
            let more = policy.max_rows_per_head(layer, rows).saturating_sub(rows);
            self.capacities[layer] + more.min(tokens.saturating_sub(rows))
        });
        // What was announced before a survey stands.
        self.max_capacity = widest.max().unwrap_or(0).max(self.max_capacity);
    }

    /// What `policy` needs of `layer`, as far as the tokens there reach; nothing where nothing is cut.
    fn needs_of(&self, policy: &dyn Policy, layer: usize) -> Needs {
        let (needs, tokens) = (policy.needs(layer), self.layer_input_tokens[layer]);
        if !needs.uncut && self.tokens <= self.rows[layer] && !self.settled {
            return Needs::default();
        }
        Needs {
            window: needs.window.map(|window| Window {
                rows: window.rows.min(tokens),
                ..window
            }),
            weighted_window: needs.weighted_window.map(|weighted_window| WeightedWindow {
                rows: weighted_window.rows.min(tokens),
                ..weighted_window
            }),
            low_attention: needs.low_attention.map(|rows| rows.min(tokens)),
            ..needs
        }
    }

    /// Whether tokens are dropped on their way through the layers.
    pub(crate) fn drops_tokens(&self) -> bool {
        self.layer_input_tokens
            .iter()
            .any(|&tokens| tokens < self.tokens)
    }

    /// Whether no other method can cut the same reading: tokens are dropped on the way, the document is repeated, or there are two
    /// readings.
    pub(crate) fn needs_own_reading(&self) -> bool {
        self.drops_tokens() || self.reconstruction_plan.is_some() || self.has_score_pass
    }

    /// How often the prompt is read.
    pub(crate) fn readings(&self) -> usize {
        1 + usize::from(self.has_score_pass)
    }

    /// What a person should know of such a reading, one sentence each.
    pub(crate) fn notes(&self, policy: &dyn Policy) -> Vec<String> {
        let plan = self.reconstruction_plan.as_ref();
        let repeated = plan.map(|plan| plan.note(self.readings(), self.tokens, self.known > 0));
        policy.note().into_iter().chain(repeated).collect()
    }

    /// Bytes of one layer's weights rearranged, if they are.
    pub(crate) fn tiles_bytes(&self, model: &Model) -> u64 {
        match self.rearranges {
            true => model.layer_tiles_bytes(),
            false => 0,
        }
    }

    /// First tokens whose rows come from a vault.
    pub(crate) fn known(&self) -> usize {
        self.known
    }

    /// Rows of the repetition.
    fn repeated(&self) -> usize {
        self.reconstruction_plan
            .as_ref()
            .map_or(0, ReconstructionPlan::rows)
    }

    /// Tokens that are read in all, as a person is told: the prompt, as often as it is read, and the repetition.
    pub(crate) fn tokens_read(&self) -> usize {
        self.readings() * (self.tokens - self.known) + self.repeated()
    }

    /// Rows that pass through layers, over all layers and readings.
    pub(crate) fn steps(&self) -> usize {
        let layers = 0..self.keeps.len();
        let layer_input_tokens = layers.map(|layer| self.entering_in(layer) - self.known);
        let layer_input_tokens: usize = layer_input_tokens.sum();
        self.readings() * layer_input_tokens + self.repeated() * self.keeps.len()
    }

    /// Rows per kv head of a layer's keys and values while it is read.
    pub(crate) fn layer_rows(&self) -> usize {
        let repeated = |plan: &ReconstructionPlan| plan.document().end + plan.longest();
        self.tokens
            .max(self.reconstruction_plan.as_ref().map_or(0, repeated))
    }

    /// `[kv_heads]`: slots of each head of `layer`, which keeps `retention`. Heads that share a layer's rows unevenly get what
    /// they keep and the same room for the answer; others the layer's capacity.
    pub(crate) fn head_capacities(&self, layer: usize, retention: &Retention) -> Vec<usize> {
        let capacity = self.capacities[layer];
        let rows = self.rows[layer].min(self.tokens);
        match retention {
            Retention::Keep(heads)
                if self.settled || heads.iter().any(|kept| kept.len() > rows) =>
            {
                let max_new_tokens = capacity - rows;
                heads
                    .iter()
                    .map(|kept| kept.len() + max_new_tokens)
                    .collect()
            }
            _ => vec![capacity; self.shape.kv_heads],
        }
    }

    /// How the rows of `layer` are stored.
    pub(crate) fn stored(&self, layer: usize) -> Stored {
        Stored {
            kind: self.cache,
            replaced: self.replaced[layer],
        }
    }

    /// `[layers]`: rows per kv head that are kept of the prompt.
    pub(crate) fn kept(&self) -> impl Iterator<Item = usize> + '_ {
        self.rows.iter().map(|rows| self.tokens.min(*rows))
    }

    /// What is measured of a layer of the model.
    pub(crate) fn needs_in(&self, layer: usize) -> Needs {
        match self.keeps[layer] {
            LayerKeeps::Cut(layer) => self.needs[layer],
            LayerKeeps::Window(_) => Needs::default(),
        }
    }

    /// Tokens that enter a layer of the model.
    pub(crate) fn entering_in(&self, layer: usize) -> usize {
        match self.keeps[layer] {
            LayerKeeps::Cut(layer) => self.layer_input_tokens[layer],
            LayerKeeps::Window(_) => self.tokens,
        }
    }

    /// What the kept rows and the answer take of a GPU.
    pub(crate) fn gpu_decode_plan(&self) -> GpuDecodePlan {
        let kept: Vec<usize> = self.kept().collect();
        let cut = |own: usize| SelectedCapacity {
            slots: self.capacities[own],
            narrow: kept[own].saturating_sub(EXACT),
            entries: self.tables[own].map_or(0, |table| table.entries),
        };
        let stored = (self.cache, self.positions == Positions::Reassigned);
        let tokens = self.tokens + self.max_new_tokens;
        let merges = self.max_entries() > 0;
        GpuDecodePlan {
            layers: GpuDecodePlan::layers(&self.keeps, self.shape.kv_heads, stored, tokens, &cut),
            max_rows: self.max_capacity,
            max_entries: self.max_entries(),
            looks: merges || self.replaced.contains(&true),
        }
    }
}
