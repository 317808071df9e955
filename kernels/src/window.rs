//! How much attention each token gets from the last rows of the prompt: the signal most selection methods rank by.
//!
//! Not the selection itself: no pooling over neighbours, no mean over the query group, no top-k (see `kept-policies`).
//! A window of one row gives the signal of TOVA. What starts from a log-sum-exp that is already known, or asks something else of
//! every row, is in `measure.rs`; how rows pass over keys, for both, is in `pass.rs`.

use std::ops::Range;

use crate::panel::{TILE, UNSEEN, with_scratch};
use crate::pass::{Pass, ROWS, Rows, visit_span};
use crate::simd::simd_level;
use crate::threads::{SharedMut, for_each_range};
use crate::{HeadShape, RowStore, Scale, Stop, Stopped};

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
    /// `[q_heads, k]`, k any number: the log-sum-exp of the last k rows as [`prefill_attention`](crate::prefill_attention) left it,
    /// which is then not computed again. Plays no part where the softmax does not sum over all keys.
    pub log_sum_exp: &'a [f32],
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
        assert!(
            self.log_sum_exp.len().is_multiple_of(shape.q_heads),
            "log_sum_exp must be [q_heads {}, k]",
            shape.q_heads
        );
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
/// Two passes over the keys: the first finds the log-sum-exp of each row of which it is not known, the second adds up
/// `exp(logit - log_sum_exp)`.
/// Nothing of size `w x tokens` is ever held.
pub fn window_scores(task: &WindowScores<'_>, out: &mut [f32], stop: &Stop) -> Result<(), Stopped> {
    task.check(out);
    stop.check()?;
    out.fill(0.0);
    let keys = task.keys_of_rows(task.rows());
    if keys == 0 {
        return Ok(()); // nothing before the window to normalise over
    }
    let log_sum_exp = log_sum_exp_of(task, stop)?;
    let pass = Pass::Add {
        among: None,
        log_sum_exp: &log_sum_exp,
        row_weight: 1.0 / task.rows() as f32,
        stride: task.tokens,
        out: SharedMut::new(out),
    };
    visit_columns(task, &pass, stop)
}

/// [`window_scores`] of the keys `among` alone, ascending and before the window; all others are 0.
pub fn window_scores_among(
    task: &WindowScores<'_>,
    among: &[u32],
    out: &mut [f32],
    stop: &Stop,
) -> Result<(), Stopped> {
    task.check(out);
    let before = (task.tokens - task.rows()) as u32;
    assert!(
        among.is_sorted_by(|a, b| a < b) && among.last().is_none_or(|&last| last < before),
        "keys that ascend, before the window at {before}"
    );
    stop.check()?;
    out.fill(0.0);
    if among.is_empty() {
        return Ok(());
    }
    let log_sum_exp = log_sum_exp_of(task, stop)?;
    let pass = Pass::Add {
        among: Some(among),
        log_sum_exp: &log_sum_exp,
        row_weight: 1.0 / task.rows() as f32,
        stride: task.tokens,
        out: SharedMut::new(out),
    };
    visit_columns(task, &pass, stop)?;
    for row in out.chunks_exact_mut(task.tokens) {
        // Column i is key `among[i]`, which is not before i: the last ones move first.
        for (i, &key) in among.iter().enumerate().rev() {
            let score = std::mem::take(&mut row[i]);
            row[key as usize] = score;
        }
    }
    Ok(())
}

/// Passes all rows over all keys, span by span: for passes that write one place per key.
pub(crate) fn visit_columns(
    task: &WindowScores<'_>,
    pass: &Pass<'_>,
    stop: &Stop,
) -> Result<(), Stopped> {
    let (shape, level) = (&task.shape, simd_level());
    let keys = match pass {
        Pass::Add {
            among: Some(among), ..
        } => among.len(),
        _ => task.keys_of_rows(task.rows()),
    };
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
    let log_sum_exp = log_sum_exp_of(task, stop)?;
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

/// `[q_heads, w]`: what is known of it, and what is not measured.
fn log_sum_exp_of(task: &WindowScores<'_>, stop: &Stop) -> Result<Vec<f32>, Stopped> {
    let (q_heads, rows) = (task.shape.q_heads, task.rows());
    let known = match task.normalise {
        Normalise::All => task.log_sum_exp.len() / q_heads,
        Normalise::Prefix => 0,
    };
    let unknown = rows.saturating_sub(known);
    let mut first = vec![0.0; q_heads * unknown];
    if unknown > 0 {
        let task = WindowScores {
            queries: &task.queries[..unknown * q_heads * task.shape.head_dim],
            tokens: task.tokens - (rows - unknown),
            ..*task
        };
        write_log_sum_exp(&task, &mut first, stop)?;
    }
    let mut all = Vec::with_capacity(q_heads * rows);
    for head in 0..q_heads {
        all.extend_from_slice(&first[head * unknown..][..unknown]);
        let end = (head + 1) * known;
        all.extend_from_slice(&task.log_sum_exp[end - (rows - unknown)..end]);
    }
    Ok(all)
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
