//! A model on a GPU: its weights there, and the decoder's own arithmetic over buffers instead of slices. What a layer is
//! stands in `decoder.rs`; this is the same, piece for piece.
//!
//! ```text
//! CardModel     weights of all layers, copied once (gpu_weights.rs)
//! CardPass      scratch of some rows on their way through a layer: project, ready_*, then E: attention, then finish
//! CardRope      the rotation's angles
//! ```
//!
//! Embeddings are looked up on the host: a row each. Not here: attention and caches, as in `decoder.rs`.

use std::sync::Arc;

use half::f16;
use kept_cuda::{
    Angles, Buffer, Device, DeviceError, Heads, LayerRows, MemorySpace, ProductScratch,
    RowPositions, Weights,
};
use kept_kernels::Pairing;

use crate::architecture::Activation;
use crate::config::{Config, LayerKind, LayerRotation};
use crate::decoder::widest;
use crate::gpu_weights::{GpuLayer, Slot, spaces};
use crate::model::Model;
use crate::rope::RopeTable;

/// A model's weights on a device.
pub struct GpuModel {
    device: Device,
    pub(crate) config: Config,
    pub(crate) layers: Vec<GpuLayer>,
    pub(crate) output_norm: Buffer<f32>,
    pub(crate) output: Weights,
    /// Bytes of a [`Slot`].
    slot: usize,
    /// Bytes of the device that were free before.
    free_before: u64,
}

/// Where rows of one layer stand.
#[derive(Clone, Copy)]
pub struct RopeContext<'a> {
    /// The layer's rotation, if it has any.
    pub angles: Option<Angles<'a>>,
    /// The rows' places in it.
    pub places: RowPositions<'a>,
}

impl RopeContext<'_> {
    /// Not rotated.
    pub const RAW: RopeContext<'static> = RopeContext {
        angles: None,
        places: RowPositions::From(0),
    };
}

/// Scratch of some rows on their way through any layer.
pub struct GpuPass {
    rows: usize,
    /// `[rows, width]`: the residual, normed; then what a half of the layer adds to it.
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
    /// For weights that are not on the device.
    slot: Slot,
}

impl GpuPass {
    /// Scratch of `rows` rows through layers of `gpu`, in memory of `device`, which is the GPU's or stands for it.
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
            products: ProductScratch::new(device, rows, widest(config))?,
            slot: Slot::new(device, gpu.slot, rows)?,
        })
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        let buffers = [
            &self.normed,
            &self.q,
            &self.k,
            &self.v,
            &self.gate,
            &self.up,
        ];
        let buffers = buffers.iter().map(|b| b.bytes()).sum::<u64>();
        buffers + self.products.bytes() + self.slot.bytes()
    }

    /// Queries, keys and values as they were projected: `[rows, heads, head_dim]` each.
    pub(crate) fn projected(&self) -> [&Buffer<f32>; 3] {
        [&self.q, &self.k, &self.v]
    }
}

impl GpuModel {
    /// Copies `model` to `device`; of its layers as many as fit there and leave room for a question, the others to memory of the host's.
    ///
    /// # Errors
    /// [`DeviceError`] when it does not fit, or there are no kernels for its heads or its weights.
    fn new(model: &Model, device: Device) -> Result<Self, DeviceError> {
        let config = model.config.clone();
        kept_cuda::supports(config.head_dim)?;
        let free_before = device.free_memory()?;
        let spaces = spaces(model, &device)?;
        let layers = model.layers.iter().zip(spaces);
        let layers = layers.map(|(layer, space)| GpuLayer::new(layer, &device, space));
        let layers = layers.collect::<Result<Vec<_>, DeviceError>>()?;
        let [output] = Weights::of(&device, MemorySpace::Device, [&model.output])?;
        Ok(Self {
            slot: (layers.iter().map(GpuLayer::slot_bytes)).max().unwrap_or(0),
            layers,
            output_norm: device.copy_of(&model.output_norm)?,
            output,
            config,
            device,
            free_before,
        })
    }

    /// Bytes of the device that were free before anything of the model was there.
    pub fn free_before(&self) -> u64 {
        self.free_before
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Bytes of weights on the device.
    pub fn bytes(&self) -> u64 {
        let layers = self.layers.iter().map(GpuLayer::bytes);
        layers.sum::<u64>() + self.output.bytes() + self.output_norm.bytes()
    }

    /// Bytes of weights that did not fit the device: in memory of the host's, where it reads them time and again.
    pub fn host_bytes(&self) -> u64 {
        let layers = self.layers.iter();
        layers.map(|layer| layer.matrices.host_bytes()).sum()
    }

    /// First half of a layer: projects `residual [rows, width]`; queries, keys and values stay in the pass, raw.
    ///
    /// # Panics
    /// When a length does not fit or there is no such layer.
    pub fn project(
        &self,
        layer: usize,
        residual: &Buffer<f32>,
        rows: usize,
        pass: &mut GpuPass,
    ) -> Result<(), DeviceError> {
        assert!(rows <= pass.rows, "{rows} rows of a pass for {}", pass.rows);
        let (device, own) = (&self.device, &self.layers[layer]);
        let norm = (&own.attention_norm, self.config.norm_eps);
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
        let matrices = slot.enter(layer, own)?;
        products.forget();
        for (weights, out) in [(&matrices.q, q), (&matrices.k, k), (&matrices.v, v)] {
            device.multiply(weights, normed, rows, products, out)?;
        }
        Ok(())
    }

    /// Queries `out [rows, q_heads, head_dim]` of what was projected: with bias and norm, rotated.
    pub fn ready_queries(
        &self,
        layer: usize,
        rows: usize,
        stand: RopeContext<'_>,
        pass: &GpuPass,
        out: &mut Buffer<f16>,
    ) -> Result<(), DeviceError> {
        let own = &self.layers[layer];
        let (bias, norm) = (own.q_bias.as_ref(), own.q_norm.as_ref());
        let heads = (rows, self.config.q_heads);
        let task = self.heads(&pass.q, heads, (bias, norm), stand);
        self.device.ready_queries(&task, out)
    }

    /// [`GpuModel::ready_queries`] of one row of which the heads of each group stand at a place of their own: `places [kv_heads]`.
    pub fn ready_queries_apart(
        &self,
        layer: usize,
        stand: RopeContext<'_>,
        pass: &mut GpuPass,
        out: &mut Buffer<f16>,
    ) -> Result<(), DeviceError> {
        let own = &self.layers[layer];
        // A group is a row to the kernel, which would add the same bias to each.
        if let Some(bias) = &own.q_bias {
            self.device.add_to_rows(&mut pass.q, bias, 1)?;
        }
        let heads = (
            self.config.kv_heads,
            self.config.q_heads / self.config.kv_heads,
        );
        let task = self.heads(&pass.q, heads, (None, own.q_norm.as_ref()), stand);
        self.device.ready_queries(&task, out)
    }

    /// Keys of what was projected, with bias and norm, rotated, to the rows from `first` on of every head.
    pub fn ready_keys(
        &self,
        layer: usize,
        rows: usize,
        stand: RopeContext<'_>,
        pass: &GpuPass,
        (first, out): (usize, &mut LayerRows),
    ) -> Result<(), DeviceError> {
        let own = &self.layers[layer];
        let (bias, norm) = (own.k_bias.as_ref(), own.k_norm.as_ref());
        let heads = (rows, self.config.kv_heads);
        let task = self.heads(&pass.k, heads, (bias, norm), stand);
        self.device.ready_rows(&task, first, out)
    }

    /// Values of what was projected, with bias, to the rows from `first` on of every head.
    pub fn ready_values(
        &self,
        layer: usize,
        rows: usize,
        pass: &GpuPass,
        (first, out): (usize, &mut LayerRows),
    ) -> Result<(), DeviceError> {
        let bias = self.layers[layer].v_bias.as_ref();
        let heads = (rows, self.config.kv_heads);
        let task = self.heads(&pass.v, heads, (bias, None), RopeContext::RAW);
        self.device.ready_rows(&task, first, out)
    }

    fn heads<'a>(
        &self,
        projected: &'a Buffer<f32>,
        (rows, heads): (usize, usize),
        (bias, norm): (Option<&'a Buffer<f32>>, Option<&'a Buffer<f32>>),
        stand: RopeContext<'a>,
    ) -> Heads<'a> {
        Heads {
            projected,
            rows,
            heads,
            dim: self.config.head_dim,
            bias,
            norm: norm.map(|norm| (norm, self.config.norm_eps)),
            angles: stand.angles,
            places: stand.places,
        }
    }

    /// Second half of a layer: adds the projected `attention [rows, q_heads, head_dim]` and then the feed-forward to `residual
    /// [rows, width]`.
    ///
    /// # Panics
    /// When a length does not fit or there is no such layer.
    pub fn finish(
        &self,
        layer: usize,
        attention: &Buffer<f32>,
        (residual, rows): (&mut Buffer<f32>, usize),
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
        let matrices = slot.enter(layer, own)?;
        products.forget();
        device.multiply(&matrices.o, attention, rows, products, normed)?;
        if let Some(bias) = &own.o_bias {
            device.add_to_rows(normed, bias, rows)?;
        }
        match &own.post_attention_norm {
            Some(norm) => {
                device.rms_norm(normed, (norm, config.norm_eps), rows, None, Some(residual))?;
            }
            None => device.add(residual, normed, rows * width)?,
        }
        let norm = (&own.ffn_norm, config.norm_eps);
        device.rms_norm(residual, norm, rows, Some(normed), None)?;
        products.forget();
        device.multiply(&matrices.gate, normed, rows, products, gate)?;
        device.multiply(&matrices.up, normed, rows, products, up)?;
        device.activate(activation(config), (gate, ffn), (up, ffn), (rows, ffn))?;
        products.forget();
        device.multiply(&matrices.down, gate, rows, products, normed)?;
        match &own.post_ffn_norm {
            Some(norm) => {
                device.rms_norm(normed, (norm, config.norm_eps), rows, None, Some(residual))
            }
            None => device.add(residual, normed, rows * width),
        }
    }

    /// Logits `[vocab]` of one row of the residual after the last layer.
    ///
    /// # Panics
    /// When a length does not fit.
    pub fn logits(
        &self,
        residual: &Buffer<f32>,
        pass: &mut GpuPass,
        logits: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        let norm = (&self.output_norm, self.config.norm_eps);
        self.device
            .rms_norm(residual, norm, 1, Some(&mut pass.normed), None)?;
        pass.products.forget();
        let products = &mut pass.products;
        self.device
            .multiply(&self.output, &pass.normed, 1, products, logits)?;
        match self.config.logit_cap {
            Some(cap) => self.device.soft_cap(logits, cap),
            None => Ok(()),
        }
    }
}

pub(crate) fn activation(config: &Config) -> kept_cuda::Activation {
    match config.activation {
        Activation::Silu => kept_cuda::Activation::Silu,
        Activation::GeluTanh => kept_cuda::Activation::Gelu,
    }
}

/// A table of angles on the device.
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

    fn angles(&self) -> Angles<'_> {
        Angles {
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
    /// A copy of `rope`.
    pub fn new(device: &Device, rope: &RopeTable) -> Result<Self, DeviceError> {
        let windows = rope.of_windows();
        Ok(Self {
            own: GpuTable::new(device, rope)?,
            of_windows: windows.map(|t| GpuTable::new(device, t)).transpose()?,
            kinds: rope.kinds().to_vec(),
        })
    }

    /// The rotation of one layer of the model; `None` where it is not rotated.
    ///
    /// # Panics
    /// When there is no such layer.
    pub fn of_layer(&self, layer: usize) -> Option<Angles<'_>> {
        match self.kinds[layer].rotation {
            LayerRotation::None => None,
            LayerRotation::Rope => Some(self.own.angles()),
            LayerRotation::WindowRope => self.of_windows.as_ref().map(GpuTable::angles),
        }
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        let tables = [Some(&self.own), self.of_windows.as_ref()];
        let tables = tables.into_iter().flatten();
        tables.map(|t| t.cos.bytes() + t.sin.bytes()).sum()
    }
}

impl Model {
    /// The same model with its weights on `device` too, where everything is then computed but what only few methods ask for.
    ///
    /// # Errors
    /// [`DeviceError`] when it does not fit, or there are no kernels for its heads or its weights.
    pub fn on_gpu(mut self, device: Device) -> Result<Model, DeviceError> {
        self.take_gpu(device)?;
        Ok(self)
    }

    /// [`Model::on_gpu`] in place: after an error the model is as it was.
    ///
    /// # Errors
    /// As there.
    pub fn take_gpu(&mut self, device: Device) -> Result<(), DeviceError> {
        self.gpu = Some(Arc::new(GpuModel::new(self, device)?));
        Ok(())
    }

    /// The weights on a GPU, if they are there.
    pub fn gpu(&self) -> Option<&GpuModel> {
        self.gpu.as_deref()
    }

    /// The same, for whoever holds it longer than the model.
    pub fn shared_gpu(&self) -> Option<Arc<GpuModel>> {
        self.gpu.clone()
    }
}
