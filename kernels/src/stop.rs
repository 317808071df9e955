//! A stop request, shared between a controlling thread and running kernels.
//!
//! One flag, set once and polled often; no timeout, no progress report.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that long-running kernels poll between tiles (a tile is well under 20 ms of work). Clones share the flag.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

/// Error: the kernel stopped because of [`Stop::request`]; its outputs are incomplete and must not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stopped on request")]
pub struct Stopped;

impl Stop {
    /// A new flag, not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes every kernel that holds a clone return [`Stopped`] soon. The flag cannot be reset: use a new one.
    pub fn request(&self) {
        // Relaxed: the flag guards no data; it only has to become visible eventually.
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether [`Stop::request`] was called.
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// For use between pieces of work: `stop.check()?`.
    ///
    /// # Errors
    /// [`Stopped`], once [`Stop::request`] was called.
    pub fn check(&self) -> Result<(), Stopped> {
        if self.is_requested() {
            Err(Stopped)
        } else {
            Ok(())
        }
    }
}
