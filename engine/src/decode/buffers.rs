//! The host buffers of the decode loop, allocated once.

use kept_kernels::{ClassScratch, DecodeScratch};
use kept_models::{Model, RowScratch};
use kept_policies::Row;

use crate::shape::head_shape;

/// All host buffers of the decode loop.
pub(super) struct Buffers {
    /// `[width]`
    pub(super) residual: Vec<f32>,
    /// `[q_heads, head_dim]`
    pub(super) q: Vec<f32>,
    /// `[kv_heads, head_dim]`
    pub(super) k: Vec<f32>,
    /// `[kv_heads, head_dim]`
    pub(super) v: Vec<f32>,
    /// `[q_heads, head_dim]`
    pub(super) attention: Vec<f32>,
    /// `[vocab]`
    pub(super) logits: Vec<f32>,
    /// `[kv_heads]`
    pub(super) evict: Vec<Option<Row>>,
    /// `[slots of the largest layer]`
    pub(super) keep: Vec<bool>,
    /// Scratch inside the layer: norm, MLP.
    pub(super) row: RowScratch,
    /// `[q_heads, slots of the largest head]` probabilities, and the splits' partial results.
    pub(super) attend: DecodeScratch,
    /// As `attend`, for layers where tokens share rows, if the method merges.
    pub(super) by_table: Option<ClassScratch>,
}

impl Buffers {
    /// Buffers for up to `max_rows` rows per KV head, and class tables of up to `max_entries`.
    pub(super) fn new(model: &Model, max_rows: usize, max_entries: usize) -> Self {
        let config = model.config();
        let (q_width, kv_width) = (config.q_width(), config.kv_width());
        let threads = kept_kernels::threads::count();
        Self {
            residual: vec![0.0; config.width],
            q: vec![0.0; q_width],
            k: vec![0.0; kv_width],
            v: vec![0.0; kv_width],
            attention: vec![0.0; q_width],
            logits: vec![0.0; config.vocab],
            evict: vec![None; config.kv_heads],
            keep: vec![true; config.kv_heads * max_rows],
            row: RowScratch::new(config),
            attend: DecodeScratch::new(head_shape(model), max_rows, threads),
            by_table: (max_entries > 0)
                .then(|| ClassScratch::new(head_shape(model), max_rows, max_entries)),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        let floats = self.residual.len()
            + self.q.len()
            + self.k.len()
            + self.v.len()
            + self.attention.len()
            + self.logits.len();
        let by_table = self.by_table.as_ref().map_or(0, ClassScratch::bytes);
        (floats * size_of::<f32>() + self.keep.len() + self.attend.bytes() + by_table) as u64
            + self.row.bytes()
    }
}

/// Bytes of a decode loop's buffers for up to `max_rows` rows and `max_entries` table entries per KV head.
/// The buffers are allocated to measure them; untouched zeroed memory is not committed.
pub(crate) fn scratch_bytes(model: &Model, max_rows: usize, max_entries: usize) -> u64 {
    Buffers::new(model, max_rows, max_entries).bytes()
}
