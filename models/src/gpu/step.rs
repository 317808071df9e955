//! Decodes one token on a GPU in few kernel launches, so that a step can be captured in a CUDA graph and replayed.
//! Computes the same as [`GpuModel`]'s functions for many rows, with fused kernels:
//!
//! ```text
//! layer   1 norm | 2 q, k, v | 3 heads to the cache | 4 attention | 5 + o | 6 norm | 7 gate, up, activation | 8 + down
//! end     norm | logits
//! ```
//!
//! The cache implements 3 and 4. If the output of attention or of the feed-forward has its own norm, one launch
//! computes that norm, the addition and the next norm. Attention takes a second launch if `head_dim` is not a multiple
//! of 32 (to quantise the output), or if the method reads probabilities; with class tables it takes five.

use half::f16;
use kept_cuda::{Buffer, Device, DeviceError, RowInputs, StepHeads, StepLayer};

use crate::config::Config;
use crate::gpu::{GpuModel, GpuRope, activation};

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

/// Output of the previous half layer that still has to be added to the residual stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pending {
    Nothing,
    Attention(usize),
    FeedForward(usize),
}

impl GpuModel {
    /// Runs the row in `step` through all layers and computes its logits. `attend` computes attention of the queries
    /// over a layer's cached rows, which include the token's own key and value, into the given [`RowInputs`].
    ///
    /// # Panics
    /// If the number of `layers` or a shape is wrong.
    pub fn step(
        &self,
        device: &Device,
        step: &mut GpuStep,
        layers: &mut [StepLayer],
        rope: &GpuRope,
        mut attend: impl FnMut(
            usize,
            &StepLayer,
            &Buffer<f16>,
            &mut RowInputs,
        ) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        assert_eq!(layers.len(), self.layers.len(), "a cache for each layer");
        let config = &self.config;
        let mut pending = Pending::Nothing;
        for (layer, (own, cached)) in self.layers.iter().zip(layers).enumerate() {
            self.step_norm(device, step, pending, &own.attention_norm)?;
            let GpuStep {
                inputs, q, k, v, ..
            } = step;
            let mut projections = [
                (&own.matrices.q, own.q_bias.as_ref(), &mut *q),
                (&own.matrices.k, own.k_bias.as_ref(), &mut *k),
                (&own.matrices.v, own.v_bias.as_ref(), &mut *v),
            ];
            device.step_products(&mut projections, inputs, false, None)?;
            let heads = StepHeads {
                q,
                k,
                v,
                q_norm: own.q_norm.as_ref(),
                k_norm: own.k_norm.as_ref(),
                eps: config.norm_eps,
                angles: rope.of_layer(layer),
            };
            cached.put(device, &heads, &mut step.queries)?;
            attend(layer, cached, &step.queries, &mut step.attention)?;
            // Added to the residual directly, unless a norm comes first.
            let apart = own.post_attention_norm.is_some();
            let out = if apart {
                &mut step.half
            } else {
                &mut step.residual
            };
            let mut product = [(&own.matrices.o, own.o_bias.as_ref(), out)];
            device.step_products(&mut product, &step.attention, !apart, None)?;
            let added = if apart {
                Pending::Attention(layer)
            } else {
                Pending::Nothing
            };
            self.step_norm(device, step, added, &own.ffn_norm)?;
            let (gate, up) = (&own.matrices.gate, &own.matrices.up);
            device.step_gated(activation(config)?, gate, up, &step.inputs, &mut step.gated)?;
            let apart = own.post_ffn_norm.is_some();
            let out = if apart {
                &mut step.half
            } else {
                &mut step.residual
            };
            let mut product = [(&own.matrices.down, None, out)];
            device.step_products(&mut product, &step.gated, !apart, None)?;
            pending = if apart {
                Pending::FeedForward(layer)
            } else {
                Pending::Nothing
            };
        }
        self.step_logits(device, step, pending)
    }

    /// Logits of the row in `step`, whose residual stream is that after the last layer.
    pub fn last_logits(&self, step: &mut GpuStep) -> Result<(), DeviceError> {
        self.step_logits(self.device(), step, Pending::Nothing)
    }

    fn step_logits(
        &self,
        device: &Device,
        step: &mut GpuStep,
        pending: Pending,
    ) -> Result<(), DeviceError> {
        self.step_norm(device, step, pending, &self.output_norm)?;
        let mut product = [(&self.output, None, &mut step.logits)];
        device.step_products(&mut product, &step.inputs, false, self.config.logit_cap)
    }

    fn step_norm(
        &self,
        device: &Device,
        step: &mut GpuStep,
        pending: Pending,
        weight: &Buffer<f32>,
    ) -> Result<(), DeviceError> {
        let post = match pending {
            Pending::Nothing => None,
            Pending::Attention(layer) => self.layers[layer].post_attention_norm.as_ref(),
            Pending::FeedForward(layer) => self.layers[layer].post_ffn_norm.as_ref(),
        };
        let added = (pending != Pending::Nothing).then_some((&step.half, post));
        let norm = self.norm(weight);
        device.step_norm(&mut step.residual, added, norm, &mut step.inputs)
    }
}
