//! Bytes that each part of a measurement moves at least, counted from the model's shape: what is read once more because it did not fit a
//! processor's cache is not in them.

use kept_engine::Prefill;
use kept_engine::kernels::PackedRows;
use kept_engine::models::{LayerPass, Model};

/// Bytes of a number while a document is read.
const FLOAT: usize = size_of::<f32>();

/// Of one model.
pub struct Moved<'a>(pub &'a Model);

impl Moved<'_> {
    /// Keys and values of a position in all layers, with `row` bytes for a head's row of numbers.
    fn position(&self, row: impl Fn(usize) -> usize) -> f64 {
        let config = self.0.config();
        (2 * config.layers * config.kv_heads * row(config.head_dim)) as f64
    }

    fn floats(&self) -> f64 {
        self.position(|numbers| numbers * FLOAT)
    }

    /// `rows` tokens through all layers together: the weights once for each block of them, and the residual stream read and written by both
    /// halves of every layer.
    fn pass(&self, rows: usize) -> f64 {
        let blocks = match self.0.gpu() {
            Some(_) => 1,
            None => LayerPass::weight_passes(self.0, rows),
        };
        let config = self.0.config();
        let residual = 4 * config.layers * config.width * FLOAT * rows;
        self.0.layers_bytes() as f64 * blocks as f64 + residual as f64
    }

    /// Reading `n` tokens: besides, keys and values are written once and read by every chunk behind them.
    pub fn reading(&self, n: usize) -> f64 {
        let chunks = (0..n).step_by(Prefill::CHUNK);
        chunks
            .map(|first| {
                let last = n.min(first + Prefill::CHUNK);
                self.pass(last - first) + self.floats() * (2 * last - first) as f64
            })
            .sum()
    }

    /// Reading `n` tokens in streaming, `chunk` at a time, over kept rows of `kept` bytes.
    pub fn streaming(&self, n: usize, chunk: usize, kept: u64) -> f64 {
        let chunks = (0..n).step_by(chunk.max(1));
        chunks
            .map(|first| {
                let rows = n.min(first + chunk) - first;
                self.pass(rows) + 2.0 * self.floats() * rows as f64 + kept as f64
            })
            .sum()
    }

    /// Selecting of `n` tokens: the document's keys are scored, and `rows` of its keys and values gathered into `kept` bytes.
    pub fn selecting(&self, n: usize, rows: usize, kept: u64) -> f64 {
        self.floats() / 2.0 * n as f64 + self.floats() * rows as f64 + kept as f64
    }

    /// A question of `asked` tokens behind `known` ones of a vault: their rows are read from it, unpacked, and read by the question's, whose
    /// tokens pass the layers.
    pub fn again(&self, known: usize, asked: usize) -> f64 {
        let packed = self.position(|numbers| PackedRows::Q8_0.row_bytes(numbers));
        (packed + 2.0 * self.floats()) * known as f64 + self.pass(asked)
    }
}
