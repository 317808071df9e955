//! TreeKV: a tournament between neighbours thins out older tokens, sparse on the left and dense on the right (He et
//! al., "TreeKV: Smooth Key-Value Cache Compression with Tree Structures", sections 4.1 and 4.2, algorithm 1).
//!
//! In decode, each KV head has the sinks, then a tree of `c` rows, then the `recent` last tokens. For every row, each
//! step adds its probability to S and 1 to C. When there is a row too many, the oldest recent token becomes the newest
//! row of the tree, and the rows `idx` and `idx + 1` of the tree compete by S / C. The lower one is evicted, on equal
//! scores the left one; then idx advances by one and wraps around. Line 16 as printed skips every second pair for even
//! c; `cycle` visits all pairs, as in figure 3.
//!
//! The prompt is cut in blocks. The last block and the tail of the chat template after it (`window.rs`) are the
//! observation window and are kept, and so are the sinks. The blocks between go through the same tournament from left
//! to right, with the window's mean attention as their fixed score. Afterwards C is the number of the window's queries
//! that attend to a token: fewer for the window's own tokens.
//!
//! ```text
//! c = 4, idx = 1     [ 1  2 ] 3  4 | 5          1 or 2 is evicted, idx = 2: the next pair is one step to the right
//! kept after long    . . . x . . . . . . . x . . . x . x x      half as dense every c tokens to the left
//! ```

use crate::blocks::means;
use crate::heads::par_map;
use crate::snapshot::{self, Snapshot};
use crate::{
    Evictions, GroupReduce, MethodInfo, ModelShape, Needs, Observation, Parameter, Parameters,
    Policy, PolicyError, Pos, Positions, PromptShape, Retention, Row, Softmax, StepObservation,
    Window, group_reduce,
};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "treekv",
    title: "TreeKV",
    paper: "arXiv 2501.04987",
    keeps: "tokens from all of the text: dense near the end, sparse further back",
    acts: "prefill and decode",
    positions: "re-assigned",
    parameters: &[
        Parameter {
            name: "block",
            default: "16, or a 4th of a budget below 64 rows",
            range: "a whole number from 1",
            meaning: "tokens per block of the prompt; the last block, up to the question's end, observes",
        },
        Parameter {
            name: "recent",
            default: "half of the budget, less the sinks",
            range: "a whole number from 0",
            meaning: "last tokens outside of the tree while answering",
        },
        Parameter {
            name: "rule",
            default: "cycle",
            range: "cycle or printed",
            meaning: "how the pair moves: cycle as drawn, printed as algorithm 1's line 16",
        },
        Parameter {
            name: "select",
            default: "score",
            range: "score or left",
            meaning: "who stays: the higher score, or always the left one (the paper's ablation)",
        },
        Parameter {
            name: "positions",
            default: "reassigned",
            range: "reassigned or original",
            meaning: "where kept keys stand for RoPE",
        },
        Parameter {
            name: "sinks",
            default: "4",
            range: "a whole number from 0",
            meaning: "first tokens that are always kept",
        },
    ],
    build: |values| {
        let p = Parameters::new(INFO.name, INFO.parameters, values)?;
        Ok(Box::new(TreeKv {
            block: p.whole("block", |b| b >= 1)?,
            recent: p.whole("recent", |_| true)?,
            rule: p.choice(
                "rule",
                &[("cycle", Rule::Cycle), ("printed", Rule::Printed)],
                Rule::Cycle,
            )?,
            left_stays: p.choice("select", &[("score", false), ("left", true)], false)?,
            positions: p.choice(
                "positions",
                &[
                    ("reassigned", Positions::Reassigned),
                    ("original", Positions::Original),
                ],
                Positions::Reassigned,
            )?,
            sinks: p.whole("sinks", |_| true)?.unwrap_or(4),
            ..TreeKv::default()
        }))
    },
};

/// How the pair advances after an eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rule {
    /// To the next row, and back to the first after the last.
    #[default]
    Cycle,
    /// `idx = (idx + 1) mod c + 1`, as printed.
    Printed,
}

impl Rule {
    /// The row after `idx` (from 0) in a tree of `c` rows.
    fn next(self, idx: usize, c: usize) -> usize {
        match self {
            Rule::Cycle => (idx + 1) % c,
            Rule::Printed => (idx + 2) % c,
        }
    }
}

/// One KV head's rows in order of position, with their accumulated attention.
#[derive(Debug, Clone, Default)]
struct Line {
    /// Slots by ascending position.
    slots: Vec<u32>,
    /// Sum S of attention, per row of the line.
    sums: Vec<f32>,
    /// Number C of steps counted, per row of the line.
    counts: Vec<u32>,
    /// Index in the tree of the left row of the next pair.
    idx: usize,
}

impl Line {
    /// An empty line with capacity for `slots` rows.
    fn with_capacity(slots: usize) -> Self {
        Self {
            slots: Vec::with_capacity(slots),
            sums: Vec::with_capacity(slots),
            counts: Vec::with_capacity(slots),
            idx: 0,
        }
    }
}

/// Eviction by a tournament between neighbours.
#[derive(Debug, Clone, Default)]
pub struct TreeKv {
    /// Tokens per block of the prompt; `None` derives it from the budget.
    pub block: Option<usize>,
    /// Number of last tokens outside the tree; `None` derives it from the budget.
    pub recent: Option<usize>,
    /// How the pair advances.
    pub rule: Rule,
    /// Always keep the left row of a pair.
    pub left_stays: bool,
    /// Positions of kept keys for RoPE.
    pub positions: Positions,
    /// Number of first tokens that are always kept.
    pub sinks: usize,
    budget: usize,
    chosen_block: usize,
    /// Tokens of the template after the question; part of the window.
    tail: usize,
    /// Rows of the tree during decode.
    tree: usize,
    /// Slots that a head may fill.
    slots: usize,
    kv_heads: usize,
    /// `[layers][kv_heads]`
    lines: Vec<Vec<Line>>,
    /// `[slots]` scratch buffer: one head's probabilities in one step.
    seen: Vec<f32>,
}

impl TreeKv {
    /// The prompt's division into blocks: `(lead, blocks, kept blocks)`. The lead is the sinks and the tokens that do
    /// not fill a block. `None` if the prompt is too short, or the budget too small for one kept block.
    ///
    /// ```text
    /// | sinks, rest | block | block | block | last block, tail |
    /// 0           lead                  n - window            n
    /// ```
    fn layout(&self, n: usize) -> Option<(usize, usize, usize)> {
        let b = self.chosen_block;
        let middle = n.checked_sub(self.window() + self.sinks)?;
        let lead = self.sinks + middle % b;
        let left = self.budget.checked_sub(self.window() + lead)?;
        (left >= b).then_some((lead, middle / b, left / b))
    }

    /// Number of queries that observe the prompt.
    fn window(&self) -> usize {
        self.chosen_block.saturating_add(self.tail)
    }

    /// The neighbour to evict: the right one if the left one has the higher score or always stays, else the left one.
    fn leaver<S: PartialOrd>(&self, left: usize, score: impl Fn(usize) -> S) -> usize {
        if self.left_stays || score(left) > score(left + 1) {
            left + 1
        } else {
            left
        }
    }

    /// Computes the sizes for a budget; the tree is empty.
    fn plant(
        &mut self,
        model: &ModelShape,
        prompt: &PromptShape,
        budget: usize,
    ) -> Result<(), PolicyError> {
        self.budget = budget;
        self.tail = prompt.tail;
        self.chosen_block = self.block.unwrap_or((budget / 4).clamp(1, 16));
        let recent = self
            .recent
            .unwrap_or((budget / 2).saturating_sub(self.sinks));
        let needed = recent.saturating_add(self.sinks).saturating_add(1);
        if budget < needed {
            let why = format!(
                "{recent} recent tokens, {} sinks and a tree of 1",
                self.sinks
            );
            return Err(too_small(budget, needed, why, prompt.tokens));
        }
        self.tree = budget - self.sinks - recent;
        self.lines = vec![Vec::new(); model.layers];
        self.seen = Vec::new();
        self.slots = prompt.slots(budget);
        self.kv_heads = model.kv_heads;
        Ok(())
    }

    /// The blocks of `scores` that remain after all have gone through a tree of `capacity`.
    fn tournament(&self, scores: &[f64], capacity: usize) -> Vec<usize> {
        let mut tree: Vec<usize> = Vec::with_capacity(capacity + 1);
        let mut idx = 0;
        for block in 0..scores.len() {
            tree.push(block);
            if tree.len() > capacity {
                tree.remove(self.leaver(idx, |i| scores[tree[i]]));
                idx = self.rule.next(idx, capacity);
            }
        }
        tree
    }
}

fn too_small(rows: usize, needed: usize, why: String, tokens: usize) -> PolicyError {
    PolicyError::BudgetTooSmall {
        method: INFO.name,
        rows,
        needed,
        why,
        tokens,
    }
}

impl Policy for TreeKv {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn needs(&self, _layer: usize) -> Needs {
        Needs {
            window: Some(Window {
                rows: self.window(),
                softmax: Softmax::All,
            }),
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
        let n = prompt.tokens;
        self.plant(model, prompt, budget)?;
        if n <= budget {
            return Ok(vec![budget; model.layers]);
        }
        let (lead, _, kept) = self.layout(n).ok_or_else(|| {
            let b = self.chosen_block;
            let lead = self.sinks + n.saturating_sub(self.window() + self.sinks) % b;
            let tail = match self.tail {
                0 => String::new(),
                tail => format!(", {tail} tokens behind the question"),
            };
            let why = format!("two blocks of {b}{tail} and {lead} first tokens");
            too_small(
                budget,
                lead.saturating_add(b).saturating_add(self.window()),
                why,
                n,
            )
        })?;
        Ok(vec![
            lead + kept * self.chosen_block + self.window();
            model.layers
        ])
    }

    fn stream(
        &mut self,
        model: &ModelShape,
        prompt: &PromptShape,
        budget: usize,
    ) -> Result<(), PolicyError> {
        self.plant(model, prompt, budget)?;
        self.seen.reserve_exact(self.slots);
        let line = || Line::with_capacity(self.slots);
        let heads = || (0..model.kv_heads).map(|_| line()).collect();
        self.lines = (0..model.layers).map(|_| heads()).collect();
        Ok(())
    }

    fn snapshot(&mut self, through: &mut dyn Snapshot) {
        for line in self.lines.iter_mut().flatten() {
            snapshot::words(through, &mut line.slots);
            snapshot::floats(through, &mut line.sums);
            snapshot::words(through, &mut line.counts);
            through.count(&mut line.idx, line.slots.capacity());
        }
    }

    fn select(&mut self, observation: &Observation<'_>, _rows: usize) -> Retention {
        let n = observation.tokens;
        let window = observation.window.expect("TreeKV asked for a window");
        let observed = self.window().min(n);
        self.seen.reserve_exact(self.slots);
        let layout = self.layout(n).filter(|_| n > self.budget);
        let group = observation.group;
        let heads = par_map(window.chunks_exact(n * group), n * group, |_, head| {
            let scores = group_reduce(head, n, group, GroupReduce::Mean);
            let kept: Vec<u32> = match layout {
                None => (0..n as u32).collect(),
                Some((lead, blocks, capacity)) => {
                    let b = self.chosen_block;
                    let span = |i: usize| lead + i * b..lead + (i + 1) * b;
                    let units: Vec<_> = (0..blocks).map(span).collect();
                    let means = means(&scores, &units);
                    let winners = self.tournament(&means, capacity);
                    (0..lead)
                        .chain(winners.into_iter().flat_map(span))
                        .chain(n - observed..n)
                        .map(|t| t as u32)
                        .collect()
                }
            };
            let mut line = Line::with_capacity(self.slots);
            line.slots.extend(0..kept.len() as u32);
            let sums = kept.iter().map(|&t| scores[t as usize] * observed as f32);
            line.sums.extend(sums);
            let saw = |t: &u32| observed.min(n - *t as usize) as u32;
            line.counts.extend(kept.iter().map(saw));
            (line, kept.into_iter().map(Pos).collect())
        });
        let (lines, heads) = heads.into_iter().unzip();
        self.lines[observation.layer] = lines;
        match layout {
            None => Retention::Everything,
            Some(_) => Retention::Keep(heads),
        }
    }

    fn decode_rows(&self, _layer: usize) -> Option<usize> {
        Some(self.budget)
    }

    fn bytes(&self) -> u64 {
        let per_slot = 2 * size_of::<u32>() + size_of::<f32>();
        let lines = self.lines.len() * self.kv_heads * per_slot;
        (self.slots * (lines + size_of::<f32>())) as u64
    }

    fn step(&mut self, step: &StepObservation<'_>, evict: &mut Evictions) {
        let mut lines = std::mem::take(&mut self.lines[step.layer]);
        for (head, (line, out)) in lines.iter_mut().zip(evict).enumerate() {
            line.slots.push(step.newest(head) as u32);
            line.sums.push(0.0);
            line.counts.push(0);
            self.seen.clear();
            self.seen.resize(step.rows[head], 0.0);
            step.add_mean(head, &mut self.seen);
            for i in 0..line.slots.len() {
                line.sums[i] += self.seen[line.slots[i] as usize];
                line.counts[i] += 1;
            }
            if line.slots.len() > self.budget {
                let mean = |i: usize| line.sums[i] / line.counts[i] as f32;
                let gone = self.leaver(self.sinks + line.idx, mean);
                *out = Some(Row(line.slots.remove(gone)));
                line.sums.remove(gone);
                line.counts.remove(gone);
                line.idx = self.rule.next(line.idx, self.tree);
            }
        }
        self.lines[step.layer] = lines;
    }
}
