//! [`GpuWatch`]: what a GPU's driver says is taken of it, at the most, while something runs. What was expected is the ledger's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use kept_cuda::Device;

use crate::{Engine, EngineError};

/// Time between two looks: buffers are made before anything runs over them, and what runs takes longer.
const BETWEEN: Duration = Duration::from_millis(5);

/// Looks at a GPU again and again, until it is asked.
pub struct GpuWatch {
    /// Bytes that were free before the model was there.
    free: u64,
    /// The fewest that were.
    fewest: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    looking: Option<JoinHandle<()>>,
    device: Device,
}

impl Engine {
    /// Begins to watch the GPU that computes; `None` where none does.
    ///
    /// # Errors
    /// [`EngineError::Gpu`] when it does not answer.
    pub fn watch_gpu(&self) -> Result<Option<GpuWatch>, EngineError> {
        let Some(gpu) = self.model().gpu() else {
            return Ok(None);
        };
        let device = gpu.device().clone();
        let free = gpu.free_before();
        let fewest = Arc::new(AtomicU64::new(device.free_memory()?));
        let ended = Arc::new(AtomicBool::new(false));
        let (there, seen, end) = (device.clone(), fewest.clone(), ended.clone());
        let looking = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                // A GPU that does not answer is heard of where it computes.
                let Ok(free) = there.free_memory() else {
                    return;
                };
                seen.fetch_min(free, Ordering::Relaxed);
                std::thread::sleep(BETWEEN);
            }
        });
        Ok(Some(GpuWatch {
            free,
            fewest,
            ended,
            looking: Some(looking),
            device,
        }))
    }
}

impl GpuWatch {
    /// The most bytes that were taken while it looked, by whoever took them, what the model's weights take included.
    ///
    /// # Errors
    /// [`EngineError::Gpu`] when the GPU does not answer.
    pub fn most(&self) -> Result<u64, EngineError> {
        let now = self.device.free_memory()?;
        let fewest = self.fewest.fetch_min(now, Ordering::Relaxed).min(now);
        Ok(self.free.saturating_sub(fewest))
    }
}

impl Drop for GpuWatch {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(looking) = self.looking.take() {
            // It does nothing that can panic.
            let _ = looking.join();
        }
    }
}
