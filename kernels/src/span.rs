//! One span of decode attention: a run of rows of one KV head, for all heads of its group.
//!
//! Each key and each value row is read from memory once for the whole group, whatever its storage type. `decode.rs`
//! combines spans, `heads.rs` has the inner loops, and `panel.rs` the causal tiles of a prompt.

use std::ops::Range;

use crate::cache_type::{hadamard, unpack_lanes};
use crate::decode::{DecodeAttention, Partial, Rotation, Span, UNPACKED};
use crate::elementwise::{rotate_row, soft_cap_lanes};
use crate::heads::{Group, Logits, add_heads, dot_heads};
use crate::panel::WIDEST;
use crate::simd::{Lanes, by_level};
use crate::{CacheType, RowStore};

by_level! {
    /// # Safety
    /// The CPU supports the level's instructions, and no other thread accesses the span's logits.
    pub(crate) unsafe fn attend(task: &DecodeAttention<'_>, span: &Span, logits: Logits, partial: &mut Partial<'_>) = attend_lanes;
}

#[inline(always)]
unsafe fn attend_lanes<V: Lanes>(
    task: &DecodeAttention<'_>,
    span: &Span,
    logits: Logits,
    partial: &mut Partial<'_>,
) {
    let group = Group::new(&task.shape);
    let Group { heads, head_dim } = group;
    let queries = &task.query[span.kv_head * heads * head_dim..][..heads * head_dim];
    let end = span.first + span.rows;
    let at = |row: usize| Logits {
        // SAFETY: rows of the span, whose logits the caller guarantees.
        start: unsafe { logits.start.add(row - span.first) },
        ..logits
    };
    let scale = task.scale.factor;
    // SAFETY: pointers stay inside the slices above; the caller guarantees the rest.
    unsafe {
        let mut row = span.first;
        while row < end {
            let to = at(row);
            row += match &task.rotation {
                Some(rotation) => {
                    let rows = row..end.min(row + UNPACKED);
                    let count = rows.len();
                    rotate_keys::<V>(task, rotation, span.kv_head, rows, partial.rows);
                    let keys: [*const u8; UNPACKED] =
                        std::array::from_fn(|i| partial.rows[i * head_dim..].as_ptr().cast());
                    let keys = &keys[..count];
                    dot_heads(V::LEVEL, CacheType::F32, group, scale, keys, queries, to);
                    count
                }
                None => {
                    let run = task.keys.run(span.kv_head, row..end);
                    dot_heads(V::LEVEL, run.kind, group, scale, run.starts(), queries, to);
                    run.rows
                }
            };
        }
        for g in 0..heads {
            let row =
                std::slice::from_raw_parts_mut(logits.start.add(g * logits.stride), span.rows);
            if let Some(cap) = task.scale.cap {
                soft_cap_lanes::<V>(row, cap);
            }
            (partial.max[g], partial.sum[g]) = softmax_row::<V>(row);
        }
        partial.out.fill(0.0);
        let mut row = span.first;
        while row < end {
            let run = task.values.run(span.kv_head, row..end);
            add_heads(
                V::LEVEL,
                run.kind,
                group,
                run.starts(),
                at(row),
                partial.out,
            );
            row += run.rows;
        }
    }
}

/// Unpacks a row to f32, without undoing the Hadamard transform.
///
/// # Safety
/// Call only from code compiled for the level of `V`.
#[inline(always)]
pub(crate) unsafe fn unpack_row<V: Lanes>(
    store: &RowStore,
    h: usize,
    r: usize,
    target: &mut [f32],
) {
    match store.packed_row(h, r) {
        // SAFETY: guaranteed by the caller.
        Some((kind, bytes)) => unsafe { unpack_lanes::<V>(kind, bytes, target) },
        None => target.copy_from_slice(store.row(h, r)),
    }
}

/// Writes the keys `rows` of head `h`, rotated to their positions, to `target`.
///
/// # Safety
/// Call only from code compiled for the level of `V`.
#[inline(always)]
unsafe fn rotate_keys<V: Lanes>(
    task: &DecodeAttention<'_>,
    rotation: &Rotation<'_>,
    h: usize,
    rows: Range<usize>,
    target: &mut [f32],
) {
    let columns = rotation.rope_dim / 2;
    let targets = target.chunks_exact_mut(task.shape.head_dim);
    for (row, target) in rows.zip(targets) {
        // SAFETY: guaranteed by the caller.
        unsafe { unpack_row::<V>(task.keys, h, row, target) };
        if task.keys.cache_type().rotates() {
            hadamard(target);
        }
        let rank = rotation.ranks[task.keys.first_row(h) + row] as usize;
        let table = rank * columns..(rank + 1) * columns;
        let (cos, sin) = (&rotation.cos[table.clone()], &rotation.sin[table]);
        rotate_row(target, cos, sin, rotation.pairing);
    }
}

/// Replaces logits by `exp(logit - max)`; returns the maximum and the sum.
///
/// # Safety
/// Call only from code compiled for the level of `V`.
#[inline(always)]
pub(crate) unsafe fn softmax_row<V: Lanes>(row: &mut [f32]) -> (f32, f32) {
    // SAFETY: guaranteed by the caller.
    let largest = unsafe { largest::<V>(row) };
    let mut sums = [0.0; WIDEST];
    // SAFETY: whole vectors of the row, then one padded copy of the remainder.
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

/// The largest number of a row.
///
/// # Safety
/// Call only from code compiled for the level of `V`.
#[inline(always)]
unsafe fn largest<V: Lanes>(row: &[f32]) -> f32 {
    let mut maxima = [f32::NEG_INFINITY; WIDEST];
    let mut chunks = row.chunks_exact(4 * V::N);
    // SAFETY: four whole vectors of the row at a time; `maxima` is one vector long.
    unsafe {
        // Four independent maxima hide the latency of each operation.
        let mut of_chain = [V::splat(f32::NEG_INFINITY); 4];
        for chunk in &mut chunks {
            for (v, max) in of_chain.iter_mut().enumerate() {
                *max = max.max(V::load(chunk.as_ptr().add(v * V::N)));
            }
        }
        let [a, b, c, d] = of_chain;
        a.max(b).max(c.max(d)).store(maxima.as_mut_ptr());
    }
    let all = maxima[..V::N].iter().chain(chunks.remainder());
    all.copied().fold(f32::NEG_INFINITY, f32::max)
}
