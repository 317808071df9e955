//! Expected queries after a prompt: statistics of the prompt's queries, rotated to future positions.

use kept_kernels::{HeadShape, add_gram};
use kept_models::RopeTable;
use kept_policies::{ExpectedQueries, ExpectedQueriesRequest};

/// Mean and covariance of queries before RoPE. Sums are f64; products are summed in f32 within a chunk.
#[derive(Debug, Default)]
pub struct QueryMoments {
    shape: Option<HeadShape>,
    rows: usize,
    /// `[q_heads, head_dim]`
    sums: Vec<f64>,
    /// `[q_heads, head_dim, head_dim]`, lower triangle; empty without covariance.
    products: Vec<f64>,
    mean: Vec<f32>,
    covariance: Vec<f32>,
}

impl QueryMoments {
    /// Size of all buffers in floats (4 bytes).
    pub fn floats(shape: HeadShape, covariance: bool) -> usize {
        let columns = shape.head_dim * usize::from(covariance) + 1;
        3 * shape.q_heads * shape.head_dim * columns
    }

    /// Resets everything for `request` in a layer with these heads.
    pub fn start(&mut self, shape: HeadShape, request: ExpectedQueriesRequest) {
        let (mean, square) = (
            shape.q_heads * shape.head_dim,
            shape.q_heads * shape.head_dim * shape.head_dim * usize::from(request.covariance),
        );
        self.shape = Some(shape);
        self.rows = 0;
        for (elements, len) in [(&mut self.sums, mean), (&mut self.products, square)] {
            elements.clear();
            elements.resize(len, 0.0);
        }
        for (elements, len) in [(&mut self.mean, mean), (&mut self.covariance, square)] {
            elements.clear();
            elements.resize(len, 0.0);
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
        }
        if !self.products.is_empty() {
            add_gram(queries, shape.q_heads, dim, &mut self.products);
        }
    }

    /// Adds `rows` rows. `with` adds their sums to those of the queries, `[q_heads, head_dim]`, and of the
    /// products, `[q_heads, head_dim, head_dim]`, lower triangles, empty without covariance.
    pub(super) fn add_sums<E>(
        &mut self,
        rows: usize,
        with: impl FnOnce(&mut [f64], &mut [f64]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.rows += rows;
        with(&mut self.sums, &mut self.products)
    }

    /// The sums so far: `[q_heads, head_dim]`, then the lower triangles of the products.
    pub(super) fn sums(&self) -> Vec<f64> {
        let mut all = self.sums.clone();
        let dim = self.shape.map_or(1, |shape| shape.head_dim);
        for square in self.products.chunks_exact(dim * dim) {
            for (i, line) in square.chunks_exact(dim).enumerate() {
                all.extend_from_slice(&line[..=i]);
            }
        }
        all
    }

    /// Sets the sums over `rows` rows, as returned by [`QueryMoments::sums`].
    ///
    /// # Panics
    /// If the sums have a different shape.
    pub(super) fn restore(&mut self, rows: usize, sums: &[f64]) {
        self.rows = rows;
        let (means, mut triangles) = sums.split_at(self.sums.len());
        self.sums.copy_from_slice(means);
        let dim = self.shape.map_or(1, |shape| shape.head_dim);
        for square in self.products.chunks_exact_mut(dim * dim) {
            for (i, line) in square.chunks_exact_mut(dim).enumerate() {
                let (own, rest) = triangles.split_at(i + 1);
                line[..=i].copy_from_slice(own);
                triangles = rest;
            }
        }
        assert!(triangles.is_empty(), "sums of the same shape");
    }

    /// Computes the statistics; if the model rotates the layer, rotated, and with the factors on queries of its table.
    pub fn finish(
        &mut self,
        rotation: Option<(&MeanRotation, &RopeTable)>,
    ) -> Option<ExpectedQueries<'_>> {
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
        if let Some((rotation, rope)) = rotation {
            rotation.rows(rope, &mut self.mean, dim);
            // R C R^T: rotate every row of C, transpose (C is symmetric), rotate every row again.
            for covariance in self.covariance.chunks_exact_mut(dim * dim) {
                rotation.rows(rope, covariance, dim);
                for i in 0..dim {
                    for j in 0..i {
                        covariance.swap(i * dim + j, j * dim + i);
                    }
                }
                rotation.rows(rope, covariance, dim);
            }
        }
        Some(self.found())
    }

    /// The last result of [`QueryMoments::finish`].
    pub(super) fn found(&self) -> ExpectedQueries<'_> {
        ExpectedQueries {
            mean: &self.mean,
            covariance: (!self.covariance.is_empty()).then_some(self.covariance.as_slice()),
        }
    }

    /// Floats of one row of queries.
    pub(super) fn width(&self) -> usize {
        self.shape.map_or(0, |shape| shape.q_heads * shape.head_dim)
    }
}

/// The mean of the RoPE rotations at the positions after a prompt.
#[derive(Debug)]
pub struct MeanRotation {
    cos: Vec<f32>,
    sin: Vec<f32>,
    pairing: kept_kernels::Pairing,
}

impl MeanRotation {
    /// Over `positions` positions from `first` on.
    pub fn new(rope: &RopeTable, first: usize, positions: usize) -> Self {
        let pairs = rope.pairs();
        let (mut cos, mut sin) = (vec![0.0f32; pairs], vec![0.0f32; pairs]);
        let mut sums = vec![(0.0f64, 0.0f64); pairs];
        for position in first..first + positions {
            rope.fill(position, &mut cos, &mut sin);
            let scale = f64::from(rope.query_scale(position));
            for (sum, (c, s)) in sums.iter_mut().zip(cos.iter().zip(&sin)) {
                sum.0 += scale * f64::from(*c);
                sum.1 += scale * f64::from(*s);
            }
        }
        let count = positions.max(1) as f64;
        Self {
            cos: sums.iter().map(|sum| (sum.0 / count) as f32).collect(),
            sin: sums.iter().map(|sum| (sum.1 / count) as f32).collect(),
            pairing: rope.pairing(),
        }
    }

    /// Rotates every row of `x [rows, head_dim]` and applies a layer's factors on rotated queries.
    fn rows(&self, rope: &RopeTable, x: &mut [f32], head_dim: usize) {
        let rows = x.len() / head_dim;
        kept_kernels::rotate(x, rows, head_dim, &self.cos, &self.sin, self.pairing);
        rope.scale_queries(x);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: HeadShape = HeadShape::new(2, 1, 2);

    #[test]
    fn moments_are_mean_and_covariance() {
        let mut moments = QueryMoments::default();
        let request = ExpectedQueriesRequest {
            skip: 0,
            until: 2,
            positions: 1,
            covariance: true,
        };
        moments.start(SHAPE, request);
        moments.add(&[1.0, 2.0, 0.0, 0.0]);
        moments.add(&[3.0, 8.0, 0.0, 0.0]);
        let found = moments.finish(None).expect("started");
        assert_eq!(found.mean, [2.0, 5.0, 0.0, 0.0]);
        assert_eq!(
            found.covariance.expect("asked for")[..4],
            [1.0, 3.0, 3.0, 9.0]
        );
    }
}
