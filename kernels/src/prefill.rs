//! Causal attention of a chunk of prompt rows over all rows up to each of them.
//!
//! Not for answering token by token (see `decode.rs`), and it knows nothing of compression: the rows of the stores are
//! the positions of the text.

use crate::{HeadShape, RowStore, Stop, Stopped, reference};

/// Attention of the prompt rows `first..first + rows` over positions `0..=` their own.
///
/// ```text
/// first = 2, rows = 3        key row == position
///            0 1 2 3 4
/// query 2    x x x
/// query 3    x x x x
/// query 4    x x x x x
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PrefillAttention<'a> {
    /// Heads of the layer.
    pub shape: HeadShape,
    /// Factor on the dot products, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// `[rows, q_heads, head_dim]`, already rotated.
    pub queries: &'a [f32],
    /// Position of the first query row.
    pub first: usize,
    /// Rotated keys; rows `0..first + rows` of each head are valid, row == position.
    pub keys: &'a RowStore,
    /// Values, row == position.
    pub values: &'a RowStore,
}

impl PrefillAttention<'_> {
    /// Number of query rows.
    pub fn rows(&self) -> usize {
        self.queries.len() / (self.shape.q_heads * self.shape.head_dim)
    }

    fn check(&self, out: &[f32], log_sum_exp: Option<&[f32]>) {
        let (shape, rows) = (&self.shape, self.rows());
        shape.check_rows("queries", self.queries, rows);
        shape.check_rows("out", out, rows);
        shape.check_store("keys", self.keys, |_| self.first + rows);
        shape.check_store("values", self.values, |_| self.first + rows);
        if let Some(log_sum_exp) = log_sum_exp {
            assert_eq!(
                log_sum_exp.len(),
                shape.q_heads * rows,
                "log_sum_exp must be [q_heads {}, rows {rows}]",
                shape.q_heads
            );
        }
    }
}

/// Writes `out [rows, q_heads, head_dim]` and, if asked, the natural logarithm of each row's sum of
/// `exp(scale * query . key)`: `log_sum_exp [q_heads, rows]`.
pub fn prefill_attention(
    task: &PrefillAttention<'_>,
    out: &mut [f32],
    log_sum_exp: Option<&mut [f32]>,
    stop: &Stop,
) -> Result<(), Stopped> {
    task.check(out, log_sum_exp.as_deref());
    stop.check()?;
    reference::prefill_attention(task, out, log_sum_exp);
    Ok(())
}
