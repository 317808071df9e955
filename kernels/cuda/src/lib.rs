//! The kernels of kept-kernels on an NVIDIA GPU: the same names and meanings, over [`Buffer`]s that live on a [`Device`].
//!
//! - `device/*.cu`: the kernels. Each file's head counts the bytes and operations it must move.
//! - `emulator/`: runs their own source on the CPU, thread by thread, for tests where there is no GPU.
//! - `driver.rs`: what runs kernels, an interface: the emulator, or NVIDIA's driver.
//! - `nvidia.rs`: the driver, with the feature `cuda`.
//! - `fault_injecting.rs`: for tests, a driver before another that limits and counts.
//! - `dry_run.rs`: a driver that counts what would be taken of another.
//! - `device.rs`: [`Device`] and [`Buffer`]; `indices.rs`: [`Indices`], numbers that kernels look things up by.
//! - `cache.rs`: [`GpuCache`], the rows of a compact cache, with everything that has to hold before a kernel runs over them;
//!   `kept.rs`: [`KeptRows`], how they are stored.
//! - `rates.rs`: [`Rates`], what a GPU can do at most.
//! - `async_copy.rs`: [`UploadStaging`], [`DownloadStaging`] and [`Readback`], what travels while the device computes or the host looks.
//! - `weights.rs`: products with a model's weights, by candle's kernels; `candle_takes.rs`: what these take of a GPU.
//! - `step.rs`: one token's step in few launches; `captured_graph.rs`: [`CapturedGraph`], launches that run again as one.
//! - `attention.rs`, `scores.rs`, `decode.rs`, `classes.rs`, `elementwise.rs`, `keep.rs`, `alike.rs`, `merge.rs`, `expected.rs`: launches,
//!   each with its checks and its geometry.
//!
//! A shape that does not fit is a panic that names it, as in kept-kernels; what the device refuses is a [`DeviceError`]. Not here:
//! models, policies, the order of things.

#![warn(missing_docs)]

mod alike;
mod async_copy;
mod attention;
mod cache;
#[cfg(feature = "cuda")]
mod candle;
#[cfg(any(feature = "cuda", feature = "emulated"))]
mod candle_takes;
mod captured_graph;
mod classes;
mod decode;
mod device;
pub mod driver;
mod dry_run;
mod elementwise;
#[cfg(feature = "emulated")]
pub mod emulated;
mod error;
mod expected;
#[cfg(feature = "emulated")]
mod fault_injecting;
mod indices;
mod keep;
mod kept;
mod merge;
#[cfg(feature = "cuda")]
pub mod nvidia;
mod rates;
mod rows;
mod scores;
mod step;
mod weights;

pub use alike::{Compared, Comparing};
pub use async_copy::{DownloadStaging, PendingCopy, Readback, UploadStaging};
pub use attention::{AttentionScratch, PrefillAttention};
pub use cache::{GpuCache, Keeping, LayerCapacity, NewToken, StepLayer};
pub use captured_graph::CapturedGraph;
pub use classes::{ClassAttention, ClassScratch};
pub use decode::{DecodeAttention, DecodeScratch, Ranks};
pub use device::{Buffer, Device, MemorySpace, Number};
pub use driver::FEW;
pub use elementwise::{Activation, Angles, Heads, RowPositions};
pub use error::DeviceError;
pub use expected::{Asking, QuerySums};
#[cfg(feature = "emulated")]
pub use fault_injecting::{Meter, fault_injecting};
pub use indices::Indices;
pub use keep::Kept;
pub use kept::{KeptRows, RowKind};
pub use merge::{Mean, Merging};
pub use rates::{Rates, RatesOf};
pub use rows::LayerRows;
pub use scores::{Scores, ScoresScratch};
pub use step::{Candidates, MOST_CANDIDATES, RowInputs, RowProduct, StepHeads};
pub use weights::{ProductScratch, Weights};

/// Heads that there are kernels for, by their numbers.
pub const HEAD_DIMS: [usize; 5] = [64, 80, 96, 128, 256];

/// Bytes of a row of halves in shared memory: 16 more than its numbers take (`device/tiles.cuh`).
fn tile_row_bytes(head_dim: usize) -> usize {
    (head_dim + 8) * 2
}

/// Whether there are kernels for heads of `head_dim` numbers.
///
/// # Errors
/// [`DeviceError::HeadDim`] where there are none.
pub fn supports(head_dim: usize) -> Result<(), DeviceError> {
    supported(head_dim).map(|_| ())
}

/// `head_dim` if there are kernels for it.
pub(crate) fn supported(head_dim: usize) -> Result<usize, DeviceError> {
    match HEAD_DIMS.contains(&head_dim) {
        true => Ok(head_dim),
        false => Err(DeviceError::HeadDim {
            head_dim,
            supported: "64, 80, 96, 128 and 256",
        }),
    }
}

/// `device/tiles.cuh`: from dot products to logits. A cap of 0 is none.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ScaleParameters {
    factor: f32,
    cap: f32,
}

impl From<kept_kernels::Scale> for ScaleParameters {
    fn from(scale: kept_kernels::Scale) -> Self {
        Self {
            factor: scale.factor,
            cap: scale.cap.unwrap_or(0.0),
        }
    }
}
