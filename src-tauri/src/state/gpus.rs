//! The device of the engine: the detected GPUs, and the valid values of the setting.

use kept_engine::ComputeDevice;

use super::AppState;
use crate::contract::{AppEvent, Gpus};
use crate::messages::{self, as_sentence};

/// Checks that the device name is valid.
pub fn check_device(device: Option<&str>) -> Result<(), String> {
    match device.map(str::parse::<ComputeDevice>) {
        Some(Err(_)) => Err(messages::device(device.unwrap_or_default())),
        _ => Ok(()),
    }
}

impl AppState {
    /// Stores the GPUs that were detected before the engine was started.
    pub fn gpus_found(&mut self, mut gpus: Gpus) {
        gpus.why_none = gpus.why_none.map(|why| as_sentence(&why));
        self.gpus = gpus;
        let gpus = self.gpus.clone();
        self.emit(AppEvent::Gpus { gpus });
    }
}
