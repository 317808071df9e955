//! One span of decode attention: a run of rows of one kv head, for all heads of its group.
//!
//! Each key and each value row comes from memory once for the whole group. What to do with several spans is decided in
//! `decode.rs`; the causal tiles of a prompt are in `panel.rs`.

use crate::cache_type::{turn, unpack_lanes};
use crate::decode::{BLOCK, DecodeAttention, Partial, ROWS, Span, UNPACKED};
use crate::elementwise::{rotate_row, soft_cap_lanes};
use crate::panel::WIDEST;
use crate::simd::{Lanes, by_level};
use crate::{CacheType, HeadShape, RowStore};

/// Logits of the heads of a group over the rows of one span: head `g`, row `r` is `start[g * stride + r]`.
#[derive(Clone, Copy)]
pub(crate) struct Logits {
    pub start: *mut f32,
    pub stride: usize,
}

/// A number as it lies in memory, and how a vector of them comes into a register.
pub(crate) trait Number: Copy {
    /// # Safety
    /// `from` covers `V::N` numbers; runs at the level of `V`.
    unsafe fn vector<V: Lanes>(from: *const Self) -> V;
    /// The number itself.
    fn single(self) -> f32;
}

impl Number for f32 {
    #[inline(always)]
    unsafe fn vector<V: Lanes>(from: *const Self) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load(from) }
    }
    #[inline(always)]
    fn single(self) -> f32 {
        self
    }
}

/// Half precision, little-endian.
impl Number for [u8; 2] {
    #[inline(always)]
    unsafe fn vector<V: Lanes>(from: *const Self) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_halves(from.cast()) }
    }
    #[inline(always)]
    fn single(self) -> f32 {
        half::f16::from_le_bytes(self).to_f32_const()
    }
}

by_level! {
    /// # Safety
    /// The level's instructions exist, and nobody else touches the span's logits.
    pub(crate) unsafe fn attend(task: &DecodeAttention<'_>, span: &Span, logits: Logits, partial: &mut Partial<'_>) = attend_lanes;
}

#[inline(always)]
unsafe fn attend_lanes<V: Lanes>(
    task: &DecodeAttention<'_>,
    span: &Span,
    logits: Logits,
    partial: &mut Partial<'_>,
) {
    let HeadShape { head_dim, .. } = task.shape;
    let group = task.shape.group();
    let queries = &task.query[span.kv_head * group * head_dim..][..group * head_dim];
    // SAFETY: pointers stay inside the slices above; the rest is the caller's promise.
    unsafe {
        for first in (0..span.rows).step_by(ROWS) {
            let rows = ROWS.min(span.rows - first);
            let logits = Logits {
                start: logits.start.add(first),
                ..logits
            };
            let shape = (group, head_dim, task.scale.factor);
            match task.keys.halves(span.kv_head) {
                Some(keys) if task.rotation.is_none() => {
                    let row = |i: usize| span.first + (first + i).min(span.rows - 1);
                    let key = |i: usize| keys[row(i) * head_dim..][..head_dim].as_ptr();
                    let keys: [_; ROWS] = std::array::from_fn(key);
                    dot_heads::<V, _>(shape, rows, keys, queries, logits);
                }
                _ => {
                    let keys = key_rows::<V>(task, span, first, partial.rows);
                    dot_heads::<V, _>(shape, rows, keys, queries, logits);
                }
            }
        }
        for g in 0..group {
            let row =
                std::slice::from_raw_parts_mut(logits.start.add(g * logits.stride), span.rows);
            if let Some(cap) = task.scale.cap {
                soft_cap_lanes::<V>(row, cap);
            }
            (partial.max[g], partial.sum[g]) = softmax_row::<V>(row);
        }
        partial.out.fill(0.0);
        let step = match task.values.cache_type() {
            CacheType::F32 | CacheType::F16 => BLOCK,
            _ => UNPACKED,
        };
        for first in (0..span.rows).step_by(step) {
            let rows = step.min(span.rows - first);
            let row = span.first + first;
            let part = row * head_dim..(row + rows) * head_dim;
            let weights = Logits {
                start: logits.start.add(first),
                ..logits
            };
            let shape = (rows, group, head_dim);
            match (task.values.cache_type(), task.values.halves(span.kv_head)) {
                (_, Some(values)) => add_heads::<V, _>(shape, &values[part], weights, partial.out),
                (CacheType::F32, None) => {
                    let values = &task.values.head(span.kv_head)[part];
                    add_heads::<V, _>(shape, values, weights, partial.out);
                }
                _ => {
                    let values = &mut partial.rows[..rows * head_dim];
                    for (r, target) in values.chunks_exact_mut(head_dim).enumerate() {
                        unpack_row::<V>(task.values, span.kv_head, row + r, target);
                    }
                    add_heads::<V, _>(shape, values, weights, partial.out);
                }
            }
        }
    }
}

/// A row of a packed store as it is stored, turned or not.
///
/// # Safety
/// Runs at the level of `V`.
#[inline(always)]
pub(crate) unsafe fn unpack_row<V: Lanes>(
    store: &RowStore,
    h: usize,
    r: usize,
    target: &mut [f32],
) {
    let (kind, bytes) = store.packed_row(h, r).expect("a packed store");
    // SAFETY: the caller's promise.
    unsafe { unpack_lanes::<V>(kind, bytes, target) };
}

/// `logits[g][r] = scale * keys[r] . queries[g]` for all heads of a group and the first `rows` of the key rows.
///
/// # Safety
/// Each key has `head_dim` elements and `logits` covers the results; runs at the level of `V`.
#[inline(always)]
pub(crate) unsafe fn dot_heads<V: Lanes, T: Number>(
    (group, head_dim, scale): (usize, usize, f32),
    rows: usize,
    keys: [*const T; ROWS],
    queries: &[f32],
    logits: Logits,
) {
    for g in (0..group).step_by(V::ACROSS) {
        let queries = queries[g * head_dim..].as_ptr();
        let dots = (rows, head_dim, scale);
        // SAFETY: the caller's promise.
        unsafe {
            let logits = Logits {
                start: logits.start.add(g * logits.stride),
                ..logits
            };
            match V::ACROSS.min(group - g) {
                1 => dot_rows::<V, T, 1>(dots, keys, queries, logits),
                2 => dot_rows::<V, T, 2>(dots, keys, queries, logits),
                3 => dot_rows::<V, T, 3>(dots, keys, queries, logits),
                _ => dot_rows::<V, T, 4>(dots, keys, queries, logits),
            }
        }
    }
}

/// `out[g] += sum over rows of weights[g][r] * values[r]` for all heads of a group.
///
/// # Safety
/// `weights` covers `group` x `rows`, `values` is `[rows, head_dim]`, `out` `[group, head_dim]`; runs at the level of `V`.
#[inline(always)]
pub(crate) unsafe fn add_heads<V: Lanes, T: Number>(
    (rows, group, head_dim): (usize, usize, usize),
    values: &[T],
    weights: Logits,
    out: &mut [f32],
) {
    for g in (0..group).step_by(V::ACROSS) {
        let out = out[g * head_dim..].as_mut_ptr();
        // SAFETY: the caller's promise.
        unsafe {
            let weights = Logits {
                start: weights.start.add(g * weights.stride),
                ..weights
            };
            match V::ACROSS.min(group - g) {
                1 => add_values::<V, T, 1>((rows, head_dim), values, weights, out),
                2 => add_values::<V, T, 2>((rows, head_dim), values, weights, out),
                3 => add_values::<V, T, 3>((rows, head_dim), values, weights, out),
                _ => add_values::<V, T, 4>((rows, head_dim), values, weights, out),
            }
        }
    }
}

/// Where the keys `first..first + ROWS` of the span are: in the store, or unpacked and rotated into `rows`. Past the span's end the
/// last row repeats; its results are dropped.
///
/// # Safety
/// Runs at the level of `V`.
#[inline(always)]
unsafe fn key_rows<V: Lanes>(
    task: &DecodeAttention<'_>,
    span: &Span,
    first: usize,
    rows: &mut [f32],
) -> [*const f32; ROWS] {
    let (head_dim, h) = (task.shape.head_dim, span.kv_head);
    let row = |i: usize| span.first + (first + i).min(span.rows - 1);
    let packed = task.keys.cache_type() != CacheType::F32;
    if !packed && task.rotation.is_none() {
        let keys = task.keys.head(h);
        return std::array::from_fn(|i| keys[row(i) * head_dim..][..head_dim].as_ptr());
    }
    for (i, target) in rows.chunks_exact_mut(head_dim).take(ROWS).enumerate() {
        let row = row(i);
        match packed {
            // SAFETY: the caller's promise.
            true => unsafe { unpack_row::<V>(task.keys, h, row, target) },
            false => target.copy_from_slice(task.keys.row(h, row)),
        }
        let Some(rotation) = &task.rotation else {
            continue;
        };
        if task.keys.cache_type().turns() {
            turn(target);
        }
        let columns = rotation.rope_dim / 2;
        let rank = rotation.ranks[task.keys.first_row(h) + row] as usize;
        let table = rank * columns..(rank + 1) * columns;
        let (cos, sin) = (&rotation.cos[table.clone()], &rotation.sin[table]);
        rotate_row(target, cos, sin, rotation.pairing);
    }
    std::array::from_fn(|i| rows[i * head_dim..].as_ptr())
}

/// `logits[g][r] = scale * keys[r] . queries[g]` for `HEADS` heads and the first `rows` of the key rows.
///
/// # Safety
/// Each key has `head_dim` elements, `queries` is `[HEADS, head_dim]`, and `logits` covers the results.
#[inline(always)]
unsafe fn dot_rows<V: Lanes, T: Number, const HEADS: usize>(
    (rows, head_dim, scale): (usize, usize, f32),
    keys: [*const T; ROWS],
    queries: *const f32,
    logits: Logits,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[V::splat(0.0); ROWS]; HEADS];
        let whole = head_dim - head_dim % V::N;
        for i in (0..whole).step_by(V::N) {
            let mut key = [V::splat(0.0); ROWS];
            for (key, start) in key.iter_mut().zip(keys) {
                *key = T::vector(start.add(i));
            }
            for (g, sums) in sums.iter_mut().enumerate() {
                let query = V::load(queries.add(g * head_dim + i));
                for (sum, key) in sums.iter_mut().zip(key) {
                    *sum = query.mul_add(key, *sum);
                }
            }
        }
        for (g, sums) in sums.into_iter().enumerate() {
            let mut dots = V::sum4(sums);
            for (dot, key) in dots.iter_mut().zip(keys) {
                for i in whole..head_dim {
                    *dot += *queries.add(g * head_dim + i) * (*key.add(i)).single();
                }
            }
            for (r, dot) in dots.iter().enumerate().take(rows) {
                *logits.start.add(g * logits.stride + r) = dot * scale;
            }
        }
    }
}

/// Turns logits into `exp(logit - max)`; returns the maximum and the sum.
///
/// # Safety
/// Runs at the level of `V`.
#[inline(always)]
pub(crate) unsafe fn softmax_row<V: Lanes>(row: &mut [f32]) -> (f32, f32) {
    let mut largest = f32::NEG_INFINITY;
    for &x in row.iter() {
        largest = if x > largest { x } else { largest };
    }
    let mut sums = [0.0; WIDEST];
    // SAFETY: whole vectors of the row, then one padded copy of what is left.
    unsafe {
        let max = V::splat(largest);
        let mut sum = V::splat(0.0);
        let mut chunks = row.chunks_exact_mut(V::N);
        for chunk in &mut chunks {
            let weight = V::load(chunk.as_ptr()).sub(max).exp();
            weight.store(chunk.as_mut_ptr());
            sum = sum.add(weight);
        }
        let rest = chunks.into_remainder();
        let mut padded = [f32::NEG_INFINITY; WIDEST];
        padded[..rest.len()].copy_from_slice(rest);
        let weight = V::load(padded.as_ptr()).sub(max).exp();
        weight.store(padded.as_mut_ptr());
        rest.copy_from_slice(&padded[..rest.len()]);
        sum.add(weight).store(sums.as_mut_ptr());
    }
    (largest, sums[..V::N].iter().sum())
}

/// `out[g] += sum over rows of weights[g][r] * values[r]` for `HEADS` heads.
///
/// # Safety
/// `weights` covers `HEADS` x `rows` and `out` is `[HEADS, head_dim]`; runs at the level of `V`.
#[inline(always)]
unsafe fn add_values<V: Lanes, T: Number, const HEADS: usize>(
    (rows, head_dim): (usize, usize),
    values: &[T],
    weights: Logits,
    out: *mut f32,
) {
    let values = values.as_ptr();
    let whole = head_dim - head_dim % V::N;
    let mut column = 0;
    // SAFETY: the caller's promise; columns stay below head_dim.
    unsafe {
        while column + 4 * V::N <= whole {
            add_columns::<V, T, HEADS, 4>(
                (rows, head_dim),
                values.add(column),
                weights,
                out.add(column),
            );
            column += 4 * V::N;
        }
        while column < whole {
            add_columns::<V, T, HEADS, 1>(
                (rows, head_dim),
                values.add(column),
                weights,
                out.add(column),
            );
            column += V::N;
        }
        for g in 0..HEADS {
            for i in whole..head_dim {
                for r in 0..rows {
                    let weight = *weights.start.add(g * weights.stride + r);
                    *out.add(g * head_dim + i) += weight * (*values.add(r * head_dim + i)).single();
                }
            }
        }
    }
}

/// [`add_values`] for `COLUMNS` vectors of each row, held in registers over all rows.
///
/// # Safety
/// As [`add_values`].
#[inline(always)]
unsafe fn add_columns<V: Lanes, T: Number, const HEADS: usize, const COLUMNS: usize>(
    (rows, head_dim): (usize, usize),
    values: *const T,
    weights: Logits,
    out: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[V::splat(0.0); COLUMNS]; HEADS];
        for (g, sums) in sums.iter_mut().enumerate() {
            for (c, sum) in sums.iter_mut().enumerate() {
                *sum = V::load(out.add(g * head_dim + c * V::N));
            }
        }
        for r in 0..rows {
            let mut value = [V::splat(0.0); COLUMNS];
            for (c, value) in value.iter_mut().enumerate() {
                *value = T::vector(values.add(r * head_dim + c * V::N));
            }
            for (g, sums) in sums.iter_mut().enumerate() {
                let weight = V::splat(*weights.start.add(g * weights.stride + r));
                for (sum, value) in sums.iter_mut().zip(value) {
                    *sum = weight.mul_add(value, *sum);
                }
            }
        }
        for (g, sums) in sums.into_iter().enumerate() {
            for (c, sum) in sums.into_iter().enumerate() {
                sum.store(out.add(g * head_dim + c * V::N));
            }
        }
    }
}
