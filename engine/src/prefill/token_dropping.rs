//! Fewer rows in the next layer: what a method that drops tokens from the computation leaves of the residual stream.
//!
//! ```text
//! prompt      0 1 2 3 4 5        alive = [0, 2, 5]: row 1 of the stream, and of the next layer's keys, is token 2
//! stream      0 2 5
//! ```
//!
//! A row is then no position any more: RoPE, the cache and the map speak of positions, policies of ranks among those that entered.

use kept_policies::{Pos, Retention};

/// The tokens that entered a layer, where some did not.
#[derive(Debug, Default)]
pub(super) struct SurvivingTokens(Option<Vec<u32>>);

impl SurvivingTokens {
    /// The position of every row, ascending; `None` where row i is position i.
    pub(super) fn positions(&self) -> Option<&[u32]> {
        self.0.as_deref()
    }

    /// Only the rows `passed` (ascending) are left, of the stream `residual [rows, width]` too.
    pub(super) fn surviving_tokens(
        &mut self,
        passed: &[u32],
        residual: &mut Vec<f32>,
        width: usize,
    ) {
        assert!(
            passed.is_sorted_by(|a, b| a < b),
            "rows that pass on ascend without repeats"
        );
        for (to, &from) in passed.iter().enumerate() {
            let from = from as usize * width;
            residual.copy_within(from..from + width, to * width);
        }
        residual.truncate(passed.len() * width);
        self.0 = Some(match self.0.take() {
            None => passed.to_vec(),
            Some(alive) => passed.iter().map(|&row| alive[row as usize]).collect(),
        });
    }

    /// What a layer keeps, in positions of the prompt.
    pub(super) fn at_positions(&self, retention: Retention, kv_heads: usize) -> Retention {
        let Some(alive) = self.positions() else {
            return retention;
        };
        let at = |row: &Pos| Pos(alive[row.0 as usize]);
        match retention {
            Retention::Everything => {
                let all: Vec<Pos> = alive.iter().copied().map(Pos).collect();
                Retention::Keep(vec![all; kv_heads])
            }
            Retention::Keep(heads) => {
                let heads = heads.iter().map(|head| head.iter().map(at).collect());
                Retention::Keep(heads.collect())
            }
            Retention::Merge(_) => unreachable!("no method merges and drops tokens on the way"),
        }
    }
}
