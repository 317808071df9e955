//! Placement of a prefill's buffers on GPU or host, and the GPU memory that they take.

use kept_models::Model;

use super::PrefillPlan;
use crate::EngineError;
use crate::prefill::GpuReading;

/// Bytes of GPU memory that a prefill of these sizes takes, without the weights; 0 for a model on the CPU.
pub(crate) fn gpu_bytes(model: &Model, sizes: &PrefillPlan) -> Result<u64, EngineError> {
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
const PLACEMENTS: [Placement; 6] = [
    Placement::new(true, false, true),
    Placement::new(false, false, true),
    Placement::new(true, false, false),
    Placement::new(true, true, false),
    Placement::new(false, false, false),
    Placement::new(false, true, false),
];

impl Placement {
    const fn new(rows_on_gpu: bool, residual_on_host: bool, prefetch: bool) -> Self {
        Self {
            rows_on_gpu,
            residual_on_host,
            prefetch,
        }
    }
}

/// Sets the first placement of [`PLACEMENTS`] that fits into the GPU's free memory, or into `memory` bytes for
/// weights and prefill. If none fits, sets the one that takes the least.
pub(crate) fn place_on_gpu(
    model: &Model,
    sizes: &mut PrefillPlan,
    memory: Option<u64>,
) -> Result<(), EngineError> {
    let Some(gpu) = model.gpu() else {
        return Ok(());
    };
    let free = match memory {
        Some(memory) => memory.saturating_sub(gpu.bytes()),
        None => gpu.device().free_memory()?,
    };
    let (may_stay, prefetch_bytes) = (sizes.may_stay(), sizes.prefetch);
    let apply = |sizes: &mut PrefillPlan, placement: Placement| {
        sizes.rows_on_gpu = placement.rows_on_gpu;
        sizes.residual_on_host = placement.residual_on_host;
        sizes.prefetch = if placement.prefetch {
            prefetch_bytes
        } else {
            0
        };
    };
    let mut least: Option<(u64, Placement)> = None;
    for placement in PLACEMENTS {
        if (placement.rows_on_gpu && !may_stay) || (placement.prefetch && prefetch_bytes == 0) {
            continue;
        }
        apply(sizes, placement);
        let bytes = GpuReading::bytes_for(gpu, model, sizes)?;
        if bytes <= free {
            return Ok(());
        }
        if least.is_none_or(|(least, _)| bytes < least) {
            least = Some((bytes, placement));
        }
    }
    // No placement fits: the error should report the smallest shortage.
    if let Some((_, placement)) = least {
        apply(sizes, placement);
    }
    Ok(())
}
