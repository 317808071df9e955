//! [`CapturedGraph`]: launches that are captured once and replayed as one; a CUDA graph on a GPU.

use crate::driver::Capture;
use crate::{Device, DeviceError};

/// Captured launches and all buffers that they use.
pub struct CapturedGraph<T> {
    // Dropped before the device.
    recording: Box<dyn Capture>,
    /// Owner of all buffers of the launches.
    work: T,
    _device: Device,
}

impl<T: Sync + 'static> CapturedGraph<T> {
    /// Captures the launches of `run` on the buffers of `work` without running them. `run` can neither allocate nor
    /// copy memory.
    ///
    /// # Errors
    /// Those of `run`, or of the device if it cannot capture the launches.
    pub fn new(
        device: &Device,
        mut work: T,
        run: fn(&Device, &mut T) -> Result<(), DeviceError>,
    ) -> Result<Self, DeviceError> {
        let driver = device.driver();
        driver.begin_capture()?;
        let ran = run(device, &mut work);
        // End the capture also after an error, so that the device stays usable.
        let recording = driver.end_capture();
        ran?;
        Ok(Self {
            recording: recording?,
            work,
            _device: device.clone(),
        })
    }

    /// Replays all launches, after all work submitted before.
    pub fn run(&self) -> Result<(), DeviceError> {
        // SAFETY: every launch uses buffers of `work` only, because `run` captures no environment and cannot allocate
        // during a capture. No caller can remove a buffer from `work`, so all addresses are still valid.
        unsafe { self.recording.run() }
    }

    /// Returns the buffers of the launches, to capture a new graph.
    pub fn into_work(self) -> T {
        self.work
    }
}
