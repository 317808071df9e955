//! The NVIDIA GPUs of this computer. A build without the feature `cuda` has none, and says so.

use kept_cuda::{Device, RatesOf};
use kept_engine::backend::Gpus;
use kept_engine::{EngineError, Gpu, GpuRates};
use kept_models::Model;

use crate::OnGpu;

/// The NVIDIA GPUs of this computer.
#[derive(Debug, Clone, Copy, Default)]
pub struct CudaGpus;

#[cfg(not(feature = "cuda"))]
const WITHOUT: &str = "this build of Kept computes on the CPU only; `make cuda` makes one for GPUs";

#[cfg(feature = "cuda")]
fn list() -> Result<Vec<Gpu>, String> {
    let gpus = kept_cuda::nvidia::gpus().map_err(|why| why.to_string())?;
    let gpu = |gpu: kept_cuda::nvidia::Gpu| Gpu {
        device: kept_engine::ComputeDevice::Cuda(gpu.ordinal).to_string(),
        name: gpu.facts.name,
        capability: format!(
            "{}.{}",
            gpu.facts.capability / 10,
            gpu.facts.capability % 10
        ),
        memory: gpu.facts.memory,
        free: gpu.free,
    };
    Ok(gpus.into_iter().map(gpu).collect())
}

#[cfg(not(feature = "cuda"))]
fn list() -> Result<Vec<Gpu>, String> {
    Err(WITHOUT.to_owned())
}

#[cfg(feature = "cuda")]
fn open(ordinal: usize) -> Result<Device, EngineError> {
    kept_cuda::nvidia::open(ordinal)
        .map_err(|why| EngineError::NoGpu(format!("no GPU cuda:{ordinal}: {why}; use the CPU")))
}

#[cfg(not(feature = "cuda"))]
fn open(ordinal: usize) -> Result<Device, EngineError> {
    Err(EngineError::NoGpu(format!(
        "no GPU cuda:{ordinal}: {WITHOUT}, or use the CPU"
    )))
}

impl Gpus for CudaGpus {
    fn list(&self) -> Result<Vec<Gpu>, String> {
        list()
    }

    fn upload(&self, model: &mut Model, ordinal: usize) -> Result<(), EngineError> {
        model.take_gpu(open(ordinal)?)
    }

    fn upload_dry(&self, model: &mut Model, ordinal: usize) -> Result<(), EngineError> {
        model.take_gpu(open(ordinal)?.dry_run())
    }

    fn rates(&self, ordinal: usize) -> Result<GpuRates, EngineError> {
        rates_of(&open(ordinal)?)
    }
}

/// Peak rates of `device`.
pub fn rates_of(device: &Device) -> Result<GpuRates, EngineError> {
    let rates = device.rates(&RatesOf::GPU)?;
    Ok(GpuRates {
        gpu: device.facts().name.clone(),
        copy_gbs: rates.copy / 1e9,
        to_gpu_gbs: rates.to_gpu / 1e9,
        matrix_tflops: rates.matrix / 1e12,
        attention_tflops: rates.attention / 1e12,
    })
}
