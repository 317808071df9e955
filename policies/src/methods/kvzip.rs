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

use crate::info::read;
use crate::options::{FROM_0, FROM_1, Range, options, words};
use crate::parallel::par_map;
use crate::top_k::TopK;
use crate::top_tokens::keep_top_k_per_head;
use crate::wrappers::decode_cap::{DECODE_CAP, DECODE_EVERY, DECODE_W};
use crate::{
    Method, MethodInfo, Observation, PolicyError, Reconstruction, Retention, RowPlan, RowRequest,
    Safeguard, Score, Select, Selection,
};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "kvzip",
    title: "KVzip",
    paper: "arXiv 2505.23416",
    keeps: "what the model attends to while it repeats the document, whatever the question; a first reading takes three passes",
    acts: "prefill",
    positions: "original",
    parameters: KvZip::OPTIONS,
    build: |values| read(&INFO, values, KvZip::read),
};

options! {
    /// Scores by context reconstruction.
    #[derive(Debug, Clone)]
    pub struct KvZip {
        /// document tokens that are repeated together
        chunk: Option<usize> => "chunk", "2048, or what the model's context leaves", FROM_1;
        /// what shares a budget: each head alone, the heads of a layer, or all heads of all layers (as published; a
        /// first reading takes one more)
        spread: Option<HeadShares> => "spread", "model", Range::Word("head, layer or model");
        /// first tokens that are always kept, and attended to by every row of the reconstruction
        sinks: usize => "sinks", "4", FROM_0;
    }
    + DECODE_CAP; + DECODE_EVERY; + DECODE_W;
}

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

words!(HeadShares {
    "head" => HeadShares::Head,
    "layer" => HeadShares::Layer,
    "model" => HeadShares::Model,
});

impl Method for KvZip {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        let RowRequest { model, prompt, .. } = request;
        let budget = request.budget;
        let sinks = prompt.before.max(self.sinks.min(prompt.tokens));
        let recent = prompt.after.max(prompt.kept_last);
        let recent = recent.min(prompt.tokens - sinks);
        let ends = sinks + recent;
        let mut plan = RowPlan::uniform(request)
            .protecting(sinks, recent)
            .measuring(|needs| {
                needs.reconstruction = Some(Reconstruction {
                    chunk: self.chunk,
                    sinks: self.sinks,
                });
            })
            .require_protected_and_one(INFO.name, || {
                format!("{ends} tokens that are sinks or not the document's, and 1 of the document")
            })?;
        let shares = self.spread.unwrap_or_default();
        let sharing = match shares {
            HeadShares::Head => 1,
            HeadShares::Layer => model.kv_heads,
            HeadShares::Model => model.kv_heads.saturating_mul(model.layers),
        };
        let more = budget.saturating_sub(ends).saturating_mul(sharing - 1);
        plan.max_rows_per_head.fill(budget.saturating_add(more));
        plan.score_pass = shares == HeadShares::Model && budget < prompt.tokens;
        Ok(plan)
    }

    fn start(&self, _plan: &RowPlan) -> Box<dyn Select> {
        Box::new(State {
            options: self.clone(),
            collected_scores: Vec::new(),
            shares: Vec::new(),
        })
    }

    fn scorer(&self) -> Option<&dyn Score> {
        // With `spread=model` rows are shared over all layers, so no wrapper can distribute the rows of one layer.
        if self.spread == Some(HeadShares::Model) {
            None
        } else {
            Some(self)
        }
    }
}

impl Score for KvZip {
    fn score(&self, plan: &RowPlan, observation: &Observation<'_>) -> Vec<Vec<f32>> {
        let n = observation.tokens;
        let seen = (observation.reconstruction).expect("KVzip requested the reconstruction");
        let end = plan.protected.between(n).end;
        par_map(observation.threads, seen.chunks_exact(n), n, |_, head| {
            head[..end].to_vec()
        })
    }
}

/// The state of one prompt.
struct State {
    options: KvZip,
    /// `[layers, kv_heads, between]`: scores of the competing tokens, if layers share rows.
    collected_scores: Vec<f32>,
    /// `[layers][kv_heads]`: rows in addition to the protected ones, after the score pass.
    shares: Vec<Vec<usize>>,
}

impl State {
    /// `[kv_heads][n - recent]`: the collected scores of a layer; 0 for the sinks.
    fn collected(&self, plan: &RowPlan, observation: &Observation<'_>) -> Vec<Vec<f32>> {
        let between = plan.protected.between(observation.tokens);
        let heads = observation.kv_heads;
        let first = observation.layer * heads * between.len();
        let layer = self.collected_scores[first..].chunks_exact(between.len());
        let heads = layer.take(heads).map(|own| {
            let mut scores = vec![0.0; between.end];
            scores[between.clone()].copy_from_slice(own);
            scores
        });
        heads.collect()
    }
}

impl Select for State {
    fn score_pass(&mut self, plan: &RowPlan, observation: &Observation<'_>) {
        let between = plan.protected.between(observation.tokens);
        for head in self.options.score(plan, observation) {
            self.collected_scores
                .extend_from_slice(&head[between.clone()]);
        }
    }

    fn allocate_budget(&mut self, plan: &RowPlan) -> RowPlan {
        let (heads, layers, ends) = (
            plan.model.kv_heads,
            plan.model.layers,
            plan.protected.rows(),
        );
        let head_len = self.collected_scores.len() / (heads * layers);
        let rows = (plan.budget - ends) * heads * layers;
        self.shares = vec![vec![0; heads]; layers];
        let mut best = TopK::new(rows, self.collected_scores.len());
        best.see(0, &self.collected_scores);
        for best in best.indices() {
            let head = best as usize / head_len;
            self.shares[head / heads][head % heads] += 1;
        }
        let mut plan = plan.clone();
        for (layer, shares) in self.shares.iter().enumerate() {
            plan.rows[layer] = ends + shares.iter().sum::<usize>().div_ceil(heads);
            plan.max_rows_per_head[layer] = ends + shares.iter().max().unwrap_or(&0);
            plan.needs[layer].reconstruction = None;
        }
        plan.score_pass = false;
        plan
    }

    fn select(&mut self, plan: &RowPlan, observation: &Observation<'_>) -> Selection {
        let (n, rows) = (observation.tokens, plan.rows[observation.layer]);
        let (ends, protected) = (plan.protected.rows(), plan.protected);
        if self.shares.is_empty() && n <= rows {
            return Retention::Everything.into();
        }
        let (scores, shares) = if let Some(shares) = self.shares.get(observation.layer) {
            (self.collected(plan, observation), shares.clone())
        } else {
            let scores = self.options.score(plan, observation);
            let shares = match self.options.spread.unwrap_or_default() {
                HeadShares::Head => vec![rows - ends; scores.len()],
                HeadShares::Layer | HeadShares::Model => {
                    let between = protected.between(n);
                    let competing: Vec<&[f32]> =
                        scores.iter().map(|head| &head[between.clone()]).collect();
                    Safeguard::Reserve.split(observation.threads, &competing, rows - ends, 0.0)
                }
            };
            (scores, shares)
        };
        if observation.layer + 1 == self.shares.len() {
            self.collected_scores = Vec::new();
        }
        keep_top_k_per_head(scores, observation, protected, |head| ends + shares[head]).into()
    }
}
