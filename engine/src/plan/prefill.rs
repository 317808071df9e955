//! The plan of one prefill: rows, measurements, capacities and the sizes of all buffers. Prefill allocates by these
//! numbers and the estimate adds them up, so that both agree.

mod buffers;
mod passes;

use kept_kernels::{CacheType, PackedRows, RecurrentShape};
use kept_models::{Config, LayerCache, Model};
use kept_policies::{
    ClassTable, Method, Needs, ObservationWindow, Positions, PromptShape, Retention, RowPlan,
    RowRequest, WeightedWindow,
};

pub(crate) use passes::SumsOverQueries;

use super::{ReconstructionPlan, StoredPrefix};
use crate::compact::RowStorage;
use crate::shape::shape_of;
use crate::{EngineError, backend};

/// Tokens that run through a layer together: enough for the matrix kernels, few enough for small scratch
/// buffers.
pub const CHUNK: usize = 512;

/// Tokens that run through a layer together on a GPU with memory for them, the most first. After 32,768 tokens of an 8B
/// model in Q4_K_M on an H200, 2,048 took a tenth less time than 512, and 4,096 no less than 2,048.
pub const WIDE_CHUNKS: [usize; 2] = [4 * CHUNK, 2 * CHUNK];

/// With up to this many rows after the prefix, weights are multiplied in their original layout: rearranging
/// them would cost more than it saves.
pub(crate) const FEW_ROWS: usize = 64;

/// What is kept of one layer of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerKeeps {
    /// The method's selection; the number is the layer's index among the method's layers.
    Compressed(usize),
    /// The last positions, as many as the sliding window has; methods do not see this layer.
    Window(usize),
    /// A state of constant size, of a recurrent layer; methods do not see this layer.
    State(RecurrentShape),
    /// Nothing: the layer attends to what an earlier one keeps.
    Nothing,
}

impl LayerKeeps {
    /// `[layers of the model]`
    pub(crate) fn for_model(model: &Model) -> Vec<Self> {
        let mut compressed = 0..;
        let config = model.config();
        let keeps = config.kinds.iter().map(|kind| match kind.cache {
            LayerCache::Global => Self::Compressed(compressed.next().unwrap_or_default()),
            LayerCache::Sliding(window) => Self::Window(window),
            LayerCache::Recurrent => {
                Self::State(config.recurrent.expect("recurrent layers have a shape"))
            }
            LayerCache::SharedKv(_) => Self::Nothing,
        });
        keeps.collect()
    }
}

/// # Errors
/// [`EngineError::GpuRows`] for types that the model's device does not keep; [`EngineError::CacheType`] for quantised
/// types with methods that change rows repeatedly: every change would round them again.
pub(crate) fn check_cache(
    model: &Model,
    cache: CacheType,
    method: &'static str,
    plan: &RowPlan,
) -> Result<(), EngineError> {
    backend::of(model).check_cache(cache)?;
    let why = if plan.table.is_some() {
        "merges rows while it answers"
    } else if plan.merges_values_in_decode {
        "adds to rows while it answers"
    } else {
        return Ok(());
    };
    if cache.is_quantised() {
        Err(EngineError::CacheType { cache, method, why })
    } else {
        Ok(())
    }
}

/// The class table of every layer, with capacity for all of `tokens` tokens at most.
pub(crate) fn class_table(plan: &RowPlan, tokens: usize) -> Option<ClassTable> {
    plan.table.map(|table| ClassTable {
        entries: tokens.min(table.entries.saturating_add(1)),
        ..table
    })
}

/// # Errors
/// [`EngineError::UnsupportedLayers`] for models without [`Config::has_uniform_layers`].
pub(crate) fn refuse_unlike_layers(model: &Model, method: &'static str) -> Result<(), EngineError> {
    match model.config().has_uniform_layers() {
        true => Ok(()),
        false => Err(EngineError::UnsupportedLayers {
            method,
            why: format!(
                "does not work with {}, whose layers share keys or have heads of several sizes",
                model.name()
            ),
            remedy: match method {
                "streaming" => ", or a text that fits the model's context",
                _ => "",
            },
        }),
    }
}

/// The plan of one prefill. `[layers]` counts the method's layers, which are not all of the model's: see
/// [`LayerKeeps`].
#[derive(Clone)]
pub struct PrefillPlan {
    /// Name of the method.
    method: &'static str,
    /// What the method does with the prompt; after a score pass, the plan that allocates the budget.
    pub row_plan: RowPlan,
    /// Tokens that run through a layer together.
    pub chunk: usize,
    /// `[layers of the model]`
    pub keeps: Vec<LayerKeeps>,
    /// `[layers]`: requested measurements, limited to the prompt's length; none in layers where nothing is
    /// evicted.
    pub needs: Vec<Needs>,
    /// `[layers]`: average slots per KV head, including those for the answer.
    pub capacities: Vec<usize>,
    /// Largest number of slots of any head in any layer.
    pub max_capacity: usize,
    /// The class table of every layer with its capacity, if the method merges.
    pub table: Option<ClassTable>,
    /// The reconstruction, if a layer needs it.
    pub reconstruction_plan: Option<ReconstructionPlan>,
    /// First tokens of the prompt whose rows come from a vault; they do not run through the layers.
    pub(crate) known: usize,
    /// Bytes of the vault's buffers.
    pub(crate) vault: u64,
    /// Type of the vault's rows, if one may be used.
    pub vault_rows: Option<PackedRows>,
    /// Whether a layer's weights are rearranged for many rows.
    pub(crate) rearranges: bool,
    /// Type of the kept rows.
    pub cache: CacheType,
    /// Whether the device has memory of its own.
    own_memory: bool,
    /// Whether the residual stream is on the host, because it does not fit on the GPU.
    pub residual_on_host: bool,
    /// Whether kept rows stay on the GPU for decoding. The host then holds only the slot tables.
    pub rows_on_gpu: bool,
    /// Whether kept rows are plain copies and belong to a single method, so that they may stay on the GPU.
    rows_may_stay_on_gpu: bool,
    /// Whether the budget was allocated over all layers and heads: each head's capacity is then what it
    /// keeps.
    settled: bool,
    width: usize,
    /// Elements per token of all query heads, of all KV heads, and per head, the most of all layers.
    widths: Widths,
    /// Elements per token of the keys that a prefill holds at once ([`Config::held_kv_width`]).
    held_kv_width: usize,
    /// Pairs that RoPE rotates in a head.
    pairs: usize,
}

/// Elements per token, the most of all layers.
#[derive(Debug, Clone, Copy)]
struct Widths {
    q: usize,
    kv: usize,
    head: usize,
}

impl Widths {
    fn of(config: &Config) -> Self {
        let heads = config.kinds.iter().map(|kind| kind.head_dim);
        Self {
            q: config.q_width(),
            kv: config.kv_width(),
            head: heads.max().unwrap_or(0),
        }
    }
}

impl PrefillPlan {
    /// The plan for a `prompt` with `method`, `budget` and `max_new_tokens`.
    ///
    /// # Errors
    /// As [`Method::plan`]; row types that method or device do not support.
    pub(crate) fn new(
        model: &Model,
        method: &dyn Method,
        prompt: &PromptShape,
        budget: usize,
        max_new_tokens: usize,
        chunk: usize,
        cache: CacheType,
    ) -> Result<Self, EngineError> {
        let tokens = prompt.tokens;
        let row_plan = method.plan(&RowRequest {
            model: shape_of(model),
            prompt: PromptShape {
                max_new_tokens,
                ..*prompt
            },
            budget,
        })?;
        let own_memory = backend::of(model).has_own_memory();
        let rings = model.config().windows();
        let widest_ring = rings.map(|w| w.min(tokens + max_new_tokens)).max();
        let mut plan = Self {
            method: method.name(),
            table: class_table(&row_plan, tokens + max_new_tokens),
            chunk: chunk.clamp(1, tokens.max(1)),
            keeps: LayerKeeps::for_model(model),
            needs: Vec::new(),
            capacities: Vec::new(),
            max_capacity: widest_ring.unwrap_or(0),
            reconstruction_plan: None,
            known: 0,
            vault: 0,
            vault_rows: None,
            rearranges: true,
            cache,
            own_memory,
            residual_on_host: false,
            rows_on_gpu: false,
            rows_may_stay_on_gpu: own_memory && !row_plan.merges_values,
            settled: false,
            width: model.config().width,
            widths: Widths::of(model.config()),
            held_kv_width: model.config().held_kv_width(),
            pairs: model.config().rope.dims / 2,
            row_plan,
        };
        let config = model.config();
        if plan.drops_tokens() && config.full_layers().count() < config.layers {
            return Err(EngineError::UnsupportedLayers {
                method: plan.method,
                why: format!(
                    "drops tokens between layers, which does not work with the sliding-window or recurrent layers of {}",
                    model.name()
                ),
                remedy: ", or variant=budgeted",
            });
        }
        plan.size_layers();
        let asked = plan.needs.iter().find_map(|needs| needs.reconstruction);
        if asked.is_some() && config.recurrent_layers() > 0 {
            // The state after the prompt is not that after the document.
            return Err(EngineError::UnsupportedLayers {
                method: plan.method,
                why: format!(
                    "has the model repeat the document, which does not work with the recurrent layers of {}",
                    model.name()
                ),
                remedy: "",
            });
        }
        if asked.is_some() {
            refuse_unlike_layers(model, plan.method)?;
        }
        if let Some(asked) = asked.filter(|_| !prompt.document().is_empty()) {
            plan.reconstruction_plan =
                Some(ReconstructionPlan::new(model, prompt.document(), asked)?);
        }
        check_cache(model, cache, plan.method, &plan.row_plan)?;
        Ok(plan)
    }

    /// Tokens of the prompt.
    pub fn tokens(&self) -> usize {
        self.row_plan.prompt.tokens
    }

    /// Tokens that may follow the prompt.
    pub fn max_new_tokens(&self) -> usize {
        self.row_plan.prompt.max_new_tokens
    }

    /// Tokens that enter `layer`; fewer than the prompt's for methods that drop tokens.
    pub fn layer_input_tokens(&self, layer: usize) -> usize {
        let of_layers = self.row_plan.layer_input_tokens.as_ref();
        of_layers.map_or(self.tokens(), |of_layers| of_layers[layer])
    }

    /// Whether keys are stored before RoPE and rotated by their rank.
    pub fn reassigns_positions(&self) -> bool {
        self.row_plan.positions == Positions::Reassigned
    }

    /// Rows that run through a layer at once: a chunk, or fewer if fewer are read.
    fn rows_at_once(&self) -> usize {
        match self.reconstruction_plan {
            Some(_) => self.chunk,
            None => self.chunk.min(self.tokens() - self.known),
        }
    }

    /// For a prefill shared by several methods: kept rows are on the host.
    pub(crate) fn shared(mut self) -> Self {
        self.rows_may_stay_on_gpu = false;
        self
    }

    /// Whether kept rows may stay on the GPU: they are plain copies, and nothing on the host will read them.
    pub fn rows_may_stay_on_gpu(&self) -> bool {
        self.rows_may_stay_on_gpu && !self.changes_rows_in_decode() && !self.reassigns_positions()
    }

    /// Whether the method merges or evicts rows while it answers, and reads attention probabilities for it.
    pub fn changes_rows_in_decode(&self) -> bool {
        self.max_entries() > 0 || self.row_plan.decode_rows.is_some()
    }

    /// After a score pass: the plan of the second pass, which allocates the budget.
    pub(crate) fn allocate_budget(&mut self, row_plan: RowPlan) {
        self.row_plan = row_plan;
        self.settled = true;
        self.reconstruction_plan = None;
        self.size_layers();
    }

    /// Leaves out what comes from a vault.
    pub(crate) fn leave_out(&mut self, stored: StoredPrefix) {
        self.known = stored.tokens;
        if stored.scores {
            self.reconstruction_plan = None;
        }
        let read = self.tokens() - self.known;
        self.rearranges = read > FEW_ROWS || self.reconstruction_plan.is_some();
    }

    /// Computes each layer's measurements and capacities.
    fn size_layers(&mut self) {
        let layers = 0..self.row_plan.rows.len();
        self.needs = layers.clone().map(|layer| self.needs_of(layer)).collect();
        let (tokens, max_new_tokens) = (self.tokens(), self.max_new_tokens());
        let decode_rows = self.row_plan.decode_rows.as_ref();
        let capacity = |layer: usize| {
            let rows = tokens.min(self.row_plan.rows[layer]);
            match decode_rows.map(|of_layers| of_layers[layer]) {
                Some(most) => (rows + max_new_tokens).min(most.max(rows).saturating_add(1)),
                None => rows + max_new_tokens,
            }
        };
        let capacities: Vec<usize> = layers.clone().map(capacity).collect();
        let widest = layers.map(|layer| {
            let rows = self.row_plan.rows[layer];
            let more = self.row_plan.max_rows_per_head[layer].saturating_sub(rows);
            capacities[layer] + more.min(tokens.saturating_sub(rows))
        });
        // The maximum announced before a score pass remains valid.
        self.max_capacity = widest.max().unwrap_or(0).max(self.max_capacity);
        self.capacities = capacities;
    }

    /// The measurements that `layer` needs, limited to its tokens; none if nothing is evicted.
    fn needs_of(&self, layer: usize) -> Needs {
        let (needs, tokens) = (self.row_plan.needs[layer], self.layer_input_tokens(layer));
        if !needs.even_if_all_kept && self.tokens() <= self.row_plan.rows[layer] && !self.settled {
            return Needs::default();
        }
        Needs {
            observation_window: needs.observation_window.map(|window| ObservationWindow {
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

    /// Bytes of one layer's rearranged weights, if they are rearranged.
    pub(crate) fn tiles_bytes(&self, model: &Model) -> u64 {
        if self.rearranges {
            model.layer_tiles_bytes()
        } else {
            0
        }
    }

    /// Rows per KV head of a layer's keys and values during prefill.
    pub fn layer_rows(&self) -> usize {
        let repeated = |plan: &ReconstructionPlan| plan.document.end + plan.longest();
        self.tokens()
            .max(self.reconstruction_plan.as_ref().map_or(0, repeated))
    }

    /// `[kv_heads]`: slots of each head of `layer` after `retention`. Heads that share a layer's rows
    /// unevenly get their rows plus equal slots for the answer; other heads get the layer's capacity.
    pub(crate) fn head_capacities(&self, layer: usize, retention: &Retention) -> Vec<usize> {
        let capacity = self.capacities[layer];
        let rows = self.row_plan.rows[layer].min(self.tokens());
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
            _ => vec![capacity; self.row_plan.model.kv_heads],
        }
    }

    /// How kept rows are stored.
    pub(crate) fn row_storage(&self) -> RowStorage {
        RowStorage {
            kind: self.cache,
            replaces_rows: self.row_plan.decode_rows.is_some(),
        }
    }

    /// `[layers]`: rows per KV head that are kept of the prompt.
    pub fn kept(&self) -> impl Iterator<Item = usize> + '_ {
        self.row_plan
            .rows
            .iter()
            .map(|rows| self.tokens().min(*rows))
    }

    /// The requested measurements of a layer of the model.
    pub(crate) fn needs_in(&self, layer: usize) -> Needs {
        match self.keeps[layer] {
            LayerKeeps::Compressed(layer) => self.needs[layer],
            LayerKeeps::Window(_) | LayerKeeps::State(_) | LayerKeeps::Nothing => Needs::default(),
        }
    }

    /// Tokens that enter a layer of the model.
    pub(crate) fn entering_in(&self, layer: usize) -> usize {
        match self.keeps[layer] {
            LayerKeeps::Compressed(layer) => self.layer_input_tokens(layer),
            LayerKeeps::Window(_) | LayerKeeps::State(_) | LayerKeeps::Nothing => self.tokens(),
        }
    }
}
