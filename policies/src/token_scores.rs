//! Methods that rank tokens: one score per KV head and token; the highest are kept. The wrappers build on this.
//!
//! This module computes no scores. Methods whose unit is a chunk, a block or a tree have no token scores.

use crate::heads::par_map;
use crate::{
    Observation, Policy, PolicyError, Pos, PromptShape, Retention, ScoreCacheKey, top_positions,
};

/// The first and last tokens of a prompt, which a method keeps whatever their scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Protected {
    /// Number of first tokens.
    pub sinks: usize,
    /// Number of last tokens.
    pub recent: usize,
}

impl Protected {
    /// Positions of the tokens that compete, in a prompt of `n` tokens.
    pub(crate) fn between(&self, n: usize) -> std::ops::Range<usize> {
        let end = n.saturating_sub(self.recent);
        self.sinks.min(end)..end
    }
}

impl Protected {
    /// The protected tokens of a method that scores only the document: the first `sinks` tokens, the last `recent`, and
    /// all tokens after the document.
    ///
    /// # Errors
    /// [`PolicyError::BudgetTooSmall`] if `budget` rows do not hold these tokens and one selected token.
    pub(crate) fn around_document(
        method: &'static str,
        prompt: &PromptShape,
        (sinks, recent): (usize, usize),
        budget: usize,
    ) -> Result<Self, PolicyError> {
        let recent = recent.max(prompt.after).min(prompt.tokens);
        let needed = recent.saturating_add(sinks).saturating_add(1);
        if budget < needed && budget < prompt.tokens {
            let behind = match prompt.after {
                0 => "last tokens",
                after if after < recent => "last tokens, the question among them",
                _ => "tokens behind the document, the question's",
            };
            return Err(PolicyError::BudgetTooSmall {
                method,
                rows: budget,
                needed,
                why: format!("{sinks} sinks, {recent} {behind}, and 1 selected token"),
                tokens: prompt.tokens,
            });
        }
        Ok(Self { sinks, recent })
    }

    /// Key of the query-agnostic scores of `method` with all `settings` on which they depend; `None` if the competing
    /// range does not end with the document or nothing follows the document.
    pub(crate) fn query_agnostic(
        &self,
        method: &str,
        prompt: &PromptShape,
        settings: std::fmt::Arguments<'_>,
    ) -> Option<ScoreCacheKey> {
        let ends = prompt.after > 0 && self.recent == prompt.after;
        ends.then(|| ScoreCacheKey::of(method, settings))
    }
}

/// The first `end` cached scores of each head, if there are any.
pub(crate) fn known_scores(observation: &Observation<'_>, end: usize) -> Option<Vec<Vec<f32>>> {
    let heads = observation.scored?.chunks_exact(observation.tokens);
    Some(heads.map(|head| head[..end].to_vec()).collect())
}

/// A method that gives every token of every KV head a score of its own.
pub trait TokenScores: Policy {
    /// The tokens that are always kept. Called after `rows`.
    fn protected(&self) -> Protected;

    /// `[kv_heads][n - recent]`: the scores; those of the sinks are ignored.
    fn token_scores(&self, observation: &Observation<'_>) -> Vec<Vec<f32>>;
}

/// Keeps the `rows(head)` top tokens of every head in a prompt of `n` tokens, by its `scores [n - recent]`.
pub(crate) fn keep_best_of_each(
    scores: Vec<Vec<f32>>,
    n: usize,
    protected: Protected,
    rows: impl Fn(usize) -> usize + Sync,
) -> Retention {
    Retention::Keep(par_map(scores, n, |head, scores| {
        keep_best(scores, n, protected, rows(head))
    }))
}

/// The positions, ascending, that one head keeps of a prompt of `n` tokens: the protected tokens and the highest of
/// `scores [n - recent]`, `rows` in total.
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
