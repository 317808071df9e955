//! Rotary position embedding: the table of angles and the rotation.
//!
//! Angles are computed in f64 and their cosines and sines kept in f32: at position 100,000 an f32 angle is off by
//! several thousandths of a radian, which shifts attention. Source: RoFormer, arXiv 2104.09864; Llama 3's factors as
//! GGUF stores them (`rope_freqs.weight`).
//!
//! Not here: which position a row has. The engine knows; a row of a compact cache is not a position.

use kept_kernels::Pairing;

use crate::config::{Config, RopeScaling};

/// Cosines and sines of every position up to a limit, and the frequencies to compute any other.
#[derive(Debug, Clone)]
pub struct RopeTable {
    head_dim: usize,
    pairing: Pairing,
    positions: usize,
    /// `[dims / 2]`: radians per position.
    frequencies: Vec<f64>,
    /// `[positions, dims / 2]`
    cos: Vec<f32>,
    /// `[positions, dims / 2]`
    sin: Vec<f32>,
}

impl RopeTable {
    /// The table for positions `0..positions`, in `positions * dims * 4` bytes.
    pub fn new(config: &Config, positions: usize) -> RopeTable {
        let rope = &config.rope;
        let half = rope.dims / 2;
        let frequencies: Vec<f64> = (0..half)
            .map(|i| {
                let plain = rope.base.powf(-2.0 * i as f64 / rope.dims as f64);
                match &rope.scaling {
                    RopeScaling::None => plain,
                    RopeScaling::Linear { factor } => plain / factor,
                    RopeScaling::Factors(factors) => plain / f64::from(factors[i]),
                }
            })
            .collect();
        let mut table = RopeTable {
            head_dim: config.head_dim,
            pairing: rope.pairing,
            positions,
            frequencies,
            cos: vec![0.0; positions * half],
            sin: vec![0.0; positions * half],
        };
        let (mut cos, mut sin) = (
            std::mem::take(&mut table.cos),
            std::mem::take(&mut table.sin),
        );
        for (pos, (cos, sin)) in cos
            .chunks_exact_mut(half)
            .zip(sin.chunks_exact_mut(half))
            .enumerate()
        {
            table.fill(pos, cos, sin);
        }
        (table.cos, table.sin) = (cos, sin);
        table
    }

    /// Positions in the table.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Pairs that are rotated in a head: `dims / 2`, the length of a row of the table.
    pub fn pairs(&self) -> usize {
        self.frequencies.len()
    }

    /// Memory of the table in bytes.
    pub fn bytes(&self) -> u64 {
        ((self.cos.len() + self.sin.len()) * size_of::<f32>()) as u64
    }

    /// Cosines of a position of the table, `[dims / 2]`.
    ///
    /// # Panics
    /// When the position is not in the table.
    pub fn cos(&self, pos: usize) -> &[f32] {
        &self.cos[pos * self.pairs()..][..self.pairs()]
    }

    /// Sines of a position of the table, `[dims / 2]`.
    ///
    /// # Panics
    /// When the position is not in the table.
    pub fn sin(&self, pos: usize) -> &[f32] {
        &self.sin[pos * self.pairs()..][..self.pairs()]
    }

    /// The whole table of cosines, `[positions, dims / 2]`.
    pub fn cosines(&self) -> &[f32] {
        &self.cos
    }

    /// The whole table of sines, `[positions, dims / 2]`.
    pub fn sines(&self) -> &[f32] {
        &self.sin
    }

    /// Which numbers of a head form a pair.
    pub fn pairing(&self) -> kept_kernels::Pairing {
        self.pairing
    }

    /// Compute the cosines and sines `[dims / 2]` of any position, in the table or not; allocates nothing.
    ///
    /// # Panics
    /// When a slice is shorter than [`Self::pairs`].
    pub fn fill(&self, pos: usize, cos: &mut [f32], sin: &mut [f32]) {
        for (i, frequency) in self.frequencies.iter().enumerate() {
            let angle = pos as f64 * frequency;
            (cos[i], sin[i]) = (angle.cos() as f32, angle.sin() as f32);
        }
    }

    /// Rotate `x [rows, heads, head_dim]`, row `r` to position `first_pos + r`.
    ///
    /// # Panics
    /// When a position is not in the table or `x` is not rows of whole heads.
    pub fn rotate_rows(&self, x: &mut [f32], heads: usize, first_pos: usize) {
        let row = heads * self.head_dim;
        assert!(
            x.len().is_multiple_of(row),
            "x is [rows, {heads}, {}]",
            self.head_dim
        );
        let angles = first_pos * self.pairs()..(first_pos + x.len() / row) * self.pairs();
        let (cos, sin) = (&self.cos[angles.clone()], &self.sin[angles]);
        kept_kernels::rotate(x, heads, self.head_dim, cos, sin, self.pairing);
    }

    /// Rotate `x [heads, head_dim]` to position `pos`.
    ///
    /// # Panics
    /// When the position is not in the table or `x` is not whole heads.
    pub fn rotate_at(&self, x: &mut [f32], pos: usize) {
        self.rotate_with(x, self.cos(pos), self.sin(pos));
    }

    /// Take `x [heads, head_dim]` back from position `pos` to position 0.
    ///
    /// # Panics
    /// When the position is not in the table or `x` is not whole heads.
    pub fn unrotate_at(&self, x: &mut [f32], pos: usize) {
        self.unrotate_with(x, self.cos(pos), self.sin(pos));
    }

    /// Rotate `x [heads, head_dim]` by cosines and sines `[dims / 2]` from [`Self::fill`].
    pub fn rotate_with(&self, x: &mut [f32], cos: &[f32], sin: &[f32]) {
        kept_kernels::rotate(x, self.heads(x), self.head_dim, cos, sin, self.pairing);
    }

    /// Rotate back by cosines and sines `[dims / 2]` from [`Self::fill`].
    pub fn unrotate_with(&self, x: &mut [f32], cos: &[f32], sin: &[f32]) {
        kept_kernels::unrotate(x, self.heads(x), self.head_dim, cos, sin, self.pairing);
    }

    fn heads(&self, x: &[f32]) -> usize {
        assert!(
            x.len().is_multiple_of(self.head_dim),
            "x is [heads, {}]",
            self.head_dim
        );
        x.len() / self.head_dim
    }
}
