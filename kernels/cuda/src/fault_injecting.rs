//! A device for tests that limits memory, counts operations and fails on request. It wraps the emulator or a GPU, so
//! that one test checks both against the same numbers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use candle_core::quantized::GgmlDType;

use crate::driver::{
    Address, Capture, Copying, DeviceProperties, Driver, Geometry, InputFormat, Product, Products,
};
use crate::{Device, DeviceError};

/// Error message of a GPU after its first failure.
const FAILED: &str = "unspecified launch failure";

/// `device` with at most `memory` bytes, and a meter of its operations.
pub fn fault_injecting(device: &Device, memory: u64) -> (Device, Meter) {
    let fault_injecting = Arc::new(FaultInjecting {
        properties: DeviceProperties {
            memory,
            ..device.properties().clone()
        },
        inner: device.shared_driver(),
        counts: Arc::default(),
        on_host: Mutex::default(),
        records: AtomicBool::new(false),
        noted: AtomicU64::new(0),
    });
    (
        Device::new(fault_injecting.clone()),
        Meter(fault_injecting.counts.clone()),
    )
}

/// Counters of a device's operations.
#[derive(Clone)]
pub struct Meter(Arc<Counts>);

impl Meter {
    /// Peak device memory in bytes.
    pub fn most(&self) -> u64 {
        self.0.most.load(Ordering::Relaxed)
    }

    /// Launched kernels, products included.
    pub fn launches(&self) -> u64 {
        self.0.launches.load(Ordering::Relaxed)
    }

    /// Number of allocations in device memory.
    pub fn allocations(&self) -> u64 {
        self.0.allocations.load(Ordering::Relaxed)
    }

    /// Number of graph replays; the kernels of a replay count as launches.
    pub fn runs(&self) -> u64 {
        self.0.runs.load(Ordering::Relaxed)
    }

    /// Bytes uploaded, and bytes downloaded.
    pub fn copied(&self) -> (u64, u64) {
        let load = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed);
        (load(&self.0.uploaded), load(&self.0.downloaded))
    }

    /// The launch after `launches` more fails, and then every operation, as on a GPU.
    pub fn fails_after(&self, launches: u64) {
        let at = self.launches() + launches + 1;
        self.0.fails_at.store(at, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Counts {
    /// Bytes held now.
    taken: AtomicU64,
    most: AtomicU64,
    allocations: AtomicU64,
    launches: AtomicU64,
    runs: AtomicU64,
    uploaded: AtomicU64,
    downloaded: AtomicU64,
    /// Number of the launch that fails, from 1; 0 for none.
    fails_at: AtomicU64,
}

fn count(counter: &AtomicU64, more: usize) -> u64 {
    counter.fetch_add(more as u64, Ordering::Relaxed) + more as u64
}

impl Counts {
    fn has_failed(&self) -> bool {
        let fails_at = self.fails_at.load(Ordering::Relaxed);
        fails_at > 0 && self.launches.load(Ordering::Relaxed) >= fails_at
    }

    /// Refuses every operation after a failure: errors of a GPU are sticky.
    fn check_sticky_error(&self, device: &str, what: &str) -> Result<(), DeviceError> {
        if self.has_failed() {
            Err(DeviceError::failed(device, what, FAILED))
        } else {
            Ok(())
        }
    }
}

struct FaultInjecting {
    inner: Arc<dyn Driver>,
    properties: DeviceProperties,
    counts: Arc<Counts>,
    /// Addresses of pinned host allocations, and their bytes.
    on_host: Mutex<BTreeMap<Address, usize>>,
    records: AtomicBool,
    /// Launches of the capture in progress.
    noted: AtomicU64,
}

/// Bytes that an allocation counts as: devices round allocations up to at least a multiple of 16.
fn allocated_bytes(bytes: usize) -> u64 {
    (bytes as u64).next_multiple_of(16)
}

impl FaultInjecting {
    fn check_sticky_error(&self, what: &str) -> Result<(), DeviceError> {
        self.counts.check_sticky_error(&self.properties.name, what)
    }

    /// Whether an address lies in pinned host memory.
    fn is_on_host(&self, address: Address) -> bool {
        let on_host = self.on_host.lock().expect("no panic while locked");
        let before = on_host.range(..=address).next_back();
        before.is_some_and(|(first, bytes)| address - first < *bytes as u64)
    }

    /// Refuses allocations during a capture: on a GPU that allows them, a replay would use a stale address.
    fn check_allocation(&self) -> Result<(), DeviceError> {
        self.check_sticky_error("taking memory")?;
        if self.records.load(Ordering::Relaxed) {
            let why = "it is not allowed during graph capture";
            Err(DeviceError::failed(
                &self.properties.name,
                "taking memory",
                why,
            ))
        } else {
            Ok(())
        }
    }

    fn count_launch(&self, what: &str) -> Result<(), DeviceError> {
        if self.records.load(Ordering::Relaxed) {
            count(&self.noted, 1);
            return self.check_sticky_error(what);
        }
        count(&self.counts.launches, 1);
        self.check_sticky_error(what)
    }
}

impl FaultInjecting {
    /// Counts an asynchronous copy between host and device like any other copy.
    fn count_copied(&self, to: Address, from: Address, bytes: usize) {
        match (self.is_on_host(from), self.is_on_host(to)) {
            (true, false) => count(&self.counts.uploaded, bytes),
            (false, true) => count(&self.counts.downloaded, bytes),
            _ => 0,
        };
    }
}

impl Driver for FaultInjecting {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn free_memory(&self) -> Result<u64, DeviceError> {
        self.check_sticky_error("counting its memory")?;
        let taken = self.counts.taken.load(Ordering::Relaxed);
        let left = self.properties.memory.saturating_sub(taken);
        Ok(left.min(self.inner.free_memory()?))
    }

    fn allocate(&self, bytes: usize) -> Result<Address, DeviceError> {
        self.check_allocation()?;
        count(&self.counts.allocations, 1);
        let free = self.free_memory()?;
        if allocated_bytes(bytes) > free {
            return Err(DeviceError::OutOfMemory {
                device: self.properties.name.clone(),
                needed: bytes as u64,
                free,
            });
        }
        let address = self.inner.allocate(bytes)?;
        let taken = count(&self.counts.taken, allocated_bytes(bytes) as usize);
        self.counts.most.fetch_max(taken, Ordering::Relaxed);
        Ok(address)
    }

    unsafe fn free(&self, address: Address, bytes: usize) {
        (self.counts.taken).fetch_sub(allocated_bytes(bytes), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { self.inner.free(address, bytes) }
    }

    fn allocate_on_host(&self, bytes: usize) -> Result<Address, DeviceError> {
        self.check_allocation()?;
        let address = self.inner.allocate_on_host(bytes)?;
        let mut on_host = self.on_host.lock().expect("no panic while locked");
        on_host.insert(address, bytes);
        Ok(address)
    }

    unsafe fn free_on_host(&self, address: Address, bytes: usize) {
        let mut on_host = self.on_host.lock().expect("no panic while locked");
        on_host.remove(&address);
        // SAFETY: the caller's promise.
        unsafe { self.inner.free_on_host(address, bytes) }
    }

    unsafe fn upload(&self, to: Address, from: &[u8]) -> Result<(), DeviceError> {
        self.check_sticky_error("copying to it")?;
        count(&self.counts.uploaded, from.len());
        // SAFETY: the caller's promise.
        unsafe { self.inner.upload(to, from) }
    }

    unsafe fn download(&self, to: &mut [u8], from: Address) -> Result<(), DeviceError> {
        self.check_sticky_error("copying from it")?;
        count(&self.counts.downloaded, to.len());
        // SAFETY: the caller's promise.
        unsafe { self.inner.download(to, from) }
    }

    unsafe fn copy(&self, to: Address, from: Address, bytes: usize) -> Result<(), DeviceError> {
        self.check_sticky_error("copying on it")?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.copy(to, from, bytes) }
    }

    unsafe fn copy_async(
        &self,
        to: Address,
        from: Address,
        bytes: usize,
    ) -> Result<Box<dyn Copying>, DeviceError> {
        self.check_sticky_error("asynchronous copies")?;
        self.count_copied(to, from, bytes);
        // SAFETY: the caller's promise.
        unsafe { self.inner.copy_async(to, from, bytes) }
    }

    fn host_pointer(&self, address: Address) -> Result<*mut u8, DeviceError> {
        self.inner.host_pointer(address)
    }

    unsafe fn clear(&self, address: Address, bytes: usize) -> Result<(), DeviceError> {
        self.check_sticky_error("clearing memory")?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.clear(address, bytes) }
    }

    unsafe fn launch(
        &self,
        name: &str,
        geometry: Geometry,
        parameters: &[u8],
    ) -> Result<(), DeviceError> {
        self.count_launch(name)?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.launch(name, geometry, parameters) }
    }

    fn begin_capture(&self) -> Result<(), DeviceError> {
        self.check_sticky_error("graph capture")?;
        self.inner.begin_capture()?;
        self.noted.store(0, Ordering::Relaxed);
        self.records.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn end_capture(&self) -> Result<Box<dyn Capture>, DeviceError> {
        self.records.store(false, Ordering::Relaxed);
        Ok(Box::new(Run {
            inner: self.inner.end_capture()?,
            launches: self.noted.load(Ordering::Relaxed),
            device: self.properties.name.clone(),
            counts: self.counts.clone(),
        }))
    }

    fn products(&self) -> &dyn Products {
        self
    }

    fn wait(&self) -> Result<(), DeviceError> {
        self.check_sticky_error("its work")?;
        self.inner.wait()
    }
}

/// A captured graph whose launches are counted at every replay.
struct Run {
    inner: Box<dyn Capture>,
    launches: u64,
    device: String,
    counts: Arc<Counts>,
}

impl Capture for Run {
    unsafe fn run(&self) -> Result<(), DeviceError> {
        count(&self.counts.runs, 1);
        count(&self.counts.launches, self.launches as usize);
        self.counts.check_sticky_error(&self.device, "its work")?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.run() }
    }
}

impl Products for FaultInjecting {
    fn wants(&self, kind: GgmlDType, inputs: usize) -> Option<InputFormat> {
        self.inner.products().wants(kind, inputs)
    }

    fn input_bytes(&self, format: InputFormat, count: usize, cols: usize) -> usize {
        self.inner.products().input_bytes(format, count, cols)
    }

    fn padding(&self, kind: GgmlDType) -> usize {
        self.inner.products().padding(kind)
    }

    fn workspace(&self) -> usize {
        self.inner.products().workspace()
    }

    unsafe fn quantise(
        &self,
        format: InputFormat,
        x: Address,
        count: usize,
        cols: usize,
        out: Address,
    ) -> Result<(), DeviceError> {
        self.count_launch("rounding a product's inputs")?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.products().quantise(format, x, count, cols, out) }
    }

    unsafe fn multiply(&self, product: &Product) -> Result<(), DeviceError> {
        self.count_launch("a product")?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.products().multiply(product) }
    }
}
