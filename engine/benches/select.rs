//! Times row selection: `cargo bench -p kept-engine`. The CPU selects rows also when the model runs on a GPU, so the
//! selection time per layer is to be compared with the time in which the GPU prefills that layer (docs/gpu-step.md).
//!
//! Scores are synthetic: a few tokens have much higher scores than the rest, as in real attention. The benchmark runs
//! on one thread and on all threads (`CANDLE_NUM_THREADS` sets how many) and prints the median over the layers.

use std::hint::black_box;
use std::time::Instant;

use kept_engine::Pool;
use kept_engine::kernels::{bandwidth, threads};
use kept_engine::policies::{
    ModelShape, Observation, Parallel, PromptShape, RowRequest, Serial, build,
};

/// The shape of an 8B model's attention.
const SHAPE: ModelShape = ModelShape {
    layers: 8,
    q_heads: 32,
    kv_heads: 8,
    head_dim: 128,
};
const ROWS: usize = 2048;
/// Methods that score the prompt by an observation window.
const METHODS: [&str; 7] = [
    "snapkv",
    "pyramidkv",
    "chunkkv",
    "hbw_kv",
    "tova",
    "pyramidinfer",
    "adakv",
];

fn main() {
    threads::configure(None);
    println!(
        "{} query heads, {} kv heads, {ROWS} rows: milliseconds a layer, on one thread and on {}; scores that are read, and how fast \
         by all threads beside one that copies memory",
        SHAPE.q_heads,
        SHAPE.kv_heads,
        threads::count()
    );
    let copy = bandwidth().copy;
    for tokens in [8192, 32768, 131_072] {
        let scores = drawn(SHAPE.q_heads * tokens);
        for name in METHODS {
            let one = milliseconds(name, tokens, &scores, &Serial);
            let time = milliseconds(name, tokens, &scores, &Pool);
            let bytes = size_of_val(scores.as_slice()) as f64;
            let rate = bytes / time * 1e3;
            println!(
                "  {tokens:7} tokens  {name:14} {one:7.2} {time:7.2}   {:6.1} MB {:5.1} GB/s {:3.0} % of copying",
                bytes / 1e6,
                rate / 1e9,
                100.0 * rate / copy
            );
        }
    }
}

fn milliseconds(name: &str, tokens: usize, scores: &[f32], threads: &dyn Parallel) -> f64 {
    let method = build(name, &[]).expect("a method");
    let request = RowRequest {
        model: SHAPE,
        prompt: PromptShape::of(tokens),
        budget: ROWS,
    };
    let plan = method.plan(&request).expect("rows enough");
    let mut state = method.start(&plan);
    let mut seconds = Vec::new();
    for (layer, needs) in plan.needs.iter().enumerate() {
        let observation = Observation {
            layer,
            tokens,
            kv_heads: SHAPE.kv_heads,
            group: SHAPE.group(),
            observation_window: needs.observation_window.map(|_| scores),
            weighted_window: needs.weighted_window.map(|_| scores),
            threads,
            ..Observation::default()
        };
        let started = Instant::now();
        black_box(state.select(&plan, &observation));
        seconds.push(started.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    1e3 * seconds[seconds.len() / 2]
}

/// Synthetic scores between 0 and 1, most of them small.
fn drawn(count: usize) -> Vec<f32> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let number = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let uniform = (state >> 40) as f32 / (1u64 << 24) as f32;
        uniform.powi(8)
    };
    (0..count).map(number).collect()
}
