//! Scratch buffers of one prefill on the host, allocated before it begins.

use kept_kernels::{HeadShape, RowStore};

use crate::observe::Measured;
use crate::plan::PrefillPlan;

/// Scratch buffers for one layer, reused for all layers.
pub(super) struct Scratch {
    /// `[n]` rows per KV head, or more if a reconstruction is appended to the document.
    pub(super) keys: RowStore,
    /// As `keys`.
    pub(super) values: RowStore,
    /// `[chunk, q_heads, head_dim]`
    pub(super) q: Vec<f32>,
    /// `[chunk, kv_heads, head_dim]`
    pub(super) k: Vec<f32>,
    /// `[chunk, kv_heads, head_dim]`
    pub(super) v: Vec<f32>,
    /// `[chunk, q_heads, head_dim]`
    pub(super) attention: Vec<f32>,
    /// `[w, q_heads, head_dim]`: rotated queries of the observation window, if any.
    pub(super) window_queries: Vec<f32>,
    /// `[q_heads, n]`: attention of the observation window.
    pub(super) window_scores: Vec<f32>,
    /// `[q_heads, n]`: attention of all rows, if a method needs it.
    pub(super) column_sums: Vec<f32>,
    /// `[q_heads, chunk]`: log-sum-exp of one chunk's rows, if a measurement needs it.
    pub(super) log_sum_exp: Vec<f32>,
    /// `[rows, head_dim]`: kept rows of one head before rounding.
    pub(super) gathered: Vec<f32>,
    /// Packed rows read from a vault; counted in the vault's memory.
    pub(super) packed: Vec<u8>,
    /// Measurements that only some methods need.
    pub(super) measured: Measured,
    /// Size of `measured` at its largest, plus other memory for some methods, in floats (4 bytes).
    pub(super) measured_floats: usize,
}

impl Scratch {
    /// Allocates the buffers for methods of these sizes on one prefill.
    pub(super) fn new(sizes: &[PrefillPlan], heads: HeadShape) -> Self {
        let rows = || RowStore::uniform(heads.kv_heads, sizes[0].layer_rows(), heads.head_dim);
        let most = |of: fn(&PrefillPlan) -> usize| sizes.iter().map(of).max().unwrap_or(0);
        Self {
            keys: rows(),
            values: rows(),
            q: vec![0.0; most(PrefillPlan::q)],
            k: vec![0.0; most(PrefillPlan::kv)],
            v: vec![0.0; most(PrefillPlan::kv)],
            attention: vec![0.0; most(PrefillPlan::q)],
            window_queries: Vec::with_capacity(most(PrefillPlan::window_queries)),
            window_scores: Vec::with_capacity(most(PrefillPlan::window_scores)),
            column_sums: Vec::with_capacity(most(PrefillPlan::column_sums)),
            log_sum_exp: vec![0.0; most(PrefillPlan::log_sum_exp)],
            gathered: Vec::with_capacity(most(PrefillPlan::gathered)),
            packed: Vec::new(),
            measured: Measured::default(),
            measured_floats: most(|sizes| sizes.measured() + sizes.other_scratch()),
        }
    }

    /// Bytes of all buffers except `keys` and `values`.
    pub(super) fn bytes(&self) -> u64 {
        let floats = self.q.len()
            + self.k.len()
            + self.v.len()
            + self.attention.len()
            + self.window_queries.capacity()
            + self.window_scores.capacity()
            + self.column_sums.capacity()
            + self.log_sum_exp.len()
            + self.gathered.capacity()
            + self.measured_floats;
        (floats * size_of::<f32>()) as u64
    }
}
