//! [`Indices`]: whole numbers on a device of which the largest is known on the host, so that what they point at can be checked there.

use crate::{Buffer, Device, DeviceError};

/// Rows, positions, heads or slots that a kernel will look up.
pub struct Indices {
    buffer: Buffer<u32>,
    /// One more than the largest that was ever written.
    end: usize,
}

impl Indices {
    /// A copy of `numbers`.
    pub fn new(device: &Device, numbers: &[u32]) -> Result<Self, DeviceError> {
        Ok(Self::known(device.copy_of(numbers)?, end(numbers)))
    }

    /// Room for `count`, all of them 0.
    pub fn zeros(device: &Device, count: usize) -> Result<Self, DeviceError> {
        Ok(Self::known(device.zeros(count)?, 1))
    }

    /// Numbers that are on the device, or will be before a kernel looks, all of them below `end`.
    pub(crate) fn known(buffer: Buffer<u32>, end: usize) -> Self {
        Self { buffer, end }
    }

    /// Replaces `first..`.
    ///
    /// # Panics
    /// When they do not fit.
    pub fn write(&mut self, first: usize, numbers: &[u32]) -> Result<(), DeviceError> {
        self.end = self.end.max(end(numbers));
        self.buffer.write(first, numbers)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// One more than the largest.
    pub fn end(&self) -> usize {
        self.end
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        self.buffer.bytes()
    }

    /// The same room once more for `numbers` that it will hold before a kernel looks.
    pub(crate) fn again(&self, numbers: &[u32]) -> Self {
        Self::known(self.share(), end(numbers))
    }

    pub(crate) fn numbers(&self) -> &Buffer<u32> {
        &self.buffer
    }

    /// The same numbers under another name.
    pub(crate) fn share(&self) -> Buffer<u32> {
        self.buffer.share(0..self.buffer.len())
    }

    pub(crate) fn address(&self) -> crate::driver::Address {
        self.buffer.address()
    }
}

fn end(numbers: &[u32]) -> usize {
    numbers.iter().max().map_or(0, |&most| most as usize + 1)
}
