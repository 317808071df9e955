//! Per-row measures for selection methods: log-sum-exp, column sums with a known log-sum-exp, marks for low scores, and
//! the probabilities of each row.
//!
//! All are passes (`reduction.rs`) over tiles of 64 rows; except for the probabilities, nothing of size `rows x tokens`
//! is ever allocated. The mean over an observation window is [`crate::window_scores`]; the selection is in
//! `kept-policies`.

use crate::reduction::{ROWS, Reduction};
use crate::threads::SharedMut;
use crate::window::{visit_columns, write_log_sum_exp};
use crate::{HeadShape, Normalise, RowStore, Scale, Stop, Stopped, WindowScores};

/// The last rows of the prompt read so far, and the keys of all positions up to them.
///
/// ```text
/// tokens = 5, 2 rows          key row == position
///          0 1 2 3 4
/// query 3  x x x x
/// query 4  x x x x x
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LastRows<'a> {
    /// Heads of the layer.
    pub shape: HeadShape,
    /// Converts dot products to logits.
    pub scale: Scale<'a>,
    /// `[rows, q_heads, head_dim]`, rotated: the rows at positions `tokens - rows..tokens`.
    pub queries: &'a [f32],
    /// Rotated keys; rows `0..tokens` of each head are valid, row == position.
    pub keys: &'a RowStore,
    /// Tokens read so far.
    pub tokens: usize,
}

impl<'a> LastRows<'a> {
    /// Number of query rows.
    pub fn rows(&self) -> usize {
        self.queries.len() / (self.shape.q_heads * self.shape.head_dim)
    }

    /// The newest `rows` of these rows.
    pub fn newest(&self, rows: usize) -> Self {
        let width = self.shape.q_heads * self.shape.head_dim;
        Self {
            queries: &self.queries[self.queries.len() - rows * width..],
            ..*self
        }
    }

    /// These rows as an observation window: the mean of the rows, over all keys.
    pub fn window(&self) -> WindowScores<'a> {
        WindowScores {
            shape: self.shape,
            scale: self.scale,
            queries: self.queries,
            keys: self.keys,
            tokens: self.tokens,
            normalise: Normalise::All,
            row_weights: None,
            log_sum_exp: &[],
        }
    }

    /// Panics unless queries and keys fit and `log_sum_exp` is `[q_heads, rows]`.
    fn check(&self, log_sum_exp: &[f32]) {
        let (shape, rows) = (&self.shape, self.rows());
        self.window().check_inputs();
        assert_eq!(
            log_sum_exp.len(),
            shape.q_heads * rows,
            "log_sum_exp must be [q_heads {}, rows {rows}]",
            shape.q_heads
        );
    }
}

/// Writes `log_sum_exp [q_heads, rows]`: the natural logarithm of each row's sum of `exp(scale * query . key)`. Only
/// for rows whose attention is not computed anyway: [`crate::prefill_attention`] also returns the log-sum-exp.
///
/// # Errors
/// [`Stopped`], after [`Stop::request`].
pub fn log_sum_exp(
    task: &LastRows<'_>,
    log_sum_exp: &mut [f32],
    stop: &Stop,
) -> Result<(), Stopped> {
    task.check(log_sum_exp);
    stop.check()?;
    write_log_sum_exp(&task.window(), log_sum_exp, stop)
}

/// Adds the causal softmax probabilities of each key, summed over the rows, to the first `tokens` columns of `sums
/// [q_heads, columns]`. `log_sum_exp [q_heads, rows]` is the log-sum-exp of the rows.
///
/// One pass over the keys: a dot product and one exponential per row and visible key. A prompt can be added chunk by
/// chunk.
///
/// # Errors
/// [`Stopped`], after [`Stop::request`].
pub fn add_column_sums(
    task: &LastRows<'_>,
    log_sum_exp: &[f32],
    sums: &mut [f32],
    stop: &Stop,
) -> Result<(), Stopped> {
    task.check(log_sum_exp);
    let columns = sums.len() / task.shape.q_heads;
    assert!(
        sums.len() == columns * task.shape.q_heads && task.tokens <= columns,
        "sums must be [q_heads {}, columns], at least {} columns, not {} numbers",
        task.shape.q_heads,
        task.tokens,
        sums.len()
    );
    stop.check()?;
    let reduction = Reduction::AddProbabilities {
        candidates: None,
        log_sum_exp,
        row_weight: 1.0,
        stride: columns,
        out: SharedMut::new(sums),
    };
    visit_columns(&task.window(), &reduction, stop)
}

/// Writes the causal softmax probability of each key for each row to `out [rows, q_heads, stride]`: for row i the first
/// `tokens - rows + i + 1` columns; the columns after them are unchanged. `log_sum_exp [q_heads, rows]` is the
/// log-sum-exp of the rows.
///
/// For methods that decide token by token. Pass few rows at a time, because the result has `rows x tokens` numbers per
/// query head.
///
/// # Errors
/// [`Stopped`], after [`Stop::request`].
pub fn row_probabilities(
    task: &LastRows<'_>,
    log_sum_exp: &[f32],
    stride: usize,
    out: &mut [f32],
    stop: &Stop,
) -> Result<(), Stopped> {
    task.check(log_sum_exp);
    let (rows, q_heads) = (task.rows(), task.shape.q_heads);
    assert!(
        out.len() == rows * q_heads * stride && task.tokens <= stride,
        "out must be [rows {rows}, q_heads {q_heads}, stride], at least {} numbers, not {}",
        rows * q_heads * task.tokens,
        out.len()
    );
    stop.check()?;
    let reduction = Reduction::WriteProbabilities {
        log_sum_exp,
        stride,
        out: SharedMut::new(out),
    };
    visit_columns(&task.window(), &reduction, stop)
}

/// Number of u64 words that hold one bit for each of `rows` rows.
pub fn words(rows: usize) -> usize {
    rows.div_ceil(ROWS)
}

/// Writes `bits [kv_heads, tokens, words]`: bit i of a key's words is set if row i gives the key less than the average
/// probability of its visible keys, `1 / t` for a row that sees t keys. Probabilities are first averaged over the heads
/// of the group. A row that cannot see a key leaves its bit 0.
///
/// # Errors
/// [`Stopped`], after [`Stop::request`].
pub fn mark_below_average(
    task: &LastRows<'_>,
    bits: &mut [u64],
    stop: &Stop,
) -> Result<(), Stopped> {
    let (shape, rows) = (&task.shape, task.rows());
    let mut known = vec![0.0; shape.q_heads * rows];
    log_sum_exp(task, &mut known, stop)?;
    let words = words(rows);
    assert_eq!(
        bits.len(),
        shape.kv_heads * task.tokens * words,
        "bits must be [kv_heads {}, tokens {}, words {words}]",
        shape.kv_heads,
        task.tokens
    );
    // A tile of rows skips the keys after its last row, so their words must be cleared first.
    bits.fill(0);
    let reduction = Reduction::MarkBelowAverage {
        log_sum_exp: &known,
        words,
        bits: SharedMut::new(bits),
    };
    visit_columns(&task.window(), &reduction, stop)
}
