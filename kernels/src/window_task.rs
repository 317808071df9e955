//! The input of a pass of the observation window over the keys.

use std::ops::Range;

use crate::{HeadShape, RowStore, Scale};

/// The keys over which the softmax of [`window_scores`](crate::window_scores) sums to 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Normalise {
    /// All visible keys, causal inside the window.
    All,
    /// Only the keys before the window (HBW-KV, equation 3 as printed); the window's own columns are 0.
    Prefix,
}

/// Attention probabilities of the last `w` of `tokens` prompt rows.
///
/// ```text
/// tokens = 5, w = 2 (rows 3 and 4)      out[j] = weight[0] * p(3, j) + weight[1] * p(4, j)
///          0 1 2 3 4
/// query 3  p p p p .
/// query 4  p p p p p
/// ```
#[derive(Clone, Copy, Debug)]
pub struct WindowScores<'a> {
    /// Heads of the layer.
    pub shape: HeadShape,
    /// Converts dot products to logits.
    pub scale: Scale<'a>,
    /// `[w, q_heads, head_dim]`, rotated: the rows at positions `tokens - w..tokens`.
    pub queries: &'a [f32],
    /// Rotated keys; rows `0..tokens` of each head are valid, row == position.
    pub keys: &'a RowStore,
    /// Prompt length n.
    pub tokens: usize,
    /// The keys over which the softmax of a row sums.
    pub normalise: Normalise,
    /// `[w]`, not normalised; `None` for `1 / w` each, the mean.
    pub row_weights: Option<&'a [f32]>,
    /// `[q_heads, k]`, for any k: the log-sum-exp of the last k rows from
    /// [`prefill_attention`](crate::prefill_attention), which is then not computed again. Ignored unless the softmax
    /// sums over all keys.
    pub log_sum_exp: &'a [f32],
}

impl WindowScores<'_> {
    /// Number of query rows, w.
    pub fn rows(&self) -> usize {
        self.queries.len() / (self.shape.q_heads * self.shape.head_dim)
    }

    /// Panics unless queries and keys match.
    pub(crate) fn check_inputs(&self) {
        let (shape, rows, tokens) = (&self.shape, self.rows(), self.tokens);
        shape.check_rows("queries", self.queries, rows);
        assert!(
            0 < rows && rows <= tokens,
            "a window of {rows} rows in a prompt of {tokens} tokens"
        );
        shape.check_store("keys", self.keys, |_| tokens);
        assert!(
            self.log_sum_exp.len().is_multiple_of(shape.q_heads),
            "log_sum_exp must be [q_heads {}, k]",
            shape.q_heads
        );
    }

    pub(crate) fn check(&self, out: &[f32]) {
        let (shape, rows, tokens) = (&self.shape, self.rows(), self.tokens);
        self.check_inputs();
        assert_eq!(
            out.len(),
            shape.q_heads * tokens,
            "out must be [q_heads {}, tokens {tokens}]",
            shape.q_heads
        );
        if let Some(row_weights) = self.row_weights {
            assert_eq!(row_weights.len(), rows, "row_weights must be [w {rows}]");
        }
    }

    pub(crate) fn check_columns(&self, columns: &Range<usize>, out: &[f32]) {
        let (shape, rows, tokens) = (&self.shape, self.rows(), self.tokens);
        shape.check_rows("queries", self.queries, rows);
        shape.check_store("keys", self.keys, |_| tokens);
        assert!(
            0 < rows && rows <= tokens && columns.start <= columns.end && columns.end <= tokens,
            "columns {columns:?} of a window of {rows} rows in a prompt of {tokens} tokens"
        );
        assert_eq!(
            out.len(),
            shape.q_heads * columns.len(),
            "out must be [q_heads {}, columns {}]",
            shape.q_heads,
            columns.len()
        );
    }

    /// Number of keys visible to any of the first `rows` window rows.
    pub(crate) fn keys_of_rows(&self, rows: usize) -> usize {
        let prefix = self.tokens - self.rows();
        match self.normalise {
            Normalise::All => prefix + rows,
            Normalise::Prefix => prefix,
        }
    }

    /// Last key visible to window row `row`; requires a non-empty prefix.
    pub(crate) fn last_key(&self, row: usize) -> usize {
        self.keys_of_rows(row + 1) - 1
    }
}
