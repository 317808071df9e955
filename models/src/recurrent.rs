//! A recurrent layer instead of attention. Its state has a constant size: there is nothing to compress.
//!
//! ```text
//! delta net     x [width] --> q, k, v: convolution, SiLU --> delta rule, gated (delta_net.rs)    --> out --> + residual
//! state space   x [width] --> v, k, q: convolution, SiLU --> memory, gated (state_space.rs)      --> out --> + residual
//! convolution   x [width] --> b, c, y:   c * convolution(b * y)                                  --> out --> + residual
//! ```
//!
//! Sources: arXiv 2412.06464 and Qwen 3.5; arXiv 2405.21060 and Granite 4; arXiv 2511.23404 (LFM2).

use kept_kernels::mapped::MappedMatrix;
use kept_kernels::{
    QuantisedRows, RecurrentShape, RecurrentState, Stop, Stopped, add_assign, convolve,
};

use crate::ModelError;
use crate::arithmetic::{multiply, scale};
use crate::config::Config;
use crate::delta_net::DeltaNet;
use crate::gguf::Gguf;
use crate::rule::RuleTask;
use crate::state_space::StateSpace;
use crate::weights::{self, Floats};

/// Weights of one recurrent layer.
pub(crate) struct Recurrent {
    shape: RecurrentShape,
    /// `[inputs, width]`: queries, keys, values in the rule's order; or `b`, `c`, `y`.
    input: MappedMatrix,
    /// `[taps, channels]`
    taps: Vec<f32>,
    /// What follows the convolution; nothing if it is alone.
    rule: Option<Rule>,
    /// `[width, mixed]`
    out: MappedMatrix,
}

/// How a layer remembers what its convolution saw.
enum Rule {
    Delta(DeltaNet),
    StateSpace(StateSpace),
}

impl Rule {
    fn matrices(&self) -> [Option<&MappedMatrix>; 3] {
        match self {
            Self::Delta(net) => net.matrices(),
            Self::StateSpace(space) => {
                let [z, step] = space.matrices();
                [Some(z), Some(step), None]
            }
        }
    }
}

/// Copies of the matrices that are not quantised.
pub(crate) struct RecurrentCopies<'a> {
    input: Floats<'a>,
    /// Of [`Rule::matrices`].
    rule: [Option<Floats<'a>>; 3],
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

/// Numbers per row: inputs, the convolution's output, what the output projection reads, the rule's output, decay, beta,
/// and what is added to the residual stream.
fn widths(config: &Config, shape: RecurrentShape) -> [usize; 7] {
    let [inputs, mixed, seen, heads] = match shape {
        RecurrentShape::Delta(delta) => {
            let values = delta.value_width();
            [delta.channels(), values, values, delta.value_heads]
        }
        RecurrentShape::StateSpace(space) => {
            let values = space.value_width();
            [space.channels(), values, values, space.heads]
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

    /// Bytes of buffers for `rows` rows.
    pub(crate) fn bytes(config: &Config, shape: RecurrentShape, rows: usize) -> u64 {
        let elements = rows * widths(config, shape).iter().sum::<usize>();
        let rounded = QuantisedRows::bytes_for(rows * widest(config, shape));
        (elements * size_of::<f32>()) as u64 + rounded
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
        let [inputs, channels, mixed, ..] = widths(config, shape);
        let matrix = |part: &str| weights::matrix(gguf, &name(part), inputs, config.width);
        let (rule, input, [taps, out]) = match shape {
            RecurrentShape::Delta(delta) => {
                let net = DeltaNet::read(gguf, config, delta, layer)?;
                let names = ["ssm_conv1d", "ssm_out"];
                (Some(Rule::Delta(net)), matrix("attn_qkv")?, names)
            }
            RecurrentShape::StateSpace(space) => {
                let (space, input) = StateSpace::read(gguf, config.width, space, layer)?;
                (
                    Some(Rule::StateSpace(space)),
                    input,
                    ["ssm_conv1d", "ssm_out"],
                )
            }
            RecurrentShape::Convolution { .. } => {
                let names = ["shortconv.conv", "shortconv.out_proj"];
                (None, matrix("shortconv.in_proj")?, names)
            }
        };
        let count = shape.taps();
        let by_channel = weights::vector_of(gguf, &name(taps), &[channels, count])?;
        Ok(Self {
            shape,
            input,
            taps: (0..count * channels)
                .map(|i| by_channel[i % channels * count + i / channels])
                .collect(),
            rule,
            out: weights::matrix(gguf, &name(out), config.width, mixed)?,
        })
    }

    pub(crate) fn shape(&self) -> RecurrentShape {
        self.shape
    }

    pub(crate) fn matrices(&self) -> Vec<&MappedMatrix> {
        let rule = self.rule.iter().flat_map(Rule::matrices).flatten();
        [&self.input, &self.out].into_iter().chain(rule).collect()
    }

    pub(crate) fn copies<'a>(
        &'a self,
        copy: impl Fn(&'a MappedMatrix) -> Floats<'a>,
    ) -> RecurrentCopies<'a> {
        RecurrentCopies {
            input: copy(&self.input),
            rule: (self.rule.as_ref())
                .map_or([None; 3], Rule::matrices)
                .map(|matrix| matrix.map(&copy)),
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
        let (config, normed, copies) = (task.config, task.normed, task.copies);
        let rows = normed.len() / config.width;
        let RecurrentScratch {
            rows: most,
            buffers,
            rounded,
        } = scratch;
        let [inputs, convolved, mixed, seen, decay, beta, added] =
            buffers.each_mut().map(|buffer| {
                let elements = buffer.len() / *most * rows;
                &mut buffer[..elements]
            });
        multiply(normed, rounded, [(&copies.input, &mut *inputs)], stop)?;
        if let Some(rule) = &self.rule {
            convolve(state, &self.taps, inputs, convolved);
            let task = RuleTask {
                config,
                copies: &copies.rule,
                normed,
            };
            let space = [convolved, seen, decay, beta];
            match rule {
                Rule::Delta(net) => net.mix(&task, space, state, mixed, rounded, stop)?,
                Rule::StateSpace(own) => own.mix(&task, space, state, mixed, rounded, stop)?,
            }
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
        multiply(mixed, rounded, [(&copies.out, &mut *added)], stop)?;
        scale(added, config.residual_scale);
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
