//! Runs a method on a synthetic case: its selection from the prompt, and its evictions during decode.
//!
//! Methods only: attention comes from the case or from the product's kernels; no model and no engine cache is
//! involved.

use kept_engine::kernels::{
    HeadShape, LastRows, Normalise, RowStore, Stop, WindowScores, add_column_sums, log_sum_exp,
    window_maxima, window_scores,
};
use kept_engine::observe::{QueryMoments, low_attention, weighted_window};
use kept_engine::{HostRows, Pool};
use kept_policies::{
    Evict, ExpectedQueries, LowAttention, Method, ModelShape, Needs, Observation, Parallel, Pos,
    PromptRows, PromptShape, Retention, Row, RowPlan, RowRequest, Select, Selection, Serial,
    Softmax, StepObservation, build,
};

use crate::cases::{Answered, Case};
use crate::slow_rows::SlowRows;

/// Source of the attention that a method sees, and the threads on which it computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measured {
    /// `Case::attention`: in f64, one key at a time, on one thread.
    Slowly,
    /// The product's own kernel, in f32, on all threads.
    ByKernel,
}

/// The positions that a method keeps of a case, per KV head.
pub fn kept(case: &Case, measured: Measured) -> Vec<Vec<u32>> {
    positions(&cut(case, measured).selection.retention, case)
}

/// Positions per KV head; for merge classes, their centres.
pub fn positions(retention: &Retention, case: &Case) -> Vec<Vec<u32>> {
    let plain = |positions: &Vec<Pos>| positions.iter().map(|pos| pos.0).collect();
    match retention {
        Retention::Everything => vec![(0..case.n as u32).collect(); case.kv_heads],
        Retention::Keep(heads) => heads.iter().map(plain).collect(),
        Retention::Merge(heads) => heads.iter().map(|head| plain(&head.centres)).collect(),
    }
}

/// A method after its selection from a prompt.
pub struct Cut {
    /// The plan of the prefill that evicts.
    pub plan: RowPlan,
    /// The state of the prompt.
    pub state: Box<dyn Select>,
    /// The selection of the case's layer.
    pub selection: Selection,
}

/// What the method of `case` is asked to plan for.
pub fn request(case: &Case) -> RowRequest {
    RowRequest {
        model: ModelShape {
            layers: case.layers,
            q_heads: case.q_heads,
            kv_heads: case.kv_heads,
            head_dim: case.head_dim,
        },
        prompt: case.prompt(),
        budget: case.budget,
    }
}

/// The method of `case` after its selection from the prompt.
pub fn cut(case: &Case, measured: Measured) -> Cut {
    let method =
        build(&case.method, &case.set).unwrap_or_else(|e| panic!("{}: {e}", case.describe()));
    cut_by(&*method, case, measured)
}

/// As [`cut`], with a method that is already built.
pub fn cut_by(method: &dyn Method, case: &Case, measured: Measured) -> Cut {
    let mut plan = method
        .plan(&request(case))
        .unwrap_or_else(|e| panic!("{}: {e}", case.describe()));
    let mut state = method.start(&plan);
    if plan.layer_input_tokens.is_some() {
        let selection = thinned(case, &plan, &mut *state, measured);
        return Cut {
            plan,
            state,
            selection,
        };
    }
    let seen = Seen::new(case, &plan.needs[case.layer], measured);
    // Methods with a score pass over all layers see the same tensors in every layer.
    if plan.score_pass {
        for layer in 0..case.layers {
            state.score_pass(&plan, &seen.observation(case, layer));
        }
        plan = state.allocate_budget(&plan);
    }
    for layer in 0..case.layer {
        state.select(&plan, &seen.observation(case, layer));
    }
    let selection = state.select(&plan, &seen.observation(case, case.layer));
    Cut {
        plan,
        state,
        selection,
    }
}

/// The tokens that enter the layer of `case` under a method that drops tokens. Every layer sees the case's tensors of
/// the tokens that entered it.
fn thinned(case: &Case, plan: &RowPlan, state: &mut dyn Select, measured: Measured) -> Selection {
    let announced = plan.layer_input_tokens.as_ref().expect("it drops tokens");
    let mut alive: Vec<u32> = (0..case.n as u32).collect();
    for (layer, &tokens) in announced.iter().enumerate().take(case.layer) {
        assert_eq!(tokens, alive.len(), "as announced");
        let left = case.only(&alive);
        let seen = Seen::new(&left, &plan.needs[layer], measured);
        let selection = state.select(plan, &seen.observation(&left, layer));
        assert_eq!(selection.retention, Retention::Everything);
        if let Some(passed) = selection.surviving_tokens {
            alive = passed.iter().map(|&row| alive[row as usize]).collect();
        }
    }
    assert_eq!(announced[case.layer], alive.len(), "as announced");
    let alive: Vec<Pos> = alive.into_iter().map(Pos).collect();
    Retention::Keep(vec![alive; case.kv_heads]).into()
}

/// Measurements of a case.
struct Seen<'c> {
    window: Option<Vec<f32>>,
    column_sums: Option<Vec<f32>>,
    weighted_window: Option<Vec<f32>>,
    low_attention: Option<(usize, Vec<u64>)>,
    expected_queries: Option<(Vec<f32>, Vec<f32>)>,
    reconstruction: Option<Vec<f32>>,
    rows: Option<Box<dyn PromptRows + 'c>>,
    threads: &'static dyn Parallel,
}

impl<'c> Seen<'c> {
    fn new(case: &'c Case, needs: &Needs, measured: Measured) -> Self {
        let window = needs.observation_window.map(|window| match measured {
            Measured::Slowly => case.observed(window),
            Measured::ByKernel => by_kernel(case, window.rows.min(case.n), window.softmax),
        });
        let column_sums = needs.column_sums.then(|| match measured {
            Measured::Slowly => case.column_sums(),
            Measured::ByKernel => last_queries(case, |last| {
                let mut known = vec![0.0; case.q_heads * case.n];
                let mut sums = vec![0.0; case.q_heads * case.n];
                log_sum_exp(last, &mut known, &Stop::new()).expect("never stopped");
                add_column_sums(last, &known, &mut sums, &Stop::new()).expect("never stopped");
                sums
            }),
        });
        let weighted_window = needs.weighted_window.map(|window| match measured {
            Measured::Slowly => case.weighted_window(window),
            Measured::ByKernel => last_queries(case, |last| {
                let mut out = Vec::new();
                weighted_window(last, &[], window, None, &mut out, &Stop::new())
                    .expect("never stopped");
                out
            }),
        });
        let low_attention = needs.low_attention.map(|rows| match measured {
            Measured::Slowly => case.low_attention(rows),
            Measured::ByKernel => last_queries(case, |last| {
                let (rows, mut bits) = (rows.min(case.n), Vec::new());
                low_attention(last, rows, &mut bits, &Stop::new()).expect("never stopped");
                (rows, bits)
            }),
        });
        let expected_queries = needs.expected_queries.map(|request| match measured {
            Measured::Slowly => case.expected_queries(request),
            Measured::ByKernel => last_queries(case, |last| {
                let mut moments = QueryMoments::default();
                moments.start(last.shape, request);
                moments.add(last.newest(case.n - request.skip).queries);
                let found = moments.finish(None).expect("started");
                let covariance = found.covariance.unwrap_or_default();
                (found.mean.to_vec(), covariance.to_vec())
            }),
        });
        let reconstruction = needs.reconstruction.map(|asked| match measured {
            Measured::Slowly => case.reconstruction(asked.sinks),
            Measured::ByKernel => maxima(case, asked.sinks),
        });
        Self {
            window,
            column_sums,
            weighted_window,
            low_attention,
            expected_queries,
            reconstruction,
            rows: needs.rows.then(|| rows(case, measured)),
            threads: match measured {
                Measured::Slowly => &Serial,
                Measured::ByKernel => &Pool,
            },
        }
    }

    fn observation<'a>(&'a self, case: &'a Case, layer: usize) -> Observation<'a> {
        Observation {
            layer,
            tokens: case.n,
            kv_heads: case.kv_heads,
            group: case.q_heads / case.kv_heads,
            observation_window: self.window.as_deref(),
            column_sums: self.column_sums.as_deref(),
            weighted_window: self.weighted_window.as_deref(),
            low_attention: self
                .low_attention
                .as_ref()
                .map(|(rows, bits)| LowAttention { rows: *rows, bits }),
            expected_queries: self.expected_queries.as_ref().map(|(mean, covariance)| {
                ExpectedQueries {
                    mean,
                    covariance: (!covariance.is_empty()).then_some(covariance),
                }
            }),
            reconstruction: self.reconstruction.as_deref(),
            cached_scores: None,
            keys: None,
            values: None,
            rows: self.rows.as_deref(),
            threads: self.threads,
        }
    }
}

/// Access to the rows of a case.
fn rows(case: &Case, measured: Measured) -> Box<dyn PromptRows + '_> {
    match measured {
        Measured::Slowly => Box::new(SlowRows(case)),
        Measured::ByKernel => Box::new(HostRows {
            keys: &case.k,
            values: &case.v,
            kv_heads: case.kv_heads,
            head_dim: case.head_dim,
        }),
    }
}

/// [`Case::reconstruction`] by the product's kernel.
fn maxima(case: &Case, sinks: usize) -> Vec<f32> {
    let repetition = case.repetition.as_ref().expect("a repetition");
    let (n, d, m) = (case.n, case.head_dim, repetition.rows());
    let mut scores = vec![0.0f32; case.kv_heads * n];
    for &[first, end, from, to] in &repetition.chunks {
        let ahead = sinks.min(first);
        let seen = ahead + end - first + to - from;
        let mut keys = RowStore::uniform(case.kv_heads, seen, d);
        for head in 0..case.kv_heads {
            let prompt = (0..ahead).chain(first..end);
            let prompt = prompt.map(|t| &case.k[(head * n + t) * d..][..d]);
            let own = (from..to).map(|r| &repetition.k[(head * m + r) * d..][..d]);
            for (row, key) in prompt.chain(own).enumerate() {
                keys.row_mut(head, row).copy_from_slice(key);
            }
        }
        let queries: Vec<f32> = (from..to)
            .flat_map(|row| (0..case.q_heads).map(move |head| (head * m + row) * d))
            .flat_map(|at| repetition.q[at..at + d].iter().copied())
            .collect();
        let task = WindowScores {
            shape: heads(case),
            scale: (1.0 / (d as f32).sqrt()).into(),
            queries: &queries,
            keys: &keys,
            tokens: seen,
            normalise: Normalise::All,
            row_weights: None,
            log_sum_exp: &[],
        };
        let mut out = vec![0.0; case.q_heads * (end - first)];
        window_maxima(&task, ahead..ahead + end - first, &mut out, &Stop::new())
            .expect("never stopped");
        for (head, maxima) in out.chunks_exact(end - first).enumerate() {
            let kv = head / (case.q_heads / case.kv_heads);
            let scores = scores[kv * n + first..kv * n + end].iter_mut();
            scores.zip(maxima).for_each(|(s, p)| *s = s.max(*p));
        }
    }
    scores
}

/// Runs one of the product's measurements on all queries of a case.
fn last_queries<T>(case: &Case, measure: impl FnOnce(&LastRows<'_>) -> T) -> T {
    let (keys, queries) = (key_rows(case), query_rows(case, case.n));
    measure(&LastRows {
        shape: heads(case),
        scale: (1.0 / (case.head_dim as f32).sqrt()).into(),
        queries: &queries,
        keys: &keys,
        tokens: case.n,
    })
}

fn heads(case: &Case) -> HeadShape {
    HeadShape::new(case.q_heads, case.kv_heads, case.head_dim)
}

fn key_rows(case: &Case) -> RowStore {
    let (n, d) = (case.n, case.head_dim);
    let mut keys = RowStore::uniform(case.kv_heads, n, d);
    for head in 0..case.kv_heads {
        for row in 0..n {
            let key = &case.k[(head * n + row) * d..][..d];
            keys.row_mut(head, row).copy_from_slice(key);
        }
    }
    keys
}

/// `[rows, q_heads, head_dim]`: the last queries.
fn query_rows(case: &Case, rows: usize) -> Vec<f32> {
    let (n, d) = (case.n, case.head_dim);
    (n - rows..n)
        .flat_map(|row| (0..case.q_heads).map(move |head| (head * n + row) * d))
        .flat_map(|first| case.q[first..first + d].iter().copied())
        .collect()
}

/// `[q_heads, n]`: attention of the last `rows` queries, averaged.
fn by_kernel(case: &Case, rows: usize, softmax: Softmax) -> Vec<f32> {
    let (n, d) = (case.n, case.head_dim);
    let (keys, queries) = (key_rows(case), query_rows(case, rows));
    let task = WindowScores {
        shape: heads(case),
        scale: (1.0 / (d as f32).sqrt()).into(),
        queries: &queries,
        keys: &keys,
        tokens: n,
        normalise: match softmax {
            Softmax::All => Normalise::All,
            Softmax::Prefix => Normalise::Prefix,
        },
        row_weights: None,
        log_sum_exp: &[],
    };
    let mut scores = vec![0.0; case.q_heads * n];
    window_scores(&task, &mut scores, &Stop::new()).expect("never stopped");
    scores
}

/// A layer's cache during decode, as slots: the next token takes the slot of the evicted row.
pub struct Replay {
    evictor: Box<dyn Evict>,
    q_heads: usize,
    layer: usize,
    /// `[kv_heads][rows]`: the position in each slot.
    slots: Vec<Vec<Pos>>,
    /// `[kv_heads]`: the slot evicted last.
    free: Vec<Option<usize>>,
    /// Value merges of the last step.
    left: Vec<Left>,
}

/// `share` times the value of the token at `from` was added to the value of the token at `to`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Left {
    /// The KV head.
    pub head: usize,
    /// Position of the evicted token.
    pub from: u32,
    /// Position of the kept token.
    pub to: u32,
    /// The factor.
    pub share: f32,
}

impl Replay {
    /// A method that evicts during decode, after selection of `kept` positions per KV head.
    pub fn new(state: Box<dyn Select>, q_heads: usize, kept: &[Vec<u32>]) -> Self {
        Self {
            evictor: state.evictor().expect("it evicts during decode"),
            q_heads,
            layer: 0,
            slots: (kept.iter())
                .map(|head| head.iter().copied().map(Pos).collect())
                .collect(),
            free: vec![None; kept.len()],
            left: Vec::new(),
        }
    }

    /// The same for layer `layer` instead of the first.
    pub fn at_layer(self, layer: usize) -> Self {
        Self { layer, ..self }
    }

    /// One KV head with one query head, after a prompt of `first.len()` tokens that all fit the budget; `first` is the
    /// attention that each token has received.
    pub fn of_one_head(method: &str, set: &[(&str, &str)], budget: usize, first: &[f32]) -> Self {
        let set: Vec<(String, String)> = (set.iter())
            .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
            .collect();
        let method = build(method, &set).expect("a method");
        let n = first.len();
        let request = RowRequest {
            model: ModelShape {
                layers: 1,
                q_heads: 1,
                kv_heads: 1,
                head_dim: 8,
            },
            prompt: PromptShape::of(n),
            budget,
        };
        let plan = method.plan(&request).expect("rows");
        assert_eq!(plan.decode_rows, Some(vec![budget]));
        let observation = Observation {
            layer: 0,
            tokens: n,
            kv_heads: 1,
            group: 1,
            observation_window: Some(first),
            column_sums: Some(first),
            ..Observation::default()
        };
        let mut state = method.start(&plan);
        let selection = state.select(&plan, &observation);
        assert_eq!(selection, Retention::Everything.into());
        Self::new(state, 1, &[(0..n as u32).collect()])
    }

    /// One decode step of one head whose query attends to the cached tokens with the probabilities `row`. Returns the
    /// positions that remain.
    pub fn answer(&mut self, new: Pos, row: &[f32]) -> Vec<u32> {
        self.step(new, |_, rank| row.get(rank).copied().unwrap_or(0.0));
        self.held(0)
    }

    /// Value merges of the last step.
    pub fn left(&self) -> &[Left] {
        &self.left
    }

    /// One decode step at position `new`. Its query attends to the tokens of each head in position order, the new one
    /// last: `probability(q_head, rank)`. Returns the position that each KV head evicts.
    pub fn step(
        &mut self,
        new: Pos,
        mut probability: impl FnMut(usize, usize) -> f32,
    ) -> Vec<Option<u32>> {
        let group = self.q_heads / self.slots.len();
        for (slots, free) in self.slots.iter_mut().zip(&mut self.free) {
            match free.take() {
                Some(slot) => slots[slot] = new,
                None => slots.push(new),
            }
        }
        // One slot more than is used, so that a wrong stride changes the result.
        let capacity = self.slots.iter().map(Vec::len).max().unwrap_or(0) + 1;
        let rows: Vec<usize> = self.slots.iter().map(Vec::len).collect();
        let firsts: Vec<usize> = (0..rows.len()).map(|head| head * capacity).collect();
        let mut positions = vec![Pos(0); capacity * rows.len()];
        let mut probabilities = vec![0.0; capacity * self.q_heads];
        for (head, slots) in self.slots.iter().enumerate() {
            positions[head * capacity..][..slots.len()].copy_from_slice(slots);
            let mut order: Vec<usize> = (0..slots.len()).collect();
            order.sort_by_key(|&slot| slots[slot]);
            for q_head in head * group..(head + 1) * group {
                for (rank, slot) in order.iter().enumerate() {
                    probabilities[q_head * capacity + slot] = probability(q_head, rank);
                }
            }
        }
        let last = (rows.iter().zip(&firsts)).map(|(&rows, &first)| first..first + rows);
        let last: Vec<usize> = last.map(|slots| newest(&positions[slots])).collect();
        let observation = StepObservation {
            newest: &last,
            layer: self.layer,
            rows: &rows,
            firsts: &firsts,
            positions: &positions,
            group,
            probabilities: &probabilities,
            stride: capacity,
        };
        let mut evict = vec![None; rows.len()];
        self.evictor.step(&observation, &mut evict);
        let of = |head: usize, Row(slot): Row| positions[firsts[head] + slot as usize].0;
        let left = self.evictor.value_merges().iter().map(|spill| Left {
            head: spill.head,
            from: of(spill.head, spill.from),
            to: of(spill.head, spill.to),
            share: spill.weight,
        });
        self.left = left.collect();
        let mut keep = vec![true; positions.len()];
        if self.evictor.evict_many(&observation, &mut keep) {
            for (slots, first) in self.slots.iter_mut().zip(&firsts) {
                let mut stays = keep[*first..].iter();
                slots.retain(|_| stays.next().copied().unwrap_or(true));
            }
        }
        self.free = evict
            .iter()
            .map(|row| row.map(|Row(slot)| slot as usize))
            .collect();
        (self.slots.iter().zip(&self.free))
            .map(|(slots, free)| free.map(|slot| slots[slot].0))
            .collect()
    }

    /// The positions cached by KV head `head`, ascending.
    pub fn held(&self, head: usize) -> Vec<u32> {
        let slots = self.slots[head].iter().enumerate();
        let mut held: Vec<u32> = slots
            .filter(|(slot, _)| Some(*slot) != self.free[head])
            .map(|(_, pos)| pos.0)
            .collect();
        held.sort_unstable();
        held
    }
}

/// The slot of the newest token among these `positions` of slots.
pub fn newest(positions: &[Pos]) -> usize {
    let slots = positions.iter().enumerate();
    slots.max_by_key(|(_, p)| **p).map_or(0, |(slot, _)| slot)
}

/// `[kv_heads][steps]`: the positions evicted from the cache of `case` during decode.
pub fn evicted(case: &Case, answered: &Answered) -> Vec<Vec<Option<u32>>> {
    let cut = cut(case, Measured::Slowly);
    let kept = positions(&cut.selection.retention, case);
    let mut replay = Replay::new(cut.state, case.q_heads, &kept);
    let mut drawn = case.probabilities();
    let mut gone = vec![Vec::with_capacity(answered.steps); case.kv_heads];
    for step in 0..answered.steps {
        let left = replay.step(Pos((case.n + step) as u32), |_, _| drawn.draw());
        gone.iter_mut().zip(left).for_each(|(g, l)| g.push(l));
    }
    gone
}
