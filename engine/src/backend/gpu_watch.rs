//! [`GpuWatch`]: peak GPU memory reported by the driver while a computation runs, to compare with the
//! ledger's estimate.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::EngineError;

/// Sampling interval: buffers are allocated before the kernels that use them, and these take longer.
const BETWEEN: Duration = Duration::from_millis(5);

/// Asks the driver for the free bytes.
type FreeMemory = Arc<dyn Fn() -> Result<u64, EngineError> + Send + Sync>;

/// Samples a GPU's free memory until it is dropped.
pub struct GpuWatch {
    /// Bytes that were free before the model was loaded.
    free_before: u64,
    /// The smallest number of free bytes so far.
    fewest: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    free_memory: FreeMemory,
}

impl GpuWatch {
    /// Starts to watch a GPU that had `free_before` bytes free before the model was loaded.
    ///
    /// # Errors
    /// Those of `free_memory`.
    pub fn new(
        free_before: u64,
        free_memory: impl Fn() -> Result<u64, EngineError> + Send + Sync + 'static,
    ) -> Result<Self, EngineError> {
        let free_memory: FreeMemory = Arc::new(free_memory);
        let fewest = Arc::new(AtomicU64::new(free_memory()?));
        let ended = Arc::new(AtomicBool::new(false));
        let (sampled, least, end) = (free_memory.clone(), fewest.clone(), ended.clone());
        let thread = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                // A GPU error is reported by the computation itself.
                let Ok(free) = sampled() else {
                    return;
                };
                least.fetch_min(free, Ordering::Relaxed);
                std::thread::sleep(BETWEEN);
            }
        });
        Ok(Self {
            free_before,
            fewest,
            ended,
            thread: Some(thread),
            free_memory,
        })
    }

    /// Peak memory in bytes since the start, of all processes, including the model's weights.
    ///
    /// # Errors
    /// [`EngineError::Gpu`] if the driver returns an error.
    pub fn most(&self) -> Result<u64, EngineError> {
        let now = (self.free_memory)()?;
        let fewest = self.fewest.fetch_min(now, Ordering::Relaxed).min(now);
        Ok(self.free_before.saturating_sub(fewest))
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
