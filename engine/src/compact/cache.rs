//! The kept rows of all layers together.

use kept_cuda::GpuCache;
use kept_kernels::CacheType;
use kept_policies::Pos;

use super::CompactLayer;

/// All layers' kept rows, and the position of the next token.
pub struct CompactCache {
    pub(crate) layers: Vec<CompactLayer>,
    /// Position that the next token takes: tokens seen so far, whatever was evicted.
    pub(crate) next: Pos,
    pub(crate) reassigned: bool,
    /// In layers with a window, keys are rotated as if the text had begun here: 0, but after a streamed reading.
    pub(crate) turned_from: Pos,
    /// Slots that the largest head was expected to need at most; scratch is made for as many, so that it is as large as was
    /// announced however the heads share their rows.
    pub(crate) widest: usize,
    /// How rows are stored.
    pub(crate) kind: CacheType,
    /// The rows, where they lie on a GPU and nowhere else: the layers then have their places alone. Whoever answers there takes
    /// it over.
    pub(crate) on_gpu: Option<GpuCache>,
}

impl CompactCache {
    /// Bytes of the kept keys and values.
    pub fn kv_bytes(&self) -> u64 {
        self.layers.iter().map(CompactLayer::live_bytes).sum()
    }

    /// Bytes allocated for rows, wherever they lie, positions and ranks, room for the answer included.
    pub fn allocated_bytes(&self) -> u64 {
        self.layers.iter().map(CompactLayer::allocated_bytes).sum()
    }

    /// Of these the rows', where they lie on a GPU alone; else 0.
    pub fn bytes_on_gpu(&self) -> u64 {
        self.layers.iter().map(CompactLayer::bytes_elsewhere).sum()
    }

    /// Bytes of look-up tables, and of what the method keeps beside them.
    pub fn table_bytes(&self) -> u64 {
        self.layers.iter().map(CompactLayer::table_bytes).sum()
    }

    /// Entries that the largest look-up table has room for; 0 where nothing is merged.
    pub(crate) fn max_entries(&self) -> usize {
        let entries = self.layers.iter().map(CompactLayer::entry_capacity);
        entries.max().unwrap_or(0)
    }

    /// The model's layers, from 0.
    pub fn layers(&self) -> &[CompactLayer] {
        &self.layers
    }

    /// The layers that a method cuts, in its own count: those that attend to every position.
    pub fn cut_layers(&self) -> impl Iterator<Item = &CompactLayer> {
        self.layers.iter().filter(|layer| layer.window.is_none())
    }

    /// Slots of the largest head, over all layers: room for attention scratch.
    pub(crate) fn max_capacity(&self) -> usize {
        let heads = |l: &CompactLayer| (0..l.kv_heads()).map(|h| l.keys.capacity(h)).max();
        let largest = self.layers.iter().filter_map(heads).max();
        largest.unwrap_or(0).max(self.widest)
    }
}
