//! [`RowInputs`]: the input row of a decode step's products.

use crate::driver::Address;
use crate::{Buffer, Device, DeviceError};

/// Numbers that share a scale.
pub(super) const RUN: usize = 32;

/// One input row of products: as f32, and quantised for quantised weights.
pub struct RowInputs {
    /// `[width]`
    pub(super) values: Buffer<f32>,
    /// `[width]`: signed bytes.
    pub(super) bytes: Buffer<u8>,
    /// `[width / 32]`
    pub(super) scales: Buffer<f32>,
    /// `[width / 16]`
    pub(super) sums: Buffer<f32>,
    /// `[width / 32]`: sums of squares, for the factor of a norm.
    pub(super) squares: Buffer<f32>,
    /// Epsilon of the RMSNorm whose factor the values still lack.
    pub(crate) lacks_norm: Option<f32>,
}

/// A part of kernels' parameters; same layout as `Inputs` in `device/inputs.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct InputsParameters {
    numbers: Address,
    bytes: Address,
    scales: Address,
    sums: Address,
    squares: Address,
    runs: u32,
    eps: f32,
}

impl RowInputs {
    /// Allocates a row of `width` values.
    pub fn new(device: &Device, width: usize) -> Result<Self, DeviceError> {
        Ok(Self {
            values: device.alloc_uninit(width)?,
            bytes: device.alloc_uninit(width)?,
            scales: device.alloc_uninit(width.div_ceil(RUN))?,
            sums: device.alloc_uninit(width.div_ceil(RUN / 2))?,
            squares: device.alloc_uninit(width.div_ceil(RUN))?,
            lacks_norm: None,
        })
    }

    /// The f32 row, `[width]`: without the norm's factor if [`Device::step_added`] wrote it.
    pub fn values(&self) -> &Buffer<f32> {
        &self.values
    }

    /// The f32 row. Call [`Device::step_inputs`] after a write to quantise it.
    pub fn values_mut(&mut self) -> &mut Buffer<f32> {
        &mut self.values
    }

    pub(crate) fn width(&self) -> usize {
        self.values.len()
    }

    pub(crate) fn parameters(&self) -> InputsParameters {
        InputsParameters {
            numbers: self.values.address(),
            bytes: self.bytes.address(),
            scales: self.scales.address(),
            sums: self.sums.address(),
            squares: self.lacks_norm.map_or(0, |_| self.squares.address()),
            runs: self.squares.len() as u32,
            eps: self.lacks_norm.unwrap_or(0.0),
        }
    }
}
