//! A recurrent layer instead of attention. Its state has a constant size: there is nothing to compress.
//!
//! ```text
//! delta net     x [width] --> q, k, v: convolution, SiLU --> delta rule, gated (delta.rs) --> out --> + residual
//! convolution   x [width] --> b, c, y:   c * convolution(b * y)                           --> out --> + residual
//! ```
//!
//! Sources: arXiv 2412.06464 and Qwen 3.5; arXiv 2511.23404 (LFM2).

use kept_kernels::mapped::MappedMatrix;
use kept_kernels::{
    QuantisedRows, RecurrentShape, RecurrentState, Stop, Stopped, add_assign, convolve,
};

use crate::ModelError;
use crate::arithmetic::multiply;
use crate::config::Config;
use crate::delta::{DeltaNet, DeltaTask};
use crate::gguf::Gguf;
use crate::weights::{self, Floats};

/// Weights of one recurrent layer.
pub(crate) struct Recurrent {
    shape: RecurrentShape,
    /// `[inputs, width]`: queries, keys, values; or `b`, `c`, `y`.
    input: MappedMatrix,
    /// `[taps, channels]`
    taps: Vec<f32>,
    /// Of a delta net.
    delta: Option<DeltaNet>,
    /// `[width, mixed]`
    out: MappedMatrix,
}

/// Copies of the matrices that are not quantised.
pub(crate) struct RecurrentCopies<'a> {
    input: Floats<'a>,
    delta: Option<[Floats<'a>; 3]>,
    out: Floats<'a>,
}

/// Rows to run through a recurrent layer.
pub(crate) struct RecurrentTask<'a> {
    pub(crate) config: &'a Config,
    pub(crate) copies: &'a RecurrentCopies<'a>,
    /// `[rows, width]`
    pub(crate) normed: &'a [f32],
}

/// Buffers for a number of rows.
pub(crate) struct RecurrentScratch {
    rows: usize,
    /// As [`widths`].
    buffers: [Vec<f32>; 7],
    rounded: QuantisedRows,
}

/// Numbers per row: inputs, the convolution's output, what the output projection reads, the delta rule's output, decay,
/// beta, and what is added to the residual stream.
fn widths(config: &Config, shape: RecurrentShape) -> [usize; 7] {
    let [inputs, mixed, seen, heads] = match shape {
        RecurrentShape::Delta(delta) => {
            let values = delta.value_width();
            [delta.channels(), values, values, delta.value_heads]
        }
        RecurrentShape::Convolution { channels, .. } => [3 * channels, channels, 0, 0],
    };
    let channels = shape.channels();
    [inputs, channels, mixed, seen, heads, heads, config.width]
}

/// Numbers in the widest input of a product.
fn widest(config: &Config, shape: RecurrentShape) -> usize {
    let [_, _, mixed, ..] = widths(config, shape);
    config.width.max(mixed)
}

impl RecurrentScratch {
    pub(crate) fn new(config: &Config, shape: RecurrentShape, rows: usize) -> Self {
        Self {
            rows,
            buffers: widths(config, shape).map(|width| vec![0.0; rows * width]),
            rounded: QuantisedRows::new(rows * widest(config, shape)),
        }
    }

    /// Memory in bytes.
    pub(crate) fn size(&self) -> u64 {
        let numbers: usize = self.buffers.iter().map(Vec::len).sum();
        (numbers * size_of::<f32>()) as u64 + self.rounded.size_in_bytes()
    }

    /// Bytes of buffers for `rows` rows.
    pub(crate) fn bytes(config: &Config, shape: RecurrentShape, rows: usize) -> u64 {
        let numbers = rows * widths(config, shape).iter().sum::<usize>();
        let rounded = QuantisedRows::bytes_for(rows * widest(config, shape));
        (numbers * size_of::<f32>()) as u64 + rounded
    }
}

impl Recurrent {
    pub(crate) fn read(
        gguf: &Gguf,
        config: &Config,
        shape: RecurrentShape,
        layer: usize,
    ) -> Result<Self, ModelError> {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let [input, taps, out] = match shape {
            RecurrentShape::Delta(_) => ["attn_qkv", "ssm_conv1d", "ssm_out"],
            RecurrentShape::Convolution { .. } => {
                ["shortconv.in_proj", "shortconv.conv", "shortconv.out_proj"]
            }
        };
        let [inputs, channels, mixed, ..] = widths(config, shape);
        let count = shape.taps();
        let by_channel = weights::vector_of(gguf, &name(taps), &[channels, count])?;
        Ok(Self {
            shape,
            input: weights::matrix(gguf, &name(input), inputs, config.width)?,
            taps: (0..count * channels)
                .map(|i| by_channel[i % channels * count + i / channels])
                .collect(),
            delta: match shape {
                RecurrentShape::Delta(delta) => Some(DeltaNet::read(gguf, config, delta, layer)?),
                RecurrentShape::Convolution { .. } => None,
            },
            out: weights::matrix(gguf, &name(out), config.width, mixed)?,
        })
    }

    pub(crate) fn shape(&self) -> RecurrentShape {
        self.shape
    }

    pub(crate) fn matrices(&self) -> Vec<&MappedMatrix> {
        let delta = self.delta.iter().flat_map(DeltaNet::matrices);
        [&self.input, &self.out].into_iter().chain(delta).collect()
    }

    pub(crate) fn copies<'a>(
        &'a self,
        copy: impl Fn(&'a MappedMatrix) -> Floats<'a>,
    ) -> RecurrentCopies<'a> {
        RecurrentCopies {
            input: copy(&self.input),
            delta: (self.delta.as_ref()).map(|delta| delta.matrices().map(&copy)),
            out: copy(&self.out),
        }
    }

    /// Runs the rows through the layer, adds the result to `residual [rows, width]` and updates the state. Allocates
    /// nothing.
    ///
    /// # Errors
    /// [`Stopped`]; residual and state are then partly written.
    pub(crate) fn add(
        &self,
        task: &RecurrentTask<'_>,
        residual: &mut [f32],
        state: &mut RecurrentState,
        scratch: &mut RecurrentScratch,
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let (normed, copies) = (task.normed, task.copies);
        let rows = normed.len() / task.config.width;
        let RecurrentScratch {
            rows: most,
            buffers,
            rounded,
        } = scratch;
        let [inputs, convolved, mixed, seen, decay, beta, added] =
            buffers.each_mut().map(|buffer| {
                let numbers = buffer.len() / *most * rows;
                &mut buffer[..numbers]
            });
        multiply(&self.input, &copies.input, normed, rounded, inputs, stop)?;
        if let (Some(delta), Some(copies)) = (&self.delta, &copies.delta) {
            convolve(state, &self.taps, inputs, convolved);
            let task = DeltaTask {
                config: task.config,
                copies,
                normed,
            };
            let space = [convolved, seen, decay, beta];
            delta.mix(&task, space, state, mixed, rounded, stop)?;
        } else {
            let channels = self.shape.channels();
            for (row, out) in rows_of(inputs, mixed, channels) {
                multiply_each(&row[..channels], &row[2 * channels..], out);
            }
            convolve(state, &self.taps, mixed, convolved);
            let convolved = convolved.chunks_exact(channels);
            for ((row, out), x) in rows_of(inputs, mixed, channels).zip(convolved) {
                multiply_each(&row[channels..2 * channels], x, out);
            }
        }
        multiply(&self.out, &copies.out, mixed, rounded, added, stop)?;
        add_assign(residual, added);
        Ok(())
    }
}

/// The rows of `inputs [rows, 3, channels]` and of `out [rows, channels]`.
fn rows_of<'a>(
    inputs: &'a [f32],
    out: &'a mut [f32],
    channels: usize,
) -> impl Iterator<Item = (&'a [f32], &'a mut [f32])> {
    (inputs.chunks_exact(3 * channels)).zip(out.chunks_exact_mut(channels))
}

/// `out = x * y`
fn multiply_each(x: &[f32], y: &[f32], out: &mut [f32]) {
    for ((x, y), out) in x.iter().zip(y).zip(out) {
        *out = x * y;
    }
}
