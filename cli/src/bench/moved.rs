//! Minimum number of bytes that each part of a measurement moves, computed from the model's shape. Repeated reads after
//! CPU cache misses are not counted.

use kept_engine::Engine;
use kept_engine::kernels::PackedRows;
use kept_engine::models::LayerPass;

/// Bytes of a number during prefill.
const FLOAT: usize = size_of::<f32>();

/// Counts the bytes of the model of one engine.
pub struct Moved<'a>(pub &'a Engine);

impl Moved<'_> {
    /// Bytes of the keys and values of one position in all layers; `row` maps a head's dimension to the bytes of its
    /// row.
    fn position(&self, row: impl Fn(usize) -> usize) -> f64 {
        let config = self.0.model().config();
        (2 * config.layers * config.kv_heads * row(config.head_dim)) as f64
    }

    fn floats(&self) -> f64 {
        self.position(|numbers| numbers * FLOAT)
    }

    /// Bytes of a forward pass of `rows` tokens: the weights once for each block of tokens, and the residual stream,
    /// read and written by both halves of every layer.
    fn pass(&self, rows: usize) -> f64 {
        let blocks = match self.0.uses_gpu() {
            true => 1,
            false => LayerPass::weight_passes(self.0.model(), rows),
        };
        let config = self.0.model().config();
        let residual = 4 * config.layers * config.width * FLOAT * rows;
        self.0.model().layers_bytes() as f64 * blocks as f64 + residual as f64
    }

    /// Bytes of the prefill of `n` tokens, `chunk` at a time. In addition to the passes, keys and values are written once
    /// and read by every later chunk.
    pub fn reading(&self, n: usize, chunk: usize) -> f64 {
        let chunks = (0..n).step_by(chunk.max(1));
        chunks
            .map(|first| {
                let last = n.min(first + chunk);
                self.pass(last - first) + self.floats() * (2 * last - first) as f64
            })
            .sum()
    }

    /// Bytes of reading `n` tokens in streaming mode, `chunk` tokens at a time, over `kept` bytes of kept rows.
    pub fn streaming(&self, n: usize, chunk: usize, kept: u64) -> f64 {
        let chunks = (0..n).step_by(chunk.max(1));
        chunks
            .map(|first| {
                let rows = n.min(first + chunk) - first;
                self.pass(rows) + 2.0 * self.floats() * rows as f64 + kept as f64
            })
            .sum()
    }

    /// Bytes of the selection among `n` tokens: the document's keys are scored, and `rows` of its keys and values are
    /// gathered into `kept` bytes.
    pub fn selecting(&self, n: usize, rows: usize, kept: u64) -> f64 {
        self.floats() / 2.0 * n as f64 + self.floats() * rows as f64 + kept as f64
    }

    /// Bytes of a question of `asked` tokens after `known` tokens from a vault: the known rows are read from the vault,
    /// unpacked, and read by the queries of the question, whose tokens pass all layers.
    pub fn again(&self, known: usize, asked: usize) -> f64 {
        let packed = self.position(|numbers| PackedRows::Q8_0.row_bytes(numbers));
        (packed + 2.0 * self.floats()) * known as f64 + self.pass(asked)
    }
}
