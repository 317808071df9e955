//! Expected Attention: keeps what future queries are expected to attend to, estimated from past queries (Devoto et al.,
//! "Expected Attention: KV Cache Compression by Estimating Attention from Future Queries Distribution", arXiv
//! 2510.00636).
//!
//! Queries before RoPE are modelled as normally distributed, with mean μ and covariance Σ of the prompt's own queries
//! (without its first tokens), both rotated by the mean RoPE rotation of the next `future` positions. For a query from
//! this distribution the expected unnormalised weight of a key has a closed form. Its softmax over the prompt, averaged
//! over the query heads of a KV head, times the norm of the value, is the score. No question is needed. Decode only
//! appends.
//!
//! If a question follows the document, the prompt ends with the document for this method: only the document's queries
//! are counted, only its keys compete, the expected positions begin after it, and all tokens after it are always kept.
//! The ranking is therefore the same for every question (kvpress, too, compresses before the question).
//!
//! ```text
//! q ~ N(μ, Σ)       E exp(qᵀk / √d) = exp( μᵀk / √d  +  kᵀΣk / 2d )
//! score(k) = (mean over the group of softmax(...) + ε) * ‖v‖
//! ```

use crate::info::read;
use crate::options::{FROM_0, Range, YES_NO, options};
use crate::top_tokens::{Ranking, cached_or_compute};
use crate::wrappers::decode_cap::{DECODE_CAP, DECODE_EVERY, DECODE_W};
use crate::{
    BilinearForm, ExpectedQueries, ExpectedQueriesRequest, MethodInfo, Observation, PolicyError,
    RowPlan, RowRequest, Score,
};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "expected_attention",
    title: "Expected Attention",
    paper: "arXiv 2510.00636",
    keeps: "what future queries are likely to attend to, whatever the question",
    acts: "prefill",
    positions: "original",
    parameters: ExpectedAttention::OPTIONS,
    build: |values| read(&INFO, values, ExpectedAttention::read),
};

options! {
    /// The expected attention of future queries.
    #[derive(Debug, Clone)]
    pub struct ExpectedAttention {
        /// positions after the document over which the rotation is averaged
        future: usize => "future", "512",
            Range::Whole("a whole number from 1 to 32768", |n| (1..=1 << 15).contains(&n));
        /// count how much queries vary, not only their mean
        covariance: bool => "covariance", "true", YES_NO;
        /// multiply by the length of the value
        vnorm: bool => "vnorm", "true", YES_NO;
        /// added to the expected weight before it is multiplied
        epsilon: f64 => "epsilon", "0", Range::Number("a number from 0 to 1000000", |e| e >= 0.0);
        /// first tokens: always kept, and left out of the statistics
        sinks: usize => "sinks", "4", FROM_0;
    }
    + DECODE_CAP; + DECODE_EVERY; + DECODE_W;
}

impl Ranking for ExpectedAttention {
    const NAME: &'static str = INFO.name;

    fn plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        let RowRequest { prompt, .. } = request;
        let uniform = RowPlan::uniform(request);
        let plan = uniform.protect_around_document(INFO.name, self.sinks, 0)?;
        let Self {
            sinks,
            future,
            covariance,
            vnorm,
            epsilon,
        } = *self;
        let settings = format_args!("{sinks} {future} {covariance} {vnorm} {epsilon}");
        let score_cache = plan.score_cache(INFO.name, settings);
        let until = prompt.tokens - plan.protected.recent;
        Ok(plan.measuring(|needs| {
            needs.rows = true;
            needs.expected_queries = Some(ExpectedQueriesRequest {
                skip: sinks,
                until,
                positions: future,
                covariance,
            });
            needs.score_cache = score_cache;
        }))
    }
}

impl Score for ExpectedAttention {
    fn score(&self, plan: &RowPlan, observation: &Observation<'_>) -> Vec<Vec<f32>> {
        let group = observation.group;
        let q_heads = observation.kv_heads * group;
        // Heads run in sequence (they read 0 numbers): each product is itself parallel and uses all threads.
        cached_or_compute(plan, observation, 0, |head, scores| {
            let rows = observation
                .rows
                .expect("Expected Attention requested the rows");
            let expected = observation
                .expected_queries
                .expect("and the expected queries");
            let first = self.sinks.min(scores.len());
            let competing = first..scores.len();
            let mut weights = vec![0.0f32; competing.len()];
            for q_head in head * group..(head + 1) * group {
                let logit = Logit::new(&expected, q_head, q_heads);
                rows.bilinear_forms(head, competing.clone(), logit.form(), &mut weights);
                rows.softmax(&mut weights);
                let pairs = scores[first..].iter_mut().zip(&weights);
                pairs.for_each(|(score, weight)| *score += weight / group as f32);
            }
            if self.vnorm {
                rows.value_norms(head, competing, &mut weights);
                for (score, norm) in scores[first..].iter_mut().zip(&weights) {
                    *score = (*score + self.epsilon as f32) * norm;
                }
            }
        })
    }
}

/// The expected logit of a key k, `linear · k + kᵀ matrix k`, with `linear` = μ / √d and `matrix` = Σ / 2d.
struct Logit {
    linear: Vec<f32>,
    matrix: Option<Vec<f32>>,
}

impl Logit {
    /// For queries of `q_head`.
    fn new(expected: &ExpectedQueries<'_>, q_head: usize, q_heads: usize) -> Self {
        let dim = expected.mean.len() / q_heads;
        let width = dim as f32;
        let mean = &expected.mean[q_head * dim..][..dim];
        Self {
            linear: mean.iter().map(|x| x / width.sqrt()).collect(),
            matrix: expected.covariance.map(|covariance| {
                let own = covariance[q_head * dim * dim..][..dim * dim].iter();
                own.map(|x| x / width / 2.0).collect()
            }),
        }
    }

    fn form(&self) -> BilinearForm<'_> {
        BilinearForm {
            linear: &self.linear,
            matrix: self.matrix.as_deref(),
        }
    }
}
