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

use std::sync::Arc;

use super::own_and_base;
use crate::options::{FROM_1, MAX_COUNT, Range, options};
use crate::{
    Evict, Evictions, Method, MethodInfo, Observation, Parameter, PolicyError, PromptShape,
    Retention, RowPlan, RowRequest, Score, Select, Selection, StepObservation,
};

options! {
    /// The options of the cap.
    #[derive(Debug, Clone)]
    pub struct Cap {
        /// rows per head that the cache is cut back to while answering (not in the paper)
        cap: Option<usize> => "decode_cap", "off",
            Range::Whole("a whole number from the budget to 16777216", |cap| {
                (1..=MAX_COUNT).contains(&cap)
            });
        /// with decode_cap: tokens between two cuts
        every: usize => "decode_every", "64", FROM_1;
        /// with decode_cap: last tokens that vote and stay
        w: Option<usize> => "decode_w", "32, or decode_every if that is less",
            Range::Whole("a whole number from 1 to decode_every", |w| w >= 1);
    }
}

/// The options `decode_cap`, `decode_every` and `decode_w` of methods that evict only from the prompt.
pub(crate) const DECODE_CAP: Parameter = Cap::OPTIONS[0];
pub(crate) const DECODE_EVERY: Parameter = Cap::OPTIONS[1];
pub(crate) const DECODE_W: Parameter = Cap::OPTIONS[2];

/// Wraps `base` in the cap if `values` set one and the method has the option.
pub(crate) fn capped(
    info: &'static MethodInfo,
    base: Arc<dyn Method>,
    values: &[(String, String)],
) -> Result<Arc<dyn Method>, PolicyError> {
    if !info.parameters.contains(&DECODE_CAP) {
        return Ok(base);
    }
    let (p, of_base) = own_and_base(info, values)?;
    let Cap { cap, every, w } = Cap::read(&p)?;
    if let Some(w) = w.filter(|&w| w > every) {
        return Err(p.not_allowed("decode_w", &w.to_string()));
    }
    let Some(cap) = cap else { return Ok(base) };
    let of_base = of_base.iter().rev().find(|(name, _)| name == "sinks");
    let sinks = p
        .given("sinks")
        .or(of_base.map(|(_, sinks)| sinks.as_str()));
    let sinks = sinks.and_then(|sinks| sinks.parse().ok());
    Ok(Arc::new(DecodeCap {
        base,
        cap,
        every,
        w: w.unwrap_or(every.min(32)),
        sinks: sinks.unwrap_or(4),
    }))
}

/// A method that evicts only from the prompt, with a cap on the cache during decode.
pub struct DecodeCap {
    base: Arc<dyn Method>,
    cap: usize,
    every: usize,
    w: usize,
    sinks: usize,
}

impl DecodeCap {
    /// Rows that each head may have in addition to those kept of the prompt.
    fn extra(&self, plan: &RowPlan) -> usize {
        self.cap - plan.budget.min(plan.prompt.tokens)
    }

    /// The same, immediately before a cut.
    fn growth(&self, plan: &RowPlan) -> usize {
        self.extra(plan) + self.every - 1
    }
}

/// The most rows between two steps of a head that keeps `rows` of the prompt.
fn most_rows(plan: &RowPlan, rows: usize, growth: usize) -> usize {
    rows.min(plan.prompt.tokens) + growth
}

/// Slots of the largest head immediately before a cut.
fn most_slots(plan: &RowPlan, growth: usize) -> usize {
    let most = plan.max_rows_per_head.iter().zip(&plan.rows);
    let most = most.map(|(most, rows)| (*most).max(*rows)).max();
    (plan.prompt).slots(most_rows(plan, most.unwrap_or(0), growth))
}

/// Bytes of the attention per slot, and of the order of one head's slots.
fn state_bytes(plan: &RowPlan, growth: usize) -> u64 {
    let slots = (plan.rows.iter()).map(|&rows| plan.prompt.slots(most_rows(plan, rows, growth)));
    let seen = slots.sum::<usize>() * plan.model.kv_heads * size_of::<f32>();
    (seen + most_slots(plan, growth) * size_of::<u32>()) as u64
}

/// `plan` with rows that grow by `growth` in each head, and with the state for them.
fn growing(mut plan: RowPlan, growth: usize) -> RowPlan {
    let rows = (plan.rows.iter()).map(|&rows| most_rows(&plan, rows, growth));
    plan.decode_rows = Some(rows.collect());
    plan.bytes += state_bytes(&plan, growth);
    plan
}

impl Method for DecodeCap {
    fn name(&self) -> &'static str {
        self.base.name()
    }

    fn plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        let plan = self.base.plan(request)?;
        let kept = request.budget.min(request.prompt.tokens);
        if self.cap < kept {
            return Err(PolicyError::CapTooSmall {
                method: self.base.name(),
                cap: self.cap,
                rows: kept,
            });
        }
        let growth = self.growth(&plan);
        Ok(growing(plan, growth))
    }

    fn start(&self, plan: &RowPlan) -> Box<dyn Select> {
        Box::new(Capped {
            base: self.base.start(plan),
            extra: self.extra(plan),
            every: self.every,
            w: self.w,
            sinks: self.sinks,
            prompt: plan.prompt,
            layers: vec![Vec::new(); plan.model.layers],
            order: Vec::with_capacity(most_slots(plan, self.growth(plan))),
        })
    }

    fn scorer(&self) -> Option<&dyn Score> {
        self.base.scorer()
    }
}

/// One head's share, and the attention of the observed queries per slot.
#[derive(Debug, Clone, Default)]
struct Head {
    /// Rows after a cut.
    share: usize,
    /// `[slots]`: sum of the attention of the observed queries.
    seen: Vec<f32>,
}

/// The state of one prompt and its answer.
struct Capped {
    base: Box<dyn Select>,
    extra: usize,
    every: usize,
    w: usize,
    sinks: usize,
    /// The prompt, which limits the slots.
    prompt: PromptShape,
    /// `[layers][kv_heads]`
    layers: Vec<Vec<Head>>,
    /// `[slots]`: slots by rank, scratch buffer of a cut.
    order: Vec<u32>,
}

impl Select for Capped {
    fn select(&mut self, plan: &RowPlan, observation: &Observation<'_>) -> Selection {
        let selection = self.base.select(plan, observation);
        let kept = |head: usize| match &selection.retention {
            Retention::Everything => observation.tokens,
            Retention::Keep(heads) => heads[head].len(),
            Retention::Merge(heads) => heads[head].centres.len(),
        };
        let heads = (0..observation.kv_heads).map(|head| {
            let share = kept(head) + self.extra;
            Head {
                share,
                seen: Vec::with_capacity(self.prompt.slots(share + self.every - 1)),
            }
        });
        self.layers[observation.layer] = heads.collect();
        selection
    }

    fn score_pass(&mut self, plan: &RowPlan, observation: &Observation<'_>) {
        self.base.score_pass(plan, observation);
    }

    fn allocate_budget(&mut self, plan: &RowPlan) -> RowPlan {
        let growth = self.extra + self.every - 1;
        let before = state_bytes(plan, growth);
        let mut plan = self.base.allocate_budget(plan);
        plan.bytes -= before;
        growing(plan, growth)
    }

    fn evictor(self: Box<Self>) -> Option<Box<dyn Evict>> {
        Some(self)
    }
}

impl Evict for Capped {
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
            let newest = positions[step.newest[head]].0;
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
}
