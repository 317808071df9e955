//! A request to stop, shared between the thread that asks and the kernels that work.
//!
//! Not a timeout and not a progress report: one flag, read often, set once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that long-running kernels read between tiles (a tile is well under 20 ms of work). Clones share the flag.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

/// The kernel gave up because [`Stop::request`] was called; its outputs are incomplete and must not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stopped on request")]
pub struct Stopped;

impl Stop {
    /// A flag nobody has raised yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks every kernel that holds a clone to return [`Stopped`] soon. There is no way back: make a new flag.
    pub fn request(&self) {
        // Relaxed: the flag guards no data, it only has to become visible eventually.
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether [`Stop::request`] was called.
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// `Err(Stopped)` once [`Stop::request`] was called: `stop.check()?` between pieces of work.
    pub fn check(&self) -> Result<(), Stopped> {
        if self.is_requested() {
            Err(Stopped)
        } else {
            Ok(())
        }
    }
}
