//! Attention of one new token over the rows that a compressed cache holds.
//!
//! Rows are an unordered set: there is no causal mask, every valid row is visible, and storage order does not matter.
//! Writing the new token's own key and value into its row is done before, by the caller.

use crate::{HeadShape, Pairing, RowStore, reference};

/// Keys stored before RoPE, and the position at which each is rotated when it is read.
///
/// For methods that re-assign positions after rows were dropped (StreamingLLM, TreeKV).
#[derive(Clone, Copy, Debug)]
pub struct Rotation<'a> {
    /// `[positions, rope_dim / 2]`
    pub cos: &'a [f32],
    /// `[positions, rope_dim / 2]`
    pub sin: &'a [f32],
    /// Leading elements of a row that are rotated, at most `head_dim`; the rest pass through.
    pub rope_dim: usize,
    /// Which elements form a pair.
    pub pairing: Pairing,
    /// Position of every row of capacity: row `r` of kv head `h` is entry `keys.first_row(h) + r`.
    pub ranks: &'a [u32],
}

/// Attention of one query row over `rows[h]` rows of each kv head.
#[derive(Clone, Copy, Debug)]
pub struct DecodeAttention<'a> {
    /// Heads of the layer.
    pub shape: HeadShape,
    /// Factor on the dot products, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// `[q_heads, head_dim]`, rotated.
    pub query: &'a [f32],
    /// Keys: rotated, or raw when `rotation` is given.
    pub keys: &'a RowStore,
    /// Values, in the same rows as their keys.
    pub values: &'a RowStore,
    /// Valid rows per kv head, at least 1 each. `[kv_heads]`
    pub rows: &'a [usize],
    /// `Some`: the stored keys are raw and each is rotated as it is read.
    pub rotation: Option<Rotation<'a>>,
}

impl DecodeAttention<'_> {
    fn check(&self, scratch: &DecodeScratch, out: &[f32]) {
        let shape = &self.shape;
        assert_eq!(
            *shape, scratch.shape,
            "the scratch was made for other heads"
        );
        assert_eq!(self.rows.len(), shape.kv_heads, "rows must be [kv_heads]");
        shape.check_rows("query", self.query, 1);
        shape.check_rows("out", out, 1);
        shape.check_store("keys", self.keys, |h| self.rows[h]);
        shape.check_store("values", self.values, |h| self.rows[h]);
        for (h, &rows) in self.rows.iter().enumerate() {
            assert!(
                0 < rows && rows <= scratch.max_rows,
                "kv head {h} has {rows} rows, the scratch was made for 1..={}",
                scratch.max_rows
            );
        }
    }
}

/// All memory of [`decode_attention`], made once before the first token and shared by all layers.
#[derive(Clone, Debug)]
pub struct DecodeScratch {
    shape: HeadShape,
    /// Most rows of any kv head.
    max_rows: usize,
    /// `[q_heads, max_rows]`
    probabilities: Vec<f32>,
    /// Valid rows of each kv head in the last call. `[kv_heads]`
    rows: Vec<usize>,
}

impl DecodeScratch {
    /// Room for `max_rows` rows in every kv head. `threads` is a hint: results never depend on it.
    pub fn new(shape: HeadShape, max_rows: usize, threads: usize) -> Self {
        let _ = threads;
        Self {
            shape,
            max_rows,
            probabilities: vec![0.0; shape.q_heads * max_rows],
            rows: vec![0; shape.kv_heads],
        }
    }

    /// Probabilities of query head `h` in the last call, one per valid row of its kv head, in storage order.
    pub fn probabilities(&self, q_head: usize) -> &[f32] {
        &self.probabilities[q_head * self.max_rows..][..self.rows[q_head / self.shape.group()]]
    }

    /// Bytes held, for the memory ledger.
    pub fn bytes(&self) -> usize {
        size_of_val(self.probabilities.as_slice())
    }
}

/// Writes `out [q_heads, head_dim]`, and the probabilities into `scratch`. Allocates nothing.
pub fn decode_attention(task: &DecodeAttention<'_>, scratch: &mut DecodeScratch, out: &mut [f32]) {
    task.check(scratch, out);
    scratch.rows.copy_from_slice(task.rows);
    let mut probabilities = vec![Vec::new(); task.shape.q_heads];
    reference::decode_attention(task, out, &mut probabilities);
    for (h, row) in probabilities.iter().enumerate() {
        scratch.probabilities[h * scratch.max_rows..][..row.len()].copy_from_slice(row);
    }
}
