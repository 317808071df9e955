//! Rotary position embedding: the table of angles and the rotation.
//!
//! Angles are computed in f64 and their cosines and sines kept in f32: at position 100,000 an f32 angle is off by
//! several thousandths of a radian, which shifts attention. Source: RoFormer, arXiv 2104.09864. How the frequencies come
//! about is in `config/rope.rs`.
//!
//! A position's angle is the sum of two, that of a multiple of [`STEPS`] and that of what is left, so that a long table
//! takes few sines; what that loses in f64 is far below what f32 can tell.
//!
//! A [`RopeTable`] is the rotation of the layers that attend to everything. Where sliding layers have one of their own,
//! it is inside, and [`RopeTable::of_layer`] finds it:
//!
//! ```text
//! gemma3, layers 0 1 2 3 4 5 ...     of_layer(0) = the sliding layers' table, of_layer(5) = the table itself
//! smollm3, layers 0 1 2 3 ...        of_layer(0) = the table itself,          of_layer(3) = none: not rotated
//! ```
//!
//! Not here: which position a row has. The engine knows; a row of a compact cache is not a position.

use kept_kernels::Pairing;

use crate::config::{Config, LayerKind, LayerRotation, RopeConfig};

/// Positions whose angles are sums with the same first part.
const STEPS: usize = 64;

/// Cosines and sines of every position up to a limit, and the frequencies to compute any other.
#[derive(Debug, Clone)]
pub struct RopeTable {
    head_dim: usize,
    pairing: Pairing,
    positions: usize,
    /// `[dims / 2]`: radians per position.
    frequencies: Vec<f64>,
    /// Factor on all cosines and sines.
    magnitude: f64,
    /// `[positions, dims / 2]`
    cos: Vec<f32>,
    /// `[positions, dims / 2]`
    sin: Vec<f32>,
    /// `[layers]`
    kinds: Vec<LayerKind>,
    /// The sliding layers' own.
    of_windows: Option<Box<RopeTable>>,
}

impl RopeTable {
    /// The table for positions `0..positions`: the whole text, room for its answer included, because some models rotate
    /// long texts in another way than short ones ([`RopeConfig::frequencies`]).
    pub fn new(config: &Config, positions: usize) -> RopeTable {
        RopeTable::of_text(config, positions, positions)
    }

    /// Which rotation a text of `tokens` tokens gets, room for its answer included, and no position of it: enough to tell rotations
    /// apart, at no cost.
    pub fn frequencies_of(config: &Config, tokens: usize) -> RopeTable {
        RopeTable::of_text(config, tokens, 0)
    }

    fn of_text(config: &Config, tokens: usize, positions: usize) -> RopeTable {
        let of = |rope: &RopeConfig| RopeTable::of(rope, config.head_dim, tokens, positions);
        let mut table = of(&config.rope);
        table.kinds.clone_from(&config.kinds);
        table.of_windows = config.window_rope.as_ref().map(|rope| Box::new(of(rope)));
        table
    }

    fn of(rope: &RopeConfig, head_dim: usize, tokens: usize, positions: usize) -> RopeTable {
        let half = rope.dims / 2;
        let mut table = RopeTable {
            head_dim,
            pairing: rope.pairing,
            positions,
            frequencies: rope.frequencies(tokens),
            magnitude: rope.magnitude,
            cos: vec![0.0; positions * half],
            sin: vec![0.0; positions * half],
            kinds: Vec::new(),
            of_windows: None,
        };
        let (mut cos, mut sin) = (
            std::mem::take(&mut table.cos),
            std::mem::take(&mut table.sin),
        );
        let block = STEPS * half;
        let made = &table;
        let turns = |pos: usize| (0..half).map(move |pair| made.turn(pos, pair));
        let steps: Vec<_> = (0..STEPS.min(positions)).flat_map(turns).collect();
        let mut from = Vec::with_capacity(half);
        for (i, (cos, sin)) in cos.chunks_mut(block).zip(sin.chunks_mut(block)).enumerate() {
            from.clear();
            from.extend(turns(i * STEPS));
            let rows = cos.chunks_exact_mut(half).zip(sin.chunks_exact_mut(half));
            for ((cos, sin), steps) in rows.zip(steps.chunks_exact(half)) {
                for pair in 0..half {
                    (cos[pair], sin[pair]) = made.sum(from[pair], steps[pair]);
                }
            }
        }
        (table.cos, table.sin) = (cos, sin);
        table
    }

    /// The rotation of one layer of the model; `None` where it is not rotated.
    ///
    /// # Panics
    /// When there is no such layer.
    pub fn of_layer(&self, layer: usize) -> Option<&RopeTable> {
        match self.kinds[layer].rotation {
            LayerRotation::None => None,
            LayerRotation::Rope => Some(self),
            LayerRotation::WindowRope => self.of_windows.as_deref(),
        }
    }

    /// `[layers]`: how each is rotated.
    pub(crate) fn kinds(&self) -> &[LayerKind] {
        &self.kinds
    }

    /// Positions in the table.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Pairs that are rotated in a head: `dims / 2`, the length of a row of the table.
    pub fn pairs(&self) -> usize {
        self.frequencies.len()
    }

    /// Memory of the table in bytes, the sliding layers' own included.
    pub fn bytes(&self) -> u64 {
        let of_windows = self.of_windows.as_ref().map_or(0, |table| table.bytes());
        ((self.cos.len() + self.sin.len()) * size_of::<f32>()) as u64 + of_windows
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

    /// `[dims / 2]`: radians per position.
    pub fn frequencies(&self) -> &[f64] {
        &self.frequencies
    }

    /// Factor on all cosines and sines.
    pub fn magnitude(&self) -> f64 {
        self.magnitude
    }

    /// The sliding layers' own table, where they have one.
    pub fn of_windows(&self) -> Option<&RopeTable> {
        self.of_windows.as_deref()
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
        let step = pos % STEPS;
        for pair in 0..self.pairs() {
            let (from, step) = (self.turn(pos - step, pair), self.turn(step, pair));
            (cos[pair], sin[pair]) = self.sum(from, step);
        }
    }

    /// Sine and cosine of a pair's angle at a position.
    fn turn(&self, pos: usize, pair: usize) -> (f64, f64) {
        (pos as f64 * self.frequencies[pair]).sin_cos()
    }

    /// Cosine and sine of the sum of two angles, each given as sine and cosine.
    fn sum(&self, from: (f64, f64), step: (f64, f64)) -> (f32, f32) {
        let cosine = from.1 * step.1 - from.0 * step.0;
        let sine = from.0 * step.1 + from.1 * step.0;
        let m = self.magnitude;
        ((m * cosine) as f32, (m * sine) as f32)
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

    /// Undo [`Self::rotate_at`]: take `x [heads, head_dim]` back from position `pos` to before rotation.
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
        if self.magnitude != 1.0 {
            // Cosines and sines carry the magnitude: once from rotating, once more from turning back.
            let back = (1.0 / (self.magnitude * self.magnitude)) as f32;
            for head in x.chunks_exact_mut(self.head_dim) {
                head[..2 * cos.len()].iter_mut().for_each(|x| *x *= back);
            }
        }
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
