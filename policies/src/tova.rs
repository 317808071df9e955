//! TOVA: the last query decides (Oren et al., "Transformers are Multi-State RNNs", arXiv 2401.06104, section 3).
//!
//! Each token has one score per layer: the last query's probability, averaged over all query heads; every KV head keeps
//! the same rows. In decode, each step evicts the row that its query attends to least (not with `decode=off`). Earlier
//! steps do not count. In the published code the newest token competes too; `force_last` (the default) keeps it, and
//! `recent` keeps more last tokens (TreeKV, section 5.1). The last query of a prompt is the question's; the tail of the
//! chat template after it is observed and kept in addition (`window.rs`).

use crate::decode_cap::{DECODE, evicts_in_decode, must_evict};
use crate::score::sum_of_rows;
use crate::slots::lowest;
use crate::token_scores::{Protected, TokenScores, keep_best};
use crate::{
    Evictions, MethodInfo, ModelShape, Needs, Observation, Parameter, Parameters, Policy,
    PolicyError, PromptShape, Retention, Row, Softmax, StepObservation, Window,
};

/// Entry in the table of methods.
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
            name: "recent",
            default: "1, or 0 with force_last=false",
            range: "a whole number from 0 (508 of 1024 rows in TreeKV's tables)",
            meaning: "last tokens that are always kept",
        },
        DECODE,
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
            recent: p.whole("recent", |_| true)?.unwrap_or(usize::from(p.choice(
                "force_last",
                &[("true", true), ("false", false)],
                true,
            )?)),
            decode: evicts_in_decode(&p)?,
            sinks: p.whole("sinks", |_| true)?.unwrap_or(4),
            tail: 0,
            budget: 0,
            slots: 0,
            scores: Vec::new(),
        }))
    },
};

/// Selection by the last query's attention.
#[derive(Debug, Clone)]
pub struct Tova {
    /// Number of last tokens that are always kept, in addition to the tail.
    pub recent: usize,
    /// Whether the method evicts during decode.
    pub decode: bool,
    /// Number of first tokens that are always kept.
    pub sinks: usize,
    /// Tokens of the template after the question.
    tail: usize,
    budget: usize,
    /// Slots that a head may fill.
    slots: usize,
    /// `[budget + 1]` scratch buffer: scores of one step.
    scores: Vec<f32>,
}

impl Policy for Tova {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn needs(&self, _layer: usize) -> Needs {
        Needs {
            window: Some(Window {
                rows: 1 + self.tail,
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
        self.tail = prompt.tail;
        let recent = self.protected().recent;
        let needed = self.sinks.saturating_add(recent).saturating_add(1);
        if budget < needed && budget < prompt.tokens {
            return Err(PolicyError::BudgetTooSmall {
                method: INFO.name,
                rows: budget,
                needed,
                why: format!("{} sinks, {recent} last tokens and 1 other", self.sinks),
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
        must_evict(INFO.name, self.decode)?;
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

    fn token_scorer(&self) -> Option<&dyn TokenScores> {
        Some(self)
    }

    fn decode_rows(&self, _layer: usize) -> Option<usize> {
        self.decode.then_some(self.budget)
    }

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
        let end = positions[step.newest(0)].0 + 1;
        let (recent, sinks) = (self.recent as u32, self.sinks as u32);
        let out = lowest(&self.scores, positions, |p| {
            p.0 >= sinks && p.0.saturating_add(recent) < end
        });
        evict.fill(out.map(|slot| Row(slot as u32)));
    }
}

impl Tova {
    /// `[n]`: attention of the last query and the tail to each token, mean over these rows, summed over all query
    /// heads.
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
            recent: match self.recent {
                0 => 0,
                recent => recent.saturating_add(self.tail),
            },
        }
    }

    fn token_scores(&self, observation: &Observation<'_>) -> Vec<Vec<f32>> {
        vec![self.layer_scores(observation); observation.kv_heads]
    }
}
