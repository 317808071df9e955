//! Inner loops of attention over kept rows: some rows against all heads of a GQA group.
//!
//! Every row is loaded and unpacked once for as many heads as fit in registers.
//!
//! ```text
//! dots     keys across the lanes, one accumulator per head and row; N such accumulators are summed up at once
//! values   two vectors of columns, one accumulator per vector and head, over all rows
//! ```
//!
//! `kv_split.rs` and `classes.rs` choose the rows and process the logits between the two products.

use crate::row_format::{BLOCK, F16Rows, F32Rows, Q4Rows, Q8Rows, RowFormat};
use crate::simd::{Lanes, SimdLevel, WIDEST, by_level};
use crate::{CacheType, HeadShape};

/// The query heads that share one KV head.
#[derive(Clone, Copy)]
pub(crate) struct Group {
    pub heads: usize,
    pub head_dim: usize,
}

impl Group {
    #[inline(always)]
    pub fn new(shape: &HeadShape) -> Self {
        Self {
            heads: shape.group(),
            head_dim: shape.head_dim,
        }
    }
}

/// Logits or weights of a group, one per head and row: head `g`, row `r` is `start[g * stride + r]`.
#[derive(Clone, Copy)]
pub(crate) struct Logits {
    pub start: *mut f32,
    pub stride: usize,
}

impl Logits {
    /// # Safety
    /// As for `pointer::add`.
    #[inline(always)]
    unsafe fn head(self, g: usize) -> Self {
        Self {
            // SAFETY: guaranteed by the caller.
            start: unsafe { self.start.add(g * self.stride) },
            ..self
        }
    }
}

/// `logits[g][r] = scale * keys[r] . queries[g]` for all heads of a group.
///
/// # Safety
/// Each key is `head_dim` numbers stored as `kind`, `queries` is `[heads, head_dim]`, and `logits` covers the results;
/// the CPU supports the instructions of `level`.
pub(crate) unsafe fn dot_heads(
    level: SimdLevel,
    kind: CacheType,
    group: Group,
    scale: f32,
    keys: &[*const u8],
    queries: &[f32],
    logits: Logits,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match kind {
            CacheType::F32 => dot_stored::<F32Rows>(level, group, scale, keys, queries, logits),
            CacheType::F16 => dot_stored::<F16Rows>(level, group, scale, keys, queries, logits),
            CacheType::Q8_0 => dot_stored::<Q8Rows>(level, group, scale, keys, queries, logits),
            CacheType::Q4_0 => dot_stored::<Q4Rows>(level, group, scale, keys, queries, logits),
        }
    }
}

by_level! {
    /// # Safety
    /// As [`dot_heads`].
    unsafe fn dot_stored<S: RowFormat>(group: Group, scale: f32, keys: &[*const u8], queries: &[f32], logits: Logits) = dot_lanes;
}

#[inline(always)]
unsafe fn dot_lanes<V: Lanes, S: RowFormat>(
    group: Group,
    scale: f32,
    keys: &[*const u8],
    queries: &[f32],
    logits: Logits,
) {
    let head_dim = group.head_dim;
    for g in (0..group.heads).step_by(V::HEADS) {
        let queries = queries[g * head_dim..].as_ptr();
        // SAFETY: guaranteed by the caller.
        unsafe {
            let logits = logits.head(g);
            let heads = V::HEADS.min(group.heads - g);
            // Heads times rows fill the lanes of one vector, or a few less.
            match V::N {
                16 => match heads {
                    1 => dot_rows::<V, S, 1, 16>(head_dim, scale, keys, queries, logits),
                    2 => dot_rows::<V, S, 2, 8>(head_dim, scale, keys, queries, logits),
                    3 => dot_rows::<V, S, 3, 4>(head_dim, scale, keys, queries, logits),
                    4 => dot_rows::<V, S, 4, 4>(head_dim, scale, keys, queries, logits),
                    5 => dot_rows::<V, S, 5, 2>(head_dim, scale, keys, queries, logits),
                    6 => dot_rows::<V, S, 6, 2>(head_dim, scale, keys, queries, logits),
                    7 => dot_rows::<V, S, 7, 2>(head_dim, scale, keys, queries, logits),
                    _ => dot_rows::<V, S, 8, 2>(head_dim, scale, keys, queries, logits),
                },
                8 => match heads {
                    1 => dot_rows::<V, S, 1, 8>(head_dim, scale, keys, queries, logits),
                    2 => dot_rows::<V, S, 2, 4>(head_dim, scale, keys, queries, logits),
                    3 => dot_rows::<V, S, 3, 2>(head_dim, scale, keys, queries, logits),
                    _ => dot_rows::<V, S, 4, 2>(head_dim, scale, keys, queries, logits),
                },
                _ => match heads {
                    1 => dot_rows::<V, S, 1, 4>(head_dim, scale, keys, queries, logits),
                    2 => dot_rows::<V, S, 2, 2>(head_dim, scale, keys, queries, logits),
                    3 => dot_rows::<V, S, 3, 1>(head_dim, scale, keys, queries, logits),
                    _ => dot_rows::<V, S, 4, 1>(head_dim, scale, keys, queries, logits),
                },
            }
        }
    }
}

/// [`dot_heads`] for `HEADS` heads, `ROWS` rows at a time.
///
/// # Safety
/// As [`dot_heads`].
#[inline(always)]
unsafe fn dot_rows<V: Lanes, S: RowFormat, const HEADS: usize, const ROWS: usize>(
    head_dim: usize,
    scale: f32,
    keys: &[*const u8],
    queries: *const f32,
    logits: Logits,
) {
    for (tile, some) in keys.chunks(ROWS).enumerate() {
        // Past the end the last row is repeated; the extra results are discarded.
        let mut keys = [some[0]; ROWS];
        for (r, key) in keys.iter_mut().enumerate() {
            *key = some[r.min(some.len() - 1)];
        }
        let mut dots = [0.0; WIDEST];
        // SAFETY: guaranteed by the caller; a vector has at most `WIDEST` elements.
        unsafe {
            dot_tile::<V, S, HEADS, ROWS>(head_dim, keys, queries)
                .mul(V::splat(scale))
                .store(dots.as_mut_ptr());
            if !head_dim.is_multiple_of(V::N) {
                add_rest::<V, S, ROWS>(head_dim, scale, keys, queries, &mut dots[..HEADS * ROWS]);
            }
            for (g, dots) in dots.chunks_exact(ROWS).take(HEADS).enumerate() {
                let to = logits.head(g).start.add(tile * ROWS);
                if some.len() == ROWS {
                    to.copy_from_nonoverlapping(dots.as_ptr(), ROWS);
                } else {
                    to.copy_from_nonoverlapping(dots.as_ptr(), some.len());
                }
            }
        }
    }
}

/// Dot products over whole vectors: head `g`, row `r` is lane `g * ROWS + r`.
///
/// # Safety
/// As [`dot_heads`].
#[inline(always)]
unsafe fn dot_tile<V: Lanes, S: RowFormat, const HEADS: usize, const ROWS: usize>(
    head_dim: usize,
    keys: [*const u8; ROWS],
    queries: *const f32,
) -> V {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut sums = [[V::splat(0.0); ROWS]; HEADS];
        let whole = head_dim - head_dim % BLOCK;
        for start in (0..whole).step_by(BLOCK) {
            let block = start / BLOCK * S::BYTES;
            for first in (0..BLOCK).step_by(V::N) {
                let queries = queries.add(start + first);
                add_products::<V, S, HEADS, ROWS>(
                    head_dim, &keys, block, first, queries, &mut sums,
                );
            }
        }
        let (block, rest) = (whole / BLOCK * S::BYTES, head_dim - whole);
        for first in (0..rest - rest % V::N).step_by(V::N) {
            let queries = queries.add(whole + first);
            add_products::<V, S, HEADS, ROWS>(head_dim, &keys, block, first, queries, &mut sums);
        }
        let mut all = [V::splat(0.0); WIDEST];
        for (g, sums) in sums.iter().enumerate() {
            for (r, sum) in sums.iter().enumerate() {
                all[g * ROWS + r] = *sum;
            }
        }
        V::sum_each(&all)
    }
}

/// Adds the product of one vector of each row with that of each head; the vector starts at number `first` of the block
/// at byte offset `block`.
///
/// # Safety
/// As [`dot_heads`].
#[inline(always)]
unsafe fn add_products<V: Lanes, S: RowFormat, const HEADS: usize, const ROWS: usize>(
    head_dim: usize,
    rows: &[*const u8; ROWS],
    block: usize,
    first: usize,
    queries: *const f32,
    sums: &mut [[V; ROWS]; HEADS],
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut keys = [V::splat(0.0); ROWS];
        for (key, row) in keys.iter_mut().zip(rows) {
            *key = S::vector(row.add(block), first);
        }
        for (g, sums) in sums.iter_mut().enumerate() {
            let query = V::load(queries.add(g * head_dim));
            for (sum, &key) in sums.iter_mut().zip(&keys) {
                *sum = query.mul_add(key, *sum);
            }
        }
    }
}

/// Adds the products of the numbers after the last whole vector.
///
/// # Safety
/// As [`dot_heads`]; `dots` is `[heads, ROWS]`.
#[inline(always)]
unsafe fn add_rest<V: Lanes, S: RowFormat, const ROWS: usize>(
    head_dim: usize,
    scale: f32,
    keys: [*const u8; ROWS],
    queries: *const f32,
    dots: &mut [f32],
) {
    for (g, dots) in dots.chunks_exact_mut(ROWS).enumerate() {
        for (dot, key) in dots.iter_mut().zip(keys) {
            let mut sum = 0.0;
            for i in head_dim - head_dim % V::N..head_dim {
                // SAFETY: guaranteed by the caller.
                unsafe {
                    let number = S::single(key.add(i / BLOCK * S::BYTES), i % BLOCK);
                    sum += *queries.add(g * head_dim + i) * number;
                }
            }
            *dot += sum * scale;
        }
    }
}

/// `out[g] += sum over rows of weights[g][r] * values[r]` for all heads of a group. Efficient for few rows at a time
/// only: it passes over the rows once per two vectors of columns.
///
/// # Safety
/// Each value is `head_dim` numbers stored as `kind`, `weights` covers `heads` x rows, `out` is `[heads, head_dim]`;
/// the CPU supports the instructions of `level`.
pub(crate) unsafe fn add_heads(
    level: SimdLevel,
    kind: CacheType,
    group: Group,
    values: &[*const u8],
    weights: Logits,
    out: &mut [f32],
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match kind {
            CacheType::F32 => add_stored::<F32Rows>(level, group, values, weights, out),
            CacheType::F16 => add_stored::<F16Rows>(level, group, values, weights, out),
            CacheType::Q8_0 => add_stored::<Q8Rows>(level, group, values, weights, out),
            CacheType::Q4_0 => add_stored::<Q4Rows>(level, group, values, weights, out),
        }
    }
}

by_level! {
    /// # Safety
    /// As [`add_heads`].
    unsafe fn add_stored<S: RowFormat>(group: Group, values: &[*const u8], weights: Logits, out: &mut [f32]) = add_lanes;
}

#[inline(always)]
unsafe fn add_lanes<V: Lanes, S: RowFormat>(
    group: Group,
    values: &[*const u8],
    weights: Logits,
    out: &mut [f32],
) {
    let head_dim = group.head_dim;
    for g in (0..group.heads).step_by(V::HEADS) {
        let out = out[g * head_dim..].as_mut_ptr();
        // SAFETY: guaranteed by the caller.
        unsafe {
            let weights = weights.head(g);
            let heads = V::HEADS.min(group.heads - g);
            match V::HEADS {
                8 => match heads {
                    1 => add_values::<V, S, 1>(head_dim, values, weights, out),
                    2 => add_values::<V, S, 2>(head_dim, values, weights, out),
                    3 => add_values::<V, S, 3>(head_dim, values, weights, out),
                    4 => add_values::<V, S, 4>(head_dim, values, weights, out),
                    5 => add_values::<V, S, 5>(head_dim, values, weights, out),
                    6 => add_values::<V, S, 6>(head_dim, values, weights, out),
                    7 => add_values::<V, S, 7>(head_dim, values, weights, out),
                    _ => add_values::<V, S, 8>(head_dim, values, weights, out),
                },
                _ => match heads {
                    1 => add_values::<V, S, 1>(head_dim, values, weights, out),
                    2 => add_values::<V, S, 2>(head_dim, values, weights, out),
                    3 => add_values::<V, S, 3>(head_dim, values, weights, out),
                    _ => add_values::<V, S, 4>(head_dim, values, weights, out),
                },
            }
        }
    }
}

/// [`add_heads`] for `HEADS` heads.
///
/// # Safety
/// As [`add_heads`].
#[inline(always)]
unsafe fn add_values<V: Lanes, S: RowFormat, const HEADS: usize>(
    head_dim: usize,
    values: &[*const u8],
    weights: Logits,
    out: *mut f32,
) {
    let whole = head_dim - head_dim % V::N;
    let mut column = 0;
    // SAFETY: guaranteed by the caller; columns stay below head_dim, and pairs of vectors inside a block.
    unsafe {
        while column + 2 * V::N <= whole {
            add_columns::<V, S, HEADS, 2>(head_dim, column, values, weights, out);
            column += 2 * V::N;
        }
        if column < whole {
            add_columns::<V, S, HEADS, 1>(head_dim, column, values, weights, out);
        }
        for g in 0..HEADS {
            for i in whole..head_dim {
                for (r, value) in values.iter().enumerate() {
                    let weight = *weights.head(g).start.add(r);
                    let number = S::single(value.add(i / BLOCK * S::BYTES), i % BLOCK);
                    *out.add(g * head_dim + i) += weight * number;
                }
            }
        }
    }
}

/// [`add_values`] for `COLUMNS` vectors from number `column` of each row, accumulated in registers over all rows.
///
/// # Safety
/// As [`add_heads`]; the vectors lie in one block.
#[inline(always)]
unsafe fn add_columns<V: Lanes, S: RowFormat, const HEADS: usize, const COLUMNS: usize>(
    head_dim: usize,
    column: usize,
    values: &[*const u8],
    weights: Logits,
    out: *mut f32,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let out = out.add(column);
        let (block, first) = (column / BLOCK * S::BYTES, column % BLOCK);
        let mut sums = [[V::splat(0.0); COLUMNS]; HEADS];
        for (g, sums) in sums.iter_mut().enumerate() {
            for (c, sum) in sums.iter_mut().enumerate() {
                *sum = V::load(out.add(g * head_dim + c * V::N));
            }
        }
        for (r, value) in values.iter().enumerate() {
            let mut columns = [V::splat(0.0); COLUMNS];
            for (c, column) in columns.iter_mut().enumerate() {
                *column = S::vector(value.add(block), first + c * V::N);
            }
            for (g, sums) in sums.iter_mut().enumerate() {
                let weight = V::splat(*weights.head(g).start.add(r));
                for (sum, &column) in sums.iter_mut().zip(&columns) {
                    *sum = weight.mul_add(column, *sum);
                }
            }
        }
        for (g, sums) in sums.iter().enumerate() {
            for (c, sum) in sums.iter().enumerate() {
                sum.store(out.add(g * head_dim + c * V::N));
            }
        }
    }
}
