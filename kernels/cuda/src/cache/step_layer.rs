//! [`StepLayer`]: one layer of a cache in a step that is captured once and replayed.

use half::f16;
use kept_kernels::{HeadShape, Scale};

use super::LayerBuffers;
use crate::{
    Buffer, ClassAttention, ClassScratch, DecodeAttention, DecodeOutput, DecodeScratch, Device,
    DeviceError, Indices, Ranks, RopeTables, StepHeads,
};

/// A layer of a cache in a captured step. Values that differ between tokens go through [`GpuCache`](crate::GpuCache),
/// which checks them.
pub struct StepLayer {
    pub(super) shape: HeadShape,
    pub(crate) buffers: LayerBuffers,
    /// `[1]`: position of the token.
    pub(crate) position: Buffer<u32>,
    /// `[2, kv_heads, head_dim]`, if the host needs the new rows
    pub(crate) copies: Option<Buffer<f16>>,
    /// Slots of the largest head.
    pub(super) capacity: Option<usize>,
    /// Upper bound (exclusive) of positions and ranks.
    pub(crate) position_limit: usize,
}

/// Scratch of [`StepLayer::attend`], for all layers.
pub struct StepScratch {
    rows: DecodeScratch,
    classes: Option<ClassScratch>,
}

impl StepScratch {
    /// For up to `max_rows` rows per KV head, and up to `max_entries` entries of layers with tables, if there are any.
    pub fn new(
        device: &Device,
        shape: HeadShape,
        max_rows: usize,
        max_entries: usize,
    ) -> Result<Self, DeviceError> {
        let classes = || ClassScratch::new(device, shape, max_rows, max_entries);
        Ok(Self {
            rows: DecodeScratch::new(device, shape, max_rows)?,
            classes: (max_entries > 0).then(classes).transpose()?,
        })
    }
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
        // SAFETY: targets and positions were checked when they were staged.
        unsafe { device.step_heads(heads, self, queries) }
    }

    /// Attention of `queries` over the rows, or over the entries of a layer with tables. `angles` are those of the
    /// layer's RoPE.
    ///
    /// # Panics
    /// When shapes do not match.
    pub fn attend(
        &self,
        device: &Device,
        scale: Scale<'_>,
        angles: Option<RopeTables<'_>>,
        queries: &Buffer<f16>,
        scratch: &mut StepScratch,
        output: DecodeOutput<'_>,
    ) -> Result<(), DeviceError> {
        let most = scratch.rows.max_rows();
        assert!(
            self.capacity.is_none_or(|capacity| capacity <= most),
            "{:?} rows, the scratch is for up to {most}",
            self.capacity
        );
        // Other keys are rotated when they are written.
        let buffers = &self.buffers;
        let angles = angles.filter(|_| buffers.ranks.is_some());
        if let Some(angles) = &angles {
            angles.check(self.position_limit, self.shape.head_dim);
        }
        if let Some(tables) = &buffers.tables {
            let scratch = (scratch.classes.as_mut()).expect("a scratch for layers with tables");
            let task = ClassAttention {
                shape: self.shape,
                scale,
                queries,
                keys: &buffers.keys,
                values: &buffers.values,
                first_rows: &buffers.first_rows,
                rows: &buffers.rows,
                classes: &tables.classes,
                norms: &tables.norms,
                entries: &buffers.entries,
                capacity: tables.capacity,
                angles,
            };
            // SAFETY: rows, entries and classes were checked when they were staged and sent.
            return unsafe { device.class_attention(&task, scratch, output) };
        }
        let ranks = buffers.ranks.as_ref().map(Indices::buffer).zip(angles);
        let ranks = ranks.map(|(ranks, angles)| Ranks { ranks, angles });
        let task = DecodeAttention {
            shape: self.shape,
            scale,
            queries,
            keys: &buffers.keys,
            values: &buffers.values,
            first_rows: &buffers.first_rows,
            rows: &buffers.rows,
            physical_rows: buffers.physical_rows.as_ref(),
            ranks,
        };
        // SAFETY: rows and ranks were checked when they were staged.
        unsafe { device.decode_attention(&task, &mut scratch.rows, output) }
    }
}
