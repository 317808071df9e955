//! A model on a GPU: its weights, and the decoder's arithmetic over device buffers. `models/src/decoder.rs` describes a
//! layer; this module has the same steps.
//!
//! ```text
//! GpuModel     weights of all layers, uploaded once (weights.rs)
//! GpuPass      scratch buffers for rows of a layer: project, ready_*, then E: attention, then finish
//! GpuRope      RoPE angles
//! ```
//!
//! Embeddings are looked up on the host, one row each. Attention and caches are not here.

mod step;
mod weights;

use std::ops::Range;

use half::f16;
use kept_cuda::{
    Buffer, Device, DeviceError, Heads, LayerRows, MemorySpace, ProductScratch, RmsNorm,
    RopeTables, RowPositions, Weights,
};
use kept_kernels::{Pairing, Scale};
use kept_models::{Activation, Config, LayerKind, LayerRotation, Model, RopeTable};

pub use step::{GpuStep, StepPart};
use weights::{GpuLayer, Slot, host_bytes, spaces};

/// A model's weights on a device.
pub struct GpuModel {
    device: Device,
    /// The device, as a handle that counts the weights.
    weights: Device,
    pub(crate) config: Config,
    pub(crate) layers: Vec<GpuLayer>,
    pub(crate) output_norm: Buffer<f32>,
    pub(crate) output: Weights,
    /// Size of a [`Slot`] in bytes.
    slot: usize,
    /// Free device memory before the model was uploaded, in bytes.
    free_before: u64,
}

/// RoPE angles and positions of the rows of one layer.
#[derive(Clone, Copy)]
pub struct RopeContext<'a> {
    /// The layer's angles; `None` if the layer has no RoPE.
    pub angles: Option<RopeTables<'a>>,
    /// The rows' indices into the angles.
    pub positions: RowPositions<'a>,
}

impl RopeContext<'_> {
    /// No rotation.
    pub const RAW: RopeContext<'static> = RopeContext {
        angles: None,
        positions: RowPositions::From(0),
    };
}

/// Scratch buffers for rows of any layer.
pub struct GpuPass {
    rows: usize,
    /// `[rows, width]`: the residual stream after the norm; then the output of attention or of the feed-forward.
    normed: Buffer<f32>,
    /// `[rows, q_heads, head_dim]`, as projected
    q: Buffer<f32>,
    /// `[rows, kv_heads, head_dim]`, as projected
    k: Buffer<f32>,
    /// `[rows, kv_heads, head_dim]`, as projected
    v: Buffer<f32>,
    /// `[rows, ffn]`
    gate: Buffer<f32>,
    /// `[rows, ffn]`
    up: Buffer<f32>,
    products: ProductScratch,
    /// Staging for weights that are not on the device.
    slot: Slot,
}

impl GpuPass {
    /// Allocates scratch buffers for `rows` rows of `gpu` in memory of `device`: the GPU, or a device that measures
    /// allocations.
    pub fn new(device: &Device, gpu: &GpuModel, rows: usize) -> Result<Self, DeviceError> {
        let config = &gpu.config;
        Ok(Self {
            rows,
            normed: device.alloc_uninit(rows * config.width)?,
            q: device.alloc_uninit(rows * config.q_width())?,
            k: device.alloc_uninit(rows * config.kv_width())?,
            v: device.alloc_uninit(rows * config.kv_width())?,
            gate: device.alloc_uninit(rows * config.ffn)?,
            up: device.alloc_uninit(rows * config.ffn)?,
            products: ProductScratch::new(device, rows, config.widest_input())?,
            slot: Slot::new(device, gpu.slot, rows)?,
        })
    }

    /// Queries, keys and values as projected: `[rows, heads, head_dim]` each.
    pub fn projected(&self) -> [&Buffer<f32>; 3] {
        [&self.q, &self.k, &self.v]
    }
}

impl GpuModel {
    /// Uploads `model` to `device`. As many layers as fit, with memory left for a question, go to the device; the
    /// others go to host memory.
    ///
    /// # Errors
    /// [`DeviceError`] if the model does not fit, or if the head dimension or a weight type has no kernel.
    pub fn new(model: &Model, device: Device) -> Result<Self, DeviceError> {
        let config = model.config().clone();
        kept_cuda::supports(config.head_dim, config.width)?;
        let weights = model.dense_weights();
        let weights = weights.map_err(|part| DeviceError::Part { part })?;
        let free_before = device.free_memory()?;
        let spaces = spaces(&weights, &device)?;
        let counting = device.counting();
        let layers = weights.layers.iter().zip(spaces);
        let layers = layers.map(|(layer, space)| weights::upload(layer, &counting, space));
        let layers = layers.collect::<Result<Vec<_>, DeviceError>>()?;
        let [output] = Weights::of(&counting, MemorySpace::Device, [weights.output])?;
        Ok(Self {
            slot: layers.iter().map(host_bytes).max().unwrap_or(0) as usize,
            layers,
            output_norm: counting.copy_of(weights.output_norm)?,
            output,
            config,
            device,
            weights: counting,
            free_before,
        })
    }

    /// Free device memory before the model was uploaded, in bytes.
    pub fn free_before(&self) -> u64 {
        self.free_before
    }

    /// The model's configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Bytes of weights in device memory.
    pub fn bytes(&self) -> u64 {
        self.weights.held()
    }

    /// Bytes of weights in host memory, because they did not fit on the device. They are read from the host at each
    /// use.
    pub fn host_bytes(&self) -> u64 {
        self.layers.iter().map(host_bytes).sum()
    }

    /// The model's RMSNorm with these weights.
    pub(crate) fn norm<'a>(&self, weight: &'a Buffer<f32>) -> RmsNorm<'a> {
        let eps = self.config.norm_eps;
        RmsNorm { weight, eps }
    }

    /// First half of a layer: projects `residual [rows, width]` to queries, keys and values in `pass`, before bias,
    /// norm and RoPE.
    ///
    /// # Panics
    /// If a length is wrong or there is no such layer.
    pub fn project(
        &self,
        layer: usize,
        residual: &Buffer<f32>,
        rows: usize,
        pass: &mut GpuPass,
    ) -> Result<(), DeviceError> {
        assert!(rows <= pass.rows, "{rows} rows of a pass for {}", pass.rows);
        let (device, own) = (&self.device, &self.layers[layer]);
        let norm = self.norm(&own.attention_norm);
        device.rms_norm(residual, norm, rows, Some(&mut pass.normed), None)?;
        let GpuPass {
            normed,
            q,
            k,
            v,
            products,
            slot,
            ..
        } = pass;
        let [of_q, of_k, of_v, ..] = slot.load(layer, own)?;
        products.forget();
        for (weights, out) in [(of_q, q), (of_k, k), (of_v, v)] {
            device.multiply(weights, normed, rows, products, out)?;
        }
        Ok(())
    }

    /// Writes the projected queries, with bias, norm and RoPE, to `out [rows, q_heads, head_dim]`.
    pub fn norm_and_rotate_queries(
        &self,
        layer: usize,
        rows: usize,
        rope: RopeContext<'_>,
        pass: &GpuPass,
        out: &mut Buffer<f16>,
    ) -> Result<(), DeviceError> {
        let own = &self.layers[layer];
        let (heads, norm) = (self.config.q_heads, own.q_norm.as_ref());
        let task = Heads {
            bias: own.q_bias.as_ref(),
            ..self.heads(&pass.q, rows, heads, norm, rope)
        };
        self.device.norm_and_rotate_queries(&task, out)
    }

    /// Writes the projected keys, with bias, norm and RoPE, to `rows` of every head in `out`.
    pub fn ready_keys(
        &self,
        layer: usize,
        rows: Range<usize>,
        rope: RopeContext<'_>,
        pass: &GpuPass,
        out: &mut LayerRows,
    ) -> Result<(), DeviceError> {
        let own = &self.layers[layer];
        let (heads, norm) = (self.config.kv_heads, own.k_norm.as_ref());
        let task = Heads {
            bias: own.k_bias.as_ref(),
            ..self.heads(&pass.k, rows.len(), heads, norm, rope)
        };
        self.device.norm_and_rotate_rows(&task, rows.start, out)
    }

    /// Writes the projected values, with bias, to `rows` of every head in `out`.
    pub fn ready_values(
        &self,
        layer: usize,
        rows: Range<usize>,
        pass: &GpuPass,
        out: &mut LayerRows,
    ) -> Result<(), DeviceError> {
        let heads = self.config.kv_heads;
        let task = Heads {
            bias: self.layers[layer].v_bias.as_ref(),
            ..self.heads(&pass.v, rows.len(), heads, None, RopeContext::RAW)
        };
        self.device.norm_and_rotate_rows(&task, rows.start, out)
    }

    /// Projected heads without a bias.
    fn heads<'a>(
        &self,
        projected: &'a Buffer<f32>,
        rows: usize,
        heads: usize,
        norm: Option<&'a Buffer<f32>>,
        rope: RopeContext<'a>,
    ) -> Heads<'a> {
        Heads {
            projected,
            rows,
            heads,
            dim: self.config.head_dim,
            bias: None,
            norm: norm.map(|weight| self.norm(weight)),
            angles: rope.angles,
            positions: rope.positions,
        }
    }

    /// Second half of a layer: projects `attention [rows, q_heads, head_dim]`, adds it to `residual [rows, width]`,
    /// then adds the feed-forward.
    ///
    /// # Panics
    /// If a length is wrong or there is no such layer.
    pub fn finish(
        &self,
        layer: usize,
        attention: &Buffer<f32>,
        residual: &mut Buffer<f32>,
        rows: usize,
        pass: &mut GpuPass,
    ) -> Result<(), DeviceError> {
        assert!(rows <= pass.rows, "{rows} rows of a pass for {}", pass.rows);
        let (device, config, own) = (&self.device, &self.config, &self.layers[layer]);
        let (width, ffn) = (config.width, config.ffn);
        let GpuPass {
            normed,
            gate,
            up,
            products,
            slot,
            ..
        } = pass;
        let [_, _, _, o, gates, ups, down] = slot.load(layer, own)?;
        products.forget();
        device.multiply(o, attention, rows, products, normed)?;
        if let Some(bias) = &own.o_bias {
            device.add_to_rows(normed, bias, rows)?;
        }
        match &own.post_attention_norm {
            Some(norm) => {
                device.rms_norm(normed, self.norm(norm), rows, None, Some(residual))?;
            }
            None => device.add(residual, normed, rows * width)?,
        }
        let norm = self.norm(&own.ffn_norm);
        device.rms_norm(residual, norm, rows, Some(normed), None)?;
        products.forget();
        device.multiply(gates, normed, rows, products, gate)?;
        device.multiply(ups, normed, rows, products, up)?;
        device.activate(activation(config)?, gate, up, rows, ffn)?;
        products.forget();
        device.multiply(down, gate, rows, products, normed)?;
        match &own.post_ffn_norm {
            Some(norm) => device.rms_norm(normed, self.norm(norm), rows, None, Some(residual)),
            None => device.add(residual, normed, rows * width),
        }
    }
}

/// Scale and cap of attention logits. No model on a GPU has sinks.
pub fn attention_scale(config: &Config) -> Scale<'static> {
    Scale {
        factor: config.attention_scale,
        cap: config.attention_cap,
        sinks: None,
    }
}

/// # Errors
/// [`DeviceError::Part`] for an activation without a kernel.
pub(crate) fn activation(config: &Config) -> Result<kept_cuda::Activation, DeviceError> {
    match config.activation {
        Activation::Silu => Ok(kept_cuda::Activation::Silu),
        Activation::GeluTanh => Ok(kept_cuda::Activation::Gelu),
        Activation::SwigluClamped | Activation::ReluSquared | Activation::Xielu(_) => {
            Err(DeviceError::Part {
                part: "this model's activation",
            })
        }
    }
}

/// A table of RoPE angles on the device.
struct GpuTable {
    cos: Buffer<f32>,
    sin: Buffer<f32>,
    pairs: usize,
    pairing: Pairing,
}

impl GpuTable {
    fn new(device: &Device, table: &RopeTable) -> Result<Self, DeviceError> {
        Ok(Self {
            cos: device.copy_of(table.cosines())?,
            sin: device.copy_of(table.sines())?,
            pairs: table.pairs(),
            pairing: table.pairing(),
        })
    }

    fn angles(&self) -> RopeTables<'_> {
        RopeTables {
            cos: &self.cos,
            sin: &self.sin,
            rope_dim: 2 * self.pairs,
            pairing: self.pairing,
        }
    }
}

/// A [`RopeTable`] on the device.
pub struct GpuRope {
    own: GpuTable,
    of_windows: Option<GpuTable>,
    kinds: Vec<LayerKind>,
}

impl GpuRope {
    /// Uploads `rope`.
    pub fn new(device: &Device, rope: &RopeTable) -> Result<Self, DeviceError> {
        let windows = rope.of_windows();
        Ok(Self {
            own: GpuTable::new(device, rope)?,
            of_windows: windows.map(|t| GpuTable::new(device, t)).transpose()?,
            kinds: rope.kinds().to_vec(),
        })
    }

    /// The angles of one layer; `None` if the layer has no RoPE.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn of_layer(&self, layer: usize) -> Option<RopeTables<'_>> {
        match self.kinds[layer].rotation {
            LayerRotation::None => None,
            LayerRotation::Rope => Some(self.own.angles()),
            LayerRotation::WindowRope => self.of_windows.as_ref().map(GpuTable::angles),
        }
    }
}
