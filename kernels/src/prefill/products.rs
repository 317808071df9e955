//! The products of attention over one tile: the operation that AMX replaces.

use std::marker::PhantomData;

use crate::panel::{ProductShape, Strided, pack_lane, product};
use crate::simd::Lanes;

/// The two products of attention over one tile of keys and values.
pub(crate) trait Products: Sized {
    /// Vector type of the operations between the two products.
    type V: Lanes;
    /// Lanes (query rows x heads of the group) per work item.
    const LANES: usize;
    /// The width of a panel is a multiple of this.
    const WIDTH: usize;

    /// Numbers of a row as multiplied: `head_dim`, padded.
    fn dims(head_dim: usize) -> usize;

    /// Scratch size in f32 of one tile.
    fn scratch(head_dim: usize) -> usize;

    /// Writes one query, times `scale`, to a lane of a zeroed panel, which holds `dims` numbers for each of `width`
    /// lanes.
    ///
    /// # Safety
    /// As drawn in `panel.rs`; the caller runs at the level of `V`.
    unsafe fn pack_query(query: &[f32], scale: f32, panel: *mut f32, width: usize, lane: usize);

    /// Prepares a tile of `keys` and `values [rows, head_dim]`, at most [`crate::panel::TILE`] rows.
    ///
    /// # Safety
    /// Call only from code compiled for the level of `V`; the slices outlive the tile.
    unsafe fn tile(keys: &[f32], values: &[f32], head_dim: usize, scratch: &mut [f32]) -> Self;

    /// `logits [rows][width]`: the first `rows` keys times a panel of queries.
    ///
    /// # Safety
    /// `logits` has the size of a whole tile; the caller runs at the level of `V`.
    unsafe fn dots(&self, rows: usize, width: usize, queries: *const f32, logits: *mut f32);

    /// `sums [dims][width] = sums * rescale + values of the first rows * weights [rows][width]`.
    ///
    /// # Safety
    /// Pointers cover these extents; the caller runs at the level of `V`.
    unsafe fn add(
        &self,
        rows: usize,
        width: usize,
        weights: *const f32,
        rescale: *const f32,
        sums: *mut f32,
    );
}

/// Fused multiply-adds directly on the rows of the store.
pub(super) struct Fused<V> {
    /// `[_, head_dim]`
    keys: *const f32,
    /// `[_, head_dim]`
    values: *const f32,
    head_dim: usize,
    level: PhantomData<V>,
}

impl<V: Lanes> Products for Fused<V> {
    type V = V;
    // All lanes share one load of each tile of keys and values. Queries, outputs and one tile fit an L2 cache of 512
    // KiB at head_dim 128.
    const LANES: usize = 128;
    const WIDTH: usize = V::N;

    fn dims(head_dim: usize) -> usize {
        head_dim
    }

    fn scratch(_: usize) -> usize {
        0
    }

    #[inline(always)]
    unsafe fn pack_query(query: &[f32], scale: f32, panel: *mut f32, width: usize, lane: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe { pack_lane(query, scale, panel, width, lane) };
    }

    #[inline(always)]
    unsafe fn tile(keys: &[f32], values: &[f32], head_dim: usize, _: &mut [f32]) -> Self {
        Self {
            keys: keys.as_ptr(),
            values: values.as_ptr(),
            head_dim,
            level: PhantomData,
        }
    }

    #[inline(always)]
    unsafe fn dots(&self, rows: usize, width: usize, queries: *const f32, logits: *mut f32) {
        let keys = Strided {
            start: self.keys,
            row_stride: self.head_dim,
            step_stride: 1,
        };
        let shape = ProductShape {
            rows,
            steps: self.head_dim,
            width,
        };
        // SAFETY: guaranteed by the caller.
        unsafe { product::<V>(shape, keys, queries, None, logits) };
    }

    #[inline(always)]
    unsafe fn add(
        &self,
        rows: usize,
        width: usize,
        weights: *const f32,
        rescale: *const f32,
        sums: *mut f32,
    ) {
        let transposed = Strided {
            start: self.values,
            row_stride: 1,
            step_stride: self.head_dim,
        };
        let shape = ProductShape {
            rows: self.head_dim,
            steps: rows,
            width,
        };
        // SAFETY: guaranteed by the caller.
        unsafe { product::<V>(shape, transposed, weights, Some(rescale), sums) };
    }
}
