//! The device of the engine: the detected GPUs, and the valid values of the setting.

use kept_engine::ComputeDevice;
use kept_worker::protocol;

use super::AppState;
use crate::contract::{AppEvent, Gpu, Gpus};
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
    pub fn gpus_found(&mut self, gpus: protocol::Gpus) {
        let gpu = |gpu: kept_engine::Gpu| Gpu {
            device: gpu.device,
            name: gpu.name,
            memory: gpu.memory,
            free: gpu.free,
        };
        self.gpus = Gpus {
            gpus: gpus.gpus.into_iter().map(gpu).collect(),
            why_none: gpus.why_none.map(|why| as_sentence(&why)),
        };
        let gpus = self.gpus.clone();
        self.emit(AppEvent::Gpus { gpus });
    }
}
