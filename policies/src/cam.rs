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

use crate::heads::par_map;
use crate::slots::SlotNumbers;
use crate::window::window_for;
use crate::{
    DecodeValueMerge, Evictions, GroupReduce, MethodInfo, ModelShape, Needs, Observation,
    Parameter, Parameters, Policy, PolicyError, Pos, Positions, PromptShape, Retention, Row,
    Softmax, StepObservation, ValueMerge, Window, group_reduce,
};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "cam",
    title: "CaM",
    paper: "openreview LCTmppB165",
    keeps: "what its base method keeps; evicted values are merged into the kept tokens after them",
    acts: "when its base evicts",
    positions: "its base's",
    parameters: &[
        Parameter {
            name: "base",
            default: "snapkv",
            range: BASES,
            meaning: "the method that it is based on; its own parameters can be set too",
        },
        Parameter {
            name: "m",
            default: "32",
            range: "a whole number from 1",
            meaning: "kept tokens that share an evicted value",
        },
        Parameter {
            name: "mode",
            default: "expected",
            range: "expected or sample",
            meaning: "multiply by the probability, or merge with it",
        },
        Parameter {
            name: "seed",
            default: "0",
            range: "a whole number from 0",
            meaning: "seed of mode=sample",
        },
    ],
    build: |values| {
        let own = |name: &str| INFO.parameters.iter().any(|p| p.name == name);
        let (mine, others): (Vec<_>, Vec<_>) = values.iter().cloned().partition(|(n, _)| own(n));
        let p = Parameters::new(INFO.name, INFO.parameters, &mine)?;
        let name = p.given("base").unwrap_or("snapkv");
        let known = BASES.split([' ', ',']).any(|base| base == name);
        let base = match crate::find(name) {
            Ok(info) if known => (info.build)(&others)?,
            _ => return Err(p.not_allowed("base", name)),
        };
        Ok(Box::new(Cam {
            base,
            m: p.whole("m", |m| m >= 1)?.unwrap_or(32),
            sample: p.choice("mode", &[("expected", false), ("sample", true)], false)?,
            state: p.whole("seed", |_| true)?.unwrap_or(0) as u64,
            w: 0,
            slots: 0,
            most_spills: 0,
            seen: SlotNumbers::default(),
            order: Vec::new(),
            decode_value_merges: Vec::new(),
        }))
    },
};

const BASES: &str = "snapkv, pyramidkv, chunkkv, hbw_kv, keydiff, expected_attention, kvzip, pyramidinfer, adakv, streaming_llm, h2o, tova or treekv";

/// Merging of evicted values, on top of a method that evicts.
pub struct Cam {
    /// The method that evicts.
    pub base: Box<dyn Policy>,
    /// Kept tokens that share an evicted value.
    pub m: usize,
    /// Whether to sample merges instead of their expectation.
    pub sample: bool,
    /// State of the random generator.
    state: u64,
    /// Queries observed during prefill.
    w: usize,
    /// Slots that a head may fill during decode; 0 if the base does not evict during decode.
    slots: usize,
    most_spills: usize,
    /// Attention per slot: sum over the last `w` queries of the prompt and all later queries.
    seen: SlotNumbers,
    /// `[slots]`: scratch buffer, slots sorted by position.
    order: Vec<(Pos, u32)>,
    decode_value_merges: Vec<DecodeValueMerge>,
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
    /// The probability itself, or 0 or 1 sampled with it.
    fn gate(sample: bool, state: &mut u64, probability: f32) -> f32 {
        if !sample {
            return probability;
        }
        // splitmix64: Steele, Lea and Flood, 2014.
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let uniform = ((z ^ (z >> 31)) >> 40) as f32 / (1u32 << 24) as f32;
        f32::from(u8::from(uniform < probability))
    }

    /// `[kv_heads][n]`: attention, summed over the queries of the observation window.
    fn attention(&self, observation: &Observation<'_>) -> Vec<Vec<f32>> {
        let (n, group) = (observation.tokens, observation.group);
        let rows = self.w.min(n) as f32;
        let window = observation.window.expect("CaM asked for a window");
        let heads = window.chunks_exact(n * group);
        par_map(heads, n * group, |_, head| {
            let mut mean = group_reduce(head, n, group, GroupReduce::Mean);
            mean.iter_mut().for_each(|a| *a *= rows);
            mean
        })
    }
}

impl Policy for Cam {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn needs(&self, layer: usize) -> Needs {
        let base = self.base.needs(layer);
        let own = Window {
            rows: self.w,
            softmax: Softmax::All,
        };
        Needs {
            window: Some(base.window.unwrap_or(own)),
            uncut: base.uncut || self.base.decode_rows(layer).is_some(),
            ..base
        }
    }

    fn positions(&self) -> Positions {
        self.base.positions()
    }

    fn rows(
        &mut self,
        model: &ModelShape,
        prompt: &PromptShape,
        budget: usize,
    ) -> Result<Vec<usize>, PolicyError> {
        let rows = self.base.rows(model, prompt, budget)?;
        if self.base.layer_input_tokens(0).is_some() {
            return Err(PolicyError::Together {
                method: INFO.name,
                first: format!("base={}", self.base.name()),
                second: "variant=faithful".to_owned(),
                why: "it evicts nothing whose value could be merged; set variant=budgeted",
            });
        }
        let window = (0..model.layers).find_map(|layer| self.base.needs(layer).window);
        self.w = window.map_or(window_for(budget) + prompt.tail, |window| window.rows);
        let held = (0..model.layers).filter_map(|layer| self.base.decode_rows(layer));
        // A base that does not evict during decode needs no slots.
        self.slots = held.max().map_or(0, |rows| prompt.slots(rows));
        self.seen.start(model.layers, model.kv_heads, self.slots);
        self.most_spills = self.m.min(self.slots) * model.kv_heads;
        (self.order, self.decode_value_merges) = (Vec::new(), Vec::new());
        Ok(rows)
    }

    fn max_rows_per_head(&self, layer: usize, rows: usize) -> usize {
        self.base.max_rows_per_head(layer, rows)
    }

    fn note(&self) -> Option<String> {
        self.base.note()
    }

    fn cacheable_scorer(&self) -> Option<&dyn crate::TokenScores> {
        self.base.cacheable_scorer()
    }

    fn has_score_pass(&self) -> bool {
        self.base.has_score_pass()
    }

    fn score_pass(&mut self, observation: &Observation<'_>) {
        self.base.score_pass(observation);
    }

    fn allocate_budget(&mut self) -> Vec<usize> {
        self.base.allocate_budget()
    }

    fn select(&mut self, observation: &Observation<'_>, rows: usize) -> Retention {
        let retention = self.base.select(observation, rows);
        if self.base.decode_rows(observation.layer).is_some() {
            self.order.reserve_exact(self.slots);
            self.decode_value_merges.reserve_exact(self.most_spills);
            let everything: Vec<Pos>;
            let attention = self.attention(observation);
            let all = match &retention {
                Retention::Keep(heads) => heads.clone(),
                Retention::Merge(heads) => heads.iter().map(|h| h.centres.clone()).collect(),
                Retention::Everything => {
                    everything = (0..observation.tokens as u32).map(Pos).collect();
                    vec![everything; observation.kv_heads]
                }
            };
            (self.seen).set(observation.layer, &all, |head, position| {
                attention[head][position]
            });
        }
        retention
    }

    fn value_merges(&mut self, observation: &Observation<'_>, kept: &Retention) -> Vec<ValueMerge> {
        let Retention::Keep(heads) = kept else {
            return Vec::new();
        };
        let attention = self.attention(observation);
        let mut value_merges = Vec::new();
        for (head, kept) in heads.iter().enumerate() {
            let (mut first, mut mean) = (0, None);
            for token in 0..observation.tokens as u32 {
                if kept.get(first) == Some(&Pos(token)) {
                    (first, mean) = (first + 1, None);
                    continue;
                }
                let targets = &kept[first..kept.len().min(first + self.m)];
                if targets.is_empty() {
                    continue;
                }
                let of = |pos: &Pos| attention[head][pos.0 as usize];
                let mean = *mean.get_or_insert_with(|| mean_of(targets.iter().map(of)));
                let p = merge_probability(of(&Pos(token)), mean);
                let weight = Self::gate(self.sample, &mut self.state, p) / targets.len() as f32;
                if weight > 0.0 {
                    value_merges.push(ValueMerge {
                        head,
                        from: Pos(token),
                        first,
                        count: targets.len(),
                        weight,
                    });
                }
            }
        }
        value_merges
    }

    fn merges_values(&self) -> bool {
        true
    }

    fn decode_rows(&self, layer: usize) -> Option<usize> {
        self.base.decode_rows(layer)
    }

    fn bytes(&self) -> u64 {
        let order = self.slots * size_of::<(Pos, u32)>();
        let decode_value_merges = self.most_spills * size_of::<DecodeValueMerge>();
        self.base.bytes() + self.seen.bytes() + (order + decode_value_merges) as u64
    }

    fn step(&mut self, step: &StepObservation<'_>, evict: &mut Evictions) {
        self.decode_value_merges.clear();
        self.base.step(step, evict);
        for (head, gone) in evict.iter().enumerate() {
            let positions = step.positions(head);
            let seen = self.seen.of(step.layer, head, positions.len());
            seen[step.newest(head)] = 0.0;
            step.add_mean(head, seen);
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
            let targets = self.order.iter().map(|(_, slot)| seen[*slot as usize]);
            let p = merge_probability(seen[gone.0 as usize], mean_of(targets));
            let share = Self::gate(self.sample, &mut self.state, p) / self.order.len() as f32;
            if share > 0.0 {
                self.decode_value_merges
                    .extend(self.order.iter().map(|(_, slot)| DecodeValueMerge {
                        head,
                        from: gone,
                        to: Row(*slot),
                        weight: share,
                    }));
            }
        }
    }

    fn decode_value_merges(&self) -> &[DecodeValueMerge] {
        &self.decode_value_merges
    }

    fn merges_values_in_decode(&self) -> bool {
        self.slots > 0
    }
}
