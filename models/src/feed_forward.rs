//! The feed-forward of a layer: dense, experts, or the sum of both (Gemma 4).

use kept_kernels::mapped::MappedMatrix;
use kept_kernels::{Stop, Stopped, add_assign, rms_norm, rms_norm_in_place};

use crate::architecture::Activation;
use crate::experts::{ExpertScratch, Experts};
use crate::gguf::Gguf;
use crate::weights::{self, Floats};
use crate::{Config, LayerKind, ModelError};

/// The feed-forward of one layer.
pub(crate) enum FeedForward {
    Dense(Dense),
    Experts(Box<Experts>),
    /// The sum of both.
    Both(Box<DenseAndExperts>),
    /// The layer has none.
    Absent,
}

impl FeedForward {
    pub(crate) fn read(gguf: &Gguf, config: &Config, kind: &LayerKind) -> Result<Self, ModelError> {
        let Some(block) = kind.blocks.feed_forward else {
            return Ok(Self::Absent);
        };
        let dense = || Dense::read(gguf, config, kind.ffn, block);
        let Some(counts) = config.experts.filter(|_| kind.experts) else {
            return dense().map(Self::Dense);
        };
        let experts = Experts::read(gguf, config, counts, block)?;
        Ok(match config.architecture.dense_and_experts {
            true => {
                let both = DenseAndExperts::read(gguf, config, dense()?, experts, block)?;
                Self::Both(Box::new(both))
            }
            false => Self::Experts(Box::new(experts)),
        })
    }

    /// The dense part, if there is one.
    pub(crate) fn dense(&self) -> Option<&Dense> {
        match self {
            Self::Dense(dense) => Some(dense),
            Self::Both(both) => Some(&both.dense),
            Self::Experts(_) | Self::Absent => None,
        }
    }

    /// The experts, if there are any.
    pub(crate) fn experts(&self) -> Option<&Experts> {
        match self {
            Self::Experts(experts) => Some(experts),
            Self::Both(both) => Some(&both.experts),
            Self::Dense(_) | Self::Absent => None,
        }
    }
}

/// A dense feed-forward and experts beside it.
pub(crate) struct DenseAndExperts {
    pub(crate) dense: Dense,
    pub(crate) experts: Experts,
    /// `[width]`: norm of the dense output.
    pub(crate) dense_norm: Vec<f32>,
    /// `[width]`: norm of the residual stream for the experts.
    pub(crate) input_norm: Vec<f32>,
    /// `[width]`: norm of the residual stream for the router.
    pub(crate) router_norm: Vec<f32>,
    /// `[width]`: norm of the experts' output.
    pub(crate) experts_norm: Vec<f32>,
}

impl DenseAndExperts {
    fn read(
        gguf: &Gguf,
        config: &Config,
        dense: Dense,
        experts: Experts,
        block: usize,
    ) -> Result<Self, ModelError> {
        let vector =
            |part: &str| weights::vector(gguf, &format!("blk.{block}.{part}"), config.width);
        let mut router_norm = vector("ffn_gate_inp.scale")?;
        let scale = (config.width as f32).sqrt().recip();
        router_norm.iter_mut().for_each(|x| *x *= scale);
        Ok(Self {
            dense,
            experts,
            dense_norm: vector("post_ffw_norm_1.weight")?,
            input_norm: vector("pre_ffw_norm_2.weight")?,
            router_norm,
            experts_norm: vector("post_ffw_norm_2.weight")?,
        })
    }

    /// Adds the experts' output to `added`, the output of the dense feed-forward, each after its norm. All are `[rows,
    /// width]`; `expert_out` is scratch. Allocates nothing.
    ///
    /// # Errors
    /// [`Stopped`]; `added` is then partly written.
    pub(crate) fn add_experts(
        &self,
        config: &Config,
        input: ExpertInput<'_>,
        [added, expert_out]: [&mut [f32]; 2],
        scratch: &mut ExpertScratch,
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let eps = config.norm_eps;
        let ExpertInput {
            residual,
            normed,
            routed,
            router,
        } = input;
        rms_norm_in_place(added, &self.dense_norm, eps);
        rms_norm(residual, &self.input_norm, eps, normed);
        rms_norm(residual, &self.router_norm, eps, routed);
        expert_out.fill(0.0);
        let seen = [&*normed, &*routed];
        (self.experts).add(config, router, seen, expert_out, scratch, stop)?;
        rms_norm_in_place(expert_out, &self.experts_norm, eps);
        add_assign(added, expert_out);
        Ok(())
    }
}

/// A feed-forward that every token passes through.
pub(crate) struct Dense {
    /// `[ffn, width]`; `None` if the activation has no gate.
    pub(crate) gate: Option<MappedMatrix>,
    /// `[ffn, width]`
    pub(crate) up: MappedMatrix,
    /// `[width, ffn]`
    pub(crate) down: MappedMatrix,
    pub(crate) activation: Activation,
}

impl Dense {
    /// Reads the feed-forward of width `ffn` in `block`.
    fn read(gguf: &Gguf, config: &Config, ffn: usize, block: usize) -> Result<Dense, ModelError> {
        let (width, architecture) = (config.width, config.architecture);
        let name = |part: &str| format!("blk.{block}.{part}.weight");
        let matrix = |part, rows, cols| weights::matrix(gguf, &name(part), rows, cols);
        let (gate, up) = if architecture.fused {
            let [gate, up] = weights::stacked(gguf, &name("ffn_up"), [ffn, ffn], width)?;
            (Some(gate), up)
        } else {
            let gate = architecture.activation.is_gated();
            let gate = gate.then(|| matrix("ffn_gate", ffn, width)).transpose()?;
            (gate, matrix("ffn_up", ffn, width)?)
        };
        Ok(Dense {
            gate,
            up,
            down: matrix("ffn_down", width, ffn)?,
            activation: (config.xielu.get(block))
                .map_or(config.activation, |&numbers| Activation::Xielu(numbers)),
        })
    }

    /// All matrices.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &MappedMatrix> {
        self.gate.iter().chain([&self.up, &self.down])
    }
}

/// What experts beside a dense feed-forward read.
pub(crate) struct ExpertInput<'a> {
    /// `[rows, width]`: the residual stream.
    pub(crate) residual: &'a [f32],
    /// `[rows, width]`: space for what the experts see.
    pub(crate) normed: &'a mut [f32],
    /// `[rows, width]`: space for what the router sees.
    pub(crate) routed: &'a mut [f32],
    /// The router's weights.
    pub(crate) router: &'a Floats<'a>,
}
