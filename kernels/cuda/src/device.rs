//! [`Device`] and [`Buffer`]: device memory with an owner, a type and a length. Kernels receive only such buffers.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use half::f16;

use crate::DeviceError;
use crate::driver::{Address, DeviceProperties, Driver, Geometry};

/// Element types of device buffers. Every bit pattern is a valid value.
///
/// # Safety
/// The type has no padding and no invalid bit patterns.
pub unsafe trait DeviceElement: Copy + Send + Sync + 'static {}
// SAFETY: a plain number.
unsafe impl DeviceElement for f32 {}
// SAFETY: a plain number.
unsafe impl DeviceElement for f64 {}
// SAFETY: a plain number.
unsafe impl DeviceElement for f16 {}
// SAFETY: a plain number.
unsafe impl DeviceElement for u64 {}
// SAFETY: a plain number.
unsafe impl DeviceElement for u32 {}
// SAFETY: a plain number.
unsafe impl DeviceElement for u8 {}

/// A GPU, or a driver that stands in for one. Cheap to clone. The driver is released with the last clone and buffer.
#[derive(Clone)]
pub struct Device {
    driver: Arc<dyn Driver>,
    /// Bytes of device memory in buffers of this handle and its clones.
    held: Arc<AtomicU64>,
}

impl Device {
    /// A device behind `driver`.
    pub fn new(driver: Arc<dyn Driver>) -> Self {
        let held = Arc::default();
        Self { driver, held }
    }

    /// Another handle to this device, which counts its own buffers only.
    pub fn counting(&self) -> Self {
        Self::new(self.driver.clone())
    }

    /// Bytes of device memory in the buffers that this handle and its clones have allocated.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// The driver that runs the kernels.
    pub(crate) fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    pub(crate) fn shared_driver(&self) -> Arc<dyn Driver> {
        self.driver.clone()
    }

    /// Name, compute capability and limits of the device.
    pub fn properties(&self) -> &DeviceProperties {
        self.driver.properties()
    }

    /// Bytes of device memory that are free.
    pub fn free_memory(&self) -> Result<u64, DeviceError> {
        self.driver.free_memory()
    }

    /// Allocates `length` uninitialised elements in device memory.
    pub fn alloc_uninit<T: DeviceElement>(&self, length: usize) -> Result<Buffer<T>, DeviceError> {
        self.alloc_uninit_in(MemorySpace::Device, length)
    }

    /// Allocates `length` uninitialised elements in `space`.
    pub fn alloc_uninit_in<T: DeviceElement>(
        &self,
        space: MemorySpace,
        length: usize,
    ) -> Result<Buffer<T>, DeviceError> {
        // An allocation of 0 bytes has no address of its own.
        let bytes = (length * size_of::<T>()).max(size_of::<T>());
        let address = match space {
            MemorySpace::Device => self.driver.allocate(bytes)?,
            MemorySpace::Host => self.driver.allocate_on_host(bytes)?,
        };
        let held = match space {
            MemorySpace::Device => length * size_of::<T>(),
            MemorySpace::Host => 0,
        };
        self.held.fetch_add(held as u64, Ordering::Relaxed);
        Ok(Buffer {
            address,
            length,
            memory: Arc::new(Memory {
                address,
                bytes,
                held: held as u64,
                space,
                device: self.clone(),
            }),
            of: PhantomData,
        })
    }

    /// Allocates `length` elements, all 0.
    pub fn zeros<T: DeviceElement>(&self, length: usize) -> Result<Buffer<T>, DeviceError> {
        let mut buffer = self.alloc_uninit(length)?;
        buffer.clear()?;
        Ok(buffer)
    }

    /// Allocates a buffer and uploads `elements` to it.
    pub fn copy_of<T: DeviceElement>(&self, elements: &[T]) -> Result<Buffer<T>, DeviceError> {
        let mut buffer = self.alloc_uninit(elements.len())?;
        buffer.write(0, elements)?;
        Ok(buffer)
    }

    /// Waits for all work submitted so far.
    pub fn wait(&self) -> Result<(), DeviceError> {
        self.driver.wait()
    }

    /// Launches the kernel `name`.
    ///
    /// # Safety
    /// As [`Driver::launch`]; `P` has the layout of the kernel's parameter struct.
    pub(crate) unsafe fn launch<P: Copy>(
        &self,
        name: &str,
        geometry: Geometry,
        parameters: &P,
    ) -> Result<(), DeviceError> {
        if geometry.grid.contains(&0) {
            return Ok(());
        }
        if let Some(too_many) = geometry.beyond_a_gpu() {
            return Err(DeviceError::Grid {
                kernel: name.to_owned(),
                blocks: too_many,
            });
        }
        // SAFETY: a live struct; its padding is only copied, never interpreted.
        let bytes = unsafe {
            std::slice::from_raw_parts(std::ptr::from_ref(parameters).cast::<u8>(), size_of::<P>())
        };
        // SAFETY: the caller's promise.
        unsafe { self.driver.launch(name, geometry, bytes) }
    }
}

/// The memory that a buffer is allocated in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MemorySpace {
    /// Device memory.
    #[default]
    Device,
    /// Pinned host memory. Kernels access it like device memory, at the speed of the bus.
    Host,
}

/// One allocation. It is freed when no buffer shares it any more.
pub(crate) struct Memory {
    address: Address,
    bytes: usize,
    /// What [`Device::held`] counts.
    held: u64,
    space: MemorySpace,
    device: Device,
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.device.held.fetch_sub(self.held, Ordering::Relaxed);
        let driver = &self.device.driver;
        // SAFETY: allocated in this space with this length, and no buffer shares it any more.
        unsafe {
            match self.space {
                MemorySpace::Device => driver.free(self.address, self.bytes),
                MemorySpace::Host => driver.free_on_host(self.address, self.bytes),
            }
        }
    }
}

/// A typed range of device memory or pinned host memory.
pub struct Buffer<T: DeviceElement> {
    address: Address,
    length: usize,
    memory: Arc<Memory>,
    of: PhantomData<T>,
}

/// A second handle to the same memory.
impl<T: DeviceElement> Clone for Buffer<T> {
    fn clone(&self) -> Self {
        self.share(0..self.length)
    }
}

impl<T: DeviceElement> Buffer<T> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the buffer has no elements.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Bytes of device memory: 0 for a buffer in pinned host memory.
    pub fn bytes(&self) -> u64 {
        match self.memory.space {
            MemorySpace::Device => (self.length * size_of::<T>()) as u64,
            MemorySpace::Host => 0,
        }
    }

    /// Bytes of pinned host memory: 0 for a buffer in device memory.
    pub fn host_bytes(&self) -> u64 {
        (self.length * size_of::<T>()) as u64 - self.bytes()
    }

    /// Address of the first element, for kernel parameters.
    pub(crate) fn address(&self) -> Address {
        self.address
    }

    /// The allocation that this buffer is a part of.
    pub(crate) fn memory(&self) -> Arc<Memory> {
        self.memory.clone()
    }

    pub(crate) fn part(&self, range: &Range<usize>) -> Address {
        assert!(
            range.start <= range.end && range.end <= self.length,
            "{range:?} of a buffer of {} elements",
            self.length
        );
        self.address + (range.start * size_of::<T>()) as u64
    }

    pub(crate) fn driver(&self) -> &dyn Driver {
        self.memory.device.driver()
    }

    /// A second buffer over `range` of this one. Both see each other's writes, in submission order.
    ///
    /// # Panics
    /// When `range` exceeds the buffer.
    pub fn share(&self, range: Range<usize>) -> Self {
        Self {
            address: self.part(&range),
            length: range.len(),
            memory: self.memory.clone(),
            of: PhantomData,
        }
    }

    /// Sets all elements to 0.
    pub fn clear(&mut self) -> Result<(), DeviceError> {
        // SAFETY: exactly the buffer's own range.
        unsafe {
            let bytes = self.length * size_of::<T>();
            if bytes == 0 {
                return Ok(());
            }
            self.driver().clear(self.address, bytes)
        }
    }

    /// Uploads `elements` to `first..`.
    ///
    /// # Panics
    /// When they exceed the buffer.
    pub fn write(&mut self, first: usize, elements: &[T]) -> Result<(), DeviceError> {
        let to = self.part(&(first..first + elements.len()));
        if elements.is_empty() {
            return Ok(());
        }
        // SAFETY: `T` has no padding, and the range was checked.
        unsafe {
            let bytes =
                std::slice::from_raw_parts(elements.as_ptr().cast::<u8>(), size_of_val(elements));
            self.driver().upload(to, bytes)
        }
    }

    /// Downloads `first..` to `elements`, after all work submitted so far.
    ///
    /// # Panics
    /// When the buffer has fewer elements.
    pub fn read(&self, first: usize, elements: &mut [T]) -> Result<(), DeviceError> {
        let from = self.part(&(first..first + elements.len()));
        if elements.is_empty() {
            return Ok(());
        }
        // SAFETY: any bytes are a valid `T`, and the range was checked.
        unsafe {
            let bytes = std::slice::from_raw_parts_mut(
                elements.as_mut_ptr().cast::<u8>(),
                size_of_val(elements),
            );
            self.driver().download(bytes, from)
        }
    }

    /// Downloads the whole buffer.
    pub fn to_vec(&self) -> Result<Vec<T>, DeviceError> {
        // SAFETY: any bytes are a valid `T`, zeros too.
        let mut elements = vec![unsafe { std::mem::zeroed() }; self.length];
        self.read(0, &mut elements)?;
        Ok(elements)
    }

    /// Copies `range` of `from` to `first..` of this buffer, on the device.
    ///
    /// # Panics
    /// When either range exceeds its buffer.
    pub fn copy_from(
        &mut self,
        first: usize,
        from: &Buffer<T>,
        range: Range<usize>,
    ) -> Result<(), DeviceError> {
        let to = self.part(&(first..first + range.len()));
        let bytes = range.len() * size_of::<T>();
        if bytes == 0 {
            return Ok(());
        }
        assert!(
            !Arc::ptr_eq(&self.memory, &from.memory)
                || to + bytes as u64 <= from.part(&range)
                || from.part(&range) + bytes as u64 <= to,
            "parts that overlap are not copied onto each other"
        );
        // SAFETY: both ranges were checked, and do not overlap.
        unsafe { self.driver().copy(to, from.part(&range), bytes) }
    }
}
