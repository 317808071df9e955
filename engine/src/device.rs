//! What computes: the processor, or a graphics card beside it. In a build without the feature `cuda` a card is refused in a sentence.

use std::fmt;
use std::str::FromStr;

use crate::{Engine, EngineError};

/// What `--device` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComputeDevice {
    /// The processor.
    #[default]
    Cpu,
    /// An NVIDIA graphics card, by its number.
    Cuda(usize),
}

/// No name of a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--device {0:?} is not known; it takes cpu, or cuda:0 for the first graphics card")]
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

/// A graphics card that this build can compute on.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct GraphicsCard {
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

/// The graphics cards of this computer.
///
/// # Errors
/// Why there is none, in a sentence with the way out.
#[cfg(feature = "cuda")]
pub fn graphics_cards() -> Result<Vec<GraphicsCard>, String> {
    let cards = kept_cuda::nvidia::cards().map_err(|why| why.to_string())?;
    let card = |card: kept_cuda::nvidia::Card| GraphicsCard {
        device: ComputeDevice::Cuda(card.ordinal).to_string(),
        name: card.facts.name,
        capability: format!(
            "{}.{}",
            card.facts.capability / 10,
            card.facts.capability % 10
        ),
        memory: card.facts.memory,
        free: card.free,
    };
    Ok(cards.into_iter().map(card).collect())
}

/// The graphics cards of this computer.
///
/// # Errors
/// Always: this build has no kernels for any.
#[cfg(not(feature = "cuda"))]
pub fn graphics_cards() -> Result<Vec<GraphicsCard>, String> {
    Err(WITHOUT.to_owned())
}

#[cfg(not(feature = "cuda"))]
const WITHOUT: &str =
    "this build of Kept computes on the processor only; `make cuda` makes one for graphics cards";

#[cfg(feature = "cuda")]
fn open(ordinal: usize) -> Result<kept_cuda::Device, EngineError> {
    kept_cuda::nvidia::open(ordinal).map_err(|why| {
        EngineError::NoCard(format!("--device cuda:{ordinal}: {why}; use --device cpu"))
    })
}

#[cfg(not(feature = "cuda"))]
fn open(ordinal: usize) -> Result<kept_cuda::Device, EngineError> {
    Err(EngineError::NoCard(format!(
        "--device cuda:{ordinal}: {WITHOUT}, or use --device cpu"
    )))
}

impl Engine {
    /// The same engine on `device`. For a graphics card the weights are copied there.
    ///
    /// # Errors
    /// [`EngineError::NoCard`] where there is none, [`EngineError::Card`] where the model does not fit it.
    pub fn on(self, device: ComputeDevice) -> Result<Self, EngineError> {
        match device {
            ComputeDevice::Cpu => Ok(self),
            ComputeDevice::Cuda(ordinal) => self.on_card(open(ordinal)?),
        }
    }

    /// The same engine as it would be on `device`, for what a question would take of it: nothing is copied there, and nothing can be asked.
    ///
    /// # Errors
    /// As [`Engine::on`].
    pub fn as_if_on(self, device: ComputeDevice) -> Result<Self, EngineError> {
        match device {
            ComputeDevice::Cpu => Ok(self),
            ComputeDevice::Cuda(ordinal) => self.on_card(open(ordinal)?.rehearsal()),
        }
    }

    /// What computes, in words: the processor, or a graphics card's name.
    pub fn computes_on(&self) -> &str {
        let card = self.model().card();
        card.map_or("the processor", |card| &card.device().facts().name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
