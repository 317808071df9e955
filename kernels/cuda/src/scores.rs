//! Scores of keys: the attention probabilities that rows give them. `device/scores.cu`.

use half::f16;
use kept_kernels::{HeadShape, Normalise, Scale};

use crate::driver::{Address, Geometry};
use crate::{
    AttentionScratch, Buffer, Device, DeviceError, LayerRows, ScaleParameters, supported,
    tile_row_bytes,
};

/// Keys of a tile, and rows of a block.
const TILE: usize = 64;
/// Warps of a block.
const WARPS: usize = 4;

/// The last rows of the prompt read so far (the observation window), and the keys that they attend to.
pub struct Scores<'a> {
    /// Heads of the layer.
    pub shape: HeadShape,
    /// From dot products to logits.
    pub scale: Scale<'a>,
    /// `[rows, q_heads, head_dim]`, rotated: the rows at positions `tokens - rows..tokens`.
    pub queries: &'a Buffer<f16>,
    /// Number of rows.
    pub rows: usize,
    /// Rotated keys; rows `0..tokens` of each head are valid, row == position.
    pub keys: &'a LayerRows,
    /// Tokens read so far.
    pub tokens: usize,
    /// The keys over which the softmax of a row is normalised.
    pub normalise: Normalise,
}

/// Scratch of the scoring passes.
pub struct ScoresScratch {
    /// `[q_heads, rows]`
    log_sum_exp: Buffer<f32>,
    rows: usize,
}

impl ScoresScratch {
    /// For up to `rows` rows.
    pub fn new(device: &Device, shape: HeadShape, rows: usize) -> Result<Self, DeviceError> {
        Ok(Self {
            log_sum_exp: device.alloc_uninit(shape.q_heads * rows)?,
            rows,
        })
    }
}

/// Parameters of kernels `row_sums_*`, `column_sums_*` and `mark_below_average_*`; same layout as `Scores` in
/// `device/scores.cu`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Parameters {
    queries: Address,
    keys: Address,
    log_sum_exp: Address,
    row_weights: Address,
    sums: Address,
    marks: Address,
    rows: u32,
    first: u32,
    q_heads: u32,
    kv_heads: u32,
    capacity: u32,
    limit: u32,
    end: u32,
    stride: u32,
    add: u32,
    words: u32,
    row_weight: f32,
    scale: ScaleParameters,
}

impl Scores<'_> {
    fn check(&self) -> Result<usize, DeviceError> {
        let (shape, rows) = (&self.shape, self.rows);
        let dim = supported(shape.head_dim)?;
        assert!(
            self.queries.len() >= rows * shape.q_heads * dim,
            "queries are [rows {rows}, q_heads {}, head_dim {dim}]",
            shape.q_heads
        );
        assert!(
            0 < rows && rows <= self.tokens,
            "{rows} rows in a prompt of {} tokens",
            self.tokens
        );
        self.keys.check("keys", shape, self.tokens);
        Ok(dim)
    }

    fn parameters(&self) -> Parameters {
        let first = self.tokens - self.rows;
        Parameters {
            queries: self.queries.address(),
            keys: self.keys.data.address(),
            rows: self.rows as u32,
            first: first as u32,
            q_heads: self.shape.q_heads as u32,
            kv_heads: self.shape.kv_heads as u32,
            capacity: self.keys.capacity() as u32,
            limit: match self.normalise {
                Normalise::All => self.tokens as u32,
                Normalise::Prefix => first as u32,
            },
            end: self.tokens as u32,
            stride: self.tokens as u32,
            row_weight: 1.0,
            scale: self.scale.into(),
            ..Parameters::default()
        }
    }
}

impl Device {
    /// Writes `log_sum_exp [q_heads, rows]`: the natural logarithm of each row's sum of exponentials. Only for rows
    /// whose attention is not computed: [`Device::prefill_attention`] gives the same result as a by-product.
    ///
    /// # Panics
    /// When shapes do not match.
    pub fn log_sum_exp(
        &self,
        task: &Scores<'_>,
        parts: &mut AttentionScratch,
        log_sum_exp: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        let dim = task.check()?;
        let (heads, rows) = (task.shape.q_heads, task.rows);
        assert!(
            log_sum_exp.len() >= heads * rows,
            "log_sum_exp is [q_heads {heads}, rows {rows}]"
        );
        let row_tiles = rows.div_ceil(TILE);
        let key_tiles = task.tokens.div_ceil(TILE);
        let splits = parts.splits(self, row_tiles * heads, key_tiles, rows);
        let parameters = Parameters {
            sums: match splits {
                1 => log_sum_exp.address(),
                _ => parts.sums.address(),
            },
            ..task.parameters()
        };
        let geometry = Geometry::new(
            [row_tiles, heads, splits],
            WARPS * 32,
            TILE * tile_row_bytes(dim),
        );
        // SAFETY: lengths were checked; the result and the scratch are borrowed mutably.
        unsafe {
            self.launch(&format!("row_sums_{dim}"), geometry, &parameters)?;
            if splits > 1 {
                self.combine(parts, 0, log_sum_exp.address(), splits, rows)?;
            }
        }
        Ok(())
    }

    /// Writes `out [q_heads, tokens]`: the mean over the rows of each key's probability, or its sum weighted by
    /// `row_weights [rows]`.
    ///
    /// # Panics
    /// When shapes do not match.
    pub fn window_scores(
        &self,
        task: &Scores<'_>,
        row_weights: Option<&Buffer<f32>>,
        parts: &mut AttentionScratch,
        scratch: &mut ScoresScratch,
        out: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        assert!(
            task.rows <= scratch.rows,
            "the scratch is for {} rows",
            scratch.rows
        );
        self.log_sum_exp(task, parts, &mut scratch.log_sum_exp)?;
        if let Some(weights) = row_weights {
            assert_eq!(weights.len(), task.rows, "row_weights are [rows]");
        }
        let parameters = Parameters {
            row_weights: row_weights.map_or(0, Buffer::address),
            row_weight: 1.0 / task.rows as f32,
            ..task.parameters()
        };
        self.launch_column_sums(task, parameters, &scratch.log_sum_exp, out)
    }

    /// Adds to the first `tokens` columns of `sums [q_heads, columns]` each key's probabilities, summed over all rows.
    /// `log_sum_exp [q_heads, rows]` is that of the rows.
    ///
    /// # Panics
    /// When shapes do not match.
    pub fn add_column_sums(
        &self,
        task: &Scores<'_>,
        log_sum_exp: &Buffer<f32>,
        sums: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        let stride = sums.len() / task.shape.q_heads;
        let parameters = Parameters {
            add: 1,
            stride: stride as u32,
            ..task.parameters()
        };
        self.launch_column_sums(task, parameters, log_sum_exp, sums)
    }

    fn launch_column_sums(
        &self,
        task: &Scores<'_>,
        parameters: Parameters,
        log_sum_exp: &Buffer<f32>,
        out: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        let dim = task.check()?;
        let (heads, tokens) = (task.shape.q_heads, task.tokens);
        assert!(
            log_sum_exp.len() >= heads * task.rows,
            "log_sum_exp is [q_heads {heads}, rows {}]",
            task.rows
        );
        let stride = match parameters.add {
            0 => tokens,
            _ => parameters.stride as usize,
        };
        assert!(
            stride >= tokens && out.len() >= heads * stride,
            "out is [q_heads {heads}, tokens {tokens}]"
        );
        let parameters = Parameters {
            log_sum_exp: log_sum_exp.address(),
            sums: out.address(),
            stride: stride as u32,
            ..parameters
        };
        let geometry = Geometry::new(
            [tokens.div_ceil(TILE), heads, 1],
            WARPS * 32,
            TILE * tile_row_bytes(dim) + WARPS * TILE * size_of::<f32>(),
        );
        // SAFETY: lengths were checked; the result is borrowed mutably.
        unsafe { self.launch(&format!("column_sums_{dim}"), geometry, &parameters) }
    }

    /// Writes the bit masks `marks [kv_heads, tokens, words]`, as [`kept_kernels::mark_below_average`].
    ///
    /// # Panics
    /// When shapes do not match.
    pub fn mark_below_average(
        &self,
        task: &Scores<'_>,
        parts: &mut AttentionScratch,
        scratch: &mut ScoresScratch,
        marks: &mut Buffer<u64>,
    ) -> Result<(), DeviceError> {
        let dim = task.check()?;
        assert!(
            task.rows <= scratch.rows,
            "the scratch is for {} rows",
            scratch.rows
        );
        let (kv_heads, words) = (task.shape.kv_heads, kept_kernels::words(task.rows));
        assert!(
            marks.len() >= kv_heads * task.tokens * words,
            "marks are [kv_heads {kv_heads}, tokens {}, words {words}]",
            task.tokens
        );
        self.log_sum_exp(task, parts, &mut scratch.log_sum_exp)?;
        let parameters = Parameters {
            log_sum_exp: scratch.log_sum_exp.address(),
            marks: marks.address(),
            words: words as u32,
            ..task.parameters()
        };
        let key_tiles = task.tokens.div_ceil(TILE);
        let geometry = Geometry::new(
            [key_tiles, kv_heads, words],
            WARPS * 32,
            TILE * tile_row_bytes(dim) + TILE * TILE * size_of::<f32>(),
        );
        // SAFETY: lengths were checked; the marks are borrowed mutably.
        unsafe { self.launch(&format!("mark_below_average_{dim}"), geometry, &parameters) }
    }
}
