//! EMS: evict, then merge similar tokens ("EMS: Adaptive Evict-then-Merge Strategy for Head-wise KV Cache Compression
//! Based on Global-Local Importance", eq. 2, 4, 6 and 7, section 4.2). For decode see `ems_decode.rs`.
//!
//! The score of a prompt token, per KV head (group mean), is `max(glo * sum(loc) / sum(glo), loc)`, where `glo` is its
//! attention from every query and `loc` its attention from the last `w` queries; it is averaged over neighbours. By
//! score the prefix is split into three parts: `B - w` class centres, the next `(gamma - 1) B` tokens to be merged, and
//! the rest, which is evicted. The last `w` tokens are classes of their own. A token to be merged joins the centre of
//! highest `R = cos(keys) * cos(values)` if that is at least `tau`; else it joins the zero class. In this
//! implementation the zero class has no row: the token is evicted and takes no part in attention. A class's key is the
//! mean of its members' unit keys, not renormalised to length 1; its value is the mean of their values. Both means are
//! weighted by `loc`. In attention every member has the length of its own key. The first `protect` centres accept no
//! members.
//!
//! ```text
//! B = 6, w = 2, gamma = 1.5, sinks = 0     score   9  8  1  7  4  6  1  5  |  .  .
//!                                          token   0  1  2  3  4  5  6  7  |  8  9
//!                                                  C  C  -  C  m  C  -  m  |  w  w     C centre, m to merge, - evicted
//! R(4, 0) >= tau: 4 joins 0; max R(7, .) < tau: 7 is evicted
//! ```
//!
//! `positions=original` merges keys after RoPE, so similar tokens are also close in the text. `positions=reassigned`
//! merges keys before RoPE; the position of an entry is then its rank among the entries.

use super::ems_decode::{Capacity, Head, Rules, global_local};
use crate::info::read;
use crate::options::{FROM_0, FROM_1, ODD, PAPER_HAS_0, Range, options};
use crate::parallel::par_map;
use crate::window::{W, default_window, observed_rows};
use crate::{
    ClassHead, ClassTable, Entry, Evict, GroupReduce, MergedHead, Method, MethodInfo, Observation,
    PolicyError, Pooling, Pos, Positions, PromptShape, Retention, RowPlan, RowRequest, Select,
    Selection, Snapshot, group_reduce, pool, top_positions,
};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "ems",
    title: "EMS",
    paper: "OpenReview 2024, under review",
    keeps: "what all or the last queries attend to; tokens that are alike share a row",
    acts: "prefill and decode",
    positions: "original or re-assigned",
    parameters: Ems::OPTIONS,
    build: |values| read(&INFO, values, Ems::read),
};

options! {
    /// Evicts, then merges similar tokens.
    #[derive(Debug, Clone)]
    pub struct Ems {
        /// last tokens, kept as they are, whose queries are the local ones
        w: Option<usize> => "w", W, FROM_1;
        /// neighbours a score is averaged over
        kernel: usize => "kernel", "7", ODD;
        /// tokens that take part in attention, as a multiple of the budget
        gamma: f64 => "gamma", "4",
            Range::Number("a number from 1 (no merging) to 64", |gamma| (1.0..=64.0).contains(&gamma));
        /// how alike two tokens must be to share a row
        tau: f64 => "tau", "0.6", Range::Number("a number from -1000000 to 1000000 (above 1 nothing is merged)", |_| true);
        /// best centres that accept no other token; the sinks are the first of them
        protect: Option<usize> => "protect", "an 8th of the class centres", FROM_0;
        /// merge keys with their position, or without and re-assign positions
        positions: Positions => "positions", "original", Range::Word("original or reassigned");
        /// first tokens that are always kept and never merged
        sinks: usize => "sinks", "4", PAPER_HAS_0;
    }
}

impl Ems {
    /// The rules for one plan.
    fn rules(&self, plan: &RowPlan) -> Rules {
        let recent = plan.protected.recent;
        let window = plan.needs[0].observation_window.as_ref();
        let window = window.map_or(recent, |window| window.rows);
        let centres = plan.budget.saturating_sub(window);
        Rules {
            window,
            recent,
            centres,
            entries: (self.gamma * plan.budget as f64).min(f64::from(u32::MAX)) as usize,
            tau: self.tau as f32,
            protect: self.protect.unwrap_or(centres.div_ceil(8)),
            sinks: self.sinks,
        }
    }
}

impl Method for Ems {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        let RowRequest { model, prompt, .. } = request;
        let budget = request.budget;
        // A small budget is refused also if the whole prompt fits: merging continues during decode.
        let default_w = default_window(budget);
        let window = observed_rows(self.w, default_w, prompt, budget, self.sinks);
        let needed = window.saturating_add(self.sinks).saturating_add(1);
        let longer = PromptShape {
            tokens: prompt.tokens.max(needed),
            ..*prompt
        };
        let plan = RowPlan::uniform(&RowRequest {
            prompt: longer,
            ..*request
        });
        let plan = plan.with_window(INFO.name, self.w, default_w, self.sinks)?;
        let mut plan = plan.evicting(true, budget).measuring(|needs| {
            needs.column_sums = true;
            needs.rows = true;
            needs.even_if_all_kept = true;
        });
        plan.prompt = *prompt;
        plan.positions = self.positions;
        plan.table = Some(ClassTable {
            entries: self.rules(&plan).entries,
            elements: Head::ELEMENTS,
        });
        let rows = model.layers * model.kv_heads * prompt.slots(budget);
        plan.bytes = (rows * Head::ROW_BYTES) as u64;
        Ok(plan)
    }

    fn start(&self, plan: &RowPlan) -> Box<dyn Select> {
        let rules = self.rules(plan);
        Box::new(State {
            kernel: self.kernel,
            rules,
            capacity: Capacity {
                entries: plan.prompt.slots(rules.entries),
                rows: plan.prompt.slots(plan.budget),
            },
            kv_heads: plan.model.kv_heads,
            heads: (0..plan.model.layers).map(|_| Vec::new()).collect(),
        })
    }

    fn stream_plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        self.plan(request)
    }
}

/// The state of one prompt and its answer.
struct State {
    kernel: usize,
    rules: Rules,
    capacity: Capacity,
    kv_heads: usize,
    /// `[layers][kv_heads]`
    heads: Vec<Vec<Box<dyn ClassHead>>>,
}

/// One head's attention, and its split before the merge.
struct Scored {
    glo: Vec<f32>,
    loc: Vec<f32>,
    parts: Parts,
}

impl Select for State {
    fn select(&mut self, plan: &RowPlan, observation: &Observation<'_>) -> Selection {
        let (n, group, threads) = (observation.tokens, observation.group, observation.threads);
        let requested = "EMS requested it";
        let glo = observation.column_sums.expect(requested);
        let rows = observation.rows.expect(requested);
        let observed = self.rules.window.min(n) as f32;
        let whole = n <= plan.rows[observation.layer];
        let rules = self.rules;
        let heads = observation.window_heads().zip(glo.chunks_exact(group * n));
        let scored = par_map(threads, heads, group * n, |_, (loc, glo)| {
            let glo = group_reduce(glo, n, group, GroupReduce::Mean);
            let mut loc = group_reduce(loc, n, group, GroupReduce::Mean);
            loc.iter_mut().for_each(|x| *x *= observed);
            let parts = match whole {
                true => Parts::whole(n),
                false => Parts::of(&rules, self.kernel, &glo, &loc),
            };
            Scored { glo, loc, parts }
        });
        // Heads run in sequence: each comparison is itself parallel and uses all threads.
        let nearest = scored.iter().enumerate().map(|(head, scored)| {
            let Parts { open, merged, .. } = &scored.parts;
            let mut nearest = vec![(0, f32::NEG_INFINITY); merged.len()];
            if !open.is_empty() {
                rows.nearest_by_cosine(head, merged, open, &mut nearest);
            }
            nearest
        });
        let nearest: Vec<Vec<(u32, f32)>> = nearest.collect();
        let heads = scored.iter().zip(nearest);
        let made = par_map(threads, heads, n, |_, (scored, nearest)| {
            let Scored { glo, loc, parts } = scored;
            let kept = parts.merge(&rules, &nearest, loc);
            (
                Head::after_prefill(rules, &kept, glo, loc, self.capacity),
                kept,
            )
        });
        let (heads, merged) = made.into_iter().unzip();
        self.heads[observation.layer] = heads;
        if whole {
            Retention::Everything.into()
        } else {
            Retention::Merge(merged).into()
        }
    }

    fn evictor(mut self: Box<Self>) -> Option<Box<dyn Evict>> {
        let (rules, capacity) = (self.rules, self.capacity);
        let head = || Head::after_prefill(rules, &MergedHead::default(), &[], &[], capacity);
        for layer in self.heads.iter_mut().filter(|layer| layer.is_empty()) {
            layer.resize_with(self.kv_heads, head);
        }
        Some(self)
    }
}

impl Evict for State {
    fn class_heads(&mut self, layer: usize) -> &mut [Box<dyn ClassHead>] {
        &mut self.heads[layer]
    }

    fn snapshot(&mut self, through: &mut dyn Snapshot) {
        for head in self.heads.iter_mut().flatten() {
            head.snapshot(through);
        }
    }
}

/// The split of one head's tokens before the merge.
struct Parts {
    /// The centres of all classes, ascending.
    centres: Vec<u32>,
    /// The centres that accept members, ascending.
    open: Vec<u32>,
    /// Tokens that may be merged.
    merged: Vec<u32>,
}

impl Parts {
    /// Each of `n` tokens is a class of its own.
    fn whole(n: usize) -> Self {
        Self {
            centres: (0..n as u32).collect(),
            open: Vec::new(),
            merged: Vec::new(),
        }
    }

    /// Splits by the attention from all queries, `glo` `[n]`, and from the local queries, `loc` `[n]`. Scores are
    /// averaged over `kernel` neighbours.
    fn of(rules: &Rules, kernel: usize, glo: &[f32], loc: &[f32]) -> Self {
        let &Rules {
            window,
            recent,
            centres,
            entries,
            protect,
            sinks,
            ..
        } = rules;
        let n = glo.len();
        let prefix = n - recent;
        // The recent tokens before the window are centres too.
        let centres = (centres + window).saturating_sub(recent);
        let mut scores = vec![0.0; n];
        global_local(glo, loc, &mut scores);
        let mut scores = pool(&scores[..prefix], kernel, Pooling::Avg);
        scores[..sinks.min(prefix)].fill(f32::INFINITY);
        // Sort by descending score, on equal scores the lower token first. Tokens that are neither centres nor merged
        // need no order.
        let before = |a: &u32, b: &u32| {
            let score = |token: &u32| scores[*token as usize];
            score(b).total_cmp(&score(a)).then(a.cmp(b))
        };
        let mut order = top_positions(&scores, entries - recent);
        order.sort_unstable_by(before);
        let (important, merged) = order.split_at(centres);
        let (guarded, open) = important.split_at(protect.max(sinks).min(centres));
        let mut open = open.to_vec();
        open.sort_unstable();
        let mut centres: Vec<u32> = guarded.iter().chain(&open).copied().collect();
        centres.extend(prefix as u32..n as u32);
        centres.sort_unstable();
        Self {
            centres,
            open,
            merged: merged.to_vec(),
        }
    }

    /// The kept classes and entries. `best` is, for each token that may be merged, the index of the most similar open
    /// centre (the first one on ties) and its R; `loc` is `[n]`.
    fn merge(&self, rules: &Rules, best: &[(u32, f32)], loc: &[f32]) -> MergedHead {
        let Self {
            centres,
            open,
            merged,
        } = self;
        let entry = |token: u32, class: u32| Entry {
            pos: Pos(token),
            class,
            weight: loc[token as usize].max(Rules::MIN_WEIGHT),
        };
        let own = (0u32..).zip(centres);
        let mut kept: Vec<Entry> = own.map(|(class, &token)| entry(token, class)).collect();
        for (&token, &(best, alike)) in merged.iter().zip(best) {
            if alike >= rules.tau
                && let Ok(class) = centres.binary_search(&open[best as usize])
            {
                kept.push(entry(token, class as u32));
            }
        }
        kept.sort_unstable_by_key(|e| e.pos);
        MergedHead {
            centres: centres.iter().copied().map(Pos).collect(),
            entries: kept,
        }
    }
}
