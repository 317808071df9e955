//! Computations of methods on keys and values in host memory, and the threads on which methods run.

use std::ops::Range;

use kept_kernels::{nearest_by_cosine, quadratic_forms, softmax, threads};
use kept_policies::{BilinearForm, Parallel, PromptRows};

/// The threads of the kernels.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pool;

impl Parallel for Pool {
    fn for_each(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        threads::for_each(count, work);
    }
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

/// Tokens per part of [`norms_of`]: a part of the output fits into the L1 cache.
const PART: usize = 2048;

impl<'a> HostRows<'a> {
    /// Keys and values of one KV head, `[rows, head_dim]` each.
    fn of_head(&self, head: usize) -> [&'a [f32]; 2] {
        let size = self.keys.len() / self.kv_heads;
        [self.keys, self.values].map(|rows| &rows[head * size..][..size])
    }

    /// The rows `tokens` of `side [rows, head_dim]`, keys or values.
    fn rows(&self, side: &'a [f32], tokens: Range<usize>) -> &'a [f32] {
        &side[tokens.start * self.head_dim..tokens.end * self.head_dim]
    }
}

/// Writes the norm of each row of `rows [.., dim]` to `norms [..]`, on all threads.
fn norms_of(rows: &[f32], dim: usize, norms: &mut [f32]) {
    let mut rows: Vec<&[f32]> = rows.chunks(PART * dim).collect();
    let mut norms: Vec<&mut [f32]> = norms.chunks_mut(PART).collect();
    threads::for_each_pair(&mut rows, &mut norms, |_, rows, norms| {
        for (row, norm) in rows.chunks_exact(dim).zip(norms.iter_mut()) {
            *norm = row.iter().map(|x| x * x).sum::<f32>().sqrt();
        }
    });
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

    fn cosine_to_mean(&self, head: usize, document: usize, cosines: &mut [f32]) {
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
        for (key, cosine) in keys.chunks_exact(dim).zip(cosines) {
            let dot: f64 = key.iter().zip(&mean).map(|(&x, m)| f64::from(x) * m).sum();
            *cosine = (dot / of_key(key) / mean_length) as f32;
        }
    }

    fn bilinear_forms(
        &self,
        head: usize,
        tokens: Range<usize>,
        form: BilinearForm<'_>,
        out: &mut [f32],
    ) {
        let [keys, _] = self.of_head(head);
        quadratic_forms(self.rows(keys, tokens), form.linear, form.matrix, out);
    }

    fn softmax(&self, logits: &mut [f32]) {
        softmax(logits);
    }

    fn key_norms(&self, head: usize, tokens: Range<usize>, norms: &mut [f32]) {
        let [keys, _] = self.of_head(head);
        norms_of(self.rows(keys, tokens), self.head_dim, norms);
    }

    fn value_norms(&self, head: usize, tokens: Range<usize>, norms: &mut [f32]) {
        let [_, values] = self.of_head(head);
        norms_of(self.rows(values, tokens), self.head_dim, norms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_works_on_every_item_once() {
        for count in [0, 1, 9, 1000] {
            let seen: Vec<_> = (0..count).map(|_| std::sync::Mutex::new(0)).collect();
            Pool.for_each(count, &|item| *seen[item].lock().expect("one thread") += 1);
            assert!(seen.iter().all(|seen| *seen.lock().expect("done") == 1));
        }
    }

    #[test]
    fn norms_are_those_of_the_tokens_asked_for() {
        let (heads, count, dim) = (2, 2 * PART + 7, 3);
        let drawn = |factor: usize| -> Vec<f32> {
            let number = |i: usize| (i * factor % 101) as f32 - 50.0;
            (0..heads * count * dim).map(number).collect()
        };
        let (keys, values) = (drawn(7), drawn(13));
        let rows = HostRows {
            keys: &keys,
            values: &values,
            kv_heads: heads,
            head_dim: dim,
        };
        for (head, tokens) in [(0, 0..count), (1, 5..count - 2), (1, 3..4), (0, 9..9)] {
            let mut norms = [vec![0.0; tokens.len()], vec![0.0; tokens.len()]];
            rows.key_norms(head, tokens.clone(), &mut norms[0]);
            rows.value_norms(head, tokens.clone(), &mut norms[1]);
            for (all, norms) in [&keys, &values].into_iter().zip(&norms) {
                for (token, norm) in tokens.clone().zip(norms) {
                    let row = &all[(head * count + token) * dim..][..dim];
                    let sum: f32 = row.iter().map(|x| x * x).sum();
                    assert_eq!(*norm, sum.sqrt(), "head {head}, token {token}");
                }
            }
        }
    }
}
