//! The rows of a sliding-window layer in streaming mode: keys before RoPE, oldest first, so that ranks do not
//! grow with the text.

use kept_kernels::RowStore;
use kept_models::RopeTable;
use kept_policies::Snapshot;

use crate::compact::{CompactLayer, RingGather, snapshot_rows};
use crate::plan::StreamPlan;

/// The last rows of one layer.
pub(super) struct Ring {
    /// Keys before RoPE, oldest first.
    pub(super) keys: RowStore,
    /// As `keys`.
    pub(super) values: RowStore,
    /// Rows in use, in every head.
    pub(super) rows: usize,
    /// Attention window in positions, including the token's own.
    pub(super) window: usize,
}

impl Ring {
    /// An empty ring for a sliding window; f16 if the cache type is quantised.
    pub(super) fn new(plan: &StreamPlan, window: usize) -> Self {
        let heads = plan.heads;
        let capacities = vec![window.min(plan.tokens); heads.kv_heads];
        let narrow = vec![0; heads.kv_heads];
        let kind = plan.cache.wide();
        let store = || RowStore::stored(kind, heads.head_dim, &capacities, &narrow, false);
        Self {
            keys: store(),
            values: store(),
            rows: 0,
            window,
        }
    }

    /// Passes all mutable state to `through`.
    pub(super) fn snapshot(&mut self, through: &mut dyn Snapshot) {
        snapshot_rows(&mut self.keys, through);
        snapshot_rows(&mut self.values, through);
        through.count(&mut self.rows, self.keys.capacity(0));
    }

    pub(super) fn live_bytes(&self) -> u64 {
        let row = self.keys.cache_type().row_bytes(self.keys.head_dim());
        (2 * self.keys.kv_heads() * self.rows * row) as u64
    }

    /// Appends a chunk's keys (before RoPE) and values, `[count, kv_heads, head_dim]`; the oldest rows beyond
    /// the capacity are dropped.
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
                for row in 0..stay {
                    store.move_row(head, self.rows - stay + row, row);
                }
                for (row, from) in chunk.chunks_exact(width).enumerate() {
                    store.write(head, stay + row, &from[head * dim..][..dim]);
                }
            }
        }
        self.rows = stay + new;
    }

    /// Converts the ring to a layer for decoding after `n` tokens. Keys are rotated as if the text began with
    /// the oldest row of the longest ring, which has `longest` rows.
    pub(super) fn into_layer(
        self,
        n: usize,
        longest: usize,
        max_new_tokens: usize,
        rope: Option<&RopeTable>,
    ) -> CompactLayer {
        let first = longest - self.rows;
        let (heads, dim, cache) = (
            self.keys.kv_heads(),
            self.keys.head_dim(),
            self.keys.cache_type(),
        );
        let mut keys = RowStore::uniform(heads, self.rows, dim);
        let mut values = RowStore::uniform(heads, self.rows, dim);
        for head in 0..heads {
            for row in 0..self.rows {
                let key = keys.row_mut(head, row);
                self.keys.read(head, row, key);
                if let Some(rope) = rope {
                    rope.rotate_at(key, first + row);
                }
                self.values.read(head, row, values.row_mut(head, row));
            }
        }
        let ring = RingGather {
            keys: &keys,
            values: &values,
            tokens: self.rows,
            window: self.window,
            max_new_tokens,
            cache,
        };
        let mut layer = ring.layer(&mut Vec::new());
        let positions: Vec<u32> = (n - self.rows..n).map(|p| p as u32).collect();
        layer.map_positions(&positions);
        layer
    }
}
