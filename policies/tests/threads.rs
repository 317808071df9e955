//! Threads do not change a method's decisions. Runs every method on synthetic measurements, with heads in parallel on
//! several threads and in sequence on one.

use std::ops::Range;

use kept_policies::{
    BilinearForm, ExpectedQueries, LowAttention, ModelShape, Needs, Observation, Parallel,
    Parameters, Pos, PromptRows, PromptShape, Retention, Row, RowPlan, RowRequest, Select,
    Selection, Serial, StepObservation, build, methods,
};

/// The last item first, each on one of `THREADS` threads.
#[derive(Debug)]
struct Threads;

impl Parallel for Threads {
    fn for_each(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        std::thread::scope(|scope| {
            for thread in 0..THREADS.min(count) {
                scope.spawn(move || {
                    let items = (0..count).rev();
                    items.filter(|item| item % THREADS == thread).for_each(work);
                });
            }
        });
    }
}

const THREADS: usize = 4;
const LAYERS: usize = 3;
const DIM: usize = 4;
/// Enough that even one head's numbers are distributed over the threads, and not a multiple of any part or block size.
const TOKENS: usize = 20_011;
const BUDGET: usize = 1501;
/// The most words per key in the bits of low attention.
const MAX_WORDS: usize = 8;

/// All methods with default parameters, and parameters that take other code paths.
fn variants() -> Vec<(&'static str, &'static str)> {
    let defaults = methods().iter().map(|method| (method.name, ""));
    let others = [
        ("snapkv", "pooling=avg,group=max,kernel=5"),
        ("snapkv", "kernel=1001,w=1000"),
        ("snapkv", "kernel=1,sinks=0,decode_cap=1600"),
        ("h2o", "normalise=true"),
        ("tova", "force_last=false"),
        ("chunkkv", "heads=per_head"),
        ("chunkkv", "variant=literal,reuse=1"),
        ("hbw_kv", "block=1,rounds=1+3"),
        ("hbw_kv", "block=37,rounds=1+5+2"),
        ("treekv", "positions=original"),
        ("expected_attention", "covariance=false,vnorm=false"),
        ("pyramidinfer", "variant=faithful,ratio=0.5"),
        ("kvzip", "spread=head"),
        ("kvzip", "spread=model"),
        ("adakv", "safeguard=reserve"),
        ("adakv", "safeguard=reserve,floor=0"),
        ("adakv", "base=h2o,floor=0"),
        ("adakv", "base=tova"),
        ("adakv", "base=pyramidkv"),
        ("adakv", "base=keydiff"),
        ("adakv", "base=expected_attention"),
        ("adakv", "base=kvzip"),
        ("cam", "base=snapkv"),
        ("cam", "base=h2o"),
    ];
    defaults.chain(others).collect()
}

/// Synthetic measurements of one layer.
struct Drawn {
    /// `[q_heads, n]`
    scores: Vec<f32>,
    /// `[kv_heads, n, DIM]`
    keys: Vec<f32>,
    values: Vec<f32>,
    /// `[q_heads, DIM]` and `[q_heads, DIM, DIM]`
    mean: Vec<f32>,
    covariance: Vec<f32>,
    /// `[kv_heads, n, words]`
    bits: Vec<u64>,
}

/// xorshift: Marsaglia, 2003.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Numbers from 0 to 1, most of them small, with `levels` different values: with few levels most scores are ties.
fn numbers(state: &mut u64, levels: u32, count: usize) -> Vec<f32> {
    let number = |_| {
        let uniform = (next(state) >> 40) as f32 / (1u64 << 24) as f32;
        (uniform.powi(6) * levels as f32) as u32 as f32 / levels as f32
    };
    (0..count).map(number).collect()
}

impl Drawn {
    fn new(state: &mut u64, levels: u32, shape: &ModelShape) -> Self {
        let (q_heads, rows) = (shape.q_heads, shape.kv_heads * TOKENS);
        let mut signed = |count| {
            let drawn = numbers(state, levels, count);
            drawn.into_iter().map(|x| x - 0.3).collect::<Vec<_>>()
        };
        Self {
            keys: signed(rows * DIM),
            values: signed(rows * DIM),
            mean: signed(q_heads * DIM),
            covariance: signed(q_heads * DIM * DIM),
            scores: numbers(state, levels, q_heads * TOKENS),
            bits: (0..rows * MAX_WORDS).map(|_| next(state)).collect(),
        }
    }

    fn rows(&self, tokens: usize) -> Rows<'_> {
        Rows {
            keys: &self.keys,
            values: &self.values,
            tokens,
        }
    }

    fn observation<'a>(
        &'a self,
        layer: usize,
        shape: &ModelShape,
        needs: &Needs,
        rows: &'a Rows<'a>,
        threads: &'a dyn Parallel,
    ) -> Observation<'a> {
        let tokens = rows.tokens;
        let scores = &self.scores[..shape.q_heads * tokens];
        Observation {
            layer,
            tokens,
            kv_heads: shape.kv_heads,
            group: shape.group(),
            observation_window: needs.observation_window.map(|_| scores),
            column_sums: needs.column_sums.then_some(scores),
            weighted_window: needs.weighted_window.map(|_| scores),
            reconstruction: needs
                .reconstruction
                .map(|_| &scores[..shape.kv_heads * tokens]),
            low_attention: needs.low_attention.map(|rows| LowAttention {
                rows,
                bits: &self.bits[..shape.kv_heads * tokens * rows.div_ceil(64)],
            }),
            expected_queries: needs.expected_queries.map(|future| ExpectedQueries {
                mean: &self.mean,
                covariance: future.covariance.then_some(&self.covariance),
            }),
            rows: needs.rows.then_some(rows as &dyn PromptRows),
            threads,
            ..Observation::default()
        }
    }
}

/// Keys and values of a prompt.
#[derive(Debug)]
struct Rows<'a> {
    /// `[kv_heads, tokens, DIM]`
    keys: &'a [f32],
    values: &'a [f32],
    tokens: usize,
}

impl Rows<'_> {
    fn row<'r>(&self, rows: &'r [f32], head: usize, token: usize) -> &'r [f32] {
        &rows[(head * self.tokens + token) * DIM..][..DIM]
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt().max(1e-9)
}

impl PromptRows for Rows<'_> {
    fn nearest_by_cosine(
        &self,
        head: usize,
        tokens: &[u32],
        others: &[u32],
        best: &mut [(u32, f32)],
    ) {
        // A sample of the others: the whole product takes minutes.
        for (&token, best) in tokens.iter().zip(best) {
            for (index, &other) in others.iter().enumerate().step_by(37) {
                let alike = |rows| {
                    let row = |token: u32| self.row(rows, head, token as usize);
                    cosine(row(token), row(other))
                };
                let product = alike(self.keys) * alike(self.values);
                if product > best.1 {
                    *best = (index as u32, product);
                }
            }
        }
    }

    fn cosine_to_mean(&self, head: usize, document: usize, cosines: &mut [f32]) {
        let mut mean = [0.0; DIM];
        for token in 0..document {
            let key = self.row(self.keys, head, token);
            mean.iter_mut().zip(key).for_each(|(m, x)| *m += x);
        }
        for (token, cosine_to_mean) in cosines.iter_mut().enumerate() {
            *cosine_to_mean = cosine(self.row(self.keys, head, token), &mean);
        }
    }

    fn bilinear_forms(
        &self,
        head: usize,
        tokens: Range<usize>,
        form: BilinearForm<'_>,
        out: &mut [f32],
    ) {
        for (token, out) in tokens.zip(out) {
            let key = self.row(self.keys, head, token);
            let rows = form.matrix.into_iter().flat_map(|m| m.chunks_exact(DIM));
            let quadratic: f32 = rows.zip(key).map(|(row, x)| dot(row, key) * x).sum();
            *out = dot(form.linear, key) + quadratic;
        }
    }

    fn softmax(&self, logits: &mut [f32]) {
        logits.iter_mut().for_each(|x| *x = x.exp());
        let sum: f32 = logits.iter().sum();
        logits.iter_mut().for_each(|x| *x /= sum);
    }

    fn key_norms(&self, head: usize, tokens: Range<usize>, norms: &mut [f32]) {
        for (token, norm) in tokens.zip(norms) {
            let key = self.row(self.keys, head, token);
            *norm = dot(key, key).sqrt();
        }
    }

    fn value_norms(&self, head: usize, tokens: Range<usize>, norms: &mut [f32]) {
        for (token, norm) in tokens.zip(norms) {
            let value = self.row(self.values, head, token);
            *norm = dot(value, value).sqrt();
        }
    }
}

/// All decisions of a method on one prompt.
#[derive(Debug, PartialEq)]
struct Decided {
    selections: Vec<Selection>,
    /// The slot that each head of the first layer evicts after a step.
    evicted: Vec<Option<Row>>,
}

fn decided(
    name: &str,
    set: &str,
    shape: &ModelShape,
    drawn: &[Drawn],
    threads: &dyn Parallel,
) -> Decided {
    let parameters = Parameters::parse_assignments(set).expect("parameters");
    let method = build(name, &parameters).expect("a method");
    let prompt = PromptShape {
        before: 5,
        after: 40,
        tail: 3,
        max_new_tokens: 20,
        ..PromptShape::of(TOKENS)
    };
    let request = RowRequest {
        model: *shape,
        prompt,
        budget: method.default_rows(shape, &prompt).unwrap_or(BUDGET),
    };
    let mut plan = method.plan(&request).expect("rows enough");
    let mut state = method.start(&plan);
    if plan.score_pass {
        for (layer, drawn) in drawn.iter().enumerate() {
            let rows = drawn.rows(TOKENS);
            let needs = &plan.needs[layer];
            let observation = drawn.observation(layer, shape, needs, &rows, threads);
            state.score_pass(&plan, &observation);
        }
        plan = state.allocate_budget(&plan);
    }
    let mut selections = Vec::new();
    for (layer, drawn) in drawn.iter().enumerate() {
        let lengths = plan.layer_input_tokens.as_ref();
        let rows = drawn.rows(lengths.map_or(TOKENS, |lengths| lengths[layer]));
        let needs = &plan.needs[layer];
        let observation = drawn.observation(layer, shape, needs, &rows, threads);
        selections.push(state.select(&plan, &observation));
    }
    let evicted = after_a_step(state, &plan, &selections[0].retention, &drawn[1].scores);
    Decided {
        selections,
        evicted,
    }
}

/// The slots that the heads evict after one more token. The result depends on each slot having its own number.
fn after_a_step(
    state: Box<dyn Select>,
    plan: &RowPlan,
    kept: &Retention,
    probabilities: &[f32],
) -> Vec<Option<Row>> {
    let mut evicted = vec![None; plan.model.kv_heads];
    let (Retention::Keep(heads), Some(most)) = (kept, &plan.decode_rows) else {
        return evicted;
    };
    if heads[0].len() < most[0] {
        return evicted;
    }
    let newest = Pos(TOKENS as u32);
    let positions: Vec<Pos> = (heads.iter())
        .flat_map(|head| head.iter().copied().chain([newest]))
        .collect();
    let rows: Vec<usize> = heads.iter().map(|head| head.len() + 1).collect();
    let firsts: Vec<usize> = (0..heads.len())
        .map(|head| rows[..head].iter().sum())
        .collect();
    let last: Vec<usize> = rows.iter().map(|rows| rows - 1).collect();
    let step = StepObservation {
        newest: &last,
        layer: 0,
        rows: &rows,
        firsts: &firsts,
        positions: &positions,
        group: plan.model.group(),
        probabilities,
        stride: TOKENS,
    };
    let mut evictor = state.evictor().expect("it evicts during decode");
    evictor.step(&step, &mut evicted);
    evicted
}

#[test]
fn the_number_of_threads_changes_no_decision() {
    let (mut ragged, mut evicted) = (0, 0);
    let many = 1 << 20;
    // One head, fewer heads than threads, and more heads than threads.
    for (kv_heads, group, levels) in [(1, 4, 12), (2, 1, many), (5, 2, many), (9, 1, 12)] {
        let shape = ModelShape {
            layers: LAYERS,
            q_heads: kv_heads * group,
            kv_heads,
            head_dim: DIM,
        };
        let mut state = 0x2545_f491_4f6c_dd1d;
        let drawn: Vec<Drawn> = (0..LAYERS)
            .map(|_| Drawn::new(&mut state, levels, &shape))
            .collect();
        for (name, set) in variants() {
            let parallel = decided(name, set, &shape, &drawn, &Threads);
            let serial = decided(name, set, &shape, &drawn, &Serial);
            assert!(
                parallel == serial,
                "{name} {set}, {kv_heads} heads, {levels} levels"
            );
            let Retention::Keep(heads) = &parallel.selections[0].retention else {
                continue;
            };
            ragged += usize::from(heads.iter().any(|head| *head != heads[0]));
            evicted += parallel.evicted.iter().flatten().count();
        }
    }
    assert!(ragged > 50, "{ragged} choices whose heads differ");
    assert!(evicted > 25, "{evicted} rows evicted");
}
