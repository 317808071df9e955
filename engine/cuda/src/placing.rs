//! Placement of a prefill's buffers on GPU or host, and how many tokens it reads at once.

use kept_cuda::DeviceError;
use kept_engine::backend::{CHUNK, PrefillPlan, WIDE_CHUNKS};

/// Whether kept rows are on the GPU, and whether the residual stream is on the host.
type Placement = (bool, bool);

/// In order of preference: a residual stream on the host is copied while the GPU computes; kept rows on the host are
/// downloaded layer by layer and uploaded again for decoding.
const PLACEMENTS: [Placement; 4] = [(true, false), (true, true), (false, false), (false, true)];

/// Chunks to try, the widest first: those of [`WIDE_CHUNKS`] if the plan has the usual one, otherwise the plan's.
fn chunks(plan: &PrefillPlan) -> Vec<usize> {
    let wide = WIDE_CHUNKS.map(|chunk| chunk.min(plan.tokens()));
    let wide = wide.into_iter().filter(|_| plan.chunk == CHUNK);
    wide.chain([plan.chunk]).collect()
}

/// Sets the first placement of [`PLACEMENTS`] whose `bytes` fit into `free` bytes, and its widest chunk that does. If
/// none fits, sets what takes the least: the error should report the smallest shortage.
pub(super) fn place(
    plan: &mut PrefillPlan,
    free: u64,
    bytes: impl Fn(&PrefillPlan) -> Result<u64, DeviceError>,
) -> Result<(), DeviceError> {
    let may_stay = plan.may_stay();
    let chunks = chunks(plan);
    let mut least: Option<(u64, Placement, usize)> = None;
    for placement in PLACEMENTS {
        if placement.0 && !may_stay {
            continue;
        }
        (plan.rows_on_gpu, plan.residual_on_host) = placement;
        for &chunk in &chunks {
            plan.chunk = chunk;
            let bytes = bytes(plan)?;
            if bytes <= free {
                return Ok(());
            }
            if least.is_none_or(|(least, ..)| bytes < least) {
                least = Some((bytes, placement, chunk));
            }
        }
    }
    if let Some((_, placement, chunk)) = least {
        (plan.rows_on_gpu, plan.residual_on_host) = placement;
        plan.chunk = chunk;
    }
    Ok(())
}
