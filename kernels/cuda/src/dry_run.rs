//! Dry run: a device that counts allocations instead of making them, to measure peak memory in advance.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::driver::{Address, Capture, Copying, DeviceProperties, Driver, Geometry, Products};
use crate::{Device, DeviceError};

/// Counts allocations. Nothing is allocated, so that addresses are arbitrary and never dereferenced.
struct DryRun {
    inner: Arc<dyn Driver>,
    /// Bytes held now.
    taken: AtomicU64,
    /// The most bytes held at once.
    most: AtomicU64,
}

impl Device {
    /// A device with the properties of this one that allocates nothing and runs nothing.
    pub fn dry_run(&self) -> Device {
        Device::new(self.counting_driver())
    }

    /// Peak device memory in bytes of `make` and its result.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn measure_allocations<T>(
        &self,
        make: impl FnOnce(&Device) -> Result<T, DeviceError>,
    ) -> Result<u64, DeviceError> {
        let dry_run = self.counting_driver();
        drop(make(&Device::new(dry_run.clone()))?);
        Ok(dry_run.most.load(Ordering::Relaxed))
    }

    fn counting_driver(&self) -> Arc<DryRun> {
        Arc::new(DryRun {
            inner: self.shared_driver(),
            taken: AtomicU64::new(0),
            most: AtomicU64::new(0),
        })
    }
}

impl DryRun {
    fn unsupported(&self, what: &str) -> DeviceError {
        let reason = "a dry-run device only counts allocations";
        DeviceError::failed(&self.properties().name, what, reason)
    }
}

impl Driver for DryRun {
    fn properties(&self) -> &DeviceProperties {
        self.inner.properties()
    }

    fn free_memory(&self) -> Result<u64, DeviceError> {
        let taken = self.taken.load(Ordering::Relaxed);
        Ok(self.inner.free_memory()?.saturating_sub(taken))
    }

    fn allocate(&self, bytes: usize) -> Result<Address, DeviceError> {
        let before = self.taken.fetch_add(bytes as u64, Ordering::Relaxed);
        let most = &self.most;
        most.fetch_max(before + bytes as u64, Ordering::Relaxed);
        // Not null, and aligned.
        Ok((before + 256).next_multiple_of(256))
    }

    unsafe fn free(&self, _address: Address, bytes: usize) {
        self.taken.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    fn allocate_on_host(&self, bytes: usize) -> Result<Address, DeviceError> {
        Ok((bytes as u64 + 256).next_multiple_of(256))
    }

    unsafe fn free_on_host(&self, _address: Address, _bytes: usize) {}

    unsafe fn upload(&self, _to: Address, _from: &[u8]) -> Result<(), DeviceError> {
        Ok(())
    }

    unsafe fn download(&self, to: &mut [u8], _from: Address) -> Result<(), DeviceError> {
        to.fill(0);
        Ok(())
    }

    unsafe fn copy(&self, _to: Address, _from: Address, _bytes: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    unsafe fn copy_async(
        &self,
        _to: Address,
        _from: Address,
        _bytes: usize,
    ) -> Result<Box<dyn Copying>, DeviceError> {
        Err(self.unsupported("asynchronous copies"))
    }

    fn host_pointer(&self, _address: Address) -> Result<*mut u8, DeviceError> {
        Err(self.unsupported("mapping host memory"))
    }

    unsafe fn clear(&self, _address: Address, _bytes: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    unsafe fn launch(
        &self,
        name: &str,
        _geometry: Geometry,
        _parameters: &[u8],
    ) -> Result<(), DeviceError> {
        Err(self.unsupported(name))
    }

    fn begin_capture(&self) -> Result<(), DeviceError> {
        Err(self.unsupported("graph capture"))
    }

    fn end_capture(&self) -> Result<Box<dyn Capture>, DeviceError> {
        Err(self.unsupported("graph capture"))
    }

    fn products(&self) -> &dyn Products {
        self.inner.products()
    }

    fn wait(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}
