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

use crate::ems_decode::{Head, Rules};
use crate::heads::par_map;
use crate::window::{observed_rows, uniform_rows, window_for};
use crate::{
    ClassHead, ClassTable, Entry, GroupReduce, MergedHead, MethodInfo, ModelShape, Needs,
    Observation, Parameter, Parameters, Policy, PolicyError, Pooling, Pos, Positions, PromptShape,
    Retention, Snapshot, Softmax, Window, group_reduce, pool, top_positions,
};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "ems",
    title: "EMS",
    paper: "OpenReview 2024, under review",
    keeps: "what all or the last queries attend to; tokens that are alike share a row",
    acts: "prefill and decode",
    positions: "original or re-assigned",
    parameters: &[
        Parameter {
            name: "w",
            default: "32, 16 below a budget of 256 rows, 8 below 128",
            range: "a whole number from 1",
            meaning: "last tokens, kept as they are, whose queries are the local ones",
        },
        Parameter {
            name: "kernel",
            default: "7",
            range: "an odd whole number from 1",
            meaning: "neighbours a score is averaged over",
        },
        Parameter {
            name: "gamma",
            default: "4",
            range: "a number from 1 (no merging) to 64",
            meaning: "tokens that take part in attention, as a multiple of the budget",
        },
        Parameter {
            name: "tau",
            default: "0.6",
            range: "a number (above 1 nothing is merged)",
            meaning: "how alike two tokens must be to share a row",
        },
        Parameter {
            name: "protect",
            default: "an 8th of the class centres",
            range: "a whole number from 0",
            meaning: "best centres that accept no other token; the sinks are the first of them",
        },
        Parameter {
            name: "positions",
            default: "original",
            range: "original or reassigned",
            meaning: "merge keys with their position, or without and re-assign positions",
        },
        Parameter {
            name: "sinks",
            default: "4",
            range: "a whole number from 0 (0 is the paper's)",
            meaning: "first tokens that are always kept and never merged",
        },
    ],
    build: |values| {
        let p = Parameters::new(INFO.name, INFO.parameters, values)?;
        Ok(Box::new(Ems {
            window: p.whole("w", |w| w >= 1)?,
            kernel: p.whole("kernel", |k| k % 2 == 1)?.unwrap_or(7),
            gamma: p
                .number("gamma", |g| (1.0..=64.0).contains(&g))?
                .unwrap_or(4.0),
            tau: p.number("tau", |_| true)?.unwrap_or(0.6) as f32,
            protect: p.whole("protect", |_| true)?,
            positions: p.choice(
                "positions",
                &[
                    ("original", Positions::Original),
                    ("reassigned", Positions::Reassigned),
                ],
                Positions::Original,
            )?,
            sinks: p.whole("sinks", |_| true)?.unwrap_or(4),
            ..Ems::default()
        }))
    },
};

/// Evicts, then merges similar tokens.
#[derive(Default)]
pub struct Ems {
    /// Local window w; `None` derives it from the budget.
    pub window: Option<usize>,
    /// Pooling kernel, odd.
    pub kernel: usize,
    /// Entries as a multiple of the budget, at least 1.
    pub gamma: f64,
    /// Minimum redundancy R of a merge.
    pub tau: f32,
    /// Number of top centres that accept no members; `None` takes an 8th of the centres.
    pub protect: Option<usize>,
    /// Whether keys are merged after RoPE at their original positions, or before RoPE.
    pub positions: Positions,
    /// Number of first tokens that are always kept.
    pub sinks: usize,
    rules: Rules,
    /// The most entries and rows of a head.
    entries: usize,
    rows: usize,
    kv_heads: usize,
    /// `[layers][kv_heads]`
    heads: Vec<Vec<Box<dyn ClassHead>>>,
}

impl Policy for Ems {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn needs(&self, _layer: usize) -> Needs {
        Needs {
            window: Some(Window {
                rows: self.rules.window,
                softmax: Softmax::All,
            }),
            column_sums: true,
            rows: true,
            uncut: true,
            ..Needs::default()
        }
    }

    fn positions(&self) -> Positions {
        self.positions
    }

    fn rows(
        &mut self,
        model: &ModelShape,
        prompt: &PromptShape,
        budget: usize,
    ) -> Result<Vec<usize>, PolicyError> {
        let window = observed_rows(self.window, window_for(budget), prompt, budget, self.sinks);
        let centres = budget.saturating_sub(window);
        self.rules = Rules {
            window,
            centres,
            entries: (self.gamma * budget as f64).min(f64::from(u32::MAX)) as usize,
            tau: self.tau,
            protect: self.protect.unwrap_or(centres.div_ceil(8)),
            sinks: self.sinks,
        };
        self.heads = (0..model.layers).map(|_| Vec::new()).collect();
        self.kv_heads = model.kv_heads;
        self.rows = prompt.slots(centres + window);
        self.entries = prompt.slots(self.rules.entries);
        // Applies also if the whole prompt fits: merging continues during decode.
        let needed = window.saturating_add(self.sinks).saturating_add(1);
        let shortest = PromptShape {
            tokens: prompt.tokens.max(needed),
            ..*prompt
        };
        uniform_rows(INFO.name, model, &shortest, budget, window, self.sinks)
    }

    fn stream(
        &mut self,
        model: &ModelShape,
        prompt: &PromptShape,
        budget: usize,
    ) -> Result<(), PolicyError> {
        self.rows(model, prompt, budget)?;
        let capacity = (self.entries, self.rows);
        let head = || Head::new(self.rules, &MergedHead::default(), &[], &[], capacity);
        let heads = || (0..model.kv_heads).map(|_| head().boxed()).collect();
        self.heads = (0..model.layers).map(|_| heads()).collect();
        Ok(())
    }

    fn snapshot(&mut self, through: &mut dyn Snapshot) {
        for head in self.heads.iter_mut().flatten() {
            head.snapshot(through);
        }
    }

    fn select(&mut self, observation: &Observation<'_>, rows: usize) -> Retention {
        let (n, group) = (observation.tokens, observation.group);
        let asked = "EMS asked for it";
        let (loc, glo) = (observation.window, observation.column_sums);
        let (loc, glo) = (loc.expect(asked), glo.expect(asked));
        let asked_rows = observation.rows.expect(asked);
        let observed = self.rules.window.min(n) as f32;
        let whole = n <= rows;
        let (rules, kernel) = (self.rules, self.kernel);
        let heads = 0..observation.kv_heads;
        let parted = par_map(heads, group * n, |head, _| {
            let of_group = head * group * n..(head + 1) * group * n;
            let glo = group_reduce(&glo[of_group.clone()], n, group, GroupReduce::Mean);
            let mut loc = group_reduce(&loc[of_group], n, group, GroupReduce::Mean);
            loc.iter_mut().for_each(|x| *x *= observed);
            let parts = (!whole).then(|| Parts::of(&rules, kernel, &glo, &loc));
            (glo, loc, parts)
        });
        // Heads run in sequence: each comparison is itself parallel and uses all threads.
        let compared = parted.iter().enumerate().map(|(head, (.., parts))| {
            let Some(Parts { open, merged, .. }) = parts else {
                return Vec::new();
            };
            let mut best = vec![(0, f32::NEG_INFINITY); merged.len()];
            if !open.is_empty() {
                asked_rows.nearest_by_cosine(head, merged, open, &mut best);
            }
            best
        });
        let compared: Vec<Vec<(u32, f32)>> = compared.collect();
        let capacity = (self.entries, self.rows);
        let made = par_map(
            parted.iter().zip(compared),
            n,
            |_, ((glo, loc, parts), best)| {
                let kept = match parts {
                    Some(parts) => parts.merge(&rules, &best, loc),
                    None => every_token(loc),
                };
                (Head::new(rules, &kept, glo, loc, capacity).boxed(), kept)
            },
        );
        let (heads, merged) = made.into_iter().unzip();
        self.heads[observation.layer] = heads;
        if whole {
            Retention::Everything
        } else {
            Retention::Merge(merged)
        }
    }

    fn decode_rows(&self, _layer: usize) -> Option<usize> {
        Some(self.rules.centres + self.rules.window)
    }

    fn table(&self, _layer: usize) -> Option<ClassTable> {
        Some(ClassTable {
            entries: self.rules.entries,
            numbers: Head::NUMBERS,
        })
    }

    fn bytes(&self) -> u64 {
        (self.heads.len() * self.kv_heads * self.rows * Head::ROW_BYTES) as u64
    }

    fn class_heads(&mut self, layer: usize) -> &mut [Box<dyn ClassHead>] {
        &mut self.heads[layer]
    }
}

/// A head in which every token is a class of its own.
fn every_token(loc: &[f32]) -> MergedHead {
    let entry = |(token, &weight): (usize, &f32)| Entry {
        pos: Pos(token as u32),
        class: token as u32,
        weight,
    };
    MergedHead {
        centres: (0..loc.len() as u32).map(Pos).collect(),
        entries: loc.iter().enumerate().map(entry).collect(),
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
    /// Splits by the attention from all queries, `glo` `[n]`, and from the local queries, `loc` `[n]`. Scores are
    /// averaged over `kernel` neighbours.
    fn of(rules: &Rules, kernel: usize, glo: &[f32], loc: &[f32]) -> Self {
        let &Rules {
            window,
            centres,
            entries,
            protect,
            sinks,
            ..
        } = rules;
        let n = glo.len();
        let prefix = n - window;
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
        let mut order = top_positions(&scores, entries - window);
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
            weight: loc[token as usize].max(Rules::LEAST_WEIGHT),
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

/// EMS's score of each token (eq. 2), `max(glo * sum(loc) / sum(glo), loc)`, written to `scores`.
pub fn global_local(glo: &[f32], loc: &[f32], scores: &mut [f32]) {
    let factor = (sum(loc) / sum(glo)) as f32;
    for ((s, g), l) in scores.iter_mut().zip(glo).zip(loc) {
        *s = (g * factor).max(*l);
    }
}

/// Sums in 8 lanes, which the compiler vectorises: a head has thousands of entries, and decode sums them at every
/// token.
fn sum(of: &[f32]) -> f64 {
    let mut sums = [0.0f64; 8];
    let (of, rest) = of.as_chunks::<8>();
    for numbers in of {
        for i in 0..8 {
            sums[i] += f64::from(numbers[i]);
        }
    }
    sums.iter().sum::<f64>() + rest.iter().map(|&x| f64::from(x)).sum::<f64>()
}
