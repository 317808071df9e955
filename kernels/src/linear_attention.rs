//! Linear attention: a head's memory is a matrix of constant size. The gated delta rule (Yang et al., arXiv 2412.06464;
//! Qwen 3.5), and the state space of Mamba-2 (Dao and Gu, arXiv 2405.21060; Granite 4).
//!
//! ```text
//! S [key_dim, value_dim] of a head, per token     delta rule:   S = decay S;   S = S + k (beta (v - S^T k))^T;   out = S^T q
//!                                                 state space:  S = decay S + k (beta v)^T;                     out = S^T q
//! ```
//!
//! In the delta rule `q` and `k` have norm 1, and `q` is divided by the square root of `key_dim`. Before both, a short
//! causal convolution (`recurrent.rs`) with SiLU mixes every channel with its last values.

mod shapes;

use std::ops::Range;

use shapes::Head;
pub use shapes::{DeltaShape, StateSpaceShape};

use crate::simd::{Lanes, by_level, simd_level};
use crate::threads::{SharedMut, for_each_range};
use crate::{RecurrentShape, RecurrentState, Stop, Stopped};

/// Scales each query and key in `x [rows, channels]` to norm 1, and queries by `dim^-1/2`. Norms are at least `1e-3`.
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

/// The rule over `rows` tokens in order, all heads in parallel.
pub struct LinearAttention<'a> {
    /// `[rows, channels]`, convolved. Of the delta rule queries, keys and values, queries and keys normalised; of a state
    /// space values, keys (input projections) and queries (output projections).
    pub channels: &'a [f32],
    /// `[rows, heads]`, from 0 to 1: what is left of the memory.
    pub decay: &'a [f32],
    /// `[rows, heads]`: how much of the memory at a key is replaced, from 0 to 1; of a state space the step, a factor on
    /// what is added.
    pub beta: &'a [f32],
}

/// Writes `out [rows, heads, value_dim]` and updates the state's memory.
///
/// # Errors
/// [`Stopped`], after [`Stop::request`]; the state is then partly updated.
///
/// # Panics
/// If a length does not match or the state is that of a convolution alone.
pub fn linear_attention(
    task: &LinearAttention<'_>,
    state: &mut RecurrentState,
    out: &mut [f32],
    stop: &Stop,
) -> Result<(), Stopped> {
    let shape = state.shape;
    let (heads, of_head) = (shape.heads(), shape.head(0));
    let rows = task.channels.len() / shape.channels();
    for (what, found, expected) in [
        ("channels", task.channels.len(), shape.channels()),
        ("decay", task.decay.len(), heads),
        ("beta", task.beta.len(), heads),
        ("out", out.len(), heads * of_head.value_dim),
    ] {
        assert_eq!(
            found,
            rows * expected,
            "{what} has {rows} rows of {expected}"
        );
    }
    let level = simd_level();
    let size = of_head.key_dim * of_head.value_dim;
    let (memory, out) = (SharedMut::new(&mut state.memory), SharedMut::new(out));
    for_each_range(heads, |heads| {
        for head in heads {
            // SAFETY: the level was detected; each head has its own memory and outputs.
            unsafe {
                let memory = memory.part(head * size..(head + 1) * size);
                one_head(level, task, shape, head, memory, &out, stop);
            }
        }
    });
    stop.check()
}

by_level! {
    /// # Safety
    /// The CPU supports the level's instructions, and no other thread accesses the head's memory and outputs.
    unsafe fn one_head(task: &LinearAttention<'_>, shape: RecurrentShape, head: usize, memory: &mut [f32], out: &SharedMut<'_, f32>, stop: &Stop) = one_head_lanes;
}

#[inline(always)]
unsafe fn one_head_lanes<V: Lanes>(
    task: &LinearAttention<'_>,
    shape: RecurrentShape,
    head: usize,
    memory: &mut [f32],
    out: &SharedMut<'_, f32>,
    stop: &Stop,
) {
    let (heads, of_head) = (shape.heads(), shape.head(head));
    let Head {
        key_dim, value_dim, ..
    } = of_head;
    let rows = task.channels.chunks_exact(shape.channels());
    for (row, channels) in rows.enumerate() {
        if row % 64 == 0 && stop.is_requested() {
            return;
        }
        let at = row * heads + head;
        let step = Step {
            q: &channels[of_head.query..][..key_dim],
            k: &channels[of_head.key..][..key_dim],
            v: &channels[of_head.value..][..value_dim],
            decay: task.decay[at],
            beta: task.beta[at],
            replaces: of_head.replaces,
        };
        // SAFETY: guaranteed by the caller.
        let out = unsafe { out.part(at * value_dim..(at + 1) * value_dim) };
        let mut first = 0;
        // SAFETY: columns `first..` of the memory; the caller guarantees the level.
        unsafe {
            while first + 4 * V::N <= value_dim {
                step.columns::<V, 4>(first, memory, out);
                first += 4 * V::N;
            }
            while first + V::N <= value_dim {
                step.columns::<V, 1>(first, memory, out);
                first += V::N;
            }
        }
        step.rest(first..value_dim, memory, out);
    }
}

/// One token of one head.
struct Step<'a> {
    /// `[key_dim]`
    q: &'a [f32],
    /// `[key_dim]`
    k: &'a [f32],
    /// `[value_dim]`
    v: &'a [f32],
    decay: f32,
    beta: f32,
    replaces: bool,
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
        let width = self.v.len();
        // SAFETY: guaranteed by the caller.
        unsafe {
            let start = memory.as_mut_ptr().add(first);
            let mut seen = [V::splat(0.0); ACROSS];
            if self.replaces {
                for (i, &k) in self.k.iter().enumerate() {
                    let k = V::splat(k);
                    for (v, seen) in seen.iter_mut().enumerate() {
                        *seen = V::load(start.add(i * width + v * V::N)).mul_add(k, *seen);
                    }
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
                    let at = start.add(i * width + v * V::N);
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
        let width = self.v.len();
        for column in columns {
            let rows = (column..self.k.len() * width).step_by(width);
            let products = self.k.iter().zip(rows.clone());
            let seen: f32 = match self.replaces {
                true => products.map(|(k, at)| k * memory[at]).sum(),
                false => 0.0,
            };
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

    const SHAPES: [RecurrentShape; 7] = [
        delta(1, 1, 3),
        delta(2, 4, 16),
        delta(2, 2, 80),
        delta(1, 3, 128),
        state_space(1, 3, 5, 7),
        state_space(2, 4, 16, 8),
        state_space(1, 2, 64, 128),
    ];

    const fn delta(key_heads: usize, value_heads: usize, dim: usize) -> RecurrentShape {
        RecurrentShape::Delta(DeltaShape {
            key_heads,
            value_heads,
            dim,
            taps: 4,
            grouped: false,
        })
    }

    const fn state_space(groups: usize, heads: usize, dim: usize, state: usize) -> RecurrentShape {
        RecurrentShape::StateSpace(StateSpaceShape {
            groups,
            heads,
            head_dim: dim,
            state,
            taps: 4,
        })
    }

    /// Every level, in chunks, against the plain loops over all columns at once.
    #[test]
    fn every_level_and_chunking_equals_the_plain_loops() {
        for shape in SHAPES {
            let (channels, heads, head) = (shape.channels(), shape.heads(), shape.head(0));
            let rows = 9;
            let x = numbers(rows * channels, 1);
            let taps = numbers(4 * channels, 2);
            let unit = |seed: u32| -> Vec<f32> {
                let all = numbers(rows * heads, seed).into_iter();
                all.map(|x| (x + 1.0) / 2.0).collect()
            };
            let (decay, beta) = (unit(3), unit(4));
            let convolved = |state: &mut RecurrentState, x: &[f32]| {
                let mut out = vec![f32::NAN; x.len()];
                convolve(state, &taps, x, &mut out);
                if let RecurrentShape::Delta(shape) = shape {
                    normalise_queries_and_keys(shape, &mut out);
                }
                out
            };
            let run = |chunks: &[Range<usize>]| {
                let mut state = RecurrentState::new(shape);
                let mut all = Vec::new();
                for rows in chunks {
                    let part =
                        |x: &[f32], width: usize| x[rows.start * width..rows.end * width].to_vec();
                    let mut out = vec![f32::NAN; rows.len() * heads * head.value_dim];
                    let task = LinearAttention {
                        channels: &convolved(&mut state, &part(&x, channels)),
                        decay: &part(&decay, heads),
                        beta: &part(&beta, heads),
                    };
                    linear_attention(&task, &mut state, &mut out, &Stop::new()).unwrap();
                    all.extend(out);
                }
                (all, state)
            };
            let expected = {
                let mut state = RecurrentState::new(shape);
                let convolved = convolved(&mut state, &x);
                let mut out = vec![0.0; rows * heads * head.value_dim];
                let size = head.key_dim * head.value_dim;
                for (which, memory) in state.memory.chunks_exact_mut(size).enumerate() {
                    let head = shape.head(which);
                    for (row, channels) in convolved.chunks_exact(channels).enumerate() {
                        let at = row * heads + which;
                        let step = Step {
                            q: &channels[head.query..][..head.key_dim],
                            k: &channels[head.key..][..head.key_dim],
                            v: &channels[head.value..][..head.value_dim],
                            decay: decay[at],
                            beta: beta[at],
                            replaces: head.replaces,
                        };
                        let out = &mut out[at * head.value_dim..][..head.value_dim];
                        step.rest(0..head.value_dim, memory, out);
                    }
                }
                out
            };
            for level in SimdLevel::available() {
                level.with(|| {
                    let (whole, state) = run(&[0..4, 4..rows]);
                    for (found, expected) in whole.iter().zip(&expected) {
                        assert!((found - expected).abs() < 1e-4, "{level:?} {shape:?}");
                    }
                    let (chunks, after) = run(&[0..1, 1..3, 3..8, 8..rows]);
                    assert_eq!((chunks, after), (whole, state), "{level:?} {shape:?}");
                });
            }
        }
    }

    #[test]
    fn stop_is_honoured() {
        let stop = Stop::new();
        stop.request();
        let task = LinearAttention {
            channels: &[0.0; 9],
            decay: &[1.0],
            beta: &[1.0],
        };
        let mut state = RecurrentState::new(delta(1, 1, 3));
        assert!(linear_attention(&task, &mut state, &mut [0.0; 3], &stop).is_err());
    }
}
