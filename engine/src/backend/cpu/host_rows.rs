//! A layer and attention for rows in host memory.

use std::ops::Range;

use kept_kernels::{PrefillAttention, RecurrentState, Stop, prefill_attention};
use kept_models::LayerPass;

use crate::EngineError;
use crate::backend::traits::{HostAttention, HostLayer};

impl HostLayer for LayerPass<'_> {
    fn project(
        &mut self,
        residual: &[f32],
        [q, k, v]: [&mut [f32]; 3],
        stop: &Stop,
    ) -> Result<(), EngineError> {
        Ok(LayerPass::project(self, residual, q, k, v, stop)?)
    }

    fn finish(
        &mut self,
        attention: &[f32],
        residual: &mut [f32],
        stop: &Stop,
    ) -> Result<(), EngineError> {
        // Models whose layers add embeddings are refused here, so that tokens are not needed.
        Ok(LayerPass::finish(self, attention, &[], residual, stop)?)
    }

    fn recur(
        &mut self,
        residual: &mut [f32],
        state: &mut RecurrentState,
        stop: &Stop,
    ) -> Result<(), EngineError> {
        Ok(LayerPass::recur(self, residual, state, stop)?)
    }
}

/// Attention on the CPU.
pub(super) struct CpuAttention;

impl HostAttention for CpuAttention {
    fn attend(
        &mut self,
        task: &PrefillAttention<'_>,
        _new: Range<usize>,
        out: &mut [f32],
        log_sum_exp: Option<&mut [f32]>,
        stop: &Stop,
    ) -> Result<(), EngineError> {
        Ok(prefill_attention(task, out, log_sum_exp, stop)?)
    }
}
