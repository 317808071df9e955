//! Attention of one token on the CPU, over rows or over the entries of a class table.

use kept_kernels::{
    ClassScratch, DecodeAttention, DecodeScratch, RankRotation, Rotation, decode_attention,
};
use kept_models::{Model, RopeTable};

use crate::compact::CompactLayer;
use crate::decode::Probabilities;
use crate::shape::{attention_scale, head_shape};

/// Scratch of [`AttentionScratch::attend`], shared by all layers.
pub(super) struct AttentionScratch {
    /// `[q_heads, slots of the largest head]` probabilities, and the splits' partial results.
    rows: DecodeScratch,
    /// As `rows`, for layers where tokens share rows, if the method merges.
    by_table: Option<ClassScratch>,
}

impl AttentionScratch {
    /// For up to `max_rows` rows per KV head, and class tables of up to `max_entries`.
    pub(super) fn new(model: &Model, max_rows: usize, max_entries: usize) -> Self {
        let (shape, threads) = (head_shape(model), kept_kernels::threads::count());
        Self {
            rows: DecodeScratch::new(shape, max_rows, threads),
            by_table: (max_entries > 0).then(|| ClassScratch::new(shape, max_rows, max_entries)),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.rows.bytes() + self.by_table.as_ref().map_or(0, ClassScratch::bytes)
    }

    /// Attention of `query [q_heads, head_dim]` over layer `layer`, to `out [q_heads, head_dim]`. Keys cached before
    /// RoPE are rotated by `ranked` to their ranks. Allocates nothing.
    pub(super) fn attend(
        &mut self,
        model: &Model,
        layer: usize,
        cached: &CompactLayer,
        query: &[f32],
        ranked: Option<&RopeTable>,
        out: &mut [f32],
    ) -> Probabilities<'_> {
        let scale = attention_scale(model, layer);
        let by_table = self.by_table.as_mut().filter(|_| cached.is_shared());
        if let Some(scratch) = by_table {
            let rotation = ranked.map(|rope| RankRotation {
                cos: rope.cosines(),
                sin: rope.sines(),
                rope_dim: 2 * rope.pairs(),
                pairing: rope.pairing(),
            });
            cached.attend_by_table(query, scale, rotation, scratch, out);
            return Probabilities {
                values: scratch.probabilities(),
                stride: scratch.stride(),
            };
        }
        let task = DecodeAttention {
            shape: head_shape(model),
            scale,
            query,
            keys: &cached.keys,
            values: &cached.values,
            rows: &cached.rows,
            rotation: ranked.map(|rope| Rotation {
                cos: rope.cosines(),
                sin: rope.sines(),
                rope_dim: 2 * rope.pairs(),
                pairing: rope.pairing(),
                ranks: &cached.ranks,
            }),
        };
        decode_attention(&task, &mut self.rows, out);
        Probabilities {
            values: self.rows.all_probabilities(),
            stride: self.rows.stride(),
        }
    }
}
