//! Decoding on a GPU: without the host where the method does nothing during decoding, otherwise with it.

mod graph_decoder;
mod host_stepped;
mod plan;
mod slot_table;

use kept_models::{GpuModel, Model, RopeTable};

use crate::EngineError;
use crate::backend::DecodeBackend;
use crate::compact::CompactCache;
use graph_decoder::GraphDecoder;
use host_stepped::HostSteppedDecoder;
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
    if plan.graph_decoder() {
        return Ok(Box::new(GraphDecoder::new(
            gpu.device(),
            model,
            rope,
            cache,
            &plan,
        )?));
    }
    assert!(
        cache.bytes_on_gpu() == 0,
        "a method that changes rows was given a cache of one that does not"
    );
    Ok(Box::new(HostSteppedDecoder::new(
        gpu, model, rope, cache, &plan,
    )?))
}
