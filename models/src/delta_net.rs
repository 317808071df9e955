//! The gated delta rule of a recurrent layer (`recurrent.rs`): arXiv 2412.06464; Qwen 3.5, Qwen3-Next.
//!
//! ```text
//! q, k, v, convolved --> SiLU; q and k to length 1
//! x [width]          --> decay = exp(a softplus(alpha x + dt)), beta = sigmoid(beta x)          per value head
//!                    --> delta rule over the layer's state --> norm of each head * silu(z x)
//! ```

use kept_kernels::mapped::MappedMatrix;
use kept_kernels::{
    DeltaShape, LinearAttention, QuantisedRows, RecurrentState, Stop, Stopped, linear_attention,
    normalise_queries_and_keys, rms_norm_in_place, silu, silu_mul,
};

use crate::ModelError;
use crate::arithmetic::{multiply, sigmoid, softplus};
use crate::config::Config;
use crate::gguf::Gguf;
use crate::rule::RuleTask;
use crate::weights;

/// Weights of one layer's rule.
pub(crate) struct DeltaNet {
    shape: DeltaShape,
    /// `[value_width, width]`
    z: MappedMatrix,
    inputs: Inputs,
    /// `[value_heads]`: bias of `alpha`.
    dt: Vec<f32>,
    /// `[value_heads]`, negative.
    a: Vec<f32>,
    /// `[dim]`
    norm: Vec<f32>,
}

/// The inputs of decay and beta.
enum Inputs {
    /// `[value_heads, width]` each.
    Apart([MappedMatrix; 2]),
    /// `[key_heads, 2, value_heads / key_heads, width]`: of each group of value heads those of beta, then of decay.
    Together(MappedMatrix),
}

impl Inputs {
    fn read(
        gguf: &Gguf,
        width: usize,
        shape: DeltaShape,
        layer: usize,
    ) -> Result<Self, ModelError> {
        let matrix = |part: &str, rows| {
            weights::matrix(gguf, &format!("blk.{layer}.{part}.weight"), rows, width)
        };
        let heads = shape.value_heads;
        Ok(match shape.grouped {
            true => Self::Together(matrix("ssm_ba", 2 * heads)?),
            false => Self::Apart([matrix("ssm_alpha", heads)?, matrix("ssm_beta", heads)?]),
        })
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
        let z = weights::matrix(gguf, &name("attn_gate.weight"), shape.value_width(), width)?;
        Ok(Self {
            shape,
            z,
            inputs: Inputs::read(gguf, width, shape, layer)?,
            dt: weights::vector(gguf, &name("ssm_dt.bias"), heads)?,
            a: weights::vector(gguf, &name("ssm_a"), heads)?,
            norm: weights::vector(gguf, &name("ssm_norm.weight"), shape.dim)?,
        })
    }

    pub(crate) fn matrices(&self) -> [Option<&MappedMatrix>; 3] {
        match &self.inputs {
            Inputs::Apart([alpha, beta]) => [Some(&self.z), Some(alpha), Some(beta)],
            Inputs::Together(both) => [Some(&self.z), Some(both), None],
        }
    }

    /// Writes `out [rows, value_width]` and updates the state's memory. The space is queries, keys and values, convolved
    /// `[rows, channels]`, then `[rows, value_width]` and twice `[rows, value_heads]` of any content. Allocates nothing.
    ///
    /// # Errors
    /// [`Stopped`]; the state is then partly written.
    pub(crate) fn mix(
        &self,
        task: &RuleTask<'_>,
        [qkv, seen, decay, beta]: [&mut [f32]; 4],
        state: &mut RecurrentState,
        out: &mut [f32],
        rounded: &mut QuantisedRows,
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let shape = self.shape;
        match &self.inputs {
            Inputs::Apart(_) => {
                let outputs = [(0, &mut *out), (1, &mut *decay), (2, &mut *beta)];
                let products = outputs.map(|(which, out)| (task.copies(which), out));
                multiply(task.normed, rounded, products, stop)?;
            }
            Inputs::Together(_) => {
                // The rule writes its outputs there later.
                let both = &mut seen[..2 * decay.len()];
                let products = [(task.copies(0), &mut *out), (task.copies(1), &mut *both)];
                multiply(task.normed, rounded, products, stop)?;
                let group = shape.value_heads / shape.key_heads;
                let outputs = beta
                    .chunks_exact_mut(group)
                    .zip(decay.chunks_exact_mut(group));
                for (both, (beta, decay)) in both.chunks_exact(2 * group).zip(outputs) {
                    beta.copy_from_slice(&both[..group]);
                    decay.copy_from_slice(&both[group..]);
                }
            }
        }
        for row in decay.chunks_exact_mut(shape.value_heads) {
            for ((x, dt), a) in row.iter_mut().zip(&self.dt).zip(&self.a) {
                *x = (a * softplus(*x + dt)).exp();
            }
        }
        beta.iter_mut().for_each(|x| *x = sigmoid(*x));
        silu(qkv);
        normalise_queries_and_keys(shape, qkv);
        let rule = LinearAttention {
            channels: qkv,
            decay,
            beta,
        };
        linear_attention(&rule, state, seen, stop)?;
        rms_norm_in_place(seen, &self.norm, task.config.norm_eps);
        silu_mul(out, seen);
        Ok(())
    }
}
