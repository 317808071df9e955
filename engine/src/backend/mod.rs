//! What computes a model: the CPU, or a device of another crate, which implements the traits of `traits.rs` and
//! attaches its weights to the model ([`attach`]). Only this module asks which one a model has ([`of`]).
//!
//! The interface of device crates: it changes with the engine.

mod buffers;
mod cpu;
mod gpu_watch;
mod measurements;
mod tasks;
mod traits;

use std::any::Any;

use kept_models::Model;

pub use crate::after_layer::{AfterLayer, LayerAttention, Probabilities};
pub use crate::compact::{Changed, F16_ROWS, F16Placement, Gather, RingGather, group_merges};
pub use crate::device::beside_weights;
pub use crate::observe::{MeasurementBuffers, counted_rows, ramp_weights, same_moments};
pub use crate::plan::{CHUNK, LayerKeeps, PrefillPlan, WIDE_CHUNKS};
pub use crate::shape::head_shape;
pub use buffers::HostBuffers;
pub(crate) use cpu::decode_bytes;
pub use cpu::prefill::retain;
pub use gpu_watch::GpuWatch;
pub use measurements::LayerMeasurements;
pub use tasks::{
    Chunk, DeviceRows, GatherSource, GatherTask, Keep, LastRows, PartTime, PrefillEnd,
    PrefillInput, PrefillMemory, RowAccess, StepOutput,
};
pub use traits::{
    Backend, DecodeBackend, DeviceModel, Gpus, HostAttention, HostLayer, HostView, LayerRowsAccess,
    PrefillBackend, PrefixRows,
};

/// The device of a model, as [`attach`] keeps it.
struct Attachment(Box<dyn DeviceModel>);

/// Lets `device`, which has the weights of `model`, compute it from now on.
pub fn attach(model: &mut Model, device: impl DeviceModel) {
    model.attach(Attachment(Box::new(device)));
}

/// The device that computes `model`, if it is of this type.
pub fn attached<D: DeviceModel>(model: &Model) -> Option<&D> {
    let device: &dyn Any = &*model.attached::<Attachment>()?.0;
    device.downcast_ref()
}

/// The backend of `model`: the device that is attached to it, otherwise the CPU.
pub fn of(model: &Model) -> Box<dyn Backend<'_> + '_> {
    match model.attached::<Attachment>() {
        Some(Attachment(device)) => device.backend(model),
        None => Box::new(cpu::Cpu::new(model)),
    }
}

/// Host memory of the weights in bytes: the file's pages, and copies of layers that do not fit on a device.
pub(crate) fn weights_in_memory(model: &Model) -> u64 {
    model.weights_bytes() + of(model).weights_on_host()
}
