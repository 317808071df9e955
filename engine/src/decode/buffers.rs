//! The host buffers of the decode loop, allocated once.

use kept_models::{Model, RowScratch};
use kept_policies::Row;

use super::attention::AttentionScratch;

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
    pub(super) evictions: EvictionScratch,
    /// Scratch inside the layer: norm, MLP.
    pub(super) row: RowScratch,
    pub(super) attend: AttentionScratch,
}

/// A method's choice of rows to evict from a layer after a token.
pub(super) struct EvictionScratch {
    /// `[kv_heads]`: one row of each head, if any.
    pub(super) evict: Vec<Option<Row>>,
    /// `[slots of the largest layer]`: whether each row stays.
    pub(super) keep: Vec<bool>,
}

impl Buffers {
    /// Buffers for up to `max_rows` rows per KV head, and class tables of up to `max_entries`.
    pub(super) fn new(model: &Model, max_rows: usize, max_entries: usize) -> Self {
        let config = model.config();
        let (q_width, kv_width) = (config.q_width(), config.kv_width());
        Self {
            residual: vec![0.0; config.width],
            q: vec![0.0; q_width],
            k: vec![0.0; kv_width],
            v: vec![0.0; kv_width],
            attention: vec![0.0; q_width],
            logits: vec![0.0; config.vocab],
            evictions: EvictionScratch {
                evict: vec![None; config.kv_heads],
                keep: vec![true; config.kv_heads * max_rows],
            },
            row: RowScratch::new(config),
            attend: AttentionScratch::new(model, max_rows, max_entries),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        let floats = self.residual.len()
            + self.q.len()
            + self.k.len()
            + self.v.len()
            + self.attention.len()
            + self.logits.len();
        (floats * size_of::<f32>() + self.evictions.keep.len() + self.attend.bytes()) as u64
            + self.row.bytes()
    }
}

/// Bytes of a decode loop's buffers for up to `max_rows` rows and `max_entries` table entries per KV head.
/// The buffers are allocated to measure them; untouched zeroed memory is not committed.
pub(crate) fn scratch_bytes(model: &Model, max_rows: usize, max_entries: usize) -> u64 {
    Buffers::new(model, max_rows, max_entries).bytes()
}
