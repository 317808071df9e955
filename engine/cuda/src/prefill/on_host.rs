//! A layer for rows in host memory: the rows of a reconstruction, after the document.

use kept_cuda::DeviceError;
use kept_engine::backend::{PrefillPlan, head_shape};
use kept_models::Model;

use crate::host_rows::{self, StagedAttention, StagedLayer};
use crate::model::GpuModel;

/// A layer for rows in host memory, and attention over them.
pub(super) struct OnHost<'a> {
    pub(super) layer: StagedLayer<'a>,
    pub(super) attention: StagedAttention<'a>,
    /// Device bytes.
    pub(super) bytes: u64,
}

impl<'a> OnHost<'a> {
    /// For the reconstruction of `plan`, if there is one.
    pub(super) fn new(
        gpu: &'a GpuModel,
        model: &'a Model,
        plan: &PrefillPlan,
    ) -> Result<Option<Self>, DeviceError> {
        let Some(attention) = Self::attention(gpu, model, plan) else {
            return Ok(None);
        };
        Ok(Some(Self {
            layer: StagedLayer::new(gpu, model, 0, 0),
            attention,
            bytes: Self::bytes(gpu, model, plan)?,
        }))
    }

    /// Attention for the rows of a reconstruction, after the document.
    fn attention(
        gpu: &'a GpuModel,
        model: &Model,
        plan: &PrefillPlan,
    ) -> Option<StagedAttention<'a>> {
        let longest = plan.reconstruction_plan.as_ref()?.longest();
        let (rows, columns) = (plan.chunk.min(longest), plan.layer_rows());
        Some(StagedAttention::new(gpu, head_shape(model), rows, columns))
    }

    /// Device bytes; 0 without a reconstruction.
    pub(super) fn bytes(
        gpu: &GpuModel,
        model: &Model,
        plan: &PrefillPlan,
    ) -> Result<u64, DeviceError> {
        OnHost::attention(gpu, model, plan).map_or(Ok(0), |attention| {
            Ok(host_rows::layer_bytes(gpu, plan.chunk)? + attention.bytes()?)
        })
    }
}
