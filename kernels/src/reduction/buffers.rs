//! The scratch of a pass of query rows over keys.

use super::Rows;
use crate::HeadShape;
use crate::panel::{TILE, split};
use crate::simd::Lanes;

/// Parts of the scratch. Row `r` of head `g` is lane `g * lanes + r`; the lanes of a head are cut into panels.
pub(super) struct Buffers<'s> {
    /// Lanes of a head: its rows, padded to whole vectors.
    pub(super) lanes: usize,
    /// Panels `[head_dim][width]`, scaled; the panel from lane `start` on starts at `head_dim * start`.
    pub(super) queries: &'s mut [f32],
    /// `[TILE][width]`, one panel.
    pub(super) logits: &'s mut [f32],
    /// `[lanes]`: the last visible key of each row, counted from the first key of the tile.
    pub(super) visible: &'s mut [f32],
    /// `[group * lanes]`, as the next two. They hold (max, sum, rescale) for `LogSumExp`; (log-sum-exp, row weight, -)
    /// for `AddProbabilities`; (log-sum-exp, -, -) for `MaxProbability` and `WriteProbabilities`; (log-sum-exp,
    /// average, -) for `MarkBelowAverage`, with the average in the lanes of the first head only.
    pub(super) max_or_lse: &'s mut [f32],
    pub(super) sum_or_weight: &'s mut [f32],
    pub(super) rescale: &'s mut [f32],
    /// Probabilities summed over the heads, for `MarkBelowAverage`: panels `[TILE][width]`; the panel from lane `start`
    /// on starts at `TILE * start`.
    pub(super) group_probabilities: &'s mut [f32],
    /// `[TILE, head_dim]`: the keys of a tile, if only some keys are visited.
    pub(super) gathered: &'s mut [f32],
}

impl<'s> Buffers<'s> {
    #[inline(always)]
    pub(super) fn new<V: Lanes>(scratch: &'s mut [f32], rows: &Rows, shape: &HeadShape) -> Self {
        let lanes = rows.rows.next_multiple_of(V::N);
        let all = lanes * shape.group();
        let sizes = [
            shape.head_dim * all,
            TILE * lanes.min(V::ACROSS * V::N),
            lanes,
            all,
            all,
            all,
            TILE * lanes,
            TILE * shape.head_dim,
        ];
        let [
            queries,
            logits,
            visible,
            max_or_lse,
            sum_or_weight,
            rescale,
            group_probabilities,
            gathered,
        ] = split(scratch, sizes);
        Self {
            lanes,
            queries,
            logits,
            visible,
            max_or_lse,
            sum_or_weight,
            rescale,
            group_probabilities,
            gathered,
        }
    }

    /// Width of the panel whose first lane is `start`.
    #[inline(always)]
    pub(super) fn width<V: Lanes>(&self, start: usize) -> usize {
        (V::ACROSS * V::N).min(self.lanes - start % self.lanes)
    }
}
