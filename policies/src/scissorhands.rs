//! Scissorhands: tokens that were important stay important (Liu et al., "Scissorhands: Exploiting the Persistence of
//! Importance Hypothesis for LLM KV Cache Compression at Test Time", arXiv 2305.17118, algorithms 1 and 2).
//!
//! A token gets a mark for each of the last `history` queries that gave it less than the average attention, which is
//! `1 / t` for a query that attends to t tokens. When the cache is full, the `drop` tokens with the most marks are
//! evicted at once. The last `recent` tokens are never evicted.
//!
//! ```text
//! history 4, marks   token  0  1  2  3 | 4  5       drop 2: tokens 1 and 3 are evicted
//!                           0  4  1  3 | -  -       recent 2
//! ```
//!
//! Left open by the paper, decided here: probabilities are averaged over the query heads of a KV head before the
//! comparison with `1 / t`; a query that does not attend to a token does not mark it; on equal marks the later token is
//! evicted; the prompt is cut to the whole budget (as in every method of this crate), and the first token of the answer
//! above it triggers the first drop; every layer and head has the same budget.

use crate::heads::par_map;
use crate::{
    Evictions, LowAttention, MethodInfo, ModelShape, Needs, Observation, Parameter, Parameters,
    Policy, PolicyError, Pos, PromptShape, Retention, StepObservation, top_positions,
};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "scissorhands",
    title: "Scissorhands",
    paper: "arXiv 2305.17118",
    keeps: "tokens that stayed important recently, and the most recent ones",
    acts: "prefill and decode",
    positions: "original",
    parameters: &[
        Parameter {
            name: "history",
            default: "400",
            range: "a whole number from 1",
            meaning: "last queries whose attention counts",
        },
        Parameter {
            name: "recent",
            default: "10",
            range: "a whole number from 1",
            meaning: "last tokens that are always kept",
        },
        Parameter {
            name: "drop",
            default: "half of the budget",
            range: "a whole number from 1",
            meaning: "tokens that go at once when the cache is full while answering",
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
        Ok(Box::new(Scissorhands {
            history: p.whole("history", |h| h >= 1)?.unwrap_or(400),
            recent: p.whole("recent", |r| r >= 1)?.unwrap_or(10),
            drop: p.whole("drop", |d| d >= 1)?,
            sinks: p.whole("sinks", |_| true)?.unwrap_or(4),
            budget: 0,
            slots: 0,
            kv_heads: 0,
            layers: Vec::new(),
            seen: Vec::new(),
            order: Vec::new(),
        }))
    },
};

/// Eviction by marks for low attention.
#[derive(Debug, Clone)]
pub struct Scissorhands {
    /// Number of last queries whose attention counts.
    pub history: usize,
    /// Number of last tokens that are always kept.
    pub recent: usize,
    /// Number of tokens evicted at once; `None` takes half of the budget.
    pub drop: Option<usize>,
    /// Number of first tokens that are always kept.
    pub sinks: usize,
    budget: usize,
    /// Slots that a head may fill.
    slots: usize,
    kv_heads: usize,
    layers: Vec<Layer>,
    /// `[slots]` scratch buffer: probabilities of one step.
    seen: Vec<f32>,
    /// `[slots]` scratch buffer of a drop: slots sorted by marks.
    order: Vec<u32>,
}

/// The marks of one layer: a ring buffer of `history` bits per slot.
#[derive(Debug, Clone, Default)]
struct Layer {
    /// Index of the bit that the next query writes.
    next: usize,
    /// `[kv_heads][slots * words]`
    bits: Vec<Vec<u64>>,
}

impl Scissorhands {
    fn words(&self) -> usize {
        self.history.div_ceil(u64::BITS as usize)
    }

    /// `[n]`: minus the number of marks of each token; infinite for the sinks and the recent tokens.
    fn scores(&self, low_attention: &LowAttention<'_>, head: usize, n: usize) -> Vec<f32> {
        let words = low_attention.words();
        let bits = &low_attention.bits[head * n * words..][..n * words];
        let mut scores: Vec<f32> = bits
            .chunks_exact(words)
            .map(|key| -(key.iter().map(|w| w.count_ones()).sum::<u32>() as f32))
            .collect();
        scores[n.saturating_sub(self.recent)..].fill(f32::INFINITY);
        scores[..self.sinks.min(n)].fill(f32::INFINITY);
        scores
    }
}

impl Policy for Scissorhands {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn needs(&self, _layer: usize) -> Needs {
        Needs {
            low_attention: Some(self.history),
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
        let needed = self.recent.saturating_add(self.sinks).saturating_add(1);
        if budget < needed && budget < prompt.tokens {
            return Err(PolicyError::BudgetTooSmall {
                method: INFO.name,
                rows: budget,
                needed,
                why: format!(
                    "{} recent tokens, {} sinks and 1 other",
                    self.recent, self.sinks
                ),
                tokens: prompt.tokens,
            });
        }
        self.budget = budget;
        self.layers = vec![Layer::default(); model.layers];
        self.kv_heads = model.kv_heads;
        self.slots = prompt.slots(budget);
        (self.seen, self.order) = (Vec::new(), Vec::new());
        Ok(vec![budget; model.layers])
    }

    fn select(&mut self, observation: &Observation<'_>, rows: usize) -> Retention {
        let n = observation.tokens;
        let low_attention = (observation.low_attention).expect("Scissorhands asked for low scores");
        let words = self.words();
        self.seen.reserve_exact(self.slots);
        self.order.reserve_exact(self.slots);
        let heads = par_map(
            0..observation.kv_heads,
            n * low_attention.words(),
            |_, head| {
                let chosen = top_positions(&self.scores(&low_attention, head, n), rows.min(n));
                let mut bits = Vec::with_capacity(self.slots * words);
                for &token in &chosen {
                    let first = (head * n + token as usize) * low_attention.words();
                    let marks = &low_attention.bits[first..first + low_attention.words()];
                    bits.extend((0..words).map(|word| marks.get(word).copied().unwrap_or(0)));
                }
                (bits, chosen.into_iter().map(Pos).collect())
            },
        );
        let (bits, kept): (_, Vec<_>) = heads.into_iter().unzip();
        self.layers[observation.layer] = Layer {
            next: low_attention.rows % self.history,
            bits,
        };
        if n <= rows {
            Retention::Everything
        } else {
            Retention::Keep(kept)
        }
    }

    fn decode_rows(&self, _layer: usize) -> Option<usize> {
        Some(self.budget)
    }

    fn bytes(&self) -> u64 {
        let marks = self.layers.len() * self.kv_heads * self.words() * size_of::<u64>();
        (self.slots * (marks + size_of::<f32>() + size_of::<u32>())) as u64
    }

    fn step(&mut self, step: &StepObservation<'_>, _evict: &mut Evictions) {
        let words = self.words();
        let layer = &mut self.layers[step.layer];
        let (word, bit) = (
            layer.next / u64::BITS as usize,
            1u64 << (layer.next % u64::BITS as usize),
        );
        for (head, bits) in layer.bits.iter_mut().enumerate() {
            let rows = step.rows[head];
            self.seen.clear();
            self.seen.resize(rows, 0.0);
            step.add_mean(head, &mut self.seen);
            // Slots are compacted after every drop, so a new token is always in the last slot.
            bits.resize(rows * words, 0);
            let average = 1.0 / rows as f32;
            for (marks, p) in bits.chunks_exact_mut(words).zip(&self.seen) {
                if *p < average {
                    marks[word] |= bit
                } else {
                    marks[word] &= !bit
                }
            }
        }
        layer.next = (layer.next + 1) % self.history;
    }

    fn evict_many(&mut self, step: &StepObservation<'_>, keep: &mut [bool]) -> bool {
        let words = self.words();
        let mut any = false;
        for (head, bits) in self.layers[step.layer].bits.iter_mut().enumerate() {
            let positions = step.positions(head);
            if positions.len() <= self.budget {
                continue;
            }
            any = true;
            let newest = positions[step.newest(head)].0;
            let (recent, sinks) = (self.recent as u32, self.sinks as u32);
            let may_go = |slot: &u32| {
                let position = positions[*slot as usize].0;
                position + recent <= newest && position >= sinks
            };
            let marks = |slot: u32| -> u32 {
                let marks = &bits[slot as usize * words..][..words];
                marks.iter().map(|w| w.count_ones()).sum()
            };
            self.order.clear();
            self.order
                .extend((0..positions.len() as u32).filter(may_go));
            self.order.sort_unstable_by(|&a, &b| {
                let later = positions[b as usize].cmp(&positions[a as usize]);
                marks(b).cmp(&marks(a)).then(later)
            });
            let drop = self.drop.unwrap_or(self.budget / 2).max(1);
            let keep = &mut keep[step.firsts[head]..][..positions.len()];
            for &slot in self.order.iter().take(drop) {
                keep[slot as usize] = false;
            }
            let mut next = 0;
            for (slot, _) in keep.iter().enumerate().filter(|(_, stays)| **stays) {
                bits.copy_within(slot * words..(slot + 1) * words, next * words);
                next += 1;
            }
            bits.truncate(next * words);
        }
        any
    }
}
