//! How fast the pieces are on this machine: tokens, projections and feed-forward of one layer, one decoded row.
//!
//! `cargo run --release -p kept-models --example speed -- MODEL.gguf [TEXT]` (attention is the engine's, and not here).

use std::path::Path;
use std::time::{Duration, Instant};

use kept_kernels::Stop;
use kept_models::{Model, RowScratch};

fn main() {
    kept_kernels::threads::configure(None);
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().expect("the path of a GGUF file");
    let started = Instant::now();
    let model = Model::open(Path::new(&path)).unwrap_or_else(|e| panic!("{e}"));
    println!(
        "opened {} in {:?}: {:?}",
        model.name(),
        started.elapsed(),
        model.config()
    );
    println!(
        "weights {} MB, f32 copies of a layer {} MB",
        model.weights_bytes() >> 20,
        model.layer_tiles_bytes() >> 20
    );
    match model.tokenizer() {
        Ok(tokenizer) => {
            let text = match arguments.next() {
                Some(path) => std::fs::read_to_string(path).expect("a text file"),
                None => "It was the best of times, it was the worst of times, in 1789.\n"
                    .repeat(16 << 10),
            };
            for _ in 0..2 {
                let started = Instant::now();
                let tokens = tokenizer.encode(&text).ids.len();
                println!(
                    "{} bytes are {tokens} tokens, in {:?}",
                    text.len(),
                    started.elapsed()
                );
            }
        }
        Err(e) => println!("no tokens: {e}"),
    }
    prefill(&model);
    decode(&model);
}

fn prefill(model: &Model) {
    let (config, stop) = (model.config(), Stop::new());
    for rows in [4, 16, 64, 512, 2048] {
        let mut residual: Vec<f32> = (0..rows * config.width)
            .map(|i| (i as f32 * 0.1).sin())
            .collect();
        let mut q = vec![0.0; rows * config.q_width()];
        let (mut k, mut v) = (
            vec![0.0; rows * config.kv_width()],
            vec![0.0; rows * config.kv_width()],
        );
        let mut best = Duration::MAX;
        for layer in 0..config.layers.min(4) {
            let started = Instant::now();
            let mut pass = model.layer_pass(layer, rows);
            pass.project(&residual, &mut q, &mut k, &mut v, &stop)
                .expect("never stopped");
            pass.finish(&q, &[], &mut residual, &stop)
                .expect("never stopped");
            best = best.min(started.elapsed());
        }
        let numbers = 2 * config.width * (config.q_width() + config.kv_width())
            + 3 * config.width * config.ffn;
        let gflops = 2.0 * (numbers * rows) as f64 / best.as_secs_f64() / 1e9;
        let tokens = rows as f64 / best.as_secs_f64() / config.layers as f64;
        println!(
            "prefill, {rows} rows: {best:?} a layer, {gflops:.0} GFLOP/s, {tokens:.0} tokens/s"
        );
    }
}

fn decode(model: &Model) {
    let config = model.config();
    let mut scratch = RowScratch::new(config);
    let mut residual = vec![0.1; config.width];
    let mut q = vec![0.0; config.q_width()];
    let (mut k, mut v) = (vec![0.0; config.kv_width()], vec![0.0; config.kv_width()]);
    let mut logits = vec![0.0; config.vocab];
    let mut best = Duration::MAX;
    for _ in 0..20 {
        let started = Instant::now();
        for layer in 0..config.layers {
            model.project_row(layer, &residual, &mut scratch, &mut q, &mut k, &mut v);
            model.finish_row(layer, &q, 0, &mut residual, &mut scratch);
        }
        model.logits_row(&residual, &mut scratch, &mut logits);
        best = best.min(started.elapsed());
    }
    let gbs = model.weights_bytes() as f64 / best.as_secs_f64() / 1e9;
    println!(
        "decode: {best:?} a token, {:.1} tokens/s, {gbs:.1} GB/s of weights",
        1.0 / best.as_secs_f64()
    );
}
