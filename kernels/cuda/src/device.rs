//! [`Device`] and [`Buffer`]: memory with an owner, a type and a length, and kernels that are handed nothing else.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use half::f16;

use crate::DeviceError;
use crate::driver::{Address, Driver, Facts, Geometry};

/// Numbers that may lie on a device: any bytes are one of them.
///
/// # Safety
/// No padding, no invalid bytes.
pub unsafe trait Number: Copy + Send + Sync + 'static {}
// SAFETY: plain numbers.
unsafe impl Number for f32 {}
// SAFETY: plain numbers.
unsafe impl Number for f64 {}
// SAFETY: plain numbers.
unsafe impl Number for f16 {}
// SAFETY: plain numbers.
unsafe impl Number for u64 {}
// SAFETY: plain numbers.
unsafe impl Number for u32 {}
// SAFETY: plain numbers.
unsafe impl Number for u8 {}

/// A GPU, or what stands for one. Cheap to clone; what it holds is given back with the last clone and buffer.
#[derive(Clone)]
pub struct Device {
    driver: Arc<dyn Driver>,
}

impl Device {
    /// A device behind `driver`.
    pub fn new(driver: Arc<dyn Driver>) -> Self {
        Self { driver }
    }

    /// What runs its kernels.
    pub(crate) fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    pub(crate) fn shared_driver(&self) -> Arc<dyn Driver> {
        self.driver.clone()
    }

    /// What it is.
    pub fn facts(&self) -> &Facts {
        self.driver.facts()
    }

    /// Bytes that nobody has taken.
    pub fn free_memory(&self) -> Result<u64, DeviceError> {
        self.driver.free_memory()
    }

    /// Room for `length` numbers; what is in it is not said.
    pub fn alloc_uninit<T: Number>(&self, length: usize) -> Result<Buffer<T>, DeviceError> {
        self.alloc_uninit_in(MemorySpace::Device, length)
    }

    /// Room for `length` numbers, there; what is in it is not said.
    pub fn alloc_uninit_in<T: Number>(
        &self,
        space: MemorySpace,
        length: usize,
    ) -> Result<Buffer<T>, DeviceError> {
        // A buffer without an address could not be told from none.
        let bytes = (length * size_of::<T>()).max(size_of::<T>());
        let address = match space {
            MemorySpace::Device => self.driver.allocate(bytes)?,
            MemorySpace::Host => self.driver.allocate_on_host(bytes)?,
        };
        Ok(Buffer {
            address,
            length,
            memory: Arc::new(Memory {
                address,
                bytes,
                space,
                driver: self.driver.clone(),
            }),
            of: PhantomData,
        })
    }

    /// `length` zeros.
    pub fn zeros<T: Number>(&self, length: usize) -> Result<Buffer<T>, DeviceError> {
        let mut buffer = self.alloc_uninit(length)?;
        buffer.clear()?;
        Ok(buffer)
    }

    /// A copy of `numbers`.
    pub fn copy_of<T: Number>(&self, numbers: &[T]) -> Result<Buffer<T>, DeviceError> {
        let mut buffer = self.alloc_uninit(numbers.len())?;
        buffer.write(0, numbers)?;
        Ok(buffer)
    }

    /// Waits for everything that was asked for.
    pub fn wait(&self) -> Result<(), DeviceError> {
        self.driver.wait()
    }

    /// Runs a kernel.
    ///
    /// # Safety
    /// As [`Driver::launch`]; `P` is laid out as the kernel's own struct.
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
        // SAFETY: a live struct; its padding is never looked at, only passed on.
        let bytes = unsafe {
            std::slice::from_raw_parts(std::ptr::from_ref(parameters).cast::<u8>(), size_of::<P>())
        };
        // SAFETY: the caller's promise.
        unsafe { self.driver.launch(name, geometry, bytes) }
    }
}

/// Whose memory a buffer lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MemorySpace {
    /// The device's own.
    #[default]
    Device,
    /// The host's, pinned: kernels reach it as they reach the device's own, at the speed of the bus between.
    Host,
}

/// What was allocated, and is given back when nobody has a part of it any more.
pub(crate) struct Memory {
    address: Address,
    bytes: usize,
    space: MemorySpace,
    driver: Arc<dyn Driver>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated there with as many, and nobody else has it.
        unsafe {
            match self.space {
                MemorySpace::Device => self.driver.free(self.address, self.bytes),
                MemorySpace::Host => self.driver.free_on_host(self.address, self.bytes),
            }
        }
    }
}

/// Numbers on a device.
pub struct Buffer<T: Number> {
    address: Address,
    length: usize,
    memory: Arc<Memory>,
    of: PhantomData<T>,
}

impl<T: Number> Buffer<T> {
    /// Numbers in it.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Bytes of the device's memory: none where it lies in the host's.
    pub fn bytes(&self) -> u64 {
        match self.memory.space {
            MemorySpace::Device => (self.length * size_of::<T>()) as u64,
            MemorySpace::Host => 0,
        }
    }

    /// Bytes of the host's memory.
    pub fn host_bytes(&self) -> u64 {
        (self.length * size_of::<T>()) as u64 - self.bytes()
    }

    /// Where it lies; for a kernel's parameters.
    pub(crate) fn address(&self) -> Address {
        self.address
    }

    /// What it is a part of.
    pub(crate) fn memory(&self) -> Arc<Memory> {
        self.memory.clone()
    }

    pub(crate) fn part(&self, range: &Range<usize>) -> Address {
        assert!(
            range.start <= range.end && range.end <= self.length,
            "{range:?} of a buffer of {} numbers",
            self.length
        );
        self.address + (range.start * size_of::<T>()) as u64
    }

    pub(crate) fn driver(&self) -> &dyn Driver {
        &*self.memory.driver
    }

    /// Another name for a part of it: what is written to one is seen in the other, in the order that it was asked for.
    ///
    /// # Panics
    /// When there is no such part.
    pub fn share(&self, range: Range<usize>) -> Self {
        Self {
            address: self.part(&range),
            length: range.len(),
            memory: self.memory.clone(),
            of: PhantomData,
        }
    }

    /// Sets all of it to 0.
    pub fn clear(&mut self) -> Result<(), DeviceError> {
        // SAFETY: all of what was allocated.
        unsafe {
            let bytes = self.length * size_of::<T>();
            if bytes == 0 {
                return Ok(());
            }
            self.driver().clear(self.address, bytes)
        }
    }

    /// Copies `numbers` to `first..`.
    ///
    /// # Panics
    /// When they do not fit.
    pub fn write(&mut self, first: usize, numbers: &[T]) -> Result<(), DeviceError> {
        let to = self.part(&(first..first + numbers.len()));
        if numbers.is_empty() {
            return Ok(());
        }
        // SAFETY: `T` has no padding, and the range was checked.
        unsafe {
            let bytes =
                std::slice::from_raw_parts(numbers.as_ptr().cast::<u8>(), size_of_val(numbers));
            self.driver().upload(to, bytes)
        }
    }

    /// [`Buffer::write`] of numbers that are given as bytes.
    ///
    /// # Panics
    /// When they do not fit, or are no whole numbers.
    pub fn write_bytes(&mut self, first: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        assert!(bytes.len().is_multiple_of(size_of::<T>()), "whole numbers");
        let to = self.part(&(first..first + bytes.len() / size_of::<T>()));
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: any bytes are a `T`, and the range was checked.
        unsafe { self.driver().upload(to, bytes) }
    }

    /// Copies `first..` to `numbers`, after everything that was asked for before.
    ///
    /// # Panics
    /// When there are not as many.
    pub fn read(&self, first: usize, numbers: &mut [T]) -> Result<(), DeviceError> {
        let from = self.part(&(first..first + numbers.len()));
        if numbers.is_empty() {
            return Ok(());
        }
        // SAFETY: any bytes are a `T`, and the range was checked.
        unsafe {
            let bytes = std::slice::from_raw_parts_mut(
                numbers.as_mut_ptr().cast::<u8>(),
                size_of_val(numbers),
            );
            self.driver().download(bytes, from)
        }
    }

    /// All of it, on the host.
    pub fn to_vec(&self) -> Result<Vec<T>, DeviceError> {
        // SAFETY: any bytes are a `T`, zeros too.
        let mut numbers = vec![unsafe { std::mem::zeroed() }; self.length];
        self.read(0, &mut numbers)?;
        Ok(numbers)
    }

    /// Copies `range` of `from` to `first..` of this.
    ///
    /// # Panics
    /// When it does not fit.
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
        // SAFETY: both were checked, and do not overlap.
        unsafe { self.driver().copy(to, from.part(&range), bytes) }
    }
}
