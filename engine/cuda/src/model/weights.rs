//! A layer's weights for a GPU: in device memory, or, if the model does not fit, in host memory that the GPU can read.
//!
//! ```text
//! layers   0 1 2 ... k-1   | k ... last
//!          device memory   | host memory. Many rows: multiplied with a device copy, made once per layer ([`Slot`]).
//!                          | Few rows: the kernels read host memory directly, each weight once, as a copy would.
//! ```

use kept_cuda::{Buffer, Device, DeviceError, MMVQ_MAX_BATCH_SIZE, MemorySpace, Weights};
use kept_engine::backend::beside_weights;
use kept_models::{DenseLayer, DenseWeights, FileLayer};

/// Chooses the memory of each layer's matrices: `device` for as many layers as leave enough memory for a question.
pub(crate) fn spaces(
    weights: &DenseWeights<'_>,
    device: &Device,
) -> Result<Vec<MemorySpace>, DeviceError> {
    let bytes = |layer: &FileLayer<'_>| {
        let matrices = layer.matrices.into_iter();
        let bytes = matrices.map(|matrix| Weights::bytes_of(device, matrix));
        bytes.sum::<Result<u64, DeviceError>>()
    };
    let layers = weights.layers.iter().map(bytes);
    let layers = layers.collect::<Result<Vec<u64>, DeviceError>>()?;
    let output = Weights::bytes_of(device, weights.output)?;
    let beside = beside_weights(device.properties().memory);
    let mut free = device.free_memory()?.saturating_sub(output + beside);
    if layers.iter().sum::<u64>() > free {
        // Reserved for the copy of a layer in host memory.
        free = free.saturating_sub(layers.iter().copied().max().unwrap_or(0));
    }
    let space = |&bytes: &u64| match free.checked_sub(bytes) {
        Some(left) => {
            free = left;
            MemorySpace::Device
        }
        None => MemorySpace::Host,
    };
    Ok(layers.iter().map(space).collect())
}

/// The matrices of a layer, in the order of [`DenseLayer::matrices`].
pub(crate) type Matrices = [Weights; 7];

/// A decoder layer's weights. The matrices are all in device memory, or all in host memory.
pub(crate) type GpuLayer = DenseLayer<Buffer<f32>, Weights>;

/// Copies the weights of a layer, the matrices to `space`.
pub(crate) fn upload(
    layer: &FileLayer<'_>,
    device: &Device,
    space: MemorySpace,
) -> Result<GpuLayer, DeviceError> {
    let matrices = Weights::of(device, space, layer.matrices)?;
    layer.copied(matrices, |vector| device.copy_of(vector))
}

/// Bytes of a device copy of the matrices; 0 if they are in device memory.
pub(crate) fn host_bytes(layer: &GpuLayer) -> u64 {
    layer.matrices.iter().map(Weights::host_bytes).sum()
}

/// Copies matrices in host memory one after the other to `buffer`.
fn copied_to(matrices: &Matrices, buffer: &Buffer<u8>) -> Result<Matrices, DeviceError> {
    let mut at = 0;
    let copy = |weights: &Weights| {
        let copied = weights.copied_to(buffer, at);
        at += weights.host_bytes() as usize;
        copied
    };
    let copies = matrices.iter().map(copy).collect::<Result<Vec<_>, _>>()?;
    Ok(copies
        .try_into()
        .unwrap_or_else(|_| unreachable!("as many")))
}

/// A device buffer for the matrices of one layer in host memory.
pub(crate) struct Slot {
    buffer: Buffer<u8>,
    /// The layer whose matrices were copied last, and the copies.
    holds: Option<(usize, Matrices)>,
}

impl Slot {
    /// Allocates a slot of `bytes` bytes for passes of `rows` rows; an empty one if the rows are few.
    pub(crate) fn new(device: &Device, bytes: usize, rows: usize) -> Result<Self, DeviceError> {
        let bytes = if rows > MMVQ_MAX_BATCH_SIZE { bytes } else { 0 };
        Ok(Self {
            buffer: device.alloc_uninit(bytes)?,
            holds: None,
        })
    }

    /// The matrices of a layer, copied to the device if the slot is not empty.
    pub(crate) fn load<'a>(
        &'a mut self,
        layer: usize,
        own: &'a GpuLayer,
    ) -> Result<&'a Matrices, DeviceError> {
        if self.buffer.is_empty() || host_bytes(own) == 0 {
            return Ok(&own.matrices);
        }
        if self.holds.as_ref().is_none_or(|(held, _)| *held != layer) {
            self.holds = Some((layer, copied_to(&own.matrices, &self.buffer)?));
        }
        Ok(&self.holds.as_ref().expect("just copied").1)
    }
}
