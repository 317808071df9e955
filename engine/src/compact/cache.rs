//! The kept rows of all layers.

use kept_kernels::CacheType;
use kept_policies::Pos;

use super::CompactLayer;
use crate::backend::DeviceRows;

/// The kept rows of all layers, and the position of the next token.
pub struct CompactCache {
    /// The model's layers, from 0.
    pub layers: Vec<CompactLayer>,
    /// Position of the next token: tokens seen so far, regardless of evictions.
    pub next: Pos,
    /// Whether keys are stored before RoPE and rotated by their rank.
    pub reassigned: bool,
    /// In sliding-window layers, keys are rotated as if the text began at this position: 0, except after
    /// streaming.
    pub window_rope_origin: Pos,
    /// Planned maximum of slots per head. Scratch buffers are allocated for it, so that they match the
    /// estimate however the heads share their rows.
    pub(crate) widest: usize,
    /// Type of the kept rows.
    pub(crate) kind: CacheType,
    /// The rows, if they are on a GPU only; the layers then hold physical rows without data. The decoder takes the
    /// rows over.
    pub on_gpu: Option<DeviceRows>,
}

impl CompactCache {
    /// Bytes of the kept keys and values.
    pub fn kv_bytes(&self) -> u64 {
        self.layers.iter().map(CompactLayer::live_bytes).sum()
    }

    /// Bytes allocated on host and device for rows, positions and ranks, including free slots for the answer.
    pub fn allocated_bytes(&self) -> u64 {
        self.layers.iter().map(CompactLayer::allocated_bytes).sum()
    }

    /// The part of [`CompactCache::allocated_bytes`] for rows that are on a GPU only.
    pub fn bytes_on_gpu(&self) -> u64 {
        self.layers.iter().map(CompactLayer::bytes_elsewhere).sum()
    }

    /// Bytes of class tables, including the method's elements per entry.
    pub fn table_bytes(&self) -> u64 {
        self.layers.iter().map(CompactLayer::table_bytes).sum()
    }

    /// Capacity of the largest class table, in entries; 0 if nothing is merged.
    pub fn max_entries(&self) -> usize {
        let entries = self.layers.iter().map(CompactLayer::entry_capacity);
        entries.max().unwrap_or(0)
    }

    /// The layers that a method compacts (the global layers), in the method's numbering.
    pub fn compressed_layers(&self) -> impl Iterator<Item = &CompactLayer> {
        self.layers.iter().filter(|layer| layer.window.is_none())
    }

    /// Slots of the largest head over all layers, for the attention scratch.
    pub fn max_capacity(&self) -> usize {
        let heads = |l: &CompactLayer| (0..l.kv_heads()).map(|h| l.keys.capacity(h)).max();
        let largest = self.layers.iter().filter_map(heads).max();
        largest.unwrap_or(0).max(self.widest)
    }
}
