//! Decoding on a GPU.

mod decoder;
mod observed;
mod plan;
mod slot_table;

use std::sync::Arc;

use kept_engine::backend::DecodeBackend;
use kept_engine::{CompactCache, EngineError};
use kept_models::{Model, RopeTable};

use crate::model::GpuModel;
use decoder::CudaDecoder;
pub(super) use plan::{DecodePlan, capacity_of};

/// The decoder over `cache`. `observes`: whether the host reads attention probabilities after a token.
pub(super) fn decoder<'m>(
    gpu: &Arc<GpuModel>,
    model: &'m Model,
    rope: &RopeTable,
    cache: &mut CompactCache,
    observes: bool,
) -> Result<Box<dyn DecodeBackend + 'm>, EngineError> {
    let plan = DecodePlan::for_cache(cache, observes)?;
    let decoder = CudaDecoder::new(gpu, model, rope, cache, &plan)?;
    Ok(Box::new(decoder))
}
