//! Decoding on a GPU with the host. The rows are on the GPU; the host has slots and positions, and a copy of
//! the rows for methods that merge, add or move them. Changed rows are uploaded again. There is one upload
//! and one download per token.
//!
//! ```text
//! host   slots, ranks, tables of all layers | ........................... | logits, probabilities, new rows | method
//! GPU                                      | layer 0, layer 1, .., logits |
//! ```

use half::f16;
use kept_cuda::{
    Buffer, ClassScratch, DecodeScratch, Device, DeviceError, GpuCache, Readback, RowPositions,
};
use kept_kernels::{HeadShape, Scale};
use kept_models::{GpuModel, GpuPass, GpuRope, Model, RopeContext, RopeTable};

use super::plan::DecodePlan;
use super::slot_table::{SlotTable, upload_rows};
use crate::EngineError;
use crate::backend::{DecodeBackend, StepOutput};
use crate::compact::{Changed, CompactCache, CompactLayer};
use crate::decode::{AfterLayer, LayerAttention, Probabilities};
use crate::shape::{gpu_attention_scale, head_shape};

/// The GPU cache and all device buffers of the decode loop.
pub(super) struct HostSteppedDecoder<'a> {
    gpu: &'a GpuModel,
    model: &'a Model,
    rope: GpuRope,
    shape: HeadShape,
    scale: Scale<'static>,
    rows: GpuCache,
    pass: GpuPass,
    /// `[width]`
    residual: Buffer<f32>,
    /// `[q_heads, head_dim]`
    queries: Buffer<f16>,
    /// `[q_heads, head_dim]`
    attention: Buffer<f32>,
    /// `[vocab]`
    logits: Buffer<f32>,
    attend: DecodeScratch,
    by_table: Option<ClassScratch>,
    /// `[layers, q_heads, 2]`: the largest probability of each query head, and its slot.
    best: Buffer<f32>,
    /// `[layers, q_heads, stride]`: all probabilities, if the method reads them.
    probabilities: Buffer<f32>,
    stride: usize,
    /// As `best`, on the host.
    host_best: Vec<f32>,
    /// As `probabilities`, on the host.
    host_probabilities: Vec<f32>,
    readback: Readback<f32>,
    /// `[kv_heads, layers, head_dim]`: keys of the new token, on the host.
    new_keys: Vec<f32>,
    /// As `new_keys`.
    new_values: Vec<f32>,
    slot_table: SlotTable,
    /// `[width]`: the token's embedding.
    embedded: Vec<f32>,
    /// As `logits`, on the host.
    host_logits: Vec<f32>,
    /// Changes of the method to a layer that the GPU does not have yet; a buffer that is reused.
    changed: Vec<Changed>,
}

impl<'a> HostSteppedDecoder<'a> {
    /// Copies `cache` to the GPU, allocated with `gpu_plan`.
    pub(super) fn new(
        gpu: &'a GpuModel,
        model: &'a Model,
        rope: &RopeTable,
        cache: &CompactCache,
        gpu_plan: &DecodePlan,
    ) -> Result<Self, EngineError> {
        let mut decoder = Self::allocate(gpu.device(), gpu, model, rope, gpu_plan)?;
        for (layer, cached) in cache.layers.iter().enumerate() {
            upload_rows(&mut decoder.rows, layer, cached)?;
        }
        Ok(decoder)
    }

    /// Allocates everything on `device`: the GPU or a dry run of it. The rows are uninitialised.
    pub(super) fn allocate(
        device: &Device,
        gpu: &'a GpuModel,
        model: &'a Model,
        rope: &RopeTable,
        gpu_plan: &DecodePlan,
    ) -> Result<Self, DeviceError> {
        let (config, shape) = (model.config(), head_shape(model));
        let layers = gpu_plan.layers.len();
        let (max_rows, max_entries) = (gpu_plan.max_rows, gpu_plan.max_entries);
        let stride = max_rows.max(max_entries);
        let new = shape.kv_heads * layers * shape.head_dim;
        let best = layers * shape.q_heads * 2;
        let probabilities = if gpu_plan.looks {
            layers * shape.q_heads * stride
        } else {
            0
        };
        Ok(Self {
            rope: GpuRope::new(device, rope)?,
            shape,
            scale: gpu_attention_scale(model),
            rows: GpuCache::new(device, shape, &gpu_plan.layers)?,
            pass: GpuPass::new(device, gpu, 1)?,
            residual: device.alloc_uninit(config.width)?,
            queries: device.alloc_uninit(config.q_width())?,
            attention: device.alloc_uninit(config.q_width())?,
            logits: device.alloc_uninit(config.vocab)?,
            attend: DecodeScratch::new(device, shape, max_rows, true)?,
            by_table: (max_entries > 0)
                .then(|| ClassScratch::new(device, shape, max_rows, max_entries))
                .transpose()?,
            best: device.alloc_uninit(best)?,
            probabilities: device.alloc_uninit(probabilities)?,
            stride,
            host_best: vec![0.0; best],
            host_probabilities: vec![0.0; probabilities],
            readback: Readback::new(device, Readback::<f32>::PIECE.min(probabilities))?,
            new_keys: vec![0.0; new],
            new_values: vec![0.0; new],
            slot_table: SlotTable::new(layers, shape.kv_heads),
            embedded: vec![0.0; config.width],
            host_logits: vec![0.0; config.vocab],
            changed: Vec::new(),
            model,
            gpu,
        })
    }

    /// Device bytes without the weights.
    fn bytes(&self) -> u64 {
        let floats = [
            &self.residual,
            &self.attention,
            &self.logits,
            &self.best,
            &self.probabilities,
        ];
        floats.iter().map(|b| b.bytes()).sum::<u64>()
            + self.queries.bytes()
            + self.rope.bytes()
            + self.rows.bytes()
            + self.pass.bytes()
            + self.attend.bytes()
            + self.by_table.as_ref().map_or(0, ClassScratch::bytes)
    }

    /// Uploads a method's changes to a layer.
    fn upload_changes(
        &mut self,
        layer: usize,
        cached: &CompactLayer,
        changed: &mut Vec<Changed>,
    ) -> Result<(), DeviceError> {
        for change in changed.drain(..) {
            match change {
                Changed::Row(head, row) => {
                    let slot = row.0 as usize;
                    let (keys, values) = (&cached.keys, &cached.values);
                    self.rows
                        .write_rows(layer, head, slot..slot + 1, keys, values)?;
                }
                Changed::Table => self.slot_table.table_changed(layer),
                // In a quantised cache, rows only trade places: slots are renumbered and no row moves.
                Changed::Rows if cached.keys.cache_type().is_quantised() => {
                    self.slot_table.places_changed(layer);
                }
                Changed::Rows => upload_rows(&mut self.rows, layer, cached)?,
            }
        }
        Ok(())
    }

    /// Runs a token through all layers. Downloads its logits, its rows to the cache, and the probabilities for
    /// [`HostSteppedDecoder::probabilities`] and [`HostSteppedDecoder::most_attended`].
    fn run(&mut self, token: u32, cache: &mut CompactCache) -> Result<(), DeviceError> {
        self.model.embed(&[token], &mut self.embedded);
        self.residual.write(0, &self.embedded)?;
        self.slot_table.assign_slots(cache, &mut self.rows)?;
        self.rows.send()?;
        for layer in 0..cache.layers.len() {
            self.run_layer(layer, cache)?;
        }
        self.gpu
            .logits(&self.residual, &mut self.pass, &mut self.logits)?;
        self.logits.read(0, &mut self.host_logits)?;
        self.best.read(0, &mut self.host_best)?;
        self.readback
            .read(&self.probabilities, 0, &mut self.host_probabilities)?;
        self.rows
            .read_new(&mut self.new_keys, &mut self.new_values)?;
        let (layers, dim) = (cache.layers.len(), self.shape.head_dim);
        for (layer, cached) in cache.layers.iter_mut().enumerate() {
            for head in 0..self.shape.kv_heads {
                let at = (head * layers + layer) * dim;
                let slot = self.slot_table.slot(layer, head);
                let (key, value) = (&self.new_keys[at..][..dim], &self.new_values[at..][..dim]);
                cached.write(head, slot, key, value);
            }
        }
        Ok(())
    }

    fn run_layer(&mut self, layer: usize, cache: &CompactCache) -> Result<(), DeviceError> {
        let (gpu, cached) = (self.gpu, &cache.layers[layer]);
        let angles = self.rope.of_layer(layer);
        gpu.project(layer, &self.residual, 1, &mut self.pass)?;
        // Re-assigned positions: keys are rotated by rank when attention reads them. Otherwise the new key is
        // rotated by position now.
        let ranked = cache.reassigned && cached.window().is_none();
        let placed = if ranked {
            RopeContext::RAW
        } else {
            RopeContext {
                angles,
                places: RowPositions::From((cache.next.0 - cache.window_rope_origin.0) as usize),
            }
        };
        if ranked {
            let apart = RopeContext {
                angles,
                places: RowPositions::At(self.rows.query_positions(layer)),
            };
            gpu.ready_queries_apart(layer, apart, &mut self.pass, &mut self.queries)?;
        } else {
            gpu.ready_queries(layer, 1, placed, &self.pass, &mut self.queries)?;
        }
        let [keys, values] = self.rows.new_rows();
        let row = layer..layer + 1;
        gpu.ready_keys(layer, row.clone(), placed, &self.pass, keys)?;
        gpu.ready_values(layer, row, &self.pass, values)?;
        self.rows.append(layer)?;

        let angles = angles.filter(|_| ranked);
        let shared = cached.is_shared();
        let by_table = self.by_table.as_mut().filter(|_| shared);
        let (probabilities, stride) = match by_table {
            Some(scratch) => {
                let (queries, out) = (&self.queries, &mut self.attention);
                self.rows
                    .attend_by_table(layer, self.scale, queries, angles, scratch, out)?;
                (scratch.probabilities(), scratch.stride())
            }
            None => {
                let (queries, out) = (&mut self.queries, &mut self.attention);
                let scratch = &mut self.attend;
                self.rows
                    .attend(layer, self.scale, queries, angles, scratch, out)?;
                (self.attend.probabilities(), self.attend.stride())
            }
        };
        let heads = self.shape.q_heads;
        let mut best = self.best.share(layer * heads * 2..(layer + 1) * heads * 2);
        self.rows
            .best(layer, probabilities, stride, shared, &mut best)?;
        if !self.probabilities.is_empty() {
            let at = layer * heads * self.stride;
            self.probabilities
                .copy_from(at, probabilities, 0..heads * stride)?;
        }
        gpu.finish(
            layer,
            &self.attention,
            &mut self.residual,
            1,
            &mut self.pass,
        )
    }

    /// The last token's probabilities in a layer. `shared`: whether [`CompactLayer::is_shared`] was true when the
    /// token ran; the probabilities are then those of entries.
    fn probabilities(&self, layer: usize, shared: bool) -> Probabilities<'_> {
        let stride = match (&self.by_table, shared) {
            (Some(scratch), true) => scratch.stride(),
            _ => self.attend.stride(),
        };
        let heads = self.shape.q_heads;
        let at = layer * heads * self.stride;
        Probabilities {
            values: &self.host_probabilities[at..][..heads * stride],
            stride,
        }
    }

    /// The largest probability of a query head in a layer, and its slot or entry.
    fn most_attended(&self, layer: usize, q_head: usize) -> (f32, usize) {
        let at = (layer * self.shape.q_heads + q_head) * 2;
        (self.host_best[at], self.host_best[at + 1] as usize)
    }
}

impl DecodeBackend for HostSteppedDecoder<'_> {
    fn logits_of(&mut self, hidden: &[f32]) -> Result<&mut [f32], EngineError> {
        self.residual.write(0, hidden)?;
        self.gpu
            .logits(&self.residual, &mut self.pass, &mut self.logits)?;
        self.logits.read(0, &mut self.host_logits)?;
        Ok(&mut self.host_logits)
    }

    fn step(
        &mut self,
        token: u32,
        cache: &mut CompactCache,
        after: &mut AfterLayer<'_>,
        _top_k: Option<usize>,
    ) -> Result<StepOutput<'_>, EngineError> {
        self.run(token, cache)?;
        let mut changed = std::mem::take(&mut self.changed);
        for (layer, cached) in cache.layers.iter_mut().enumerate() {
            let most = |q_head: usize, _| self.most_attended(layer, q_head);
            let attention = LayerAttention {
                probabilities: self.probabilities(layer, cached.is_shared()),
                most: &most,
            };
            after.layer(cached, &attention, &mut |change| changed.push(change));
            self.upload_changes(layer, cached, &mut changed)?;
        }
        self.changed = changed;
        Ok(StepOutput::Logits(&mut self.host_logits))
    }

    fn host_bytes(&self) -> u64 {
        (size_of_val(self.embedded.as_slice()) + size_of_val(self.host_logits.as_slice())) as u64
    }

    fn device_bytes(&self) -> u64 {
        self.bytes()
    }
}
