//! The rows of a layer that attends to the last positions only, while a text is read in streaming: raw keys, oldest first, so that
//! they stand at ranks that never grow.

use kept_kernels::RowStore;
use kept_models::RopeTable;

use crate::compact::CompactLayer;

/// The last rows of one layer.
pub(super) struct Ring {
    /// Keys before RoPE, oldest first.
    pub(super) keys: RowStore,
    /// As `keys`.
    pub(super) values: RowStore,
    /// Rows in use, in every head.
    pub(super) rows: usize,
    window: usize,
}

impl Ring {
    /// An empty ring for a window, of which a text fills at most `rows`.
    pub(super) fn new(kv_heads: usize, head_dim: usize, window: usize, rows: usize) -> Self {
        let store = || RowStore::uniform(kv_heads, rows, head_dim);
        Self {
            keys: store(),
            values: store(),
            rows: 0,
            window,
        }
    }

    /// Positions that a token attends to, its own included.
    pub(super) fn window(&self) -> usize {
        self.window
    }

    pub(super) fn live_bytes(&self) -> u64 {
        let row = self.keys.head_dim() * size_of::<f32>();
        (2 * self.keys.kv_heads() * self.rows * row) as u64
    }

    /// Takes a chunk's raw keys and values `[count, kv_heads, head_dim]` in at the end; what no longer has room leaves at the front.
    pub(super) fn push(&mut self, k: &[f32], v: &[f32]) {
        let (heads, dim) = (self.keys.kv_heads(), self.keys.head_dim());
        let capacity = self.keys.capacity(0);
        let width = heads * dim;
        let count = k.len() / width;
        let new = count.min(capacity);
        let stay = self.rows.min(capacity - new);
        for (store, chunk) in [(&mut self.keys, k), (&mut self.values, v)] {
            let chunk = &chunk[(count - new) * width..];
            for head in 0..heads {
                let rows = store.head_mut(head);
                rows.copy_within((self.rows - stay) * dim..self.rows * dim, 0);
                for (row, from) in chunk.chunks_exact(width).enumerate() {
                    let to = &mut rows[(stay + row) * dim..][..dim];
                    to.copy_from_slice(&from[head * dim..][..dim]);
                }
            }
        }
        self.rows = stay + new;
    }

    /// The ring as an answer goes on with it after `n` tokens: rotated as if the text had begun with the oldest row of the longest
    /// ring, which has `longest` rows.
    pub(super) fn into_layer(
        mut self,
        n: usize,
        longest: usize,
        room: usize,
        rope: Option<&RopeTable>,
    ) -> CompactLayer {
        let first = longest - self.rows;
        if let Some(rope) = rope {
            for head in 0..self.keys.kv_heads() {
                for row in 0..self.rows {
                    rope.rotate_at(self.keys.row_mut(head, row), first + row);
                }
            }
        }
        let mut layer = CompactLayer::ring(&self.keys, &self.values, self.rows, self.window, room);
        let positions: Vec<u32> = (n - self.rows..n).map(|p| p as u32).collect();
        layer.place(&positions);
        layer
    }
}
