//! The NVIDIA GPUs of this computer. A build without the feature `cuda` has none, and says so.

use kept_cuda::{Device, RatesOf};
use kept_engine::backend::Gpus;
use kept_engine::{EngineError, Gpu, GpuRates};
use kept_models::Model;

use crate::OnGpu;

/// The NVIDIA GPUs of this computer.
#[derive(Debug, Clone, Copy, Default)]
pub struct CudaGpus;

/// What stands before a GPU's ordinal in its name.
#[cfg(feature = "cuda")]
const PREFIX: &str = "cuda:";

#[cfg(not(feature = "cuda"))]
const WITHOUT: &str = "this build of Kept computes on the CPU only; `make cuda` makes one for GPUs";

#[cfg(feature = "cuda")]
fn list() -> Result<Vec<Gpu>, String> {
    let gpus = kept_cuda::nvidia::gpus().map_err(|why| why.to_string())?;
    let gpu = |gpu: kept_cuda::nvidia::Gpu| Gpu {
        device: format!("{PREFIX}{}", gpu.ordinal),
        name: gpu.properties.name,
        capability: format!(
            "{}.{}",
            gpu.properties.capability / 10,
            gpu.properties.capability % 10
        ),
        memory: gpu.properties.memory,
        free: gpu.free,
    };
    Ok(gpus.into_iter().map(gpu).collect())
}

#[cfg(not(feature = "cuda"))]
fn list() -> Result<Vec<Gpu>, String> {
    Err(WITHOUT.to_owned())
}

#[cfg(feature = "cuda")]
fn open(name: &str) -> Result<Device, EngineError> {
    let none = |why| EngineError::NoGpu(format!("no GPU {name}: {why}; use the CPU"));
    let ordinal = name.strip_prefix(PREFIX).and_then(|of| of.parse().ok());
    let ordinal = ordinal.ok_or_else(|| none(format!("the first NVIDIA GPU is {PREFIX}0")))?;
    kept_cuda::nvidia::open(ordinal).map_err(|why| none(why.to_string()))
}

#[cfg(not(feature = "cuda"))]
fn open(name: &str) -> Result<Device, EngineError> {
    Err(EngineError::NoGpu(format!(
        "no GPU {name}: {WITHOUT}, or use the CPU"
    )))
}

impl Gpus for CudaGpus {
    fn list(&self) -> Result<Vec<Gpu>, String> {
        list()
    }

    fn upload(&self, model: &mut Model, name: &str) -> Result<(), EngineError> {
        model.take_gpu(open(name)?)
    }

    fn upload_dry(&self, model: &mut Model, name: &str) -> Result<(), EngineError> {
        model.take_gpu(open(name)?.dry_run())
    }

    fn rates(&self, name: &str) -> Result<GpuRates, EngineError> {
        rates_of(&open(name)?)
    }
}

/// Peak rates of `device`.
pub fn rates_of(device: &Device) -> Result<GpuRates, EngineError> {
    let rates = device.rates(&RatesOf::GPU)?;
    Ok(GpuRates {
        gpu: device.properties().name.clone(),
        copy_gbs: rates.copy / 1e9,
        to_gpu_gbs: rates.to_gpu / 1e9,
        matrix_tflops: rates.matrix / 1e12,
        attention_tflops: rates.attention / 1e12,
    })
}
