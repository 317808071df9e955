//! A layer's weights for a GPU: in device memory, or, if the model does not fit, in host memory that the GPU can read.
//!
//! ```text
//! layers   0 1 2 ... k-1   | k ... last
//!          device memory   | host memory. Many rows: multiplied with a device copy, made once per layer ([`Slot`]).
//!                          | Few rows: the kernels read host memory directly, each weight once, as a copy would.
//! ```

use kept_cuda::{Buffer, Device, DeviceError, FEW, MemorySpace, Weights};
use kept_engine::backend::beside_weights;
use kept_models::{DenseLayer, DenseWeights};

/// Chooses the memory of each layer's matrices: `device` for as many layers as leave enough memory for a question.
pub(crate) fn spaces(
    weights: &DenseWeights<'_>,
    device: &Device,
) -> Result<Vec<MemorySpace>, DeviceError> {
    let bytes = |layer: &DenseLayer<'_>| {
        let matrices = layer.matrices.into_iter();
        let bytes = matrices.map(|matrix| Weights::bytes_of(device, matrix));
        bytes.sum::<Result<u64, DeviceError>>()
    };
    let layers = weights.layers.iter().map(bytes);
    let layers = layers.collect::<Result<Vec<u64>, DeviceError>>()?;
    let output = Weights::bytes_of(device, weights.output)?;
    let beside = beside_weights(device.facts().memory);
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

/// The matrices of a layer.
pub(crate) struct Matrices {
    pub(crate) q: Weights,
    pub(crate) k: Weights,
    pub(crate) v: Weights,
    pub(crate) o: Weights,
    pub(crate) gate: Weights,
    pub(crate) up: Weights,
    pub(crate) down: Weights,
}

impl Matrices {
    fn all(&self) -> [&Weights; 7] {
        let Self {
            q,
            k,
            v,
            o,
            gate,
            up,
            down,
        } = self;
        [q, k, v, o, gate, up, down]
    }

    fn bytes(&self) -> u64 {
        self.all().iter().map(|m| m.bytes()).sum()
    }

    pub(crate) fn host_bytes(&self) -> u64 {
        self.all().iter().map(|m| m.host_bytes()).sum()
    }

    /// Copies the matrices one after the other to `buffer`.
    fn copied_to(&self, buffer: &Buffer<u8>) -> Result<Self, DeviceError> {
        let mut at = 0;
        let mut copy = |weights: &Weights| {
            let copied = weights.copied_to(buffer, at)?;
            at += weights.host_bytes() as usize;
            Ok::<_, DeviceError>(copied)
        };
        Ok(Self {
            q: copy(&self.q)?,
            k: copy(&self.k)?,
            v: copy(&self.v)?,
            o: copy(&self.o)?,
            gate: copy(&self.gate)?,
            up: copy(&self.up)?,
            down: copy(&self.down)?,
        })
    }
}

/// A decoder layer's weights; see [`DenseLayer`].
pub(crate) struct GpuLayer {
    pub(crate) attention_norm: Buffer<f32>,
    pub(crate) q_bias: Option<Buffer<f32>>,
    pub(crate) k_bias: Option<Buffer<f32>>,
    pub(crate) v_bias: Option<Buffer<f32>>,
    pub(crate) q_norm: Option<Buffer<f32>>,
    pub(crate) k_norm: Option<Buffer<f32>>,
    pub(crate) o_bias: Option<Buffer<f32>>,
    pub(crate) post_attention_norm: Option<Buffer<f32>>,
    pub(crate) ffn_norm: Buffer<f32>,
    pub(crate) post_ffn_norm: Option<Buffer<f32>>,
    /// All in device memory, or all in host memory.
    pub(crate) matrices: Matrices,
}

impl GpuLayer {
    pub(crate) fn new(
        layer: &DenseLayer<'_>,
        device: &Device,
        space: MemorySpace,
    ) -> Result<Self, DeviceError> {
        let optional = |v: Option<&[f32]>| v.map(|v| device.copy_of(v)).transpose();
        let [q, k, v, o, gate, up, down] = Weights::of(device, space, layer.matrices)?;
        Ok(Self {
            attention_norm: device.copy_of(layer.attention_norm)?,
            q_bias: optional(layer.q_bias)?,
            k_bias: optional(layer.k_bias)?,
            v_bias: optional(layer.v_bias)?,
            q_norm: optional(layer.q_norm)?,
            k_norm: optional(layer.k_norm)?,
            o_bias: optional(layer.o_bias)?,
            post_attention_norm: optional(layer.post_attention_norm)?,
            ffn_norm: device.copy_of(layer.ffn_norm)?,
            post_ffn_norm: optional(layer.post_ffn_norm)?,
            matrices: Matrices {
                q,
                k,
                v,
                o,
                gate,
                up,
                down,
            },
        })
    }

    /// Device memory in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let optional = [
            &self.q_bias,
            &self.k_bias,
            &self.v_bias,
            &self.q_norm,
            &self.k_norm,
            &self.o_bias,
            &self.post_attention_norm,
            &self.post_ffn_norm,
        ];
        let optional = optional.into_iter().flatten().map(Buffer::bytes);
        self.matrices.bytes()
            + optional.sum::<u64>()
            + self.attention_norm.bytes()
            + self.ffn_norm.bytes()
    }

    /// Bytes of a device copy of the matrices; 0 if they are in device memory.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.matrices.host_bytes() as usize
    }
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
        let bytes = if rows > FEW { bytes } else { 0 };
        Ok(Self {
            buffer: device.alloc_uninit(bytes)?,
            holds: None,
        })
    }

    /// Device memory in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.buffer.bytes()
    }

    /// The matrices of a layer, copied to the device if the slot is not empty.
    pub(crate) fn load<'a>(
        &'a mut self,
        layer: usize,
        own: &'a GpuLayer,
    ) -> Result<&'a Matrices, DeviceError> {
        if self.buffer.is_empty() || own.slot_bytes() == 0 {
            return Ok(&own.matrices);
        }
        if self.holds.as_ref().is_none_or(|(held, _)| *held != layer) {
            self.holds = Some((layer, own.matrices.copied_to(&self.buffer)?));
        }
        Ok(&self.holds.as_ref().expect("just copied").1)
    }
}
