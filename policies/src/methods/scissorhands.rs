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

use crate::info::read;
use crate::options::{FROM_1, PAPER_HAS_0, Range, options};
use crate::parallel::par_map;
use crate::{
    Evict, Evictions, LowAttention, Method, MethodInfo, Observation, PolicyError, Pos, Protected,
    Retention, RowPlan, RowRequest, Select, Selection, StepObservation, top_positions,
};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "scissorhands",
    title: "Scissorhands",
    paper: "arXiv 2305.17118",
    keeps: "tokens that stayed important recently, and the most recent ones",
    acts: "prefill and decode",
    positions: "original",
    parameters: Scissorhands::OPTIONS,
    build: |values| read(&INFO, values, Scissorhands::read),
};

options! {
    /// Eviction by marks for low attention.
    #[derive(Debug, Clone)]
    pub struct Scissorhands {
        /// last queries whose attention counts
        history: usize => "history", "400",
            Range::Whole("a whole number from 1 to 65536", |n| (1..=1 << 16).contains(&n));
        /// last tokens that are always kept
        recent: usize => "recent", "10", FROM_1;
        /// tokens that go at once when the cache is full while answering
        drop: Option<usize> => "drop", "half of the budget", FROM_1;
        /// first tokens that are always kept
        sinks: usize => "sinks", "4", PAPER_HAS_0;
    }
}

impl Scissorhands {
    fn words(&self) -> usize {
        self.history.div_ceil(u64::BITS as usize)
    }
}

impl Method for Scissorhands {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        let RowRequest { model, prompt, .. } = request;
        let budget = request.budget;
        let recent = self.recent.max(prompt.kept_last);
        let mut plan = RowPlan::uniform(request)
            .protecting(self.sinks, recent)
            .evicting(true, budget)
            .measuring(|needs| {
                needs.low_attention = Some(self.history);
                needs.even_if_all_kept = true;
            })
            .require_protected_and_one(INFO.name, || {
                format!("{recent} recent tokens, {} sinks and 1 other", self.sinks)
            })?;
        let marks = model.layers * model.kv_heads * self.words() * size_of::<u64>();
        let scratch = size_of::<f32>() + size_of::<u32>();
        plan.bytes = (prompt.slots(budget) * (marks + scratch)) as u64;
        Ok(plan)
    }

    fn start(&self, plan: &RowPlan) -> Box<dyn Select> {
        let slots = plan.prompt.slots(plan.budget);
        Box::new(State {
            words: self.words(),
            history: self.history,
            drop: self.drop.unwrap_or(plan.budget / 2).max(1),
            protected: plan.protected,
            budget: plan.budget,
            layers: vec![Layer::default(); plan.model.layers],
            seen: Vec::with_capacity(slots),
            order: Vec::with_capacity(slots),
        })
    }
}

/// The state of one prompt and its answer.
struct State {
    /// Words per slot: `history` bits.
    words: usize,
    history: usize,
    drop: usize,
    protected: Protected,
    budget: usize,
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

/// `[n]`: minus the number of marks of each token; infinite for the protected tokens.
fn scores(low: &LowAttention<'_>, head: usize, n: usize, protected: Protected) -> Vec<f32> {
    let words = low.words();
    let bits = &low.bits[head * n * words..][..n * words];
    let marks = |key: &[u64]| key.iter().map(|w| w.count_ones()).sum::<u32>();
    let mut scores: Vec<f32> = (bits.chunks_exact(words))
        .map(|key| -(marks(key) as f32))
        .collect();
    scores[n.saturating_sub(protected.recent)..].fill(f32::INFINITY);
    scores[..protected.sinks.min(n)].fill(f32::INFINITY);
    scores
}

impl Select for State {
    fn select(&mut self, plan: &RowPlan, observation: &Observation<'_>) -> Selection {
        let (n, rows) = (observation.tokens, plan.rows[observation.layer]);
        let low = (observation.low_attention).expect("Scissorhands requested low attention");
        let slots = plan.prompt.slots(plan.budget);
        let heads = 0..observation.kv_heads;
        let heads = par_map(observation.threads, heads, n * low.words(), |head, _| {
            let scores = scores(&low, head, n, plan.protected);
            let chosen = top_positions(&scores, rows.min(n));
            let mut bits = Vec::with_capacity(slots * self.words);
            for &token in &chosen {
                let first = (head * n + token as usize) * low.words();
                let marks = &low.bits[first..first + low.words()];
                bits.extend((0..self.words).map(|word| marks.get(word).copied().unwrap_or(0)));
            }
            (bits, chosen.into_iter().map(Pos).collect())
        });
        let (bits, kept): (_, Vec<_>) = heads.into_iter().unzip();
        self.layers[observation.layer] = Layer {
            next: low.rows % self.history,
            bits,
        };
        if n <= rows {
            Retention::Everything.into()
        } else {
            Retention::Keep(kept).into()
        }
    }

    fn evictor(self: Box<Self>) -> Option<Box<dyn Evict>> {
        Some(self)
    }
}

impl Evict for State {
    fn step(&mut self, step: &StepObservation<'_>, _evict: &mut Evictions) {
        let words = self.words;
        let layer = &mut self.layers[step.layer];
        let word = layer.next / u64::BITS as usize;
        let bit = 1u64 << (layer.next % u64::BITS as usize);
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
        let words = self.words;
        let mut any = false;
        for (head, bits) in self.layers[step.layer].bits.iter_mut().enumerate() {
            let positions = step.positions(head);
            if positions.len() <= self.budget {
                continue;
            }
            any = true;
            let newest = positions[step.newest[head]].0;
            let (recent, sinks) = (self.protected.recent as u32, self.protected.sinks as u32);
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
            let keep = &mut keep[step.firsts[head]..][..positions.len()];
            for &slot in self.order.iter().take(self.drop) {
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
