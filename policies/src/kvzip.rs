//! KVzip: keeps what the model attends to when it repeats the document (Kim et al., "KVzip: Query-Agnostic KV Cache
//! Compression with Context Reconstruction", arXiv 2505.23416, section 3).
//!
//! If the model can reconstruct a document from its cache, the cache has lost nothing. The model therefore repeats the
//! document chunk by chunk ([`Reconstruction`]). The score of a key is the largest probability over all rows of the
//! repetition and over the query heads of its KV head. No question takes part, so the kept rows serve every question.
//! The cost is time: a prefill and the reconstruction, and with `spread = model` one more prefill.
//!
//! ```text
//! spread   head    every head keeps the same number of rows
//!          layer   the heads of a layer share its rows: the top tokens over all heads are kept
//!          model   layers share too, as published: the shares are known only at the end of a prefill
//! ```
//!
//! Left open by the paper or different between the published codes, decided here:
//!
//! - Softmax: over the first `sinks` keys, the chunk's own keys and the repetition up to the row (kvpress and the
//!   authors' code), not over the whole document. Rows of the request to repeat count like rows of the repetition.
//! - Positions: every chunk's repetition begins at the end of the document, as if no other chunk had been repeated.
//! - Tokens outside the document are always kept: template, question, and the sinks (kvpress gives the template before
//!   the document a score of 0, so that it is evicted first). They count in the budget, like all kept rows.
//! - Shares: with `spread = model` the rows per layer are known only after the last layer is scored, so the document is
//!   prefilled a second time. A vault stores the scores: for later questions only the question is prefilled, twice. A
//!   head can lose its whole document; for a minimum per head wrap this method in `adakv` with `base = kvzip`.
//! - Equal scores: the lower layer is kept first, then the lower head, then the lower position.

use crate::decode_cap::{DECODE_CAP, DECODE_EVERY, DECODE_W};
use crate::heads::par_map;
use crate::token_scores::{Protected, TokenScores, keep_best_of_each};
use crate::top_k::TopK;
use crate::{
    MethodInfo, ModelShape, Needs, Observation, Parameter, Parameters, Policy, PolicyError,
    PromptShape, Reconstruction, Retention, Safeguard,
};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "kvzip",
    title: "KVzip",
    paper: "arXiv 2505.23416",
    keeps: "what the model attends to while it repeats the document, whatever the question; a first reading takes three passes",
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
            meaning: "what shares a budget: each head alone, the heads of a layer, or all heads of all layers (as published; a first reading takes one more)",
        },
        Parameter {
            name: "sinks",
            default: "4",
            range: "a whole number from 0",
            meaning: "first tokens that are always kept, and attended to by every row of the reconstruction",
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

/// Which heads share rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HeadShares {
    /// No sharing: every head has the same number of rows.
    Head,
    /// The heads of a layer.
    Layer,
    /// All heads of all layers.
    #[default]
    Model,
}

/// Scores by context reconstruction.
#[derive(Debug, Clone)]
pub struct KvZip {
    /// Document tokens repeated together.
    pub chunk: Option<usize>,
    /// Which heads share rows; `None` is [`HeadShares::Model`], unless a wrapper distributes the rows.
    pub spread: Option<HeadShares>,
    /// Number of first tokens that are always kept.
    pub sinks: usize,
    protected: Protected,
    model: Option<ModelShape>,
    /// Rows per head.
    budget: usize,
    /// Whether the score pass is still to come.
    score_pass_pending: bool,
    /// `[layers, kv_heads, between]`: scores of the competing tokens, if layers share rows.
    collected_scores: Vec<f32>,
    /// `[layers][kv_heads]`: rows in addition to the protected ones, after the score pass.
    shares: Vec<Vec<usize>>,
}

impl KvZip {
    /// KVzip with the default sharing.
    pub fn new(chunk: Option<usize>, sinks: usize) -> Self {
        Self {
            chunk,
            spread: None,
            sinks,
            protected: Protected::default(),
            model: None,
            budget: 0,
            score_pass_pending: false,
            collected_scores: Vec::new(),
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
        self.score_pass_pending = self.shares() == HeadShares::Model && budget < prompt.tokens;
        self.collected_scores.clear();
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
        self.score_pass_pending
    }

    fn score_pass(&mut self, observation: &Observation<'_>) {
        let between = self.protected.between(observation.tokens);
        for head in self.token_scores(observation) {
            self.collected_scores
                .extend_from_slice(&head[between.clone()]);
        }
    }

    fn allocate_budget(&mut self) -> Vec<usize> {
        self.score_pass_pending = false;
        let (heads, layers) = self.model.map_or((1, 1), |m| (m.kv_heads, m.layers));
        let between = self.collected_scores.len() / (heads * layers);
        let rows = (self.budget - self.ends()) * heads * layers;
        self.shares = vec![vec![0; heads]; layers];
        let mut best = TopK::new(rows, self.collected_scores.len());
        best.see(0, &self.collected_scores);
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
                let mut layer = self.collected_scores[first..].chunks_exact(between.len());
                let scores = (0..heads).map(|_| {
                    let mut scores = vec![0.0; between.end];
                    let own = layer.next().expect("every head was surveyed");
                    scores[between.clone()].copy_from_slice(own);
                    scores
                });
                let found = (scores.collect(), shares.clone());
                if observation.layer + 1 == self.shares.len() {
                    self.collected_scores = Vec::new();
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
        // With `spread=model` rows are shared over all layers, so no wrapper can distribute the rows of one layer.
        (self.spread != Some(HeadShares::Model)).then_some(self)
    }
}

impl TokenScores for KvZip {
    fn protected(&self) -> Protected {
        self.protected
    }

    fn token_scores(&self, observation: &Observation<'_>) -> Vec<Vec<f32>> {
        let n = observation.tokens;
        let seen = (observation.reconstruction).expect("KVzip requested the reconstruction");
        let end = self.protected.between(n).end;
        par_map(seen.chunks_exact(n), n, |_, head| head[..end].to_vec())
    }
}
