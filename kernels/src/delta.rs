//! Gated delta rule: attention whose memory is a matrix of constant size (Yang et al., arXiv 2412.06464; Qwen 3.5).
//!
//! ```text
//! S [dim, dim] of a head, per token:   S = decay S;   S = S + k (beta (v - S^T k))^T;   out = S^T q
//! ```
//!
//! `q` and `k` have length 1, and `q` is divided by the square root of `dim`. Before that, a short causal convolution
//! (`recurrent.rs`) with SiLU mixes every channel with its last values.

use std::ops::Range;

use crate::simd::{Lanes, by_level, simd_level};
use crate::threads::{SharedMut, for_each_range};
use crate::{RecurrentShape, RecurrentState, Stop, Stopped};

/// Heads of a layer with the delta rule. Value head `h` uses key head `h % key_heads`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaShape {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Elements of a query, key or value of one head.
    pub dim: usize,
    /// Taps of the convolution.
    pub taps: usize,
}

impl DeltaShape {
    /// Numbers of a token's queries, keys and values: `(2 key_heads + value_heads) dim`.
    pub fn channels(&self) -> usize {
        (2 * self.key_heads + self.value_heads) * self.dim
    }

    /// Numbers of a token's values.
    pub fn value_width(&self) -> usize {
        self.value_heads * self.dim
    }
}

/// Scales each query and key in `x [rows, channels]` to length 1, and queries by `dim^-1/2`. Lengths are at least `1e-3`.
pub fn normalise_queries_and_keys(shape: DeltaShape, x: &mut [f32]) {
    let (dim, heads) = (shape.dim, shape.key_heads);
    let to_query = 1.0 / (dim as f32).sqrt();
    for row in x.chunks_exact_mut(shape.channels()) {
        for (head, x) in row[..2 * heads * dim].chunks_exact_mut(dim).enumerate() {
            let squares: f32 = x.iter().map(|x| x * x).sum();
            let scale = 1.0 / (squares + 1e-6).sqrt();
            let scale = if head < heads {
                scale * to_query
            } else {
                scale
            };
            x.iter_mut().for_each(|x| *x *= scale);
        }
    }
}

/// The rule over `rows` tokens in order, all value heads in parallel.
pub struct DeltaRule<'a> {
    /// `[rows, channels]`: queries, keys and values of each token, queries and keys normalised.
    pub qkv: &'a [f32],
    /// `[rows, value_heads]`, from 0 to 1: what is left of the memory.
    pub decay: &'a [f32],
    /// `[rows, value_heads]`, from 0 to 1: how much of the memory at a key is replaced.
    pub beta: &'a [f32],
}

/// Writes `out [rows, value_heads, dim]` and updates the state's memory.
///
/// # Errors
/// [`Stopped`], after [`Stop::request`]; the state is then partly updated.
///
/// # Panics
/// If a length does not match or the state is not that of a delta rule.
pub fn delta_rule(
    task: &DeltaRule<'_>,
    state: &mut RecurrentState,
    out: &mut [f32],
    stop: &Stop,
) -> Result<(), Stopped> {
    let RecurrentShape::Delta(shape) = state.shape else {
        panic!("the layer has no delta rule");
    };
    let rows = task.qkv.len() / shape.channels();
    assert_eq!(
        task.qkv.len(),
        rows * shape.channels(),
        "qkv is [rows, channels]"
    );
    assert_eq!(
        task.decay.len(),
        rows * shape.value_heads,
        "decay is [rows, value_heads]"
    );
    assert_eq!(
        task.beta.len(),
        rows * shape.value_heads,
        "beta is [rows, value_heads]"
    );
    assert_eq!(
        out.len(),
        rows * shape.value_width(),
        "out is [rows, value_heads, dim]"
    );
    let level = simd_level();
    let (memory, out) = (SharedMut::new(&mut state.memory), SharedMut::new(out));
    let square = shape.dim * shape.dim;
    for_each_range(shape.value_heads, |heads| {
        for head in heads {
            // SAFETY: the level was detected; each head has its own memory and outputs.
            unsafe {
                let memory = memory.part(head * square..(head + 1) * square);
                one_head(level, task, shape, head, memory, &out, stop);
            }
        }
    });
    stop.check()
}

by_level! {
    /// # Safety
    /// The CPU supports the level's instructions, and no other thread accesses the head's memory and outputs.
    unsafe fn one_head(task: &DeltaRule<'_>, shape: DeltaShape, head: usize, memory: &mut [f32], out: &SharedMut<'_, f32>, stop: &Stop) = one_head_lanes;
}

#[inline(always)]
unsafe fn one_head_lanes<V: Lanes>(
    task: &DeltaRule<'_>,
    shape: DeltaShape,
    head: usize,
    memory: &mut [f32],
    out: &SharedMut<'_, f32>,
    stop: &Stop,
) {
    let DeltaShape {
        key_heads,
        value_heads,
        dim,
        ..
    } = shape;
    let rows = task.qkv.len() / shape.channels();
    for row in 0..rows {
        if row % 64 == 0 && stop.is_requested() {
            return;
        }
        let qkv = &task.qkv[row * shape.channels()..][..shape.channels()];
        let key_head = head % key_heads;
        let q = &qkv[key_head * dim..][..dim];
        let k = &qkv[(key_heads + key_head) * dim..][..dim];
        let v = &qkv[(2 * key_heads + head) * dim..][..dim];
        let (decay, beta) = (
            task.decay[row * value_heads + head],
            task.beta[row * value_heads + head],
        );
        let at = (row * value_heads + head) * dim;
        // SAFETY: guaranteed by the caller.
        let out = unsafe { out.part(at..at + dim) };
        let step = Step {
            q,
            k,
            v,
            decay,
            beta,
        };
        let mut first = 0;
        // SAFETY: columns `first..` of a square memory; the caller guarantees the level.
        unsafe {
            while first + 4 * V::N <= dim {
                step.columns::<V, 4>(first, memory, out);
                first += 4 * V::N;
            }
            while first + V::N <= dim {
                step.columns::<V, 1>(first, memory, out);
                first += V::N;
            }
        }
        step.rest(first..dim, memory, out);
    }
}

/// One token of one head.
struct Step<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    decay: f32,
    beta: f32,
}

impl Step<'_> {
    /// `ACROSS` vectors of columns of the memory, from column `first` on.
    ///
    /// # Safety
    /// The CPU supports the level of `V`; the columns exist.
    #[inline(always)]
    unsafe fn columns<V: Lanes, const ACROSS: usize>(
        &self,
        first: usize,
        memory: &mut [f32],
        out: &mut [f32],
    ) {
        let dim = self.k.len();
        // SAFETY: guaranteed by the caller.
        unsafe {
            let start = memory.as_mut_ptr().add(first);
            let mut seen = [V::splat(0.0); ACROSS];
            for (i, &k) in self.k.iter().enumerate() {
                let k = V::splat(k);
                for (v, seen) in seen.iter_mut().enumerate() {
                    *seen = V::load(start.add(i * dim + v * V::N)).mul_add(k, *seen);
                }
            }
            let (decay, beta) = (V::splat(self.decay), V::splat(self.beta));
            let mut change = [V::splat(0.0); ACROSS];
            for (v, (change, seen)) in change.iter_mut().zip(seen).enumerate() {
                let value = V::load(self.v.as_ptr().add(first + v * V::N));
                *change = value.sub(seen.mul(decay)).mul(beta);
            }
            let mut sums = [V::splat(0.0); ACROSS];
            for (i, (&k, &q)) in self.k.iter().zip(self.q).enumerate() {
                let (k, q) = (V::splat(k), V::splat(q));
                for (v, (sum, change)) in sums.iter_mut().zip(change).enumerate() {
                    let at = start.add(i * dim + v * V::N);
                    let new = change.mul_add(k, V::load(at).mul(decay));
                    new.store(at);
                    *sum = new.mul_add(q, *sum);
                }
            }
            for (v, sum) in sums.into_iter().enumerate() {
                sum.store(out.as_mut_ptr().add(first + v * V::N));
            }
        }
    }

    /// The columns that fill no vector, in plain loops: the specification.
    fn rest(&self, columns: Range<usize>, memory: &mut [f32], out: &mut [f32]) {
        let dim = self.k.len();
        for column in columns {
            let rows = (column..dim * dim).step_by(dim);
            let seen: f32 = self
                .k
                .iter()
                .zip(rows.clone())
                .map(|(k, at)| k * memory[at])
                .sum();
            let change = (self.v[column] - self.decay * seen) * self.beta;
            out[column] = 0.0;
            for ((k, q), at) in self.k.iter().zip(self.q).zip(rows) {
                memory[at] = self.decay * memory[at] + k * change;
                out[column] += q * memory[at];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SimdLevel, convolve};

    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let next = |i: usize| {
            let x = (i as u32).wrapping_mul(2_654_435_761).wrapping_add(seed);
            (x.wrapping_mul(0x9e37_79b9) >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(next).collect()
    }

    /// Every level, in chunks, against the plain loops over all columns at once.
    #[test]
    fn every_level_and_chunking_equals_the_plain_loops() {
        for (key_heads, value_heads, dim) in [(1, 1, 3), (2, 4, 16), (2, 2, 80), (1, 3, 128)] {
            let shape = DeltaShape {
                key_heads,
                value_heads,
                dim,
                taps: 4,
            };
            let rows = 9;
            let x = numbers(rows * shape.channels(), 1);
            let taps = numbers(4 * shape.channels(), 2);
            let unit = |x: f32| (x + 1.0) / 2.0;
            let decay: Vec<f32> = numbers(rows * value_heads, 3)
                .into_iter()
                .map(unit)
                .collect();
            let beta: Vec<f32> = numbers(rows * value_heads, 4)
                .into_iter()
                .map(unit)
                .collect();
            let run = |chunks: &[Range<usize>]| {
                let mut state = RecurrentState::new(RecurrentShape::Delta(shape));
                let mut all = Vec::new();
                for rows in chunks {
                    let part =
                        |x: &[f32], width: usize| x[rows.start * width..rows.end * width].to_vec();
                    let x = part(&x, shape.channels());
                    let mut qkv = vec![f32::NAN; x.len()];
                    convolve(&mut state, &taps, &x, &mut qkv);
                    normalise_queries_and_keys(shape, &mut qkv);
                    let mut out = vec![f32::NAN; rows.len() * shape.value_width()];
                    let task = DeltaRule {
                        qkv: &qkv,
                        decay: &part(&decay, value_heads),
                        beta: &part(&beta, value_heads),
                    };
                    delta_rule(&task, &mut state, &mut out, &Stop::new()).unwrap();
                    all.extend(out);
                }
                (all, state)
            };
            let expected = {
                let mut state = RecurrentState::new(RecurrentShape::Delta(shape));
                let mut qkv = vec![0.0; x.len()];
                convolve(&mut state, &taps, &x, &mut qkv);
                normalise_queries_and_keys(shape, &mut qkv);
                let mut out = vec![0.0; rows * shape.value_width()];
                for head in 0..value_heads {
                    let memory = &mut state.memory[head * dim * dim..][..dim * dim];
                    for row in 0..rows {
                        let qkv = &qkv[row * shape.channels()..];
                        let step = Step {
                            q: &qkv[head % key_heads * dim..][..dim],
                            k: &qkv[(key_heads + head % key_heads) * dim..][..dim],
                            v: &qkv[(2 * key_heads + head) * dim..][..dim],
                            decay: decay[row * value_heads + head],
                            beta: beta[row * value_heads + head],
                        };
                        let at = (row * value_heads + head) * dim;
                        step.rest(0..dim, memory, &mut out[at..at + dim]);
                    }
                }
                out
            };
            for level in SimdLevel::available() {
                level.with(|| {
                    let (whole, state) = run(&[0..4, 4..rows]);
                    for (found, expected) in whole.iter().zip(&expected) {
                        assert!((found - expected).abs() < 1e-5, "{level:?} {shape:?}");
                    }
                    let (chunks, after) = run(&[0..1, 1..3, 3..8, 8..rows]);
                    assert_eq!((chunks, after), (whole, state), "{level:?} {shape:?}");
                });
            }
        }
    }

    #[test]
    fn a_stop_is_heard() {
        let shape = DeltaShape {
            key_heads: 1,
            value_heads: 1,
            dim: 4,
            taps: 2,
        };
        let stop = Stop::new();
        stop.request();
        let task = DeltaRule {
            qkv: &[0.0; 12],
            decay: &[1.0],
            beta: &[1.0],
        };
        let mut state = RecurrentState::new(RecurrentShape::Delta(shape));
        assert!(delta_rule(&task, &mut state, &mut [0.0; 4], &stop).is_err());
    }
}
