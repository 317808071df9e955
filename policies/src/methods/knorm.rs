//! KNorm: keeps the keys of the smallest norms (Devoto et al., "A Simple and Effective L2 Norm-Based Strategy for KV
//! Cache Compression", arXiv 2406.11430, section 3). A baseline.
//!
//! The score of a key is minus its norm: in trained models keys of small norm get much attention. No query is used, so
//! the kept rows serve any question. As in kvpress (`KnormPress`), but if a question follows the document, only the
//! document's keys compete and all tokens after it are kept. Decode only appends.
//!
//! ```text
//! norms    5  1  4  2  3        B = 2 keeps       1     2
//! ```

use crate::info::read;
use crate::options::{PAPER_HAS_0, options};
use crate::top_tokens::{Ranking, cached_or_compute};
use crate::wrappers::decode_cap::{DECODE_CAP, DECODE_EVERY, DECODE_W};
use crate::{MethodInfo, Observation, PolicyError, RowPlan, RowRequest, Score};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "knorm",
    title: "KNorm",
    paper: "arXiv 2406.11430",
    keeps: "the keys of the smallest norms, whatever the question",
    acts: "prefill",
    positions: "original",
    parameters: KNorm::OPTIONS,
    build: |values| read(&INFO, values, KNorm::read),
};

options! {
    /// Eviction by the norm of the key.
    #[derive(Debug, Clone)]
    pub struct KNorm {
        /// first tokens that are always kept
        sinks: usize => "sinks", "4", PAPER_HAS_0;
    }
    + DECODE_CAP; + DECODE_EVERY; + DECODE_W;
}

impl Ranking for KNorm {
    const NAME: &'static str = INFO.name;

    fn plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        let uniform = RowPlan::uniform(request);
        let plan = uniform.protect_around_document(INFO.name, self.sinks, 0)?;
        let score_cache = plan.score_cache(INFO.name, format_args!(""));
        Ok(plan.measuring(|needs| {
            needs.rows = true;
            needs.score_cache = score_cache;
        }))
    }
}

impl Score for KNorm {
    fn score(&self, plan: &RowPlan, observation: &Observation<'_>) -> Vec<Vec<f32>> {
        // Heads run in sequence (they read 0 numbers): the norms of a head are computed in parallel.
        cached_or_compute(plan, observation, 0, |head, scores| {
            let rows = observation.rows.expect("KNorm requested the rows");
            rows.key_norms(head, 0..scores.len(), scores);
            scores.iter_mut().for_each(|score| *score = -*score);
        })
    }
}
