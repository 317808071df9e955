//! Capacities and memory of decoding on a GPU.

use kept_cuda::{LayerCapacity, RowKind};
use kept_engine::backend::{F16_ROWS, LayerKeeps, PrefillPlan};
use kept_engine::{CompactCache, CompactLayer, EngineError, StreamPlan};
use kept_kernels::CacheType;

/// Capacities of the GPU cache and of the decode loop's device buffers.
pub(crate) struct DecodePlan {
    /// `[layers of the model]`
    pub(crate) layers: Vec<LayerCapacity>,
    /// Rows of the largest head.
    pub(super) max_rows: usize,
    /// Entries of the largest class table; 0 if nothing is merged.
    pub(super) max_entries: usize,
    /// Whether the method reads attention probabilities and changes rows.
    pub(super) reads_probabilities: bool,
}

/// The capacity of a layer, on host or device.
///
/// # Errors
/// [`EngineError::GpuRows`] if GPUs do not support the row type.
pub(crate) fn capacity_of(layer: &CompactLayer) -> Result<LayerCapacity, EngineError> {
    let heads = 0..layer.kv_heads();
    let cache = layer.keys.cache_type();
    Ok(LayerCapacity {
        capacities: heads.clone().map(|h| layer.keys.capacity(h)).collect(),
        kind: RowKind::of(cache).ok_or(EngineError::GpuRows { cache })?,
        narrow: heads.map(|h| layer.keys.narrow_rows(h)).collect(),
        ranked: !layer.ranks.is_empty(),
        entries: layer.entry_capacity(),
    })
}

impl DecodePlan {
    /// The plan for an answer after a prefill.
    pub(crate) fn after_prefill(plan: &PrefillPlan) -> Self {
        let kept: Vec<usize> = plan.kept().collect();
        let compressed = |own: usize| [plan.capacities[own], kept[own].saturating_sub(F16_ROWS)];
        let (keeps, kv_heads) = (&plan.keeps, plan.row_plan.model.kv_heads);
        let tokens = plan.tokens() + plan.max_new_tokens();
        let compacted = (plan.reassigns_positions(), plan.max_entries());
        Self {
            layers: Self::layers(keeps, kv_heads, plan.cache, tokens, compacted, &compressed),
            max_rows: plan.max_capacity,
            max_entries: plan.max_entries(),
            reads_probabilities: plan.changes_rows_in_decode(),
        }
    }

    /// The plan for an answer after a text that was read in streaming mode.
    pub(crate) fn after_stream(plan: &StreamPlan) -> Self {
        let narrow = plan.slots().saturating_sub(F16_ROWS + 1);
        let compressed = |_| [plan.slots(), narrow];
        let (keeps, kv_heads) = (&plan.keeps, plan.heads.kv_heads);
        let tokens = plan.tokens + plan.max_new_tokens;
        let compacted = (true, plan.max_entries());
        Self {
            layers: Self::layers(keeps, kv_heads, plan.cache, tokens, compacted, &compressed),
            max_rows: plan.widest(),
            max_entries: plan.max_entries(),
            reads_probabilities: true,
        }
    }

    /// Layers according to `keeps`. In compressed layers, `compressed` gives the slots of a head and how many of its
    /// first physical rows are quantised, for a quantised cache type; `compacted` is whether positions are re-assigned
    /// there, so that keys are rotated by rank, and the entries of the class table. Sliding-window layers have the
    /// capacity of their window, at most `tokens`.
    fn layers(
        keeps: &[LayerKeeps],
        kv_heads: usize,
        cache: CacheType,
        tokens: usize,
        compacted: (bool, usize),
        compressed: &dyn Fn(usize) -> [usize; 2],
    ) -> Vec<LayerCapacity> {
        let layer = |keeps: &LayerKeeps| {
            let whole = (false, 0);
            let (cache, [slots, narrow], (ranked, entries)) = match *keeps {
                LayerKeeps::Compressed(own) => (cache, compressed(own), compacted),
                // A GPU has no recurrent model; a layer without rows needs none.
                LayerKeeps::State(_) | LayerKeeps::Nothing => (cache.wide(), [0, 0], whole),
                LayerKeeps::Window(window) => (cache.wide(), [window.min(tokens), 0], whole),
            };
            LayerCapacity {
                capacities: vec![slots; kv_heads],
                kind: RowKind::of(cache).unwrap_or(RowKind::F16),
                narrow: vec![narrow; kv_heads],
                ranked,
                entries,
            }
        };
        keeps.iter().map(layer).collect()
    }

    /// The plan for `cache` in its current state.
    pub(crate) fn for_cache(
        cache: &CompactCache,
        reads_probabilities: bool,
    ) -> Result<Self, EngineError> {
        Ok(Self {
            layers: (cache.layers.iter())
                .map(capacity_of)
                .collect::<Result<_, EngineError>>()?,
            max_rows: cache.max_capacity(),
            max_entries: cache.max_entries(),
            reads_probabilities,
        })
    }
}
