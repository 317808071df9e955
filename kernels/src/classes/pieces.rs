//! The four stages of [`class_attention`](super::class_attention), in order: key products, probabilities, weighted
//! values, and their sums. Every stage runs on all threads, split into shares of the rows, so that two KV heads are
//! enough for many threads.

use std::ops::Range;

use super::{ClassAttention, RankRotation};
use crate::CacheType;
use crate::elementwise::{rotate_row, soft_cap_lanes};
use crate::heads::{Group, Logits, add_heads, dot_heads};
use crate::kv_split::UNPACKED;
use crate::kv_split::{softmax_row, unpack_row};
use crate::simd::{Lanes, by_level};
use crate::threads::SharedMut;

/// Classes or entries per share, the unit of work of a thread.
const SHARE: usize = 128;

/// Number of shares of `rows` rows or entries. The share length does not depend on the number of threads, so sums do
/// not either.
pub(super) fn shares(rows: usize) -> usize {
    rows.div_ceil(SHARE)
}

/// Scratch buffers and output; every piece of work writes its own parts.
pub(super) struct Buffers<'a> {
    pub(super) probabilities: SharedMut<'a, f32>,
    pub(super) max_entries: usize,
    pub(super) classes: SharedMut<'a, f32>,
    pub(super) max_rows: usize,
    pub(super) rows: SharedMut<'a, f32>,
    pub(super) sums: SharedMut<'a, f32>,
    pub(super) out: SharedMut<'a, f32>,
}

/// One piece of work. Pieces of one kind run in parallel; the kinds run one after the other.
#[derive(Clone, Copy)]
pub(super) enum Piece {
    /// Dot products of a share of a KV head's classes, or of its entries if each entry is rotated to its own rank.
    Dots { head: usize, share: usize },
    /// The probabilities of a query head, and the mass of its classes.
    Softmax { q_head: usize },
    /// A share of a KV head's values, weighted by their mass.
    WeightedSum { head: usize, share: usize },
    /// The output of a query head: the sum over its shares.
    Combine { q_head: usize },
}

by_level! {
    /// # Safety
    /// The CPU supports the level's instructions, the task was checked with these buffers, and concurrent pieces are of
    /// the same kind.
    pub(super) unsafe fn attend(task: &ClassAttention<'_>, piece: Piece, buffers: &Buffers<'_>) = attend_lanes;
}

#[inline(always)]
unsafe fn attend_lanes<V: Lanes>(task: &ClassAttention<'_>, piece: Piece, buffers: &Buffers<'_>) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match piece {
            Piece::Dots { head, share } => match &task.rotation {
                None => dot_classes::<V>(task, head, share, buffers),
                Some(rotation) => dot_entries::<V>(task, rotation, head, share, buffers),
            },
            Piece::Softmax { q_head } => softmax::<V>(task, q_head, buffers),
            Piece::WeightedSum { head, share } => sum_values::<V>(task, head, share, buffers),
            Piece::Combine { q_head } => combine(task, q_head, buffers),
        }
    }
}

/// The range of share `share` within `count` rows or entries.
fn range_of_share(share: usize, count: usize) -> Range<usize> {
    (share * SHARE).min(count)..((share + 1) * SHARE).min(count)
}

/// The queries of the group of a KV head, `[heads, head_dim]`.
fn queries<'t>(task: &'t ClassAttention<'_>, group: Group, head: usize) -> &'t [f32] {
    let len = group.heads * group.head_dim;
    &task.query[head * len..][..len]
}

/// # Safety
/// As [`attend`].
#[inline(always)]
unsafe fn dot_classes<V: Lanes>(
    task: &ClassAttention<'_>,
    head: usize,
    share: usize,
    buffers: &Buffers<'_>,
) {
    let (group, scale) = (Group::new(&task.shape), task.scale.factor);
    let queries = queries(task, group, head);
    let mut rows = range_of_share(share, task.rows[head]);
    while !rows.is_empty() {
        let run = task.keys.run(head, rows.clone());
        // SAFETY: pointers to the head's rows, and as many results as rows; `check` ensured that rows are f32 or f16.
        unsafe {
            let to = Logits {
                start: buffers.classes(head * group.heads, rows.start),
                stride: buffers.max_rows,
            };
            dot_heads(V::LEVEL, run.kind, group, scale, run.starts(), queries, to);
        }
        rows.start += run.rows;
    }
}

/// # Safety
/// As [`attend`].
#[inline(always)]
unsafe fn dot_entries<V: Lanes>(
    task: &ClassAttention<'_>,
    rotation: &RankRotation<'_>,
    head: usize,
    share: usize,
    buffers: &Buffers<'_>,
) {
    let (group, scale) = (Group::new(&task.shape), task.scale.factor);
    let queries = queries(task, group, head);
    let (dim, (table, _)) = (group.head_dim, task.table(head));
    let (entries, columns) = (range_of_share(share, table.len()), rotation.rope_dim / 2);
    let item = head * shares(buffers.max_entries) + share;
    // SAFETY: as in `dot_classes`; each share has its own scratch rows.
    unsafe {
        let unpacked = buffers
            .rows
            .part(item * UNPACKED * dim..(item + 1) * UNPACKED * dim);
        for first in entries.clone().step_by(UNPACKED) {
            let count = UNPACKED.min(entries.end - first);
            for (i, target) in unpacked.chunks_exact_mut(dim).take(count).enumerate() {
                let rank = first + i;
                unpack_row::<V>(task.keys, head, table[rank] as usize, target);
                let angles = rank * columns..(rank + 1) * columns;
                let (cos, sin) = (&rotation.cos[angles.clone()], &rotation.sin[angles]);
                rotate_row(target, cos, sin, rotation.pairing);
            }
            let keys: [*const u8; UNPACKED] =
                std::array::from_fn(|i| unpacked[i * dim..].as_ptr().cast());
            let to = Logits {
                start: buffers.probabilities(head * group.heads, first),
                stride: buffers.max_entries,
            };
            let keys = &keys[..count];
            dot_heads(V::LEVEL, CacheType::F32, group, scale, keys, queries, to);
        }
    }
}

/// # Safety
/// As [`attend`].
#[inline(always)]
unsafe fn softmax<V: Lanes>(task: &ClassAttention<'_>, q_head: usize, buffers: &Buffers<'_>) {
    let head = q_head / task.shape.group();
    let ((table, norms), rows) = (task.table(head), task.rows[head]);
    // SAFETY: the rows of this query head, which no other piece accesses.
    unsafe {
        let row = q_head * buffers.max_entries;
        let row = buffers.probabilities.part(row..row + table.len());
        let mass = q_head * buffers.max_rows;
        let mass = buffers.classes.part(mass..mass + rows);
        match task.rotation {
            None => {
                for ((logit, class), norm) in row.iter_mut().zip(table).zip(norms) {
                    *logit = mass[*class as usize] * norm;
                }
            }
            Some(_) => row.iter_mut().zip(norms).for_each(|(l, k)| *l *= k),
        }
        if let Some(cap) = task.scale.cap {
            soft_cap_lanes::<V>(row, cap);
        }
        let (max, sum) = softmax_row::<V>(row);
        let (sum, _) = task.scale.complete(q_head, max, sum);
        mass.fill(0.0);
        for (p, class) in row.iter_mut().zip(table) {
            *p /= sum;
            mass[*class as usize] += *p;
        }
    }
}

/// # Safety
/// As [`attend`].
#[inline(always)]
unsafe fn sum_values<V: Lanes>(
    task: &ClassAttention<'_>,
    head: usize,
    share: usize,
    buffers: &Buffers<'_>,
) {
    let group = Group::new(&task.shape);
    let len = group.heads * group.head_dim;
    let item = head * shares(buffers.max_rows) + share;
    let mut rows = range_of_share(share, task.rows[head]);
    // SAFETY: as in `dot_classes`; each share has its own sums.
    unsafe {
        let sums = buffers.sums.part(item * len..(item + 1) * len);
        sums.fill(0.0);
        while !rows.is_empty() {
            let run = task.values.run(head, rows.clone());
            let mass = Logits {
                start: buffers.classes(head * group.heads, rows.start),
                stride: buffers.max_rows,
            };
            add_heads(V::LEVEL, run.kind, group, run.starts(), mass, sums);
            rows.start += run.rows;
        }
    }
}

/// # Safety
/// As [`attend`].
unsafe fn combine(task: &ClassAttention<'_>, q_head: usize, buffers: &Buffers<'_>) {
    let (group, dim) = (task.shape.group(), task.shape.head_dim);
    let head = q_head / group;
    let first = head * shares(buffers.max_rows);
    // SAFETY: the output of this query head only; no thread writes the sums any more.
    unsafe {
        let out = buffers.out.part(q_head * dim..(q_head + 1) * dim);
        out.fill(0.0);
        for item in first..first + shares(task.rows[head]) {
            let at = (item * group + q_head % group) * dim;
            let sums = std::slice::from_raw_parts(buffers.sums.start().add(at), dim);
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum);
        }
    }
}

impl Buffers<'_> {
    /// Pointer to the logit of `entry` of a query head.
    ///
    /// # Safety
    /// The entry exists.
    unsafe fn probabilities(&self, q_head: usize, entry: usize) -> *mut f32 {
        // SAFETY: guaranteed by the caller.
        unsafe { (self.probabilities.start()).add(q_head * self.max_entries + entry) }
    }

    /// Pointer to the product of `class` of a query head.
    ///
    /// # Safety
    /// The class exists.
    unsafe fn classes(&self, q_head: usize, class: usize) -> *mut f32 {
        // SAFETY: guaranteed by the caller.
        unsafe { self.classes.start().add(q_head * self.max_rows + class) }
    }
}
