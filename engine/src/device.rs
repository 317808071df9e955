//! What computes: the processor, or a GPU beside it. In a build without the feature `cuda` a GPU is refused in a sentence.

use std::fmt;
use std::str::FromStr;

use crate::{Engine, EngineError};
use kept_kernels::format_bytes;
use kept_models::beside_weights;

/// What `--device` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComputeDevice {
    /// The processor.
    #[default]
    Cpu,
    /// An NVIDIA GPU, by its number.
    Cuda(usize),
}

/// No name of a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--device {0:?} is not known; it takes auto, cpu, or cuda:0 for the first GPU")]
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

/// What `--device` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// `auto`: a GPU for a model that fits one, the processor for others.
    #[default]
    Auto,
    /// This one and no other.
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

/// A GPU that this build can compute on.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Gpu {
    /// What `--device` calls it.
    pub device: String,
    /// Its name, for people.
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
/// Why there is none, in a sentence with the way out.
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
/// Always: this build has no kernels for any.
#[cfg(not(feature = "cuda"))]
pub fn gpus() -> Result<Vec<Gpu>, String> {
    Err(WITHOUT.to_owned())
}

#[cfg(not(feature = "cuda"))]
const WITHOUT: &str =
    "this build of Kept computes on the processor only; `make cuda` makes one for GPUs";

#[cfg(feature = "cuda")]
fn open(ordinal: usize) -> Result<kept_cuda::Device, EngineError> {
    kept_cuda::nvidia::open(ordinal).map_err(|why| {
        EngineError::NoGpu(format!("--device cuda:{ordinal}: {why}; use --device cpu"))
    })
}

#[cfg(not(feature = "cuda"))]
fn open(ordinal: usize) -> Result<kept_cuda::Device, EngineError> {
    Err(EngineError::NoGpu(format!(
        "--device cuda:{ordinal}: {WITHOUT}, or use --device cpu"
    )))
}

/// The GPU with the most free memory, if it holds half of a model with `weights` bytes or more, and a question beside it. The rest is read
/// from the computer's memory ([`Engine::on`]): a document is read far faster so than by the processor, and an answer is not much slower.
///
/// # Errors
/// Why none does, in a sentence.
pub fn fitting_gpu(gpus: &[Gpu], weights: u64) -> Result<ComputeDevice, String> {
    let Some(gpu) = gpus.iter().max_by_key(|gpu| gpu.free) else {
        return Err("this computer has no GPU that Kept can use".to_owned());
    };
    let needed = (weights / 2).saturating_add(beside_weights(gpu.memory));
    match needed <= gpu.free {
        true => gpu.device.parse().map_err(|error| format!("{error}")),
        false => Err(format!(
            "half of the model and the room beside it need {} of a GPU, and {} has {} free",
            format_bytes(needed),
            gpu.name,
            format_bytes(gpu.free)
        )),
    }
}

impl EngineError {
    /// Whether a GPU is no longer to be relied on after this: it failed, or its memory ran out. Whoever has a process for
    /// the engine should start another one.
    pub fn loses_gpu(&self) -> bool {
        use kept_cuda::DeviceError::{Failed, OutOfMemory};
        matches!(self, Self::Gpu(Failed { .. } | OutOfMemory { .. }))
    }
}

/// What a GPU can do at most, measured on it in a second or two.
///
/// # Errors
/// [`EngineError::NoGpu`] where there is none, [`EngineError::Gpu`] where it fails.
pub fn gpu_rates(ordinal: usize) -> Result<GpuRates, EngineError> {
    let device = open(ordinal)?;
    let rates = device.rates(&kept_cuda::RatesOf::GPU)?;
    Ok(GpuRates {
        gpu: device.facts().name.clone(),
        copy_gbs: rates.copy / 1e9,
        to_gpu_gbs: rates.to_gpu / 1e9,
        matrix_tflops: rates.matrix / 1e12,
        attention_tflops: rates.attention / 1e12,
    })
}

/// What a GPU can do at most.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct GpuRates {
    /// Its name, for people.
    #[serde(rename = "card")]
    pub gpu: String,
    /// Copies on the GPU: bytes read and bytes written, both counted.
    pub copy_gbs: f64,
    /// Copies from the computer's pinned memory to the GPU: bytes that arrive.
    #[serde(rename = "to_card_gbs")]
    pub to_gpu_gbs: f64,
    /// Products of halves on its tensor cores, with sums in f32.
    pub matrix_tflops: f64,
    /// Attention of the last 2,048 of 32K tokens in a layer of an 8B model.
    pub attention_tflops: f64,
}

impl Engine {
    /// The same engine on `device`. For a GPU the weights are copied there; layers that have no room beside a question stay in the
    /// computer's memory, pinned, and are read from there.
    ///
    /// # Errors
    /// [`EngineError::NoGpu`] where there is none, [`EngineError::Gpu`] where the model does not fit it.
    pub fn on(self, device: ComputeDevice) -> Result<Self, EngineError> {
        match device {
            ComputeDevice::Cpu => Ok(self),
            ComputeDevice::Cuda(ordinal) => self.on_gpu(open(ordinal)?),
        }
    }

    /// The same engine where it is to compute; and, where a GPU was looked for in vain, why that is the processor.
    ///
    /// # Errors
    /// As [`Engine::on`], for a device that was named.
    pub fn placed(mut self, choice: DeviceChoice) -> Result<(Self, Option<String>), EngineError> {
        if let DeviceChoice::Named(device) = choice {
            return Ok((self.on(device)?, None));
        }
        let fitting = gpus().and_then(|gpus| fitting_gpu(&gpus, self.model().weights_bytes()));
        let placed = fitting.and_then(|device| match device {
            ComputeDevice::Cpu => Ok(()),
            ComputeDevice::Cuda(ordinal) => open(ordinal)
                .and_then(|gpu| self.take_gpu(gpu))
                .map_err(|error| error.to_string()),
        });
        Ok((self, placed.err()))
    }

    /// The same engine as it would be on `device`, for what a question would take of it: nothing is copied there, and nothing can be asked.
    ///
    /// # Errors
    /// As [`Engine::on`].
    pub fn as_if_on(self, device: ComputeDevice) -> Result<Self, EngineError> {
        match device {
            ComputeDevice::Cpu => Ok(self),
            ComputeDevice::Cuda(ordinal) => self.on_gpu(open(ordinal)?.dry_run()),
        }
    }

    /// What a person should know of a model that does not fit its GPU, in a sentence.
    pub(crate) fn gpu_note(&self) -> Option<String> {
        let gpu = self.model().gpu()?;
        let away = gpu.host_bytes();
        (away > 0).then(|| {
            format!(
                "{} of the model's weights have no room on {} beside a question and are read from the computer's memory for every token, which takes longer; a smaller quantisation may fit",
                format_bytes(away),
                self.computes_on()
            )
        })
    }

    /// What computes, in words: the processor, or a GPU's name.
    pub fn computes_on(&self) -> &str {
        let gpu = self.model().gpu();
        gpu.map_or("the processor", |gpu| &gpu.device().facts().name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gpu_with_most_room_is_taken_if_the_model_fits_it() {
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
    fn a_gpu_that_failed_or_is_full_is_lost_and_one_that_was_never_used_is_not() {
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
    fn devices_are_named_as_they_are_printed() {
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
