//! NVIDIA's driver, loaded at run time: a build with this feature starts without a driver, and reports its absence as
//! an error.
//!
//! Each file of `device/` is one fat binary: machine code for Ampere, Ada, Hopper and Blackwell, and PTX of Turing,
//! which the driver compiles for other GPUs. Kernels run on one stream, asynchronous copies on a second.

mod fault;
mod found;
mod streams;

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex};

use cudarc::driver::{DriverError, result, sys};

use crate::candle::Launchers;
use crate::driver::{Address, Capture, Copying, DeviceProperties, Driver, Geometry, Products};
use crate::{Device, DeviceError};
use fault::Fault;
pub use found::{Gpu, NoGpu, gpus};
use found::{device_properties, error_text, init_driver, unusable};
use streams::{Event, Graph, wait_event};

include!(concat!(env!("OUT_DIR"), "/fat_binaries.rs"));

/// Bytes that the driver takes after the first launches, beside what is asked of it: code that it loads at a kernel's
/// first launch, local memory, graphs. On an H100 these were 160 to 252 MB.
const DRIVER_RESERVE_BYTES: u64 = 256 << 20;

/// Opens the GPU `ordinal`.
///
/// # Errors
/// The reason why the GPU cannot be used.
pub fn open(ordinal: usize) -> Result<Device, NoGpu> {
    let count = init_driver()?;
    if ordinal >= count {
        return Err(NoGpu::UnknownOrdinal { ordinal, count });
    }
    let (device, properties) = device_properties(ordinal).map_err(unusable)?;
    found::check_capability(&properties)?;
    // The context is retained until the process ends, because candle's launchers cache its properties.
    // SAFETY: a device from the driver.
    let nvidia = unsafe {
        let context = result::primary_ctx::retain(device).map_err(unusable)?;
        result::ctx::set_current(context).map_err(unusable)?;
        let stream = || result::stream::create(result::stream::StreamKind::NonBlocking);
        let (stream, copy_stream) = (stream().map_err(unusable)?, stream().map_err(unusable)?);
        let mut nvidia = Nvidia {
            products: Launchers::new(&properties, stream.cast()),
            properties,
            context,
            stream,
            copy_stream,
            modules: Vec::new(),
            functions: Mutex::default(),
            on_host: Mutex::default(),
            poisons: std::env::var_os("KEPT_GPU_POISON").is_some(),
            fault: Fault::from_env()?.map(Arc::new),
        };
        for image in FAT_BINARIES {
            // The driver reads words of eight bytes, and embedded bytes may be unaligned.
            let mut words = vec![0u64; image.len().div_ceil(8)];
            std::ptr::copy_nonoverlapping(image.as_ptr(), words.as_mut_ptr().cast(), image.len());
            let module = result::module::load_data(words.as_ptr().cast::<c_void>());
            nvidia.modules.push(module.map_err(unusable)?);
        }
        nvidia
    };
    Ok(Device::new(Arc::new(nvidia)))
}

struct Nvidia {
    properties: DeviceProperties,
    context: sys::CUcontext,
    stream: sys::CUstream,
    /// Stream of asynchronous copies.
    copy_stream: sys::CUstream,
    modules: Vec<sys::CUmodule>,
    functions: Mutex<HashMap<String, usize>>,
    /// Addresses of pinned host allocations, and their bytes.
    on_host: Mutex<BTreeMap<Address, usize>>,
    products: Launchers,
    /// Whether new allocations are filled with NaN, so that tests notice elements that a kernel leaves unwritten
    /// (`KEPT_GPU_POISON`).
    poisons: bool,
    /// Injected failure, for tests.
    fault: Option<Arc<Fault>>,
}

// SAFETY: the driver's handles may be used from any thread; every call makes the context current first.
unsafe impl Send for Nvidia {}
// SAFETY: as above; all mutable state is behind locks.
unsafe impl Sync for Nvidia {}

impl Nvidia {
    fn failed(&self, what: &str) -> impl Fn(DriverError) -> DeviceError {
        let (device, what) = (self.properties.name.clone(), what.to_owned());
        move |error| DeviceError::failed(&device, &what, error_text(error))
    }

    /// Makes the context current for this thread.
    fn make_current(&self) -> Result<(), DeviceError> {
        // SAFETY: the context is retained as long as this object lives.
        unsafe { result::ctx::set_current(self.context) }.map_err(self.failed("its context"))
    }

    /// Records an event after all work submitted to `stream` so far.
    fn record_event(&self, stream: sys::CUstream) -> Result<Event, DriverError> {
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        let event = Event {
            handle: result::event::create(flags)?,
            follower: self.stream,
            context: self.context,
            device: self.properties.name.clone(),
        };
        // SAFETY: a new event, and a stream of this object.
        unsafe { result::event::record(event.handle, stream) }?;
        Ok(event)
    }

    /// Later work on `stream` begins after all kernels and copies submitted to the main stream so far.
    fn wait_for_main_stream(&self, stream: sys::CUstream) -> Result<(), DeviceError> {
        self.make_current()?;
        let failed = self.failed("asynchronous copies");
        let before = self.record_event(self.stream).map_err(&failed)?;
        // SAFETY: an event and a stream of this object.
        unsafe { wait_event(stream, before.handle) }.map_err(failed)
    }

    /// Submits a copy to `stream`.
    ///
    /// # Safety
    /// As [`Driver::copy_async`].
    unsafe fn copy_on_stream(
        &self,
        stream: sys::CUstream,
        to: Address,
        from: Address,
        bytes: usize,
    ) -> Result<Box<dyn Copying>, DeviceError> {
        self.make_current()?;
        let failed = self.failed("asynchronous copies");
        // SAFETY: the caller's promise; a stream of this object.
        unsafe { sys::cuMemcpyAsync(to, from, bytes, stream).result() }.map_err(&failed)?;
        match self.record_event(stream) {
            Ok(event) => Ok(Box::new(event)),
            Err(error) => {
                // Without an event no caller can wait for the copy, and its memory may be freed.
                // SAFETY: a stream of this object.
                let _ = unsafe { result::stream::synchronize(stream) };
                Err(failed(error))
            }
        }
    }

    /// Whether an address lies in pinned host memory.
    fn is_on_host(&self, address: Address) -> bool {
        let on_host = self.on_host.lock().expect("no panic while locked");
        let before = on_host.range(..=address).next_back();
        before.is_some_and(|(first, bytes)| address - first < *bytes as u64)
    }

    /// The kernel `name`; cached after the first look-up.
    fn function(&self, name: &str) -> Result<sys::CUfunction, DeviceError> {
        let mut functions = self.functions.lock().expect("no panic while locked");
        if let Some(function) = functions.get(name) {
            return Ok(*function as sys::CUfunction);
        }
        let symbol = CString::new(name).expect("names of kernels have no zeros");
        let found = (self.modules.iter()).find_map(|module| {
            // SAFETY: a module of this context.
            unsafe { result::module::get_function(*module, symbol.clone()) }.ok()
        });
        let missing = "this build has no such kernel";
        let function =
            found.ok_or_else(|| DeviceError::failed(&self.properties.name, name, missing))?;
        // Without this attribute a block may have 48 KiB only.
        let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: a function of this context.
        unsafe {
            result::function::set_function_attribute(
                function,
                most,
                self.properties.shared_bytes as i32,
            )
        }
        .map_err(self.failed(name))?;
        functions.insert(name.to_owned(), function as usize);
        Ok(function)
    }
}

impl Driver for Nvidia {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn free_memory(&self) -> Result<u64, DeviceError> {
        self.make_current()?;
        let info = result::mem_get_info().map_err(self.failed("counting its memory"))?;
        Ok((info.0 as u64).saturating_sub(DRIVER_RESERVE_BYTES))
    }

    fn allocate(&self, bytes: usize) -> Result<Address, DeviceError> {
        self.make_current()?;
        // SAFETY: more than 0 bytes.
        match unsafe { result::malloc_sync(bytes.max(1)) } {
            Ok(address) if self.poisons => {
                // SAFETY: just allocated. The memset runs on another stream than ours, so wait for it.
                unsafe { result::memset_d8_sync(address, u8::MAX, bytes.max(1)) }
                    .and_then(|()| result::ctx::synchronize())
                    .map_err(self.failed("poisoning memory"))?;
                Ok(address)
            }
            Ok(address) => Ok(address),
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                Err(DeviceError::OutOfMemory {
                    device: self.properties.name.clone(),
                    needed: bytes as u64,
                    free: self.free_memory()?,
                })
            }
            Err(error) => Err(self.failed("giving memory")(error)),
        }
    }

    unsafe fn free(&self, address: Address, _bytes: usize) {
        // SAFETY: the caller's promise. After a device error only the end of the process frees memory.
        let freed = self.make_current().is_ok() && unsafe { result::free_sync(address) }.is_ok();
        debug_assert!(freed || std::thread::panicking(), "memory was given back");
    }

    fn allocate_on_host(&self, bytes: usize) -> Result<Address, DeviceError> {
        self.make_current()?;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: more than 0 bytes.
        let found = unsafe { result::malloc_host(bytes.max(1), flags) };
        let start = match found {
            Ok(start) => start,
            // The host is out of memory; the GPU works as before.
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                return Err(DeviceError::HostMemory {
                    needed: bytes as u64,
                });
            }
            Err(error) => return Err(self.failed("locking memory of the computer for it")(error)),
        };
        // With unified addressing, which all supported GPUs have, the device's address is the host's.
        let address = start as Address;
        let mut on_host = self.on_host.lock().expect("no panic while locked");
        on_host.insert(address, bytes);
        Ok(address)
    }

    unsafe fn free_on_host(&self, address: Address, _bytes: usize) {
        let mut on_host = self.on_host.lock().expect("no panic while locked");
        on_host.remove(&address);
        // SAFETY: the caller's promise; waits for all work that may still read the memory.
        let freed = self.make_current().is_ok()
            && self.wait().is_ok()
            && unsafe { result::free_host(address as *mut c_void) }.is_ok();
        debug_assert!(freed || std::thread::panicking(), "memory was given back");
    }

    unsafe fn upload(&self, to: Address, from: &[u8]) -> Result<(), DeviceError> {
        self.make_current()?;
        if self.is_on_host(to) {
            self.wait()?;
            // SAFETY: the caller's promise; no running work touches this memory.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to as *mut u8, from.len()) };
            return Ok(());
        }
        // SAFETY: the caller's promise; the driver has read pageable memory when the call returns.
        unsafe { result::memcpy_htod_async(to, from, self.stream) }
            .map_err(self.failed("copying to it"))
    }

    unsafe fn download(&self, to: &mut [u8], from: Address) -> Result<(), DeviceError> {
        self.make_current()?;
        if self.is_on_host(from) {
            self.wait()?;
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to.as_mut_ptr(), to.len()) };
            return Ok(());
        }
        // SAFETY: the caller's promise; `to` is borrowed until the stream is done.
        unsafe { result::memcpy_dtoh_async(to, from, self.stream) }
            .map_err(self.failed("copying from it"))?;
        self.wait()
    }

    unsafe fn copy(&self, to: Address, from: Address, bytes: usize) -> Result<(), DeviceError> {
        self.make_current()?;
        // SAFETY: the caller's promise. The driver tells device from host by the addresses.
        unsafe { sys::cuMemcpyAsync(to, from, bytes, self.stream) }
            .result()
            .map_err(self.failed("copying on it"))
    }

    unsafe fn copy_async(
        &self,
        to: Address,
        from: Address,
        bytes: usize,
    ) -> Result<Box<dyn Copying>, DeviceError> {
        self.wait_for_main_stream(self.copy_stream)?;
        // SAFETY: the caller's promise.
        unsafe { self.copy_on_stream(self.copy_stream, to, from, bytes) }
    }

    fn host_pointer(&self, address: Address) -> Result<*mut u8, DeviceError> {
        assert!(self.is_on_host(address), "memory of the host's");
        // With unified addressing the host's address is the device's.
        Ok(address as *mut u8)
    }

    unsafe fn clear(&self, address: Address, bytes: usize) -> Result<(), DeviceError> {
        self.make_current()?;
        // SAFETY: the caller's promise.
        unsafe { result::memset_d8_async(address, 0, bytes, self.stream) }
            .map_err(self.failed("clearing memory"))
    }

    unsafe fn launch(
        &self,
        name: &str,
        geometry: Geometry,
        parameters: &[u8],
    ) -> Result<(), DeviceError> {
        self.make_current()?;
        let function = self.function(name)?;
        if let Some(fault) = &self.fault {
            // SAFETY: this object's own stream and context.
            unsafe { fault.before_launch(self.stream) }.map_err(self.failed(name))?;
        }
        let [x, y, z] = geometry.grid;
        let [threads_x, threads_y, threads_z] = geometry.block;
        // The driver copies the struct before it returns.
        let mut pointers = [parameters.as_ptr().cast_mut().cast::<c_void>()];
        // SAFETY: the caller's promise.
        unsafe {
            result::launch_kernel(
                function,
                (x, y, z),
                (threads_x, threads_y, threads_z),
                geometry.shared_bytes,
                self.stream,
                &mut pointers,
            )
        }
        .map_err(self.failed(name))
    }

    fn begin_capture(&self) -> Result<(), DeviceError> {
        self.make_current()?;
        // Other threads may call the driver during a capture, and functions may be looked up.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: this object's own stream.
        unsafe { result::stream::begin_capture(self.stream, mode) }
            .map_err(self.failed("graph capture"))
    }

    fn end_capture(&self) -> Result<Box<dyn Capture>, DeviceError> {
        self.make_current()?;
        let failed = self.failed("graph capture");
        // SAFETY: this object's own stream, in capture; the graph is not needed once it is instantiated.
        let exec = unsafe {
            let graph = result::stream::end_capture(self.stream).map_err(&failed)?;
            let exec = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
            result::graph::destroy(graph).map_err(&failed)?;
            let exec = exec.map_err(&failed)?;
            result::graph::upload(exec, self.stream).map_err(&failed)?;
            exec
        };
        Ok(Box::new(Graph {
            exec,
            stream: self.stream,
            context: self.context,
            device: self.properties.name.clone(),
            fault: self.fault.clone(),
        }))
    }

    fn products(&self) -> &dyn Products {
        // candle's launchers use this thread's current context; if it cannot be set, the first launch reports the
        // error.
        let _ = self.make_current();
        &self.products
    }

    fn wait(&self) -> Result<(), DeviceError> {
        self.make_current()?;
        // SAFETY: this object's own stream.
        unsafe { result::stream::synchronize(self.stream) }.map_err(self.failed("its work"))
    }
}

impl Drop for Nvidia {
    fn drop(&mut self) {
        if self.make_current().is_err() {
            return;
        }
        // SAFETY: created by this object, which is their only owner. Errors are ignored: no recovery is possible.
        unsafe {
            for module in self.modules.drain(..) {
                let _ = result::module::unload(module);
            }
            let _ = result::stream::destroy(self.stream);
            let _ = result::stream::destroy(self.copy_stream);
        }
    }
}
