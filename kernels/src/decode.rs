//! Attention of one new token over the rows of the compact KV cache.
//!
//! Rows are an unordered set: there is no causal mask, every valid row is visible, and storage order does not matter.
//! The caller writes the key and value of the new token into the cache first.

use crate::HeadShape;
use crate::cache_type::hadamard;
use crate::heads::Logits;
use crate::kv_split::{DecodeAttention, KvSplit, SplitResult, attend};
use crate::rows::RUN;
use crate::simd::simd_level;
use crate::threads::{SharedMut, for_each_range};

/// Rows of the shortest split, the unit of work of a thread: long enough to amortise the cost of scheduling it.
const MIN_SPLIT_ROWS: usize = 128;

/// Most splits per KV head, which bounds the partial results. Split sizes depend on the row count alone, not on the
/// number of threads, so results do not depend on the number of threads either.
const MAX_SPLITS: usize = 64;

/// Multiplications below which waking the other threads costs more than it saves.
const WORTH_SHARING: usize = 1 << 16;

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
        if let Some(rotation) = &self.rotation {
            rotation.check(self);
        }
    }
}

/// Scratch buffers of [`decode_attention`], allocated once before the first token and shared by all layers.
#[derive(Clone, Debug)]
pub struct DecodeScratch {
    shape: HeadShape,
    /// Most rows of any KV head.
    max_rows: usize,
    /// Logits, then probabilities. `[q_heads, max_rows]`
    probabilities: Vec<f32>,
    /// Valid rows of each KV head in the last call. `[kv_heads]`
    rows: Vec<usize>,
    /// Splits of the last call, grouped by KV head. At most `kv_heads * splits per head`.
    splits: Vec<KvSplit>,
    /// One partial result per split, see [`SplitResult`]. `[splits, result length]`
    results: Vec<f32>,
    /// The query, Hadamard-transformed like the keys. `[q_heads, head_dim]`
    query: Vec<f32>,
}

/// Rows per split of a head with `rows` rows.
fn split_rows(rows: usize) -> usize {
    rows.div_ceil(MAX_SPLITS)
        .next_multiple_of(RUN)
        .max(MIN_SPLIT_ROWS)
}

impl DecodeScratch {
    /// Allocates scratch for up to `max_rows` rows per KV head. `threads` is ignored: results never depend on it.
    pub fn new(shape: HeadShape, max_rows: usize, threads: usize) -> Self {
        let _ = threads;
        // Heads with fewer rows may need more splits than the longest head, so allocate the upper bound.
        let splits = shape.kv_heads * max_rows.div_ceil(MIN_SPLIT_ROWS).clamp(1, MAX_SPLITS);
        Self {
            shape,
            max_rows,
            probabilities: vec![0.0; shape.q_heads * max_rows],
            rows: vec![0; shape.kv_heads],
            splits: Vec::with_capacity(splits),
            results: vec![0.0; splits * SplitResult::len(&shape)],
            query: vec![0.0; shape.q_heads * shape.head_dim],
        }
    }

    /// Probabilities of query head `q_head` in the last call, one per valid row of its KV head, in storage order.
    pub fn probabilities(&self, q_head: usize) -> &[f32] {
        &self.probabilities[q_head * self.max_rows..][..self.rows[q_head / self.shape.group()]]
    }

    /// `[q_heads, stride]`: [`DecodeScratch::probabilities`] of all heads in the last call; elements past a head's
    /// valid rows are stale.
    pub fn all_probabilities(&self) -> &[f32] {
        &self.probabilities
    }

    /// Row stride of [`DecodeScratch::all_probabilities`].
    pub fn stride(&self) -> usize {
        self.max_rows
    }

    /// Size in bytes, for the memory ledger.
    pub fn bytes(&self) -> usize {
        let floats = self.probabilities.len() + self.results.len() + self.query.len();
        floats * size_of::<f32>()
    }
}

/// Writes `out [q_heads, head_dim]`, and the probabilities into `scratch`. Allocates nothing.
///
/// # Panics
/// If a shape does not match.
pub fn decode_attention(task: &DecodeAttention<'_>, scratch: &mut DecodeScratch, out: &mut [f32]) {
    task.check(scratch, out);
    let (shape, level) = (&task.shape, simd_level());
    let DecodeScratch {
        max_rows,
        probabilities,
        rows,
        splits,
        results,
        query,
        ..
    } = scratch;
    // Hadamard-transformed keys need a transformed query. Keys that are rotated as they are read are transformed back
    // first.
    let transformed = task.keys.cache_type().rotates() && task.rotation.is_none();
    if transformed {
        query.copy_from_slice(task.query);
        query.chunks_exact_mut(shape.head_dim).for_each(hadamard);
    }
    let task = &DecodeAttention {
        query: if transformed { query } else { task.query },
        ..*task
    };
    rows.copy_from_slice(task.rows);
    splits.clear();
    for (kv_head, &rows) in rows.iter().enumerate() {
        let step = split_rows(rows);
        let pieces = (0..rows).step_by(step);
        splits.extend(pieces.map(|first| KvSplit {
            kv_head,
            first,
            rows: step.min(rows - first),
        }));
    }
    let (probabilities, results) = (SharedMut::new(probabilities), SharedMut::new(results));
    let share = rows.iter().sum::<usize>() * shape.group() * shape.head_dim > WORTH_SHARING;
    let result_len = SplitResult::len(shape);
    run(share, splits.len(), |item| {
        let split = &splits[item];
        let base = split.kv_head * shape.group() * *max_rows + split.first;
        for g in 0..shape.group() {
            // Checks the bounds that the raw pointer below relies on; rows of different splits are disjoint.
            assert!(base + g * *max_rows + split.rows <= shape.q_heads * *max_rows);
        }
        // SAFETY: every split has its own partial result; logits of different splits are different rows.
        unsafe {
            let result = results.part(item * result_len..(item + 1) * result_len);
            let logits = Logits {
                start: probabilities.start().add(base),
                stride: *max_rows,
            };
            attend(
                level,
                task,
                split,
                logits,
                &mut SplitResult::new(result, shape),
            );
        }
    });
    let out = SharedMut::new(out);
    run(share, shape.q_heads, |h| {
        // SAFETY: each query head has its own outputs, and the partial results are only read.
        unsafe {
            let out = out.part(h * shape.head_dim..(h + 1) * shape.head_dim);
            let row = probabilities.part(h * *max_rows..(h + 1) * *max_rows);
            combine(task, splits, &results, h, row, out);
            if task.values.cache_type().rotates() {
                hadamard(out);
            }
        }
    });
}

/// Runs `work(0)`, `work(1)`, ... on all threads if `share`, else on this thread.
fn run(share: bool, items: usize, work: impl Fn(usize) + Sync) {
    if share {
        for_each_range(items, |range| range.for_each(&work));
    } else {
        (0..items).for_each(work);
    }
}

/// Rescales the partial results of query head `h` to their common maximum and adds them up.
///
/// # Safety
/// No thread writes the partial results.
unsafe fn combine(
    task: &DecodeAttention<'_>,
    splits: &[KvSplit],
    results: &SharedMut<'_, f32>,
    h: usize,
    probabilities: &mut [f32],
    out: &mut [f32],
) {
    let shape = &task.shape;
    let (g, head_dim, len) = (h % shape.group(), shape.head_dim, SplitResult::len(shape));
    let mine = || {
        let of_head = splits.iter().enumerate();
        of_head.filter(|(_, split)| split.kv_head == h / shape.group())
    };
    // SAFETY: in bounds, and only read (guaranteed by the caller); fields as laid out in `SplitResult::new`.
    let at = |item: usize, offset: usize| unsafe { *results.start().add(item * len + offset) };
    let max = |item| at(item, g);
    let sum = |item| at(item, shape.group() + g);
    let largest = mine().fold(f32::NEG_INFINITY, |largest, (item, _)| {
        largest.max(max(item))
    });
    let total: f32 = mine()
        .map(|(item, _)| (max(item) - largest).exp() * sum(item))
        .sum();
    let (total, _) = task.scale.complete(h, largest, total);
    out.fill(0.0);
    for (item, split) in mine() {
        let factor = (max(item) - largest).exp() / total;
        for p in &mut probabilities[split.first..split.first + split.rows] {
            *p *= factor;
        }
        let offset = 2 * shape.group() + g * head_dim;
        for (i, out) in out.iter_mut().enumerate() {
            *out += factor * at(item, offset + i);
        }
    }
}
