//! Rows in host memory through a layer on the GPU, and attention over them: inputs are uploaded, results downloaded.
//! Streaming mode and KVzip's reconstruction keep their rows on the host.

use std::ops::Range;

use half::f16;
use half::slice::HalfFloatSliceExt;
use kept_cuda::{AttentionScratch, Buffer, Device, DeviceError, LayerRows};
use kept_engine::backend::{HostAttention, HostLayer};
use kept_engine::{EngineError, StreamPlan};
use kept_kernels::{HeadShape, PrefillAttention, RecurrentState, RowStore, Stop};
use kept_models::Model;

use crate::model::{GpuModel, GpuPass};

/// Most rows per pass.
const ROWS: usize = 512;

/// A layer on a GPU, for host rows.
pub(super) struct StagedLayer<'m> {
    gpu: &'m GpuModel,
    model: &'m Model,
    layer: usize,
    rows: usize,
    /// Allocated on first use.
    staging: Option<LayerStaging>,
}

/// Device buffers of a layer.
struct LayerStaging {
    pass: GpuPass,
    /// `[rows, width]`
    residual: Buffer<f32>,
    /// `[rows, q_heads, head_dim]`
    attention: Buffer<f32>,
}

impl LayerStaging {
    fn new(device: &Device, gpu: &GpuModel, rows: usize) -> Result<Self, DeviceError> {
        let config = gpu.config();
        Ok(Self {
            pass: GpuPass::new(device, gpu, rows)?,
            residual: device.alloc_uninit(rows * config.width)?,
            attention: device.alloc_uninit(rows * config.q_width())?,
        })
    }
}

/// Device bytes of a [`StagedLayer`] for `rows` rows.
pub(super) fn layer_bytes(gpu: &GpuModel, rows: usize) -> Result<u64, DeviceError> {
    let rows = rows.clamp(1, ROWS);
    gpu.device()
        .measure_allocations(|device| LayerStaging::new(device, gpu, rows))
}

impl<'m> StagedLayer<'m> {
    pub(super) fn new(gpu: &'m GpuModel, model: &'m Model, layer: usize, rows: usize) -> Self {
        Self {
            gpu,
            model,
            layer,
            rows: rows.clamp(1, ROWS),
            staging: None,
        }
    }

    fn staging(&mut self) -> Result<&mut LayerStaging, DeviceError> {
        if self.staging.is_none() {
            self.staging = Some(LayerStaging::new(self.gpu.device(), self.gpu, self.rows)?);
        }
        Ok(self.staging.as_mut().expect("just made"))
    }
}

impl HostLayer for StagedLayer<'_> {
    fn project(
        &mut self,
        residual: &[f32],
        [q, k, v]: [&mut [f32]; 3],
        stop: &Stop,
    ) -> Result<(), EngineError> {
        let (gpu, layer, block) = (self.gpu, self.layer, self.rows);
        let config = self.model.config();
        let (width, q_width, kv_width) = (config.width, config.q_width(), config.kv_width());
        let rows = residual.len() / width;
        for first in (0..rows).step_by(block) {
            stop.check()?;
            let last = rows.min(first + block);
            let staging = self.staging()?;
            staging
                .residual
                .write(0, &residual[first * width..last * width])?;
            gpu.project(layer, &staging.residual, last - first, &mut staging.pass)?;
            let [device_q, device_k, device_v] = staging.pass.projected();
            device_q.read(0, &mut q[first * q_width..last * q_width])?;
            device_k.read(0, &mut k[first * kv_width..last * kv_width])?;
            device_v.read(0, &mut v[first * kv_width..last * kv_width])?;
        }
        self.model.apply_bias_and_norms(layer, q, k, v);
        Ok(())
    }

    fn recur(
        &mut self,
        _residual: &mut [f32],
        _state: &mut RecurrentState,
        _stop: &Stop,
    ) -> Result<(), EngineError> {
        Err(no_states())
    }

    fn finish(
        &mut self,
        attention: &[f32],
        residual: &mut [f32],
        stop: &Stop,
    ) -> Result<(), EngineError> {
        let (gpu, layer, block) = (self.gpu, self.layer, self.rows);
        let config = self.model.config();
        let (width, q_width) = (config.width, config.q_width());
        let rows = residual.len() / width;
        for first in (0..rows).step_by(block) {
            stop.check()?;
            let last = rows.min(first + block);
            let staging = self.staging()?;
            let own = &mut residual[first * width..last * width];
            staging.residual.write(0, own)?;
            staging
                .attention
                .write(0, &attention[first * q_width..last * q_width])?;
            gpu.finish(
                layer,
                &staging.attention,
                &mut staging.residual,
                last - first,
                &mut staging.pass,
            )?;
            staging.residual.read(0, own)?;
        }
        Ok(())
    }
}

/// Attention on a GPU over rows in host memory.
pub(super) struct StagedAttention<'m> {
    gpu: &'m GpuModel,
    heads: HeadShape,
    /// Capacity in query rows.
    rows: usize,
    /// Capacity in keys.
    columns: usize,
    /// Allocated with the first rows.
    staging: Option<AttentionStaging>,
}

/// Device buffers of attention.
struct AttentionStaging {
    device: Device,
    /// `[kv_heads, columns, head_dim]`
    keys: LayerRows,
    /// As `keys`.
    values: LayerRows,
    /// `[rows, q_heads, head_dim]`
    queries: Buffer<f16>,
    /// `[rows, q_heads, head_dim]`
    out: Buffer<f32>,
    /// `[q_heads, rows]`
    log_sum_exp: Buffer<f32>,
    parts: AttentionScratch,
    /// Queries as f16, before the upload.
    halves: Vec<f16>,
}

impl AttentionStaging {
    fn new(
        device: &Device,
        heads: HeadShape,
        rows: usize,
        columns: usize,
    ) -> Result<Self, DeviceError> {
        let HeadShape {
            q_heads,
            kv_heads,
            head_dim,
        } = heads;
        let store = || LayerRows::new(device, kv_heads, columns, head_dim);
        Ok(Self {
            device: device.clone(),
            keys: store()?,
            values: store()?,
            queries: device.alloc_uninit(rows * q_heads * head_dim)?,
            out: device.alloc_uninit(rows * q_heads * head_dim)?,
            log_sum_exp: device.alloc_uninit(rows * q_heads)?,
            parts: AttentionScratch::new(device, heads)?,
            halves: Vec::new(),
        })
    }

    fn attend(
        &mut self,
        task: &PrefillAttention<'_>,
        new: Range<usize>,
        out: &mut [f32],
        log_sum_exp: Option<&mut [f32]>,
    ) -> Result<(), DeviceError> {
        let dim = task.shape.head_dim;
        let upload = |from: &RowStore, to: &mut LayerRows| {
            let elements = new.start * dim..new.end * dim;
            (0..task.shape.kv_heads).try_for_each(|head| {
                to.write_head(head, new.start, &from.head(head)[elements.clone()])
            })
        };
        upload(task.keys, &mut self.keys)?;
        upload(task.values, &mut self.values)?;
        self.halves.resize(task.queries.len(), f16::ZERO);
        self.halves
            .as_mut_slice()
            .convert_from_f32_slice(task.queries);
        self.queries.write(0, &self.halves)?;
        let on_device = kept_cuda::PrefillAttention {
            shape: task.shape,
            scale: task.scale,
            window: task.window,
            queries: &self.queries,
            rows: task.rows(),
            first: task.first,
            keys: &self.keys,
            values: &self.values,
        };
        let sums = log_sum_exp.is_some().then_some(&mut self.log_sum_exp);
        (self.device).prefill_attention(&on_device, &mut self.parts, &mut self.out, sums)?;
        self.out.read(0, out)?;
        match log_sum_exp {
            Some(sums) => self.log_sum_exp.read(0, sums),
            None => Ok(()),
        }
    }
}

impl<'m> StagedAttention<'m> {
    /// For up to `rows` query rows and `columns` keys.
    pub(super) fn new(gpu: &'m GpuModel, heads: HeadShape, rows: usize, columns: usize) -> Self {
        Self {
            gpu,
            heads,
            rows,
            columns,
            staging: None,
        }
    }

    /// For one KV head of a chunk in streaming mode.
    pub(super) fn for_stream(gpu: &'m GpuModel, plan: &StreamPlan) -> Self {
        let one = HeadShape {
            q_heads: plan.heads.group(),
            kv_heads: 1,
            ..plan.heads
        };
        Self::new(gpu, one, plan.chunk, plan.columns())
    }

    /// Device bytes.
    pub(super) fn bytes(&self) -> Result<u64, DeviceError> {
        let (heads, rows, columns) = (self.heads, self.rows, self.columns);
        self.gpu
            .device()
            .measure_allocations(|device| AttentionStaging::new(device, heads, rows, columns))
    }
}

impl HostAttention for StagedAttention<'_> {
    /// The keys and values `new` are uploaded; the others were uploaded before.
    fn attend(
        &mut self,
        task: &PrefillAttention<'_>,
        new: Range<usize>,
        out: &mut [f32],
        log_sum_exp: Option<&mut [f32]>,
        stop: &Stop,
    ) -> Result<(), EngineError> {
        stop.check()?;
        let staging = match &mut self.staging {
            Some(staging) => staging,
            none => {
                let device = self.gpu.device();
                let staging = AttentionStaging::new(device, self.heads, self.rows, self.columns)?;
                none.insert(staging)
            }
        };
        Ok(staging.attend(task, new, out, log_sum_exp)?)
    }
}

/// A GPU has no recurrent model: uploading one is refused.
pub(super) fn no_states() -> EngineError {
    EngineError::Gpu(DeviceError::Part {
        part: "recurrent layers",
    })
}
