//! Decodes one token on a GPU in few kernel launches, so that a step can be captured in a CUDA graph and replayed.
//! Computes the same as [`GpuModel`]'s functions for many rows, with fused kernels:
//!
//! ```text
//! begin   norm
//! layer   1 q, k, v | 2 heads to the cache | 3 attention | 4 + o, norm | 5 gate, up, activation | 6 + down, norm
//! end     logits
//! ```
//!
//! The cache implements 2 and 3. If the output of attention or of the feed-forward has its own norm, a launch after the
//! product computes that norm, the addition and the next norm. Attention takes a second launch if `head_dim` is not a multiple
//! of 32 (to quantise the output), or if the method reads probabilities; with class tables it takes five.

use half::f16;
use kept_cuda::{Buffer, Device, DeviceError, RowInputs, StepHeads, StepLayer, Weights};

use crate::config::Config;
use crate::gpu::weights::Matrices;
use crate::gpu::{GpuModel, GpuRope, activation};

/// A part of a decode step, to time it alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepPart {
    /// Norm of the embedding.
    Norm,
    /// Queries, keys and values.
    Projections,
    /// Norms of heads, RoPE, the new row.
    Heads,
    /// Attention over the kept rows.
    Attention,
    /// Output of attention, added to the residual stream, and the next norm.
    Output,
    /// Gate and up projections, activation.
    Gated,
    /// Down projection, added to the residual stream, and the next norm.
    Down,
    /// Logits.
    Logits,
}

impl StepPart {
    /// All parts, in the order of a layer.
    pub const ALL: [Self; 8] = [
        Self::Norm,
        Self::Projections,
        Self::Heads,
        Self::Attention,
        Self::Output,
        Self::Gated,
        Self::Down,
        Self::Logits,
    ];

    /// In plain words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Norm => "norm of the embedding",
            Self::Projections => "queries, keys, values",
            Self::Heads => "heads, RoPE, the new row",
            Self::Attention => "attention",
            Self::Output => "output, next norm",
            Self::Gated => "gate, up, activation",
            Self::Down => "down, next norm",
            Self::Logits => "logits",
        }
    }
}

/// Device buffers of a decode step.
pub struct GpuStep {
    /// `[width]`
    residual: Buffer<f32>,
    /// `[width]`: output of attention or of the feed-forward, if it has a norm before the addition.
    half: Buffer<f32>,
    /// `[width]`, after the norm
    inputs: RowInputs,
    /// `[q_heads, head_dim]`, as projected
    q: Buffer<f32>,
    /// `[kv_heads, head_dim]`, as projected
    k: Buffer<f32>,
    /// `[kv_heads, head_dim]`, as projected
    v: Buffer<f32>,
    /// `[q_heads, head_dim]`
    queries: Buffer<f16>,
    /// `[q_heads, head_dim]`
    attention: RowInputs,
    /// `[ffn]`
    gated: RowInputs,
    /// `[vocab]`
    logits: Buffer<f32>,
}

impl GpuStep {
    /// Allocates all buffers of a step.
    pub fn new(device: &Device, config: &Config) -> Result<Self, DeviceError> {
        Ok(Self {
            residual: device.alloc_uninit(config.width)?,
            half: device.alloc_uninit(config.width)?,
            inputs: RowInputs::new(device, config.width)?,
            q: device.alloc_uninit(config.q_width())?,
            k: device.alloc_uninit(config.kv_width())?,
            v: device.alloc_uninit(config.kv_width())?,
            queries: device.alloc_uninit(config.q_width())?,
            attention: RowInputs::new(device, config.q_width())?,
            gated: RowInputs::new(device, config.ffn)?,
            logits: device.alloc_uninit(config.vocab)?,
        })
    }

    /// Device memory in bytes.
    pub fn bytes(&self) -> u64 {
        let floats = [
            &self.residual,
            &self.half,
            &self.q,
            &self.k,
            &self.v,
            &self.logits,
        ];
        let rows = [&self.inputs, &self.attention, &self.gated];
        floats.iter().map(|b| b.bytes()).sum::<u64>()
            + rows.iter().map(|row| row.bytes()).sum::<u64>()
            + self.queries.bytes()
    }

    /// `[width]`: the residual stream; the caller writes the token's embedding to it.
    pub fn residual(&self) -> &Buffer<f32> {
        &self.residual
    }

    /// `[vocab]`
    pub fn logits(&self) -> &Buffer<f32> {
        &self.logits
    }
}

/// The end of a half layer: the product that is added to the residual stream, and the norms around the addition.
struct HalfLayer<'a> {
    weights: &'a Weights,
    bias: Option<&'a Buffer<f32>>,
    /// Of the product, before the addition.
    post_norm: Option<&'a Buffer<f32>>,
    /// Of the residual stream, after the addition.
    next_norm: &'a Buffer<f32>,
}

impl GpuModel {
    /// Runs the row in `step` through all layers and computes its logits. `attend` computes attention of the queries
    /// over a layer's cached rows, which include the token's own key and value, into the given [`RowInputs`]. With
    /// `only`, nothing but this part of each layer is launched, on the numbers of an earlier step: to time it.
    ///
    /// # Panics
    /// If the number of `layers` or a shape is wrong.
    pub fn step(
        &self,
        device: &Device,
        step: &mut GpuStep,
        layers: &mut [StepLayer],
        rope: &GpuRope,
        only: Option<StepPart>,
        mut attend: impl FnMut(
            usize,
            &StepLayer,
            &Buffer<f16>,
            &mut RowInputs,
        ) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        assert_eq!(layers.len(), self.layers.len(), "a cache for each layer");
        let config = &self.config;
        let runs = |part| only.is_none_or(|only| only == part);
        if runs(StepPart::Norm) {
            let first = self.norm(&self.layers[0].attention_norm);
            device.step_norm(&mut step.residual, None, first, &mut step.inputs)?;
        }
        for (layer, (own, cached)) in self.layers.iter().zip(layers).enumerate() {
            let GpuStep {
                inputs, q, k, v, ..
            } = step;
            let mut projections = [
                (&own.matrices.q, own.q_bias.as_ref(), &mut *q),
                (&own.matrices.k, own.k_bias.as_ref(), &mut *k),
                (&own.matrices.v, own.v_bias.as_ref(), &mut *v),
            ];
            if runs(StepPart::Projections) {
                device.step_products(&mut projections, inputs, false, None)?;
            }
            let heads = StepHeads {
                q,
                k,
                v,
                q_norm: own.q_norm.as_ref(),
                k_norm: own.k_norm.as_ref(),
                eps: config.norm_eps,
                angles: rope.of_layer(layer),
            };
            if runs(StepPart::Heads) {
                cached.put(device, &heads, &mut step.queries)?;
            }
            if runs(StepPart::Attention) {
                attend(layer, cached, &step.queries, &mut step.attention)?;
            }
            let end = HalfLayer {
                weights: &own.matrices.o,
                bias: own.o_bias.as_ref(),
                post_norm: own.post_attention_norm.as_ref(),
                next_norm: &own.ffn_norm,
            };
            if runs(StepPart::Output) {
                self.end_half_layer(
                    device,
                    &mut step.residual,
                    &mut step.half,
                    end,
                    &step.attention,
                    &mut step.inputs,
                )?;
            }
            let (gate, up) = (&own.matrices.gate, &own.matrices.up);
            if runs(StepPart::Gated) {
                device.step_gated(activation(config)?, gate, up, &step.inputs, &mut step.gated)?;
            }
            let next = self.layers.get(layer + 1);
            let end = HalfLayer {
                weights: &own.matrices.down,
                bias: None,
                post_norm: own.post_ffn_norm.as_ref(),
                next_norm: next.map_or(&self.output_norm, |next| &next.attention_norm),
            };
            if runs(StepPart::Down) {
                self.end_half_layer(
                    device,
                    &mut step.residual,
                    &mut step.half,
                    end,
                    &step.gated,
                    &mut step.inputs,
                )?;
            }
        }
        if runs(StepPart::Logits) {
            self.step_logits(device, step)?;
        }
        Ok(())
    }

    /// Bytes of weights that a part of a step reads, over all layers.
    pub fn part_bytes(&self, part: StepPart) -> u64 {
        let of_layers = |matrices: fn(&Matrices) -> Vec<&Weights>| {
            let all = self
                .layers
                .iter()
                .flat_map(|layer| matrices(&layer.matrices));
            all.map(|m| m.bytes() + m.host_bytes()).sum()
        };
        match part {
            StepPart::Norm | StepPart::Heads | StepPart::Attention => 0,
            StepPart::Projections => of_layers(|m| vec![&m.q, &m.k, &m.v]),
            StepPart::Output => of_layers(|m| vec![&m.o]),
            StepPart::Gated => of_layers(|m| vec![&m.gate, &m.up]),
            StepPart::Down => of_layers(|m| vec![&m.down]),
            StepPart::Logits => self.output.bytes(),
        }
    }

    /// Logits of the row in `step`, whose residual stream is that after the last layer.
    pub fn last_logits(&self, step: &mut GpuStep) -> Result<(), DeviceError> {
        let norm = self.norm(&self.output_norm);
        let device = self.device();
        device.step_norm(&mut step.residual, None, norm, &mut step.inputs)?;
        self.step_logits(device, step)
    }

    fn step_logits(&self, device: &Device, step: &mut GpuStep) -> Result<(), DeviceError> {
        let mut product = [(&self.output, None, &mut step.logits)];
        device.step_products(&mut product, &step.inputs, false, self.config.logit_cap)
    }

    /// Adds the output of a half layer to the residual stream and computes the inputs of the next one.
    fn end_half_layer(
        &self,
        device: &Device,
        residual: &mut Buffer<f32>,
        half: &mut Buffer<f32>,
        end: HalfLayer<'_>,
        inputs: &RowInputs,
        out: &mut RowInputs,
    ) -> Result<(), DeviceError> {
        let next = self.norm(end.next_norm);
        if end.post_norm.is_none() {
            return device.step_added((end.weights, end.bias, residual), inputs, next, out);
        }
        device.step_products(
            &mut [(end.weights, end.bias, &mut *half)],
            inputs,
            false,
            None,
        )?;
        device.step_norm(residual, Some((half, end.post_norm)), next, out)
    }
}
