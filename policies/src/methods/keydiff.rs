use crate::info::read;
use crate::options::{PAPER_HAS_0, options};
use crate::top_tokens::{Ranking, cached_or_compute};
use crate::wrappers::decode_cap::{DECODE_CAP, DECODE_EVERY, DECODE_W};
use crate::{MethodInfo, Observation, PolicyError, RowPlan, RowRequest, Score};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "keydiff",
    title: "KeyDiff",
    paper: "arXiv 2504.15364",
    keeps: "the keys least like the mean key of their head, whatever the question",
    acts: "prefill",
    positions: "original",
    parameters: KeyDiff::OPTIONS,
    build: |values| read(&INFO, values, KeyDiff::read),
};

options! {
    /// Eviction by cosine with the mean key.
    #[derive(Debug, Clone)]
    pub struct KeyDiff {
        /// last tokens that are always kept
        recent: usize => "recent", "0", PAPER_HAS_0;
        /// first tokens that are always kept
        sinks: usize => "sinks", "4", PAPER_HAS_0;
    }
    + DECODE_CAP; + DECODE_EVERY; + DECODE_W;
}

impl Ranking for KeyDiff {
    const NAME: &'static str = INFO.name;

    fn plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        let uniform = RowPlan::uniform(request);
        let plan = uniform.protect_around_document(INFO.name, self.sinks, self.recent)?;
        let score_cache = plan.score_cache(INFO.name, format_args!(""));
        Ok(plan.measuring(|needs| {
            needs.rows = true;
            needs.score_cache = score_cache;
        }))
    }
}

impl Score for KeyDiff {
    fn score(&self, plan: &RowPlan, observation: &Observation<'_>) -> Vec<Vec<f32>> {
        // The mean includes the protected tokens, but not those of the question.
        let document = observation.tokens - plan.prompt.after;
        let reads_per_item = observation.tokens * plan.model.head_dim;
        cached_or_compute(plan, observation, reads_per_item, |head, scores| {
            let rows = observation.rows.expect("KeyDiff requested the rows");
            rows.cosine_to_mean(head, document, scores);
            scores.iter_mut().for_each(|score| *score = -*score);
        })
    }
}
