//! Attention of a prefill whose keys and values are on the host, computed on the GPU that has the model's
//! weights. New keys and values are uploaded, the output is downloaded. Used by streaming mode and the
//! reconstruction pass.

use std::ops::Range;

use half::f16;
use half::slice::HalfFloatSliceExt;
use kept_cuda::{AttentionScratch, Buffer, Device, DeviceError, LayerRows};
use kept_kernels::{HeadShape, PrefillAttention, RowStore, Stop, prefill_attention};
use kept_models::Model;

use crate::EngineError;

/// Device buffers.
struct Staging {
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

impl Staging {
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
            let numbers = new.start * dim..new.end * dim;
            (0..task.shape.kv_heads).try_for_each(|head| {
                to.write_head(head, new.start, &from.head(head)[numbers.clone()])
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

/// Attention on the CPU, or on the GPU that has the model's weights.
pub(crate) struct StagedAttention {
    heads: HeadShape,
    /// Capacity in query rows.
    rows: usize,
    /// Capacity in keys.
    columns: usize,
    /// Allocated with the first rows.
    staging: Option<Staging>,
}

impl StagedAttention {
    /// Attention for up to `rows` query rows and `columns` keys.
    pub(crate) fn new(heads: HeadShape, rows: usize, columns: usize) -> Self {
        Self {
            heads,
            rows,
            columns,
            staging: None,
        }
    }

    /// Device bytes for `model`; 0 for a model on the CPU.
    pub(crate) fn bytes(&self, model: &Model) -> Result<u64, DeviceError> {
        let Some(gpu) = model.gpu() else {
            return Ok(0);
        };
        gpu.device()
            .measure_allocations(|device| Staging::new(device, self.heads, self.rows, self.columns))
    }

    /// [`prefill_attention`] for `model`. The keys and values `new` are uploaded; the others were uploaded
    /// before.
    pub(crate) fn attend(
        &mut self,
        model: &Model,
        task: &PrefillAttention<'_>,
        new: Range<usize>,
        out: &mut [f32],
        log_sum_exp: Option<&mut [f32]>,
        stop: &Stop,
    ) -> Result<(), EngineError> {
        let Some(gpu) = model.gpu() else {
            return Ok(prefill_attention(task, out, log_sum_exp, stop)?);
        };
        stop.check()?;
        let staging = match &mut self.staging {
            Some(staging) => staging,
            none => {
                let staging = Staging::new(gpu.device(), self.heads, self.rows, self.columns)?;
                none.insert(staging)
            }
        };
        Ok(staging.attend(task, new, out, log_sum_exp)?)
    }
}
