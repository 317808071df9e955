//! [`StepLayer`]: one layer of a cache in a step that is captured once and replayed.

use half::f16;
use kept_kernels::{HeadShape, Scale};

use crate::step::StepTarget;
use crate::{
    Buffer, DecodeAttention, DecodeScratch, Device, DeviceError, Indices, KeptRows, RowInputs,
    StepHeads,
};

/// A layer of a cache in a captured step. Values that differ between tokens go through [`GpuCache`](crate::GpuCache),
/// which checks them.
pub struct StepLayer {
    pub(super) shape: HeadShape,
    pub(super) keys: KeptRows,
    pub(super) values: KeptRows,
    pub(super) first_rows: Buffer<u32>,
    pub(super) rows: Buffer<u32>,
    pub(super) targets: Buffer<u32>,
    pub(super) places: Option<Indices>,
    /// `[1]`
    pub(super) position: Buffer<u32>,
    /// Slots of the largest head.
    pub(super) capacity: Option<usize>,
    pub(super) reach: usize,
}

impl StepLayer {
    /// Prepares a token's projected heads: writes `queries [q_heads, head_dim]` for [`StepLayer::attend`], and keys and
    /// values to their slots.
    ///
    /// # Panics
    /// When shapes do not match.
    pub fn put(
        &mut self,
        device: &Device,
        heads: &StepHeads<'_>,
        queries: &mut Buffer<f16>,
    ) -> Result<(), DeviceError> {
        let (q_heads, kv_heads) = (self.shape.q_heads, self.shape.kv_heads);
        let dim = self.shape.head_dim;
        assert!(
            heads.q.len() == q_heads * dim && heads.k.len() == kv_heads * dim,
            "q is [q_heads {q_heads}, head_dim {dim}], k [kv_heads {kv_heads}, head_dim]"
        );
        let target = StepTarget {
            keys: &self.keys,
            values: &self.values,
            targets: &self.targets,
            position: &self.position,
            reach: self.reach,
        };
        // SAFETY: targets and positions were checked when they were staged.
        unsafe { device.step_heads(heads, &target, queries) }
    }

    /// Attention of `queries` over the rows: writes `out [q_heads, head_dim]`, which still needs
    /// [`Device::step_inputs`] unless the head size is a multiple of 32, and to `best [q_heads, 2]` each query head's
    /// largest probability as bits and its slot as a number.
    ///
    /// # Panics
    /// When shapes do not match.
    pub fn attend(
        &self,
        device: &Device,
        scale: Scale<'_>,
        queries: &Buffer<f16>,
        scratch: &mut DecodeScratch,
        out: &mut RowInputs,
        best: &mut Buffer<u32>,
    ) -> Result<(), DeviceError> {
        let most = scratch.stride();
        assert!(
            self.capacity.is_none_or(|capacity| capacity <= most),
            "{:?} rows, the scratch is for up to {most}",
            self.capacity
        );
        let task = DecodeAttention {
            shape: self.shape,
            scale,
            queries,
            keys: &self.keys,
            values: &self.values,
            first_rows: &self.first_rows,
            rows: &self.rows,
            places: self.places.as_ref(),
            ranks: None,
        };
        // SAFETY: rows were checked when they were staged.
        unsafe { device.step_attention(&task, scratch, out, best) }
    }
}
