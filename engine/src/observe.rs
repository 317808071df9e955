//! Measurements of one layer that only some methods ask for: weighted windows, counts of low scores, expected queries.
//!
//! Not here: the plain window and the column sums (`kept_kernels::window_scores` gives them directly), and any decision.

use kept_kernels::{
    HeadShape, Normalise, RowStore, Scale, Stop, Stopped, WindowScores, window_scores,
};
use kept_models::RopeTable;
use kept_policies::{Future, FutureQueries, Ramp};

/// The last queries of a prompt, and all its keys.
#[derive(Debug, Clone, Copy)]
pub struct LastQueries<'a> {
    /// Heads of the layer.
    pub shape: HeadShape,
    /// From dot products to logits.
    pub scale: Scale,
    /// `[rows, q_heads, head_dim]`, rotated: the last rows of the prompt.
    pub queries: &'a [f32],
    /// Rotated keys, row == position.
    pub keys: &'a RowStore,
    /// Prompt length n.
    pub tokens: usize,
}

impl<'a> LastQueries<'a> {
    /// The last `rows` of these queries.
    pub fn last(&self, rows: usize) -> &'a [f32] {
        let width = self.shape.q_heads * self.shape.head_dim;
        &self.queries[self.queries.len() - rows * width..]
    }

    fn scores(
        &self,
        queries: &[f32],
        tokens: usize,
        weights: Option<&[f32]>,
        out: &mut Vec<f32>,
        stop: &Stop,
    ) -> Result<(), Stopped> {
        out.clear();
        out.resize(self.shape.q_heads * tokens, 0.0);
        let task = WindowScores {
            shape: self.shape,
            scale: self.scale,
            queries,
            keys: self.keys,
            tokens,
            normalise: Normalise::All,
            row_weights: weights,
        };
        window_scores(&task, out, stop)
    }

    /// Writes `out [q_heads, n]`: what the last rows see, the newest weighing most ([`Ramp`]).
    ///
    /// # Errors
    /// When `stop` was requested.
    pub fn ramp(&self, ramp: Ramp, out: &mut Vec<f32>, stop: &Stop) -> Result<(), Stopped> {
        let last = (ramp.rows - 1).max(1) as f32;
        let weights: Vec<f32> = (0..ramp.rows)
            .map(|row| (1.0 + (ramp.newest - 1.0) * row as f32 / last) / ramp.rows as f32)
            .collect();
        self.scores(self.last(ramp.rows), self.tokens, Some(&weights), out, stop)
    }

    /// Writes `bits [kv_heads, n, words]` as [`BelowAverage`](kept_policies::BelowAverage) describes them, for the last `rows` queries. `seen` is scratch for
    /// one row's probabilities, `[q_heads, n]` at most.
    ///
    /// # Errors
    /// When `stop` was requested.
    pub fn below(
        &self,
        rows: usize,
        seen: &mut Vec<f32>,
        bits: &mut Vec<u64>,
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let shape = self.shape;
        let words = rows.div_ceil(u64::BITS as usize);
        bits.clear();
        bits.resize(shape.kv_heads * self.tokens * words, 0);
        let width = shape.q_heads * shape.head_dim;
        for (row, query) in self.last(rows).chunks_exact(width).enumerate() {
            let visible = self.tokens - rows + row + 1;
            self.scores(query, visible, None, seen, stop)?;
            // The group's sum is compared instead of its mean.
            let average = shape.group() as f32 / visible as f32;
            let groups = seen.chunks_exact(shape.group() * visible);
            for (head, group) in groups.enumerate() {
                for key in 0..visible {
                    let sum: f32 = group.iter().skip(key).step_by(visible).sum();
                    if sum < average {
                        let word = (head * self.tokens + key) * words + row / u64::BITS as usize;
                        bits[word] |= 1 << (row % u64::BITS as usize);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Mean and covariance of queries before RoPE, added up row by row in f64.
#[derive(Debug, Default)]
pub struct QueryMoments {
    shape: Option<HeadShape>,
    rows: usize,
    /// `[q_heads, head_dim]`
    sums: Vec<f64>,
    /// `[q_heads, head_dim, head_dim]`, lower triangle; empty where no covariance is wanted.
    products: Vec<f64>,
    mean: Vec<f32>,
    covariance: Vec<f32>,
}

impl QueryMoments {
    /// Floats (4 bytes) that all of it takes.
    pub fn floats(shape: HeadShape, covariance: bool) -> usize {
        let columns = shape.head_dim * usize::from(covariance) + 1;
        3 * shape.q_heads * shape.head_dim * columns
    }

    /// Forgets everything; for `future` of a layer with these heads.
    pub fn start(&mut self, shape: HeadShape, future: Future) {
        let (mean, square) = (
            shape.q_heads * shape.head_dim,
            shape.q_heads * shape.head_dim * shape.head_dim * usize::from(future.covariance),
        );
        self.shape = Some(shape);
        self.rows = 0;
        for (numbers, len) in [(&mut self.sums, mean), (&mut self.products, square)] {
            numbers.clear();
            numbers.resize(len, 0.0);
        }
        for (numbers, len) in [(&mut self.mean, mean), (&mut self.covariance, square)] {
            numbers.clear();
            numbers.resize(len, 0.0);
        }
    }

    /// Adds `queries [rows, q_heads, head_dim]` before RoPE.
    pub fn add(&mut self, queries: &[f32]) {
        let Some(shape) = self.shape else { return };
        let dim = shape.head_dim;
        for row in queries.chunks_exact(shape.q_heads * dim) {
            self.rows += 1;
            self.sums
                .iter_mut()
                .zip(row)
                .for_each(|(s, x)| *s += f64::from(*x));
            let squares = self.products.chunks_exact_mut(dim * dim);
            for (square, q) in squares.zip(row.chunks_exact(dim)) {
                for (i, line) in square.chunks_exact_mut(dim).enumerate() {
                    let x = f64::from(q[i]);
                    let line = &mut line[..=i];
                    line.iter_mut()
                        .zip(q)
                        .for_each(|(s, y)| *s += x * f64::from(*y));
                }
            }
        }
    }

    /// The statistics, turned by `turn` where the model rotates.
    pub fn finish(&mut self, turn: Option<&AverageTurn>) -> Option<FutureQueries<'_>> {
        let shape = self.shape?;
        let (dim, n) = (shape.head_dim, self.rows.max(1) as f64);
        for (mean, sum) in self.mean.iter_mut().zip(&self.sums) {
            *mean = (sum / n) as f32;
        }
        let heads = self.covariance.chunks_exact_mut(dim * dim);
        for (head, (covariance, products)) in
            heads.zip(self.products.chunks_exact(dim * dim)).enumerate()
        {
            let sums = &self.sums[head * dim..][..dim];
            for i in 0..dim {
                for j in 0..=i {
                    let value = products[i * dim + j] / n - sums[i] / n * (sums[j] / n);
                    covariance[i * dim + j] = value as f32;
                    covariance[j * dim + i] = value as f32;
                }
            }
        }
        if let Some(turn) = turn {
            turn.rows(&mut self.mean, dim);
            // R C R^T: turn every row of C, transpose (C is symmetric), turn every row again.
            for covariance in self.covariance.chunks_exact_mut(dim * dim) {
                turn.rows(covariance, dim);
                for i in 0..dim {
                    for j in 0..i {
                        covariance.swap(i * dim + j, j * dim + i);
                    }
                }
                turn.rows(covariance, dim);
            }
        }
        Some(FutureQueries {
            mean: &self.mean,
            covariance: (!self.covariance.is_empty()).then_some(self.covariance.as_slice()),
        })
    }
}

/// The mean of the rotations at the positions after a prompt.
#[derive(Debug)]
pub struct AverageTurn {
    cos: Vec<f32>,
    sin: Vec<f32>,
    pairing: kept_kernels::Pairing,
}

impl AverageTurn {
    /// Over `positions` positions from `first` on.
    pub fn new(rope: &RopeTable, first: usize, positions: usize) -> Self {
        let pairs = rope.pairs();
        let (mut cos, mut sin) = (vec![0.0f32; pairs], vec![0.0f32; pairs]);
        let mut sums = vec![(0.0f64, 0.0f64); pairs];
        for position in first..first + positions {
            rope.fill(position, &mut cos, &mut sin);
            for (sum, (c, s)) in sums.iter_mut().zip(cos.iter().zip(&sin)) {
                sum.0 += f64::from(*c);
                sum.1 += f64::from(*s);
            }
        }
        let count = positions.max(1) as f64;
        Self {
            cos: sums.iter().map(|sum| (sum.0 / count) as f32).collect(),
            sin: sums.iter().map(|sum| (sum.1 / count) as f32).collect(),
            pairing: rope.pairing(),
        }
    }

    /// Turns every row of `x [rows, head_dim]`.
    fn rows(&self, x: &mut [f32], head_dim: usize) {
        let rows = x.len() / head_dim;
        kept_kernels::rotate(x, rows, head_dim, &self.cos, &self.sin, self.pairing);
    }
}

/// Everything of this file that one layer's measuring needs, made once.
#[derive(Debug, Default)]
pub struct Measured {
    /// `[q_heads, n]`
    pub ramp: Vec<f32>,
    /// `[q_heads, n]`: one row's probabilities.
    pub seen: Vec<f32>,
    /// `[kv_heads, n, words]`
    pub bits: Vec<u64>,
    /// The queries so far.
    pub moments: QueryMoments,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: HeadShape = HeadShape {
        q_heads: 2,
        kv_heads: 1,
        head_dim: 2,
    };

    #[test]
    fn moments_are_mean_and_covariance() {
        let mut moments = QueryMoments::default();
        let future = Future {
            skip: 0,
            positions: 1,
            covariance: true,
        };
        moments.start(SHAPE, future);
        moments.add(&[1.0, 2.0, 0.0, 0.0]);
        moments.add(&[3.0, 8.0, 0.0, 0.0]);
        let found = moments.finish(None).expect("started");
        assert_eq!(found.mean, [2.0, 5.0, 0.0, 0.0]);
        assert_eq!(
            found.covariance.expect("asked for")[..4],
            [1.0, 3.0, 3.0, 9.0]
        );
    }

    #[test]
    fn low_scores_are_counted_row_by_row() {
        // Keys along one axis: the first query sees key 0 more than key 1, the second sees all of three keys equally.
        let mut keys = RowStore::uniform(1, 3, 2);
        keys.row_mut(0, 0).copy_from_slice(&[4.0, 0.0]);
        let last = LastQueries {
            shape: SHAPE,
            scale: 1.0.into(),
            queries: &[1.0, 0.0, 1.0, 0.0, -1.0, 0.0, -1.0, 0.0],
            keys: &keys,
            tokens: 3,
        };
        let (mut seen, mut bits) = (Vec::new(), Vec::new());
        last.below(2, &mut seen, &mut bits, &Stop::new())
            .expect("not stopped");
        assert_eq!(bits, [0b10, 0b01, 0b00], "key 2 is not there for row 0");
    }

    #[test]
    fn a_ramp_weighs_the_newest_row_most() {
        let keys = RowStore::uniform(1, 4, 2);
        let last = LastQueries {
            shape: SHAPE,
            scale: 1.0.into(),
            queries: &[0.0; 12],
            keys: &keys,
            tokens: 4,
        };
        let ramp = Ramp {
            rows: 3,
            newest: 1.2,
        };
        let mut out = Vec::new();
        last.ramp(ramp, &mut out, &Stop::new())
            .expect("not stopped");
        let expected = (1.0 / 2.0 + 1.1 / 3.0 + 1.2 / 4.0) / 3.0;
        assert!((out[0] - expected).abs() < 1e-6, "{out:?}");
        assert!((out[3] - 1.2 / 4.0 / 3.0).abs() < 1e-6, "{out:?}");
    }
}
