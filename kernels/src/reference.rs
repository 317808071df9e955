//! The specification of every kernel: plain loops, f64 accumulation, no optimisation.
//!
//! Orders of magnitude slower than the kernels, so not for production use. The tests compare the fast kernels with
//! these functions, and a new kernel starts here. Only the final results are rounded to f32.

use crate::{
    ClassAttention, DecodeAttention, HeadShape, LastRows, Normalise, Pairing, PrefillAttention,
    RowStore, Scale, WindowScores,
};

/// Causal softmax of a query of head `h` over key rows `0..visible`, before normalisation: `(exp(logit - max), sum,
/// max)`; the sum includes the head's sink.
fn weights<'k>(
    h: usize,
    query: &[f32],
    visible: usize,
    scale: Scale<'_>,
    key: impl Fn(usize) -> std::borrow::Cow<'k, [f32]>,
) -> (Vec<f64>, f64, f64) {
    let mut logits: Vec<f64> = (0..visible)
        .map(|row| logit(dot(query, &key(row)), scale))
        .collect();
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    logits.iter_mut().for_each(|x| *x = (*x - max).exp());
    let sink = scale.sinks.map(|sinks| (f64::from(sinks[h]) - max).exp());
    let sum = logits.iter().sum::<f64>() + sink.unwrap_or(0.0);
    (logits, sum, max)
}

fn logit(dot: f64, scale: Scale<'_>) -> f64 {
    let logit = dot * f64::from(scale.factor);
    match scale.cap.map(f64::from) {
        Some(cap) => cap * (logit / cap).tanh(),
        None => logit,
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(a, b)| f64::from(*a) * f64::from(*b))
        .sum()
}

/// Query head `h` of row `row`, in queries `[.., q_heads, head_dim]`.
fn query_head<'q>(queries: &'q [f32], shape: &HeadShape, row: usize, h: usize) -> &'q [f32] {
    &queries[(row * shape.q_heads + h) * shape.head_dim..][..shape.head_dim]
}

/// Writes the mean of the values `rows` of a KV head to `out [head_dim]`: weighted by `weights`, whose sum is `sum`.
fn mean_values(
    (values, kv_head): (&RowStore, usize),
    rows: impl Iterator<Item = usize>,
    (weights, sum): (&[f64], f64),
    out: &mut [f32],
) {
    let (mut value, mut total) = (vec![0.0; out.len()], vec![0.0; out.len()]);
    for (row, weight) in rows.zip(weights) {
        values.read(kv_head, row, &mut value);
        for (total, x) in total.iter_mut().zip(&value) {
            *total += weight * f64::from(*x);
        }
    }
    for (out, total) in out.iter_mut().zip(total) {
        *out = (total / sum) as f32;
    }
}

/// Specification of [`crate::prefill_attention`].
pub fn prefill_attention(
    task: &PrefillAttention<'_>,
    out: &mut [f32],
    mut log_sum_exp: Option<&mut [f32]>,
) {
    let shape = &task.shape;
    let rows = task.rows();
    for row in 0..rows {
        for h in 0..shape.q_heads {
            let kv_head = h / shape.group();
            let query = query_head(task.queries, shape, row, h);
            let position = task.first + row;
            let hidden = match task.window {
                Some(window) => (position + 1).saturating_sub(window),
                None => 0,
            };
            let (weights, sum, max) = weights(h, query, position + 1 - hidden, task.scale, |r| {
                task.keys.row(kv_head, hidden + r).into()
            });
            if let Some(log_sum_exp) = &mut log_sum_exp {
                log_sum_exp[h * rows + row] = (max + sum.ln()) as f32;
            }
            let out = &mut out[(row * shape.q_heads + h) * shape.head_dim..][..shape.head_dim];
            let (values, rows) = ((task.values, kv_head), hidden..=position);
            mean_values(values, rows, (&weights, sum), out);
        }
    }
}

/// Specification of [`crate::window_scores`].
pub fn window_scores(task: &WindowScores<'_>, out: &mut [f32]) {
    let (window, tokens) = (task.rows(), task.tokens);
    for (h, out) in out.chunks_exact_mut(tokens).enumerate() {
        let mut sums = vec![0.0f64; tokens];
        for row in 0..window {
            let (weights, sum, _) = row_weights(task, h, row);
            let row_weight = task.row_weights.map_or(1.0 / window as f64, |row_weights| {
                f64::from(row_weights[row])
            });
            for (total, weight) in sums.iter_mut().zip(weights) {
                *total += row_weight * weight / sum;
            }
        }
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = sum as f32;
        }
    }
}

/// Specification of [`crate::window_maxima`].
pub fn window_maxima(task: &WindowScores<'_>, columns: std::ops::Range<usize>, out: &mut [f32]) {
    for (h, out) in out.chunks_exact_mut(columns.len().max(1)).enumerate() {
        let mut largest = vec![0.0f64; task.tokens];
        for row in 0..task.rows() {
            let (weights, sum, _) = row_weights(task, h, row);
            for (largest, weight) in largest.iter_mut().zip(weights) {
                *largest = largest.max(weight / sum);
            }
        }
        for (out, largest) in out.iter_mut().zip(&largest[columns.clone()]) {
            *out = *largest as f32;
        }
    }
}

/// Causal softmax of row `row` of head `h`: `(exp(logit - max), sum, max)`.
fn row_weights(task: &WindowScores<'_>, h: usize, row: usize) -> (Vec<f64>, f64, f64) {
    let shape = &task.shape;
    let sinks = match task.normalise {
        Normalise::All => task.scale.sinks,
        Normalise::Prefix => None,
    };
    let scale = Scale {
        sinks,
        ..task.scale
    };
    let query = query_head(task.queries, shape, row, h);
    weights(h, query, task.keys_of_rows(row + 1), scale, |r| {
        task.keys.row(h / shape.group(), r).into()
    })
}

/// Specification of [`crate::log_sum_exp`].
pub fn log_sum_exp(task: &LastRows<'_>, log_sum_exp: &mut [f32]) {
    let rows = task.rows();
    for (i, out) in log_sum_exp.iter_mut().enumerate() {
        let (_, sum, max) = row_weights(&task.window(), i / rows, i % rows);
        *out = (max + sum.ln()) as f32;
    }
}

/// Specification of [`crate::add_column_sums`]; computes the log-sum-exp itself.
pub fn add_column_sums(task: &LastRows<'_>, sums: &mut [f32]) {
    let columns = sums.len() / task.shape.q_heads;
    for (h, sums) in sums.chunks_exact_mut(columns).enumerate() {
        let mut totals = vec![0.0f64; columns];
        for row in 0..task.rows() {
            let (weights, sum, _) = row_weights(&task.window(), h, row);
            for (total, weight) in totals.iter_mut().zip(weights) {
                *total += weight / sum;
            }
        }
        for (sum, total) in sums.iter_mut().zip(totals) {
            *sum = (f64::from(*sum) + total) as f32;
        }
    }
}

/// Specification of [`crate::row_probabilities`]; computes the log-sum-exp itself.
pub fn row_probabilities(task: &LastRows<'_>, stride: usize, out: &mut [f32]) {
    let q_heads = task.shape.q_heads;
    for (i, out) in out.chunks_exact_mut(stride).enumerate() {
        let (weights, sum, _) = row_weights(&task.window(), i % q_heads, i / q_heads);
        for (out, weight) in out.iter_mut().zip(weights) {
            *out = (weight / sum) as f32;
        }
    }
}

/// The quantity that [`crate::mark_below_average`] compares with 1: `[kv_heads, tokens, rows]`, the group's mean
/// probability times the number of keys visible to the row. The bit is set if it is below 1; NaN if the row cannot see
/// the key.
pub fn shares_of_average(task: &LastRows<'_>) -> Vec<f64> {
    let (shape, rows, tokens) = (&task.shape, task.rows(), task.tokens);
    let group = shape.group();
    let mut shares = vec![f64::NAN; shape.kv_heads * tokens * rows];
    for (kv_head, row) in (0..shape.kv_heads).flat_map(|h| (0..rows).map(move |row| (h, row))) {
        let visible = tokens - rows + row + 1;
        let mut means = vec![0.0f64; visible];
        for h in kv_head * group..(kv_head + 1) * group {
            let (weights, sum, _) = row_weights(&task.window(), h, row);
            for (mean, weight) in means.iter_mut().zip(weights) {
                *mean += weight / sum / group as f64;
            }
        }
        for (key, mean) in means.iter().enumerate() {
            shares[(kv_head * tokens + key) * rows + row] = mean * visible as f64;
        }
    }
    shares
}

/// Specification of [`crate::decode_attention`]. `probabilities[h]` receives the probability of each row for query head
/// `h`.
pub fn decode_attention(
    task: &DecodeAttention<'_>,
    out: &mut [f32],
    probabilities: &mut [Vec<f32>],
) {
    let shape = &task.shape;
    for h in 0..shape.q_heads {
        let kv_head = h / shape.group();
        let query = query_head(task.query, shape, 0, h);
        let (weights, sum, _) = weights(h, query, task.rows[kv_head], task.scale, |r| {
            let mut key = vec![0.0; shape.head_dim];
            task.keys.read(kv_head, r, &mut key);
            if let Some(rotation) = &task.rotation {
                let columns = rotation.rope_dim / 2;
                let rank = rotation.ranks[task.keys.first_row(kv_head) + r] as usize;
                let table = rank * columns..(rank + 1) * columns;
                let (cos, sin) = (&rotation.cos[table.clone()], &rotation.sin[table]);
                let head_dim = shape.head_dim;
                rotate(&mut key, 1, head_dim, cos, sin, rotation.pairing);
            }
            key.into()
        });
        probabilities[h] = weights.iter().map(|w| (w / sum) as f32).collect();
        let out = &mut out[h * shape.head_dim..][..shape.head_dim];
        mean_values((task.values, kv_head), 0.., (&weights, sum), out);
    }
}

/// Specification of [`crate::class_attention`]: expands every entry to a key of its own. `probabilities[h]` receives
/// the probability of each entry for query head `h`.
pub fn class_attention(task: &ClassAttention<'_>, out: &mut [f32], probabilities: &mut [Vec<f32>]) {
    let shape = &task.shape;
    for h in 0..shape.q_heads {
        let kv_head = h / shape.group();
        let (classes, norms) = task.table(kv_head);
        let query = query_head(task.query, shape, 0, h);
        let (weights, sum, _) = weights(h, query, classes.len(), task.scale, |entry| {
            let mut key = vec![0.0; shape.head_dim];
            task.keys.read(kv_head, classes[entry] as usize, &mut key);
            key.iter_mut().for_each(|x| *x *= norms[entry]);
            if let Some(rotation) = &task.rotation {
                let columns = rotation.rope_dim / 2;
                let table = entry * columns..(entry + 1) * columns;
                let (cos, sin) = (&rotation.cos[table.clone()], &rotation.sin[table]);
                rotate(&mut key, 1, shape.head_dim, cos, sin, rotation.pairing);
            }
            key.into()
        });
        probabilities[h] = weights.iter().map(|w| (w / sum) as f32).collect();
        let out = &mut out[h * shape.head_dim..][..shape.head_dim];
        let rows = classes.iter().map(|&class| class as usize);
        mean_values((task.values, kv_head), rows, (&weights, sum), out);
    }
}

/// Specification of [`crate::rms_norm`].
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let width = weight.len();
    for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let mean_square = dot(x, x) / width as f64;
        let factor = 1.0 / (mean_square + f64::from(eps)).sqrt();
        for i in 0..width {
            out[i] = (f64::from(x[i]) * factor * f64::from(weight[i])) as f32;
        }
    }
}

/// Specification of [`crate::rotate`].
pub fn rotate(
    x: &mut [f32],
    heads: usize,
    head_dim: usize,
    cos: &[f32],
    sin: &[f32],
    pairing: Pairing,
) {
    let rows = x.len() / (heads * head_dim);
    let columns = cos.len() / rows;
    for row in 0..rows {
        for h in 0..heads {
            let x = &mut x[(row * heads + h) * head_dim..][..head_dim];
            for i in 0..columns {
                let (first, second) = match pairing {
                    Pairing::Neighbours => (2 * i, 2 * i + 1),
                    Pairing::Halves => (i, i + columns),
                };
                let (a, b) = (f64::from(x[first]), f64::from(x[second]));
                let (c, s) = (
                    f64::from(cos[row * columns + i]),
                    f64::from(sin[row * columns + i]),
                );
                x[first] = (a * c - b * s) as f32;
                x[second] = (a * s + b * c) as f32;
            }
        }
    }
}

/// Specification of [`crate::silu_mul`].
pub fn silu_mul(gate: &mut [f32], up: &[f32]) {
    for (gate, up) in gate.iter_mut().zip(up) {
        let x = f64::from(*gate);
        *gate = (x / (1.0 + (-x).exp()) * f64::from(*up)) as f32;
    }
}

/// Specification of [`crate::sigmoid_mul`].
pub fn sigmoid_mul(x: &mut [f32], gate: &[f32]) {
    for (x, gate) in x.iter_mut().zip(gate) {
        *x = (f64::from(*x) / (1.0 + (-f64::from(*gate)).exp())) as f32;
    }
}

/// Specification of [`crate::gelu_mul`].
pub fn gelu_mul(gate: &mut [f32], up: &[f32]) {
    for (gate, up) in gate.iter_mut().zip(up) {
        let x = f64::from(*gate);
        let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
        *gate = (x / 2.0 * (1.0 + inner.tanh()) * f64::from(*up)) as f32;
    }
}

/// Specification of [`crate::swiglu_clamped`].
pub fn swiglu_clamped(gate: &mut [f32], up: &[f32]) {
    for (gate, up) in gate.iter_mut().zip(up) {
        let (g, u) = (f64::from(*gate).min(7.0), f64::from(*up).clamp(-7.0, 7.0));
        *gate = (g / (1.0 + (-1.702 * g).exp()) * (u + 1.0)) as f32;
    }
}

/// Specification of [`crate::soft_cap`].
pub fn soft_cap(x: &mut [f32], cap: f32) {
    for x in x {
        *x = (f64::from(cap) * (f64::from(*x) / f64::from(cap)).tanh()) as f32;
    }
}
