//! [`CardWatch`]: what a graphics card's driver says is taken of it, at the most, while something runs. What was expected is the ledger's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use kept_cuda::Device;

use crate::{Engine, EngineError};

/// Time between two looks: buffers are made before anything runs over them, and what runs takes longer.
const BETWEEN: Duration = Duration::from_millis(5);

/// Looks at a card again and again, until it is asked.
pub struct CardWatch {
    /// Bytes that were free before the model was there.
    free: u64,
    /// The fewest that were.
    fewest: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    looking: Option<JoinHandle<()>>,
    device: Device,
}

impl Engine {
    /// Begins to watch the card that computes; `None` where none does.
    ///
    /// # Errors
    /// [`EngineError::Card`] when it does not answer.
    pub fn watch_card(&self) -> Result<Option<CardWatch>, EngineError> {
        let Some(card) = self.model().card() else {
            return Ok(None);
        };
        let device = card.device().clone();
        let free = card.free_before();
        let fewest = Arc::new(AtomicU64::new(device.free_memory()?));
        let ended = Arc::new(AtomicBool::new(false));
        let (there, seen, end) = (device.clone(), fewest.clone(), ended.clone());
        let looking = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                // A card that does not answer is heard of where it computes.
                let Ok(free) = there.free_memory() else {
                    return;
                };
                seen.fetch_min(free, Ordering::Relaxed);
                std::thread::sleep(BETWEEN);
            }
        });
        Ok(Some(CardWatch {
            free,
            fewest,
            ended,
            looking: Some(looking),
            device,
        }))
    }
}

impl CardWatch {
    /// The most bytes that were taken while it looked, by whoever took them, what the model's weights take included.
    ///
    /// # Errors
    /// [`EngineError::Card`] when the card does not answer.
    pub fn most(&self) -> Result<u64, EngineError> {
        let now = self.device.free_memory()?;
        let fewest = self.fewest.fetch_min(now, Ordering::Relaxed).min(now);
        Ok(self.free.saturating_sub(fewest))
    }
}

impl Drop for CardWatch {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(looking) = self.looking.take() {
            // It does nothing that can panic.
            let _ = looking.join();
        }
    }
}
