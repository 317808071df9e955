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
//! product computes that norm, the addition and the next norm. Attention takes a second launch if `head_dim` is not a
//! multiple of 32 (to quantise the output), or if the method reads probabilities; with class tables it takes five.

use half::f16;
use kept_cuda::{Buffer, Device, DeviceError, RowInputs, StepHeads, StepLayer, Weights};
use kept_models::Config;

use super::weights::Matrices;
use super::{GpuModel, GpuRope, activation};

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
    /// All parts, in order, and their names in plain words.
    pub const ALL: [(Self, &'static str); 8] = [
        (Self::Norm, "norm of the embedding"),
        (Self::Projections, "queries, keys, values"),
        (Self::Heads, "heads, RoPE, the new row"),
        (Self::Attention, "attention"),
        (Self::Output, "output, next norm"),
        (Self::Gated, "gate, up, activation"),
        (Self::Down, "down, next norm"),
        (Self::Logits, "logits"),
    ];

    /// The parts of every layer.
    pub fn is_of_layers(self) -> bool {
        !matches!(self, Self::Norm | Self::Logits)
    }
}

/// Device buffers of a decode step.
pub struct GpuStep {
    /// `[width]`
    residual: Buffer<f32>,
    /// `[width]`: output of attention or of the feed-forward, if it has a norm before the addition.
    sublayer_out: Buffer<f32>,
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
            sublayer_out: device.alloc_uninit(config.width)?,
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

    /// `[width]`: the residual stream; the caller writes the token's embedding to it.
    pub fn residual(&self) -> &Buffer<f32> {
        &self.residual
    }

    /// `[vocab]`
    pub fn logits(&self) -> &Buffer<f32> {
        &self.logits
    }
}

/// Where a step is.
struct LayerOfStep<'a> {
    layer: usize,
    cached: &'a mut StepLayer,
    rope: &'a GpuRope,
}

/// The end of a sublayer: the product that is added to the residual stream, and the norms around the addition.
struct SublayerEnd<'a> {
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
        let runs = |part: &StepPart| only.is_none_or(|only| only == *part);
        if runs(&StepPart::Norm) {
            let first = self.norm(&self.layers[0].attention_norm);
            device.step_norm(&mut step.residual, None, first, &mut step.inputs)?;
        }
        for (layer, cached) in layers.iter_mut().enumerate() {
            let mut at = LayerOfStep {
                layer,
                cached,
                rope,
            };
            let parts = StepPart::ALL.into_iter().map(|(part, _)| part);
            let parts = parts.filter(|part| part.is_of_layers());
            for part in parts.filter(runs) {
                self.step_part(device, step, part, &mut at, &mut attend)?;
            }
        }
        if runs(&StepPart::Logits) {
            self.step_logits(device, step)?;
        }
        Ok(())
    }

    /// One part of a layer.
    fn step_part(
        &self,
        device: &Device,
        step: &mut GpuStep,
        part: StepPart,
        at: &mut LayerOfStep<'_>,
        attend: &mut impl FnMut(
            usize,
            &StepLayer,
            &Buffer<f16>,
            &mut RowInputs,
        ) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let own = &self.layers[at.layer];
        let [q, k, v, _, gate, up, _] = &own.matrices;
        match part {
            // Before and after the layers.
            StepPart::Norm | StepPart::Logits => Ok(()),
            StepPart::Projections => {
                let mut products = [
                    (q, own.q_bias.as_ref(), &mut step.q),
                    (k, own.k_bias.as_ref(), &mut step.k),
                    (v, own.v_bias.as_ref(), &mut step.v),
                ];
                device.step_products(&mut products, &step.inputs, false, None)
            }
            StepPart::Heads => {
                let heads = StepHeads {
                    q: &step.q,
                    k: &step.k,
                    v: &step.v,
                    q_norm: own.q_norm.as_ref(),
                    k_norm: own.k_norm.as_ref(),
                    eps: self.config.norm_eps,
                    angles: at.rope.of_layer(at.layer),
                };
                at.cached.put(device, &heads, &mut step.queries)
            }
            StepPart::Attention => attend(at.layer, at.cached, &step.queries, &mut step.attention),
            StepPart::Output => {
                let end = self.end_of_attention(at.layer);
                let GpuStep {
                    residual,
                    sublayer_out,
                    attention,
                    inputs,
                    ..
                } = step;
                self.finish_sublayer(device, end, [residual, sublayer_out], attention, inputs)
            }
            StepPart::Gated => {
                let activation = activation(&self.config)?;
                device.step_gated(activation, gate, up, &step.inputs, &mut step.gated)
            }
            StepPart::Down => {
                let end = self.end_of_feed_forward(at.layer);
                let GpuStep {
                    residual,
                    sublayer_out,
                    gated,
                    inputs,
                    ..
                } = step;
                self.finish_sublayer(device, end, [residual, sublayer_out], gated, inputs)
            }
        }
    }

    /// Bytes of weights that a part of a step reads, over all layers.
    pub fn part_bytes(&self, part: StepPart) -> u64 {
        let of_layers = |matrices: fn(&Matrices) -> Vec<&Weights>| {
            let all = self
                .layers
                .iter()
                .flat_map(|layer| matrices(&layer.matrices));
            all.map(Weights::size).sum()
        };
        match part {
            StepPart::Norm | StepPart::Heads | StepPart::Attention => 0,
            StepPart::Projections => of_layers(|[q, k, v, ..]| vec![q, k, v]),
            StepPart::Output => of_layers(|[_, _, _, o, ..]| vec![o]),
            StepPart::Gated => of_layers(|[.., gate, up, _]| vec![gate, up]),
            StepPart::Down => of_layers(|[.., down]| vec![down]),
            StepPart::Logits => self.output.size(),
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

    fn end_of_attention(&self, layer: usize) -> SublayerEnd<'_> {
        let own = &self.layers[layer];
        let [_, _, _, o, ..] = &own.matrices;
        SublayerEnd {
            weights: o,
            bias: own.o_bias.as_ref(),
            post_norm: own.post_attention_norm.as_ref(),
            next_norm: &own.ffn_norm,
        }
    }

    fn end_of_feed_forward(&self, layer: usize) -> SublayerEnd<'_> {
        let (own, next) = (&self.layers[layer], self.layers.get(layer + 1));
        let [.., down] = &own.matrices;
        SublayerEnd {
            weights: down,
            bias: None,
            post_norm: own.post_ffn_norm.as_ref(),
            next_norm: next.map_or(&self.output_norm, |next| &next.attention_norm),
        }
    }

    /// Adds the output of a sublayer to the residual stream and computes the inputs of the next one.
    fn finish_sublayer(
        &self,
        device: &Device,
        end: SublayerEnd<'_>,
        [residual, sublayer_out]: [&mut Buffer<f32>; 2],
        inputs: &RowInputs,
        out: &mut RowInputs,
    ) -> Result<(), DeviceError> {
        let next = self.norm(end.next_norm);
        if end.post_norm.is_none() {
            return device.step_added((end.weights, end.bias, residual), inputs, next, out);
        }
        let mut product = [(end.weights, end.bias, &mut *sublayer_out)];
        device.step_products(&mut product, inputs, false, None)?;
        device.step_norm(residual, Some((sublayer_out, end.post_norm)), next, out)
    }
}
