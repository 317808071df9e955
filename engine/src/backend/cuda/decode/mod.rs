//! Decoding on a GPU.

mod decoder;
mod observed;
mod plan;
mod slot_table;

use kept_models::{GpuModel, Model, RopeTable};

use crate::EngineError;
use crate::backend::seam::DecodeBackend;
use crate::compact::CompactCache;
use decoder::CudaDecoder;
pub(super) use plan::{DecodePlan, capacity_of};

/// The decoder over `cache`. `observes`: whether the host reads attention probabilities after a token.
pub(super) fn decoder<'m>(
    gpu: &'m GpuModel,
    model: &'m Model,
    rope: &RopeTable,
    cache: &mut CompactCache,
    observes: bool,
) -> Result<Box<dyn DecodeBackend + 'm>, EngineError> {
    let plan = DecodePlan::for_cache(cache, observes)?;
    let decoder = CudaDecoder::new(gpu.device(), model, rope, cache, &plan)?;
    Ok(Box::new(decoder))
}
