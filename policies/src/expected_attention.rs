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

use kept_kernels::softmax;

use crate::decode_cap::{DECODE_CAP, DECODE_EVERY, DECODE_W};
use crate::token_scores::{Protected, TokenScores, keep_best_of_each, known_scores};
use crate::{
    Future, FutureQueries, MethodInfo, ModelShape, Needs, Observation, Parameter, Parameters,
    Policy, PolicyError, PromptShape, Retention, ScoreCacheKey,
};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "expected_attention",
    title: "Expected Attention",
    paper: "arXiv 2510.00636",
    keeps: "what future queries are likely to attend to, whatever the question",
    acts: "prefill",
    positions: "original",
    parameters: &[
        Parameter {
            name: "future",
            default: "512",
            range: "a whole number from 1",
            meaning: "positions after the document over which the rotation is averaged",
        },
        Parameter {
            name: "covariance",
            default: "true",
            range: "true or false",
            meaning: "count how much queries vary, not only their mean",
        },
        Parameter {
            name: "vnorm",
            default: "true",
            range: "true or false",
            meaning: "multiply by the length of the value",
        },
        Parameter {
            name: "epsilon",
            default: "0",
            range: "a number from 0",
            meaning: "added to the expected weight before it is multiplied",
        },
        Parameter {
            name: "sinks",
            default: "4",
            range: "a whole number from 0",
            meaning: "first tokens: always kept, and left out of the statistics",
        },
        DECODE_CAP,
        DECODE_EVERY,
        DECODE_W,
    ],
    build: |values| {
        let p = Parameters::new(INFO.name, INFO.parameters, values)?;
        let yes_no = [("true", true), ("false", false)];
        Ok(Box::new(ExpectedAttention {
            future: p.whole("future", |f| f >= 1)?.unwrap_or(512),
            covariance: p.choice("covariance", &yes_no, true)?,
            vnorm: p.choice("vnorm", &yes_no, true)?,
            epsilon: p.number("epsilon", |e| e >= 0.0)?.unwrap_or(0.0),
            sinks: p.whole("sinks", |_| true)?.unwrap_or(4),
            protected: Protected::default(),
            until: 0,
            score_cache: None,
        }))
    },
};

/// The expected attention of future queries.
#[derive(Debug, Clone)]
pub struct ExpectedAttention {
    /// Positions after the document over which the rotation is averaged.
    pub future: usize,
    /// Whether the covariance term is used.
    pub covariance: bool,
    /// Whether the score is multiplied by the norm of the value.
    pub vnorm: bool,
    /// ε, added to the expected weight before the multiplication.
    pub epsilon: f64,
    /// Number of first tokens that are always kept and not counted in the statistics.
    pub sinks: usize,
    protected: Protected,
    /// End of the document.
    until: usize,
    score_cache: Option<ScoreCacheKey>,
}

impl Policy for ExpectedAttention {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn needs(&self, _layer: usize) -> Needs {
        Needs {
            rows: true,
            future: Some(Future {
                skip: self.sinks,
                until: self.until,
                positions: self.future,
                covariance: self.covariance,
            }),
            score_cache: self.score_cache,
            ..Needs::default()
        }
    }

    fn rows(
        &mut self,
        model: &ModelShape,
        prompt: &PromptShape,
        budget: usize,
    ) -> Result<Vec<usize>, PolicyError> {
        self.protected = Protected::around_document(INFO.name, prompt, (self.sinks, 0), budget)?;
        self.until = prompt.tokens - self.protected.recent;
        let Self {
            sinks,
            future,
            covariance,
            vnorm,
            epsilon,
            ..
        } = self;
        let settings = format_args!("{sinks} {future} {covariance} {vnorm} {epsilon}");
        self.score_cache = (self.protected).query_agnostic(INFO.name, prompt, settings);
        Ok(vec![budget; model.layers])
    }

    fn select(&mut self, observation: &Observation<'_>, rows: usize) -> Retention {
        let n = observation.tokens;
        if n <= rows {
            return Retention::Everything;
        }
        let scores = self.token_scores(observation);
        keep_best_of_each(scores, n, self.protected(), |_| rows)
    }

    fn token_scorer(&self) -> Option<&dyn TokenScores> {
        Some(self)
    }
}

impl TokenScores for ExpectedAttention {
    fn protected(&self) -> Protected {
        self.protected
    }

    fn token_scores(&self, observation: &Observation<'_>) -> Vec<Vec<f32>> {
        let (n, group) = (observation.tokens, observation.group);
        let end = self.protected.between(n).end;
        if let Some(known) = known_scores(observation, end) {
            return known;
        }
        let rows = observation.rows.expect("Expected Attention asked for it");
        let future = observation.future.expect("and for the expected queries");
        let first = self.sinks.min(end);
        // Heads run in sequence: each product is itself parallel and uses all threads.
        let heads = 0..observation.kv_heads;
        heads
            .map(|head| {
                let mut scores = vec![0.0f32; end];
                let competing = &mut scores[first..];
                let mut weights = vec![0.0f32; end - first];
                for q_head in head * group..(head + 1) * group {
                    let (linear, matrix) = logit_of(&future, q_head, observation.kv_heads * group);
                    rows.bilinear_forms(
                        head,
                        first..end,
                        (&linear, matrix.as_deref()),
                        &mut weights,
                    );
                    softmax(&mut weights);
                    let pairs = competing.iter_mut().zip(&weights);
                    pairs.for_each(|(score, weight)| *score += weight / group as f32);
                }
                if self.vnorm {
                    rows.value_lengths(head, first..end, &mut weights);
                    for (score, length) in competing.iter_mut().zip(&weights) {
                        *score = (*score + self.epsilon as f32) * length;
                    }
                }
                scores
            })
            .collect()
    }
}

/// The terms of the expected logit of a key k for queries of `q_head`: `linear` = μ / √d and `matrix` = Σ / 2d in
/// `linear · k + kᵀ matrix k`.
fn logit_of(
    future: &FutureQueries<'_>,
    q_head: usize,
    q_heads: usize,
) -> (Vec<f32>, Option<Vec<f32>>) {
    let dim = future.mean.len() / q_heads;
    let width = dim as f32;
    let mean = &future.mean[q_head * dim..][..dim];
    let linear = mean.iter().map(|x| x / width.sqrt()).collect();
    let matrix = future.covariance.map(|covariance| {
        let own = covariance[q_head * dim * dim..][..dim * dim].iter();
        own.map(|x| x / width / 2.0).collect()
    });
    (linear, matrix)
}
