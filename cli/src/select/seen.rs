//! The observations that a method needs from given tensors, computed by the product's own kernels.

use anyhow::Context;
use kept_engine::kernels::{
    HeadShape, LastRows, Normalise, RowStore, Scale, Stop, WindowScores, add_column_sums,
    log_sum_exp, window_maxima, window_scores,
};
use kept_engine::observe::{Pool, QueryMoments, low_attention, weighted_window};
use kept_engine::policies::{
    ExpectedQueries, LowAttention, Needs, Observation, ObservationWindow, PromptRows, Softmax,
    WeightedWindow,
};

use super::tensors::{HeadMajor, Tensors};

/// All observations of one layer.
#[derive(Default)]
pub struct Seen {
    window: Option<Vec<f32>>,
    column_sums: Option<Vec<f32>>,
    weighted_window: Option<Vec<f32>>,
    low_attention: Option<(usize, Vec<u64>)>,
    expected_queries: Option<(Vec<f32>, Vec<f32>)>,
    reconstruction: Option<Vec<f32>>,
    rows: bool,
    copies: bool,
}

impl Seen {
    /// Computes the observations in `needs`, over all tokens.
    pub fn new(tensors: &Tensors, needs: &Needs) -> anyhow::Result<Self> {
        let (q, k) = (&tensors.q, &tensors.k);
        let (n, stop) = (k.n, Stop::new());
        let shape = HeadShape::new(q.heads, k.heads, k.d);
        let scale = Scale::from(1.0 / (shape.head_dim as f32).sqrt());
        let (keys, queries) = (key_rows(k, 0..n), query_rows(q, 0..n));
        let last = LastRows {
            shape,
            scale,
            queries: &queries,
            keys: &keys,
            tokens: n,
        };
        let mut seen = Self {
            rows: needs.rows,
            copies: needs.copies,
            ..Self::default()
        };
        if let Some(window) = needs.observation_window {
            seen.window = Some(window_probabilities(&last, window, &stop)?);
        }
        if needs.column_sums {
            seen.column_sums = Some(column_sums(&last, &stop)?);
        }
        if let Some(asked) = needs.weighted_window {
            let window = WeightedWindow {
                rows: asked.rows.min(n),
                ..asked
            };
            let mut scores = Vec::new();
            weighted_window(&last, &[], window, None, &mut scores, &stop).context("stopped")?;
            seen.weighted_window = Some(scores);
        }
        if let Some(rows) = needs.low_attention {
            let (rows, mut bits) = (rows.min(n), Vec::new());
            low_attention(&last, rows, &mut bits, &stop).context("stopped")?;
            seen.low_attention = Some((rows, bits));
        }
        // The tensors are used as given, so the expected queries are not rotated by RoPE.
        if let Some(asked) = needs.expected_queries {
            let mut moments = QueryMoments::default();
            moments.start(shape, asked);
            // All given tokens belong to the document.
            moments.add(last.newest(n - asked.skip.min(n)).queries);
            seen.expected_queries = moments.finish(None).map(|found| {
                let covariance = found.covariance.unwrap_or_default();
                (found.mean.to_vec(), covariance.to_vec())
            });
        }
        if let Some(asked) = needs.reconstruction {
            seen.reconstruction = Some(reconstruction(tensors, shape, asked.sinks, &stop)?);
        }
        Ok(seen)
    }

    /// The observation in the form that a method receives; `rows` are the rows of the tensors.
    pub fn observation<'a>(
        &'a self,
        tensors: &'a Tensors,
        rows: &'a dyn PromptRows,
        layer: usize,
    ) -> Observation<'a> {
        let (q, k, v) = (&tensors.q, &tensors.k, &tensors.v);
        let expected_queries = self.expected_queries.as_ref();
        Observation {
            layer,
            tokens: k.n,
            kv_heads: k.heads,
            group: q.heads / k.heads,
            observation_window: self.window.as_deref(),
            column_sums: self.column_sums.as_deref(),
            weighted_window: self.weighted_window.as_deref(),
            low_attention: (self.low_attention.as_ref())
                .map(|(rows, bits)| LowAttention { rows: *rows, bits }),
            expected_queries: expected_queries.map(|(mean, covariance)| ExpectedQueries {
                mean,
                covariance: (!covariance.is_empty()).then_some(covariance),
            }),
            reconstruction: self.reconstruction.as_deref(),
            cached_scores: None,
            keys: self.copies.then_some(k.data.as_slice()),
            values: self.copies.then_some(v.data.as_slice()),
            rows: self.rows.then_some(rows),
            threads: &Pool,
        }
    }
}

fn key_rows(k: &HeadMajor, rows: std::ops::Range<usize>) -> RowStore {
    let mut keys = RowStore::uniform(k.heads, rows.len(), k.d);
    for head in 0..k.heads {
        for (to, from) in rows.clone().enumerate() {
            keys.row_mut(head, to).copy_from_slice(k.row(head, from));
        }
    }
    keys
}

/// `[rows, q_heads, d]`
fn query_rows(q: &HeadMajor, rows: std::ops::Range<usize>) -> Vec<f32> {
    rows.flat_map(|row| (0..q.heads).flat_map(move |head| q.row(head, row)))
        .copied()
        .collect()
}

/// `[q_heads, n]`: the mean probability that the observation window gives each token.
fn window_probabilities(
    last: &LastRows<'_>,
    window: ObservationWindow,
    stop: &Stop,
) -> anyhow::Result<Vec<f32>> {
    let task = WindowScores {
        normalise: match window.softmax {
            Softmax::All => Normalise::All,
            Softmax::Prefix => Normalise::Prefix,
        },
        ..last.newest(window.rows.min(last.tokens)).window()
    };
    let mut scores = vec![0.0; last.shape.q_heads * last.tokens];
    window_scores(&task, &mut scores, stop).context("stopped")?;
    Ok(scores)
}

/// `[q_heads, n]`: the probabilities that all tokens give each token, summed.
fn column_sums(last: &LastRows<'_>, stop: &Stop) -> anyhow::Result<Vec<f32>> {
    let numbers = last.shape.q_heads * last.tokens;
    let (mut known, mut sums) = (vec![0.0; numbers], vec![0.0; numbers]);
    log_sum_exp(last, &mut known, stop).context("stopped")?;
    add_column_sums(last, &known, &mut sums, stop).context("stopped")?;
    Ok(sums)
}

/// `[kv_heads, n]`: the largest probability that any row of a chunk's repetition gives each key of the chunk.
fn reconstruction(
    tensors: &Tensors,
    shape: HeadShape,
    sinks: usize,
    stop: &Stop,
) -> anyhow::Result<Vec<f32>> {
    let repetition = tensors.repetition.as_ref().context(
        "kvzip needs what the model did while it repeated the document: tensors q_repeat, k_repeat and chunks beside q, k and v",
    )?;
    let (k, n) = (&tensors.k, tensors.k.n);
    let mut scores = vec![0.0f32; shape.kv_heads * n];
    for chunk in &repetition.chunks {
        let ahead = sinks.min(chunk.tokens.start);
        let own = ahead + chunk.tokens.len();
        let mut keys = RowStore::uniform(shape.kv_heads, own + chunk.rows.len(), shape.head_dim);
        for head in 0..shape.kv_heads {
            let prompt = (0..ahead).chain(chunk.tokens.clone());
            let prompt = prompt.map(|token| k.row(head, token));
            let repeated = chunk.rows.clone().map(|row| repetition.k.row(head, row));
            for (row, key) in prompt.chain(repeated).enumerate() {
                keys.row_mut(head, row).copy_from_slice(key);
            }
        }
        let rows = LastRows {
            shape,
            scale: (1.0 / (shape.head_dim as f32).sqrt()).into(),
            queries: &query_rows(&repetition.q, chunk.rows.clone()),
            keys: &keys,
            tokens: own + chunk.rows.len(),
        };
        let mut maxima = vec![0.0; shape.q_heads * chunk.tokens.len()];
        window_maxima(&rows.window(), ahead..own, &mut maxima, stop).context("stopped")?;
        for (head, maxima) in maxima.chunks_exact(chunk.tokens.len()).enumerate() {
            let of_head = &mut scores[head / shape.group() * n..][..n];
            let scores = of_head[chunk.tokens.clone()].iter_mut();
            scores.zip(maxima).for_each(|(s, p)| *s = s.max(*p));
        }
    }
    Ok(scores)
}
