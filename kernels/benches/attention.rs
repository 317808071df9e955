//! Times prefill and decode attention: `cargo bench -p kept-kernels [-- prefill|decode]`.
//!
//! Prints the median of several runs with the arithmetic or the memory traffic per second beside it. Numbers depend on
//! what else the machine does: compare within one run, not across days. `KEPT_SIMD` and `CANDLE_NUM_THREADS` apply.

use std::hint::black_box;
use std::time::Instant;

use kept_kernels::{
    DecodeAttention, DecodeScratch, HeadShape, PrefillAttention, RowStore, Stop, decode_attention,
    prefill_attention, simd_level, threads,
};

/// Llama-3.2-1B and an 8B model: query heads, kv heads, head_dim.
const SHAPES: [(usize, usize, usize); 2] = [(32, 8, 64), (32, 8, 128)];

fn main() {
    threads::configure(None);
    let only = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    let wants = |name: &str| only.as_deref().is_none_or(|only| only == name);
    println!("{:?}, {} threads", simd_level(), threads::count());
    println!(
        "  reading memory with all threads {:5.1} GB/s",
        read_gigabytes()
    );
    for (q_heads, kv_heads, head_dim) in SHAPES {
        let shape = HeadShape {
            q_heads,
            kv_heads,
            head_dim,
        };
        println!("q_heads {q_heads}, kv_heads {kv_heads}, head_dim {head_dim}");
        if wants("prefill") {
            for tokens in [512, 2048, 8192] {
                prefill(shape, tokens);
            }
        }
        if wants("decode") {
            for rows in [1024, 8192, 32768] {
                decode(shape, rows);
            }
        }
    }
}

fn prefill(shape: HeadShape, tokens: usize) {
    let HeadShape {
        q_heads,
        kv_heads,
        head_dim,
    } = shape;
    // One chunk of the last rows when the whole prompt would take long.
    let rows = tokens.min(2048);
    let queries = wave(rows * q_heads * head_dim);
    let (keys, values) = (
        filled(kv_heads, tokens, head_dim),
        filled(kv_heads, tokens, head_dim),
    );
    let mut out = vec![0.0; queries.len()];
    let first = tokens - rows;
    let seconds = median(|| {
        let task = PrefillAttention {
            shape,
            scale: 0.1.into(),
            window: None,
            queries: &queries,
            first,
            keys: &keys,
            values: &values,
        };
        prefill_attention(&task, &mut out, None, &Stop::new()).expect("nobody asked to stop");
        black_box(&out);
    });
    let pairs: usize = (first + 1..=tokens).sum();
    let operations = 4.0 * (pairs * q_heads * head_dim) as f64;
    println!(
        "  prefill  rows {rows:5} at {first:5}   {:9.3} ms   {:7.1} GFLOP/s",
        seconds * 1e3,
        operations / seconds / 1e9
    );
}

fn decode(shape: HeadShape, rows: usize) {
    let HeadShape {
        q_heads,
        kv_heads,
        head_dim,
    } = shape;
    let query = wave(q_heads * head_dim);
    let (keys, values) = (
        filled(kv_heads, rows, head_dim),
        filled(kv_heads, rows, head_dim),
    );
    let mut scratch = DecodeScratch::new(shape, rows, threads::count());
    let mut out = vec![0.0; query.len()];
    let seconds = median(|| {
        let task = DecodeAttention {
            shape,
            scale: 0.1.into(),
            query: &query,
            keys: &keys,
            values: &values,
            rows: &vec![rows; kv_heads],
            rotation: None,
        };
        decode_attention(&task, &mut scratch, &mut out);
        black_box(&out);
    });
    let bytes = (keys.bytes() + values.bytes()) as f64;
    println!(
        "  decode   rows {rows:5}            {:9.3} ms   {:7.1} GB/s",
        seconds * 1e3,
        bytes / seconds / 1e9
    );
}

/// What decode attention is bound by: adding up 256 MiB, each thread its part.
fn read_gigabytes() -> f64 {
    let data = wave(64 << 20);
    let part = data.len() / threads::count();
    let seconds = median(|| {
        std::thread::scope(|scope| {
            for part in data.chunks(part) {
                scope.spawn(move || {
                    let mut sums = [0.0f32; 64];
                    for block in part.chunks_exact(64) {
                        sums.iter_mut().zip(block).for_each(|(sum, x)| *sum += x);
                    }
                    black_box(sums);
                });
            }
        });
    });
    size_of_val(data.as_slice()) as f64 / seconds / 1e9
}

/// Seconds of one run: the median of at least 5 runs, more when they are short.
fn median(mut run: impl FnMut()) -> f64 {
    run();
    let begin = Instant::now();
    let mut times = Vec::new();
    while times.len() < 5 || (begin.elapsed().as_secs_f64() < 1.0 && times.len() < 1000) {
        let start = Instant::now();
        run();
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Numbers that are neither constant nor subnormal; the values do not matter to the time.
fn wave(len: usize) -> Vec<f32> {
    (0..len)
        .map(|i| ((i * 7919 % 1009) as f32 / 504.5) - 1.0)
        .collect()
}

fn filled(kv_heads: usize, rows: usize, head_dim: usize) -> RowStore {
    let mut store = RowStore::uniform(kv_heads, rows, head_dim);
    for h in 0..kv_heads {
        store.head_mut(h).copy_from_slice(&wave(rows * head_dim));
    }
    store
}
