//! Passes host rows through a layer on a GPU and copies the results back. Used by [`crate::LayerPass`] for models on a
//! GPU when attention runs on the host.

use kept_cuda::{Buffer, Device, DeviceError};
use kept_kernels::{Stop, Stopped};

use crate::Config;
use crate::gpu::{GpuModel, GpuPass};
use crate::model::Layer;

/// Most rows per pass.
const ROWS: usize = 512;

/// Why a layer pass failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PassError {
    /// The caller requested a stop.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// The GPU failed.
    #[error(transparent)]
    Gpu(#[from] DeviceError),
}

/// A layer on a GPU, for host rows.
pub(crate) struct Staged<'a> {
    gpu: &'a GpuModel,
    layer: usize,
    rows: usize,
    /// Allocated on first use.
    buffers: Option<StagingBuffers>,
}

struct StagingBuffers {
    pass: GpuPass,
    /// `[rows, width]`
    residual: Buffer<f32>,
    /// `[rows, q_heads, head_dim]`
    attention: Buffer<f32>,
}

impl StagingBuffers {
    /// Allocates buffers for `rows` rows.
    fn new(device: &Device, gpu: &GpuModel, rows: usize) -> Result<Self, DeviceError> {
        let config = &gpu.config;
        Ok(Self {
            pass: GpuPass::new(device, gpu, rows)?,
            residual: device.alloc_uninit(rows * config.width)?,
            attention: device.alloc_uninit(rows * config.q_width())?,
        })
    }
}

impl GpuModel {
    /// Device memory in bytes of a [`crate::LayerPass`] for `rows` rows.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn staged_bytes(&self, rows: usize) -> Result<u64, DeviceError> {
        let rows = rows.clamp(1, ROWS);
        self.device()
            .measure_allocations(|device| StagingBuffers::new(device, self, rows))
    }
}

impl<'a> Staged<'a> {
    pub(crate) fn new(gpu: &'a GpuModel, layer: usize, rows: usize) -> Self {
        Self {
            gpu,
            layer,
            rows: rows.clamp(1, ROWS),
            buffers: None,
        }
    }

    fn buffers(&mut self) -> Result<&mut StagingBuffers, DeviceError> {
        if self.buffers.is_none() {
            self.buffers = Some(StagingBuffers::new(self.gpu.device(), self.gpu, self.rows)?);
        }
        Ok(self.buffers.as_mut().expect("just made"))
    }

    /// Implements [`crate::LayerPass::project`].
    pub(crate) fn project(
        &mut self,
        config: &Config,
        own: &Layer,
        residual: &[f32],
        [q, k, v]: [&mut [f32]; 3],
        stop: &Stop,
    ) -> Result<(), PassError> {
        let (gpu, layer, block) = (self.gpu, self.layer, self.rows);
        let (width, q_width, kv_width) = (config.width, config.q_width(), config.kv_width());
        let rows = residual.len() / width;
        for first in (0..rows).step_by(block) {
            stop.check()?;
            let last = rows.min(first + block);
            let buffers = self.buffers()?;
            buffers
                .residual
                .write(0, &residual[first * width..last * width])?;
            gpu.project(layer, &buffers.residual, last - first, &mut buffers.pass)?;
            let [device_q, device_k, device_v] = buffers.pass.projected();
            device_q.read(0, &mut q[first * q_width..last * q_width])?;
            device_k.read(0, &mut k[first * kv_width..last * kv_width])?;
            device_v.read(0, &mut v[first * kv_width..last * kv_width])?;
        }
        own.apply_bias_and_norms(config, q, k, v);
        Ok(())
    }

    /// Implements [`crate::LayerPass::finish`].
    pub(crate) fn finish(
        &mut self,
        config: &Config,
        attention: &[f32],
        residual: &mut [f32],
        stop: &Stop,
    ) -> Result<(), PassError> {
        let (gpu, layer, block) = (self.gpu, self.layer, self.rows);
        let (width, q_width) = (config.width, config.q_width());
        let rows = residual.len() / width;
        for first in (0..rows).step_by(block) {
            stop.check()?;
            let last = rows.min(first + block);
            let buffers = self.buffers()?;
            let own = &mut residual[first * width..last * width];
            buffers.residual.write(0, own)?;
            buffers
                .attention
                .write(0, &attention[first * q_width..last * q_width])?;
            gpu.finish(
                layer,
                &buffers.attention,
                &mut buffers.residual,
                last - first,
                &mut buffers.pass,
            )?;
            buffers.residual.read(0, own)?;
        }
        Ok(())
    }
}
