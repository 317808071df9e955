//! The devices that run a model, behind the traits of `seam.rs`. Only this module knows which device has a model
//! ([`of`]).

mod buffers;
mod cpu;
mod cuda;
mod measurements;
mod seam;
mod tasks;

use kept_models::Model;

pub(crate) use buffers::HostBuffers;
pub(crate) use cpu::decode_bytes;
pub use cuda::GpuWatch;
pub(crate) use measurements::Measurements;
pub(crate) use seam::{
    Backend, DecodeBackend, HostAttention, HostLayer, HostView, LayerRowsAccess, PrefillBackend,
    PrefixRows,
};
pub use tasks::PartTime;
pub(crate) use tasks::{
    Chunk, DeviceRows, GatherTask, Keep, LastRows, PrefillInput, RowAccess, StepOutput,
};

/// The backend of `model`: the GPU that has its weights, otherwise the CPU.
pub(crate) fn of(model: &Model) -> Box<dyn Backend<'_> + '_> {
    match model.gpu() {
        Some(gpu) => Box::new(cuda::Cuda::new(model, gpu)),
        None => Box::new(cpu::Cpu::new(model)),
    }
}
