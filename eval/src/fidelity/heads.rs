//! How much each KV head could be compressed: sparsity and redundancy (EMS, section 4.1, equations 3 to 5, figure 3b).
//!
//! Measured on the full cache, independent of the compared methods. Keys are taken before RoPE, as in the paper.

use serde::{Deserialize, Serialize};

/// Share of the total score that the important tokens must reach (zeta in the paper's figure 3).
pub const SCORE_SHARE: f64 = 0.95;

/// Similarity from which a token counts as redundant (tau in the paper's figure 3).
pub const SIMILAR: f32 = 0.6;

/// The most tokens compared with all earlier tokens; of longer prompts an evenly spaced sample.
pub const PROBED: usize = 1024;

/// One KV head of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct HeadFigures {
    /// 1 minus the smallest share of tokens that together hold [`SCORE_SHARE`] of the global-local score.
    pub sparsity: f64,
    /// Share of tokens for which an earlier token has a product of key and value cosines of at least [`SIMILAR`].
    pub redundancy: f64,
}

/// Equation 3: one minus the smallest share of the tokens whose scores make up `share` of the total.
pub fn sparsity(scores: &[f32], share: f64) -> f64 {
    let mut sorted: Vec<f64> = scores.iter().map(|&s| f64::from(s)).collect();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let goal = share * sorted.iter().sum::<f64>();
    let mut reached = 0.0;
    let needed = sorted.iter().take_while(|&&score| {
        let short = reached < goal;
        reached += score;
        short
    });
    1.0 - needed.count().max(1) as f64 / scores.len() as f64
}

/// Equations 4 and 5: the share of tokens with an earlier token for which `cos(k_i, k_j) * cos(v_i, v_j) >= similar`.
///
/// `keys` and `values` are `[tokens, dim]`, keys before RoPE; they are normalised in place. At most `probed` tokens
/// are compared, evenly spaced, each with all tokens before it.
pub fn redundancy(
    keys: &mut [f32],
    values: &mut [f32],
    dim: usize,
    similar: f32,
    probed: usize,
) -> f64 {
    for rows in [&mut *keys, &mut *values] {
        rows.chunks_exact_mut(dim).for_each(to_unit_length);
    }
    let tokens = keys.len() / dim;
    let probes = tokens.min(probed).max(1);
    let redundant = (0..probes).filter(|probe| {
        let i = probe * tokens / probes;
        let (key, value) = (&keys[i * dim..][..dim], &values[i * dim..][..dim]);
        // Nearest first: similar tokens are mostly close.
        let mut earlier = keys[..i * dim]
            .chunks_exact(dim)
            .zip(values[..i * dim].chunks_exact(dim))
            .rev();
        earlier.any(|(k, v)| dot(key, k) * dot(value, v) >= similar)
    });
    redundant.count() as f64 / probes as f64
}

/// A row of zeros stays zero, with a similarity of 0 to all rows.
fn to_unit_length(row: &mut [f32]) {
    let length = dot(row, row).sqrt();
    if length > 0.0 {
        row.iter_mut().for_each(|x| *x /= length);
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    // Eight partial sums, so that the compiler can vectorise.
    let mut sums = [0.0f32; 8];
    let (left, right) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f32 = left
        .remainder()
        .iter()
        .zip(right.remainder())
        .map(|(x, y)| x * y)
        .sum();
    for (x, y) in left.zip(right) {
        for lane in 0..8 {
            sums[lane] += x[lane] * y[lane];
        }
    }
    rest + sums.iter().sum::<f32>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparsity_matches_hand_computation() {
        // 6 + 3 of 10 reach 90 %: two of four tokens.
        assert_eq!(sparsity(&[3.0, 0.5, 6.0, 0.5], 0.9), 0.5);
        assert_eq!(sparsity(&[1.0; 4], 0.95), 0.0);
        assert_eq!(sparsity(&[0.0, 9.0, 0.0, 0.0], 0.95), 0.75);
    }

    #[test]
    fn redundancy_matches_hand_computation() {
        // Token 1 repeats token 0; token 2 has the same key but another value; token 3 has the same value but the
        // opposite key.
        let keys = [2.0, 0.0, 1.0, 0.0, 5.0, 0.0, -1.0, 0.0];
        let values = [0.0, 1.0, 0.0, 3.0, 1.0, 0.0, 0.0, 1.0];
        let found = |similar| redundancy(&mut keys.clone(), &mut values.clone(), 2, similar, 100);
        assert_eq!(found(0.6), 0.25);
        assert_eq!(found(-1.0), 0.75, "the first token has none before it");
        assert_eq!(found(1.5), 0.0);
    }

    #[test]
    fn redundancy_samples_long_prompts_evenly() {
        let mut keys = vec![1.0f32; 100 * 8];
        let mut values = keys.clone();
        // Tokens 0, 10, ... 90: all but the first have a similar earlier token.
        assert_eq!(redundancy(&mut keys, &mut values, 8, 0.6, 10), 0.9);
    }
}
