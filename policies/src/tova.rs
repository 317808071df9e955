//! TOVA: the last query decides (Oren et al., "Transformers are Multi-State RNNs", arXiv 2401.06104, section 3).
//!
//! One score per token and layer: the last query's probability, mean over all query heads; every kv head keeps the same rows.
//! While answering, each step's query drops the row it attends to least. No window, no memory of earlier steps. The published
//! code lets the newest token compete; `force_last` (default) keeps it.

use crate::score::sum_of_rows;
use crate::slots::lowest;
use crate::token_scores::{Protected, TokenScores, keep_best};
use crate::{
    Evictions, MethodInfo, ModelShape, Needs, Observation, Parameter, Parameters, Policy,
    PolicyError, PromptShape, Retention, Row, Softmax, StepObservation, Window,
};

/// Shown in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "tova",
    title: "TOVA",
    paper: "arXiv 2401.06104",
    keeps: "what the last query attends to, the same in every head of a layer",
    acts: "prefill and decode",
    positions: "original",
    parameters: &[
        Parameter {
            name: "force_last",
            default: "true",
            range: "true or false (false is the published code's)",
            meaning: "the newest token is always kept",
        },
        Parameter {
            name: "sinks",
            default: "4",
            range: "a whole number from 0 (0 is the paper's)",
            meaning: "first tokens that are always kept",
        },
    ],
    build: |values| {
        let p = Parameters::new(INFO.name, INFO.parameters, values)?;
        Ok(Box::new(Tova {
            force_last: p.choice("force_last", &[("true", true), ("false", false)], true)?,
            sinks: p.whole("sinks", |_| true)?.unwrap_or(4),
            budget: 0,
            slots: 0,
            scores: Vec::new(),
        }))
    },
};

/// The last query's attention.
#[derive(Debug, Clone)]
pub struct Tova {
    /// The newest token is always kept.
    pub force_last: bool,
    /// First tokens that are always kept.
    pub sinks: usize,
    budget: usize,
    /// Slots that a head may fill.
    slots: usize,
    /// `[budget + 1]`: scores of one step.
    scores: Vec<f32>,
}

impl Policy for Tova {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn needs(&self, _layer: usize) -> Needs {
        Needs {
            window: Some(Window {
                rows: 1,
                softmax: Softmax::All,
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
        let needed = self.sinks.saturating_add(1 + usize::from(self.force_last));
        if budget < needed && budget < prompt.tokens {
            return Err(PolicyError::BudgetTooSmall {
                method: INFO.name,
                rows: budget,
                needed,
                why: format!("{} sinks, the newest token and 1 other", self.sinks),
                tokens: prompt.tokens,
            });
        }
        self.budget = budget;
        self.scores = Vec::new();
        self.slots = prompt.slots(budget);
        Ok(vec![budget; model.layers])
    }

    fn stream(
        &mut self,
        model: &ModelShape,
        prompt: &PromptShape,
        budget: usize,
    ) -> Result<(), PolicyError> {
        self.rows(model, prompt, budget)?;
        self.scores.reserve_exact(self.slots);
        Ok(())
    }

    fn select(&mut self, observation: &Observation<'_>, rows: usize) -> Retention {
        let n = observation.tokens;
        self.scores.reserve_exact(self.slots);
        if n <= rows {
            return Retention::Everything;
        }
        let protected = self.protected();
        let kept = keep_best(self.layer_scores(observation), n, protected, rows);
        Retention::Keep(vec![kept; observation.kv_heads])
    }

    fn bytes(&self) -> u64 {
        (self.slots * size_of::<f32>()) as u64
    }

    fn scorer(&self) -> Option<&dyn TokenScores> {
        Some(self)
    }

    fn decode_rows(&self, _layer: usize) -> Option<usize> {
        Some(self.budget)
    }

    fn step(&mut self, step: &StepObservation<'_>, evict: &mut Evictions) {
        // Every head holds the same positions in the same slots, so one decision serves all.
        if step.rows[0] <= self.budget {
            return;
        }
        let positions = step.positions(0);
        self.scores.clear();
        self.scores.resize(positions.len(), 0.0);
        for head in 0..evict.len() {
            step.add_mean(head, &mut self.scores);
        }
        let newest = positions[step.newest(0)];
        let (force_last, sinks) = (self.force_last, self.sinks as u32);
        let out = lowest(&self.scores, positions, |p| {
            p.0 >= sinks && !(force_last && p == newest)
        });
        evict.fill(out.map(|slot| Row(slot as u32)));
    }
}

impl Tova {
    /// `[n]`: what the last query gives each token, summed over all query heads.
    fn layer_scores(&self, observation: &Observation<'_>) -> Vec<f32> {
        let n = observation.tokens;
        let window = observation.window.expect("TOVA asked for the last query");
        sum_of_rows(window, n, n)
    }
}

impl TokenScores for Tova {
    fn protected(&self) -> Protected {
        Protected {
            sinks: self.sinks,
            recent: usize::from(self.force_last),
        }
    }

    fn token_scores(&self, observation: &Observation<'_>) -> Vec<Vec<f32>> {
        vec![self.layer_scores(observation); observation.kv_heads]
    }
}
