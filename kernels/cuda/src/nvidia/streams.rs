//! Events in a stream's order, and captured graphs.

use std::sync::Arc;

use cudarc::driver::{DriverError, result, sys};

use super::error_text;
use super::fault::Fault;
use crate::DeviceError;
use crate::driver::{Capture, Copying};

/// Makes `stream` wait for `event` before its later work.
///
/// # Safety
/// Both exist.
pub(super) unsafe fn wait_event(
    stream: sys::CUstream,
    event: sys::CUevent,
) -> Result<(), DriverError> {
    let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
    // SAFETY: the caller's promise.
    unsafe { result::stream::wait_event(stream, event, flags) }
}

/// An event: a point in the order of a stream's work.
pub(super) struct Event {
    pub(super) handle: sys::CUevent,
    /// The stream that may have to wait for the event.
    pub(super) follower: sys::CUstream,
    pub(super) context: sys::CUcontext,
    /// Name of the GPU.
    pub(super) device: String,
}

// SAFETY: the driver's handles may be used from any thread; every call makes the context current first.
unsafe impl Send for Event {}

impl Event {
    fn failed(&self, error: DriverError) -> DeviceError {
        DeviceError::failed(&self.device, "asynchronous copies", error_text(error))
    }
}

impl Copying for Event {
    fn order_before_later_work(&self) -> Result<(), DeviceError> {
        // SAFETY: a copy is dropped before its device, so that the context, the stream and the event exist.
        unsafe {
            result::ctx::set_current(self.context)
                .and_then(|()| wait_event(self.follower, self.handle))
        }
        .map_err(|error| self.failed(error))
    }

    fn wait(&self) -> Result<(), DeviceError> {
        // SAFETY: as above.
        unsafe {
            result::ctx::set_current(self.context)
                .and_then(|()| result::event::synchronize(self.handle))
        }
        .map_err(|error| self.failed(error))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created by this object, its only owner. The driver keeps an event that work still waits for. Errors
        // are ignored: no recovery is possible.
        unsafe {
            if result::ctx::set_current(self.context).is_ok() {
                let _ = result::event::destroy(self.handle);
            }
        }
    }
}

/// An instantiated CUDA graph that runs on the device's stream.
pub(super) struct Graph {
    pub(super) exec: sys::CUgraphExec,
    pub(super) stream: sys::CUstream,
    pub(super) context: sys::CUcontext,
    /// Name of the GPU.
    pub(super) device: String,
    pub(super) fault: Option<Arc<Fault>>,
}

// SAFETY: the driver's handles may be used from any thread; every call makes the context current first.
unsafe impl Send for Graph {}

impl Capture for Graph {
    unsafe fn run(&self) -> Result<(), DeviceError> {
        // SAFETY: a recording is dropped before its device; the caller answers for the memory that it touches.
        unsafe {
            let fault = self.fault.as_ref();
            result::ctx::set_current(self.context)
                .and_then(|()| fault.map_or(Ok(()), |fault| fault.before_launch(self.stream)))
                .and_then(|()| result::graph::launch(self.exec, self.stream))
        }
        .map_err(|error| DeviceError::failed(&self.device, "what was recorded", error_text(error)))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: created by this object, its only owner. The driver lets a run end first. Errors are ignored: no
        // recovery is possible.
        unsafe {
            if result::ctx::set_current(self.context).is_ok() {
                let _ = result::graph::exec_destroy(self.exec);
            }
        }
    }
}
