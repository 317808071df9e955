//! The compute device: the CPU, or a GPU of a [`Gpus`].

use std::fmt;
use std::str::FromStr;

use crate::backend::{self, GpuWatch, Gpus};
use crate::{Engine, EngineError};
use kept_kernels::format_bytes;

/// The value of `--device`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ComputeDevice {
    /// A GPU if one fits the model, otherwise the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU, by the name that its [`Gpus`] gives it: `cuda:0`.
    Gpu(String),
}

/// Error: unknown device name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the device {0:?} is not known; devices are auto, cpu, and cuda:0 for the first GPU")]
pub struct UnknownDevice(String);

impl FromStr for ComputeDevice {
    type Err = UnknownDevice;

    fn from_str(text: &str) -> Result<Self, UnknownDevice> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            _ => {
                let (kind, ordinal) = text.split_once(':').unwrap_or((text, "0"));
                let known = !kind.is_empty() && kind.bytes().all(|byte| byte.is_ascii_lowercase());
                let ordinal: Option<usize> = ordinal.parse().ok().filter(|_| known);
                let ordinal = ordinal.ok_or_else(|| UnknownDevice(text.to_owned()))?;
                Ok(Self::Gpu(format!("{kind}:{ordinal}")))
            }
        }
    }
}

impl fmt::Display for ComputeDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Gpu(name) => f.write_str(name),
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

/// Memory in bytes to reserve for a question on a GPU with `memory` bytes, in addition to the weights: the kernels'
/// code, the scratch buffers of a chunk, and the KV rows of a document of ordinary length.
pub fn beside_weights(memory: u64) -> u64 {
    (2 << 30).min(memory / 4)
}

/// The GPU with the most free memory, if at least half of a model of `weights` bytes fits together with a
/// question. The other weights are read from host memory ([`Gpus::upload`]): prefill is still far faster than
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
        use kept_kernels::DeviceError::{Failed, OutOfMemory};
        matches!(self, Self::Gpu(Failed { .. } | OutOfMemory { .. }))
    }
}

/// Peak rates of a GPU.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct GpuRates {
    /// Its product name.
    pub gpu: String,
    /// Copies within device memory, counting bytes read and bytes written.
    pub copy_gbs: f64,
    /// Copies from pinned host memory to the GPU, counting bytes once.
    pub to_gpu_gbs: f64,
    /// f16 matrix products on tensor cores with f32 accumulation.
    pub matrix_tflops: f64,
    /// Attention of the last 2,048 of 32K tokens in a layer of an 8B model.
    pub attention_tflops: f64,
}

impl Engine {
    /// Moves the engine to `device`, which for a GPU is one of `gpus`: see [`Gpus::upload`]. If `auto` finds no GPU,
    /// also returns the reason for using the CPU.
    ///
    /// # Errors
    /// Those of [`Gpus::upload`], for a named GPU.
    ///
    /// # Panics
    /// If clones of the engine exist.
    pub fn placed(
        mut self,
        device: ComputeDevice,
        gpus: &dyn Gpus,
    ) -> Result<(Self, Option<String>), EngineError> {
        if let ComputeDevice::Gpu(name) = &device {
            gpus.upload(self.model_mut(), name)?;
        }
        if device != ComputeDevice::Auto {
            return Ok((self, None));
        }
        let found = gpus.list();
        let fitting = found.and_then(|found| fitting_gpu(&found, self.model().weights_bytes()));
        let placed = fitting.and_then(|device| match device {
            ComputeDevice::Gpu(name) => gpus
                .upload(self.model_mut(), &name)
                .map_err(|error| error.to_string()),
            ComputeDevice::Auto | ComputeDevice::Cpu => Ok(()),
        });
        Ok((self, placed.err()))
    }

    /// The engine as it would be on `device`, for memory estimates only: nothing is copied, and it cannot
    /// answer questions.
    ///
    /// # Errors
    /// As [`Engine::placed`].
    pub fn as_if_on(mut self, device: ComputeDevice, gpus: &dyn Gpus) -> Result<Self, EngineError> {
        if let ComputeDevice::Gpu(name) = device {
            gpus.upload_dry(self.model_mut(), &name)?;
        }
        Ok(self)
    }

    /// Peak rates of the GPU that the model is on; `None` on the CPU.
    ///
    /// # Errors
    /// [`EngineError::Gpu`] if the GPU fails or has no memory left to measure with.
    pub fn gpu_rates(&self) -> Result<Option<GpuRates>, EngineError> {
        backend::of(self.model()).rates()
    }

    /// Bytes of weights in device memory; 0 on the CPU.
    pub fn weights_on_device(&self) -> u64 {
        backend::of(self.model()).weights_on_device()
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
        let second = ComputeDevice::Gpu("cuda:1".to_owned());
        assert_eq!(fitting_gpu(&two, 5 << 30).as_ref(), Ok(&second));
        assert_eq!(fitting_gpu(&two, 36 << 30), Ok(second));
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
        let failed = kept_kernels::DeviceError::Failed {
            device: device(),
            what: "attention".to_owned(),
            reason: "an illegal memory access".to_owned(),
        };
        let full = kept_kernels::DeviceError::OutOfMemory {
            device: device(),
            needed: 2,
            free: 1,
        };
        let of_the_host = kept_kernels::DeviceError::HostMemory { needed: 1 << 30 };
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
            ("cuda:0", ComputeDevice::Gpu("cuda:0".to_owned())),
            ("cuda:12", ComputeDevice::Gpu("cuda:12".to_owned())),
        ] {
            assert_eq!(device.to_string(), text);
            assert_eq!(text.parse(), Ok(device));
        }
        let first: ComputeDevice = "cuda".parse().expect("the first GPU");
        assert_eq!(first.to_string(), "cuda:0");
        for text in ["", ":0", "cuda:", "cuda:-1", "CPU"] {
            let refusal = text.parse::<ComputeDevice>().expect_err(text).to_string();
            assert!(refusal.contains("cuda:0"), "{refusal}");
        }
    }
}
