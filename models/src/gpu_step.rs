//! One token's way through a model on a GPU in few launches, so that a whole step can be recorded and run again. The same as
//! [`GpuModel`]'s own pieces, of one row, and put together in another way:
//!
//! ```text
//! layer   1 norm | 2 q, k, v | 3 heads into the cache | 4 attention | 5 + o | 6 norm | 7 gate, up, activation | 8 + down
//! end     norm | logits
//! ```
//!
//! 3 and 4 are the cache's. Where a half of a layer is normed before it is added, the next norm does both. Heads that are not made of 32s have
//! their attention rounded by one launch more.

use half::f16;
use kept_cuda::{Buffer, Device, DeviceError, RowInputs, StepHeads, StepLayer};

use crate::config::Config;
use crate::gpu::{GpuModel, GpuRope, activation};

/// Everything a row needs on its way.
pub struct GpuStep {
    /// `[width]`
    residual: Buffer<f32>,
    /// `[width]`: what a half of a layer comes to, where it is normed before it is added.
    half: Buffer<f32>,
    /// `[width]`, normed
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
    /// All memory of a step.
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

    /// Bytes on the device.
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

    /// `[width]`: where a token's embedding is written.
    pub fn residual(&self) -> &Buffer<f32> {
        &self.residual
    }

    /// `[vocab]`
    pub fn logits(&self) -> &Buffer<f32> {
        &self.logits
    }
}

/// What the other half of a layer left to be added.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pending {
    Nothing,
    Attention(usize),
    FeedForward(usize),
}

impl GpuModel {
    /// Runs the row in `step` through all layers, to its logits. `attend` is attention over a layer's rows, after its keys and values were put
    /// there: of the queries into the row that is given to it.
    ///
    /// # Panics
    /// When there are not as many `layers`, or shapes do not fit.
    pub fn step(
        &self,
        device: &Device,
        step: &mut GpuStep,
        (layers, rope): (&mut [StepLayer], &GpuRope),
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
            device.step_products(&mut projections, inputs, (false, None))?;
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
            if !config.head_dim.is_multiple_of(32) {
                device.step_inputs(&mut step.attention)?;
            }
            // Added on the spot, unless it is normed before.
            let apart = own.post_attention_norm.is_some();
            let out = match apart {
                true => &mut step.half,
                false => &mut step.residual,
            };
            let mut product = [(&own.matrices.o, own.o_bias.as_ref(), out)];
            device.step_products(&mut product, &step.attention, (!apart, None))?;
            let added = match apart {
                true => Pending::Attention(layer),
                false => Pending::Nothing,
            };
            self.step_norm(device, step, added, &own.ffn_norm)?;
            let matrices = (&own.matrices.gate, &own.matrices.up);
            device.step_gated(activation(config), matrices, &step.inputs, &mut step.gated)?;
            let apart = own.post_ffn_norm.is_some();
            let out = match apart {
                true => &mut step.half,
                false => &mut step.residual,
            };
            device.step_products(
                &mut [(&own.matrices.down, None, out)],
                &step.gated,
                (!apart, None),
            )?;
            pending = match apart {
                true => Pending::FeedForward(layer),
                false => Pending::Nothing,
            };
        }
        self.step_logits(device, step, pending)
    }

    /// Logits of the row in `step` as it is after the last layer.
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
        device.step_products(&mut product, &step.inputs, (false, self.config.logit_cap))
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
        let norm = (weight, self.config.norm_eps);
        device.step_norm(&mut step.residual, added, norm, &mut step.inputs)
    }
}
