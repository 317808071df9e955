//! KeyDiff: keeps the keys that are least similar to the others (Park et al., "KeyDiff: Key Similarity-Based KV Cache
//! Eviction for Long-Context LLM Inference in Resource-Constrained Environments", arXiv 2504.15364, section 3).
//!
//! The score of a key is minus its cosine with the mean direction of all keys of its head. No query is used, so the
//! kept rows serve any question. Decode only appends.
//!
//! The paper leaves open what happens if a question follows the document. Only the document's keys are then scored, so
//! that their ranking is the same for every question, and all tokens after the document are kept, as in kvpress, which
//! compresses before the question.
//!
//! ```text
//! unit keys       ->  ->  ->  ^  ->        mean  ->         cosine  .9 .9 .9 .1 .9
//! B = 2 keeps                 ^                             the least similar first
//! ```

use crate::decode_cap::{DECODE_CAP, DECODE_EVERY, DECODE_W};
use crate::heads::par_map;
use crate::token_scores::{Protected, TokenScores, keep_best_of_each, known_scores};
use crate::{
    MethodInfo, ModelShape, Needs, Observation, Parameter, Parameters, Policy, PolicyError,
    PromptShape, Retention, ScoreCacheKey,
};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "keydiff",
    title: "KeyDiff",
    paper: "arXiv 2504.15364",
    keeps: "the keys least like the mean key of their head, whatever the question",
    acts: "prefill",
    positions: "original",
    parameters: &[
        Parameter {
            name: "recent",
            default: "0",
            range: "a whole number from 0 (0 is the paper's)",
            meaning: "last tokens that are always kept",
        },
        Parameter {
            name: "sinks",
            default: "4",
            range: "a whole number from 0 (0 is the paper's)",
            meaning: "first tokens that are always kept",
        },
        DECODE_CAP,
        DECODE_EVERY,
        DECODE_W,
    ],
    build: |values| {
        let p = Parameters::new(INFO.name, INFO.parameters, values)?;
        Ok(Box::new(KeyDiff {
            recent: p.whole("recent", |_| true)?.unwrap_or(0),
            sinks: p.whole("sinks", |_| true)?.unwrap_or(4),
            protected: Protected::default(),
            after: 0,
            score_cache: None,
        }))
    },
};

/// Eviction by cosine with the mean key.
#[derive(Debug, Clone)]
pub struct KeyDiff {
    /// Number of last tokens that are always kept.
    pub recent: usize,
    /// Number of first tokens that are always kept.
    pub sinks: usize,
    protected: Protected,
    /// Tokens after the document.
    after: usize,
    score_cache: Option<ScoreCacheKey>,
}

impl Policy for KeyDiff {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn needs(&self, _layer: usize) -> Needs {
        Needs {
            rows: true,
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
        let ends = (self.sinks, self.recent);
        self.protected = Protected::around_document(INFO.name, prompt, ends, budget)?;
        self.after = prompt.after;
        self.score_cache = (self.protected).query_agnostic(INFO.name, prompt, format_args!(""));
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

impl TokenScores for KeyDiff {
    fn protected(&self) -> Protected {
        self.protected
    }

    fn token_scores(&self, observation: &Observation<'_>) -> Vec<Vec<f32>> {
        let n = observation.tokens;
        let end = self.protected.between(n).end;
        if let Some(known) = known_scores(observation, end) {
            return known;
        }
        let rows = observation.rows.expect("KeyDiff asked for it");
        // The mean includes the protected tokens, but not those of the question.
        let document = n - self.after;
        // A key has on the order of 64 numbers.
        par_map(0..observation.kv_heads, 64 * n, |head, _| {
            let mut scores = vec![0.0; end];
            rows.cosine_to_mean(head, document, &mut scores);
            scores
        })
    }
}
