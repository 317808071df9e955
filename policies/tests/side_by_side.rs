//! The number of threads does not change a method's decisions. Runs every method on synthetic measurements, with heads
//! in parallel on several threads and in sequence on one. This test has its own program because the number of threads
//! is global to the program.

use kept_kernels::threads;
use kept_policies::{
    FutureQueries, HostRows, LowAttention, ModelShape, Needs, Observation, Parameters, Policy, Pos,
    PromptRows, PromptShape, Retention, Row, StepObservation, ValueMerge, build, methods,
};

const THREADS: usize = 4;
const LAYERS: usize = 3;
const DIM: usize = 4;
/// Enough that even one head's numbers are distributed over the threads, and not a multiple of any part or block size.
const TOKENS: usize = 20_011;
const BUDGET: usize = 1501;
/// The most words per key in the bits of low attention.
const MOST_WORDS: usize = 8;

/// All methods with default parameters, and parameters that take other code paths.
fn variants() -> Vec<(&'static str, &'static str)> {
    let defaults = methods().iter().map(|method| (method.name, ""));
    let others = [
        ("snapkv", "pooling=avg,group=max,kernel=5"),
        ("snapkv", "kernel=3001,w=1000"),
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
            bits: (0..rows * MOST_WORDS).map(|_| next(state)).collect(),
        }
    }

    fn rows(&self, tokens: usize, shape: &ModelShape) -> HostRows<'_> {
        let numbers = shape.kv_heads * tokens * DIM;
        HostRows {
            keys: &self.keys[..numbers],
            values: &self.values[..numbers],
            kv_heads: shape.kv_heads,
            head_dim: DIM,
        }
    }

    fn observation<'a>(
        &'a self,
        (layer, tokens): (usize, usize),
        shape: &ModelShape,
        needs: &Needs,
        rows: &'a HostRows<'a>,
    ) -> Observation<'a> {
        let scores = &self.scores[..shape.q_heads * tokens];
        Observation {
            layer,
            tokens,
            kv_heads: shape.kv_heads,
            group: shape.group(),
            window: needs.window.map(|_| scores),
            column_sums: needs.column_sums.then_some(scores),
            weighted_window: needs.weighted_window.map(|_| scores),
            reconstruction: needs
                .reconstruction
                .map(|_| &scores[..shape.kv_heads * tokens]),
            low_attention: needs.low_attention.map(|rows| LowAttention {
                rows,
                bits: &self.bits[..shape.kv_heads * tokens * rows.div_ceil(64)],
            }),
            future: needs.future.map(|future| FutureQueries {
                mean: &self.mean,
                covariance: future.covariance.then_some(&self.covariance),
            }),
            rows: needs.rows.then_some(rows as &dyn PromptRows),
            ..Observation::default()
        }
    }
}

/// All decisions of a method on one prompt.
#[derive(Debug, PartialEq)]
struct Decided {
    kept: Vec<Retention>,
    passed: Vec<Option<Vec<u32>>>,
    value_merges: Vec<Vec<ValueMerge>>,
    /// The slot that each head of the first layer evicts after a step.
    evicted: Vec<Option<Row>>,
}

fn decided((name, set): (&str, &str), shape: &ModelShape, drawn: &[Drawn]) -> Decided {
    let parameters = Parameters::parse_assignments(set).expect("parameters");
    let mut policy = build(name, &parameters).expect("a method");
    let prompt = PromptShape {
        before: 5,
        after: 40,
        tail: 3,
        ..PromptShape::of(TOKENS)
    };
    let prompt = PromptShape {
        max_new_tokens: 20,
        ..prompt
    };
    let budget = policy.default_rows(shape, &prompt).unwrap_or(BUDGET);
    let mut rows = policy.rows(shape, &prompt, budget).expect("rows enough");
    if policy.has_score_pass() {
        for (layer, drawn) in drawn.iter().enumerate() {
            let needs = policy.needs(layer);
            let given = drawn.rows(TOKENS, shape);
            policy.score_pass(&drawn.observation((layer, TOKENS), shape, &needs, &given));
        }
        rows = policy.allocate_budget();
    }
    let mut all = Decided {
        kept: Vec::new(),
        passed: Vec::new(),
        value_merges: Vec::new(),
        evicted: Vec::new(),
    };
    for (layer, drawn) in drawn.iter().enumerate() {
        let tokens = policy.layer_input_tokens(layer).unwrap_or(TOKENS);
        let needs = policy.needs(layer);
        let given = drawn.rows(tokens, shape);
        let observation = drawn.observation((layer, tokens), shape, &needs, &given);
        let kept = policy.select(&observation, rows[layer]);
        all.value_merges
            .push(policy.value_merges(&observation, &kept));
        all.passed.push(policy.surviving_tokens(&observation));
        all.kept.push(kept);
    }
    all.evicted = after_a_step(&mut *policy, shape, &all.kept[0], &drawn[1].scores);
    all
}

/// The slots that the heads evict after one more token. The result depends on each slot having its own number.
fn after_a_step(
    policy: &mut dyn Policy,
    shape: &ModelShape,
    kept: &Retention,
    probabilities: &[f32],
) -> Vec<Option<Row>> {
    let mut evicted = vec![None; shape.kv_heads];
    let (Retention::Keep(heads), Some(most)) = (kept, policy.decode_rows(0)) else {
        return evicted;
    };
    if heads[0].len() < most {
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
    let step = StepObservation {
        layer: 0,
        rows: &rows,
        firsts: &firsts,
        positions: &positions,
        group: shape.group(),
        probabilities,
        stride: TOKENS,
    };
    policy.step(&step, &mut evicted);
    evicted
}

#[test]
fn any_number_of_threads_chooses_the_same() {
    threads::configure(Some(THREADS));
    assert_eq!(threads::count(), THREADS);
    let (mut ragged, mut given_up) = (0, 0);
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
        for variant in variants() {
            let several = decided(variant, &shape, &drawn);
            // Parallel work inside parallel work runs on a single thread.
            let score_cache = std::sync::Mutex::new(None);
            threads::for_each(2, |item| {
                if item == 0 {
                    *score_cache.lock().expect("nobody failed") =
                        Some(decided(variant, &shape, &drawn));
                }
            });
            let score_cache = score_cache
                .into_inner()
                .expect("nobody failed")
                .expect("one");
            assert!(
                several == score_cache,
                "{variant:?}, {kv_heads} heads, {levels} levels"
            );
            let Retention::Keep(heads) = &several.kept[0] else {
                continue;
            };
            ragged += usize::from(heads.iter().any(|head| *head != heads[0]));
            given_up += several.evicted.iter().flatten().count();
        }
    }
    assert!(ragged > 50, "{ragged} choices whose heads differ");
    assert!(given_up > 25, "{given_up} rows given up");
}
