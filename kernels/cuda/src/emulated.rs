//! The emulator as a device: kernels run on the CPU, thread by thread, with checks of their memory accesses.
//!
//! Memory is filled with NaN, so that a read of unwritten memory gives NaN. Guard bytes around each allocation are
//! checked when it is freed. Asynchronous copies run as late as they may, or at once where a test requests it: code
//! that relies on more than the interface promises fails in one of the two modes.

mod async_copy;
mod products;

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::sync::{Arc, Mutex};

use crate::driver::{Address, Capture, Copying, DeviceProperties, Driver, Geometry, Products};
use crate::{Device, DeviceError, Meter};
use async_copy::AsyncCopies;

type Kernel =
    unsafe extern "C" fn(*const c_void, usize, *const u32, *const u32, usize) -> *const c_char;

/// Guard bytes before and after every allocation.
const GUARD: usize = 256;
/// Byte of a NaN pattern in f32, f16 and f64.
const POISON: u8 = 0x7F;

macro_rules! kernels {
    ($($name:ident),* $(,)?) => {
        unsafe extern "C" {
            $(fn $name(
                parameters: *const c_void,
                bytes: usize,
                grid: *const u32,
                block: *const u32,
                shared_bytes: usize,
            ) -> *const c_char;)*
        }
        /// Every kernel, by name.
        const KERNELS: &[(&str, Kernel)] = &[$((stringify!($name), $name)),*];
    };
}

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// A device on the CPU.
struct Emulated {
    properties: DeviceProperties,
    kernels: HashMap<&'static str, Kernel>,
    memory: Mutex<HashMap<Address, Held>>,
    /// Launches of the capture in progress.
    recording: Mutex<Option<Vec<Launch>>>,
    async_copy: Arc<AsyncCopies>,
    /// Whether products report the scratch memory of candle's kernels on a GPU.
    reserves_like_candle: bool,
}

/// An allocation with its guards; the key in the map is the address behind the first guard.
struct Held {
    words: Vec<u64>,
    /// Bytes requested, without guards.
    bytes: usize,
    /// Whether this is pinned host memory.
    on_host: bool,
}

/// A kernel with its geometry and its parameters, in words that keep their alignment.
struct Launch {
    name: String,
    kernel: Kernel,
    geometry: Geometry,
    parameters: Vec<u64>,
    /// Bytes of the parameters.
    bytes: usize,
}

impl Launch {
    /// # Safety
    /// As [`Driver::launch`].
    unsafe fn run(&self, device: &str) -> Result<(), DeviceError> {
        let (grid, block) = (self.geometry.grid.as_ptr(), self.geometry.block.as_ptr());
        let shared_bytes = self.geometry.shared_bytes as usize;
        let parameters = self.parameters.as_ptr().cast();
        // SAFETY: `parameters` has this many bytes; the caller's promise for the kernel.
        let wrong = unsafe { (self.kernel)(parameters, self.bytes, grid, block, shared_bytes) };
        if wrong.is_null() {
            return Ok(());
        }
        // SAFETY: a static string of the emulator.
        let wrong = unsafe { CStr::from_ptr(wrong) };
        Err(DeviceError::failed(
            device,
            &self.name,
            wrong.to_string_lossy(),
        ))
    }
}

/// Captured launches.
struct CapturedLaunches {
    device: String,
    launches: Vec<Launch>,
}

impl Capture for CapturedLaunches {
    unsafe fn run(&self) -> Result<(), DeviceError> {
        for launch in &self.launches {
            // SAFETY: the caller's promise.
            unsafe { launch.run(&self.device) }?;
        }
        Ok(())
    }
}

/// A device on the CPU, of the given compute capability (75, 80, 86, 89, 90 or 120), with `memory` bytes.
pub fn device(capability: u32, memory: u64) -> Device {
    fault_injecting(capability, memory).0
}

/// [`device`] with a meter of its operations.
pub fn fault_injecting(capability: u32, memory: u64) -> (Device, Meter) {
    crate::fault_injecting(&Device::new(emulated(capability)), memory)
}

/// [`device`] whose asynchronous copies run when they are submitted instead of when they are waited for.
pub fn with_eager_copies(capability: u32, memory: u64) -> Device {
    let emulated = emulated(capability);
    emulated.async_copy.run_at_once();
    crate::fault_injecting(&Device::new(emulated), memory).0
}

/// [`fault_injecting`] with the memory consumption of a large GPU: 132 multiprocessors, and the scratch memory of
/// candle's products.
pub fn large(memory: u64) -> (Device, Meter) {
    // As an H100 or H200.
    let emulated = emulated_with(90, 132, true);
    crate::fault_injecting(&Device::new(emulated), memory)
}

/// An emulated device without a memory limit.
fn emulated(capability: u32) -> Arc<Emulated> {
    emulated_with(capability, 4, false)
}

fn emulated_with(
    capability: u32,
    multiprocessors: u32,
    reserves_like_candle: bool,
) -> Arc<Emulated> {
    // Shared memory of a block per compute capability, from NVIDIA's programming guide.
    let shared_kib = match capability {
        75 => 64,
        80 => 163,
        86 | 89 | 120 => 99,
        _ => 227,
    };
    Arc::new(Emulated {
        properties: DeviceProperties {
            name: format!("emulated sm_{capability}"),
            capability,
            multiprocessors,
            shared_bytes: shared_kib << 10,
            memory: u64::MAX,
        },
        kernels: KERNELS
            .iter()
            .map(|(name, kernel)| (name.trim_start_matches("emulated_"), *kernel))
            .collect(),
        memory: Mutex::default(),
        recording: Mutex::default(),
        async_copy: Arc::default(),
        reserves_like_candle,
    })
}

/// The names of all kernels, as passed to [`Driver::launch`].
pub fn kernels() -> impl Iterator<Item = &'static str> {
    let names = KERNELS.iter();
    names.map(|(name, _)| name.trim_start_matches("emulated_"))
}

impl Emulated {
    /// Whether an address lies in pinned host memory.
    fn is_on_host(&self, address: Address) -> bool {
        let memory = self.memory.lock().expect("no panic while locked");
        let mut host = memory.iter().filter(|(_, held)| held.on_host);
        host.any(|(first, held)| (*first..*first + held.bytes as u64).contains(&address))
    }

    /// Allocates memory between guards.
    fn allocate_guarded(&self, bytes: usize, on_host: bool) -> Address {
        let mut words: Vec<u64> =
            vec![u64::from_ne_bytes([POISON; 8]); bytes.div_ceil(16) * 2 + 2 * GUARD / 8 + 2];
        let start = words.as_mut_ptr() as usize;
        // The driver aligns allocations to 256 bytes; the emulator aligns to 16, which is what kernels rely on.
        let address = ((start + GUARD).next_multiple_of(16)) as Address;
        self.memory.lock().expect("no panic while locked").insert(
            address,
            Held {
                words,
                bytes,
                on_host,
            },
        );
        address
    }

    /// Frees memory, and panics if a guard was overwritten.
    fn free_guarded(&self, address: Address, bytes: usize) {
        let held = self
            .memory
            .lock()
            .expect("no panic while locked")
            .remove(&address);
        let Held { words, .. } = held.expect("it was allocated");
        let memory = address..address + bytes as u64;
        assert!(
            !self.async_copy.touches(&memory),
            "memory of a copy that is under way was given back"
        );
        // SAFETY: the whole allocation, as bytes.
        let all =
            unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), words.len() * 8) };
        let first = address as usize - words.as_ptr() as usize;
        let guards = all[..first].iter().chain(&all[first + bytes..]);
        if !std::thread::panicking() {
            assert!(
                guards.into_iter().all(|byte| *byte == POISON),
                "a kernel wrote before or behind a buffer of {bytes} bytes"
            );
        }
    }
}

impl Emulated {
    /// Refuses `what` during a capture, as a GPU does: only launches are allowed then.
    fn check_not_capturing(&self, what: &str) -> Result<(), DeviceError> {
        match &*self.recording.lock().expect("no panic while locked") {
            None => Ok(()),
            Some(_) => Err(DeviceError::failed(
                &self.properties.name,
                what,
                "it is not allowed during graph capture",
            )),
        }
    }
}

impl Driver for Emulated {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn free_memory(&self) -> Result<u64, DeviceError> {
        Ok(self.properties.memory)
    }

    fn allocate(&self, bytes: usize) -> Result<Address, DeviceError> {
        self.check_not_capturing("taking memory")?;
        Ok(self.allocate_guarded(bytes, false))
    }

    unsafe fn free(&self, address: Address, bytes: usize) {
        self.free_guarded(address, bytes);
    }

    fn allocate_on_host(&self, bytes: usize) -> Result<Address, DeviceError> {
        self.check_not_capturing("taking memory")?;
        Ok(self.allocate_guarded(bytes, true))
    }

    unsafe fn free_on_host(&self, address: Address, bytes: usize) {
        self.free_guarded(address, bytes);
    }

    unsafe fn upload(&self, to: Address, from: &[u8]) -> Result<(), DeviceError> {
        self.check_not_capturing("copying to it")?;
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to as *mut u8, from.len()) };
        Ok(())
    }

    unsafe fn download(&self, to: &mut [u8], from: Address) -> Result<(), DeviceError> {
        self.check_not_capturing("copying from it")?;
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    unsafe fn copy(&self, to: Address, from: Address, bytes: usize) -> Result<(), DeviceError> {
        self.check_not_capturing("copying on it")?;
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
        Ok(())
    }

    unsafe fn copy_async(
        &self,
        to: Address,
        from: Address,
        bytes: usize,
    ) -> Result<Box<dyn Copying>, DeviceError> {
        self.check_not_capturing("asynchronous copies")?;
        // SAFETY: the caller's promise.
        Ok(Box::new(unsafe { self.async_copy.copy(to, from, bytes) }))
    }

    fn host_pointer(&self, address: Address) -> Result<*mut u8, DeviceError> {
        assert!(self.is_on_host(address), "memory of the host's");
        Ok(address as *mut u8)
    }

    unsafe fn clear(&self, address: Address, bytes: usize) -> Result<(), DeviceError> {
        self.check_not_capturing("clearing memory")?;
        // SAFETY: the caller's promise.
        unsafe { std::ptr::write_bytes(address as *mut u8, 0, bytes) };
        Ok(())
    }

    unsafe fn launch(
        &self,
        name: &str,
        geometry: Geometry,
        parameters: &[u8],
    ) -> Result<(), DeviceError> {
        let refused = |reason: &str| DeviceError::failed(&self.properties.name, name, reason);
        let kernel = (self.kernels.get(name)).ok_or_else(|| refused("there is no such kernel"))?;
        if geometry.shared_bytes > self.properties.shared_bytes {
            return Err(refused(
                "it asks for more shared memory than a block may have",
            ));
        }
        let mut aligned = vec![0u64; parameters.len().div_ceil(8)];
        // SAFETY: both have this many bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(
                parameters.as_ptr(),
                aligned.as_mut_ptr().cast::<u8>(),
                parameters.len(),
            );
        }
        let launch = Launch {
            name: name.to_owned(),
            kernel: *kernel,
            geometry,
            parameters: aligned,
            bytes: parameters.len(),
        };
        if let Some(noted) = &mut *self.recording.lock().expect("no panic while locked") {
            noted.push(launch);
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { launch.run(&self.properties.name) }
    }

    fn begin_capture(&self) -> Result<(), DeviceError> {
        self.check_not_capturing("graph capture")?;
        *self.recording.lock().expect("no panic while locked") = Some(Vec::new());
        Ok(())
    }

    fn end_capture(&self) -> Result<Box<dyn Capture>, DeviceError> {
        let noted = self.recording.lock().expect("no panic while locked").take();
        let launches = noted.ok_or_else(|| {
            DeviceError::failed(&self.properties.name, "graph capture", "it was not begun")
        })?;
        Ok(Box::new(CapturedLaunches {
            device: self.properties.name.clone(),
            launches,
        }))
    }

    fn products(&self) -> &dyn Products {
        self
    }

    fn wait(&self) -> Result<(), DeviceError> {
        self.check_not_capturing("its work")
    }
}
