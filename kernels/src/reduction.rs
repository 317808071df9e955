//! One pass of query rows over keys: computes logits tile by tile, then reduces them as the [`Reduction`] requires:
//! softmax sums per row, scores per key, probabilities, or marks. The public functions are in `window.rs` and
//! `measure.rs`.

mod buffers;

use std::ops::Range;

use buffers::Buffers;

use crate::elementwise::soft_cap_lanes;
use crate::panel::{
    LOWEST_LOGIT, OnlineSoftmax, ProductShape, Strided, TILE, add_probabilities, max_probabilities,
    pack_lane, product, softmax_tile, sum_group_probabilities, to_probabilities,
};
use crate::simd::{Lanes, WIDEST, by_level};
use crate::threads::SharedMut;
use crate::{HeadShape, Stop, WindowScores};

/// Window rows that pass over the keys together; [`Reduction::MarkBelowAverage`] stores them in one word.
pub(crate) const ROWS: usize = 64;

/// Window rows `first..first + rows` of the heads of one group.
pub(crate) struct Rows {
    kv_head: usize,
    first: usize,
    rows: usize,
}

impl Rows {
    pub(crate) fn new(task: &WindowScores<'_>, kv_head: usize, first: usize) -> Self {
        Self {
            kv_head,
            first,
            rows: ROWS.min(task.rows() - first),
        }
    }

    /// Scratch size in f32, sufficient at every SIMD level.
    pub(crate) fn scratch(&self, shape: &HeadShape) -> usize {
        let lanes = self.rows.next_multiple_of(WIDEST);
        let tiles = (2 * TILE + 1) * lanes + TILE * shape.head_dim;
        (shape.head_dim + 4) * lanes * shape.group() + tiles
    }

    fn last_row(&self) -> usize {
        self.first + self.rows - 1
    }
}

pub(crate) enum Reduction<'a> {
    /// Writes the largest logit and the sum of `exp(logit - largest)` of each row over the visited keys; their span is
    /// number `first key / span`. `[spans, q_heads, w]` each.
    LogSumExp {
        span: usize,
        max: SharedMut<'a, f32>,
        sum: SharedMut<'a, f32>,
    },
    /// Adds the weighted probabilities of the rows to `out [q_heads, stride]`; `log_sum_exp` is `[q_heads, w]`, and
    /// `row_weight` applies if the task has no weights. With `candidates`, only these keys are visited, and every row
    /// must see all of them: key and column i are then key `candidates[i]`.
    AddProbabilities {
        candidates: Option<&'a [u32]>,
        log_sum_exp: &'a [f32],
        row_weight: f32,
        stride: usize,
        out: SharedMut<'a, f32>,
    },
    /// Raises `out [q_heads, columns]` to the largest probability over the rows; `log_sum_exp` is `[q_heads, w]`.
    MaxProbability {
        log_sum_exp: &'a [f32],
        columns: Range<usize>,
        out: SharedMut<'a, f32>,
    },
    /// Writes the probability of every visible key for every row to `out [w, q_heads, stride]`; `log_sum_exp` is
    /// `[q_heads, w]`.
    WriteProbabilities {
        log_sum_exp: &'a [f32],
        stride: usize,
        out: SharedMut<'a, f32>,
    },
    /// Writes word `row / 64` of `bits [kv_heads, tokens, words]`: a bit for each row in which the sum of the group's
    /// probabilities is below `group / number of keys visible to the row`.
    MarkBelowAverage {
        log_sum_exp: &'a [f32],
        words: usize,
        bits: SharedMut<'a, u64>,
    },
}

impl<'a> Reduction<'a> {
    /// The visited keys, if not all.
    fn candidates(&self) -> Option<&'a [u32]> {
        match self {
            Reduction::AddProbabilities { candidates, .. } => *candidates,
            _ => None,
        }
    }
}

by_level! {
    /// Passes the rows over the keys `columns`.
    ///
    /// # Safety
    /// The CPU supports the level's instructions, and no other thread writes the outputs of these rows, heads and
    /// columns.
    pub(crate) unsafe fn visit_span(
        task: &WindowScores<'_>, rows: &Rows, columns: Range<usize>, reduction: &Reduction<'_>, stop: &Stop, scratch: &mut [f32],
    ) = visit_span_lanes;
}

#[inline(always)]
unsafe fn visit_span_lanes<V: Lanes>(
    task: &WindowScores<'_>,
    rows: &Rows,
    columns: Range<usize>,
    reduction: &Reduction<'_>,
    stop: &Stop,
    scratch: &mut [f32],
) {
    let mut buffers = Buffers::new::<V>(scratch, rows, &task.shape);
    load_rows::<V>(task, rows, reduction, &mut buffers);
    let candidates = reduction.candidates();
    let end = match candidates {
        Some(_) => columns.end,
        None => columns.end.min(task.last_key(rows.last_row()) + 1),
    };
    for first in (columns.start..end).step_by(TILE) {
        if stop.is_requested() {
            return;
        }
        let count = TILE.min(end - first);
        let tile = Tile {
            first,
            count,
            causal: candidates.is_none() && task.last_key(rows.first) < first + count - 1,
        };
        // SAFETY: guaranteed by the caller.
        unsafe { visit_tile::<V>(task, rows, reduction, &tile, &mut buffers) };
    }
    // SAFETY: guaranteed by the caller.
    unsafe { write_measures(task, rows, reduction, columns.start, &buffers) };
}

/// Packs the queries into panels, and initialises `max_or_lse` and `sum_or_weight`.
#[inline(always)]
fn load_rows<V: Lanes>(
    task: &WindowScores<'_>,
    rows: &Rows,
    reduction: &Reduction<'_>,
    buffers: &mut Buffers<'_>,
) {
    let HeadShape {
        q_heads, head_dim, ..
    } = task.shape;
    let (group, window) = (task.shape.group(), task.rows());
    let (lanes, panel) = (buffers.lanes, V::ACROSS * V::N);
    buffers.queries.fill(0.0); // lanes past the last row must be finite
    buffers.max_or_lse.fill(match reduction {
        Reduction::LogSumExp { .. } => LOWEST_LOGIT,
        Reduction::AddProbabilities { .. }
        | Reduction::MarkBelowAverage { .. }
        | Reduction::WriteProbabilities { .. } => 0.0,
        Reduction::MaxProbability { .. } => f32::INFINITY,
    });
    buffers.sum_or_weight.fill(0.0);
    for (g, r) in (0..group).flat_map(|g| (0..rows.rows).map(move |r| (g, r))) {
        let (h, row, lane) = (rows.kv_head * group + g, rows.first + r, g * lanes + r);
        let query = &task.queries[(row * q_heads + h) * head_dim..][..head_dim];
        let start = g * lanes + r / panel * panel;
        let width = buffers.width::<V>(start);
        let to = buffers.queries[head_dim * start..].as_mut_ptr();
        // SAFETY: the panel `[head_dim][width]` starts at element `head_dim * start` of `queries`.
        unsafe { pack_lane(query, task.scale.factor, to, width, lane - start) };
        match reduction {
            Reduction::LogSumExp { .. } => {}
            Reduction::AddProbabilities {
                log_sum_exp,
                row_weight,
                ..
            } => {
                buffers.max_or_lse[lane] = log_sum_exp[h * window + row];
                buffers.sum_or_weight[lane] =
                    task.row_weights.map_or(*row_weight, |weights| weights[row]);
            }
            Reduction::MaxProbability { log_sum_exp, .. }
            | Reduction::WriteProbabilities { log_sum_exp, .. } => {
                buffers.max_or_lse[lane] = log_sum_exp[h * window + row]
            }
            Reduction::MarkBelowAverage { log_sum_exp, .. } => {
                buffers.max_or_lse[lane] = log_sum_exp[h * window + row];
                // Lanes past the last row keep average 0; no probability is below 0, so their bits stay clear.
                buffers.sum_or_weight[r] = group as f32 / (task.last_key(row) + 1) as f32;
            }
        }
    }
}

/// Visited keys `first..first + count`.
struct Tile {
    first: usize,
    count: usize,
    /// Whether some row does not see all of them.
    causal: bool,
}

/// Computes and reduces the logits of a tile, panel by panel.
///
/// # Safety
/// As [`visit_span`].
#[inline(always)]
unsafe fn visit_tile<V: Lanes>(
    task: &WindowScores<'_>,
    rows: &Rows,
    reduction: &Reduction<'_>,
    tile: &Tile,
    buffers: &mut Buffers<'_>,
) {
    let head_dim = task.shape.head_dim;
    let (lanes, panel) = (buffers.lanes, V::ACROSS * V::N);
    for (r, visible) in buffers.visible.iter_mut().enumerate() {
        // Negative if the whole tile lies after the row; exact in f32 below 2^24.
        *visible = task.last_key((rows.first + r).min(rows.last_row())) as f32 - tile.first as f32;
    }
    let keys = tile_keys(task, rows, reduction, tile, buffers.gathered);
    for start in (0..buffers.max_or_lse.len())
        .step_by(lanes)
        .flat_map(|head| (head..head + lanes).step_by(panel))
    {
        let width = buffers.width::<V>(start);
        let shape = ProductShape {
            rows: tile.count,
            steps: head_dim,
            width,
        };
        // SAFETY: sizes as drawn in `panel.rs`; the caller guarantees the rest.
        unsafe {
            let queries = buffers.queries[head_dim * start..].as_ptr();
            product::<V>(shape, keys, queries, None, buffers.logits.as_mut_ptr());
            if let Some(cap) = task.scale.cap {
                soft_cap_lanes::<V>(&mut buffers.logits[..tile.count * width], cap);
            }
            reduce_panel::<V>(task, rows, reduction, tile, start, buffers);
        }
    }
    // SAFETY: guaranteed by the caller; `group_probabilities` was written above.
    unsafe { write_marks::<V>(task, rows, reduction, tile, buffers) };
}

/// The keys of a tile, gathered if only some keys are visited.
#[inline(always)]
fn tile_keys(
    task: &WindowScores<'_>,
    rows: &Rows,
    reduction: &Reduction<'_>,
    tile: &Tile,
    gathered: &mut [f32],
) -> Strided {
    let head_dim = task.shape.head_dim;
    let keys = task.keys.head(rows.kv_head);
    let keys = match reduction.candidates() {
        Some(candidates) => {
            let numbers = candidates[tile.first..tile.first + tile.count].iter();
            for (to, &number) in gathered.chunks_exact_mut(head_dim).zip(numbers) {
                to.copy_from_slice(&keys[number as usize * head_dim..][..head_dim]);
            }
            &*gathered
        }
        None => &keys[tile.first * head_dim..],
    };
    Strided {
        start: keys.as_ptr(),
        row_stride: head_dim,
        step_stride: 1,
    }
}

/// Reduces the logits of the panel whose first lane is `start` as the pass requires.
///
/// # Safety
/// As [`visit_span`].
#[inline(always)]
unsafe fn reduce_panel<V: Lanes>(
    task: &WindowScores<'_>,
    rows: &Rows,
    reduction: &Reduction<'_>,
    tile: &Tile,
    start: usize,
    buffers: &mut Buffers<'_>,
) {
    let (count, width) = (tile.count, buffers.width::<V>(start));
    let vectors = width / V::N;
    let (g, first) = (start / buffers.lanes, start % buffers.lanes);
    let head = rows.kv_head * task.shape.group() + g;
    let visible = tile.causal.then_some(buffers.visible[first..].as_ptr());
    let logits = buffers.logits.as_mut_ptr();
    let max_or_lse = buffers.max_or_lse[start..].as_mut_ptr();
    let sum_or_weight = buffers.sum_or_weight[start..].as_mut_ptr();
    // SAFETY: sizes as drawn in `panel.rs`; only this item writes these columns of `out`.
    unsafe {
        match reduction {
            Reduction::LogSumExp { .. } => {
                let running = OnlineSoftmax {
                    max: max_or_lse,
                    sum: sum_or_weight,
                    rescale: buffers.rescale[start..].as_mut_ptr(),
                };
                softmax_tile::<V>(count, vectors, logits, visible, running);
            }
            Reduction::AddProbabilities { out, stride, .. } => {
                let at = head * stride + tile.first;
                let out = out.part(at..at + count);
                add_probabilities::<V>(vectors, logits, visible, max_or_lse, sum_or_weight, out);
            }
            Reduction::MaxProbability { columns, out, .. } => {
                let at = head * columns.len() + tile.first - columns.start;
                let out = out.part(at..at + count);
                max_probabilities::<V>(vectors, logits, visible, max_or_lse, out);
            }
            Reduction::WriteProbabilities { out, stride, .. } => {
                to_probabilities::<V>(count, vectors, logits, max_or_lse);
                for lane in 0..width.min(rows.rows.saturating_sub(first)) {
                    let row = rows.first + first + lane;
                    let seen = count.min((task.last_key(row) + 1).saturating_sub(tile.first));
                    let at = (row * task.shape.q_heads + head) * stride + tile.first;
                    let out = out.part(at..at + seen);
                    let column = buffers.logits[lane..].iter().step_by(width);
                    out.iter_mut().zip(column).for_each(|(o, p)| *o = *p);
                }
            }
            Reduction::MarkBelowAverage { .. } => {
                let sums = buffers.group_probabilities[TILE * first..].as_mut_ptr();
                sum_group_probabilities::<V>(
                    count,
                    vectors,
                    logits,
                    visible,
                    max_or_lse,
                    sums,
                    g > 0,
                );
            }
        }
    }
}

/// [`Reduction::MarkBelowAverage`]: writes the bits of a tile from the sums over the heads.
///
/// # Safety
/// As [`visit_span`].
#[inline(always)]
unsafe fn write_marks<V: Lanes>(
    task: &WindowScores<'_>,
    rows: &Rows,
    reduction: &Reduction<'_>,
    tile: &Tile,
    buffers: &Buffers<'_>,
) {
    let Reduction::MarkBelowAverage { bits, words, .. } = reduction else {
        return;
    };
    let at = (rows.kv_head * task.tokens + tile.first) * words + rows.first / ROWS;
    // SAFETY: guaranteed by the caller; the range covers one word per key of this item, `words` apart.
    let bits = unsafe { bits.part(at..at + (tile.count - 1) * words + 1) };
    for (key, word) in bits.iter_mut().step_by(*words).enumerate() {
        *word = 0;
        for start in (0..buffers.lanes).step_by(V::ACROSS * V::N) {
            let width = buffers.width::<V>(start);
            let sums = &buffers.group_probabilities[TILE * start + key * width..];
            for lane in (0..width).step_by(V::N) {
                // SAFETY: whole vectors of both slices.
                unsafe {
                    let sum = V::load(sums[lane..].as_ptr());
                    let average = V::load(buffers.sum_or_weight[start + lane..].as_ptr());
                    *word |= V::less_bits(sum, average) << (start + lane);
                }
            }
        }
    }
}

/// [`Reduction::LogSumExp`]: writes the running softmax of the rows over the span from key `start` on.
///
/// # Safety
/// As [`visit_span`].
#[inline(always)]
unsafe fn write_measures(
    task: &WindowScores<'_>,
    rows: &Rows,
    reduction: &Reduction<'_>,
    start: usize,
    buffers: &Buffers<'_>,
) {
    let Reduction::LogSumExp { span, max, sum } = reduction else {
        return;
    };
    let group = task.shape.group();
    for g in 0..group {
        let h = rows.kv_head * group + g;
        let at = (start / span * task.shape.q_heads + h) * task.rows() + rows.first;
        let lanes = g * buffers.lanes..g * buffers.lanes + rows.rows;
        // SAFETY: only this item writes these rows, heads and span.
        unsafe {
            max.part(at..at + rows.rows)
                .copy_from_slice(&buffers.max_or_lse[lanes.clone()]);
            sum.part(at..at + rows.rows)
                .copy_from_slice(&buffers.sum_or_weight[lanes]);
        }
    }
}
