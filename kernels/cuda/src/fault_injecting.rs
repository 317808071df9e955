//! A device for tests that limits memory, counts operations and fails on request. It wraps the emulator or a GPU, so
//! that one test checks both against the same numbers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use candle_core::quantized::GgmlDType;

use crate::driver::{
    Address, Capture, Copying, Driver, Facts, Geometry, Inputs, Product, Products,
};
use crate::{Device, DeviceError};

/// Error message of a GPU after its first failure.
const FAILED: &str = "unspecified launch failure";

/// `device` with at most `memory` bytes, and a meter of its operations.
pub fn fault_injecting(device: &Device, memory: u64) -> (Device, Meter) {
    let fault_injecting = Arc::new(FaultInjecting {
        facts: Facts {
            memory,
            ..device.facts().clone()
        },
        of: device.shared_driver(),
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
        let Counts { sent, brought, .. } = &*self.0;
        let [sent, brought] = [sent, brought].map(|bytes| bytes.load(Ordering::Relaxed));
        (sent, brought)
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
    sent: AtomicU64,
    brought: AtomicU64,
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

    /// Refuses every operation after a failure, as a GPU does.
    fn sound(&self, device: &str, what: &str) -> Result<(), DeviceError> {
        if self.has_failed() {
            Err(failed(device, what, FAILED))
        } else {
            Ok(())
        }
    }
}

fn failed(device: &str, what: &str, reason: &str) -> DeviceError {
    DeviceError::Failed {
        device: device.to_owned(),
        what: what.to_owned(),
        reason: reason.to_owned(),
    }
}

struct FaultInjecting {
    of: Arc<dyn Driver>,
    facts: Facts,
    counts: Arc<Counts>,
    /// Addresses of pinned host allocations, and their bytes.
    on_host: Mutex<BTreeMap<Address, usize>>,
    records: AtomicBool,
    /// Launches of the capture in progress.
    noted: AtomicU64,
}

/// Bytes that an allocation counts as: devices round allocations up to at least a multiple of 16.
fn pieces(bytes: usize) -> u64 {
    (bytes as u64).next_multiple_of(16)
}

impl FaultInjecting {
    fn sound(&self, what: &str) -> Result<(), DeviceError> {
        self.counts.sound(&self.facts.name, what)
    }

    /// Whether an address lies in pinned host memory.
    fn is_on_host(&self, address: Address) -> bool {
        let on_host = self.on_host.lock().expect("no panic while locked");
        let before = on_host.range(..=address).next_back();
        before.is_some_and(|(first, bytes)| address - first < *bytes as u64)
    }

    /// Refuses allocations during a capture: on a GPU that allows them, a replay would use a stale address.
    fn may_take(&self) -> Result<(), DeviceError> {
        self.sound("taking memory")?;
        if self.records.load(Ordering::Relaxed) {
            let why = "it cannot be recorded, and a recording is going on";
            Err(failed(&self.facts.name, "taking memory", why))
        } else {
            Ok(())
        }
    }

    fn launched(&self, what: &str) -> Result<(), DeviceError> {
        if self.records.load(Ordering::Relaxed) {
            count(&self.noted, 1);
            return self.sound(what);
        }
        count(&self.counts.launches, 1);
        self.sound(what)
    }
}

impl FaultInjecting {
    /// Counts an asynchronous copy between host and device like any other copy.
    fn count_copied(&self, (to, from): (Address, Address), bytes: usize) {
        match (self.is_on_host(from), self.is_on_host(to)) {
            (true, false) => count(&self.counts.sent, bytes),
            (false, true) => count(&self.counts.brought, bytes),
            _ => 0,
        };
    }
}

impl Driver for FaultInjecting {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn free_memory(&self) -> Result<u64, DeviceError> {
        self.sound("counting its memory")?;
        let taken = self.counts.taken.load(Ordering::Relaxed);
        let left = self.facts.memory.saturating_sub(taken);
        Ok(left.min(self.of.free_memory()?))
    }

    fn allocate(&self, bytes: usize) -> Result<Address, DeviceError> {
        self.may_take()?;
        count(&self.counts.allocations, 1);
        let free = self.free_memory()?;
        if pieces(bytes) > free {
            return Err(DeviceError::OutOfMemory {
                device: self.facts.name.clone(),
                needed: bytes as u64,
                free,
            });
        }
        let address = self.of.allocate(bytes)?;
        let taken = count(&self.counts.taken, pieces(bytes) as usize);
        self.counts.most.fetch_max(taken, Ordering::Relaxed);
        Ok(address)
    }

    unsafe fn free(&self, address: Address, bytes: usize) {
        (self.counts.taken).fetch_sub(pieces(bytes), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { self.of.free(address, bytes) }
    }

    fn allocate_on_host(&self, bytes: usize) -> Result<Address, DeviceError> {
        self.may_take()?;
        let address = self.of.allocate_on_host(bytes)?;
        let mut on_host = self.on_host.lock().expect("no panic while locked");
        on_host.insert(address, bytes);
        Ok(address)
    }

    unsafe fn free_on_host(&self, address: Address, bytes: usize) {
        let mut on_host = self.on_host.lock().expect("no panic while locked");
        on_host.remove(&address);
        // SAFETY: the caller's promise.
        unsafe { self.of.free_on_host(address, bytes) }
    }

    unsafe fn upload(&self, to: Address, from: &[u8]) -> Result<(), DeviceError> {
        self.sound("copying to it")?;
        count(&self.counts.sent, from.len());
        // SAFETY: the caller's promise.
        unsafe { self.of.upload(to, from) }
    }

    unsafe fn download(&self, to: &mut [u8], from: Address) -> Result<(), DeviceError> {
        self.sound("copying from it")?;
        count(&self.counts.brought, to.len());
        // SAFETY: the caller's promise.
        unsafe { self.of.download(to, from) }
    }

    unsafe fn copy(&self, to: Address, from: Address, bytes: usize) -> Result<(), DeviceError> {
        self.sound("copying on it")?;
        // SAFETY: the caller's promise.
        unsafe { self.of.copy(to, from, bytes) }
    }

    unsafe fn copy_async(
        &self,
        to: Address,
        from: Address,
        bytes: usize,
    ) -> Result<Box<dyn Copying>, DeviceError> {
        self.sound("asynchronous copies")?;
        self.count_copied((to, from), bytes);
        // SAFETY: the caller's promise.
        unsafe { self.of.copy_async(to, from, bytes) }
    }

    fn order_prefetches(&self) -> Result<(), DeviceError> {
        self.sound("copying ahead of its work")?;
        self.of.order_prefetches()
    }

    unsafe fn prefetch_copy(
        &self,
        to: Address,
        from: Address,
        bytes: usize,
    ) -> Result<Box<dyn Copying>, DeviceError> {
        self.sound("copying ahead of its work")?;
        self.count_copied((to, from), bytes);
        // SAFETY: the caller's promise.
        unsafe { self.of.prefetch_copy(to, from, bytes) }
    }

    fn reach(&self, address: Address) -> Result<*mut u8, DeviceError> {
        self.of.reach(address)
    }

    unsafe fn clear(&self, address: Address, bytes: usize) -> Result<(), DeviceError> {
        self.sound("clearing memory")?;
        // SAFETY: the caller's promise.
        unsafe { self.of.clear(address, bytes) }
    }

    unsafe fn launch(
        &self,
        name: &str,
        geometry: Geometry,
        parameters: &[u8],
    ) -> Result<(), DeviceError> {
        self.launched(name)?;
        // SAFETY: the caller's promise.
        unsafe { self.of.launch(name, geometry, parameters) }
    }

    fn begin_capture(&self) -> Result<(), DeviceError> {
        self.sound("recording")?;
        self.of.begin_capture()?;
        self.noted.store(0, Ordering::Relaxed);
        self.records.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn end_capture(&self) -> Result<Box<dyn Capture>, DeviceError> {
        self.records.store(false, Ordering::Relaxed);
        Ok(Box::new(Run {
            of: self.of.end_capture()?,
            launches: self.noted.load(Ordering::Relaxed),
            device: self.facts.name.clone(),
            counts: self.counts.clone(),
        }))
    }

    fn products(&self) -> &dyn Products {
        self
    }

    fn wait(&self) -> Result<(), DeviceError> {
        self.sound("its work")?;
        self.of.wait()
    }
}

/// A captured graph whose launches are counted at every replay.
struct Run {
    of: Box<dyn Capture>,
    launches: u64,
    device: String,
    counts: Arc<Counts>,
}

impl Capture for Run {
    unsafe fn run(&self) -> Result<(), DeviceError> {
        count(&self.counts.runs, 1);
        count(&self.counts.launches, self.launches as usize);
        self.counts.sound(&self.device, "its work")?;
        // SAFETY: the caller's promise.
        unsafe { self.of.run() }
    }
}

impl Products for FaultInjecting {
    fn wants(&self, kind: GgmlDType, inputs: usize) -> Option<Inputs> {
        self.of.products().wants(kind, inputs)
    }

    fn input_bytes(&self, form: Inputs, count: usize, cols: usize) -> usize {
        self.of.products().input_bytes(form, count, cols)
    }

    fn behind(&self, kind: GgmlDType) -> usize {
        self.of.products().behind(kind)
    }

    fn workspace(&self) -> usize {
        self.of.products().workspace()
    }

    unsafe fn quantise(
        &self,
        form: Inputs,
        x: Address,
        shape: (usize, usize),
        out: Address,
    ) -> Result<(), DeviceError> {
        self.launched("rounding a product's inputs")?;
        // SAFETY: the caller's promise.
        unsafe { self.of.products().quantise(form, x, shape, out) }
    }

    unsafe fn multiply(&self, product: &Product) -> Result<(), DeviceError> {
        self.launched("a product")?;
        // SAFETY: the caller's promise.
        unsafe { self.of.products().multiply(product) }
    }
}
