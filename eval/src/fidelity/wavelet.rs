//! How much the attention output of a query changes from token to token, at five scales (TreeKV, sections 3.2 and
//! 3.3, figure 2).
//!
//! The signal is `s[j] = a[j] * v[j]`: the attention of one query on position j times the value at j, one number per
//! position and element of the head. A Haar decomposition along j splits it into details; the detail of level l,
//! reconstructed alone, is constant on halves of blocks of `2^l` positions, so its magnitude needs no transform:
//!
//! ```text
//! level 2      | s0 s1 | s2 s3 |        |Rec(D_2)| = |(s0 + s1) - (s2 + s3)| / 4   on all four
//! level 1      | s0 | s1 |              |Rec(D_1)| = |s0 - s1| / 2                 on both
//! ```

use serde::{Deserialize, Serialize};

/// Levels of the decomposition: level 1 is the highest frequency.
pub const LEVELS: usize = 5;

/// Positions left out at both ends, as in the paper: sinks and the most recent tokens would hide the rest.
pub const MARGIN: usize = 32;

/// The most points of the figure; adjacent positions are averaged.
const POINTS: usize = 128;

/// Mean magnitude of each level's detail by position.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct WaveletFigures {
    /// Tokens that the query attends to.
    pub tokens: usize,
    /// Position of the first value: [`MARGIN`], or 0 if the text is too short for margins.
    pub first: usize,
    /// Positions averaged into one value; the last value may average fewer.
    pub positions_per_point: usize,
    /// `[levels][points]`, from level 1 (adjacent positions) to level 5 (blocks of 32).
    pub levels: Vec<Vec<f64>>,
}

/// Accumulates magnitudes over layers, heads and elements.
pub(crate) struct WaveletSums {
    /// `[LEVELS][whole]`
    sums: Vec<Vec<f64>>,
    tokens: usize,
    /// Number of positions in whole blocks of the largest level; the remainder is among the last [`MARGIN`] tokens.
    whole: usize,
    signals: usize,
}

impl WaveletSums {
    /// Empty sums for a query that attends to `tokens` positions.
    pub(crate) fn new(tokens: usize) -> Self {
        let whole = tokens - tokens % (1 << LEVELS);
        Self {
            sums: vec![vec![0.0; whole]; LEVELS],
            tokens,
            whole,
            signals: 0,
        }
    }

    /// Adds one query head: `attention [tokens]` over `values [tokens or more, dim]`.
    pub(crate) fn add(&mut self, attention: &[f32], values: &[f32], dim: usize) {
        let mut signal = vec![0.0f64; self.whole];
        for element in 0..dim {
            for (j, s) in signal.iter_mut().enumerate() {
                *s = f64::from(attention[j]) * f64::from(values[j * dim + element]);
            }
            for (level, sums) in self.sums.iter_mut().enumerate() {
                add_magnitudes(&signal, level + 1, sums);
            }
        }
        self.signals += dim;
    }

    /// The means, or `None` if the text is shorter than one block.
    pub(crate) fn figures(&self) -> Option<WaveletFigures> {
        if self.whole == 0 || self.signals == 0 {
            return None;
        }
        let (first, end) = if self.tokens > 3 * MARGIN {
            (MARGIN, self.whole.min(self.tokens - MARGIN))
        } else {
            (0, self.whole)
        };
        let per_point = (end - first).div_ceil(POINTS);
        let points = |sums: &Vec<f64>| {
            let parts = sums[first..end].chunks(per_point);
            parts
                .map(|part| part.iter().sum::<f64>() / (part.len() * self.signals) as f64)
                .collect()
        };
        Some(WaveletFigures {
            tokens: self.tokens,
            first,
            positions_per_point: per_point,
            levels: self.sums.iter().map(points).collect(),
        })
    }
}

/// Adds the magnitude of the detail of `level` to `sums`; both lengths are multiples of `2^level`.
fn add_magnitudes(signal: &[f64], level: usize, sums: &mut [f64]) {
    let (block, half) = (1 << level, 1 << (level - 1));
    for (signal, sums) in signal.chunks_exact(block).zip(sums.chunks_exact_mut(block)) {
        let (left, right) = signal.split_at(half);
        let difference = left.iter().sum::<f64>() - right.iter().sum::<f64>();
        let magnitude = difference.abs() / block as f64;
        sums.iter_mut().for_each(|sum| *sum += magnitude);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's filters, step by step: decompose with (sqrt2/2, sqrt2/2) and (-sqrt2/2, sqrt2/2), reconstruct from
    /// one level.
    fn by_the_formulas(signal: &[f64], level: usize) -> Vec<f64> {
        let root = 0.5f64.sqrt();
        let mut approximation = signal.to_vec();
        let mut detail = Vec::new();
        for _ in 0..level {
            let pairs = || approximation.chunks_exact(2);
            detail = pairs().map(|p| root * (p[0] - p[1])).collect::<Vec<_>>();
            approximation = pairs().map(|p| root * (p[0] + p[1])).collect();
        }
        // R(0, D), then R(., 0) up to the signal's length.
        let mut back: Vec<f64> = detail.iter().flat_map(|d| [root * d, -root * d]).collect();
        for _ in 1..level {
            back = back.iter().flat_map(|a| [root * a, root * a]).collect();
        }
        back
    }

    #[test]
    fn magnitudes_match_the_papers_filters() {
        let signal: Vec<f64> = (0..64)
            .map(|j| f64::from((j * 37 + 11) % 23) - 9.0)
            .collect();
        for level in 1..=LEVELS {
            let mut sums = vec![0.0; 64];
            add_magnitudes(&signal, level, &mut sums);
            for (ours, theirs) in sums.iter().zip(by_the_formulas(&signal, level)) {
                assert!((ours - theirs.abs()).abs() < 1e-12, "level {level}");
            }
        }
    }

    /// numpy: s = [1, 3, 0, 8]; |s0 - s1| / 2 = 1, |s2 - s3| / 2 = 4, |(s0 + s1) - (s2 + s3)| / 4 = 1
    #[test]
    fn wavelet_matches_hand_computation() {
        let mut first = vec![0.0; 4];
        add_magnitudes(&[1.0, 3.0, 0.0, 8.0], 1, &mut first);
        assert_eq!(first, [1.0, 1.0, 4.0, 4.0]);
        let mut second = vec![0.0; 4];
        add_magnitudes(&[1.0, 3.0, 0.0, 8.0], 2, &mut second);
        assert_eq!(second, [1.0; 4]);
    }

    #[test]
    fn figures_skip_ends_and_average_neighbours() {
        let mut sums = WaveletSums::new(1000);
        // A difference between adjacent tokens that grows with the position.
        let attention: Vec<f32> = (0..1000).map(|j| j as f32 * (j % 2) as f32).collect();
        sums.add(&attention, &[1.0; 1000], 1);
        let figures = sums.figures().expect("long enough");
        assert_eq!((figures.first, figures.positions_per_point), (32, 8));
        assert_eq!(figures.levels.len(), LEVELS);
        assert_eq!(figures.levels[0].len(), (968 - 32) / 8);
        // Positions 32 to 39: odd positions 33, 35, 37, 39, half of each on two positions.
        assert_eq!(figures.levels[0][0], 18.0);
        assert!(figures.levels[0].is_sorted());
        assert!(WaveletSums::new(31).figures().is_none());
    }
}
