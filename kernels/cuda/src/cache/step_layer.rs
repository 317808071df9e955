//! [`StepLayer`]: one layer of a cache in a step that is captured once and replayed.

use half::f16;
use kept_kernels::{HeadShape, Scale};

use super::Tables;
use crate::step::StepTarget;
use crate::{
    Angles, Buffer, ClassAttention, ClassScratch, DecodeAttention, DecodeOutput, DecodeScratch,
    Device, DeviceError, Indices, KeptRows, Ranks, StepHeads,
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
    /// `[slots]`, if keys are stored before RoPE
    pub(super) ranks: Option<Buffer<u32>>,
    /// `[kv_heads]`
    pub(super) query_positions: Buffer<u32>,
    pub(super) tables: Option<Tables>,
    /// `[kv_heads]`
    pub(super) entries: Buffer<u32>,
    /// `[1]`
    pub(super) position: Buffer<u32>,
    /// `[2, kv_heads, head_dim]`, if the host needs the new rows
    pub(super) copies: Option<Buffer<f16>>,
    /// Slots of the largest head.
    pub(super) capacity: Option<usize>,
    pub(super) reach: usize,
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
        let target = StepTarget {
            keys: &self.keys,
            values: &self.values,
            targets: &self.targets,
            position: &self.position,
            ranks: self.ranks.is_some().then_some(&self.query_positions),
            copies: self.copies.as_ref(),
            reach: self.reach,
        };
        // SAFETY: targets and positions were checked when they were staged.
        unsafe { device.step_heads(heads, &target, queries) }
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
        angles: Option<Angles<'_>>,
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
        let angles = angles.filter(|_| self.ranks.is_some());
        if let Some(angles) = &angles {
            angles.check(self.reach, self.shape.head_dim);
        }
        if let Some(tables) = &self.tables {
            let scratch = (scratch.classes.as_mut()).expect("a scratch for layers with tables");
            let task = ClassAttention {
                shape: self.shape,
                scale,
                queries,
                keys: &self.keys,
                values: &self.values,
                first_rows: &self.first_rows,
                rows: &self.rows,
                classes: &tables.classes,
                lengths: &tables.lengths,
                entries: &self.entries,
                capacity: tables.capacity,
                angles,
            };
            // SAFETY: rows, entries and classes were checked when they were staged and sent.
            return unsafe { device.class_attention(&task, scratch, output) };
        }
        let ranks =
            (self.ranks.as_ref().zip(angles)).map(|(ranks, angles)| Ranks { ranks, angles });
        let task = DecodeAttention {
            shape: self.shape,
            scale,
            queries,
            keys: &self.keys,
            values: &self.values,
            first_rows: &self.first_rows,
            rows: &self.rows,
            places: self.places.as_ref(),
            ranks,
        };
        // SAFETY: rows and ranks were checked when they were staged.
        unsafe { device.decode_attention(&task, &mut scratch.rows, output) }
    }
}
