//! The compute device: the CPU, or a GPU. A build without the feature `cuda` refuses GPUs with an error
//! message.

use std::fmt;
use std::str::FromStr;

use crate::backend::{self, GpuWatch};
use crate::{Engine, EngineError};
use kept_kernels::format_bytes;
use kept_models::beside_weights;

/// A device for `--device`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComputeDevice {
    /// The CPU.
    #[default]
    Cpu,
    /// An NVIDIA GPU, by its ordinal.
    Cuda(usize),
}

/// Error: unknown device name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the device {0:?} is not known; devices are auto, cpu, and cuda:0 for the first GPU")]
pub struct UnknownDevice(String);

impl FromStr for ComputeDevice {
    type Err = UnknownDevice;

    fn from_str(text: &str) -> Result<Self, UnknownDevice> {
        match text {
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            _ => (text.strip_prefix("cuda:"))
                .and_then(|number| number.parse().ok())
                .map(Self::Cuda)
                .ok_or_else(|| UnknownDevice(text.to_owned())),
        }
    }
}

impl fmt::Display for ComputeDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// The value of `--device`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// `auto`: a GPU if one fits the model, otherwise the CPU.
    #[default]
    Auto,
    /// This device only.
    Named(ComputeDevice),
}

impl FromStr for DeviceChoice {
    type Err = UnknownDevice;

    fn from_str(text: &str) -> Result<Self, UnknownDevice> {
        match text {
            "auto" => Ok(Self::Auto),
            named => named.parse().map(Self::Named),
        }
    }
}

/// A GPU that this build supports.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct Gpu {
    /// Its name for `--device`.
    pub device: String,
    /// Its product name.
    pub name: String,
    /// Compute capability, as in 8.6.
    pub capability: String,
    /// Bytes of its memory.
    pub memory: u64,
    /// Bytes of it that are free now.
    pub free: u64,
}

/// The GPUs of this computer.
///
/// # Errors
/// Why no GPU is usable, as a sentence with a way out.
#[cfg(feature = "cuda")]
pub fn gpus() -> Result<Vec<Gpu>, String> {
    let gpus = kept_cuda::nvidia::gpus().map_err(|why| why.to_string())?;
    let gpu = |gpu: kept_cuda::nvidia::Gpu| Gpu {
        device: ComputeDevice::Cuda(gpu.ordinal).to_string(),
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

/// The GPUs of this computer.
///
/// # Errors
/// Always: this build has no GPU kernels.
#[cfg(not(feature = "cuda"))]
pub fn gpus() -> Result<Vec<Gpu>, String> {
    Err(WITHOUT.to_owned())
}

#[cfg(not(feature = "cuda"))]
const WITHOUT: &str = "this build of Kept computes on the CPU only; `make cuda` makes one for GPUs";

#[cfg(feature = "cuda")]
fn open_gpu(ordinal: usize) -> Result<kept_cuda::Device, EngineError> {
    kept_cuda::nvidia::open(ordinal)
        .map_err(|why| EngineError::NoGpu(format!("no GPU cuda:{ordinal}: {why}; use the CPU")))
}

#[cfg(not(feature = "cuda"))]
fn open_gpu(ordinal: usize) -> Result<kept_cuda::Device, EngineError> {
    Err(EngineError::NoGpu(format!(
        "no GPU cuda:{ordinal}: {WITHOUT}, or use the CPU"
    )))
}

/// The GPU with the most free memory, if at least half of a model of `weights` bytes fits together with a
/// question. The other weights are read from host memory ([`Engine::on`]): prefill is still far faster than
/// on the CPU, and decoding is not much slower.
///
/// # Errors
/// Why no GPU fits, as a sentence.
pub fn fitting_gpu(gpus: &[Gpu], weights: u64) -> Result<ComputeDevice, String> {
    let Some(gpu) = gpus.iter().max_by_key(|gpu| gpu.free) else {
        return Err("this computer has no GPU that Kept can use".to_owned());
    };
    let needed = (weights / 2).saturating_add(beside_weights(gpu.memory));
    if needed <= gpu.free {
        gpu.device.parse().map_err(|error| format!("{error}"))
    } else {
        Err(format!(
            "half of the model and a question need {} of a GPU, and {} has {} free",
            format_bytes(needed),
            gpu.name,
            format_bytes(gpu.free)
        ))
    }
}

impl EngineError {
    /// Whether the GPU is unreliable after this error: it failed or ran out of memory. An engine
    /// in a worker process should be restarted.
    pub fn loses_gpu(&self) -> bool {
        use kept_cuda::DeviceError::{Failed, OutOfMemory};
        matches!(self, Self::Gpu(Failed { .. } | OutOfMemory { .. }))
    }
}

/// Peak rates of a GPU, measured within a second or two.
///
/// # Errors
/// [`EngineError::NoGpu`] without a GPU, [`EngineError::Gpu`] if it fails.
pub fn gpu_rates(ordinal: usize) -> Result<GpuRates, EngineError> {
    rates_of(&open_gpu(ordinal)?)
}

impl Engine {
    /// Peak rates of the GPU that the model is on; `None` on the CPU.
    ///
    /// # Errors
    /// [`EngineError::Gpu`] if the GPU fails or has no memory left to measure with.
    pub fn gpu_rates(&self) -> Result<Option<GpuRates>, EngineError> {
        let gpu = self.model().gpu();
        gpu.map(|gpu| rates_of(gpu.device())).transpose()
    }
}

fn rates_of(device: &kept_cuda::Device) -> Result<GpuRates, EngineError> {
    let rates = device.rates(&kept_cuda::RatesOf::GPU)?;
    Ok(GpuRates {
        gpu: device.facts().name.clone(),
        copy_gbs: rates.copy / 1e9,
        to_gpu_gbs: rates.to_gpu / 1e9,
        matrix_tflops: rates.matrix / 1e12,
        attention_tflops: rates.attention / 1e12,
    })
}

/// Peak rates of a GPU.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct GpuRates {
    /// Its product name.
    #[serde(rename = "card")]
    pub gpu: String,
    /// Copies within device memory, counting bytes read and bytes written.
    pub copy_gbs: f64,
    /// Copies from pinned host memory to the GPU, counting bytes once.
    #[serde(rename = "to_card_gbs")]
    pub to_gpu_gbs: f64,
    /// f16 matrix products on tensor cores with f32 accumulation.
    pub matrix_tflops: f64,
    /// Attention of the last 2,048 of 32K tokens in a layer of an 8B model.
    pub attention_tflops: f64,
}

impl Engine {
    /// Moves the engine to `device`. For a GPU, the weights are copied to device memory. Layers that do not
    /// fit together with a question stay in pinned host memory, which the GPU reads.
    ///
    /// # Errors
    /// [`EngineError::NoGpu`] without a GPU, [`EngineError::Gpu`] if the model does not fit.
    pub fn on(self, device: ComputeDevice) -> Result<Self, EngineError> {
        match device {
            ComputeDevice::Cpu => Ok(self),
            ComputeDevice::Cuda(ordinal) => self.on_gpu(open_gpu(ordinal)?),
        }
    }

    /// Moves the engine to the chosen device. If `auto` finds no GPU, also returns the reason for using the
    /// CPU.
    ///
    /// # Errors
    /// As [`Engine::on`], for a named device.
    pub fn placed(mut self, choice: DeviceChoice) -> Result<(Self, Option<String>), EngineError> {
        if let DeviceChoice::Named(device) = choice {
            return Ok((self.on(device)?, None));
        }
        let fitting = gpus().and_then(|gpus| fitting_gpu(&gpus, self.model().weights_bytes()));
        let placed = fitting.and_then(|device| match device {
            ComputeDevice::Cpu => Ok(()),
            ComputeDevice::Cuda(ordinal) => open_gpu(ordinal)
                .and_then(|gpu| self.take_gpu(gpu))
                .map_err(|error| error.to_string()),
        });
        Ok((self, placed.err()))
    }

    /// The engine as it would be on `device`, for memory estimates only: nothing is copied, and it cannot
    /// answer questions.
    ///
    /// # Errors
    /// As [`Engine::on`].
    pub fn as_if_on(self, device: ComputeDevice) -> Result<Self, EngineError> {
        match device {
            ComputeDevice::Cpu => Ok(self),
            ComputeDevice::Cuda(ordinal) => self.on_gpu(open_gpu(ordinal)?.dry_run()),
        }
    }

    /// Message for the user about a model that does not fit its GPU, as a sentence.
    pub(crate) fn gpu_note(&self) -> Option<String> {
        let away = backend::of(self.model()).weights_on_host();
        (away > 0).then(|| {
            format!(
                "{} of the model's weights do not fit {} together with a question and are read from the computer's memory for every token, which takes longer; a smaller quantisation may fit",
                format_bytes(away),
                self.computes_on()
            )
        })
    }

    /// Name of the compute device for messages; for a GPU its product name.
    pub fn computes_on(&self) -> &str {
        backend::of(self.model()).name()
    }

    /// Whether the engine computes on a GPU.
    pub fn uses_gpu(&self) -> bool {
        backend::of(self.model()).has_own_memory()
    }

    /// Starts to watch the GPU of this engine; `None` for an engine on the CPU.
    ///
    /// # Errors
    /// [`EngineError::Gpu`] if the driver returns an error.
    pub fn watch_gpu(&self) -> Result<Option<GpuWatch>, EngineError> {
        backend::of(self.model()).watch()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpu_with_most_free_memory_is_chosen_if_the_model_fits() {
        let gpu = |device: &str, free: u64| Gpu {
            device: device.to_owned(),
            name: format!("NVIDIA {device}"),
            capability: "8.6".to_owned(),
            memory: 24 << 30,
            free,
        };
        let two = [gpu("cuda:0", 4 << 30), gpu("cuda:1", 20 << 30)];
        assert_eq!(fitting_gpu(&two, 5 << 30), Ok(ComputeDevice::Cuda(1)));
        assert_eq!(fitting_gpu(&two, 36 << 30), Ok(ComputeDevice::Cuda(1)));
        let why = fitting_gpu(&two, (36 << 30) + 2).expect_err("too large");
        assert!(
            why.contains("20.0 GiB of") && why.contains("NVIDIA cuda:1 has 20.0 GiB free"),
            "{why}"
        );
        assert!(fitting_gpu(&two, u64::MAX).is_err());
        assert!(fitting_gpu(&[], 1).is_err_and(|why| why.contains("no GPU")));
    }

    #[test]
    fn only_failures_and_full_memory_lose_the_gpu() {
        let device = || "NVIDIA".to_owned();
        let failed = kept_cuda::DeviceError::Failed {
            device: device(),
            what: "attention".to_owned(),
            reason: "an illegal memory access".to_owned(),
        };
        let full = kept_cuda::DeviceError::OutOfMemory {
            device: device(),
            needed: 2,
            free: 1,
        };
        let of_the_host = kept_cuda::DeviceError::HostMemory { needed: 1 << 30 };
        for (error, lost) in [
            (EngineError::Gpu(failed), true),
            (EngineError::Gpu(full), true),
            (EngineError::Gpu(of_the_host), false),
            (EngineError::NoGpu("there is none".to_owned()), false),
            (EngineError::Stopped, false),
        ] {
            assert_eq!(error.loses_gpu(), lost, "{error}");
        }
    }

    #[test]
    fn device_names_round_trip() {
        for (text, device) in [
            ("cpu", ComputeDevice::Cpu),
            ("cuda:0", ComputeDevice::Cuda(0)),
            ("cuda:12", ComputeDevice::Cuda(12)),
        ] {
            assert_eq!(text.parse(), Ok(device));
            assert_eq!(device.to_string(), text);
        }
        assert_eq!("cuda".parse(), Ok(ComputeDevice::Cuda(0)));
        for text in ["", "gpu", "cuda:", "cuda:-1", "CPU"] {
            let refusal = text.parse::<ComputeDevice>().expect_err(text).to_string();
            assert!(refusal.contains("cuda:0"), "{refusal}");
        }
    }
}
