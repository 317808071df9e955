//! How much attention each token gets from the last rows of the prompt: the signal most selection methods rank by.
//!
//! Not the selection itself: no pooling over neighbours, no mean over the query group, no top-k (see `kept-policies`).
//! A window as long as the prompt gives the column sums of H2O and EMS, a window of one row the signal of TOVA.

use crate::{HeadShape, RowStore, Stop, Stopped, reference};

/// The keys over which the softmax of [`window_scores`] sums to 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Normalise {
    /// All visible keys, causal inside the window.
    All,
    /// The keys before the window only (HBW-KV, equation 3 as printed); the window's own columns come out as 0.
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
    /// Factor on the dot products, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// `[w, q_heads, head_dim]`, rotated: the rows at positions `tokens - w..tokens`.
    pub queries: &'a [f32],
    /// Rotated keys; rows `0..tokens` of each head are valid, row == position.
    pub keys: &'a RowStore,
    /// Prompt length n.
    pub tokens: usize,
    /// What the softmax of a row sums over.
    pub normalise: Normalise,
    /// `[w]`, used as they are; `None` is `1 / w` each, the mean.
    pub row_weights: Option<&'a [f32]>,
}

impl WindowScores<'_> {
    /// Number of query rows, w.
    pub fn rows(&self) -> usize {
        self.queries.len() / (self.shape.q_heads * self.shape.head_dim)
    }

    fn check(&self, out: &[f32]) {
        let (shape, rows, tokens) = (&self.shape, self.rows(), self.tokens);
        shape.check_rows("queries", self.queries, rows);
        assert!(
            0 < rows && rows <= tokens,
            "a window of {rows} rows in a prompt of {tokens} tokens"
        );
        shape.check_store("keys", self.keys, |_| tokens);
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
}

/// Writes `out [q_heads, tokens]`: the weighted sum over the window's rows of the causal softmax probability, in f32.
pub fn window_scores(task: &WindowScores<'_>, out: &mut [f32], stop: &Stop) -> Result<(), Stopped> {
    task.check(out);
    stop.check()?;
    reference::window_scores(task, out);
    Ok(())
}
