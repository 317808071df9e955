//! RoPE for rows whose positions are not consecutive in a table: the surviving rows of a prompt, or a
//! repetition beyond its end.

use std::ops::Range;

use kept_kernels::Pairing;
use kept_models::RopeTable;

/// Cosines and sines of some rows' positions.
#[derive(Debug)]
pub(crate) struct GatheredRope {
    /// `[rows, pairs]`
    cos: Vec<f32>,
    /// `[rows, pairs]`
    sin: Vec<f32>,
    /// `[rows]`: the model's factor on queries.
    query_scales: Vec<f32>,
    pairs: usize,
    pairing: Pairing,
}

impl GatheredRope {
    /// Floats of the rotations of `rows` rows.
    pub(crate) fn floats(rows: usize, pairs: usize) -> usize {
        rows * (2 * pairs + 1)
    }

    /// Capacity for `rows` rows, without positions.
    pub(crate) fn new(rope: &RopeTable, rows: usize) -> Self {
        let empty = || Vec::with_capacity(rows * rope.pairs());
        Self {
            cos: empty(),
            sin: empty(),
            query_scales: Vec::with_capacity(rows),
            pairs: rope.pairs(),
            pairing: rope.pairing(),
        }
    }

    /// Sets the position of row i to the i-th of `positions`, inside the table or beyond it.
    pub(crate) fn set_positions(
        &mut self,
        rope: &RopeTable,
        positions: impl Iterator<Item = usize>,
    ) {
        self.cos.clear();
        self.sin.clear();
        self.query_scales.clear();
        for position in positions {
            self.query_scales.push(rope.query_scale(position));
            if position < rope.positions() {
                self.cos.extend_from_slice(rope.cos(position));
                self.sin.extend_from_slice(rope.sin(position));
                continue;
            }
            let from = self.cos.len();
            self.cos.resize(from + self.pairs, 0.0);
            self.sin.resize(from + self.pairs, 0.0);
            rope.fill(position, &mut self.cos[from..], &mut self.sin[from..]);
        }
    }

    /// Rotates `x [rows, heads, head_dim]`, the heads of the rows `rows`.
    pub(crate) fn rotate(&self, x: &mut [f32], heads: usize, rows: Range<usize>) {
        let head_dim = x.len() / (heads * rows.len()).max(1);
        let angles = rows.start * self.pairs..rows.end * self.pairs;
        let (cos, sin) = (&self.cos[angles.clone()], &self.sin[angles]);
        kept_kernels::rotate(x, heads, head_dim, cos, sin, self.pairing);
    }

    /// Rotates queries `x [rows, heads, head_dim]` and applies the factors on queries of the layer with table `rope`.
    pub(crate) fn rotate_queries(
        &self,
        rope: &RopeTable,
        x: &mut [f32],
        heads: usize,
        rows: Range<usize>,
    ) {
        let row = (x.len() / rows.len().max(1)).max(1);
        self.rotate(x, heads, rows.clone());
        for (x, &scale) in x.chunks_exact_mut(row).zip(&self.query_scales[rows]) {
            if scale != 1.0 {
                x.iter_mut().for_each(|x| *x *= scale);
            }
        }
        rope.scale_queries(x);
    }
}
