//! The device of the engine: the detected GPUs, and the valid values of the setting.

use kept_engine::ComputeDevice;

use super::AppState;
use super::background::Step;
use crate::contract::{AppEvent, Gpus};
use crate::messages::{self, as_sentence};

/// Checks that the device name is valid.
pub fn check_device(device: Option<&str>) -> Result<(), String> {
    match device.map(str::parse) {
        Some(Err(_) | Ok(ComputeDevice::Auto)) => Err(messages::device(device.unwrap_or_default())),
        _ => Ok(()),
    }
}

impl AppState {
    /// Whether the processor can be measured, and its speed matters: there is no GPU, and nothing computes.
    pub fn may_measure(&self) -> bool {
        let in_background = matches!(self.reading.step, Step::Running(_))
            || self.maps.neutral.is_running()
            || self.maps.levels.is_running();
        self.gpus.gpus.is_empty() && !self.is_busy() && self.running.is_none() && !in_background
    }

    /// Stores the GPUs that were detected before the engine was started.
    pub fn gpus_found(&mut self, mut gpus: Gpus) {
        gpus.why_none = gpus.why_none.map(|why| as_sentence(&why));
        self.gpus = gpus;
        let gpus = self.gpus.clone();
        self.emit(AppEvent::Gpus { gpus });
    }
}
