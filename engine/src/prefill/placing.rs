//! Placement of a prefill's buffers on GPU or host, and the GPU memory that they take.

use kept_models::Model;

use super::gpu::GpuReading;
use crate::EngineError;
use crate::sizes::Sizes;

/// Bytes of GPU memory that a prefill of these sizes takes, without the weights; 0 for a model on the CPU.
pub(crate) fn gpu_bytes(model: &Model, sizes: &Sizes) -> Result<u64, EngineError> {
    let gpu = model.gpu();
    let bytes = gpu.map(|gpu| GpuReading::bytes_for(gpu, model, sizes));
    Ok(bytes.transpose()?.unwrap_or(0))
}

/// Placement of the movable parts of a prefill.
#[derive(Clone, Copy)]
struct Placement {
    rows_on_gpu: bool,
    residual_on_host: bool,
    /// Whether the next layer's vault rows are prefetched while a layer is computed.
    prefetch: bool,
}

/// In order of preference: without prefetch, the bus idles while the host selects; a residual stream on the
/// host is copied while the GPU computes; kept rows on the host are downloaded layer by layer and uploaded
/// again for decoding.
const PLACES: [Placement; 6] = [
    Placement::of(true, false, true),
    Placement::of(false, false, true),
    Placement::of(true, false, false),
    Placement::of(true, true, false),
    Placement::of(false, false, false),
    Placement::of(false, true, false),
];

impl Placement {
    const fn of(rows_on_gpu: bool, residual_on_host: bool, prefetch: bool) -> Self {
        Self {
            rows_on_gpu,
            residual_on_host,
            prefetch,
        }
    }
}

/// Sets the first placement of [`PLACES`] that fits into the GPU's free memory, or into `memory` bytes for
/// weights and prefill. If none fits, sets the one that takes the least.
pub(crate) fn place_on_gpu(
    model: &Model,
    sizes: &mut Sizes,
    memory: Option<u64>,
) -> Result<(), EngineError> {
    let Some(gpu) = model.gpu() else {
        return Ok(());
    };
    let free = match memory {
        Some(memory) => memory.saturating_sub(gpu.bytes()),
        None => gpu.device().free_memory()?,
    };
    let (may_stay, may_bring) = (sizes.may_stay(), sizes.prefetch);
    let place = |sizes: &mut Sizes, places: Placement| {
        sizes.rows_on_gpu = places.rows_on_gpu;
        sizes.residual_on_host = places.residual_on_host;
        sizes.prefetch = if places.prefetch { may_bring } else { 0 };
    };
    let mut least: Option<(u64, Placement)> = None;
    for places in PLACES {
        if (places.rows_on_gpu && !may_stay) || (places.prefetch && may_bring == 0) {
            continue;
        }
        place(sizes, places);
        let bytes = GpuReading::bytes_for(gpu, model, sizes)?;
        if bytes <= free {
            return Ok(());
        }
        if least.is_none_or(|(least, _)| bytes < least) {
            least = Some((bytes, places));
        }
    }
    // No placement fits: the error should report the smallest shortage.
    if let Some((_, places)) = least {
        place(sizes, places);
    }
    Ok(())
}
