//! What of a reading lies on a GPU and what on the host, and what that takes of the GPU.

use kept_models::Model;

use super::gpu::GpuReading;
use crate::EngineError;
use crate::sizes::Sizes;

/// Bytes that reading by these sizes takes of the GPU that has the model's weights; 0 where there is none.
pub(crate) fn gpu_bytes(model: &Model, sizes: &Sizes) -> Result<u64, EngineError> {
    let gpu = model.gpu();
    let bytes = gpu.map(|gpu| GpuReading::bytes_for(gpu, model, sizes));
    Ok(bytes.transpose()?.unwrap_or(0))
}

/// Where parts of a reading lie.
#[derive(Clone, Copy)]
struct Placement {
    rows_on_gpu: bool,
    residual_on_host: bool,
    /// Whether a layer of the vault is brought while another is looked at.
    prefetch: bool,
}

/// By what it costs to do without: the bus that waits while the host chooses; a residual stream that travels while the GPU computes; kept
/// rows that come one layer after the other, and go there again.
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

/// Says what of a reading by these sizes a GPU has, and what lies on the host, where it has less than everything takes: of its free
/// memory, or of `memory` bytes for weights and reading. Where nothing fits, it is what takes the least.
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
    // Nothing fits: what is missing is what is missing at least.
    if let Some((_, places)) = least {
        place(sizes, places);
    }
    Ok(())
}
