//! [`PromptRows`] of a synthetic case, one number at a time and in f64.

use std::ops::Range;

use kept_policies::{BilinearForm, PromptRows};

use crate::cases::Case;

/// The rows of a case.
#[derive(Clone, Copy)]
pub struct SlowRows<'c>(pub &'c Case);

impl std::fmt::Debug for SlowRows<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rows of {}", self.0.describe())
    }
}

impl SlowRows<'_> {
    fn row(&self, of: &[f32], head: usize, token: usize) -> Vec<f64> {
        let dim = self.0.head_dim;
        let row = &of[(head * self.0.n + token) * dim..][..dim];
        row.iter().map(|x| f64::from(*x)).collect()
    }

    fn key(&self, head: usize, token: usize) -> Vec<f64> {
        self.row(&self.0.k, head, token)
    }

    fn value(&self, head: usize, token: usize) -> Vec<f64> {
        self.row(&self.0.v, head, token)
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn length(row: &[f64]) -> f64 {
    dot(row, row).sqrt().max(1e-12)
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    dot(a, b) / length(a) / length(b)
}

impl PromptRows for SlowRows<'_> {
    fn nearest_by_cosine(
        &self,
        head: usize,
        tokens: &[u32],
        others: &[u32],
        best: &mut [(u32, f32)],
    ) {
        for (&token, best) in tokens.iter().zip(best) {
            let alike = |other: u32| {
                let (token, other) = (token as usize, other as usize);
                let keys = cosine(&self.key(head, token), &self.key(head, other));
                (keys * cosine(&self.value(head, token), &self.value(head, other))) as f32
            };
            let all = (0u32..).zip(others.iter().map(|&other| alike(other)));
            let first = |best: (u32, f32), next: (u32, f32)| {
                if next.1 > best.1 { next } else { best }
            };
            *best = all.reduce(first).expect("somebody to be like");
        }
    }

    fn cosine_to_mean(&self, head: usize, document: usize, cosines: &mut [f32]) {
        let mut mean = vec![0.0; self.0.head_dim];
        for token in 0..document {
            let key = self.key(head, token);
            let length = length(&key);
            let pairs = mean.iter_mut().zip(&key);
            pairs.for_each(|(sum, x)| *sum += x / length / document as f64);
        }
        for (token, out) in cosines.iter_mut().enumerate() {
            *out = cosine(&self.key(head, token), &mean) as f32;
        }
    }

    fn bilinear_forms(
        &self,
        head: usize,
        tokens: Range<usize>,
        BilinearForm { linear, matrix }: BilinearForm<'_>,
        out: &mut [f32],
    ) {
        for (token, out) in tokens.zip(out) {
            let key = self.key(head, token);
            let mut form: f64 = key.iter().zip(linear).map(|(x, a)| x * f64::from(*a)).sum();
            for (i, m) in matrix.into_iter().flatten().enumerate() {
                form += f64::from(*m) * key[i / key.len()] * key[i % key.len()];
            }
            *out = form as f32;
        }
    }

    fn softmax(&self, logits: &mut [f32]) {
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weight = |logit: f32| (f64::from(logit) - f64::from(most)).exp();
        let total: f64 = logits.iter().map(|logit| weight(*logit)).sum();
        for logit in logits {
            *logit = (weight(*logit) / total) as f32;
        }
    }

    fn key_norms(&self, head: usize, tokens: Range<usize>, norms: &mut [f32]) {
        for (token, out) in tokens.zip(norms) {
            let key = self.key(head, token);
            *out = dot(&key, &key).sqrt() as f32;
        }
    }

    fn value_norms(&self, head: usize, tokens: Range<usize>, norms: &mut [f32]) {
        for (token, out) in tokens.zip(norms) {
            let value = self.value(head, token);
            *out = dot(&value, &value).sqrt() as f32;
        }
    }
}
