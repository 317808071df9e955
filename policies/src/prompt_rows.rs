//! Computations on the keys and values of a prompt, in host or device memory. Device rows are not downloaded.

use std::ops::Range;

use kept_kernels::{nearest_by_cosine, quadratic_forms};

use crate::heads::par_chunks;

/// Keys and values of one layer of a prompt. Keys are as the method stores them: after RoPE at original positions, or
/// before RoPE if the method re-assigns positions.
pub trait PromptRows: std::fmt::Debug + Sync {
    /// For each of `tokens`, finds the one of `others` (at least one) with the most similar key and value in KV head
    /// `head`, by the product of both cosines; the first one on ties. Writes its index in `others` and the product to
    /// `best [tokens]`.
    fn nearest_by_cosine(
        &self,
        head: usize,
        tokens: &[u32],
        others: &[u32],
        best: &mut [(u32, f32)],
    );

    /// Writes to `scores [..]` minus the cosine of each of the first keys of KV head `head` with the mean direction of
    /// the first `document` keys.
    fn cosine_to_mean(&self, head: usize, document: usize, scores: &mut [f32]);

    /// Writes `linear · k + kᵀ matrix k` to `out [tokens]` for each key k of `tokens` in KV head `head`. `of` is
    /// `(linear, matrix)`: `linear [head_dim]` and the symmetric `matrix [head_dim, head_dim]`, if any.
    fn bilinear_forms(
        &self,
        head: usize,
        tokens: Range<usize>,
        of: (&[f32], Option<&[f32]>),
        out: &mut [f32],
    );

    /// Writes the norm of each value of `tokens` in KV head `head` to `lengths [tokens]`.
    fn value_lengths(&self, head: usize, tokens: Range<usize>, lengths: &mut [f32]);
}

/// Keys and values in host memory.
#[derive(Debug, Clone, Copy)]
pub struct HostRows<'a> {
    /// `[kv_heads, rows, head_dim]`; the first rows of each head are the prompt's.
    pub keys: &'a [f32],
    /// As `keys`.
    pub values: &'a [f32],
    /// KV heads.
    pub kv_heads: usize,
    /// Dimension of a row.
    pub head_dim: usize,
}

/// Norm below which a key has no direction.
const NO_LENGTH: f64 = 1e-12;

impl<'a> HostRows<'a> {
    /// Keys and values of one kv head, `[rows, head_dim]` each.
    fn of_head(&self, head: usize) -> [&'a [f32]; 2] {
        let size = self.keys.len() / self.kv_heads;
        [self.keys, self.values].map(|rows| &rows[head * size..][..size])
    }
}

impl PromptRows for HostRows<'_> {
    /// # Panics
    /// As [`kept_kernels::nearest_by_cosine`].
    fn nearest_by_cosine(
        &self,
        head: usize,
        tokens: &[u32],
        others: &[u32],
        best: &mut [(u32, f32)],
    ) {
        nearest_by_cosine(self.of_head(head), self.head_dim, tokens, others, best);
    }

    fn cosine_to_mean(&self, head: usize, document: usize, scores: &mut [f32]) {
        let [keys, _] = self.of_head(head);
        let dim = self.head_dim;
        let length =
            |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt().max(NO_LENGTH);
        let of_key = |key: &[f32]| length(&mut key.iter().map(|&x| f64::from(x)));
        let mut mean = vec![0.0f64; dim];
        for key in keys.chunks_exact(dim).take(document) {
            let length = of_key(key);
            let pairs = mean.iter_mut().zip(key);
            pairs.for_each(|(m, &x)| *m += f64::from(x) / length / document as f64);
        }
        let mean_length = length(&mut mean.iter().copied());
        for (key, score) in keys.chunks_exact(dim).zip(scores) {
            let dot: f64 = key.iter().zip(&mean).map(|(&x, m)| f64::from(x) * m).sum();
            *score = -(dot / of_key(key) / mean_length) as f32;
        }
    }

    fn bilinear_forms(
        &self,
        head: usize,
        tokens: Range<usize>,
        (linear, matrix): (&[f32], Option<&[f32]>),
        out: &mut [f32],
    ) {
        let [keys, _] = self.of_head(head);
        let keys = &keys[tokens.start * self.head_dim..tokens.end * self.head_dim];
        quadratic_forms(keys, linear, matrix, out);
    }

    fn value_lengths(&self, head: usize, tokens: Range<usize>, lengths: &mut [f32]) {
        let ([_, values], dim) = (self.of_head(head), self.head_dim);
        let found = par_chunks(tokens.len(), dim, |first, lengths| {
            let values = values[(tokens.start + first) * dim..].chunks_exact(dim);
            for (value, length) in values.zip(lengths) {
                *length = value.iter().map(|x| x * x).sum::<f32>().sqrt();
            }
        });
        lengths.copy_from_slice(&found);
    }
}
