//! Benchmarks prefill and decode attention: `cargo bench -p kept-kernels [-- prefill|decode]`.
//!
//! Prints the fastest of several runs, with the arithmetic rate, the bytes moved and their rate relative to copying
//! memory. Numbers depend on the machine's load: compare within one run, not across days. `KEPT_SIMD` and
//! `CANDLE_NUM_THREADS` apply; with one thread, CPU time is measured.

use std::hint::black_box;
use std::time::Instant;

use kept_kernels::{
    CacheType, DecodeAttention, DecodeScratch, HeadShape, PrefillAttention, RowStore, Stop,
    bandwidth, decode_attention, prefill_attention, simd_level, threads,
};

/// Qwen2.5-0.5B, Llama-3.2-1B and an 8B model: query heads, KV heads, head_dim.
const SHAPES: [(usize, usize, usize); 3] = [(14, 2, 64), (32, 8, 64), (32, 8, 128)];

fn main() {
    threads::configure(None);
    let only = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    let wants = |name: &str| only.as_deref().is_none_or(|only| only == name);
    println!("{:?}, {} threads", simd_level(), threads::count());
    let bandwidth = bandwidth();
    println!(
        "  reading memory with all threads {:5.1} GB/s, copying it {:5.1} GB/s",
        bandwidth.read / 1e9,
        bandwidth.copy / 1e9
    );
    let moved = |bytes: f64, time: f64| {
        let rate = bytes / time;
        let (bytes, share) = (bytes / 1e6, 100.0 * rate / bandwidth.copy);
        format!(
            "{bytes:8.1} MB {:7.1} GB/s {share:4.0} % of copying",
            rate / 1e9
        )
    };
    for (q_heads, kv_heads, head_dim) in SHAPES {
        let shape = HeadShape::new(q_heads, kv_heads, head_dim);
        println!("q_heads {q_heads}, kv_heads {kv_heads}, head_dim {head_dim}");
        if wants("prefill") {
            for tokens in [512, 1024, 2048, 4096, 8192, 32768] {
                prefill(shape, tokens, &moved);
            }
        }
        if wants("decode") {
            for rows in [1024, 8192, 32768] {
                for kind in CacheType::ALL {
                    decode(shape, rows, kind, &moved);
                }
            }
        }
    }
}

fn prefill(shape: HeadShape, tokens: usize, moved: &dyn Fn(f64, f64) -> String) {
    let HeadShape {
        q_heads,
        kv_heads,
        head_dim,
    } = shape;
    // The last chunk only, where the whole prompt would take long.
    let rows = tokens.min(512);
    let queries = wave(rows * q_heads * head_dim);
    let (keys, values) = (
        filled(kv_heads, tokens, head_dim),
        filled(kv_heads, tokens, head_dim),
    );
    let mut out = vec![0.0; queries.len()];
    let first = tokens - rows;
    let time = seconds(|| {
        let task = PrefillAttention {
            shape,
            scale: 0.1.into(),
            window: None,
            queries: &queries,
            first,
            keys: &keys,
            values: &values,
        };
        prefill_attention(&task, &mut out, None, &Stop::new()).expect("never stopped");
        black_box(&out);
    });
    let pairs: usize = (first + 1..=tokens).sum();
    let operations = 4.0 * (pairs * q_heads * head_dim) as f64;
    let numbers = queries.len() + out.len();
    let bytes = size_of::<f32>() * numbers + keys.bytes() + values.bytes();
    println!(
        "  prefill  rows {rows:5} at {first:5}   {:9.3} ms   {:7.1} GFLOP/s   {}",
        time * 1e3,
        operations / time / 1e9,
        moved(bytes as f64, time)
    );
}

fn decode(shape: HeadShape, rows: usize, kind: CacheType, moved: &dyn Fn(f64, f64) -> String) {
    let HeadShape {
        q_heads,
        kv_heads,
        head_dim,
    } = shape;
    let query = wave(q_heads * head_dim);
    let stored = || {
        let mut store = RowStore::stored(
            kind,
            head_dim,
            &vec![rows; kv_heads],
            &vec![rows; kv_heads],
            false,
        );
        let row = wave(head_dim);
        for (h, r) in (0..kv_heads).flat_map(|h| (0..rows).map(move |r| (h, r))) {
            store.write(h, r, &row);
        }
        store
    };
    let (keys, values) = (stored(), stored());
    let mut scratch = DecodeScratch::new(shape, rows, threads::count());
    let mut out = vec![0.0; query.len()];
    let time = seconds(|| {
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
        "  decode   rows {rows:5} {kind:>6}     {:9.3} ms   {}",
        time * 1e3,
        moved(bytes, time)
    );
}

/// Seconds of one run: the fastest of at least 5, more if runs are short; with a single thread the mean CPU time, if
/// the system reports it.
fn seconds(mut run: impl FnMut()) -> f64 {
    run();
    let (begin, busy_before) = (Instant::now(), busy());
    let mut times = Vec::new();
    while times.len() < 5 || (begin.elapsed().as_secs_f64() < 1.0 && times.len() < 1000) {
        let start = Instant::now();
        run();
        times.push(start.elapsed().as_secs_f64());
    }
    match busy_before.zip(busy()) {
        Some((before, after)) => (after - before) / times.len() as f64,
        None => times.into_iter().fold(f64::INFINITY, f64::min),
    }
}

/// CPU seconds of a single thread, in steps of some milliseconds: less sensitive to other load than wall-clock time.
fn busy() -> Option<f64> {
    if threads::count() > 1 {
        return None;
    }
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(told.split(' ').next()?.parse::<f64>().ok()? / 1e9)
}

/// Numbers that are neither constant nor subnormal; their values do not affect the time.
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
