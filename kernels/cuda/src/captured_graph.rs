//! [`CapturedGraph`]: launches that are asked for once and run again and again, as one: on a GPU a CUDA graph.

use crate::driver::Recording;
use crate::{Device, DeviceError};

/// A run of launches, with everything that they work on.
pub struct CapturedGraph<T> {
    // Given back before the device.
    recording: Box<dyn Recording>,
    /// Owns every buffer of the launches.
    work: T,
    _device: Device,
}

impl<T: Sync + 'static> CapturedGraph<T> {
    /// Records what `run` asks of the device with the buffers of `work`, which does none of it yet; memory can neither be taken, written nor read
    /// meanwhile.
    ///
    /// # Errors
    /// Those of `run`, or when the device cannot record it.
    pub fn new(
        device: &Device,
        mut work: T,
        run: fn(&Device, &mut T) -> Result<(), DeviceError>,
    ) -> Result<Self, DeviceError> {
        let driver = device.driver();
        driver.begin_recording()?;
        let ran = run(device, &mut work);
        // Ended whatever came of it, so that the device goes on.
        let recording = driver.end_recording();
        ran?;
        Ok(Self {
            recording: recording?,
            work,
            _device: device.clone(),
        })
    }

    /// Runs all of it once more, after everything that was asked for before.
    pub fn run(&self) -> Result<(), DeviceError> {
        // SAFETY: every launch was asked for with buffers of `work`, since `run` has none of its own and could make none while it was recorded;
        // nobody can take them out of it, so that they are where they were.
        unsafe { self.recording.run() }
    }

    /// What the launches work on.
    pub fn work(&self) -> &T {
        &self.work
    }

    /// Gives back what the launches worked on, to be recorded anew.
    pub fn into_work(self) -> T {
        self.work
    }
}
