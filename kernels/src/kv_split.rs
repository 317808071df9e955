//! One split of decode attention (split-KV): a run of rows of one KV head, for all heads of its group.
//!
//! Each key and each value row is read from memory once for the whole group, whatever its storage type. `decode.rs`
//! combines splits, `heads.rs` has the inner loops, and `panel.rs` the causal tiles of a prompt.

use std::ops::Range;

use crate::cache_type::{hadamard, unpack_lanes};
use crate::elementwise::{rotate_row, soft_cap_lanes};
use crate::heads::{Group, Logits, add_heads, dot_heads};
use crate::simd::{Lanes, WIDEST, by_level};
use crate::{CacheType, HeadShape, Pairing, RowStore, Scale};

/// Keys unpacked and rotated at a time: as many as fit the L1 cache together with the queries.
pub(crate) const UNPACKED: usize = 16;

/// Rotates keys that are stored before RoPE to a re-assigned position as they are read.
///
/// Used by methods that re-assign positions after eviction (StreamingLLM, TreeKV).
#[derive(Clone, Copy, Debug)]
pub struct Rotation<'a> {
    /// `[positions, rope_dim / 2]`
    pub cos: &'a [f32],
    /// `[positions, rope_dim / 2]`
    pub sin: &'a [f32],
    /// Leading elements of a row that are rotated, at most `head_dim`; the rest pass through.
    pub rope_dim: usize,
    /// Which elements form a pair.
    pub pairing: Pairing,
    /// Rank of every slot: row `r` of KV head `h` is entry `keys.first_row(h) + r`.
    pub ranks: &'a [u32],
}

impl Rotation<'_> {
    /// Panics on wrong shapes, before the pool starts: a panic inside the pool would leave candle's pool unusable.
    pub(crate) fn check(&self, task: &DecodeAttention<'_>) {
        let (rope_dim, head_dim) = (self.rope_dim, task.shape.head_dim);
        assert!(
            rope_dim > 0 && rope_dim.is_multiple_of(2) && rope_dim <= head_dim,
            "rope_dim {rope_dim} for head_dim {head_dim}"
        );
        assert_eq!(
            self.cos.len(),
            self.sin.len(),
            "cos and sin differ in length"
        );
        let positions = self.cos.len() / (rope_dim / 2);
        for (h, &rows) in task.rows.iter().enumerate() {
            let first = task.keys.first_row(h);
            let highest = self.ranks[first..first + rows]
                .iter()
                .fold(0, |a, &b| a.max(b));
            assert!(
                (highest as usize) < positions,
                "kv head {h} has rank {highest}, the angle tables hold {positions} positions"
            );
        }
    }
}

/// Attention of one query row over `rows[h]` rows of each KV head.
#[derive(Clone, Copy, Debug)]
pub struct DecodeAttention<'a> {
    /// Heads of the layer.
    pub shape: HeadShape,
    /// Converts dot products to logits.
    pub scale: Scale<'a>,
    /// `[q_heads, head_dim]`, rotated.
    pub query: &'a [f32],
    /// Keys: rotated, or before RoPE if `rotation` is given.
    pub keys: &'a RowStore,
    /// Values, in the same rows as their keys.
    pub values: &'a RowStore,
    /// Valid rows per KV head, at least 1 each. `[kv_heads]`
    pub rows: &'a [usize],
    /// `Some` if the stored keys are not rotated; each is rotated as it is read.
    pub rotation: Option<Rotation<'a>>,
}

/// Rows `first..first + rows` of one KV head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvSplit {
    pub kv_head: usize,
    pub first: usize,
    pub rows: usize,
}

/// Partial result of one split, per head of the group: the largest logit, the sum of `exp(logit - largest)`, and the
/// values weighted by these exponentials; and scratch for keys that are rotated as they are read.
pub(crate) struct SplitResult<'a> {
    /// `[group]`
    pub max: &'a mut [f32],
    /// `[group]`
    pub sum: &'a mut [f32],
    /// `[group, head_dim]`
    pub out: &'a mut [f32],
    /// `[UNPACKED, head_dim]`
    pub rows: &'a mut [f32],
}

impl<'a> SplitResult<'a> {
    pub(crate) fn len(shape: &HeadShape) -> usize {
        2 * shape.group() + (shape.group() + UNPACKED) * shape.head_dim
    }

    pub(crate) fn new(part: &'a mut [f32], shape: &HeadShape) -> Self {
        let (max, part) = part.split_at_mut(shape.group());
        let (sum, part) = part.split_at_mut(shape.group());
        let (out, rows) = part.split_at_mut(shape.group() * shape.head_dim);
        Self {
            max,
            sum,
            out,
            rows,
        }
    }
}

by_level! {
    /// # Safety
    /// The CPU supports the level's instructions, and no other thread accesses the split's logits.
    pub(crate) unsafe fn attend(task: &DecodeAttention<'_>, split: &KvSplit, logits: Logits, result: &mut SplitResult<'_>) = attend_lanes;
}

#[inline(always)]
unsafe fn attend_lanes<V: Lanes>(
    task: &DecodeAttention<'_>,
    split: &KvSplit,
    logits: Logits,
    result: &mut SplitResult<'_>,
) {
    let group = Group::new(&task.shape);
    let Group { heads, head_dim } = group;
    let queries = &task.query[split.kv_head * heads * head_dim..][..heads * head_dim];
    let end = split.first + split.rows;
    let at = |row: usize| Logits {
        // SAFETY: rows of the split, whose logits the caller guarantees.
        start: unsafe { logits.start.add(row - split.first) },
        ..logits
    };
    let scale = task.scale.factor;
    // SAFETY: pointers stay inside the slices above; the caller guarantees the rest.
    unsafe {
        let mut row = split.first;
        while row < end {
            let to = at(row);
            row += match &task.rotation {
                Some(rotation) => {
                    let rows = row..end.min(row + UNPACKED);
                    let count = rows.len();
                    rotate_keys::<V>(task, rotation, split.kv_head, rows, result.rows);
                    let keys: [*const u8; UNPACKED] =
                        std::array::from_fn(|i| result.rows[i * head_dim..].as_ptr().cast());
                    let keys = &keys[..count];
                    dot_heads(V::LEVEL, CacheType::F32, group, scale, keys, queries, to);
                    count
                }
                None => {
                    let run = task.keys.run(split.kv_head, row..end);
                    dot_heads(V::LEVEL, run.kind, group, scale, run.starts(), queries, to);
                    run.rows
                }
            };
        }
        for g in 0..heads {
            let row =
                std::slice::from_raw_parts_mut(logits.start.add(g * logits.stride), split.rows);
            if let Some(cap) = task.scale.cap {
                soft_cap_lanes::<V>(row, cap);
            }
            (result.max[g], result.sum[g]) = softmax_row::<V>(row);
        }
        result.out.fill(0.0);
        let mut row = split.first;
        while row < end {
            let run = task.values.run(split.kv_head, row..end);
            add_heads(V::LEVEL, run.kind, group, run.starts(), at(row), result.out);
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
