//! How much attention each token gets from the last rows of the prompt: the signal most selection methods rank by.
//!
//! Not the selection itself: no pooling over neighbours, no mean over the query group, no top-k (see `kept-policies`).
//! A window of one row gives the signal of TOVA. What starts from a log-sum-exp that is already known, or asks something else of
//! every row, is in `measure.rs`; it passes over the keys with [`visit_span`] too.

use std::ops::Range;

use crate::elementwise::soft_cap_lanes;
use crate::panel::{
    Running, Strided, TILE, UNSEEN, WIDEST, add_probabilities, join_heads, pack_lane, product,
    raise_to_probabilities, softmax_tile, split, to_probabilities, with_scratch,
};
use crate::simd::{Lanes, by_level, simd_level};
use crate::threads::{SharedMut, for_each_range};
use crate::{HeadShape, RowStore, Scale, Stop, Stopped};

/// Window rows that pass over the keys together; [`Pass::Mark`] makes one word of them.
pub(crate) const ROWS: usize = 64;

/// Keys whose scores one work item adds up: a second-level cache holds them while all window rows pass over them.
const SPAN: usize = 512;

/// Work items wanted for the first pass, so that a short window over a long prompt still uses every thread. Not the
/// number of threads: scores must not depend on it.
const ITEMS: usize = 64;

/// The keys over which the softmax of [`window_scores`] sums to 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Normalise {
    /// All visible keys, causal inside the window.
    All,
    /// The keys before the window only (HBW-KV, equation 3 as printed); the window's own columns come out as 0.
    Prefix,
}

/// Attention probabilities of the last `w` of `tokens` prompt rows.
///
/// ```text
/// tokens = 5, w = 2 (rows 3 and 4)      out[j] = weight[0] * p(3, j) + weight[1] * p(4, j)
///          0 1 2 3 4
/// query 3  p p p p .
/// query 4  p p p p p
/// ```
#[derive(Clone, Copy, Debug)]
pub struct WindowScores<'a> {
    /// Heads of the layer.
    pub shape: HeadShape,
    /// From dot products to logits.
    pub scale: Scale,
    /// `[w, q_heads, head_dim]`, rotated: the rows at positions `tokens - w..tokens`.
    pub queries: &'a [f32],
    /// Rotated keys; rows `0..tokens` of each head are valid, row == position.
    pub keys: &'a RowStore,
    /// Prompt length n.
    pub tokens: usize,
    /// What the softmax of a row sums over.
    pub normalise: Normalise,
    /// `[w]`, used as they are; `None` is `1 / w` each, the mean.
    pub row_weights: Option<&'a [f32]>,
}

impl WindowScores<'_> {
    /// Number of query rows, w.
    pub fn rows(&self) -> usize {
        self.queries.len() / (self.shape.q_heads * self.shape.head_dim)
    }

    /// Panics unless queries and keys fit each other.
    pub(crate) fn check_inputs(&self) {
        let (shape, rows, tokens) = (&self.shape, self.rows(), self.tokens);
        shape.check_rows("queries", self.queries, rows);
        assert!(
            0 < rows && rows <= tokens,
            "a window of {rows} rows in a prompt of {tokens} tokens"
        );
        shape.check_store("keys", self.keys, |_| tokens);
    }

    fn check(&self, out: &[f32]) {
        let (shape, rows, tokens) = (&self.shape, self.rows(), self.tokens);
        self.check_inputs();
        assert_eq!(
            out.len(),
            shape.q_heads * tokens,
            "out must be [q_heads {}, tokens {tokens}]",
            shape.q_heads
        );
        if let Some(row_weights) = self.row_weights {
            assert_eq!(row_weights.len(), rows, "row_weights must be [w {rows}]");
        }
    }

    fn check_columns(&self, columns: &Range<usize>, out: &[f32]) {
        let (shape, rows, tokens) = (&self.shape, self.rows(), self.tokens);
        shape.check_rows("queries", self.queries, rows);
        shape.check_store("keys", self.keys, |_| tokens);
        assert!(
            0 < rows && rows <= tokens && columns.start <= columns.end && columns.end <= tokens,
            "columns {columns:?} of a window of {rows} rows in a prompt of {tokens} tokens"
        );
        assert_eq!(
            out.len(),
            shape.q_heads * columns.len(),
            "out must be [q_heads {}, columns {}]",
            shape.q_heads,
            columns.len()
        );
    }
}

/// Writes `out [q_heads, tokens]`: the weighted sum over the window's rows of the causal softmax probability, in f32.
///
/// Two passes over the keys: the first finds each row's log-sum-exp, the second adds up `exp(logit - log_sum_exp)`.
/// Nothing of size `w x tokens` is ever held.
pub fn window_scores(task: &WindowScores<'_>, out: &mut [f32], stop: &Stop) -> Result<(), Stopped> {
    task.check(out);
    stop.check()?;
    out.fill(0.0);
    let keys = task.keys_of_rows(task.rows());
    if keys == 0 {
        return Ok(()); // nothing before the window to normalise over
    }
    let mut log_sum_exp = vec![0.0; task.shape.q_heads * task.rows()];
    write_log_sum_exp(task, &mut log_sum_exp, stop)?;
    let pass = Pass::Add {
        log_sum_exp: &log_sum_exp,
        row_weight: 1.0 / task.rows() as f32,
        stride: task.tokens,
        out: SharedMut::new(out),
    };
    visit_columns(task, &pass, stop)
}

/// Passes all rows over all keys, span by span: for passes that write one place per key.
pub(crate) fn visit_columns(
    task: &WindowScores<'_>,
    pass: &Pass<'_>,
    stop: &Stop,
) -> Result<(), Stopped> {
    let (shape, level) = (&task.shape, simd_level());
    let keys = task.keys_of_rows(task.rows());
    // What is written at a key does not depend on where its span ends; short spans keep all threads busy in a short prompt.
    let span = keys.div_ceil(ITEMS.div_ceil(shape.kv_heads));
    let span = span.next_multiple_of(TILE).clamp(2 * TILE, SPAN);
    for_each_range(keys.div_ceil(span) * shape.kv_heads, |items| {
        for item in items {
            let (kv_head, start) = (item % shape.kv_heads, item / shape.kv_heads * span);
            let span = start..keys.min(start + span);
            for first in (0..task.rows()).step_by(ROWS) {
                let rows = Rows::new(task, kv_head, first);
                with_scratch(rows.scratch(shape), |scratch| {
                    // SAFETY: `level` was detected; spans of a head are disjoint keys of what the pass writes, whose size is
                    // checked where the pass was made.
                    unsafe { visit_span(level, task, &rows, span.clone(), pass, stop, scratch) }
                });
            }
        }
    });
    // Whoever saw the flag left its item unfinished, and a flag stays raised.
    stop.check()
}

/// Writes `out [q_heads, columns.len()]`: for each of the keys `columns` the largest causal softmax probability that any row of
/// the window gives it, in f32. `row_weights` play no part. Passes as in [`window_scores`].
pub fn window_maxima(
    task: &WindowScores<'_>,
    columns: Range<usize>,
    out: &mut [f32],
    stop: &Stop,
) -> Result<(), Stopped> {
    task.check_columns(&columns, out);
    stop.check()?;
    out.fill(0.0);
    let keys = task.keys_of_rows(task.rows());
    let end = columns.end.min(keys);
    if end <= columns.start {
        return Ok(()); // no row sees any of them
    }
    let mut log_sum_exp = vec![0.0; task.shape.q_heads * task.rows()];
    write_log_sum_exp(task, &mut log_sum_exp, stop)?;
    let (shape, level) = (&task.shape, simd_level());
    let spans = (end - columns.start).div_ceil(SPAN);
    let pass = Pass::Raise {
        log_sum_exp: &log_sum_exp,
        columns: columns.clone(),
        out: SharedMut::new(out),
    };
    for_each_range(spans * shape.kv_heads, |items| {
        for item in items {
            let kv_head = item % shape.kv_heads;
            let start = columns.start + item / shape.kv_heads * SPAN;
            let span = start..end.min(start + SPAN);
            for first in (0..task.rows()).step_by(ROWS) {
                let rows = Rows::new(task, kv_head, first);
                with_scratch(rows.scratch(shape), |scratch| {
                    // SAFETY: `level` was detected; spans of a head are disjoint columns of `out`, whose size is checked.
                    unsafe { visit_span(level, task, &rows, span.clone(), &pass, stop, scratch) }
                });
            }
        }
    });
    stop.check()
}

/// Writes the natural log-sum-exp of every window row over its keys, `out [q_heads, w]`.
pub(crate) fn write_log_sum_exp(
    task: &WindowScores<'_>,
    out: &mut [f32],
    stop: &Stop,
) -> Result<(), Stopped> {
    let (shape, level, window) = (&task.shape, simd_level(), task.rows());
    let keys = task.keys_of_rows(window);
    let row_tiles = window.div_ceil(ROWS);
    let spans = ITEMS.div_ceil(row_tiles * shape.kv_heads);
    let span = keys.div_ceil(spans).next_multiple_of(TILE);
    let spans = keys.div_ceil(span);
    // Largest logit and sum of each row over each span. [spans, q_heads, w] each
    let size = spans * shape.q_heads * window;
    let (mut max, mut sum) = (vec![UNSEEN; size], vec![0.0; size]);
    let pass = Pass::Measure {
        span,
        max: SharedMut::new(&mut max),
        sum: SharedMut::new(&mut sum),
    };
    for_each_range(row_tiles * shape.kv_heads * spans, |items| {
        for item in items {
            // Later rows see more keys: longest items first.
            let tile = row_tiles - 1 - item / (shape.kv_heads * spans);
            let rows = Rows::new(task, item / spans % shape.kv_heads, tile * ROWS);
            let start = item % spans * span;
            let columns = start..keys.min(start + span);
            with_scratch(rows.scratch(shape), |scratch| {
                // SAFETY: `level` was detected; each item writes the partials of its own rows, heads and span.
                unsafe { visit_span(level, task, &rows, columns.clone(), &pass, stop, scratch) }
            });
        }
    });
    stop.check()?;
    let rows = shape.q_heads * window;
    let total = |row: usize| {
        let parts = || (row..size).step_by(rows);
        let largest = parts().fold(UNSEEN, |largest, part| largest.max(max[part]));
        let sum: f32 = parts()
            .map(|part| (max[part] - largest).exp() * sum[part])
            .sum();
        largest + sum.ln()
    };
    for (row, out) in out.iter_mut().enumerate() {
        *out = total(row);
    }
    Ok(())
}

/// Window rows `first..first + rows` with the heads of one group. Head `g`, row `r` is lane `g * lanes + r`.
pub(crate) struct Rows {
    kv_head: usize,
    first: usize,
    rows: usize,
}

impl Rows {
    fn new(task: &WindowScores<'_>, kv_head: usize, first: usize) -> Self {
        Self {
            kv_head,
            first,
            rows: ROWS.min(task.rows() - first),
        }
    }

    /// f32 of scratch, enough for vectors of any level.
    fn scratch(&self, shape: &HeadShape) -> usize {
        let lanes = self.rows.next_multiple_of(WIDEST);
        (shape.head_dim + 4) * lanes * shape.group() + (2 * TILE + 1) * lanes
    }
}

impl WindowScores<'_> {
    /// Keys that the first `rows` window rows see between them.
    fn keys_of_rows(&self, rows: usize) -> usize {
        let prefix = self.tokens - self.rows();
        match self.normalise {
            Normalise::All => prefix + rows,
            Normalise::Prefix => prefix,
        }
    }

    /// Last key that window row `row` sees; the prefix is not empty.
    fn last_key(&self, row: usize) -> usize {
        self.keys_of_rows(row + 1) - 1
    }
}

pub(crate) enum Pass<'a> {
    /// Writes the largest logit and the sum of `exp(logit - largest)` of each row over the visited keys, which are span
    /// number `first key / span`. `[spans, q_heads, w]` each
    Measure {
        span: usize,
        max: SharedMut<'a, f32>,
        sum: SharedMut<'a, f32>,
    },
    /// Adds the weighted probabilities of the rows to `out [q_heads, stride]`; `log_sum_exp` is `[q_heads, w]`, and `row_weight`
    /// counts where the task names no weights.
    Add {
        log_sum_exp: &'a [f32],
        row_weight: f32,
        stride: usize,
        out: SharedMut<'a, f32>,
    },
    /// Raises `out [q_heads, columns]` to the largest probability of the rows; `log_sum_exp` is `[q_heads, w]`.
    Raise {
        log_sum_exp: &'a [f32],
        columns: Range<usize>,
        out: SharedMut<'a, f32>,
    },
    /// Writes every row's probability of every key it sees to `out [w, q_heads, stride]`; `log_sum_exp` is `[q_heads, w]`.
    Each {
        log_sum_exp: &'a [f32],
        stride: usize,
        out: SharedMut<'a, f32>,
    },
    /// Writes word `row / 64` of `bits [kv_heads, tokens, words]`: a bit for each row in which the sum of the group's
    /// probabilities is below `group / keys the row sees`.
    Mark {
        log_sum_exp: &'a [f32],
        words: usize,
        bits: SharedMut<'a, u64>,
    },
}

by_level! {
    /// Passes the rows over the keys `columns`.
    ///
    /// # Safety
    /// The level's instructions exist, and nobody else writes what the pass writes for these rows, heads and columns.
    unsafe fn visit_span(
        task: &WindowScores<'_>, rows: &Rows, columns: Range<usize>, pass: &Pass<'_>, stop: &Stop, scratch: &mut [f32],
    ) = visit_span_lanes;
}

#[inline(always)]
unsafe fn visit_span_lanes<V: Lanes>(
    task: &WindowScores<'_>,
    rows: &Rows,
    columns: Range<usize>,
    pass: &Pass<'_>,
    stop: &Stop,
    scratch: &mut [f32],
) {
    let HeadShape {
        q_heads, head_dim, ..
    } = task.shape;
    let (group, window, tokens) = (task.shape.group(), task.rows(), task.tokens);
    let lanes = rows.rows.next_multiple_of(V::N);
    let panel = V::ACROSS * V::N;
    let all = lanes * group;
    // One entry per lane: (max, sum, keep) when measuring, (log-sum-exp, row weight, -) when adding, (log-sum-exp, -, -) when
    // raising or writing each, (log-sum-exp, average, -) when marking, the average in the lanes of the first head only.
    let sizes = [
        head_dim * all,
        TILE * lanes.min(panel),
        lanes,
        all,
        all,
        all,
        TILE * lanes,
    ];
    let [queries, logits, visible, level, share, keep, together] = split(scratch, sizes);
    queries.fill(0.0); // lanes beyond the rows stay harmless
    level.fill(match pass {
        Pass::Measure { .. } => UNSEEN,
        Pass::Add { .. } | Pass::Mark { .. } | Pass::Each { .. } => 0.0,
        Pass::Raise { .. } => f32::INFINITY,
    });
    share.fill(0.0);
    for (g, r) in (0..group).flat_map(|g| (0..rows.rows).map(move |r| (g, r))) {
        let (h, row, lane) = (rows.kv_head * group + g, rows.first + r, g * lanes + r);
        let query = &task.queries[(row * q_heads + h) * head_dim..][..head_dim];
        let first = g * lanes + r / panel * panel;
        let width = panel.min((g + 1) * lanes - first);
        // SAFETY: the panel `[head_dim][width]` starts at element `head_dim * first` of `queries`.
        unsafe {
            pack_lane(
                query,
                task.scale.factor,
                queries[head_dim * first..].as_mut_ptr(),
                width,
                lane - first,
            )
        };
        match pass {
            Pass::Measure { .. } => {}
            Pass::Add {
                log_sum_exp,
                row_weight,
                ..
            } => {
                level[lane] = log_sum_exp[h * window + row];
                share[lane] = task.row_weights.map_or(*row_weight, |weights| weights[row]);
            }
            Pass::Raise { log_sum_exp, .. } | Pass::Each { log_sum_exp, .. } => {
                level[lane] = log_sum_exp[h * window + row]
            }
            Pass::Mark { log_sum_exp, .. } => {
                level[lane] = log_sum_exp[h * window + row];
                // Beyond the rows it stays 0, and no probability is below that.
                share[r] = group as f32 / (task.last_key(row) + 1) as f32;
            }
        }
    }
    let keys = task.keys.head(rows.kv_head);
    let last_row = rows.first + rows.rows - 1;
    let end = columns.end.min(task.last_key(last_row) + 1);
    for tile in (columns.start..end).step_by(TILE) {
        if stop.is_requested() {
            return;
        }
        let count = TILE.min(end - tile);
        let causal = task.last_key(rows.first) < tile + count - 1;
        for (r, visible) in visible.iter_mut().enumerate() {
            // Negative when the whole tile lies after the row; exact in f32 below 2^24.
            *visible = task.last_key((rows.first + r).min(last_row)) as f32 - tile as f32;
        }
        let left = Strided {
            start: keys[tile * head_dim..].as_ptr(),
            row_stride: head_dim,
            step_stride: 1,
        };
        for start in (0..all)
            .step_by(lanes)
            .flat_map(|head| (head..head + lanes).step_by(panel))
        {
            let (g, width) = (start / lanes, panel.min(lanes - start % lanes));
            let across = width / V::N;
            // SAFETY: sizes as drawn in `panel.rs`; the columns of `out` are this item's alone.
            unsafe {
                let from = queries[head_dim * start..].as_ptr();
                product::<V>(
                    (count, head_dim, across),
                    left,
                    from,
                    None,
                    logits.as_mut_ptr(),
                );
                if let Some(cap) = task.scale.cap {
                    soft_cap_lanes::<V>(&mut logits[..count * width], cap);
                }
                let visible = causal.then_some(visible[start % lanes..].as_ptr());
                match pass {
                    Pass::Measure { .. } => {
                        let running = Running {
                            max: level[start..].as_mut_ptr(),
                            sum: share[start..].as_mut_ptr(),
                            keep: keep[start..].as_mut_ptr(),
                        };
                        softmax_tile::<V>(count, across, logits.as_mut_ptr(), visible, running);
                    }
                    Pass::Add { out, stride, .. } => {
                        let at = (rows.kv_head * group + g) * stride + tile;
                        let out = out.part(at..at + count);
                        let (level, share) = (level[start..].as_ptr(), share[start..].as_ptr());
                        add_probabilities::<V>(across, logits.as_ptr(), visible, level, share, out);
                    }
                    Pass::Raise { columns, out, .. } => {
                        let head = rows.kv_head * group + g;
                        let at = head * columns.len() + tile - columns.start;
                        let out = out.part(at..at + count);
                        let level = level[start..].as_ptr();
                        raise_to_probabilities::<V>(across, logits.as_ptr(), visible, level, out);
                    }
                    Pass::Each { out, stride, .. } => {
                        let head = rows.kv_head * group + g;
                        let first = start % lanes;
                        to_probabilities::<V>(
                            count,
                            across,
                            logits.as_mut_ptr(),
                            level[start..].as_ptr(),
                        );
                        for lane in 0..width.min(rows.rows.saturating_sub(first)) {
                            let row = rows.first + first + lane;
                            let seen = count.min((task.last_key(row) + 1).saturating_sub(tile));
                            let at = (row * q_heads + head) * stride + tile;
                            let out = out.part(at..at + seen);
                            let column = logits[lane..].iter().step_by(width);
                            out.iter_mut().zip(column).for_each(|(o, p)| *o = *p);
                        }
                    }
                    Pass::Mark { .. } => {
                        // The panel `[TILE][width]` of all heads together starts at element `TILE * first lane`.
                        let sums = together[TILE * (start % lanes)..].as_mut_ptr();
                        let level = level[start..].as_ptr();
                        let logits = logits.as_ptr();
                        join_heads::<V>(count, across, logits, visible, level, sums, g > 0);
                    }
                }
            }
        }
        if let Pass::Mark { bits, words, .. } = pass {
            let at = (rows.kv_head * tokens + tile) * words + rows.first / ROWS;
            // SAFETY: as above; one word in `words` of the item's own keys.
            let bits = unsafe { bits.part(at..at + (count - 1) * words + 1) };
            for (key, word) in bits.iter_mut().step_by(*words).enumerate() {
                *word = 0;
                for start in (0..lanes).step_by(panel) {
                    let width = panel.min(lanes - start);
                    for lane in (0..width).step_by(V::N) {
                        // SAFETY: panels as written above.
                        unsafe {
                            let sum =
                                V::load(together[TILE * start + key * width + lane..].as_ptr());
                            let average = V::load(share[start + lane..].as_ptr());
                            *word |= V::less_bits(sum, average) << (start + lane);
                        }
                    }
                }
            }
        }
    }
    if let Pass::Measure { span, max, sum } = pass {
        for g in 0..group {
            let h = rows.kv_head * group + g;
            let at = (columns.start / span * q_heads + h) * window + rows.first;
            // SAFETY: these rows, heads and span are this item's alone.
            unsafe {
                max.part(at..at + rows.rows)
                    .copy_from_slice(&level[g * lanes..][..rows.rows]);
                sum.part(at..at + rows.rows)
                    .copy_from_slice(&share[g * lanes..][..rows.rows]);
            }
        }
    }
}
