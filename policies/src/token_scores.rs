//! Methods that rank tokens: one number per kv head and token, the largest are kept. What the wrappers build on.
//!
//! Not here: any score. Methods whose unit is a chunk, a block or a tree have no such numbers and are no part of this.

use crate::heads::par_map;
use crate::{
    Observation, Policy, PolicyError, Pos, PromptShape, Retention, ScoreCacheKey, top_positions,
};

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

impl Protected {
    /// Of a method that scores the document alone: the first `sinks` tokens, the last `recent`, and all that stands behind the document.
    /// Fails where `budget` rows do not hold these and one token that was chosen.
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

    /// Who gives such scores, with all `settings` that they depend on; nobody where they reach into what stands behind the document.
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

/// The first `end` scores of each head, where they are known.
pub(crate) fn known_scores(observation: &Observation<'_>, end: usize) -> Option<Vec<Vec<f32>>> {
    let heads = observation.scored?.chunks_exact(observation.tokens);
    Some(heads.map(|head| head[..end].to_vec()).collect())
}

/// A method that gives every token of every kv head a number of its own.
pub trait TokenScores: Policy {
    /// What is kept besides. Called after `rows`.
    fn protected(&self) -> Protected;

    /// `[kv_heads][n - recent]`: the scores; those of the sinks do not matter.
    fn token_scores(&self, observation: &Observation<'_>) -> Vec<Vec<f32>>;
}

/// Of every head the `rows(head)` best tokens among a prompt of `n`, by its `scores [n - recent]`.
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
