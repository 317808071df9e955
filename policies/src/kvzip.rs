//! KVzip: what the model looks back at when it repeats the document (Kim et al., "KVzip: Query-Agnostic KV Cache Compression
//! with Context Reconstruction", arXiv 2505.23416, section 3).
//!
//! A document that can be written down again from its cache has lost nothing. So the model is asked to repeat it, chunk by chunk
//! ([`Reconstruction`]), and a key is worth the largest probability that any row of the repetition gives it, over the query heads of its
//! kv head. No question takes part: what is kept of a document serves every question. The price is time: a first reading and
//! its repetition, and with `spread = model` one more reading.
//!
//! ```text
//! spread   head    every head keeps as many rows
//!          layer   the heads of a layer share its rows: the best of all heads together stay
//!          model   layers share too, as published: the shares are known only at the end of a reading
//! ```
//!
//! Left open by the paper or different between the codes, decided here:
//!
//! - Softmax: over the first `sinks` keys, the chunk's own keys and the repetition up to the row (kvpress; the authors' code too),
//!   not over the whole document. Rows of the request to repeat count like those of the repetition itself.
//! - Positions: every chunk's repetition begins where the document ends, as if no other chunk had been repeated.
//! - What is no document always stays: template, question, and the sinks (kvpress gives the template before the document a score
//!   of 0, so that it goes first). It counts in the budget, like everything that is kept.
//! - Shares: with `spread = model` the rows per layer are known only after the last layer is scored, so the document is read once
//!   more, the first time. A vault keeps the scores: later questions read themselves twice, and the document not at all. No head
//!   is safe from losing all of its document; put `adakv` with `base = kvzip` around it for a floor.
//! - Equal scores: the lower layer, then the lower head, then the lower position stays.

use crate::decode_cap::{DECODE_CAP, DECODE_EVERY, DECODE_W};
use crate::heads::par_map;
use crate::token_scores::{Protected, TokenScores, keep_best_of_each};
use crate::top_k::TopK;
use crate::{
    MethodInfo, ModelShape, Needs, Observation, Parameter, Parameters, Policy, PolicyError,
    PromptShape, Reconstruction, Retention, Safeguard,
};

/// Shown in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "kvzip",
    title: "KVzip",
    paper: "arXiv 2505.23416",
    keeps: "what the model looks at while it repeats the document, whatever the question; a first reading takes three passes",
    acts: "prefill",
    positions: "original",
    parameters: &[
        Parameter {
            name: "chunk",
            default: "2048, or what the model's context leaves",
            range: "a whole number from 1",
            meaning: "document tokens that are repeated together",
        },
        Parameter {
            name: "spread",
            default: "model",
            range: "head, layer or model",
            meaning: "who shares rows: nobody, the heads of a layer, or all heads of all layers (as published; a first reading takes one more)",
        },
        Parameter {
            name: "sinks",
            default: "4",
            range: "a whole number from 0",
            meaning: "first tokens that are always kept, and seen by every row of the repetition",
        },
        DECODE_CAP,
        DECODE_EVERY,
        DECODE_W,
    ],
    build: |values| {
        let p = Parameters::new(INFO.name, INFO.parameters, values)?;
        Ok(Box::new(KvZip {
            spread: p.choice(
                "spread",
                &[
                    ("head", Some(HeadShares::Head)),
                    ("layer", Some(HeadShares::Layer)),
                    ("model", Some(HeadShares::Model)),
                ],
                None,
            )?,
            ..KvZip::new(
                p.whole("chunk", |c| c >= 1)?,
                p.whole("sinks", |_| true)?.unwrap_or(4),
            )
        }))
    },
};

/// Who shares rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HeadShares {
    /// Nobody: every head has as many.
    Head,
    /// The heads of a layer.
    Layer,
    /// All heads of all layers.
    #[default]
    Model,
}

/// Scores by repetition.
#[derive(Debug, Clone)]
pub struct KvZip {
    /// Document tokens that are repeated together.
    pub chunk: Option<usize>,
    /// Who shares rows; `None` is [`HeadShares::Model`], unless a method around this one gives out the rows.
    pub spread: Option<HeadShares>,
    /// First tokens that are always kept.
    pub sinks: usize,
    protected: Protected,
    model: Option<ModelShape>,
    /// Rows per head.
    budget: usize,
    /// Whether the first of two readings has yet to come.
    surveying: bool,
    /// `[layers, kv_heads, between]`: scores of what competes, where layers share.
    surveyed: Vec<f32>,
    /// `[layers][kv_heads]`: rows beside the protected ones, after a survey.
    shares: Vec<Vec<usize>>,
}

impl KvZip {
    /// The default way to share.
    pub fn new(chunk: Option<usize>, sinks: usize) -> Self {
        Self {
            chunk,
            spread: None,
            sinks,
            protected: Protected::default(),
            model: None,
            budget: 0,
            surveying: false,
            surveyed: Vec::new(),
            shares: Vec::new(),
        }
    }

    fn ends(&self) -> usize {
        self.protected.sinks + self.protected.recent
    }

    fn shares(&self) -> HeadShares {
        self.spread.unwrap_or_default()
    }
}

impl Policy for KvZip {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn needs(&self, _layer: usize) -> Needs {
        let known = !self.shares.is_empty();
        Needs {
            reconstruction: (!known).then_some(Reconstruction {
                chunk: self.chunk,
                sinks: self.sinks,
            }),
            ..Needs::default()
        }
    }

    fn rows(
        &mut self,
        model: &ModelShape,
        prompt: &PromptShape,
        budget: usize,
    ) -> Result<Vec<usize>, PolicyError> {
        self.protected = Protected {
            sinks: prompt.before.max(self.sinks.min(prompt.tokens)),
            recent: prompt
                .after
                .min(prompt.tokens - prompt.before.max(self.sinks.min(prompt.tokens))),
        };
        let needed = self.ends() + 1;
        if budget < needed && budget < prompt.tokens {
            return Err(PolicyError::BudgetTooSmall {
                method: INFO.name,
                rows: budget,
                needed,
                why: format!(
                    "{} tokens that are sinks or not the document's, and 1 of the document",
                    self.ends()
                ),
                tokens: prompt.tokens,
            });
        }
        self.budget = budget;
        self.model = Some(*model);
        self.surveying = self.shares() == HeadShares::Model && budget < prompt.tokens;
        self.surveyed.clear();
        self.shares.clear();
        Ok(vec![budget; model.layers])
    }

    fn max_rows_per_head(&self, layer: usize, rows: usize) -> usize {
        if let Some(shares) = self.shares.get(layer) {
            return self.ends() + shares.iter().max().unwrap_or(&0);
        }
        let (heads, layers) = self.model.map_or((1, 1), |m| (m.kv_heads, m.layers));
        let sharing = match self.shares() {
            HeadShares::Head => 1,
            HeadShares::Layer => heads,
            HeadShares::Model => heads.saturating_mul(layers),
        };
        let between = rows.saturating_sub(self.ends());
        rows.saturating_add(between.saturating_mul(sharing - 1))
    }

    fn has_score_pass(&self) -> bool {
        self.surveying
    }

    fn score_pass(&mut self, observation: &Observation<'_>) {
        let between = self.protected.between(observation.tokens);
        for head in self.token_scores(observation) {
            self.surveyed.extend_from_slice(&head[between.clone()]);
        }
    }

    fn allocate_budget(&mut self) -> Vec<usize> {
        self.surveying = false;
        let (heads, layers) = self.model.map_or((1, 1), |m| (m.kv_heads, m.layers));
        let between = self.surveyed.len() / (heads * layers);
        let rows = (self.budget - self.ends()) * heads * layers;
        self.shares = vec![vec![0; heads]; layers];
        let mut best = TopK::new(rows, self.surveyed.len());
        best.see(0, &self.surveyed);
        for best in best.indices() {
            let head = best as usize / between;
            self.shares[head / heads][head % heads] += 1;
        }
        let layers = self.shares.iter();
        layers
            .map(|shares| self.ends() + shares.iter().sum::<usize>().div_ceil(heads))
            .collect()
    }

    fn select(&mut self, observation: &Observation<'_>, rows: usize) -> Retention {
        let n = observation.tokens;
        if self.shares.is_empty() && n <= rows {
            return Retention::Everything;
        }
        let (ends, protected) = (self.ends(), self.protected);
        let between = protected.between(n);
        let (scores, shares) = match self.shares.get(observation.layer) {
            Some(shares) => {
                let heads = observation.kv_heads;
                let first = observation.layer * heads * between.len();
                let mut layer = self.surveyed[first..].chunks_exact(between.len());
                let scores = (0..heads).map(|_| {
                    let mut scores = vec![0.0; between.end];
                    let own = layer.next().expect("every head was surveyed");
                    scores[between.clone()].copy_from_slice(own);
                    scores
                });
                let found = (scores.collect(), shares.clone());
                if observation.layer + 1 == self.shares.len() {
                    self.surveyed = Vec::new();
                }
                found
            }
            None => {
                let scores = self.token_scores(observation);
                let shares = match self.shares() {
                    HeadShares::Head => vec![rows - ends; scores.len()],
                    HeadShares::Layer | HeadShares::Model => {
                        let competing: Vec<&[f32]> =
                            scores.iter().map(|head| &head[between.clone()]).collect();
                        Safeguard::Reserve.split(&competing, rows - ends, 0.0)
                    }
                };
                (scores, shares)
            }
        };
        keep_best_of_each(scores, n, protected, |head| ends + shares[head])
    }

    fn token_scorer(&self) -> Option<&dyn TokenScores> {
        // Who asks for one budget over all layers cannot have another method give out a layer's rows.
        (self.spread != Some(HeadShares::Model)).then_some(self)
    }
}

impl TokenScores for KvZip {
    fn protected(&self) -> Protected {
        self.protected
    }

    fn token_scores(&self, observation: &Observation<'_>) -> Vec<Vec<f32>> {
        let n = observation.tokens;
        let seen = (observation.reconstruction).expect("KVzip asked for the repetition");
        let end = self.protected.between(n).end;
        par_map(seen.chunks_exact(n), n, |_, head| head[..end].to_vec())
    }
}
