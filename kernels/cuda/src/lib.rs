//! The kernels of kept-kernels on an NVIDIA GPU: the same names and meanings, over [`Buffer`]s in the memory of a
//! [`Device`].
//!
//! - `device/*.cu`: the kernels. The head of each file counts the bytes and operations of its kernels.
//! - `emulator/`: runs the kernels' source on the CPU, thread by thread, for tests without a GPU.
//! - `driver.rs`: the driver interface, implemented by the emulator and by NVIDIA's driver.
//! - `nvidia.rs`: NVIDIA's driver, with the feature `cuda`.
//! - `fault_injecting.rs`: for tests, a driver that wraps another one, limits its memory and counts operations.
//! - `dry_run.rs`: a driver that counts the memory another driver would allocate.
//! - `device.rs`: [`Device`] and [`Buffer`]; `indices.rs`: [`Indices`], indices with a known upper bound.
//! - `cache.rs`: [`GpuCache`], the rows of a compact KV cache, with all checks that its kernels need; `kept_rows.rs`:
//!   [`KeptRows`], the storage of these rows.
//! - `rates.rs`: [`Rates`], the peak rates of a GPU.
//! - `async_copy.rs`: [`UploadStaging`], [`DownloadStaging`] and [`Readback`], copies that overlap with computation.
//! - `weights.rs`: products with a model's weights, by candle's kernels; `candle_memory.rs`: the memory that these
//!   need.
//! - `step.rs`: one decode step in few launches; `captured_graph.rs`: [`CapturedGraph`], launches that are replayed as
//!   one CUDA graph.
//! - `attention.rs`, `scores.rs`, `decode.rs`, `classes.rs`, `elementwise.rs`, `gather_rows.rs`,
//!   `nearest_by_cosine.rs`, `merge.rs`, `expected.rs`: kernel launches, each with its checks and its geometry.
//!
//! As in kept-kernels, a shape mismatch is a panic that names the shape. A failure of the device is a [`DeviceError`].
//! Models, policies and the order of operations are other crates' concern.

#![warn(missing_docs)]

mod async_copy;
mod attention;
mod cache;
#[cfg(feature = "cuda")]
mod candle;
#[cfg(any(feature = "cuda", feature = "emulated"))]
mod candle_memory;
mod captured_graph;
mod classes;
mod decode;
mod device;
pub mod driver;
mod dry_run;
mod elementwise;
#[cfg(feature = "emulated")]
pub mod emulated;
mod expected;
#[cfg(feature = "emulated")]
mod fault_injecting;
mod gather_rows;
mod indices;
mod kept_rows;
mod merge;
mod nearest_by_cosine;
#[cfg(feature = "cuda")]
pub mod nvidia;
mod rates;
mod rows;
mod scores;
mod step;
mod weights;

pub use async_copy::{DownloadStaging, PendingCopy, Readback, UploadStaging};
pub use attention::{AttentionScratch, PrefillAttention};
pub use cache::{GatherStaging, GpuCache, LayerCapacity, NewToken, StepLayer, StepScratch};
pub use captured_graph::CapturedGraph;
pub use classes::{ClassAttention, ClassScratch};
pub use decode::{DecodeAttention, DecodeOutput, DecodeScratch, Ranks};
pub use device::{Buffer, Device, DeviceElement, MemorySpace};
pub use driver::MMVQ_MAX_BATCH_SIZE;
pub use elementwise::{Activation, Heads, RmsNorm, RopeTables, RowPositions};
pub use expected::{QuerySums, RowScoreScratch};
#[cfg(feature = "emulated")]
pub use fault_injecting::{Meter, fault_injecting};
pub use gather_rows::GatherIndices;
pub use indices::Indices;
pub use kept_kernels::DeviceError;
pub use kept_rows::{KeptRows, RowKind};
pub use merge::{Mean, Merging};
pub use nearest_by_cosine::{CosineScratch, HeadKeysValues};
pub use rates::{Rates, RatesOf};
pub use rows::{HeadRows, LayerRows};
pub use scores::{Scores, ScoresScratch};
pub use step::{Candidates, MAX_CANDIDATES, RowInputs, RowProduct, StepHeads};
pub use weights::{ProductScratch, Weights};

/// Head sizes that the kernels are compiled for.
pub const HEAD_DIMS: [usize; 5] = [64, 80, 96, 128, 256];

/// Bytes of a row of halves in shared memory: `head_dim` halves and 16 bytes of padding (`device/tiles.cuh`).
fn tile_row_bytes(head_dim: usize) -> usize {
    (head_dim + 8) * 2
}

/// Checks that the kernels support heads of `head_dim` elements, and a residual stream of `width`.
///
/// # Errors
/// [`DeviceError::HeadDim`] for another head size, [`DeviceError::Width`] for too wide a model.
pub fn supports(head_dim: usize, width: usize) -> Result<(), DeviceError> {
    if width > step::MAX_WIDTH {
        let most = step::MAX_WIDTH;
        return Err(DeviceError::Width { width, most });
    }
    supported(head_dim).map(|_| ())
}

/// `head_dim`, if the kernels support it.
pub(crate) fn supported(head_dim: usize) -> Result<usize, DeviceError> {
    if HEAD_DIMS.contains(&head_dim) {
        Ok(head_dim)
    } else {
        Err(DeviceError::HeadDim {
            head_dim,
            supported: "64, 80, 96, 128 and 256",
        })
    }
}

/// `Scale` of `device/tiles.cuh`: from dot products to logits. A cap of 0 means no cap.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ScaleParameters {
    factor: f32,
    cap: f32,
}

impl From<kept_kernels::Scale<'_>> for ScaleParameters {
    fn from(scale: kept_kernels::Scale<'_>) -> Self {
        assert!(scale.sinks.is_none(), "no CUDA kernel has attention sinks");
        Self {
            factor: scale.factor,
            cap: scale.cap.unwrap_or(0.0),
        }
    }
}
