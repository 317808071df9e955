//! Places in a stream's order, and work that was recorded.

use cudarc::driver::{DriverError, result, sys};

use super::sentence;
use crate::DeviceError;
use crate::driver::{Copying, Recording};

/// Has `stream` wait for `event` before it does anything else.
///
/// # Safety
/// Both are there.
pub(super) unsafe fn wait_for(
    stream: sys::CUstream,
    event: sys::CUevent,
) -> Result<(), DriverError> {
    let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
    // SAFETY: the caller's promise.
    unsafe { result::stream::wait_event(stream, event, flags) }
}

/// A place in the order of a stream's work.
pub(super) struct Mark {
    pub(super) event: sys::CUevent,
    /// The stream of what may have to come after it.
    pub(super) follower: sys::CUstream,
    pub(super) context: sys::CUcontext,
    /// The GPU's name.
    pub(super) device: String,
}

// SAFETY: the driver's handles may be used from any thread; every call makes the context current first.
unsafe impl Send for Mark {}

impl Mark {
    fn failed(&self, error: DriverError) -> DeviceError {
        DeviceError::Failed {
            device: self.device.clone(),
            what: "copying beside its work".to_owned(),
            reason: sentence(error),
        }
    }
}

impl Copying for Mark {
    fn before_the_rest(&self) -> Result<(), DeviceError> {
        // SAFETY: a copy is given back before its device, so that all of them are there.
        unsafe {
            result::ctx::set_current(self.context)
                .and_then(|()| wait_for(self.follower, self.event))
        }
        .map_err(|error| self.failed(error))
    }

    fn wait(&self) -> Result<(), DeviceError> {
        // SAFETY: as above.
        unsafe {
            result::ctx::set_current(self.context)
                .and_then(|()| result::event::synchronize(self.event))
        }
        .map_err(|error| self.failed(error))
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // SAFETY: made by this object, and nobody else has it. The driver keeps what still waits for it; errors leave nothing to do.
        unsafe {
            if result::ctx::set_current(self.context).is_ok() {
                let _ = result::event::destroy(self.event);
            }
        }
    }
}

/// A CUDA graph, ready to run on the device's stream.
pub(super) struct Graph {
    pub(super) ready: sys::CUgraphExec,
    pub(super) stream: sys::CUstream,
    pub(super) context: sys::CUcontext,
    /// The GPU's name.
    pub(super) device: String,
}

// SAFETY: the driver's handles may be used from any thread; every call makes the context current first.
unsafe impl Send for Graph {}

impl Recording for Graph {
    unsafe fn run(&self) -> Result<(), DeviceError> {
        // SAFETY: a recording is given back before its device; for what it touches the caller answers.
        unsafe {
            result::ctx::set_current(self.context)
                .and_then(|()| result::graph::launch(self.ready, self.stream))
        }
        .map_err(|error| DeviceError::Failed {
            device: self.device.clone(),
            what: "what was recorded".to_owned(),
            reason: sentence(error),
        })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by this object, and nobody else has it. The driver lets a run end first; errors leave nothing to do.
        unsafe {
            if result::ctx::set_current(self.context).is_ok() {
                let _ = result::graph::exec_destroy(self.ready);
            }
        }
    }
}
