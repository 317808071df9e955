//! What methods do during decode: whether they evict (`decode`), and a cap on the cache during a long answer, for
//! methods that evict only from the prompt. The cap is our own, from no paper, and off unless `decode_cap` is set.
//!
//! The cache grows until every head holds its share of `decode_cap` rows plus `decode_every` more. Then it is cut back
//! to the share. Kept are the sinks, the last `decode_w` tokens, and the other tokens with the highest attention of the
//! last `decode_w` queries (mean over the query heads of a KV head; no pooling, because neighbours in the cache are not
//! neighbours in the text).
//!
//! ```text
//! decode_cap 8, every 4:     rows  8 9 10 11 12 -> 8 9 10 11 12 -> 8 ...
//! observed, w = 2:                        +  +            +  +
//! ```
//!
//! If a method gives layers or heads different numbers of rows, each head may keep `decode_cap - budget` more rows than
//! it kept of the prompt.

use crate::token_scores::TokenScores;
use crate::{
    Evictions, MethodInfo, ModelShape, Needs, Observation, Parameter, Parameters, Policy,
    PolicyError, Positions, PromptShape, Retention, StepObservation,
};

/// The parameter `decode_cap` of methods that evict only from the prompt.
pub(crate) const DECODE_CAP: Parameter = Parameter {
    name: "decode_cap",
    default: "off",
    range: "a whole number from the budget on",
    meaning: "rows per head that the cache is cut back to while answering (not in the paper)",
};

/// The parameter `decode_every` of the same methods.
pub(crate) const DECODE_EVERY: Parameter = Parameter {
    name: "decode_every",
    default: "64",
    range: "a whole number from 1",
    meaning: "with decode_cap: tokens between two cuts",
};

/// The parameter `decode_w` of the same methods.
pub(crate) const DECODE_W: Parameter = Parameter {
    name: "decode_w",
    default: "32, or decode_every if that is less",
    range: "a whole number from 1 to decode_every",
    meaning: "with decode_cap: last tokens that vote and stay",
};

/// The parameter `decode` of methods that evict during decode.
pub(crate) const DECODE: Parameter = Parameter {
    name: "decode",
    default: "on",
    range: "on or off",
    meaning: "evict while answering; off cuts the prompt only, as the baselines of PyramidKV and ChunkKV do",
};

/// Whether the parameters `p` enable eviction during decode.
pub(crate) fn evicts_in_decode(p: &Parameters) -> Result<bool, PolicyError> {
    p.choice(DECODE.name, &[("on", true), ("off", false)], true)
}

/// Rejects `decode=off` in streaming mode.
pub(crate) fn must_evict(method: &'static str, evicts: bool) -> Result<(), PolicyError> {
    if evicts {
        Ok(())
    } else {
        Err(PolicyError::Together {
            method,
            first: "decode=off".to_owned(),
            second: "streaming mode".to_owned(),
            why: "a text beyond the context length is read by evicting token by token; leave decode on",
        })
    }
}

/// Wraps `policy` in the cap if `values` set one and the method has the parameter.
pub(crate) fn capped(
    info: &'static MethodInfo,
    policy: Box<dyn Policy>,
    values: &[(String, String)],
) -> Result<Box<dyn Policy>, PolicyError> {
    if !info.parameters.contains(&DECODE_CAP) {
        return Ok(policy);
    }
    let own = |name: &str| name.starts_with("decode_") || name == "sinks";
    let mine: Vec<_> = values.iter().filter(|(n, _)| own(n)).cloned().collect();
    let p = Parameters::unchecked(info.name, info.parameters, mine);
    let cap = p.whole("decode_cap", |n| n >= 1)?;
    let every = p.whole("decode_every", |n| n >= 1)?.unwrap_or(64);
    let w = p.whole("decode_w", |n| (1..=every).contains(&n))?;
    Ok(match cap {
        None => policy,
        Some(cap) => Box::new(DecodeCap {
            base: policy,
            cap,
            every,
            w: w.unwrap_or(every.min(32)),
            sinks: p.whole("sinks", |_| true)?.unwrap_or(4),
            rows: Vec::new(),
            extra: 0,
            kv_heads: 0,
            most_slots: 0,
            layers: Vec::new(),
            order: Vec::new(),
        }),
    })
}

/// One head's share, and the attention of the observed queries per slot.
#[derive(Debug, Clone, Default)]
struct Head {
    /// Rows after a cut.
    share: usize,
    /// `[slots]`: sum of the attention of the observed queries.
    seen: Vec<f32>,
}

/// A method that evicts only from the prompt, with a cap on the cache during decode.
pub struct DecodeCap {
    base: Box<dyn Policy>,
    cap: usize,
    every: usize,
    w: usize,
    sinks: usize,
    /// `[layers]`: rows of the prompt.
    rows: Vec<usize>,
    /// Rows that each head may have in addition to those kept of the prompt.
    extra: usize,
    kv_heads: usize,
    /// Slots of the largest head immediately before a cut.
    most_slots: usize,
    /// `[layers][kv_heads]`
    layers: Vec<Vec<Head>>,
    /// `[slots]`: slots by rank, scratch buffer of a cut.
    order: Vec<u32>,
}

impl Policy for DecodeCap {
    fn name(&self) -> &'static str {
        self.base.name()
    }

    fn needs(&self, layer: usize) -> Needs {
        self.base.needs(layer)
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
        let kept = budget.min(prompt.tokens);
        if self.cap < kept {
            return Err(PolicyError::CapTooSmall {
                method: self.base.name(),
                cap: self.cap,
                rows: kept,
            });
        }
        self.extra = self.cap - kept;
        self.rows = rows.iter().map(|&r| r.min(prompt.tokens)).collect();
        self.layers = vec![Vec::new(); model.layers];
        self.order = Vec::new();
        self.kv_heads = model.kv_heads;
        let most = |(layer, &rows): (usize, &usize)| {
            let more = self
                .base
                .max_rows_per_head(layer, rows)
                .saturating_sub(rows);
            rows.min(prompt.tokens) + more.min(prompt.tokens.saturating_sub(rows))
        };
        let most = rows.iter().enumerate().map(most).max().unwrap_or(0);
        self.most_slots = most + self.extra + self.every;
        Ok(rows)
    }

    fn max_rows_per_head(&self, layer: usize, rows: usize) -> usize {
        self.base.max_rows_per_head(layer, rows)
    }

    fn note(&self) -> Option<String> {
        self.base.note()
    }

    fn has_score_pass(&self) -> bool {
        self.base.has_score_pass()
    }

    fn score_pass(&mut self, observation: &Observation<'_>) {
        self.base.score_pass(observation);
    }

    fn allocate_budget(&mut self) -> Vec<usize> {
        self.rows = self.base.allocate_budget();
        self.rows.clone()
    }

    fn select(&mut self, observation: &Observation<'_>, rows: usize) -> Retention {
        let retention = self.base.select(observation, rows);
        let kept = |head: usize| match &retention {
            Retention::Everything => observation.tokens,
            Retention::Keep(heads) => heads[head].len(),
            Retention::Merge(heads) => heads[head].centres.len(),
        };
        self.order.reserve_exact(self.most_slots);
        let heads: Vec<Head> = (0..observation.kv_heads)
            .map(|head| {
                let share = kept(head) + self.extra;
                Head {
                    share,
                    seen: Vec::with_capacity(share + self.every),
                }
            })
            .collect();
        self.layers[observation.layer] = heads;
        retention
    }

    fn decode_rows(&self, layer: usize) -> Option<usize> {
        let most = self.rows[layer].saturating_add(self.extra);
        Some(most.saturating_add(self.every - 1))
    }

    fn bytes(&self) -> u64 {
        let slots = (self.rows.iter()).map(|rows| rows + self.extra + self.every);
        let seen = slots.sum::<usize>() * self.kv_heads * size_of::<f32>();
        self.base.bytes() + (seen + self.most_slots * size_of::<u32>()) as u64
    }

    fn step(&mut self, step: &StepObservation<'_>, _evict: &mut Evictions) {
        for (head, state) in self.layers[step.layer].iter_mut().enumerate() {
            let to_go = (state.share + self.every).saturating_sub(step.rows[head]);
            if to_go < self.w {
                state.seen.resize(step.rows[head], 0.0);
                step.add_mean(head, &mut state.seen);
            }
        }
    }

    fn evict_many(&mut self, step: &StepObservation<'_>, keep: &mut [bool]) -> bool {
        let mut any = false;
        for (head, state) in self.layers[step.layer].iter_mut().enumerate() {
            let positions = step.positions(head);
            if positions.len() < state.share + self.every {
                continue;
            }
            any = true;
            let newest = positions[step.newest(head)].0;
            let (w, sinks, seen) = (self.w as u32, self.sinks as u32, &state.seen);
            let score = |slot: u32| match positions[slot as usize].0 {
                recent if recent + w > newest => f32::INFINITY,
                sink if sink < sinks => f32::MAX,
                _ => seen[slot as usize],
            };
            self.order.clear();
            self.order.extend(0..positions.len() as u32);
            self.order.sort_unstable_by(|&a, &b| {
                let earlier = positions[a as usize].cmp(&positions[b as usize]);
                score(b).total_cmp(&score(a)).then(earlier)
            });
            for &slot in &self.order[state.share..] {
                keep[step.firsts[head] + slot as usize] = false;
            }
            state.seen.clear();
        }
        any
    }

    fn token_scorer(&self) -> Option<&dyn TokenScores> {
        self.base.token_scorer()
    }

    fn cacheable_scorer(&self) -> Option<&dyn TokenScores> {
        self.base.cacheable_scorer()
    }
}
