//! The state space of a recurrent layer (`recurrent.rs`): Mamba-2, arXiv 2405.21060; Granite 4.
//!
//! ```text
//! values, keys, queries, convolved --> + bias, SiLU
//! x [width]  --> step = softplus(step x + dt), decay = exp(a step)                                     per head
//!            --> memory of the layer's state --> + d * values --> * silu(z x) --> norm of each group
//! ```

use kept_kernels::mapped::MappedMatrix;
use kept_kernels::{
    LinearAttention, QuantisedRows, RecurrentState, StateSpaceShape, Stop, Stopped, add_assign,
    linear_attention, rms_norm_in_place, silu, silu_mul,
};

use crate::ModelError;
use crate::arithmetic::{multiply, softplus};
use crate::gguf::Gguf;
use crate::rule::RuleTask;
use crate::weights;

/// Weights of one layer's state space.
pub(crate) struct StateSpace {
    shape: StateSpaceShape,
    /// `[value_width, width]`
    z: MappedMatrix,
    /// `[heads, width]`
    step: MappedMatrix,
    /// `[channels]`: bias of the convolution.
    bias: Vec<f32>,
    /// `[heads]`: bias of `step`.
    dt: Vec<f32>,
    /// `[heads]`, negative.
    a: Vec<f32>,
    /// `[heads]`: how much of the values passes by the memory.
    d: Vec<f32>,
    /// `[groups, value_width / groups]`
    norm: Vec<f32>,
}

impl StateSpace {
    /// Reads the weights, and the matrix of the convolution's inputs `[channels, width]`: the file has the three matrices
    /// as one tensor.
    pub(crate) fn read(
        gguf: &Gguf,
        width: usize,
        shape: StateSpaceShape,
        layer: usize,
    ) -> Result<(Self, MappedMatrix), ModelError> {
        let (values, heads) = (shape.value_width(), shape.heads);
        let name = |part: &str| format!("blk.{layer}.{part}");
        let parts = [values, shape.channels(), heads];
        let [z, input, step] = weights::stacked(gguf, &name("ssm_in.weight"), parts, width)?;
        // The reader drops an outer dimension of 1.
        let norm = [shape.groups, values / shape.groups];
        let norm = if shape.groups == 1 { &norm[1..] } else { &norm };
        let vector = |part: &str, shape: &[usize]| weights::vector_of(gguf, &name(part), shape);
        let space = Self {
            shape,
            z,
            step,
            bias: vector("ssm_conv1d.bias", &[shape.channels()])?,
            dt: vector("ssm_dt.bias", &[heads])?,
            a: vector("ssm_a", &[heads, 1])?,
            d: vector("ssm_d", &[heads, 1])?,
            norm: vector("ssm_norm.weight", norm)?,
        };
        Ok((space, input))
    }

    pub(crate) fn matrices(&self) -> [&MappedMatrix; 2] {
        [&self.z, &self.step]
    }

    /// Writes `out [rows, value_width]` and updates the state's memory. The space is the convolution's output `[rows,
    /// channels]`, then `[rows, value_width]` and twice `[rows, heads]` of any content. Allocates nothing.
    ///
    /// # Errors
    /// [`Stopped`]; the state is then partly written.
    pub(crate) fn mix(
        &self,
        task: &RuleTask<'_>,
        [channels, seen, decay, step]: [&mut [f32]; 4],
        state: &mut RecurrentState,
        out: &mut [f32],
        rounded: &mut QuantisedRows,
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let StateSpaceShape {
            groups,
            heads,
            head_dim,
            ..
        } = self.shape;
        let values = self.shape.value_width();
        let outputs = [(0, &mut *out), (1, &mut *step)];
        let products = outputs.map(|(which, out)| (task.copies(which), out));
        multiply(task.normed, rounded, products, stop)?;
        for (step, decay) in step
            .chunks_exact_mut(heads)
            .zip(decay.chunks_exact_mut(heads))
        {
            for (head, (step, decay)) in step.iter_mut().zip(decay).enumerate() {
                *step = softplus(*step + self.dt[head]);
                *decay = (self.a[head] * *step).exp();
            }
        }
        for row in channels.chunks_exact_mut(self.bias.len()) {
            add_assign(row, &self.bias);
        }
        silu(channels);
        let rule = LinearAttention {
            channels,
            decay,
            beta: step,
        };
        linear_attention(&rule, state, seen, stop)?;
        let of_row = channels.chunks_exact(self.bias.len());
        for (seen, channels) in seen.chunks_exact_mut(values).zip(of_row) {
            let of_head = channels.chunks_exact(head_dim).zip(&self.d);
            for (seen, (values, d)) in seen.chunks_exact_mut(head_dim).zip(of_head) {
                for (seen, value) in seen.iter_mut().zip(values) {
                    *seen += d * value;
                }
            }
        }
        silu_mul(out, seen);
        if groups == 1 {
            rms_norm_in_place(out, &self.norm, task.config.norm_eps);
        } else {
            let width = values / groups;
            for row in out.chunks_exact_mut(values) {
                for (x, norm) in row
                    .chunks_exact_mut(width)
                    .zip(self.norm.chunks_exact(width))
                {
                    rms_norm_in_place(x, norm, task.config.norm_eps);
                }
            }
        }
        Ok(())
    }
}
