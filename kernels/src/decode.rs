//! Attention of one new token over the rows that a compressed cache holds.
//!
//! Rows are an unordered set: there is no causal mask, every valid row is visible, and storage order does not matter.
//! Writing the new token's own key and value into its row is done before, by the caller.

use crate::elementwise::rotate_row;
use crate::panel::WIDEST;
use crate::simd::{Lanes, by_level, simd_level};
use crate::threads::{SharedMut, for_each_range};
use crate::{HeadShape, Pairing, RowStore};

/// Rows of the shortest span, the unit that one thread takes: long enough to hide what handing it over costs.
const SPAN: usize = 128;

/// Most spans of one kv head, which bounds the partial results. Lengths follow from the row count alone, never from the
/// number of threads, so that answers do not either.
const SPANS: usize = 64;

/// Rows of values that stay in the first cache levels while all heads of the group and all columns pass over them.
const BLOCK: usize = 64;

/// Rows whose dot products are summed across lanes together.
const ROWS: usize = 4;

/// Multiplications below which waking the other threads costs more than it saves.
const WORTH_SHARING: usize = 1 << 16;

/// Keys stored before RoPE, and the position at which each is rotated when it is read.
///
/// For methods that re-assign positions after rows were dropped (StreamingLLM, TreeKV).
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
    /// Position of every row of capacity: row `r` of kv head `h` is entry `keys.first_row(h) + r`.
    pub ranks: &'a [u32],
}

/// Attention of one query row over `rows[h]` rows of each kv head.
#[derive(Clone, Copy, Debug)]
pub struct DecodeAttention<'a> {
    /// Heads of the layer.
    pub shape: HeadShape,
    /// Factor on the dot products, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// `[q_heads, head_dim]`, rotated.
    pub query: &'a [f32],
    /// Keys: rotated, or raw when `rotation` is given.
    pub keys: &'a RowStore,
    /// Values, in the same rows as their keys.
    pub values: &'a RowStore,
    /// Valid rows per kv head, at least 1 each. `[kv_heads]`
    pub rows: &'a [usize],
    /// `Some`: the stored keys are raw and each is rotated as it is read.
    pub rotation: Option<Rotation<'a>>,
}

impl DecodeAttention<'_> {
    fn check(&self, scratch: &DecodeScratch, out: &[f32]) {
        let shape = &self.shape;
        assert_eq!(
            *shape, scratch.shape,
            "the scratch was made for other heads"
        );
        assert_eq!(self.rows.len(), shape.kv_heads, "rows must be [kv_heads]");
        shape.check_rows("query", self.query, 1);
        shape.check_rows("out", out, 1);
        shape.check_store("keys", self.keys, |h| self.rows[h]);
        shape.check_store("values", self.values, |h| self.rows[h]);
        for (h, &rows) in self.rows.iter().enumerate() {
            assert!(
                0 < rows && rows <= scratch.max_rows,
                "kv head {h} has {rows} rows, the scratch was made for 1..={}",
                scratch.max_rows
            );
        }
    }
}

/// All memory of [`decode_attention`], made once before the first token and shared by all layers.
#[derive(Clone, Debug)]
pub struct DecodeScratch {
    shape: HeadShape,
    /// Most rows of any kv head.
    max_rows: usize,
    /// First logits, then probabilities. `[q_heads, max_rows]`
    probabilities: Vec<f32>,
    /// Valid rows of each kv head in the last call. `[kv_heads]`
    rows: Vec<usize>,
    /// Pieces of the last call, those of one kv head in a row. At most `kv_heads * spans per head`.
    spans: Vec<Span>,
    /// One partial result per span, see [`Partial`]. `[spans, partial length]`
    partials: Vec<f32>,
}

/// Rows `first..first + rows` of one kv head.
#[derive(Clone, Copy, Debug)]
struct Span {
    kv_head: usize,
    first: usize,
    rows: usize,
}

/// What one span leaves behind, for each head of the group: the largest logit, the sum of `exp(logit - largest)`, and the
/// values weighted by these; and room for keys that are rotated as they are read.
struct Partial<'a> {
    /// `[group]`
    max: &'a mut [f32],
    /// `[group]`
    sum: &'a mut [f32],
    /// `[group, head_dim]`
    out: &'a mut [f32],
    /// `[ROWS, head_dim]`
    rotated: &'a mut [f32],
}

impl<'a> Partial<'a> {
    fn len(shape: &HeadShape) -> usize {
        2 * shape.group() + (shape.group() + ROWS) * shape.head_dim
    }

    fn new(part: &'a mut [f32], shape: &HeadShape) -> Self {
        let (max, part) = part.split_at_mut(shape.group());
        let (sum, part) = part.split_at_mut(shape.group());
        let (out, rotated) = part.split_at_mut(shape.group() * shape.head_dim);
        Self {
            max,
            sum,
            out,
            rotated,
        }
    }
}

/// Rows per span of a head with `rows` rows.
fn span_rows(rows: usize) -> usize {
    rows.div_ceil(SPANS).next_multiple_of(BLOCK).max(SPAN)
}

impl DecodeScratch {
    /// Room for `max_rows` rows in every kv head. `threads` is a hint: results never depend on it.
    pub fn new(shape: HeadShape, max_rows: usize, threads: usize) -> Self {
        let _ = threads;
        // Shorter heads may be cut into more spans than the longest: take the bound.
        let spans = shape.kv_heads * max_rows.div_ceil(SPAN).clamp(1, SPANS);
        Self {
            shape,
            max_rows,
            probabilities: vec![0.0; shape.q_heads * max_rows],
            rows: vec![0; shape.kv_heads],
            spans: Vec::with_capacity(spans),
            partials: vec![0.0; spans * Partial::len(&shape)],
        }
    }

    /// Probabilities of query head `q_head` in the last call, one per valid row of its kv head, in storage order.
    pub fn probabilities(&self, q_head: usize) -> &[f32] {
        &self.probabilities[q_head * self.max_rows..][..self.rows[q_head / self.shape.group()]]
    }

    /// Bytes held, for the memory ledger.
    pub fn bytes(&self) -> usize {
        size_of_val(self.probabilities.as_slice()) + size_of_val(self.partials.as_slice())
    }
}

/// Writes `out [q_heads, head_dim]`, and the probabilities into `scratch`. Allocates nothing.
pub fn decode_attention(task: &DecodeAttention<'_>, scratch: &mut DecodeScratch, out: &mut [f32]) {
    task.check(scratch, out);
    let (shape, level) = (&task.shape, simd_level());
    let DecodeScratch {
        max_rows,
        probabilities,
        rows,
        spans,
        partials,
        ..
    } = scratch;
    rows.copy_from_slice(task.rows);
    spans.clear();
    for (kv_head, &rows) in rows.iter().enumerate() {
        let step = span_rows(rows);
        let pieces = (0..rows).step_by(step);
        spans.extend(pieces.map(|first| Span {
            kv_head,
            first,
            rows: step.min(rows - first),
        }));
    }
    let (probabilities, partials) = (SharedMut::new(probabilities), SharedMut::new(partials));
    let share = rows.iter().sum::<usize>() * shape.group() * shape.head_dim > WORTH_SHARING;
    let partial_len = Partial::len(shape);
    run(share, spans.len(), |item| {
        let span = &spans[item];
        let base = span.kv_head * shape.group() * *max_rows + span.first;
        for g in 0..shape.group() {
            // Only to check the bounds that the raw pointer below relies on; also disjoint, as spans are.
            assert!(base + g * *max_rows + span.rows <= shape.q_heads * *max_rows);
        }
        // SAFETY: every span has its own partial; logits of different spans are different rows.
        unsafe {
            let partial = partials.part(item * partial_len..(item + 1) * partial_len);
            let logits = Logits {
                start: probabilities.start().add(base),
                stride: *max_rows,
            };
            attend(level, task, span, logits, &mut Partial::new(partial, shape));
        }
    });
    let out = SharedMut::new(out);
    run(share, shape.q_heads, |h| {
        // SAFETY: each query head has its own outputs, and the partials are only read now.
        unsafe {
            let out = out.part(h * shape.head_dim..(h + 1) * shape.head_dim);
            let row = probabilities.part(h * *max_rows..(h + 1) * *max_rows);
            combine(task, spans, &partials, h, row, out);
        }
    });
}

/// `work(0)`, `work(1)`, ... on all threads, or on this one when that is quicker.
fn run(share: bool, items: usize, work: impl Fn(usize) + Sync) {
    if share {
        for_each_range(items, |range| range.for_each(&work));
    } else {
        (0..items).for_each(work);
    }
}

/// Brings the spans of query head `h` to their common maximum and adds them up.
///
/// # Safety
/// Nobody writes the partials.
unsafe fn combine(
    task: &DecodeAttention<'_>,
    spans: &[Span],
    partials: &SharedMut<'_, f32>,
    h: usize,
    probabilities: &mut [f32],
    out: &mut [f32],
) {
    let shape = &task.shape;
    let (g, head_dim, len) = (h % shape.group(), shape.head_dim, Partial::len(shape));
    let mine = || {
        let of_head = spans.iter().enumerate();
        of_head.filter(|(_, span)| span.kv_head == h / shape.group())
    };
    // SAFETY: in bounds, and only read (the caller's promise); fields as laid out in `Partial::new`.
    let at = |item: usize, offset: usize| unsafe { *partials.start().add(item * len + offset) };
    let max = |item| at(item, g);
    let sum = |item| at(item, shape.group() + g);
    let largest = mine().fold(f32::NEG_INFINITY, |largest, (item, _)| {
        largest.max(max(item))
    });
    let total: f32 = mine()
        .map(|(item, _)| (max(item) - largest).exp() * sum(item))
        .sum();
    out.fill(0.0);
    for (item, span) in mine() {
        let factor = (max(item) - largest).exp() / total;
        for p in &mut probabilities[span.first..span.first + span.rows] {
            *p *= factor;
        }
        let offset = 2 * shape.group() + g * head_dim;
        for (i, out) in out.iter_mut().enumerate() {
            *out += factor * at(item, offset + i);
        }
    }
}

/// Logits of the heads of a group over the rows of one span: head `g`, row `r` is `start[g * stride + r]`.
#[derive(Clone, Copy)]
struct Logits {
    start: *mut f32,
    stride: usize,
}

by_level! {
    /// # Safety
    /// The level's instructions exist, and nobody else touches the span's logits.
    unsafe fn attend(task: &DecodeAttention<'_>, span: &Span, logits: Logits, partial: &mut Partial<'_>) = attend_lanes;
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
    let part = span.first * head_dim..(span.first + span.rows) * head_dim;
    let values = &task.values.head(span.kv_head)[part];
    let queries = &task.query[span.kv_head * group * head_dim..][..group * head_dim];
    // SAFETY: pointers stay inside the slices above; the rest is the caller's promise.
    unsafe {
        for first in (0..span.rows).step_by(ROWS) {
            let keys = key_rows(task, span, first, partial.rotated);
            let rows = ROWS.min(span.rows - first);
            let logits = Logits {
                start: logits.start.add(first),
                ..logits
            };
            for g in (0..group).step_by(V::ACROSS) {
                let queries = queries[g * head_dim..].as_ptr();
                let logits = Logits {
                    start: logits.start.add(g * logits.stride),
                    ..logits
                };
                let dots = (rows, head_dim, task.scale);
                match V::ACROSS.min(group - g) {
                    1 => dot_rows::<V, 1>(dots, keys, queries, logits),
                    2 => dot_rows::<V, 2>(dots, keys, queries, logits),
                    3 => dot_rows::<V, 3>(dots, keys, queries, logits),
                    _ => dot_rows::<V, 4>(dots, keys, queries, logits),
                }
            }
        }
        for g in 0..group {
            let row =
                std::slice::from_raw_parts_mut(logits.start.add(g * logits.stride), span.rows);
            (partial.max[g], partial.sum[g]) = softmax_row::<V>(row);
        }
        partial.out.fill(0.0);
        for first in (0..span.rows).step_by(BLOCK) {
            let rows = BLOCK.min(span.rows - first);
            let values = &values[first * head_dim..(first + rows) * head_dim];
            for g in (0..group).step_by(V::ACROSS) {
                let weights = Logits {
                    start: logits.start.add(g * logits.stride + first),
                    ..logits
                };
                let out = partial.out[g * head_dim..].as_mut_ptr();
                match V::ACROSS.min(group - g) {
                    1 => add_values::<V, 1>((rows, head_dim), values, weights, out),
                    2 => add_values::<V, 2>((rows, head_dim), values, weights, out),
                    3 => add_values::<V, 3>((rows, head_dim), values, weights, out),
                    _ => add_values::<V, 4>((rows, head_dim), values, weights, out),
                }
            }
        }
    }
}

/// Where the keys `first..first + ROWS` of the span are: in the store, or rotated into `rotated`. Past the span's end the
/// last row repeats; its results are dropped.
#[inline(always)]
fn key_rows(
    task: &DecodeAttention<'_>,
    span: &Span,
    first: usize,
    rotated: &mut [f32],
) -> [*const f32; ROWS] {
    let head_dim = task.shape.head_dim;
    let keys = task.keys.head(span.kv_head);
    let mut pointers = [std::ptr::null(); ROWS];
    for (i, pointer) in pointers.iter_mut().enumerate() {
        let row = span.first + (first + i).min(span.rows - 1);
        let key = &keys[row * head_dim..(row + 1) * head_dim];
        *pointer = key.as_ptr();
        if let Some(rotation) = &task.rotation {
            let columns = rotation.rope_dim / 2;
            let rank = rotation.ranks[task.keys.first_row(span.kv_head) + row] as usize;
            let table = rank * columns..(rank + 1) * columns;
            let target = &mut rotated[i * head_dim..(i + 1) * head_dim];
            target.copy_from_slice(key);
            rotate_row(
                target,
                &rotation.cos[table.clone()],
                &rotation.sin[table],
                rotation.pairing,
            );
        }
    }
    if task.rotation.is_some() {
        for (i, pointer) in pointers.iter_mut().enumerate() {
            *pointer = rotated[i * head_dim..].as_ptr();
        }
    }
    pointers
}

/// `logits[g][r] = scale * keys[r] . queries[g]` for `HEADS` heads and the first `rows` of the key rows.
///
/// # Safety
/// Each key has `head_dim` elements, `queries` is `[HEADS, head_dim]`, and `logits` covers the results.
#[inline(always)]
unsafe fn dot_rows<V: Lanes, const HEADS: usize>(
    (rows, head_dim, scale): (usize, usize, f32),
    keys: [*const f32; ROWS],
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
                *key = V::load(start.add(i));
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
                    *dot += *queries.add(g * head_dim + i) * *key.add(i);
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
unsafe fn softmax_row<V: Lanes>(row: &mut [f32]) -> (f32, f32) {
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
unsafe fn add_values<V: Lanes, const HEADS: usize>(
    (rows, head_dim): (usize, usize),
    values: &[f32],
    weights: Logits,
    out: *mut f32,
) {
    let values = values.as_ptr();
    let whole = head_dim - head_dim % V::N;
    let mut column = 0;
    // SAFETY: the caller's promise; columns stay below head_dim.
    unsafe {
        while column + 4 * V::N <= whole {
            add_columns::<V, HEADS, 4>(
                (rows, head_dim),
                values.add(column),
                weights,
                out.add(column),
            );
            column += 4 * V::N;
        }
        while column < whole {
            add_columns::<V, HEADS, 1>(
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
                    *out.add(g * head_dim + i) += weight * *values.add(r * head_dim + i);
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
unsafe fn add_columns<V: Lanes, const HEADS: usize, const COLUMNS: usize>(
    (rows, head_dim): (usize, usize),
    values: *const f32,
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
                *value = V::load(values.add(r * head_dim + c * V::N));
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
