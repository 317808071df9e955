//! What answering has room for on a GPU, and what that takes.

use kept_cuda::{DeviceError, LayerCapacity, RowKind};
use kept_kernels::CacheType;
use kept_models::{GpuModel, Model, RopeTable};

use super::graph_decoder::GraphDecoder;
use super::host_stepped::HostSteppedDecoder;
use crate::EngineError;
use crate::compact::{CompactCache, CompactLayer};
use crate::sizes::LayerKeeps;

/// What the cache on a GPU, and the decode loop's buffers there, have room for.
pub(crate) struct GpuDecodePlan {
    /// `[layers of the model]`
    pub(crate) layers: Vec<LayerCapacity>,
    /// Rows of the largest head.
    pub(crate) max_rows: usize,
    /// Entries of the largest look-up table; 0 where nothing is merged.
    pub(crate) max_entries: usize,
    /// Whether the method looks at probabilities.
    pub(crate) looks: bool,
}

/// Each head's room in a layer that a method cuts.
pub(crate) struct SelectedCapacity {
    pub(crate) slots: usize,
    /// First places that are of the cache's type, where that is a quantised one.
    pub(crate) narrow: usize,
    /// Entries of its look-up table.
    pub(crate) entries: usize,
}

/// The room that a layer's slots take, wherever its rows lie.
///
/// # Errors
/// [`EngineError::GpuRows`] where a GPU has no such rows.
pub(crate) fn capacity_of(layer: &CompactLayer) -> Result<LayerCapacity, EngineError> {
    let heads = 0..layer.kv_heads();
    let cache = layer.keys.cache_type();
    Ok(LayerCapacity {
        capacities: heads.clone().map(|h| layer.keys.capacity(h)).collect(),
        kind: RowKind::of(cache).ok_or(EngineError::GpuRows { cache })?,
        narrow: heads.map(|h| layer.keys.narrow_places(h)).collect(),
        ranked: !layer.ranks.is_empty(),
        entries: layer.entry_capacity(),
    })
}

impl GpuDecodePlan {
    /// Layers as `keeps` says: the method's with the room of `cut`, those with a window with room for as many of `tokens` as that has.
    pub(crate) fn layers(
        keeps: &[LayerKeeps],
        kv_heads: usize,
        (cache, ranked): (CacheType, bool),
        tokens: usize,
        cut: &dyn Fn(usize) -> SelectedCapacity,
    ) -> Vec<LayerCapacity> {
        let kind = |cache: CacheType| RowKind::of(cache).unwrap_or(RowKind::F16);
        let layer = |keeps: &LayerKeeps| {
            let (kind, ranked, capacity) = match *keeps {
                LayerKeeps::Cut(own) => (kind(cache), ranked, cut(own)),
                LayerKeeps::Window(window) => {
                    let ring = SelectedCapacity {
                        slots: window.min(tokens),
                        narrow: 0,
                        entries: 0,
                    };
                    (kind(cache.wide()), false, ring)
                }
            };
            LayerCapacity {
                capacities: vec![capacity.slots; kv_heads],
                kind,
                narrow: vec![capacity.narrow; kv_heads],
                ranked,
                entries: capacity.entries,
            }
        };
        keeps.iter().map(layer).collect()
    }

    /// For `cache` as it is.
    pub(super) fn of(cache: &CompactCache, looks: bool) -> Result<Self, EngineError> {
        Ok(Self {
            layers: (cache.layers.iter())
                .map(capacity_of)
                .collect::<Result<_, EngineError>>()?,
            max_rows: cache.max_capacity(),
            max_entries: cache.max_entries(),
            looks,
        })
    }

    /// Whether the GPU writes the answer by itself: no method looks at what a token does, or does anything to rows.
    pub(crate) fn graph_decoder(&self) -> bool {
        !self.looks && self.max_entries == 0 && self.layers.iter().all(|layer| !layer.ranked)
    }

    /// Bytes that answering takes of the GPU, the weights' apart, with rotations of `positions`.
    pub(crate) fn bytes(
        &self,
        gpu: &GpuModel,
        model: &Model,
        positions: usize,
    ) -> Result<u64, DeviceError> {
        // A table's bytes are the same for every position.
        let a_position = RopeTable::new(model.config(), 1);
        let taken = gpu
            .device()
            .measure_allocations(|device| match self.graph_decoder() {
                true => GraphDecoder::on(device, model, &a_position, self, None).map(drop),
                false => HostSteppedDecoder::on(device, gpu, model, &a_position, self).map(drop),
            })?;
        Ok(taken + (positions.max(1) as u64 - 1) * a_position.bytes())
    }
}
