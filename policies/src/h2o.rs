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

use crate::decode_cap::{DECODE, evicts_in_decode, must_evict};
use crate::heads::par_map;
use crate::slots::{SlotNumbers, lowest};
use crate::token_scores::{Protected, TokenScores, keep_best};
use crate::{
    Evictions, GroupReduce, MethodInfo, ModelShape, Needs, Observation, Parameter, Parameters,
    Policy, PolicyError, Pos, PromptShape, Retention, Row, Snapshot, StepObservation, group_reduce,
};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "h2o",
    title: "H2O",
    paper: "arXiv 2306.14048",
    keeps: "what all queries so far attended to most, and the most recent tokens",
    acts: "prefill and decode",
    positions: "original",
    parameters: &[
        Parameter {
            name: "recent",
            default: "half of the budget",
            range: "a whole number from 1",
            meaning: "last tokens that are always kept",
        },
        Parameter {
            name: "normalise",
            default: "false",
            range: "true or false",
            meaning: "divide a prompt token's score by the number of queries that see it, when the prompt is cut",
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
        Ok(Box::new(H2o {
            recent: p.whole("recent", |r| r >= 1)?,
            normalise: p.choice("normalise", &[("true", true), ("false", false)], false)?,
            decode: evicts_in_decode(&p)?,
            sinks: p.whole("sinks", |_| true)?.unwrap_or(4),
            ..H2o::default()
        }))
    },
};

/// Eviction by accumulated attention.
#[derive(Debug, Clone, Default)]
pub struct H2o {
    /// Number of last tokens that are always kept; `None` takes half of the budget.
    pub recent: Option<usize>,
    /// Divide by the number of queries that attend to a key.
    pub normalise: bool,
    /// Whether the method evicts during decode.
    pub decode: bool,
    /// Number of first tokens that are always kept.
    pub sinks: usize,
    budget: usize,
    chosen_recent: usize,
    /// Accumulated attention per slot.
    scores: SlotNumbers,
}

impl Policy for H2o {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn needs(&self, _layer: usize) -> Needs {
        Needs {
            column_sums: true,
            uncut: true,
            ..Needs::default()
        }
    }

    fn rows(
        &mut self,
        model: &ModelShape,
        prompt: &PromptShape,
        budget: usize,
    ) -> Result<Vec<usize>, PolicyError> {
        self.budget = budget;
        self.chosen_recent = self.recent.unwrap_or((budget / 2).max(1));
        let needed = (self.chosen_recent)
            .saturating_add(self.sinks)
            .saturating_add(1);
        if budget < needed && budget < prompt.tokens {
            return Err(PolicyError::BudgetTooSmall {
                method: INFO.name,
                rows: budget,
                needed,
                why: format!(
                    "{} recent tokens, {} sinks and 1 heavy hitter",
                    self.chosen_recent, self.sinks
                ),
                tokens: prompt.tokens,
            });
        }
        let slots = prompt.slots(budget);
        self.scores.start(model.layers, model.kv_heads, slots);
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
        let nothing = vec![Vec::new(); model.kv_heads];
        for layer in 0..model.layers {
            self.scores.set(layer, &nothing, |_, _| 0.0);
        }
        Ok(())
    }

    fn snapshot(&mut self, through: &mut dyn Snapshot) {
        self.scores.snapshot(through);
    }

    fn select(&mut self, observation: &Observation<'_>, rows: usize) -> Retention {
        let n = observation.tokens;
        let heads = self.sums(observation);
        let protected = self.protected();
        let kept: Vec<Vec<Pos>> = par_map(&heads, n, |_, sums| {
            if n <= rows {
                (0..n as u32).map(Pos).collect()
            } else {
                keep_best(self.rated(sums.clone()), n, protected, rows)
            }
        });
        self.scores.set(observation.layer, &kept, |head, position| {
            heads[head][position]
        });
        if n <= rows {
            Retention::Everything
        } else {
            Retention::Keep(kept)
        }
    }

    fn bytes(&self) -> u64 {
        self.scores.bytes()
    }

    fn token_scorer(&self) -> Option<&dyn TokenScores> {
        Some(self)
    }

    fn decode_rows(&self, _layer: usize) -> Option<usize> {
        self.decode.then_some(self.budget)
    }

    fn step(&mut self, step: &StepObservation<'_>, evict: &mut Evictions) {
        for (head, out) in evict.iter_mut().enumerate() {
            let positions = step.positions(head);
            let newest = step.newest(head);
            let scores = self.scores.of(step.layer, head, positions.len());
            scores[newest] = 0.0;
            step.add_mean(head, scores);
            if positions.len() > self.budget {
                let (recent, sinks) = (self.chosen_recent as u32, self.sinks as u32);
                let last = positions[newest].0;
                *out = lowest(scores, positions, |p| p.0 + recent <= last && p.0 >= sinks)
                    .map(|slot| Row(slot as u32));
            }
        }
    }
}

impl H2o {
    /// `[kv_heads][n]`: attention from all queries to each token, mean over the group.
    fn sums(&self, observation: &Observation<'_>) -> Vec<Vec<f32>> {
        let (n, group) = (observation.tokens, observation.group);
        let sums = observation.column_sums.expect("H2O asked for column sums");
        let heads = sums.chunks_exact(n * group);
        par_map(heads, n * group, |_, head| {
            group_reduce(head, n, group, GroupReduce::Mean)
        })
    }

    /// `[n - recent]`: the scores of a head, from its sums.
    fn rated(&self, mut sums: Vec<f32>) -> Vec<f32> {
        let n = sums.len();
        sums.truncate(n - self.chosen_recent);
        if self.normalise {
            // The queries j..n attend to key j.
            let seen_by = (1..=n).rev();
            (sums.iter_mut().zip(seen_by)).for_each(|(s, queries)| *s /= queries as f32);
        }
        sums
    }
}

impl TokenScores for H2o {
    fn protected(&self) -> Protected {
        Protected {
            sinks: self.sinks,
            recent: self.chosen_recent,
        }
    }

    fn token_scores(&self, observation: &Observation<'_>) -> Vec<Vec<f32>> {
        let sums = self.sums(observation);
        par_map(sums, observation.tokens, |_, sums| self.rated(sums))
    }
}
