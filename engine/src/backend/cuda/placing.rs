//! Placement of a prefill's buffers on GPU or host.

use kept_cuda::DeviceError;

use crate::plan::PrefillPlan;

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

/// Sets the first placement of [`PLACEMENTS`] whose `bytes` fit into `free` bytes. If none fits, sets the one that
/// takes the least: the error should report the smallest shortage.
pub(super) fn place(
    plan: &mut PrefillPlan,
    free: u64,
    bytes: impl Fn(&PrefillPlan) -> Result<u64, DeviceError>,
) -> Result<(), DeviceError> {
    let (may_stay, prefetch_bytes) = (plan.may_stay(), plan.prefetch);
    let apply = |plan: &mut PrefillPlan, placement: Placement| {
        plan.rows_on_gpu = placement.rows_on_gpu;
        plan.residual_on_host = placement.residual_on_host;
        plan.prefetch = if placement.prefetch {
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
        apply(plan, placement);
        let bytes = bytes(plan)?;
        if bytes <= free {
            return Ok(());
        }
        if least.is_none_or(|(least, _)| bytes < least) {
            least = Some((bytes, placement));
        }
    }
    if let Some((_, placement)) = least {
        apply(plan, placement);
    }
    Ok(())
}
