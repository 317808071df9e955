//! Attention of one token on the CPU, over rows or over the entries of a class table.

use kept_kernels::{
    ClassScratch, DecodeAttention, DecodeScratch, HeadShape, RankRotation, Rotation,
    decode_attention,
};
use kept_models::{Model, RopeTable};

use crate::after_layer::Probabilities;
use crate::compact::CompactLayer;
use crate::shape::{attention_scale, head_shape, layer_heads, window_heads};

/// Scratch of [`AttentionScratch::attend`], shared by all layers.
pub(super) struct AttentionScratch {
    /// `[q_heads, slots of the largest head]` probabilities, and the splits' partial results.
    rows: DecodeScratch,
    /// As `rows`, for sliding-window layers with other heads.
    of_windows: Option<(HeadShape, DecodeScratch)>,
    /// As `rows`, for layers where tokens share rows, if the method merges.
    by_table: Option<ClassScratch>,
}

impl AttentionScratch {
    /// For up to `max_rows` rows per KV head, and class tables of up to `max_entries`.
    pub(super) fn new(model: &Model, max_rows: usize, max_entries: usize) -> Self {
        let (shape, threads) = (head_shape(model), kept_kernels::threads::count());
        let scratch = |shape| DecodeScratch::new(shape, max_rows, threads);
        Self {
            rows: scratch(shape),
            of_windows: window_heads(model).map(|shape| (shape, scratch(shape))),
            by_table: (max_entries > 0).then(|| ClassScratch::new(shape, max_rows, max_entries)),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let of_windows = self
            .of_windows
            .as_ref()
            .map_or(0, |(_, scratch)| scratch.bytes());
        let by_table = self.by_table.as_ref().map_or(0, ClassScratch::bytes);
        self.rows.bytes() + of_windows + by_table
    }

    /// Attention of `query [q_heads, head_dim]` over layer `layer`, to `out [q_heads, head_dim]`. Keys cached before
    /// RoPE are rotated by `rope_at_rank` to their ranks. Allocates nothing.
    pub(super) fn attend(
        &mut self,
        model: &Model,
        layer: usize,
        cached: &CompactLayer,
        query: &[f32],
        rope_at_rank: Option<&RopeTable>,
        out: &mut [f32],
    ) -> Probabilities<'_> {
        let scale = attention_scale(model, layer);
        let by_table = self.by_table.as_mut().filter(|_| cached.is_shared());
        if let Some(scratch) = by_table {
            let rotation = rope_at_rank.map(|rope| RankRotation {
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
        let shape = layer_heads(model, layer);
        let task = DecodeAttention {
            shape,
            scale,
            query,
            keys: &cached.keys,
            values: &cached.values,
            rows: &cached.rows,
            rotation: rope_at_rank.map(|rope| Rotation {
                cos: rope.cosines(),
                sin: rope.sines(),
                rope_dim: 2 * rope.pairs(),
                pairing: rope.pairing(),
                ranks: &cached.ranks,
            }),
        };
        let scratch = match &mut self.of_windows {
            Some((own, scratch)) if *own == shape => scratch,
            _ => &mut self.rows,
        };
        decode_attention(&task, scratch, out);
        Probabilities {
            values: scratch.all_probabilities(),
            stride: scratch.stride(),
        }
    }
}
