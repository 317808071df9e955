//! The rows that a thread attends with at once, and its scratch.

use super::products::Products;
use crate::HeadShape;
use crate::panel::{LOWEST_LOGIT, PANEL, TILE, split};
use crate::simd::{Lanes, WIDEST};

/// Query rows `start..start + rows` of the chunk, with all query heads of `kv_head`. Lane `r * group + g` holds row
/// `start + r` of head `g` of the group. So lanes ascend in position, and the first panels can skip the last tiles.
pub(super) struct Item {
    pub(super) kv_head: usize,
    pub(super) group: usize,
    pub(super) start: usize,
    pub(super) rows: usize,
}

impl Item {
    /// Lanes with a row; lanes after them fill the last vector.
    #[inline(always)]
    pub(super) fn used_lanes(&self) -> usize {
        self.rows * self.group
    }

    /// Query row of a lane; the last row for lanes after the used ones.
    #[inline(always)]
    pub(super) fn row(&self, lane: usize) -> usize {
        self.start + lane.min(self.used_lanes() - 1) / self.group
    }

    /// Query head of a lane.
    #[inline(always)]
    pub(super) fn q_head(&self, lane: usize) -> usize {
        self.kv_head * self.group + lane % self.group
    }

    /// Scratch size in f32, sufficient at every SIMD level.
    pub(super) fn scratch<P: Products>(&self, shape: &HeadShape) -> usize {
        let lanes = self.used_lanes().next_multiple_of(P::WIDTH.max(WIDEST));
        let dims = P::dims(shape.head_dim);
        2 * dims * lanes + TILE * lanes.min(PANEL) + 4 * lanes + P::scratch(shape.head_dim)
    }
}

/// Parts of the scratch. The lanes are cut into panels; the last one may be narrower.
pub(super) struct Buffers<'s> {
    /// Panels `[dims][width]`, scaled; the panel from lane `first` on starts at `dims * first`.
    pub(super) queries: &'s mut [f32],
    /// Weighted values so far, laid out as `queries`.
    pub(super) sums: &'s mut [f32],
    /// `[TILE][width]`, one panel.
    pub(super) logits: &'s mut [f32],
    /// Scratch of [`Products::tile`].
    pub(super) tile: &'s mut [f32],
    /// `[lanes]`, as the next two: the [`OnlineSoftmax`].
    pub(super) max: &'s mut [f32],
    pub(super) sum: &'s mut [f32],
    pub(super) rescale: &'s mut [f32],
    /// `[lanes]`: the last visible key, counted from the first key of the tile.
    pub(super) visible: &'s mut [f32],
}

impl<'s> Buffers<'s> {
    #[inline(always)]
    pub(super) fn new<P: Products>(scratch: &'s mut [f32], item: &Item, head_dim: usize) -> Self {
        let lanes = item.used_lanes().next_multiple_of(P::WIDTH);
        let dims = P::dims(head_dim);
        let sizes = [
            dims * lanes,
            dims * lanes,
            TILE * (P::V::ACROSS * P::V::N).min(lanes),
            P::scratch(head_dim),
            lanes,
            lanes,
            lanes,
            lanes,
        ];
        let [queries, sums, logits, tile, max, sum, rescale, visible] = split(scratch, sizes);
        queries.fill(0.0); // lanes past the used ones must be finite
        sums.fill(0.0);
        max.fill(LOWEST_LOGIT);
        sum.fill(0.0);
        Self {
            queries,
            sums,
            logits,
            tile,
            max,
            sum,
            rescale,
            visible,
        }
    }

    /// The panel that contains a lane: its first lane and its width.
    #[inline(always)]
    pub(super) fn panel<P: Products>(&self, lane: usize) -> Panel {
        let most = P::V::ACROSS * P::V::N;
        let first = lane / most * most;
        Panel {
            first,
            width: most.min(self.max.len() - first),
        }
    }
}

/// Lanes `first..first + width`.
pub(super) struct Panel {
    pub(super) first: usize,
    pub(super) width: usize,
}
