//! RoPE: the table of angles, and the rotation.
//!
//! Angles are computed in f64 and their cosines and sines stored in f32: at position 100,000 an f32 angle has an error
//! of several thousandths of a radian, which shifts attention. Source: RoFormer, arXiv 2104.09864. `config/rope.rs`
//! derives the frequencies.
//!
//! A position's angle is the sum of the angle of a multiple of [`STEPS`] and that of the remainder, so that a long
//! table needs few calls of `sin_cos`. The rounding error in f64 is far below f32 precision.
//!
//! A [`RopeTable`] holds the rotation of the global layers. If sliding-window layers have their own, it is nested, and
//! [`RopeTable::of_layer`] selects it:
//!
//! ```text
//! gemma3, layers 0 1 2 3 4 5 ...     of_layer(0) = the sliding-window layers' table, of_layer(5) = the table itself
//! smollm3, layers 0 1 2 3 ...        of_layer(0) = the table itself,                 of_layer(3) = none: no RoPE
//! ```
//!
//! The engine determines the position of each row; a slot of a compact KV cache is not a position.

use std::sync::Arc;

use kept_kernels::Pairing;

use crate::config::{Config, LayerKind, LayerRotation, QueryScale, RopeConfig};

/// Number of consecutive positions whose angles share the first summand.
const STEPS: usize = 64;

/// Cosines and sines of all positions up to a limit, and the frequencies for computing others.
#[derive(Debug, Clone)]
pub struct RopeTable {
    head_dim: usize,
    pairing: Pairing,
    positions: usize,
    /// `[dims / 2]`: radians per position.
    frequencies: Vec<f64>,
    /// Factor on all cosines and sines.
    magnitude: f64,
    /// Factor on rotated queries, by position.
    query_scale: Option<QueryScale>,
    /// `[head_dim]`: factors on the elements of a rotated query.
    query_factors: Option<Arc<Vec<f32>>>,
    /// `[positions, dims / 2]`
    cos: Arc<Vec<f32>>,
    /// `[positions, dims / 2]`
    sin: Arc<Vec<f32>>,
    /// `[layers]`
    kinds: Vec<LayerKind>,
    /// `[layers]`: the table with each layer's factors on queries; empty without them.
    of_layers: Vec<RopeTable>,
    /// The table of sliding-window layers, if they have their own.
    of_windows: Option<Box<RopeTable>>,
}

/// Sine and cosine of an angle.
#[derive(Clone, Copy)]
struct SinCos {
    sin: f64,
    cos: f64,
}

impl RopeTable {
    /// The table of positions `0..positions`. `positions` must include the answer, because some models rotate long
    /// texts differently ([`RopeConfig::frequencies`]).
    pub fn new(config: &Config, positions: usize) -> RopeTable {
        RopeTable::for_text(config, positions, positions)
    }

    /// The frequencies for a prompt and answer of `tokens` tokens together, without a table of positions. Suffices to
    /// compare rotations, at negligible cost.
    pub fn frequencies_of(config: &Config, tokens: usize) -> RopeTable {
        RopeTable::for_text(config, tokens, 0)
    }

    fn for_text(config: &Config, tokens: usize, positions: usize) -> RopeTable {
        let make = |rope: &RopeConfig, head_dim| RopeTable {
            query_scale: config.query_scale,
            ..RopeTable::build(rope, head_dim, tokens, positions)
        };
        let mut table = make(&config.rope, config.head_dim);
        let of_layers = config.norms_after_rope.iter().map(|norm| RopeTable {
            query_factors: Some(Arc::clone(&norm.query)),
            ..table.clone()
        });
        table.of_layers = of_layers.collect();
        table.kinds.clone_from(&config.kinds);
        let turned = |kind: &&LayerKind| kind.rotation == LayerRotation::WindowRope;
        let window_dim = config.kinds.iter().find(turned).map(|kind| kind.head_dim);
        table.of_windows = (config.window_rope.as_ref())
            .zip(window_dim)
            .map(|(rope, head_dim)| Box::new(make(rope, head_dim)));
        table
    }

    fn build(rope: &RopeConfig, head_dim: usize, tokens: usize, positions: usize) -> RopeTable {
        let half = rope.dims / 2;
        let mut table = RopeTable {
            head_dim,
            pairing: rope.pairing,
            positions,
            frequencies: rope.frequencies(tokens),
            magnitude: rope.magnitude,
            query_scale: None,
            query_factors: None,
            cos: Arc::default(),
            sin: Arc::default(),
            kinds: Vec::new(),
            of_layers: Vec::new(),
            of_windows: None,
        };
        let (mut cos, mut sin) = (vec![0.0; positions * half], vec![0.0; positions * half]);
        let block = STEPS * half;
        let unfilled = &table;
        let angles = |pos: usize| (0..half).map(move |pair| unfilled.angle(pos, pair));
        let steps: Vec<_> = (0..STEPS.min(positions)).flat_map(angles).collect();
        let mut from = Vec::with_capacity(half);
        for (i, (cos, sin)) in cos.chunks_mut(block).zip(sin.chunks_mut(block)).enumerate() {
            from.clear();
            from.extend(angles(i * STEPS));
            let rows = cos.chunks_exact_mut(half).zip(sin.chunks_exact_mut(half));
            for ((cos, sin), steps) in rows.zip(steps.chunks_exact(half)) {
                for pair in 0..half {
                    (cos[pair], sin[pair]) = unfilled.sum(from[pair], steps[pair]);
                }
            }
        }
        (table.cos, table.sin) = (Arc::new(cos), Arc::new(sin));
        table
    }

    /// The table of one layer; `None` if the layer has no RoPE.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn of_layer(&self, layer: usize) -> Option<&RopeTable> {
        match self.kinds[layer].rotation {
            LayerRotation::None => None,
            LayerRotation::Rope => Some(self.of_layers.get(layer).unwrap_or(self)),
            LayerRotation::WindowRope => self.of_windows.as_deref(),
        }
    }

    /// `[layers]`: rotation of each layer.
    pub fn kinds(&self) -> &[LayerKind] {
        &self.kinds
    }

    /// Number of positions in the table.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Rotated pairs per head: `dims / 2`, the length of a row of the table.
    pub fn pairs(&self) -> usize {
        self.frequencies.len()
    }

    /// Memory of the table in bytes, including that of sliding-window layers.
    pub fn bytes(&self) -> u64 {
        let of_windows = self.of_windows.as_ref().map_or(0, |table| table.bytes());
        ((self.cos.len() + self.sin.len()) * size_of::<f32>()) as u64 + of_windows
    }

    /// Cosines of a position of the table, `[dims / 2]`.
    ///
    /// # Panics
    /// If the position is not in the table.
    pub fn cos(&self, pos: usize) -> &[f32] {
        &self.cos[pos * self.pairs()..][..self.pairs()]
    }

    /// Sines of a position of the table, `[dims / 2]`.
    ///
    /// # Panics
    /// If the position is not in the table.
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

    /// The sliding-window layers' table, if they have their own.
    pub fn of_windows(&self) -> Option<&RopeTable> {
        self.of_windows.as_deref()
    }

    /// Which elements of a head form a pair.
    pub fn pairing(&self) -> kept_kernels::Pairing {
        self.pairing
    }

    /// Computes the cosines and sines `[dims / 2]` of any position, in the table or not. Does not allocate.
    ///
    /// # Panics
    /// If a slice is shorter than [`Self::pairs`].
    pub fn fill(&self, pos: usize, cos: &mut [f32], sin: &mut [f32]) {
        let step = pos % STEPS;
        for pair in 0..self.pairs() {
            let (from, step) = (self.angle(pos - step, pair), self.angle(step, pair));
            (cos[pair], sin[pair]) = self.sum(from, step);
        }
    }

    /// A pair's angle at a position.
    fn angle(&self, pos: usize, pair: usize) -> SinCos {
        let (sin, cos) = (pos as f64 * self.frequencies[pair]).sin_cos();
        SinCos { sin, cos }
    }

    /// Cosine and sine of the sum of two angles, times the magnitude.
    fn sum(&self, from: SinCos, step: SinCos) -> (f32, f32) {
        let cosine = from.cos * step.cos - from.sin * step.sin;
        let sine = from.sin * step.cos + from.cos * step.sin;
        let m = self.magnitude;
        ((m * cosine) as f32, (m * sine) as f32)
    }

    /// Rotates `x [rows, heads, head_dim]`, row `r` to position `first_pos + r`.
    ///
    /// # Panics
    /// If a position is not in the table or the length of `x` is not a multiple of a row.
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

    /// Rotates queries `x [rows, heads, head_dim]` as [`Self::rotate_rows`] does, and applies the model's factors on
    /// queries.
    ///
    /// # Panics
    /// As [`Self::rotate_rows`].
    pub fn rotate_queries(&self, x: &mut [f32], heads: usize, first_pos: usize) {
        self.rotate_rows(x, heads, first_pos);
        if let Some(scale) = self.query_scale {
            for (row, x) in x.chunks_exact_mut(heads * self.head_dim).enumerate() {
                let factor = scale.at(first_pos + row);
                x.iter_mut().for_each(|x| *x *= factor);
            }
        }
        self.scale_queries(x);
    }

    /// Applies the layer's factors on the elements of rotated queries to `x [heads, head_dim]`.
    pub fn scale_queries(&self, x: &mut [f32]) {
        if let Some(factors) = &self.query_factors {
            for x in x.chunks_exact_mut(self.head_dim) {
                x.iter_mut()
                    .zip(&**factors)
                    .for_each(|(x, factor)| *x *= factor);
            }
        }
    }

    /// The factor on rotated queries at a position; 1 in most models.
    pub fn query_scale(&self, position: usize) -> f32 {
        self.query_scale.map_or(1.0, |scale| scale.at(position))
    }

    /// Rotates a query `x [heads, head_dim]` to position `pos` and applies the model's factors on queries.
    ///
    /// # Panics
    /// As [`Self::rotate_at`].
    pub fn rotate_query_at(&self, x: &mut [f32], pos: usize) {
        let factor = self.query_scale(pos);
        self.rotate_at(x, pos);
        if factor != 1.0 {
            x.iter_mut().for_each(|x| *x *= factor);
        }
        self.scale_queries(x);
    }

    /// Rotates `x [heads, head_dim]` to position `pos`.
    ///
    /// # Panics
    /// If the position is not in the table or the length of `x` is not a multiple of `head_dim`.
    pub fn rotate_at(&self, x: &mut [f32], pos: usize) {
        self.rotate_with(x, self.cos(pos), self.sin(pos));
    }

    /// Inverse of [`Self::rotate_at`]: `x [heads, head_dim]` at position `pos` becomes unrotated.
    ///
    /// # Panics
    /// If the position is not in the table or the length of `x` is not a multiple of `head_dim`.
    pub fn unrotate_at(&self, x: &mut [f32], pos: usize) {
        self.unrotate_with(x, self.cos(pos), self.sin(pos));
    }

    /// Rotates `x [heads, head_dim]` by cosines and sines `[dims / 2]` from [`Self::fill`].
    pub fn rotate_with(&self, x: &mut [f32], cos: &[f32], sin: &[f32]) {
        kept_kernels::rotate(x, self.heads(x), self.head_dim, cos, sin, self.pairing);
    }

    /// Inverse of [`Self::rotate_with`], for cosines and sines `[dims / 2]` from [`Self::fill`].
    pub fn unrotate_with(&self, x: &mut [f32], cos: &[f32], sin: &[f32]) {
        kept_kernels::unrotate(x, self.heads(x), self.head_dim, cos, sin, self.pairing);
        if self.magnitude != 1.0 {
            // The magnitude was applied twice: by the rotation and by its inverse.
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
