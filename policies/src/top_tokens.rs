//! Selection of the tokens with the highest scores in every KV head: what a method does that only scores ([`Score`]).

use crate::parallel::par_map;
use crate::{
    Method, Observation, PolicyError, Pos, Protected, Retention, RowPlan, RowRequest, Score,
    ScoreCacheKey, Select, Selection, top_positions,
};

/// The state of a prompt under a method that only scores.
struct TopTokens<S>(S);

/// A method that only ranks tokens.
pub trait Ranking: Score + Clone + 'static {
    /// As [`Method::name`].
    const NAME: &'static str;

    /// As [`Method::plan`].
    ///
    /// # Errors
    /// As [`Method::plan`].
    fn plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError>;
}

impl<R: Ranking> Method for R {
    fn name(&self) -> &'static str {
        R::NAME
    }

    fn plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        Ranking::plan(self, request)
    }

    fn start(&self, _plan: &RowPlan) -> Box<dyn Select> {
        Box::new(TopTokens(self.clone()))
    }

    fn scorer(&self) -> Option<&dyn Score> {
        Some(self)
    }
}

impl<S: Score> Select for TopTokens<S> {
    fn select(&mut self, plan: &RowPlan, observation: &Observation<'_>) -> Selection {
        let rows = plan.rows[observation.layer];
        if observation.tokens <= rows {
            return Retention::Everything.into();
        }
        let scores = self.0.score(plan, observation);
        keep_top_k_per_head(scores, observation, plan.protected, |_| rows).into()
    }
}

/// Keeps the `rows(head)` top tokens of every head, by its `scores [n - recent]`.
pub(crate) fn keep_top_k_per_head(
    scores: Vec<Vec<f32>>,
    observation: &Observation<'_>,
    protected: Protected,
    rows: impl Fn(usize) -> usize + Sync,
) -> Retention {
    let n = observation.tokens;
    Retention::Keep(par_map(observation.threads, scores, n, |head, scores| {
        keep_top_k(scores, n, protected, rows(head))
    }))
}

/// The positions, ascending, that one head keeps of a prompt of `n` tokens: the protected tokens and the highest of
/// `scores [n - recent]`, `rows` in total.
pub(crate) fn keep_top_k(
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

/// Query-agnostic scores: only the document's tokens compete, so that they serve every question.
impl RowPlan {
    /// Always keeps the first `sinks` tokens, the last `recent`, and all tokens after the document.
    ///
    /// # Errors
    /// [`PolicyError::BudgetTooSmall`] if the budget does not hold these tokens and one selected token.
    pub(crate) fn protect_around_document(
        self,
        method: &'static str,
        sinks: usize,
        recent: usize,
    ) -> Result<Self, PolicyError> {
        let prompt = self.prompt;
        let recent = recent.max(prompt.after).max(prompt.kept_last);
        let recent = recent.min(prompt.tokens);
        let behind = match prompt.after {
            0 => "last tokens",
            after if after < recent => "last tokens, the question among them",
            _ => "tokens behind the document, the question's",
        };
        let why = || format!("{sinks} sinks, {recent} {behind}, and 1 selected token");
        self.protecting(sinks, recent)
            .require_protected_and_one(method, why)
    }

    /// Key of the query-agnostic scores of `method` with all `settings` on which they depend; `None` if the competing
    /// range does not end with the document or nothing follows the document.
    pub(crate) fn score_cache(
        &self,
        method: &str,
        settings: std::fmt::Arguments<'_>,
    ) -> Option<ScoreCacheKey> {
        let after = self.prompt.after;
        (after > 0 && self.protected.recent == after).then(|| ScoreCacheKey::of(method, settings))
    }
}

/// The scores of the competing tokens: the cached ones if there are any, else `compute(head, scores)` on each head's
/// `scores [n - recent]`, initialised to 0. Heads run in parallel; each reads `reads_per_item` floats.
pub(crate) fn cached_or_compute(
    plan: &RowPlan,
    observation: &Observation<'_>,
    reads_per_item: usize,
    compute: impl Fn(usize, &mut [f32]) + Sync,
) -> Vec<Vec<f32>> {
    let end = plan.protected.between(observation.tokens).end;
    if let Some(scored) = observation.cached_scores {
        let heads = scored.chunks_exact(observation.tokens);
        return heads.map(|head| head[..end].to_vec()).collect();
    }
    par_map(
        observation.threads,
        0..observation.kv_heads,
        reads_per_item,
        |head, _| {
            let mut scores = vec![0.0; end];
            compute(head, &mut scores);
            scores
        },
    )
}
