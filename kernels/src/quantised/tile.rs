//! Many inputs times a few rows of the matrix: the inner loop of prefill.
//!
//! A tile is `2 N` rows of the matrix (N lanes), unpacked to bytes in the layout of the products. It is unpacked once
//! and passes over all inputs, so the matrix streams from the file once, however many inputs there are. Tiles are not
//! kept.
//!
//! ```text
//! weights  [cols / 4][2 N][4 bytes]     scales, mins  [cols / GROUP][2 N]
//! inputs   four rows at a time, four bytes broadcast to all lanes
//! ```

use std::mem::offset_of;

use super::TILE_ROWS;
use super::format::{Format, MAX_BLOCK_SIZE, Unpacked};
use super::ints::{Bytes, by_byte_level};
use super::rows::{BLOCK, QuantisedRows, Row};
use crate::simd::Lanes;

/// Inputs whose sums are in registers at the same time.
const ACROSS: usize = 4;

/// Output of a tile: element `(input, row)` is `start[input * stride + row]`.
#[derive(Clone, Copy)]
pub(super) struct Products {
    pub(super) start: *mut f32,
    pub(super) stride: usize,
    /// Adds to the output instead of replacing it.
    pub(super) add: bool,
}

/// Scratch size in f32 of a tile of a matrix with `cols` columns, at any level.
pub(super) fn scratch(cols: usize) -> usize {
    // Bytes of 32 rows, and one scale and one minimum per 16 numbers.
    32 * (cols / 4 + 2 * cols / 16)
}

by_byte_level! {
    /// Multiplies rows `rows` of a matrix with all `inputs`; `matrix` is the bytes of the whole matrix.
    ///
    /// # Safety
    /// The CPU supports the level's instructions; `out` covers all inputs x `rows`, and no other thread accesses it;
    /// the scratch has the size of [`scratch`].
    pub(super) unsafe fn multiply<F>(matrix: &[u8], rows: std::ops::Range<usize>, inputs: &QuantisedRows, out: Products, scratch: &mut [f32]) = multiply_lanes;
}

#[inline(always)]
unsafe fn multiply_lanes<V: Bytes, F: Format>(
    matrix: &[u8],
    rows: std::ops::Range<usize>,
    inputs: &QuantisedRows,
    out: Products,
    scratch: &mut [f32],
) {
    let cols = inputs.cols();
    let width = 2 * V::N;
    let (weights, rest) = scratch.split_at_mut(width * cols / 4);
    let (scales, rest) = rest.split_at_mut(width * cols / F::GROUP);
    let mins = if F::MINS {
        &mut rest[..width * cols / F::GROUP]
    } else {
        &mut []
    };
    let row_bytes = cols / F::BLOCK_SIZE * F::BYTES;
    for first in rows.clone().step_by(width) {
        let count = width.min(rows.end - first);
        let blocks = &matrix[first * row_bytes..(first + count) * row_bytes];
        // SAFETY: guaranteed by the caller; the parts of the scratch have these sizes.
        unsafe {
            unpack_rows::<V, F>(
                blocks,
                cols,
                weights.as_mut_ptr().cast(),
                scales.as_mut_ptr(),
                mins.as_mut_ptr(),
            );
        }
        let tile = Tile {
            weights: weights.as_ptr().cast::<u32>(),
            scales: scales.as_ptr(),
            mins: mins.as_ptr(),
        };
        // SAFETY: guaranteed by the caller; `out` starts at the first of `rows`.
        unsafe {
            let out = Products {
                start: out.start.add(first - rows.start),
                ..out
            };
            let mut input = 0;
            while input + ACROSS <= inputs.rows() {
                multiply_tile::<V, F, ACROSS>(&tile, inputs, input, count, out);
                input += ACROSS;
            }
            while input < inputs.rows() {
                multiply_tile::<V, F, 1>(&tile, inputs, input, count, out);
                input += 1;
            }
        }
    }
}

/// A tile in scratch, laid out as in the diagram at the top.
struct Tile {
    weights: *const u32,
    scales: *const f32,
    mins: *const f32,
}

/// Unpacks up to `2 N` rows into a tile, less the offset if the level's weights are signed; if there are fewer rows, the
/// others are stale and their results are not stored. Rows are unpacked 256 columns at a time, then transposed: storing
/// each word in its place took longer than the products of eight inputs.
///
/// # Safety
/// The caller runs at the level of `V`; the targets cover `cols` columns of `2 N` rows.
#[inline(always)]
unsafe fn unpack_rows<V: Bytes, F: Format>(
    matrix: &[u8],
    cols: usize,
    weights: *mut u32,
    scales: *mut f32,
    mins: *mut f32,
) {
    let row_bytes = cols / F::BLOCK_SIZE * F::BYTES;
    let width = 2 * V::N;
    let mut unpacked = [const { Unpacked::new() }; TILE_ROWS];
    for first in (0..cols).step_by(MAX_BLOCK_SIZE) {
        let columns = MAX_BLOCK_SIZE.min(cols - first);
        let start = first / F::BLOCK_SIZE * F::BYTES;
        let bytes = columns / F::BLOCK_SIZE * F::BYTES;
        for (row, into) in matrix.chunks_exact(row_bytes).zip(&mut unpacked) {
            // Rows in turn are too far apart for the hardware to see what is read next.
            for line in (0..bytes).step_by(64) {
                prefetch(row.as_ptr().wrapping_add(start + bytes + line));
            }
            into.fill::<F>(&row[start..start + bytes]);
            if V::SIGNED {
                for quant in &mut into.quants {
                    *quant = quant.wrapping_sub(F::OFFSET as u8);
                }
            }
        }
        let words = unpacked.as_ptr().cast::<u32>();
        let groups = first / F::GROUP..(first + columns) / F::GROUP;
        // SAFETY: guaranteed by the caller; `unpacked` has the words of all rows.
        unsafe {
            let from = words.add(offset_of!(Unpacked, quants) / 4);
            transpose::<V>(from, weights.add(first / 4 * width), columns / 4);
            let from = words.add(offset_of!(Unpacked, scales) / 4);
            let to = scales.add(groups.start * width).cast();
            transpose::<V>(from, to, groups.len());
            if F::MINS {
                let from = words.add(offset_of!(Unpacked, mins) / 4);
                let to = mins.add(groups.start * width).cast();
                transpose::<V>(from, to, groups.len());
            }
        }
    }
}

/// Transposes `count` words of each row of an array of [`Unpacked`], from `from` in the first: `to [count][2 N]`.
///
/// # Safety
/// As [`unpack_rows`].
#[inline(always)]
unsafe fn transpose<V: Bytes>(from: *const u32, to: *mut u32, count: usize) {
    let stride = size_of::<Unpacked>() / 4;
    for word in (0..count).step_by(V::N) {
        for half in 0..2 {
            // SAFETY: guaranteed by the caller; a row has whole vectors of words.
            unsafe {
                V::transpose(
                    (from.add(half * V::N * stride + word), stride),
                    (to.add(word * 2 * V::N + half * V::N), 2 * V::N),
                    V::N.min(count - word),
                );
            }
        }
    }
}

/// Multiplies one tile with `M` inputs from input `first` on; stores the first `count` rows of the tile.
///
/// # Safety
/// As [`multiply`].
#[inline(always)]
unsafe fn multiply_tile<V: Bytes, F: Format, const M: usize>(
    tile: &Tile,
    inputs: &QuantisedRows,
    first: usize,
    count: usize,
    out: Products,
) {
    let rows: [Row<'_>; M] = std::array::from_fn(|m| inputs.row(first + m));
    let width = 2 * V::N;
    let cols = inputs.cols();
    // SAFETY: a tile has `cols` columns of `width` rows, an input row `cols` numbers; the caller guarantees the rest.
    unsafe {
        let mut sums = [[V::splat(0.0); 2]; M];
        let (mut weights, mut scales, mut mins) = (tile.weights, tile.scales, tile.mins);
        for block in 0..cols / BLOCK {
            let mut levels = [0.0f32; M];
            for (level, row) in levels.iter_mut().zip(&rows) {
                *level = *row.scales.as_ptr().add(block);
            }
            for group in 0..BLOCK / F::GROUP {
                let mut products = [[V::splat_int(0); 2]; M];
                if F::OFFSET != 0 && !V::SIGNED {
                    // Start with minus the weights' offset times the sum of the inputs, as an integer.
                    for (products, row) in products.iter_mut().zip(&rows) {
                        let sums = row.byte_sums.as_ptr().add(2 * block);
                        let sum = match F::GROUP {
                            32 => (*sums).wrapping_add(*sums.add(1)),
                            _ => *sums.add(group),
                        };
                        *products = [V::splat_int(sum.wrapping_mul(-F::OFFSET)); 2];
                    }
                }
                let at = block * BLOCK + group * F::GROUP;
                for four in 0..F::GROUP / 4 {
                    for (products, row) in products.iter_mut().zip(&rows) {
                        let input = row.bytes.as_ptr().add(at + 4 * four).cast::<i32>();
                        let input = i32::from_le(input.read_unaligned());
                        for (half, products) in products.iter_mut().enumerate() {
                            let weights = weights.add(half * V::N);
                            *products = match F::OFFSET {
                                128 => V::add_products::<true>(*products, weights, input),
                                _ => V::add_products::<false>(*products, weights, input),
                            };
                        }
                    }
                    weights = weights.add(width);
                }
                for (m, (sums, products)) in sums.iter_mut().zip(products).enumerate() {
                    let level = V::splat(levels[m]);
                    for (half, (sum, products)) in sums.iter_mut().zip(products).enumerate() {
                        let scale = V::load(scales.add(half * V::N)).mul(level);
                        *sum = V::to_floats(products).mul_add(scale, *sum);
                    }
                }
                if F::MINS {
                    for (m, sums) in sums.iter_mut().enumerate() {
                        let taken = match F::GROUP {
                            32 => -*rows[m].sums.as_ptr().add(block),
                            _ => {
                                -levels[m]
                                    * *rows[m].byte_sums.as_ptr().add(2 * block + group) as f32
                            }
                        };
                        let taken = V::splat(taken);
                        for (half, sum) in sums.iter_mut().enumerate() {
                            *sum = V::load(mins.add(half * V::N)).mul_add(taken, *sum);
                        }
                    }
                    mins = mins.add(width);
                }
                scales = scales.add(width);
            }
        }
        for (m, sums) in sums.into_iter().enumerate() {
            let to = out.start.add((first + m) * out.stride);
            store::<V>(sums, count, to, out.add);
        }
    }
}

/// Stores the first `count` of two vectors.
///
/// # Safety
/// `to` covers `count` elements; the caller runs at the level of `V`.
#[inline(always)]
unsafe fn store<V: Lanes>(sums: [V; 2], count: usize, to: *mut f32, add: bool) {
    // SAFETY: guaranteed by the caller; a vector has at most 16 elements.
    unsafe {
        if count == 2 * V::N {
            for (half, sum) in sums.into_iter().enumerate() {
                let to = to.add(half * V::N);
                if add {
                    V::load(to).add(sum).store(to)
                } else {
                    sum.store(to)
                }
            }
            return;
        }
        let mut all = [0.0f32; 32];
        for (half, sum) in sums.into_iter().enumerate() {
            sum.store(all.as_mut_ptr().add(half * V::N));
        }
        for (i, sum) in all.iter().enumerate().take(count) {
            if add {
                *to.add(i) += sum
            } else {
                *to.add(i) = *sum
            }
        }
    }
}

/// Prefetches the cache line at `at`, where Kept has an instruction for that; the address need not be valid.
#[inline(always)]
pub(super) fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching an invalid address has no effect.
    unsafe {
        use std::arch::x86_64::*;
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
