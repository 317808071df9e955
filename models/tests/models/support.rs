//! A forward pass in plain loops over the model's components: full attention, all rows kept. It shows that the
//! components are correct, independently of the engine.

use kept_kernels::{RecurrentState, Stop};
use kept_models::{Model, RopeTable, RowScratch};

/// Logits `[n, vocab]` of all positions, many rows at a time.
pub fn batched(model: &Model, ids: &[u32]) -> Vec<f32> {
    let config = model.config();
    let (n, stop) = (ids.len(), Stop::new());
    let rope = RopeTable::new(config, n);
    let mut residual = vec![0.0; n * config.width];
    model.embed(ids, &mut residual);
    let mut q = vec![0.0; n * config.q_width()];
    let (mut k, mut v) = (
        vec![0.0; n * config.kv_width()],
        vec![0.0; n * config.kv_width()],
    );
    let mut attended = q.clone();
    for layer in 0..config.layers {
        let mut pass = model.layer_pass(layer, n);
        if config.kinds[layer].is_recurrent() {
            let mut state = RecurrentState::new(config.recurrent.unwrap());
            pass.recur(&mut residual, &mut state, &stop).unwrap();
            continue;
        }
        pass.project(&residual, &mut q, &mut k, &mut v, &stop)
            .unwrap();
        if let Some(rope) = rope.of_layer(layer) {
            rope.rotate_queries(&mut q, config.q_heads, 0);
            rope.rotate_rows(&mut k, config.kv_heads, 0);
        }
        for row in 0..n {
            let width = config.q_width();
            let (q, out) = (
                &q[row * width..][..width],
                &mut attended[row * width..][..width],
            );
            attend(model, layer, q, &k, &v, row + 1, out);
        }
        pass.finish(&attended, ids, &mut residual, &stop).unwrap();
    }
    let mut scratch = RowScratch::new(config);
    let mut logits = vec![0.0; n * config.vocab];
    for (residual, logits) in residual
        .chunks(config.width)
        .zip(logits.chunks_mut(config.vocab))
    {
        model.logits_row(residual, &mut scratch, logits);
    }
    logits
}

/// Logits `[n, vocab]` of all positions, one token at a time.
pub fn row_wise(model: &Model, ids: &[u32]) -> Vec<f32> {
    let config = model.config();
    let (width, kv_width) = (config.width, config.kv_width());
    let rope = RopeTable::new(config, ids.len());
    let mut caches = vec![(Vec::new(), Vec::new()); config.layers];
    let state = || config.recurrent.map(RecurrentState::new);
    let mut states: Vec<_> = (0..config.layers).map(|_| state()).collect();
    let mut scratch = RowScratch::new(config);
    let (mut residual, mut logits) = (vec![0.0; width], vec![0.0; ids.len() * config.vocab]);
    let mut q = vec![0.0; config.q_width()];
    let (mut k, mut v) = (vec![0.0; kv_width], vec![0.0; kv_width]);
    let mut attended = q.clone();
    for (pos, (id, logits)) in ids.iter().zip(logits.chunks_mut(config.vocab)).enumerate() {
        model.embed(&[*id], &mut residual);
        for (layer, (keys, values)) in caches.iter_mut().enumerate() {
            if config.kinds[layer].is_recurrent() {
                let state = states[layer].as_mut().unwrap();
                model.recur_row(layer, &mut residual, state, &mut scratch);
                continue;
            }
            model.project_row(layer, &residual, &mut scratch, &mut q, &mut k, &mut v);
            if let Some(rope) = rope.of_layer(layer) {
                rope.rotate_query_at(&mut q, pos);
                rope.rotate_at(&mut k, pos);
            }
            keys.extend_from_slice(&k);
            values.extend_from_slice(&v);
            attend(model, layer, &q, keys, values, pos + 1, &mut attended);
            model.finish_row(layer, &attended, *id, &mut residual, &mut scratch);
        }
        model.logits_row(&residual, &mut scratch, logits);
    }
    logits
}

/// Attention of one row `q [q_heads, head_dim]` over the first `rows` rows of `k`, `v [.., kv_heads, head_dim]` in
/// `layer`.
fn attend(
    model: &Model,
    layer: usize,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    rows: usize,
    out: &mut [f32],
) {
    let config = model.config();
    let (d, kv_width) = (config.head_dim, config.kv_width());
    let first = config.kinds[layer]
        .window()
        .map_or(0, |w| rows.saturating_sub(w));
    let cap = |x: f32| config.attention_cap.map_or(x, |cap| cap * (x / cap).tanh());
    out.fill(0.0);
    for (head, (q, out)) in q.chunks(d).zip(out.chunks_mut(d)).enumerate() {
        let at = head / (config.q_heads / config.kv_heads) * d;
        let scores: Vec<f32> = (first..rows)
            .map(|row| cap(dot(q, &k[row * kv_width + at..][..d]) * config.attention_scale))
            .collect();
        let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f32> = scores.iter().map(|s| (s - highest).exp()).collect();
        let sum: f32 = weights.iter().sum();
        for (row, weight) in (first..).zip(&weights) {
            for (out, v) in out.iter_mut().zip(&v[row * kv_width + at..][..d]) {
                *out += weight / sum * v;
            }
        }
    }
}

pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `|a - b| / |b|`, with norms over all elements.
pub fn relative_distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let distance: f32 = a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum();
    (distance / b.iter().map(|b| b * b).sum::<f32>()).sqrt()
}
