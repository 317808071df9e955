//! [`Indices`]: indices on a device with an upper bound that the host knows, so that it can check the buffers they
//! refer to.

use crate::{Buffer, Device, DeviceError};

/// Rows, positions, heads or slots that a kernel uses as indices. A clone is a second handle to them.
#[derive(Clone)]
pub struct Indices {
    buffer: Buffer<u32>,
    /// One more than the largest value ever written.
    end: usize,
}

impl Indices {
    /// Uploads `indices`.
    pub fn new(device: &Device, indices: &[u32]) -> Result<Self, DeviceError> {
        Ok(Self::known(device.copy_of(indices)?, end(indices)))
    }

    /// Allocates `count` indices, all 0.
    pub fn zeros(device: &Device, count: usize) -> Result<Self, DeviceError> {
        Ok(Self::known(device.zeros(count)?, 1))
    }

    /// Indices of a buffer whose values are all below `end` when a kernel reads them.
    pub(crate) fn known(buffer: Buffer<u32>, end: usize) -> Self {
        Self { buffer, end }
    }

    /// Replaces `first..`.
    ///
    /// # Panics
    /// When the indices exceed the buffer.
    pub fn write(&mut self, first: usize, indices: &[u32]) -> Result<(), DeviceError> {
        self.end = self.end.max(end(indices));
        self.buffer.write(first, indices)
    }

    /// Number of indices.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether the buffer has no indices.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// One more than the largest value ever written.
    pub fn end(&self) -> usize {
        self.end
    }

    /// The same buffer, with the bound of `indices`, which it will hold when a kernel reads it.
    pub(crate) fn with_bound_of(&self, indices: &[u32]) -> Self {
        Self::known(self.buffer.clone(), end(indices))
    }

    pub(crate) fn buffer(&self) -> &Buffer<u32> {
        &self.buffer
    }

    pub(crate) fn address(&self) -> crate::driver::Address {
        self.buffer.address()
    }
}

fn end(indices: &[u32]) -> usize {
    indices.iter().max().map_or(0, |&most| most as usize + 1)
}
