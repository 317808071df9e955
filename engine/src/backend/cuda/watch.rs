//! [`GpuWatch`]: peak GPU memory reported by the driver while a computation runs, to compare with the
//! ledger's estimate.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use kept_cuda::{Device, DeviceError};
use kept_models::GpuModel;

use crate::EngineError;

/// Sampling interval: buffers are allocated before the kernels that use them, and these take longer.
const BETWEEN: Duration = Duration::from_millis(5);

/// Samples a GPU's free memory until it is dropped.
pub struct GpuWatch {
    /// Bytes that were free before the model was loaded.
    free: u64,
    /// The smallest number of free bytes so far.
    fewest: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    device: Device,
}

impl GpuWatch {
    /// Starts to watch `gpu`.
    pub(super) fn new(gpu: &GpuModel) -> Result<Self, DeviceError> {
        let device = gpu.device().clone();
        let free = gpu.free_before();
        let fewest = Arc::new(AtomicU64::new(device.free_memory()?));
        let ended = Arc::new(AtomicBool::new(false));
        let (sampled, least, end) = (device.clone(), fewest.clone(), ended.clone());
        let thread = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                // A GPU error is reported by the computation itself.
                let Ok(free) = sampled.free_memory() else {
                    return;
                };
                least.fetch_min(free, Ordering::Relaxed);
                std::thread::sleep(BETWEEN);
            }
        });
        Ok(Self {
            free,
            fewest,
            ended,
            thread: Some(thread),
            device,
        })
    }

    /// Peak memory in bytes since the start, of all processes, including the model's weights.
    ///
    /// # Errors
    /// [`EngineError::Gpu`] if the driver returns an error.
    pub fn most(&self) -> Result<u64, EngineError> {
        let now = self.device.free_memory()?;
        let fewest = self.fewest.fetch_min(now, Ordering::Relaxed).min(now);
        Ok(self.free.saturating_sub(fewest))
    }
}

impl Drop for GpuWatch {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread cannot panic.
            let _ = thread.join();
        }
    }
}
