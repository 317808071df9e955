//! H2O: heavy hitters and the recent tokens (Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference
//! of Large Language Models", arXiv 2306.14048, algorithm 1).
//!
//! The score of a key is the sum of its attention from every query so far, averaged over the query heads of its KV
//! head, without decay or normalisation. Kept are the last `recent` tokens and the highest scores among the others. In
//! decode, every step adds its probabilities; then the token of lowest score that is not recent is evicted (not with
//! `decode=off`).
//!
//! ```text
//! B = 6, recent = 3:    heavy 3 | recent 3          a new token makes the oldest recent one compete
//!                       0  1  4 | 7  8  9   + 10    ->   the lowest of {0 1 4 7} is evicted
//! ```

use crate::info::read;
use crate::options::{FROM_1, ON_OFF, PAPER_HAS_0, YES_NO, options};
use crate::parallel::par_map;
use crate::slots::{SlotNumbers, lowest};
use crate::top_tokens::keep_top_k;
use crate::{
    Evict, Evictions, GroupReduce, Method, MethodInfo, Observation, PolicyError, Pos, Retention,
    Row, RowPlan, RowRequest, Score, Select, Selection, Snapshot, StepObservation, group_reduce,
};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "h2o",
    title: "H2O",
    paper: "arXiv 2306.14048",
    keeps: "what all queries so far attended to most, and the most recent tokens",
    acts: "prefill and decode",
    positions: "original",
    parameters: H2o::OPTIONS,
    build: |values| read(&INFO, values, H2o::read),
};

options! {
    /// Eviction by accumulated attention.
    #[derive(Debug, Clone)]
    pub struct H2o {
        /// last tokens that are always kept
        recent: Option<usize> => "recent", "half of the budget", FROM_1;
        /// divide a prompt token's score by the number of queries that see it, when the prompt is cut
        normalise: bool => "normalise", "false", YES_NO;
        /// evict while answering; off cuts the prompt only, as the baselines of PyramidKV and ChunkKV do
        decode: bool => "decode", "on", ON_OFF;
        /// first tokens that are always kept
        sinks: usize => "sinks", "4", PAPER_HAS_0;
    }
}

impl Method for H2o {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        let RowRequest { model, prompt, .. } = request;
        let budget = request.budget;
        let recent = self.recent.unwrap_or((budget / 2).max(1));
        let recent = recent.max(prompt.kept_last);
        let mut plan = RowPlan::uniform(request)
            .protecting(self.sinks, recent)
            .evicting(self.decode, budget)
            .measuring(|needs| {
                needs.column_sums = true;
                needs.even_if_all_kept = true;
            })
            .require_protected_and_one(INFO.name, || {
                let sinks = self.sinks;
                format!("{recent} recent tokens, {sinks} sinks and 1 heavy hitter")
            })?;
        plan.bytes = SlotNumbers::new(model, prompt.slots(budget)).bytes();
        Ok(plan)
    }

    fn start(&self, plan: &RowPlan) -> Box<dyn Select> {
        Box::new(State {
            options: self.clone(),
            budget: plan.budget,
            recent: plan.protected.recent as u32,
            scores: SlotNumbers::new(&plan.model, plan.prompt.slots(plan.budget)),
        })
    }

    fn scorer(&self) -> Option<&dyn Score> {
        Some(self)
    }

    fn stream_plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        PolicyError::if_decode_is_off(INFO.name, self.decode)?;
        self.plan(request)
    }
}

impl H2o {
    /// `[n - recent]`: the scores of a head, from its sums.
    fn rated(&self, plan: &RowPlan, mut sums: Vec<f32>) -> Vec<f32> {
        let n = sums.len();
        sums.truncate(n - plan.protected.recent);
        if self.normalise {
            // The queries j..n attend to key j.
            let seen_by = (1..=n).rev();
            (sums.iter_mut().zip(seen_by)).for_each(|(s, queries)| *s /= queries as f32);
        }
        sums
    }
}

impl Score for H2o {
    fn score(&self, plan: &RowPlan, observation: &Observation<'_>) -> Vec<Vec<f32>> {
        let sums = sums(observation);
        par_map(observation.threads, sums, observation.tokens, |_, sums| {
            self.rated(plan, sums)
        })
    }
}

/// `[kv_heads][n]`: attention from all queries to each token, mean over the group.
fn sums(observation: &Observation<'_>) -> Vec<Vec<f32>> {
    let (n, group) = (observation.tokens, observation.group);
    let sums = observation.column_sums.expect("H2O requested column sums");
    let heads = sums.chunks_exact(n * group);
    par_map(observation.threads, heads, n * group, |_, head| {
        group_reduce(head, n, group, GroupReduce::Mean)
    })
}

/// The state of one prompt and its answer.
struct State {
    options: H2o,
    budget: usize,
    recent: u32,
    /// Accumulated attention per slot.
    scores: SlotNumbers,
}

impl Select for State {
    fn select(&mut self, plan: &RowPlan, observation: &Observation<'_>) -> Selection {
        let (n, rows) = (observation.tokens, plan.rows[observation.layer]);
        let heads = sums(observation);
        let kept: Vec<Vec<Pos>> = par_map(observation.threads, &heads, n, |_, sums| {
            if n <= rows {
                (0..n as u32).map(Pos).collect()
            } else {
                let scores = self.options.rated(plan, sums.clone());
                keep_top_k(scores, n, plan.protected, rows)
            }
        });
        self.scores.set(observation.layer, &kept, |head, position| {
            heads[head][position]
        });
        if n <= rows {
            Retention::Everything.into()
        } else {
            Retention::Keep(kept).into()
        }
    }

    fn evictor(mut self: Box<Self>) -> Option<Box<dyn Evict>> {
        if !self.options.decode {
            return None;
        }
        self.scores.set_missing();
        Some(self)
    }
}

impl Evict for State {
    fn step(&mut self, step: &StepObservation<'_>, evict: &mut Evictions) {
        let (recent, sinks) = (self.recent, self.options.sinks as u32);
        for (head, out) in evict.iter_mut().enumerate() {
            let positions = step.positions(head);
            let newest = step.newest[head];
            let scores = self.scores.of(step.layer, head, positions.len());
            scores[newest] = 0.0;
            step.add_mean(head, scores);
            if positions.len() > self.budget {
                let last = positions[newest].0;
                *out = lowest(scores, positions, |p| p.0 + recent <= last && p.0 >= sinks)
                    .map(|slot| Row(slot as u32));
            }
        }
    }

    fn snapshot(&mut self, through: &mut dyn Snapshot) {
        self.scores.snapshot(through);
    }
}
