//! Placement of a prefill's buffers on GPU or host, and how many tokens it reads at once.

use kept_cuda::DeviceError;
use kept_engine::backend::{CHUNK, PrefillPlan, WIDE_CHUNKS};

/// Where kept rows and the residual stream are.
#[derive(Clone, Copy)]
struct Placement {
    rows_on_gpu: bool,
    residual_on_host: bool,
}

impl Placement {
    const fn new(rows_on_gpu: bool, residual_on_host: bool) -> Self {
        Self {
            rows_on_gpu,
            residual_on_host,
        }
    }

    fn apply(self, plan: &mut PrefillPlan) {
        plan.rows_on_gpu = self.rows_on_gpu;
        plan.residual_on_host = self.residual_on_host;
    }
}

/// In order of preference: a residual stream on the host is copied while the GPU computes; kept rows on the host are
/// downloaded layer by layer and uploaded again for decoding.
const PLACEMENTS: [Placement; 4] = [
    Placement::new(true, false),
    Placement::new(true, true),
    Placement::new(false, false),
    Placement::new(false, true),
];

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
    let rows_may_stay_on_gpu = plan.rows_may_stay_on_gpu();
    let chunks = chunks(plan);
    let mut least: Option<(u64, Placement, usize)> = None;
    for placement in PLACEMENTS {
        if placement.rows_on_gpu && !rows_may_stay_on_gpu {
            continue;
        }
        placement.apply(plan);
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
        placement.apply(plan);
        plan.chunk = chunk;
    }
    Ok(())
}
