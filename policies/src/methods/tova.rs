//! TOVA: the last query decides (Oren et al., "Transformers are Multi-State RNNs", arXiv 2401.06104, section 3).
//!
//! Each token has one score per layer: the last query's probability, averaged over all query heads; every KV head keeps
//! the same rows. In decode, each step evicts the row that its query attends to least (not with `decode=off`). Earlier
//! steps do not count. In the published code the newest token competes too; `force_last` (the default) keeps it, and
//! `recent` keeps more last tokens (TreeKV, section 5.1). The last query of a prompt is the question's; the tail of the
//! chat template after it is observed and kept in addition (`window.rs`).

use crate::info::read;
use crate::options::{MAX_COUNT, ON_OFF, PAPER_HAS_0, Range, options};
use crate::score::sum_of_rows;
use crate::slots::lowest;
use crate::top_tokens::keep_top_k;
use crate::{
    Evict, Evictions, Method, MethodInfo, Observation, ObservationWindow, PolicyError, Retention,
    Row, RowPlan, RowRequest, Score, Select, Selection, Softmax, StepObservation,
};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "tova",
    title: "TOVA",
    paper: "arXiv 2401.06104",
    keeps: "what the last query attends to, the same in every head of a layer",
    acts: "prefill and decode",
    positions: "original",
    parameters: Tova::OPTIONS,
    build: |values| read(&INFO, values, Tova::read),
};

options! {
    /// Selection by the last query's attention.
    #[derive(Debug, Clone)]
    pub struct Tova {
        /// the newest token is always kept
        force_last: bool => "force_last", "true",
            Range::Flag("true or false (false is the published code's)", ["false", "true"]);
        /// last tokens that are always kept
        recent: Option<usize> => "recent", "1, or 0 with force_last=false",
            Range::Whole(
                "a whole number from 0 to 16777216 (508 of 1024 rows in TreeKV's tables)",
                |n| n <= MAX_COUNT,
            );
        /// evict while answering; off cuts the prompt only, as the baselines of PyramidKV and ChunkKV do
        decode: bool => "decode", "on", ON_OFF;
        /// first tokens that are always kept
        sinks: usize => "sinks", "4", PAPER_HAS_0;
    }
}

impl Tova {
    /// Number of last tokens that are always kept, in addition to the tail.
    fn recent(&self) -> usize {
        self.recent.unwrap_or(usize::from(self.force_last))
    }
}

impl Method for Tova {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        let RowRequest { prompt, .. } = request;
        let budget = request.budget;
        let recent = match self.recent() {
            0 => 0,
            recent => recent.saturating_add(prompt.tail),
        };
        let window = ObservationWindow {
            rows: 1 + prompt.tail,
            softmax: Softmax::All,
        };
        let recent = recent.max(prompt.kept_last);
        let mut plan = RowPlan::uniform(request)
            .protecting(self.sinks, recent)
            .evicting(self.decode, budget)
            .measuring(|needs| {
                needs.observation_window = Some(window);
            })
            .require_protected_and_one(INFO.name, || {
                format!("{} sinks, {recent} last tokens and 1 other", self.sinks)
            })?;
        plan.bytes = (prompt.slots(budget) * size_of::<f32>()) as u64;
        Ok(plan)
    }

    fn start(&self, plan: &RowPlan) -> Box<dyn Select> {
        Box::new(State {
            recent: self.recent() as u32,
            sinks: self.sinks as u32,
            decode: self.decode,
            budget: plan.budget,
            scores: Vec::with_capacity(plan.prompt.slots(plan.budget)),
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

impl Score for Tova {
    fn score(&self, _plan: &RowPlan, observation: &Observation<'_>) -> Vec<Vec<f32>> {
        vec![layer_scores(observation); observation.kv_heads]
    }
}

/// `[n]`: attention of the last query and the tail to each token, mean over these rows, summed over all query heads.
fn layer_scores(observation: &Observation<'_>) -> Vec<f32> {
    let n = observation.tokens;
    let window = observation
        .observation_window
        .expect("TOVA requested the last query");
    sum_of_rows(observation.threads, window, n, n)
}

/// The state of one prompt and its answer.
struct State {
    recent: u32,
    sinks: u32,
    decode: bool,
    budget: usize,
    /// `[slots]` scratch buffer: scores of one step.
    scores: Vec<f32>,
}

impl Select for State {
    fn select(&mut self, plan: &RowPlan, observation: &Observation<'_>) -> Selection {
        let (n, rows) = (observation.tokens, plan.rows[observation.layer]);
        if n <= rows {
            return Retention::Everything.into();
        }
        let kept = keep_top_k(layer_scores(observation), n, plan.protected, rows);
        Retention::Keep(vec![kept; observation.kv_heads]).into()
    }

    fn evictor(self: Box<Self>) -> Option<Box<dyn Evict>> {
        if self.decode { Some(self) } else { None }
    }
}

impl Evict for State {
    fn step(&mut self, step: &StepObservation<'_>, evict: &mut Evictions) {
        // Every head has the same positions in the same slots, so one decision applies to all heads.
        if step.rows[0] <= self.budget {
            return;
        }
        let positions = step.positions(0);
        self.scores.clear();
        self.scores.resize(positions.len(), 0.0);
        for head in 0..evict.len() {
            step.add_mean(head, &mut self.scores);
        }
        let end = positions[step.newest[0]].0 + 1;
        let out = lowest(&self.scores, positions, |p| {
            p.0 >= self.sinks && p.0.saturating_add(self.recent) < end
        });
        evict.fill(out.map(|slot| Row(slot as u32)));
    }
}
