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

use crate::{
    Evictions, MethodInfo, ModelShape, Needs, Observation, Parameter, Parameters, Policy,
    PolicyError, Pos, Positions, PromptShape, Retention, Row, StepObservation,
};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "streaming_llm",
    title: "StreamingLLM",
    paper: "arXiv 2309.17453",
    keeps: "the first tokens and the most recent ones",
    acts: "prefill and decode",
    positions: "re-assigned",
    parameters: &[
        Parameter {
            name: "sinks",
            default: "4",
            range: "a whole number from 0",
            meaning: "first tokens that are always kept",
        },
        Parameter {
            name: "positions",
            default: "reassigned",
            range: "reassigned or original",
            meaning: "where kept keys stand for RoPE",
        },
    ],
    build: |values| {
        let p = Parameters::new(INFO.name, INFO.parameters, values)?;
        Ok(Box::new(StreamingLlm {
            sinks: p.whole("sinks", |_| true)?.unwrap_or(4),
            positions: p.choice(
                "positions",
                &[
                    ("reassigned", Positions::Reassigned),
                    ("original", Positions::Original),
                ],
                Positions::Reassigned,
            )?,
            budget: 0,
        }))
    },
};

/// Sinks and a sliding window of recent tokens.
#[derive(Debug, Clone, Copy)]
pub struct StreamingLlm {
    /// Number of first tokens that are always kept.
    pub sinks: usize,
    /// Positions of kept keys for RoPE.
    pub positions: Positions,
    /// Rows per KV head, set by `rows`.
    budget: usize,
}

impl Policy for StreamingLlm {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn needs(&self, _layer: usize) -> Needs {
        Needs::default()
    }

    fn positions(&self) -> Positions {
        self.positions
    }

    fn rows(
        &mut self,
        model: &ModelShape,
        prompt: &PromptShape,
        budget: usize,
    ) -> Result<Vec<usize>, PolicyError> {
        let needed = self.sinks.saturating_add(1);
        if budget < needed && budget < prompt.tokens {
            return Err(PolicyError::BudgetTooSmall {
                method: INFO.name,
                rows: budget,
                needed,
                why: format!("{} sinks and 1 recent token", self.sinks),
                tokens: prompt.tokens,
            });
        }
        self.budget = budget;
        Ok(vec![budget; model.layers])
    }

    fn stream(
        &mut self,
        model: &ModelShape,
        prompt: &PromptShape,
        budget: usize,
    ) -> Result<(), PolicyError> {
        self.rows(model, prompt, budget).map(|_| ())
    }

    fn looks(&self) -> bool {
        false
    }

    fn select(&mut self, observation: &Observation<'_>, rows: usize) -> Retention {
        let n = observation.tokens;
        if n <= rows {
            return Retention::Everything;
        }
        let recent = n - (rows - self.sinks)..n;
        let kept: Vec<Pos> = (0..self.sinks)
            .chain(recent)
            .map(|p| Pos(p as u32))
            .collect();
        Retention::Keep(vec![kept; observation.kv_heads])
    }

    fn decode_rows(&self, _layer: usize) -> Option<usize> {
        Some(self.budget)
    }

    fn step(&mut self, step: &StepObservation<'_>, evict: &mut Evictions) {
        for (head, out) in evict.iter_mut().enumerate() {
            if step.rows[head] > self.budget {
                *out = step
                    .positions(head)
                    .iter()
                    .enumerate()
                    .filter(|(_, pos)| pos.0 as usize >= self.sinks)
                    .min_by_key(|(_, pos)| **pos)
                    .map(|(row, _)| Row(row as u32));
            }
        }
    }
}
