//! CaM: evicted values are merged into kept tokens (Zhang et al., "CaM: Cache Merging for Memory-efficient LLMs
//! Inference", ICML 2024, openreview LCTmppB165, equation 14).
//!
//! A wrapper around any method that evicts (`base`). Before a token is evicted, a share of its value is added to the
//! next `m` kept tokens after it; keys do not change. The share depends on a merge probability `p`: the attention A_i
//! of the evicted token i, divided by the mean attention of those `m` tokens:
//!
//! ```text
//! p = clamp(A_i / mean(A of targets), 0, 1)          evicted i      kept targets a b c     m = 3
//! expected:  v_a += p v_i / m                            v_i   --->   v_a  v_b  v_c
//! sample:    v_a += v_i / m  with probability p
//! ```
//!
//! A is the attention of the prompt's last `w` queries and of every later query. (Sums over the whole prompt would make
//! p 1 for almost every token, because more queries attend to early keys.) Only evicted tokens are merged, each with
//! its own value and without earlier merges into it. `expected` is deterministic and the default; merging without `p`
//! is worse than eviction, in the paper too.

use std::sync::Arc;

use super::decode_cap::{DECODE_CAP, DECODE_EVERY, DECODE_W};
use super::{Base, own_and_base};
use crate::methods::random::{GOLDEN_RATIO, uniform};
use crate::options::{FROM_1, Range, SEED, options};
use crate::parallel::par_map;
use crate::slots::SlotNumbers;
use crate::window::default_window;
use crate::{
    DecodeValueMerge, Evict, Evictions, GroupReduce, Method, MethodInfo, Observation,
    ObservationWindow, PolicyError, Pos, Retention, Row, RowPlan, RowRequest, Score, Select,
    Selection, Softmax, StepObservation, ValueMerge, group_reduce,
};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "cam",
    title: "CaM",
    paper: "openreview LCTmppB165",
    keeps: "what its base method keeps; evicted values are merged into the kept tokens after them",
    acts: "when its base evicts",
    positions: "its base's",
    parameters: Options::OPTIONS,
    build,
};

const BASES: &str = "snapkv, pyramidkv, chunkkv, hbw_kv, keydiff, expected_attention, kvzip, pyramidinfer, adakv, knorm, random, streaming_llm, h2o, tova or treekv";

options! {
    /// CaM's own options; the base's can be set too.
    #[derive(Debug, Clone)]
    pub struct Options {
        /// the method that it is based on; its own parameters can be set too
        base: Base => "base", "snapkv", Range::Word(BASES);
        /// kept tokens that share an evicted value
        m: usize => "m", "32", FROM_1;
        /// multiply by the probability, or merge with it
        sample: bool => "mode", "expected", Range::Flag("expected or sample", ["expected", "sample"]);
        /// seed of mode=sample
        seed: usize => "seed", "0", SEED;
    }
}

fn build(values: &[(String, String)]) -> Result<Arc<dyn Method>, PolicyError> {
    let (p, base) = own_and_base(&INFO, values)?;
    let options = Options::read(&p)?;
    let cap = [DECODE_CAP, DECODE_EVERY, DECODE_W].map(|option| option.name);
    if let Some((name, value)) = base.iter().find(|(name, _)| cap.contains(&&**name)) {
        return Err(PolicyError::ConflictingSettings {
            method: INFO.name,
            first: format!("base={}", p.given("base").unwrap_or("snapkv")),
            second: format!("{name}={value}"),
            why: "it merges what its base evicts, and the cap is not part of the base",
        });
    }
    let base = options.base.build(&base)?;
    Ok(Arc::new(Cam {
        base,
        m: options.m,
        gate: Gate {
            sample: options.sample,
            state: options.seed as u64,
        },
    }))
}

/// Merging of evicted values, on top of a method that evicts.
pub struct Cam {
    /// The method that evicts.
    pub base: Arc<dyn Method>,
    /// Kept tokens that share an evicted value.
    pub m: usize,
    gate: Gate,
}

/// The merge probability, or a sample from it.
#[derive(Debug, Clone, Copy)]
struct Gate {
    /// Whether to sample merges instead of their expectation.
    sample: bool,
    /// State of the random generator.
    state: u64,
}

impl Gate {
    /// The probability itself, or 0 or 1 sampled with it.
    fn pass(&mut self, probability: f32) -> f32 {
        if !self.sample {
            return probability;
        }
        let uniform = uniform(self.state);
        self.state = self.state.wrapping_add(GOLDEN_RATIO);
        f32::from(u8::from(uniform < probability))
    }
}

fn mean_of(numbers: impl ExactSizeIterator<Item = f32>) -> f32 {
    let count = numbers.len() as f32;
    numbers.sum::<f32>() / count
}

/// The merge probability of an evicted value, from its attention `own` and the `mean` attention of its targets.
pub fn merge_probability(own: f32, mean: f32) -> f32 {
    match mean > 0.0 {
        true => (own / mean).clamp(0.0, 1.0),
        false if own > 0.0 => 1.0,
        false => 0.0,
    }
}

impl Cam {
    /// Slots that a head may fill during decode; 0 if the base does not evict during decode.
    fn slots(&self, plan: &RowPlan) -> usize {
        let rows = plan.decode_rows.iter().flatten().max();
        rows.map_or(0, |&rows| plan.prompt.slots(rows))
    }
}

impl Method for Cam {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        let RowRequest { model, .. } = request;
        let mut plan = self.base.plan(request)?;
        if plan.layer_input_tokens.is_some() {
            return Err(PolicyError::ConflictingSettings {
                method: INFO.name,
                first: format!("base={}", self.base.name()),
                second: "variant=faithful".to_owned(),
                why: "it evicts nothing whose value could be merged; set variant=budgeted",
            });
        }
        let own = ObservationWindow {
            rows: observed_queries(&plan),
            softmax: Softmax::All,
        };
        for needs in &mut plan.needs {
            needs.observation_window.get_or_insert(own);
            needs.even_if_all_kept |= plan.decode_rows.is_some();
        }
        plan.merges_values = true;
        let slots = self.slots(&plan);
        plan.merges_values_in_decode = slots > 0;
        plan.needs_probabilities |= plan.merges_values_in_decode;
        let merges = self.m.min(slots) * model.kv_heads * size_of::<DecodeValueMerge>();
        let order = slots * size_of::<(Pos, u32)>();
        plan.bytes += SlotNumbers::new(model, slots).bytes() + (order + merges) as u64;
        Ok(plan)
    }

    fn start(&self, plan: &RowPlan) -> Box<dyn Select> {
        let slots = self.slots(plan);
        Box::new(Merging {
            base: self.base.start(plan),
            m: self.m,
            gate: self.gate,
            queries: observed_queries(plan),
            attention: SlotNumbers::new(&plan.model, slots),
            order: Vec::with_capacity(slots),
            merges: Vec::with_capacity(self.m.min(slots) * plan.model.kv_heads),
        })
    }

    fn scorer(&self) -> Option<&dyn Score> {
        self.base.scorer()
    }
}

/// Queries that are observed: those of the base's window, or of the default one.
fn observed_queries(plan: &RowPlan) -> usize {
    let window = plan.needs.iter().find_map(|needs| needs.observation_window);
    let default_rows = default_window(plan.budget) + plan.prompt.tail;
    window.map_or(default_rows, |window| window.rows)
}

/// The state of one prompt or answer, with that of the base.
struct Merging<B> {
    base: B,
    m: usize,
    gate: Gate,
    /// Queries observed during prefill.
    queries: usize,
    /// Attention per slot: sum over the observed queries of the prompt and all later queries.
    attention: SlotNumbers,
    /// `[slots]`: scratch buffer, slots sorted by position.
    order: Vec<(Pos, u32)>,
    merges: Vec<DecodeValueMerge>,
}

impl Merging<Box<dyn Select>> {
    /// Merges of the values that `kept` evicts, with `attention` `[kv_heads][n]`.
    fn merges_of(&mut self, kept: &[Vec<Pos>], attention: &[Vec<f32>]) -> Vec<ValueMerge> {
        let mut merges = Vec::new();
        for (head, kept) in kept.iter().enumerate() {
            let attention_to = |pos: &Pos| attention[head][pos.0 as usize];
            let (mut first, mut mean) = (0, None);
            for token in 0..attention[head].len() as u32 {
                if kept.get(first) == Some(&Pos(token)) {
                    (first, mean) = (first + 1, None);
                    continue;
                }
                let targets = &kept[first..kept.len().min(first + self.m)];
                if targets.is_empty() {
                    continue;
                }
                let mean = *mean.get_or_insert_with(|| mean_of(targets.iter().map(attention_to)));
                let p = merge_probability(attention_to(&Pos(token)), mean);
                let weight = self.gate.pass(p) / targets.len() as f32;
                if weight > 0.0 {
                    merges.push(ValueMerge {
                        head,
                        from: Pos(token),
                        first,
                        count: targets.len(),
                        weight,
                    });
                }
            }
        }
        merges
    }

    /// `[kv_heads][n]`: attention, summed over the queries of the observation window.
    fn attention(&self, observation: &Observation<'_>) -> Vec<Vec<f32>> {
        let (n, group) = (observation.tokens, observation.group);
        let rows = self.queries.min(n) as f32;
        let heads = observation.window_heads();
        par_map(observation.threads, heads, n * group, |_, head| {
            let mut mean = group_reduce(head, n, group, GroupReduce::Mean);
            mean.iter_mut().for_each(|a| *a *= rows);
            mean
        })
    }
}

impl Select for Merging<Box<dyn Select>> {
    fn select(&mut self, plan: &RowPlan, observation: &Observation<'_>) -> Selection {
        let mut selection = self.base.select(plan, observation);
        let evicts = plan.decode_rows.is_some();
        let kept = match &selection.retention {
            Retention::Keep(heads) => heads.clone(),
            _ if evicts => {
                let everything = (0..observation.tokens as u32).map(Pos).collect();
                vec![everything; observation.kv_heads]
            }
            _ => return selection,
        };
        let attention = self.attention(observation);
        if evicts {
            (self.attention).set(observation.layer, &kept, |head, position| {
                attention[head][position]
            });
        }
        if selection.retention != Retention::Everything {
            selection.value_merges = self.merges_of(&kept, &attention);
        }
        selection
    }

    fn score_pass(&mut self, plan: &RowPlan, observation: &Observation<'_>) {
        self.base.score_pass(plan, observation);
    }

    fn allocate_budget(&mut self, plan: &RowPlan) -> RowPlan {
        self.base.allocate_budget(plan)
    }

    fn evictor(self: Box<Self>) -> Option<Box<dyn Evict>> {
        let base = self.base.evictor()?;
        Some(Box::new(Merging {
            base,
            m: self.m,
            gate: self.gate,
            queries: self.queries,
            attention: self.attention,
            order: self.order,
            merges: self.merges,
        }))
    }
}

impl Evict for Merging<Box<dyn Evict>> {
    fn step(&mut self, step: &StepObservation<'_>, evict: &mut Evictions) {
        self.merges.clear();
        self.base.step(step, evict);
        for (head, gone) in evict.iter().enumerate() {
            let positions = step.positions(head);
            let attention = self.attention.of(step.layer, head, positions.len());
            attention[step.newest[head]] = 0.0;
            step.add_mean(head, attention);
            let Some(gone) = *gone else { continue };
            let from = positions[gone.0 as usize];
            self.order.clear();
            let later = positions.iter().zip(0u32..).filter(|(pos, _)| **pos > from);
            self.order.extend(later.map(|(pos, slot)| (*pos, slot)));
            self.order.sort_unstable();
            self.order.truncate(self.m);
            if self.order.is_empty() {
                continue;
            }
            let targets = self.order.iter().map(|(_, slot)| attention[*slot as usize]);
            let p = merge_probability(attention[gone.0 as usize], mean_of(targets));
            let weight = self.gate.pass(p) / self.order.len() as f32;
            if weight > 0.0 {
                let merges = self.order.iter().map(|(_, slot)| DecodeValueMerge {
                    head,
                    from: gone,
                    to: Row(*slot),
                    weight,
                });
                self.merges.extend(merges);
            }
        }
    }

    fn value_merges(&self) -> &[DecodeValueMerge] {
        &self.merges
    }
}
