//! Attention of the observation window (the last rows of the prompt) to each token: the score that most selection
//! methods rank by.
//!
//! Pooling over neighbours, the mean over the query group and top-k are in `kept-policies`. An observation window of
//! one row gives the score of TOVA. `measure.rs` has scores that start from a known log-sum-exp and per-row measures;
//! `reduction.rs` has the pass of rows over keys that both modules use.

use std::ops::Range;

use crate::panel::{LOWEST_LOGIT, TILE, with_scratch};
use crate::reduction::{ROWS, Reduction, Rows, visit_span};
use crate::simd::simd_level;
use crate::threads::{SharedMut, for_each_range};
use crate::{Normalise, Stop, Stopped, WindowScores};

/// Most keys per work item: the L2 cache holds them while all window rows pass over them.
const SPAN: usize = 512;

/// Target number of work items of a pass, so that a short window over a long prompt still uses every thread. It does
/// not depend on the number of threads, so neither do scores.
const ITEMS: usize = 64;

/// Writes `out [q_heads, tokens]`: the causal softmax probability of each key, summed over the window's rows with their
/// weights, in f32.
///
/// Two passes over the keys: the first computes the log-sum-exp of each row for which it is not given, the second adds
/// up `exp(logit - log_sum_exp)`. Nothing of size `w x tokens` is ever allocated.
///
/// # Errors
/// [`Stopped`], after [`Stop::request`].
///
/// # Panics
/// If a shape does not match.
pub fn window_scores(task: &WindowScores<'_>, out: &mut [f32], stop: &Stop) -> Result<(), Stopped> {
    task.check(out);
    write_scores(task, None, out, stop)
}

/// [`window_scores`] of the keys `candidates` only, which ascend and lie before the window; all other scores are 0.
///
/// # Errors
/// [`Stopped`], after [`Stop::request`].
///
/// # Panics
/// If a shape does not match, or `candidates` does not ascend or reaches into the window.
pub fn window_scores_among(
    task: &WindowScores<'_>,
    candidates: &[u32],
    out: &mut [f32],
    stop: &Stop,
) -> Result<(), Stopped> {
    task.check(out);
    let before = (task.tokens - task.rows()) as u32;
    assert!(
        candidates.is_sorted_by(|a, b| a < b)
            && candidates.last().is_none_or(|&last| last < before),
        "keys that ascend, before the window at {before}"
    );
    write_scores(task, Some(candidates), out, stop)?;
    for row in out.chunks_exact_mut(task.tokens) {
        // Column i belongs to key `candidates[i] >= i`, so moving from the end overwrites no score.
        for (i, &key) in candidates.iter().enumerate().rev() {
            let score = std::mem::take(&mut row[i]);
            row[key as usize] = score;
        }
    }
    Ok(())
}

/// Writes the scores of all keys, or of the keys `candidates` in the first columns of `out`; the others are 0.
fn write_scores(
    task: &WindowScores<'_>,
    candidates: Option<&[u32]>,
    out: &mut [f32],
    stop: &Stop,
) -> Result<(), Stopped> {
    stop.check()?;
    out.fill(0.0);
    if candidates.map_or(task.keys_of_rows(task.rows()), <[u32]>::len) == 0 {
        return Ok(()); // no key before the window to normalise over
    }
    let log_sum_exp = log_sum_exp_of(task, stop)?;
    let reduction = Reduction::AddProbabilities {
        candidates,
        log_sum_exp: &log_sum_exp,
        row_weight: 1.0 / task.rows() as f32,
        stride: task.tokens,
        out: SharedMut::new(out),
    };
    visit_columns(task, &reduction, stop)
}

/// Passes all rows over all keys, span by span: for passes whose outputs are per key.
pub(crate) fn visit_columns(
    task: &WindowScores<'_>,
    reduction: &Reduction<'_>,
    stop: &Stop,
) -> Result<(), Stopped> {
    let keys = match reduction {
        Reduction::AddProbabilities {
            candidates: Some(candidates),
            ..
        } => candidates.len(),
        _ => task.keys_of_rows(task.rows()),
    };
    // The result at a key does not depend on the span boundaries; short spans keep all threads busy on a short prompt.
    let span = keys.div_ceil(ITEMS.div_ceil(task.shape.kv_heads));
    let span = span.next_multiple_of(TILE).clamp(2 * TILE, SPAN);
    visit_spans(task, reduction, 0..keys, span, stop)
}

/// Passes all rows over the keys `columns`, `span` keys at a time.
fn visit_spans(
    task: &WindowScores<'_>,
    reduction: &Reduction<'_>,
    columns: Range<usize>,
    span: usize,
    stop: &Stop,
) -> Result<(), Stopped> {
    let (shape, level) = (&task.shape, simd_level());
    for_each_range(columns.len().div_ceil(span) * shape.kv_heads, |items| {
        for item in items {
            let kv_head = item % shape.kv_heads;
            let start = columns.start + item / shape.kv_heads * span;
            let span = start..columns.end.min(start + span);
            for first in (0..task.rows()).step_by(ROWS) {
                let rows = Rows::new(task, kv_head, first);
                with_scratch(rows.scratch(shape), |scratch| {
                    // SAFETY: `level` was detected; spans of a head are disjoint keys of the reduction's outputs, whose
                    // sizes were checked where it was created.
                    unsafe {
                        visit_span(level, task, &rows, span.clone(), reduction, stop, scratch)
                    }
                });
            }
        }
    });
    // A thread that sees the flag leaves its item unfinished; the flag is never reset, so this check sees it too.
    stop.check()
}

/// Writes `out [q_heads, columns.len()]`: for each of the keys `columns` the largest causal softmax probability over
/// the rows of the window, in f32. Ignores `row_weights`. Passes as in [`window_scores`].
///
/// # Errors
/// [`Stopped`], after [`Stop::request`].
///
/// # Panics
/// If a shape does not match.
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
        return Ok(()); // no row sees any of these keys
    }
    let log_sum_exp = log_sum_exp_of(task, stop)?;
    let reduction = Reduction::MaxProbability {
        log_sum_exp: &log_sum_exp,
        columns: columns.clone(),
        out: SharedMut::new(out),
    };
    visit_spans(task, &reduction, columns.start..end, SPAN, stop)
}

/// The log-sum-exp of the window rows, `[q_heads, w]`: copied where given, computed otherwise.
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
    // Largest logit and sum of each row over each span, `[spans, q_heads, w]` each.
    let size = spans * shape.q_heads * window;
    let (mut max, mut sum) = (vec![LOWEST_LOGIT; size], vec![0.0; size]);
    let reduction = Reduction::LogSumExp {
        span,
        max: SharedMut::new(&mut max),
        sum: SharedMut::new(&mut sum),
    };
    for_each_range(row_tiles * shape.kv_heads * spans, |items| {
        for item in items {
            // Longest items first: later rows see more keys.
            let tile = row_tiles - 1 - item / (shape.kv_heads * spans);
            let rows = Rows::new(task, item / spans % shape.kv_heads, tile * ROWS);
            let start = item % spans * span;
            let columns = start..keys.min(start + span);
            with_scratch(rows.scratch(shape), |scratch| {
                // SAFETY: `level` was detected; each item writes the partials of its own rows, heads and span.
                unsafe {
                    visit_span(
                        level,
                        task,
                        &rows,
                        columns.clone(),
                        &reduction,
                        stop,
                        scratch,
                    )
                }
            });
        }
    });
    stop.check()?;
    let rows = shape.q_heads * window;
    let total = |row: usize| {
        let parts = || (row..size).step_by(rows);
        let largest = parts().fold(LOWEST_LOGIT, |largest, part| largest.max(max[part]));
        let sum: f32 = parts()
            .map(|part| (max[part] - largest).exp() * sum[part])
            .sum();
        match task.normalise {
            Normalise::All => task.scale.complete(row / window, largest, sum).1,
            Normalise::Prefix => largest + sum.ln(),
        }
    };
    for (row, out) in out.iter_mut().enumerate() {
        *out = total(row);
    }
    Ok(())
}
