//! StreamingLLM: attention sinks and the most recent tokens (Xiao et al., "Efficient Streaming Language Models with
//! Attention Sinks", arXiv 2309.17453, section 3.2). Uses no scores.
//!
//! Prefill keeps `{0..sinks} ∪ {n-(B-sinks)..n}`; a decode step appends, attends, then evicts the oldest row that is
//! not a sink. The paper re-assigns positions: a key has its rank in the cache as position, the query the last rank.
//! `positions=original` keeps the positions in the text, as several ports do.
//!
//! ```text
//! B = 6, sinks = 2, prompt 0..=5:   [0 1 2 3 4 5] -> [0 1 3 4 5 6] -> [0 1 4 5 6 7]
//! ```

use crate::info::read;
use crate::options::{FROM_0, REASSIGNED_OR_ORIGINAL, options, words};
use crate::{
    Evict, Evictions, Method, MethodInfo, Observation, PolicyError, Pos, Positions, Retention, Row,
    RowPlan, RowRequest, Select, Selection, StepObservation,
};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "streaming_llm",
    title: "StreamingLLM",
    paper: "arXiv 2309.17453",
    keeps: "the first tokens and the most recent ones",
    acts: "prefill and decode",
    positions: "re-assigned",
    parameters: StreamingLlm::OPTIONS,
    build: |values| read(&INFO, values, StreamingLlm::read),
};

options! {
    /// Sinks and a sliding window of recent tokens.
    #[derive(Debug, Clone, Copy)]
    pub struct StreamingLlm {
        /// first tokens that are always kept
        sinks: usize => "sinks", "4", FROM_0;
        /// where kept keys stand for RoPE
        positions: Positions => "positions", "reassigned", REASSIGNED_OR_ORIGINAL;
    }
}

words!(Positions {
    "reassigned" => Positions::Reassigned,
    "original" => Positions::Original,
});

impl Method for StreamingLlm {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        let mut plan = RowPlan::uniform(request)
            .protecting(self.sinks, 0)
            .evicting(true, request.budget)
            .require_protected_and_one(INFO.name, || {
                format!("{} sinks and 1 recent token", self.sinks)
            })?;
        plan.positions = self.positions;
        plan.needs_probabilities = false;
        Ok(plan)
    }

    fn start(&self, plan: &RowPlan) -> Box<dyn Select> {
        Box::new(State {
            sinks: plan.protected.sinks,
            budget: plan.budget,
        })
    }

    fn stream_plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        self.plan(request)
    }
}

/// The state of one prompt and its answer.
struct State {
    sinks: usize,
    budget: usize,
}

impl Select for State {
    fn select(&mut self, plan: &RowPlan, observation: &Observation<'_>) -> Selection {
        let (n, rows) = (observation.tokens, plan.rows[observation.layer]);
        if n <= rows {
            return Retention::Everything.into();
        }
        let recent = n - (rows - self.sinks)..n;
        let kept = (0..self.sinks).chain(recent).map(|p| Pos(p as u32));
        Retention::Keep(vec![kept.collect(); observation.kv_heads]).into()
    }

    fn evictor(self: Box<Self>) -> Option<Box<dyn Evict>> {
        Some(self)
    }
}

impl Evict for State {
    fn step(&mut self, step: &StepObservation<'_>, evict: &mut Evictions) {
        for (head, out) in evict.iter_mut().enumerate() {
            if step.rows[head] > self.budget {
                let rows = step.positions(head).iter().enumerate();
                *out = rows
                    .filter(|(_, pos)| pos.0 as usize >= self.sinks)
                    .min_by_key(|(_, pos)| **pos)
                    .map(|(row, _)| Row(row as u32));
            }
        }
    }
}
