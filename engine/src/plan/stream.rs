//! The buffer sizes of a prefill in streaming mode, computed before it begins and independent of the text's
//! length.

use kept_kernels::{CacheType, HeadShape, RecurrentState, RowStore};
use kept_models::{LayerPass, Model, RopeTable};
use kept_policies::{ClassTable, Method, PolicyError, PromptShape, Retention, RowPlan, RowRequest};

use super::kept::{kept_bytes, slot_map_bytes};
use super::prefill::{CHUNK, LayerKeeps, check_cache, class_table, refuse_unlike_layers};
use crate::compact::Classes;
use crate::compact::CompactLayer;
use crate::shape::{head_shape, shape_of};
use crate::{EngineError, MemoryLedger, backend, decode};
use kept_vault::Vault;

/// Chunks that run through a layer with the same rearranged weights: a chunk group.
const CHUNKS: usize = 8;

/// Tokens of a chunk whose probabilities are stored together.
pub(crate) const TILE: usize = 64;
/// Tokens whose probabilities are put in the order of the slots at once, on all threads.
const TOKENS_PER_GATHER: usize = 16;

/// Minimum chunk size that is efficient: a default budget leaves positions for it.
const MIN_CHUNK: usize = 64;

/// The sizes of one prefill in streaming mode.
#[derive(Debug, Clone)]
pub struct StreamPlan {
    /// Maximum number of tokens of the text.
    pub tokens: usize,
    /// Tokens that may follow the text.
    pub max_new_tokens: usize,
    /// Rows per KV head that every compacted layer may hold between two tokens.
    pub rows: usize,
    /// The rows of a budget given as a share, if the context length allows fewer.
    pub(crate) wanted: Option<usize>,
    /// Tokens that run through a layer together.
    pub chunk: usize,
    /// Tokens that run through a layer with the same rearranged weights.
    pub chunk_group: usize,
    /// Number of RoPE positions needed: ranks, not positions of the text.
    pub positions: usize,
    /// `[layers of the model]`
    pub keeps: Vec<LayerKeeps>,
    /// What the method does while it reads.
    pub(crate) row_plan: RowPlan,
    /// Name of the method.
    method: &'static str,
    /// The class table of every layer with its capacity, if the method merges.
    table: Option<ClassTable>,
    /// Maximum number of rows or entries per KV head between two tokens.
    pub(crate) entries: usize,
    /// Heads of the global layers.
    pub heads: HeadShape,
    /// Type of the kept rows.
    pub cache: CacheType,
    /// Whether the state at the document's end is saved in the vaults' folder.
    pub(crate) vault: bool,
    /// Whether the device has memory of its own.
    own_memory: bool,
    width: usize,
}

impl StreamPlan {
    /// The plan for a text of at most `prompt.tokens` tokens with `method` and `max_new_tokens`. The default
    /// budget is a quarter of the model's context length, from [`StreamPlan::MIN_DEFAULT_ROWS`] to
    /// [`StreamPlan::MAX_DEFAULT_ROWS`] rows.
    ///
    /// # Errors
    /// Methods without streaming mode; budgets that leave no positions for a chunk within the context length; row types
    /// that method or device do not support.
    pub fn new(
        model: &Model,
        method: &dyn Method,
        prompt: &PromptShape,
        budget: Option<usize>,
        max_new_tokens: usize,
        chunk: Option<usize>,
        cache: CacheType,
    ) -> Result<Self, EngineError> {
        refuse_unlike_layers(model, "streaming")?;
        let context = model.config().context;
        let max_new_tokens = max_new_tokens.min(Self::MAX_NEW_TOKENS);
        // Streaming does not distinguish the question from the rest of the text.
        let prompt = &PromptShape {
            max_new_tokens,
            ..PromptShape::of(prompt.tokens)
        };
        let tokens = prompt.tokens;
        let mut rows = budget.unwrap_or_else(|| {
            let rows = (context / 4).clamp(Self::MIN_DEFAULT_ROWS, Self::MAX_DEFAULT_ROWS);
            rows.min(context.saturating_sub(MIN_CHUNK)).max(1)
        });
        let request = |budget| RowRequest {
            model: shape_of(model),
            prompt: *prompt,
            budget,
        };
        loop {
            let row_plan = method.stream_plan(&request(rows))?;
            let entries = entries_of(&row_plan).min(tokens + max_new_tokens);
            // A text that fits needs no more positions than it has tokens.
            let left = if tokens <= context {
                tokens
            } else {
                context.saturating_sub(entries)
            };
            if tokens > context && left < MIN_CHUNK.min(chunk.unwrap_or(MIN_CHUNK)).max(1) {
                if budget.is_none() && rows > 1 {
                    rows -= rows.div_ceil(8);
                    continue;
                }
                let plan = |rows| method.stream_plan(&request(rows));
                let most = most_rows(plan, rows, context);
                return Err(EngineError::StreamBudget {
                    rows,
                    context,
                    most,
                });
            }
            let chunk = chunk.unwrap_or(CHUNK).clamp(1, left.max(1));
            let mut plan = Self {
                tokens,
                max_new_tokens,
                rows,
                wanted: None,
                chunk,
                chunk_group: (CHUNKS * chunk).min(tokens.max(1)),
                positions: 0,
                keeps: LayerKeeps::for_model(model),
                table: class_table(&row_plan, tokens + max_new_tokens),
                method: method.name(),
                row_plan,
                entries,
                heads: head_shape(model),
                cache,
                vault: false,
                own_memory: backend::of(model).has_own_memory(),
                width: model.config().width,
            };
            let ranks = (entries + chunk).min(tokens).max(entries + 1);
            let rings = plan.longest_ring() + chunk.max(max_new_tokens);
            plan.positions = match plan.longest_ring() {
                0 => ranks,
                _ => ranks.max(rings),
            };
            check_cache(model, cache, plan.method, &plan.row_plan)?;
            return Ok(plan);
        }
    }

    /// The parameters that the state at a document's end depends on: capacities, but neither the text's
    /// length, nor the answer's, nor the chunk group.
    pub(crate) fn fingerprint(&self) -> String {
        let Self {
            rows,
            chunk,
            keeps,
            table,
            entries,
            heads,
            cache,
            own_memory,
            ..
        } = self;
        let (reads_probabilities, slots, ring) = (
            self.row_plan.needs_probabilities,
            self.slots(),
            self.longest_ring(),
        );
        format!(
            "{rows} {chunk} {keeps:?} {table:?} {entries} {heads:?} {reads_probabilities} {cache:?} {own_memory} {slots} {ring}"
        )
    }

    /// Maximum length of an answer in streaming mode, in tokens.
    pub const MAX_NEW_TOKENS: usize = 1 << 20;
    /// Minimum default budget in rows, if the context length allows it.
    pub const MIN_DEFAULT_ROWS: usize = 256;
    /// Maximum default budget in rows.
    pub const MAX_DEFAULT_ROWS: usize = 4096;

    /// Rows of the longest ring.
    pub(crate) fn longest_ring(&self) -> usize {
        let rings = self.keeps.iter().filter_map(|keeps| match keeps {
            LayerKeeps::Window(window) => Some(*window),
            LayerKeeps::Compressed(_) | LayerKeeps::State(_) | LayerKeeps::Nothing => None,
        });
        rings.max().unwrap_or(0).min(self.tokens)
    }

    /// Slots per KV head of a compacted layer.
    pub fn slots(&self) -> usize {
        self.rows
            .saturating_add(1)
            .min(self.tokens + self.max_new_tokens)
    }

    /// Slots of the largest head of any layer.
    pub fn widest(&self) -> usize {
        let ring = self.keeps.iter().filter_map(|keeps| match keeps {
            LayerKeeps::Window(window) => Some((*window).min(self.tokens + self.max_new_tokens)),
            LayerKeeps::Compressed(_) | LayerKeeps::State(_) | LayerKeeps::Nothing => None,
        });
        self.slots().max(ring.max().unwrap_or(0))
    }

    /// Maximum number of rows in a chunk's attention in any layer.
    pub fn columns(&self) -> usize {
        self.entries.max(self.longest_ring()) + self.chunk
    }

    /// Capacity of the largest class table, in entries; 0 if nothing is merged.
    pub fn max_entries(&self) -> usize {
        self.table.map_or(0, |table| table.entries)
    }

    /// Length of one step's probabilities per query head.
    pub(crate) fn stride(&self) -> usize {
        self.slots().max(self.max_entries())
    }

    /// Tokens whose probabilities by slot are held at once; one if the method merges, which needs them by entry.
    pub(crate) fn gathered(&self) -> usize {
        match self.table {
            Some(_) => 1,
            None => TOKENS_PER_GATHER.min(self.chunk),
        }
    }

    pub(crate) fn empty_layer(&self) -> CompactLayer {
        let HeadShape {
            kv_heads, head_dim, ..
        } = self.heads;
        let layer = CompactLayer::empty(kv_heads, head_dim, self.slots(), self.cache);
        match self.table {
            Some(table) => {
                let nothing = RowStore::uniform(kv_heads, 0, head_dim);
                layer.with_table(&nothing, &Retention::Everything, table)
            }
            None => layer,
        }
    }

    /// Floats of the scratch of one chunk: see `ChunkScratch`.
    pub(crate) fn scratch(&self) -> usize {
        let (chunk, heads) = (self.chunk, &self.heads);
        let (q, kv) = (
            chunk * heads.q_heads * heads.head_dim,
            chunk * heads.kv_heads * heads.head_dim,
        );
        let looking = if self.row_plan.needs_probabilities {
            let tile = TILE.min(chunk) * heads.q_heads;
            heads.q_heads * chunk
                + tile * (self.columns() + 1)
                + self.gathered() * heads.q_heads * self.stride()
                + heads.kv_heads * (self.stride() + self.entries)
        } else {
            0
        };
        3 * q + 2 * kv + looking
    }

    /// Device bytes for reading and decoding, including the model's weights; 0 for a model on the CPU.
    ///
    /// # Errors
    /// [`EngineError::Gpu`].
    pub fn gpu_bytes(&self, model: &Model) -> Result<u64, EngineError> {
        backend::of(model).device_bytes_of_stream(self)
    }

    /// The ledger during prefill; `decode` is that of decoding.
    pub fn ledger(&self, model: &Model) -> MemoryLedger {
        let float = size_of::<f32>();
        let (kv_heads, dim) = (self.heads.kv_heads, self.heads.head_dim);
        let (slots, cache) = (self.slots(), self.cache);
        let of_head =
            kept_bytes(slots - 1, slots, dim, cache) + slot_map_bytes(slots - 1, slots, cache);
        let (mut kept_rows, mut tables) = (0, self.row_plan.bytes);
        for keeps in &self.keeps {
            match *keeps {
                // For each row its position and its rank.
                LayerKeeps::Compressed(_) => {
                    kept_rows += kv_heads * (of_head + slots * 2 * size_of::<u32>());
                    tables += self.table.map_or(0, |table| {
                        Classes::bytes_for(table, kv_heads, kv_heads * self.slots())
                    });
                }
                LayerKeeps::State(shape) => kept_rows += RecurrentState::bytes_for(shape) as usize,
                LayerKeeps::Nothing => {}
                LayerKeeps::Window(window) => {
                    let slots = window.min(self.tokens + self.max_new_tokens);
                    let row = 2 * cache.wide().row_bytes(dim);
                    kept_rows += kv_heads * slots * (row + size_of::<u32>());
                }
            }
        }
        // A RoPE table has the same size for every position.
        let a_position = RopeTable::new(model.config(), 1).bytes();
        MemoryLedger {
            vault: if self.vault { Vault::buffer_bytes() } else { 0 },
            weights: backend::weights_in_memory(model),
            vocabulary: model.vocabulary_bytes(),
            prompt: MemoryLedger::prompt_bytes(self.tokens),
            layer_tiles: model.layer_tiles_bytes(),
            layer_kv: (kv_heads * self.columns() * dim * 2 * float) as u64,
            residual: (self.chunk_group * self.width * float) as u64,
            activations: (self.scratch() * float) as u64 + LayerPass::bytes_for(model, self.chunk),
            rope: a_position * self.positions as u64,
            kept_rows: kept_rows as u64,
            kept_on_gpu: 0,
            tables,
            gpu: 0,
            decode: decode::scratch_bytes(model, self.widest(), self.max_entries()),
        }
    }
}

/// Rows or entries of a KV head that take part in attention.
fn entries_of(plan: &RowPlan) -> usize {
    plan.table.map_or(0, |table| table.entries).max(plan.budget)
}

/// The largest number of rows below `rows` that leaves positions for a whole chunk within `context`, by
/// bisection; 0 if there is none. The method may still refuse it as too small.
fn most_rows(
    plan: impl Fn(usize) -> Result<RowPlan, PolicyError>,
    rows: usize,
    context: usize,
) -> usize {
    let held = context - CHUNK.min(context / 2);
    let (mut fitting, mut failing) = (0, rows);
    while failing - fitting > 1 {
        let rows = fitting + (failing - fitting) / 2;
        // A budget that is too small for the method is small enough for the context length.
        let fits = plan(rows).map_or(true, |plan| entries_of(&plan) <= held);
        if fits { fitting = rows } else { failing = rows }
    }
    fitting
}
