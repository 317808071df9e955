//! The buffer sizes of one prefill, computed before allocation. Prefill allocates by these numbers and
//! [`crate::Engine::estimate`] adds them up, so that estimate and allocation agree.

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
use crate::compact::{F16_ROWS, Stored};
use crate::decode::{GpuDecodePlan, SelectedCapacity};
use crate::reconstruction_plan::ReconstructionPlan;
use crate::shape::shape_of;

pub(crate) use kept::{full_cache_bytes, kept_bytes, places_bytes, window_bytes};

/// What is kept of one layer of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LayerKeeps {
    /// The method's selection; the number is the layer's index among the method's layers.
    Cut(usize),
    /// The last positions, as many as the sliding window has; methods do not see this layer.
    Window(usize),
}

impl LayerKeeps {
    /// `[layers of the model]`
    pub(crate) fn for_model(model: &Model) -> Vec<Self> {
        let mut cut = 0..;
        let keeps = model.config().kinds.iter().map(|kind| match kind.window {
            Some(window) => Self::Window(window),
            None => Self::Cut(cut.next().unwrap_or_default()),
        });
        keeps.collect()
    }
}

/// # Errors
/// [`EngineError::GpuRows`] for rows on a GPU of a type that GPUs do not support.
pub(crate) fn refuse_on_gpu(cache: CacheType, on_gpu: bool) -> Result<(), EngineError> {
    if on_gpu && RowKind::of(cache).is_none() {
        Err(EngineError::GpuRows { cache })
    } else {
        Ok(())
    }
}

/// # Errors
/// [`EngineError::CacheType`] for quantised types with methods that change rows repeatedly: every change
/// would round them again.
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
    if cache.is_quantised() {
        Err(EngineError::CacheType {
            cache,
            method: policy.name(),
            why,
        })
    } else {
        Ok(())
    }
}

/// The sizes of one prefill. `[layers]` counts the method's layers, which are not all of the model's: see
/// [`LayerKeeps`].
pub(crate) struct Sizes {
    /// Tokens of the prompt.
    pub(crate) tokens: usize,
    /// Tokens that run through a layer together.
    pub(crate) chunk: usize,
    /// Tokens that may follow the prompt.
    pub(crate) max_new_tokens: usize,
    /// `[layers of the model]`
    pub(crate) keeps: Vec<LayerKeeps>,
    /// `[layers]`: rows per KV head that the method may keep.
    pub(crate) rows: Vec<usize>,
    /// `[layers]`: requested measurements, limited to the prompt's length; none in layers where nothing is
    /// evicted.
    pub(crate) needs: Vec<Needs>,
    /// `[layers]`: average slots per KV head, including those for the answer.
    pub(crate) capacities: Vec<usize>,
    /// Largest number of slots of any head in any layer.
    pub(crate) max_capacity: usize,
    /// `[layers]`: the class table with its capacity, if the method merges.
    pub(crate) tables: Vec<Option<ClassTable>>,
    /// Bytes of the method's own state.
    pub(crate) method: u64,
    /// Original or re-assigned positions.
    pub(crate) positions: Positions,
    /// `[layers]`: tokens that enter the layer; fewer than the prompt's for methods that drop tokens.
    pub(crate) layer_input_tokens: Vec<usize>,
    /// The reconstruction, if a layer needs it.
    pub(crate) reconstruction_plan: Option<ReconstructionPlan>,
    /// Whether a first pass only measures and a second one compacts.
    pub(crate) has_score_pass: bool,
    /// First tokens of the prompt whose rows come from a vault; they do not run through the layers.
    known: usize,
    /// Bytes of the vault's buffers.
    vault: u64,
    /// Type of the vault's rows, if one may be used.
    vault_rows: Option<PackedRows>,
    /// Whether a layer's weights are rearranged for many rows.
    pub(crate) rearranges: bool,
    /// Type of the kept rows.
    pub(crate) cache: CacheType,
    /// Whether the model is on a GPU.
    on_gpu: bool,
    /// Whether the residual stream is on the host, because it does not fit on the GPU.
    pub(crate) residual_on_host: bool,
    /// Device bytes for prefetching a layer of the vault; 0 without prefetch.
    pub(crate) prefetch: usize,
    /// Whether kept rows stay on the GPU for decoding. The host then holds only the slot tables.
    pub(crate) rows_on_gpu: bool,
    /// Whether kept rows are plain copies and belong to a single method, so that they may stay on the GPU.
    may_stay: bool,
    /// Whether values of evicted tokens are merged into kept ones.
    pub(crate) value_merges: bool,
    /// `[layers]`: whether rows are replaced during decoding.
    replaced: Vec<bool>,
    /// Whether the budget was allocated over all layers and heads: each head's capacity is then what it
    /// keeps.
    settled: bool,
    shape: ModelShape,
    width: usize,
    /// Pairs that RoPE rotates in a head.
    pairs: usize,
}

impl Sizes {
    /// The sizes for a `prompt` with `policy`, `budget` and `max_new_tokens`. Calls [`Policy::rows`] and then
    /// [`Policy::needs`], as at the start of a prefill.
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
        let keeps = LayerKeeps::for_model(model);
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
            return Err(EngineError::TokenDroppingWithSlidingWindows {
                method: policy.name(),
                model: model.name().to_owned(),
            });
        }
        sizes.size_layers(policy);
        let asked = sizes.needs.iter().find_map(|needs| needs.reconstruction);
        if let Some(asked) = asked.filter(|_| !prompt.document().is_empty()) {
            sizes.reconstruction_plan =
                Some(ReconstructionPlan::new(model, prompt.document(), asked)?);
        }
        Ok(sizes)
    }

    /// Takes the rows of the first `known` tokens from a vault with buffers of `bytes` bytes. With
    /// `repeated`, the reconstruction's scores come from the vault too.
    pub(crate) fn start_after_prefix(&mut self, known: usize, bytes: u64, repeated: bool) {
        self.known = known;
        self.vault = bytes;
        if repeated {
            self.reconstruction_plan = None;
        }
    }

    /// Rows that run through a layer at once: a chunk, or fewer if fewer are read.
    fn rows_at_once(&self) -> usize {
        match self.reconstruction_plan {
            Some(_) => self.chunk,
            None => self.chunk.min(self.tokens - self.known),
        }
    }

    /// Sets the type of the vault's rows, if one may be used.
    pub(crate) fn with_vault(mut self, kind: Option<PackedRows>) -> Self {
        self.vault_rows = kind;
        self
    }

    /// Allows prefetching layers of the vault of up to `bytes` bytes, if that is no more than the known
    /// tokens' residual stream would take.
    pub(crate) fn may_prefetch(&mut self, bytes: usize) {
        let saved = self.known * self.width * size_of::<f32>();
        self.prefetch = if bytes <= saved { bytes } else { 0 };
    }

    /// For a prefill shared by several methods: kept rows are on the host.
    pub(crate) fn shared(mut self) -> Self {
        self.may_stay = false;
        self
    }

    /// Whether kept rows may stay on the GPU: only a decoder without the host will read them.
    pub(crate) fn may_stay(&self) -> bool {
        self.may_stay && self.gpu_decode_plan().graph_decoder()
    }

    /// Type of the rows of the vault that is read or written.
    pub(crate) fn vault_rows(&self) -> Option<PackedRows> {
        self.vault_rows
    }

    /// Sets the type of the kept rows.
    ///
    /// # Errors
    /// [`EngineError::CacheType`] for types that the method does not support, [`EngineError::GpuRows`].
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

    /// After a score pass: the allocated rows per layer, and the needs of the second pass.
    pub(crate) fn allocate_budget(&mut self, policy: &mut dyn Policy) {
        self.rows = policy.allocate_budget();
        self.settled = true;
        self.reconstruction_plan = None;
        self.size_layers(policy);
    }

    /// Computes each layer's measurements and capacities.
    fn size_layers(&mut self, policy: &dyn Policy) {
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
        // The maximum announced before a score pass remains valid.
        self.max_capacity = widest.max().unwrap_or(0).max(self.max_capacity);
    }

    /// The measurements that `policy` needs in `layer`, limited to its tokens; none if nothing is evicted.
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

    /// Whether tokens are dropped between layers.
    pub(crate) fn drops_tokens(&self) -> bool {
        self.layer_input_tokens
            .iter()
            .any(|&tokens| tokens < self.tokens)
    }

    /// Whether the method cannot share a prefill: it drops tokens, needs a reconstruction, or has a score
    /// pass.
    pub(crate) fn needs_own_reading(&self) -> bool {
        self.drops_tokens() || self.reconstruction_plan.is_some() || self.has_score_pass
    }

    /// Number of passes over the prompt.
    pub(crate) fn readings(&self) -> usize {
        1 + usize::from(self.has_score_pass)
    }

    /// Messages for the user about this prefill, one sentence each.
    pub(crate) fn notes(&self, policy: &dyn Policy) -> Vec<String> {
        let plan = self.reconstruction_plan.as_ref();
        let repeated = plan.map(|plan| plan.note(self.readings(), self.tokens, self.known > 0));
        policy.note().into_iter().chain(repeated).collect()
    }

    /// Bytes of one layer's rearranged weights, if they are rearranged.
    pub(crate) fn tiles_bytes(&self, model: &Model) -> u64 {
        if self.rearranges {
            model.layer_tiles_bytes()
        } else {
            0
        }
    }

    /// First tokens of the prompt whose rows come from a vault.
    pub(crate) fn known(&self) -> usize {
        self.known
    }

    /// Rows of the reconstruction.
    fn repeated(&self) -> usize {
        self.reconstruction_plan
            .as_ref()
            .map_or(0, ReconstructionPlan::rows)
    }

    /// Tokens that are read in total, as shown to the user: the prompt once per pass, and the reconstruction.
    pub(crate) fn tokens_read(&self) -> usize {
        self.readings() * (self.tokens - self.known) + self.repeated()
    }

    /// Rows that pass through layers, over all layers and passes.
    pub(crate) fn steps(&self) -> usize {
        let layers = 0..self.keeps.len();
        let layer_input_tokens = layers.map(|layer| self.entering_in(layer) - self.known);
        let layer_input_tokens: usize = layer_input_tokens.sum();
        self.readings() * layer_input_tokens + self.repeated() * self.keeps.len()
    }

    /// Rows per KV head of a layer's keys and values during prefill.
    pub(crate) fn layer_rows(&self) -> usize {
        let repeated = |plan: &ReconstructionPlan| plan.document().end + plan.longest();
        self.tokens
            .max(self.reconstruction_plan.as_ref().map_or(0, repeated))
    }

    /// `[kv_heads]`: slots of each head of `layer` after `retention`. Heads that share a layer's rows
    /// unevenly get their rows plus equal slots for the answer; other heads get the layer's capacity.
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

    /// `[layers]`: rows per KV head that are kept of the prompt.
    pub(crate) fn kept(&self) -> impl Iterator<Item = usize> + '_ {
        self.rows.iter().map(|rows| self.tokens.min(*rows))
    }

    /// The requested measurements of a layer of the model.
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

    /// Device memory for kept rows and decoding.
    pub(crate) fn gpu_decode_plan(&self) -> GpuDecodePlan {
        let kept: Vec<usize> = self.kept().collect();
        let cut = |own: usize| SelectedCapacity {
            slots: self.capacities[own],
            narrow: kept[own].saturating_sub(F16_ROWS),
            ranked: self.positions == Positions::Reassigned,
            entries: self.tables[own].map_or(0, |table| table.entries),
        };
        let (keeps, kv_heads) = (&self.keeps, self.shape.kv_heads);
        let tokens = self.tokens + self.max_new_tokens;
        let merges = self.max_entries() > 0;
        GpuDecodePlan {
            layers: GpuDecodePlan::layers(keeps, kv_heads, self.cache, tokens, &cut),
            max_rows: self.max_capacity,
            max_entries: self.max_entries(),
            looks: merges || self.replaced.contains(&true),
        }
    }
}
