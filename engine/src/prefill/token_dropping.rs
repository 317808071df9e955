//! Positions of the residual stream's rows, for methods that drop tokens from the computation of later layers.
//!
//! ```text
//! prompt      0 1 2 3 4 5        alive = [0, 2, 5]: row 1 of the stream, and of the next layer's keys, is token 2
//! stream      0 2 5
//! ```
//!
//! A row index is then different from a position: RoPE, the cache and the map use positions, policies use
//! ranks among the surviving tokens.

/// The tokens that entered a layer; empty if none was dropped.
#[derive(Debug, Default)]
pub(super) struct SurvivingTokens(Option<Vec<u32>>);

impl SurvivingTokens {
    /// Position of every row, ascending; `None` if row i is position i.
    pub(super) fn positions(&self) -> Option<&[u32]> {
        self.0.as_deref()
    }

    /// Keeps only the rows `passed` (ascending).
    pub(super) fn retain(&mut self, passed: &[u32]) {
        assert!(
            passed.is_sorted_by(|a, b| a < b),
            "rows that pass on ascend without repeats"
        );
        self.0 = Some(match self.0.take() {
            None => passed.to_vec(),
            Some(alive) => passed.iter().map(|&row| alive[row as usize]).collect(),
        });
    }
}
