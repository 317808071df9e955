//! A recurrent layer instead of attention: gated delta net (arXiv 2412.06464; Qwen 3.5).
//!
//! ```text
//! x [width] --> q, k, v, together: convolution, SiLU; q and k to length 1
//!           --> decay = exp(a softplus(alpha x + dt)), beta = sigmoid(beta x)          per value head
//!           --> delta rule over the layer's state --> norm of each head * silu(z x) --> out --> + residual
//! ```
//!
//! The state has a constant size: there is nothing to compress.

use kept_kernels::mapped::MappedMatrix;
use kept_kernels::{
    DeltaRule, DeltaShape, DeltaState, QuantisedRows, Stop, Stopped, add_assign, convolve,
    delta_rule, normalise_queries_and_keys, rms_norm_in_place, silu_mul,
};

use crate::ModelError;
use crate::arithmetic::multiply;
use crate::config::Config;
use crate::gguf::Gguf;
use crate::weights::{self, Floats};

/// Weights of one recurrent layer.
pub(crate) struct DeltaNet {
    /// `[channels, width]`: queries, keys, values.
    qkv: MappedMatrix,
    /// `[value_width, width]`
    z: MappedMatrix,
    /// `[value_heads, width]`
    alpha: MappedMatrix,
    /// `[value_heads, width]`
    beta: MappedMatrix,
    /// `[taps, channels]`
    taps: Vec<f32>,
    /// `[value_heads]`: bias of `alpha`.
    dt: Vec<f32>,
    /// `[value_heads]`, negative.
    a: Vec<f32>,
    /// `[dim]`
    norm: Vec<f32>,
    /// `[width, value_width]`
    out: MappedMatrix,
}

/// Copies of the matrices that are not quantised.
pub(crate) struct DeltaCopies<'a>([Floats<'a>; 5]);

/// Rows to run through a recurrent layer.
pub(crate) struct DeltaTask<'a> {
    pub(crate) config: &'a Config,
    pub(crate) shape: DeltaShape,
    pub(crate) copies: &'a DeltaCopies<'a>,
    /// `[rows, width]`
    pub(crate) normed: &'a [f32],
}

/// Buffers for a number of rows.
pub(crate) struct DeltaScratch {
    /// `[rows, channels]`
    mixed: Vec<f32>,
    /// `[rows, channels]`
    convolved: Vec<f32>,
    /// `[rows, value_width]`
    z: Vec<f32>,
    /// `[rows, value_width]`
    seen: Vec<f32>,
    /// `[rows, value_heads]`
    decay: Vec<f32>,
    /// `[rows, value_heads]`
    beta: Vec<f32>,
    /// `[rows, width]`
    added: Vec<f32>,
    rounded: QuantisedRows,
}

impl DeltaScratch {
    pub(crate) fn new(config: &Config, shape: DeltaShape, rows: usize) -> Self {
        let numbers = |each: usize| vec![0.0; rows * each];
        Self {
            mixed: numbers(shape.channels()),
            convolved: numbers(shape.channels()),
            z: numbers(shape.value_width()),
            seen: numbers(shape.value_width()),
            decay: numbers(shape.value_heads),
            beta: numbers(shape.value_heads),
            added: numbers(config.width),
            rounded: QuantisedRows::new(rows * config.width.max(shape.value_width())),
        }
    }

    /// Memory in bytes.
    pub(crate) fn size(&self) -> u64 {
        let buffers = [
            &self.mixed,
            &self.convolved,
            &self.z,
            &self.seen,
            &self.decay,
            &self.beta,
            &self.added,
        ];
        let numbers: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        (numbers * size_of::<f32>()) as u64 + self.rounded.size_in_bytes()
    }

    /// Bytes of buffers for `rows` rows.
    pub(crate) fn bytes(config: &Config, shape: DeltaShape, rows: usize) -> u64 {
        let each = 2 * (shape.channels() + shape.value_width() + shape.value_heads) + config.width;
        let rounded = QuantisedRows::bytes_for(rows * config.width.max(shape.value_width()));
        (rows * each * size_of::<f32>()) as u64 + rounded
    }
}

impl DeltaNet {
    pub(crate) fn read(
        gguf: &Gguf,
        config: &Config,
        shape: DeltaShape,
        layer: usize,
    ) -> Result<Self, ModelError> {
        let (width, heads) = (config.width, shape.value_heads);
        let name = |part: &str| format!("blk.{layer}.{part}");
        let matrix = |part: &str, rows, cols| {
            weights::matrix(gguf, &name(&format!("{part}.weight")), rows, cols)
        };
        let shape_of_taps = [shape.channels(), shape.taps];
        let by_channel = weights::vector_of(gguf, &name("ssm_conv1d.weight"), &shape_of_taps)?;
        let channels = shape.channels();
        Ok(Self {
            qkv: matrix("attn_qkv", channels, width)?,
            z: matrix("attn_gate", shape.value_width(), width)?,
            alpha: matrix("ssm_alpha", heads, width)?,
            beta: matrix("ssm_beta", heads, width)?,
            taps: (0..shape.taps * channels)
                .map(|i| by_channel[i % channels * shape.taps + i / channels])
                .collect(),
            dt: weights::vector(gguf, &name("ssm_dt.bias"), heads)?,
            a: weights::vector(gguf, &name("ssm_a"), heads)?,
            norm: weights::vector(gguf, &name("ssm_norm.weight"), shape.dim)?,
            out: matrix("ssm_out", width, shape.value_width())?,
        })
    }

    pub(crate) fn matrices(&self) -> [&MappedMatrix; 5] {
        [&self.qkv, &self.z, &self.alpha, &self.beta, &self.out]
    }

    pub(crate) fn copies<'a>(
        &'a self,
        copy: impl Fn(&'a MappedMatrix) -> Floats<'a>,
    ) -> DeltaCopies<'a> {
        DeltaCopies(self.matrices().map(copy))
    }

    /// Runs the rows through the layer, adds the result to `residual [rows, width]` and updates the state. Allocates
    /// nothing.
    ///
    /// # Errors
    /// [`Stopped`]; residual and state are then partly written.
    pub(crate) fn add(
        &self,
        task: &DeltaTask<'_>,
        residual: &mut [f32],
        state: &mut DeltaState,
        scratch: &mut DeltaScratch,
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let &DeltaTask {
            config,
            shape,
            copies,
            normed,
        } = task;
        let rows = normed.len() / config.width;
        let DeltaScratch {
            mixed,
            convolved,
            z,
            seen,
            decay,
            beta,
            added,
            rounded,
        } = scratch;
        let mixed = &mut mixed[..rows * shape.channels()];
        let convolved = &mut convolved[..mixed.len()];
        let z = &mut z[..rows * shape.value_width()];
        let seen = &mut seen[..z.len()];
        let decay = &mut decay[..rows * shape.value_heads];
        let beta = &mut beta[..decay.len()];
        let added = &mut added[..residual.len()];
        let [of_qkv, of_z, of_alpha, of_beta, of_out] = &copies.0;
        multiply(&self.qkv, of_qkv, normed, rounded, mixed, stop)?;
        multiply(&self.z, of_z, normed, rounded, z, stop)?;
        multiply(&self.alpha, of_alpha, normed, rounded, decay, stop)?;
        multiply(&self.beta, of_beta, normed, rounded, beta, stop)?;
        for row in decay.chunks_exact_mut(shape.value_heads) {
            for ((x, dt), a) in row.iter_mut().zip(&self.dt).zip(&self.a) {
                *x = (a * softplus(*x + dt)).exp();
            }
        }
        beta.iter_mut().for_each(|x| *x = 1.0 / (1.0 + (-*x).exp()));
        convolve(state, &self.taps, mixed, convolved);
        normalise_queries_and_keys(shape, convolved);
        let task = DeltaRule {
            qkv: convolved,
            decay,
            beta,
        };
        delta_rule(&task, state, seen, stop)?;
        rms_norm_in_place(seen, &self.norm, config.norm_eps);
        silu_mul(z, seen);
        multiply(&self.out, of_out, z, rounded, added, stop)?;
        add_assign(residual, added);
        Ok(())
    }
}

/// `ln(1 + exp(x))`.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}
