//! Methods that rank tokens: one number per kv head and token, the largest are kept. What the wrappers build on.
//!
//! Not here: any score. Methods whose unit is a chunk, a block or a tree have no such numbers and are no part of this.

use crate::{Observation, Policy, Pos, top_positions};

/// The ends of a prompt that a method keeps whatever their score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Protected {
    /// First tokens.
    pub sinks: usize,
    /// Last tokens.
    pub recent: usize,
}

impl Protected {
    /// Tokens of a prompt of `n` that compete, as positions.
    pub(crate) fn between(&self, n: usize) -> std::ops::Range<usize> {
        let end = n.saturating_sub(self.recent);
        self.sinks.min(end)..end
    }
}

/// A method that gives every token of every kv head a number of its own.
pub trait TokenScores: Policy {
    /// What is kept besides. Called after `rows`.
    fn protected(&self) -> Protected;

    /// `[kv_heads][n - recent]`: the scores; those of the sinks do not matter.
    fn token_scores(&self, observation: &Observation<'_>) -> Vec<Vec<f32>>;
}

/// The positions of the `rows` best tokens of one head among a prompt of `n`: the protected ends and the largest of `scores
/// [n - recent]`, ascending.
pub(crate) fn keep_best(
    mut scores: Vec<f32>,
    n: usize,
    protected: Protected,
    rows: usize,
) -> Vec<Pos> {
    let between = protected.between(n);
    scores.truncate(between.end);
    scores[..between.start].fill(f32::INFINITY);
    let best = top_positions(&scores, rows - (n - between.end));
    best.into_iter()
        .chain(between.end as u32..n as u32)
        .map(Pos)
        .collect()
}
