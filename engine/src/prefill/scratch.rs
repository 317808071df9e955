//! The buffers of one reading, made before it begins.

use kept_kernels::{HeadShape, RowStore};

use crate::observe::Measured;
use crate::sizes::Sizes;

/// The scratch of one layer's pass, made once.
pub(super) struct Scratch {
    /// `[n]` rows per kv head, or more where the document is repeated behind itself.
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
    /// `[w, q_heads, head_dim]`: the rotated queries of the observation window, if there is one.
    pub(super) window_queries: Vec<f32>,
    /// `[q_heads, n]`: what the window sees.
    pub(super) window_scores: Vec<f32>,
    /// `[q_heads, n]`: what all rows see, where a method asks for it.
    pub(super) column_sums: Vec<f32>,
    /// `[q_heads, chunk]`: log-sum-exp of the rows of one chunk, for what is measured of them.
    pub(super) log_sum_exp: Vec<f32>,
    /// `[rows, head_dim]`: one head's kept rows before they are rounded.
    pub(super) gathered: Vec<f32>,
    /// Rows of a vault on their way; the vault's ledger has them.
    pub(super) packed: Vec<u8>,
    /// What only some methods ask for.
    pub(super) measured: Measured,
    /// Floats (4 bytes) of `measured` at its largest, and of what is held outside of this for some methods.
    pub(super) measured_floats: usize,
}

impl Scratch {
    /// Buffers for methods of these sizes, which cut the same reading.
    pub(super) fn new(sizes: &[Sizes], heads: HeadShape) -> Self {
        let rows = || RowStore::uniform(heads.kv_heads, sizes[0].layer_rows(), heads.head_dim);
        let most = |of: fn(&Sizes) -> usize| sizes.iter().map(of).max().unwrap_or(0);
        Self {
            keys: rows(),
            values: rows(),
            q: vec![0.0; most(Sizes::q)],
            k: vec![0.0; most(Sizes::kv)],
            v: vec![0.0; most(Sizes::kv)],
            attention: vec![0.0; most(Sizes::q)],
            window_queries: Vec::with_capacity(most(Sizes::window_queries)),
            window_scores: Vec::with_capacity(most(Sizes::window_scores)),
            column_sums: Vec::with_capacity(most(Sizes::column_sums)),
            log_sum_exp: vec![0.0; most(Sizes::log_sum_exp)],
            gathered: Vec::with_capacity(most(Sizes::gathered)),
            packed: Vec::new(),
            measured: Measured::default(),
            measured_floats: most(|sizes| sizes.measured() + sizes.beside()),
        }
    }

    /// Bytes of all of it but keys and values.
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
