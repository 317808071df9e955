//! TreeKV: a tournament between neighbours thins out older tokens, sparse on the left and dense on the right (He et
//! al., "TreeKV: Smooth Key-Value Cache Compression with Tree Structures", sections 4.1 and 4.2, algorithm 1).
//!
//! In decode, each KV head has the sinks, then a tree of `c` rows, then the `recent` last tokens. For every row, each
//! step adds its probability to S and 1 to C. When there is a row too many, the oldest recent token becomes the newest
//! row of the tree, and the rows `idx` and `idx + 1` of the tree compete by S / C. The lower one is evicted, on equal
//! scores the left one; then idx advances by one and wraps around. Line 16 as printed skips every second pair for even
//! c; `cycle` visits all pairs, as in figure 3. With `decode=off`, decode only appends.
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
use crate::info::read;
use crate::options::{FROM_0, FROM_1, ON_OFF, REASSIGNED_OR_ORIGINAL, Range, options};
use crate::parallel::par_map;
use crate::snapshot::{self, Snapshot};
use crate::{
    Evict, Evictions, GroupReduce, Method, MethodInfo, Observation, ObservationWindow, PolicyError,
    Pos, Positions, PromptShape, Retention, Row, RowPlan, RowRequest, Select, Selection, Softmax,
    StepObservation, group_reduce,
};

/// Entry in the table of methods.
pub(crate) const INFO: MethodInfo = MethodInfo {
    name: "treekv",
    title: "TreeKV",
    paper: "arXiv 2501.04987",
    keeps: "tokens from all of the text: dense near the end, sparse further back",
    acts: "prefill and decode",
    positions: "re-assigned",
    parameters: TreeKv::OPTIONS,
    build: |values| read(&INFO, values, TreeKv::read),
};

options! {
    /// Eviction by a tournament between neighbours.
    #[derive(Debug, Clone)]
    pub struct TreeKv {
        /// tokens per block of the prompt; the last block, up to the question's end, observes
        block: Option<usize> => "block", "16, or a 4th of a budget below 64 rows", FROM_1;
        /// last tokens outside of the tree while answering
        recent: Option<usize> => "recent", "half of the budget, less the sinks", FROM_0;
        /// how the pair moves: cycle as drawn, printed as algorithm 1's line 16
        printed: bool => "rule", "cycle", Range::Flag("cycle or printed", ["cycle", "printed"]);
        /// who stays: the higher score, or always the left one (the paper's ablation)
        left_stays: bool => "select", "score", Range::Flag("score or left", ["score", "left"]);
        /// whether rows are evicted while answering; off: only appended
        decode: bool => "decode", "on", ON_OFF;
        /// where kept keys stand for RoPE
        positions: Positions => "positions", "reassigned", REASSIGNED_OR_ORIGINAL;
        /// first tokens that are always kept
        sinks: usize => "sinks", "4", FROM_0;
    }
}

/// The sizes of the tree for one budget.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    budget: usize,
    sinks: usize,
    /// Last tokens outside of the tree during decode.
    recent: usize,
    /// Tokens per block of the prompt.
    block: usize,
    /// Queries that observe the prompt: the last block, and the tail of the template after the question.
    window: usize,
    /// Rows of the tree during decode.
    tree: usize,
}

/// The prompt's division into blocks. The lead is the sinks and the tokens that do not fill a block.
///
/// ```text
/// | sinks, rest | block | block | block | last block, tail |
/// 0           lead                  n - window            n
/// ```
#[derive(Debug, Clone, Copy)]
struct Layout {
    lead: usize,
    blocks: usize,
    kept_blocks: usize,
}

impl Sizes {
    fn new(options: &TreeKv, prompt: &PromptShape, budget: usize) -> Self {
        let half = (budget / 2).saturating_sub(options.sinks);
        let recent = options.recent.unwrap_or(half);
        let block = options.block.unwrap_or((budget / 4).clamp(1, 16));
        Self {
            budget,
            sinks: options.sinks,
            recent,
            block,
            window: block.saturating_add(prompt.tail),
            tree: budget.saturating_sub(options.sinks.saturating_add(recent)),
        }
    }

    /// Tokens before the first block, in a prompt of `n` tokens.
    fn lead(&self, n: usize) -> usize {
        self.sinks + n.saturating_sub(self.window + self.sinks) % self.block
    }

    /// The layout of `n` tokens; `None` if the prompt is too short, or the budget too small for one kept block.
    fn layout(&self, n: usize) -> Option<Layout> {
        let middle = n.checked_sub(self.window + self.sinks)?;
        let lead = self.lead(n);
        let left = self.budget.checked_sub(self.window + lead)?;
        (left >= self.block).then_some(Layout {
            lead,
            blocks: middle / self.block,
            kept_blocks: left / self.block,
        })
    }
}

impl TreeKv {
    /// The left row of the pair after that of `idx` (from 0) in a tree of `c` rows: the next one, back to the first after
    /// the last; or, as printed, `idx = (idx + 1) mod c + 1`.
    fn next(&self, idx: usize, c: usize) -> usize {
        (idx + 1 + usize::from(self.printed)) % c
    }

    /// The neighbour to evict: the right one if the left one has the higher score or always stays, else the left one.
    fn loser<S: PartialOrd>(&self, left: usize, score: impl Fn(usize) -> S) -> usize {
        if self.left_stays || score(left) > score(left + 1) {
            left + 1
        } else {
            left
        }
    }

    /// The blocks of `scores` that remain after all have gone through a tree of `capacity`.
    fn tournament(&self, scores: &[f64], capacity: usize) -> Vec<usize> {
        let mut tree: Vec<usize> = Vec::with_capacity(capacity + 1);
        let mut idx = 0;
        for block in 0..scores.len() {
            tree.push(block);
            if tree.len() > capacity {
                tree.remove(self.loser(idx, |i| scores[tree[i]]));
                idx = self.next(idx, capacity);
            }
        }
        tree
    }

    /// The plan without the rows of the prompt.
    fn plan_tree(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        let RowRequest { model, prompt, .. } = request;
        let budget = request.budget;
        let sizes = Sizes::new(self, prompt, budget);
        let window = ObservationWindow {
            rows: sizes.window,
            softmax: Softmax::All,
        };
        let mut plan = RowPlan::uniform(request)
            .protecting(self.sinks, sizes.window)
            .evicting(self.decode, budget)
            .measuring(|needs| {
                needs.observation_window = Some(window);
                needs.even_if_all_kept = self.decode;
            });
        if sizes.tree == 0 {
            let (recent, sinks) = (sizes.recent, self.sinks);
            let needed = recent.saturating_add(sinks).saturating_add(1);
            let why = format!("{recent} recent tokens, {sinks} sinks and a tree of 1");
            return Err(plan.too_small(INFO.name, needed, why));
        }
        plan.positions = self.positions;
        let per_slot = 2 * size_of::<u32>() + size_of::<f32>();
        let lines = model.layers * model.kv_heads * per_slot;
        plan.bytes = (prompt.slots(budget) * (lines + size_of::<f32>())) as u64;
        Ok(plan)
    }
}

impl Method for TreeKv {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        let RowRequest { model, prompt, .. } = request;
        let budget = request.budget;
        let plan = self.plan_tree(request)?;
        let (n, sizes) = (prompt.tokens, Sizes::new(self, prompt, budget));
        if n <= budget {
            return Ok(plan);
        }
        let Some(layout) = sizes.layout(n) else {
            let (block, lead) = (sizes.block, sizes.lead(n));
            let tail = match prompt.tail {
                0 => String::new(),
                tail => format!(", {tail} tokens behind the question"),
            };
            let why = format!("two blocks of {block}{tail} and {lead} first tokens");
            let needed = lead.saturating_add(block).saturating_add(sizes.window);
            return Err(plan.too_small(INFO.name, needed, why));
        };
        let rows = layout.lead + layout.kept_blocks * sizes.block + sizes.window;
        Ok(plan.with_rows(vec![rows; model.layers]))
    }

    fn start(&self, plan: &RowPlan) -> Box<dyn Select> {
        Box::new(State {
            options: self.clone(),
            sizes: Sizes::new(self, &plan.prompt, plan.budget),
            kv_heads: plan.model.kv_heads,
            lines: vec![Vec::new(); plan.model.layers],
            seen: Vec::with_capacity(plan.prompt.slots(plan.budget)),
        })
    }

    fn stream_plan(&self, request: &RowRequest) -> Result<RowPlan, PolicyError> {
        PolicyError::if_decode_is_off(INFO.name, self.decode)?;
        self.plan_tree(request)
    }
}

/// One KV head's rows in order of position, with their accumulated attention.
#[derive(Debug, Clone, Default)]
struct Line {
    /// Slots by ascending position.
    slots: Vec<u32>,
    /// Sum S of attention, by slot.
    sums: Vec<f32>,
    /// Number C of steps counted, by slot.
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

/// The state of one prompt and its answer.
struct State {
    options: TreeKv,
    sizes: Sizes,
    kv_heads: usize,
    /// `[layers][kv_heads]`
    lines: Vec<Vec<Line>>,
    /// `[slots]` scratch buffer: one head's probabilities in one step.
    seen: Vec<f32>,
}

impl State {
    /// The tokens that one head keeps, from the window's attention `scores [n]`; all without a `layout`.
    fn keep(&self, scores: &[f32], layout: Option<Layout>) -> Vec<u32> {
        let n = scores.len();
        let Some(layout) = layout else {
            return (0..n as u32).collect();
        };
        let (lead, block) = (layout.lead, self.sizes.block);
        let span = |i: usize| lead + i * block..lead + (i + 1) * block;
        let units: Vec<_> = (0..layout.blocks).map(span).collect();
        let means = means(scores, &units);
        let winners = self.options.tournament(&means, layout.kept_blocks);
        (0..lead)
            .chain(winners.into_iter().flat_map(span))
            .chain(n - self.sizes.window.min(n)..n)
            .map(|t| t as u32)
            .collect()
    }
}

impl Select for State {
    fn select(&mut self, plan: &RowPlan, observation: &Observation<'_>) -> Selection {
        let (n, group) = (observation.tokens, observation.group);
        let observed = self.sizes.window.min(n);
        let slots = plan.prompt.slots(plan.budget);
        let layout = self.sizes.layout(n).filter(|_| n > plan.budget);
        if layout.is_none() && !self.options.decode {
            // Nothing is observed: nothing leaves the prompt, and no answer needs the counts.
            return Retention::Everything.into();
        }
        let heads = observation.window_heads();
        let heads = par_map(observation.threads, heads, n * group, |_, head| {
            let scores = group_reduce(head, n, group, GroupReduce::Mean);
            let kept = self.keep(&scores, layout);
            let mut line = Line::with_capacity(slots);
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
            None => Retention::Everything.into(),
            Some(_) => Retention::Keep(heads).into(),
        }
    }

    fn evictor(mut self: Box<Self>) -> Option<Box<dyn Evict>> {
        if !self.options.decode {
            return None;
        }
        let slots = self.seen.capacity();
        for layer in self.lines.iter_mut().filter(|layer| layer.is_empty()) {
            layer.resize_with(self.kv_heads, || Line::with_capacity(slots));
        }
        Some(self)
    }
}

impl Evict for State {
    fn step(&mut self, step: &StepObservation<'_>, evict: &mut Evictions) {
        let Sizes {
            budget,
            sinks,
            tree,
            ..
        } = self.sizes;
        for (head, (line, out)) in self.lines[step.layer].iter_mut().zip(evict).enumerate() {
            let (newest, rows) = (step.newest[head], step.rows[head]);
            line.slots.push(newest as u32);
            line.sums.resize(rows, 0.0);
            line.counts.resize(rows, 0);
            (line.sums[newest], line.counts[newest]) = (0.0, 0);
            self.seen.clear();
            self.seen.resize(rows, 0.0);
            step.add_mean(head, &mut self.seen);
            let sums = line.sums.iter_mut().zip(&self.seen);
            sums.for_each(|(sum, seen)| *sum += seen);
            line.counts.iter_mut().for_each(|count| *count += 1);
            if line.slots.len() > budget {
                let slot = |i: usize| line.slots[i] as usize;
                let mean = |i: usize| line.sums[slot(i)] / line.counts[slot(i)] as f32;
                let gone = self.options.loser(sinks + line.idx, mean);
                *out = Some(Row(line.slots.remove(gone)));
                line.idx = self.options.next(line.idx, tree);
            }
        }
    }

    fn snapshot(&mut self, through: &mut dyn Snapshot) {
        for line in self.lines.iter_mut().flatten() {
            snapshot::words(through, &mut line.slots);
            snapshot::floats(through, &mut line.sums);
            snapshot::words(through, &mut line.counts);
            through.count(&mut line.idx, line.slots.capacity());
        }
    }
}
