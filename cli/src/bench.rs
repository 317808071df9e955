//! `kept bench`: prefill and decode speed on synthetic tokens, with the bytes that each token moves.

mod moved;
mod reading;

use std::time::Instant;

use anyhow::ensure;
use kept_engine::kernels::{PackedRows, allocations, bandwidth, settled_allocations, threads};
use kept_engine::models::RopeTable;
use kept_engine::policies::PromptShape;
use kept_engine::{
    ComputeDevice, Decoder, DeviceChoice, Sampler, Sampling, gpu_rates, peak_resident_bytes,
    resident_bytes,
};
use serde::Serialize;

use crate::arguments::BenchArguments;
use crate::output::{self, bytes, count};
use crate::own_vaults::OwnVaults;
use crate::progress::{ReadingBar, stop_on_ctrl_c};
use moved::Moved;
use reading::Asked;

#[derive(Serialize)]
struct BenchJson {
    model: String,
    method: String,
    /// The method with its parameters: `snapkv[w=8]`.
    label: String,
    cache: &'static str,
    budget_rows: usize,
    threads: usize,
    simd: String,
    prompt_tokens: usize,
    /// Prefill was skipped, and the cache has synthetic rows.
    synthetic: bool,
    decode_tokens: usize,
    prefill_seconds: f64,
    select_seconds: f64,
    prefill_tokens_per_second: f64,
    /// Tokens per second in the first and in the last tenth of the prompt, in streaming mode: shows whether reading
    /// slows down with the position.
    tenths_tokens_per_second: Option<(f64, f64)>,
    decode_tokens_per_second: f64,
    weights_bytes: u64,
    kv_bytes: u64,
    kv_bytes_full: u64,
    scratch_bytes: u64,
    peak_bytes: Option<u64>,
    ledger_peak_bytes: u64,
    /// Memory of this process before the model was opened.
    base_bytes: Option<u64>,
    /// Bytes of one layer's keys and values of the whole prompt during prefill.
    layer_kv_bytes: u64,
    /// Bytes of the residual stream of the whole prompt during prefill.
    residual_bytes: u64,
    /// Bytes that prefill of a token moves at least (`moved.rs`).
    bytes_per_read_token: f64,
    /// Bytes that the selection moves at least.
    select_bytes: f64,
    /// Bytes that decoding a token moves at least: weights and kept rows.
    bytes_per_token: u64,
    bandwidth_gbs: f64,
    allocations_per_token: f64,
    /// The name of the GPU, if one was used.
    #[serde(rename = "card")]
    gpu: Option<String>,
    /// Peak GPU memory in bytes, weights included: as computed by the ledger, and as reported by the driver.
    #[serde(rename = "card_bytes")]
    gpu_bytes: Option<(u64, u64)>,
    /// Seconds from the first token of the prompt to the first token of the answer.
    first_token_seconds: f64,
    /// For a second question about the same document, read from a vault: seconds of its prefill, and tokens that came
    /// from the vault.
    again: Option<(f64, usize)>,
    /// Bytes that the second question moves at least.
    again_bytes: Option<f64>,
}

#[derive(Serialize)]
struct BandwidthJson {
    threads: usize,
    /// Counts both the bytes read and the bytes written.
    copy_gbs: f64,
    read_gbs: f64,
}

/// Measures the peak rates of a GPU.
fn measure_gpu(arguments: &BenchArguments, ordinal: usize) -> anyhow::Result<()> {
    let rates = gpu_rates(ordinal)?;
    if arguments.json {
        return output::print_json(&rates);
    }
    output::print_text(&format!(
        "{}: copying {:.1} GB/s, to it {:.1} GB/s, products of halves {:.1} TFLOP/s, attention at 32K tokens {:.1} TFLOP/s\n",
        rates.gpu, rates.copy_gbs, rates.to_gpu_gbs, rates.matrix_tflops, rates.attention_tflops
    ))
}

fn measure_bandwidth(arguments: &BenchArguments) -> anyhow::Result<()> {
    let device = arguments.engine.device.device.parse()?;
    if let DeviceChoice::Named(ComputeDevice::Cuda(ordinal)) = device {
        return measure_gpu(arguments, ordinal);
    }
    threads::configure(arguments.engine.threads);
    let found = bandwidth();
    let report = BandwidthJson {
        threads: threads::count(),
        copy_gbs: found.copy / 1e9,
        read_gbs: found.read / 1e9,
    };
    if arguments.json {
        return output::print_json(&report);
    }
    output::print_text(&format!(
        "copying {:.1} GB/s, reading {:.1} GB/s, {} threads\n",
        report.copy_gbs, report.read_gbs, report.threads
    ))
}

pub fn run(arguments: &BenchArguments) -> anyhow::Result<()> {
    if arguments.bandwidth {
        return measure_bandwidth(arguments);
    }
    let method = arguments.engine.method()?;
    let budget = arguments.engine.budget()?;
    let n = arguments.after.unwrap_or(arguments.prompt_tokens);
    let decode_tokens = arguments.decode_tokens;
    ensure!(
        n > 0 && decode_tokens > 1,
        "--prompt-tokens {n} and --decode-tokens {decode_tokens} measure nothing; give at least 1 and 2"
    );
    let base_bytes = resident_bytes();
    let engine = arguments.engine.open(&arguments.engine.model_path()?)?;
    let model = engine.model();
    let vocabulary = model.config().vocab;
    let context = model.config().context;
    // Synthetic rows fit any context length.
    ensure!(
        arguments.after.is_some()
            || arguments.streaming
            || n.saturating_add(decode_tokens) <= context,
        "--prompt-tokens {n} and --decode-tokens {decode_tokens} are more than the model's context of {context}; give fewer"
    );
    // Token ids spread over the vocabulary, except for the control tokens at its start.
    let ids: Vec<u32> = (0..n)
        .map(|i| {
            let low = 300.min(vocabulary / 2);
            (low + i * 7919 % (vocabulary - low)) as u32
        })
        .collect();
    ensure!(
        arguments.memory.is_none() || model.gpu().is_some(),
        "--memory is the most that is taken of a GPU; name one with --device cuda:0"
    );
    let mut policy = method.build()?;
    let watched = engine.watch_gpu()?;
    let stop = stop_on_ctrl_c();
    let bar = ReadingBar::new();
    let vaults = arguments.again.then(OwnVaults::new);
    let asked = Asked {
        engine: &engine,
        ids: &ids,
        budget,
        max_new_tokens: decode_tokens,
        vaults: vaults.as_ref(),
        gpu_memory: arguments.gpu_memory()?,
    };
    // The estimate is made before the prompt allocates GPU memory.
    let expected = if arguments.after.is_none() && !arguments.streaming {
        engine.expected_gpu_bytes(
            &PromptShape::of(n),
            (&method, budget, decode_tokens),
            asked.vaults.map(|_| PackedRows::Q8_0),
            asked.gpu_memory,
        )?
    } else {
        0
    };
    let read = match arguments.streaming {
        _ if arguments.after.is_some() => asked.synthetic(&mut *policy),
        true => asked.stream(&mut *policy, &bar, &stop),
        false => asked.prefill(&mut *policy, &bar, &stop),
    };
    bar.clear();
    let read = read?;
    let again = if arguments.again {
        let read = asked.again(&mut *method.build()?, &bar, &stop)?;
        bar.clear();
        ensure!(
            read.known > 0,
            "no vault of {n} tokens was written; give more --prompt-tokens, or free space in {}",
            std::env::temp_dir().display()
        );
        Some((read.seconds, read.known))
    } else {
        None
    };
    let (budget, kv_bytes, prefill_seconds) = (read.budget, read.cache.kv_bytes(), read.seconds);
    let mut ledger = read.ledger;
    let rope = RopeTable::new(model.config(), read.positions);
    let mut decoder = Decoder::new(model, &rope, &mut *policy, read.rows, read.cache);
    ledger.decode = decoder.scratch_bytes();
    ledger.rope = rope.bytes();
    let mut sampler = Sampler::new(&Sampling::default())?;
    let begun = Instant::now();
    sampler.next(decoder.try_logits_of(&read.hidden)?)?;
    let first_token_seconds = prefill_seconds + begun.elapsed().as_secs_f64();
    // The first step touches fresh memory and fills thread-local scratch buffers; a GPU captures the second step as a
    // graph.
    let warm = (decode_tokens - 1).clamp(1, 2);
    for _ in 0..warm {
        decoder.try_next(ids[0], &mut sampler, None)?;
    }
    // All buffers of the answer are allocated, so the watching of GPU memory, which costs time, can stop.
    let watched = watched.map(|watched| watched.most()).transpose()?;
    let allocated = settled_allocations();
    let started = Instant::now();
    let mut steps = 0;
    for &id in ids.iter().cycle().take(decode_tokens - warm) {
        if stop.is_requested() {
            return Err(kept_engine::EngineError::Stopped.into());
        }
        std::hint::black_box(decoder.try_next(id, &mut sampler, None)?);
        steps += 1;
    }
    let decode_seconds = started.elapsed().as_secs_f64();
    let allocated = allocations() - allocated;
    let decode_speed = f64::from(steps) / decode_seconds;
    let bytes_per_token = model.step_bytes() + decoder.cache().kv_bytes();
    let gpu_bytes = watched.map(|most| match (model.gpu(), expected) {
        // Synthetic rows and streaming mode have no estimate: only the memory of decode is counted.
        (Some(gpu), 0) => (gpu.bytes() + decoder.gpu_bytes(), most),
        _ => (expected, most),
    });
    let moved = Moved(model);
    let read_bytes = match read.chunk {
        Some(chunk) => moved.streaming(n, chunk, kv_bytes),
        None => moved.reading(n),
    };
    let report = BenchJson {
        model: model.name().to_owned(),
        label: method.to_string(),
        method: method.name,
        cache: engine.cache_type().name(),
        budget_rows: budget,
        threads: threads::count(),
        simd: format!("{:?}", kept_engine::kernels::simd_level()).to_lowercase(),
        prompt_tokens: n,
        synthetic: arguments.after.is_some(),
        decode_tokens,
        prefill_seconds,
        select_seconds: read.selecting.as_secs_f64(),
        prefill_tokens_per_second: if prefill_seconds > 0.0 {
            n as f64 / prefill_seconds
        } else {
            0.0
        },
        tenths_tokens_per_second: read.tenths,
        decode_tokens_per_second: decode_speed,
        weights_bytes: model.weights_bytes(),
        kv_bytes,
        kv_bytes_full: engine.kv_bytes_full(n),
        scratch_bytes: ledger.scratch(),
        peak_bytes: peak_resident_bytes(),
        ledger_peak_bytes: ledger.peak(),
        base_bytes,
        layer_kv_bytes: ledger.layer_kv,
        residual_bytes: ledger.residual,
        bytes_per_read_token: read_bytes / n as f64,
        select_bytes: moved.selecting(n, budget.min(n), kv_bytes),
        bytes_per_token,
        bandwidth_gbs: bytes_per_token as f64 * decode_speed / 1e9,
        allocations_per_token: allocated as f64 / f64::from(steps),
        gpu: model.gpu().map(|gpu| gpu.device().facts().name.clone()),
        gpu_bytes,
        first_token_seconds,
        again,
        again_bytes: again.map(|(_, known)| moved.again(known, n - known)),
    };
    if arguments.json {
        output::print_json(&report)
    } else {
        print(&report)
    }
}

/// Formats bytes, their rate over `seconds`, and that rate as a share of `copy`, the copy bandwidth; `None` if another
/// memory was used.
fn moving(moved: f64, seconds: f64, copy: Option<f64>) -> String {
    let speed = moved / seconds;
    let share = copy.map_or_else(String::new, |copy| {
        format!(", {:.0} % of copying", 100.0 * speed / copy)
    });
    format!(
        "{} moved, {:.1} GB/s{share}",
        bytes(moved as u64),
        speed / 1e9
    )
}

fn print(report: &BenchJson) -> anyhow::Result<()> {
    // Measured last, so that the buffers of this measurement do not count in the memory figures.
    let copy = report.gpu.is_none().then(|| bandwidth().copy);
    let n = report.prompt_tokens;
    let tenths = report
        .tenths_tokens_per_second
        .map_or_else(String::new, |(first, last)| {
            format!("; the first tenth {first:.1} tokens/s, the last {last:.1}")
        });
    let reading = if report.synthetic {
        format!("nothing: {} tokens of synthetic rows", count(n))
    } else {
        format!(
            "{:>9.1} tokens/s   {} tokens{tenths}; {}",
            report.prefill_tokens_per_second,
            count(n),
            moving(
                report.bytes_per_read_token * n as f64,
                report.prefill_seconds,
                copy
            )
        )
    };
    let selecting = if report.select_seconds > 0.0 {
        format!(
            "selecting  {:>9.1} ms         {:.2} % of reading; {}\n",
            1e3 * report.select_seconds,
            100.0 * report.select_seconds / report.prefill_seconds,
            moving(report.select_bytes, report.select_seconds, copy)
        )
    } else {
        String::new()
    };
    output::print_text(&format!(
        "{} · {} · {} rows · {} threads ({})\n\
         reading    {reading}\n\
         {selecting}\
         answering  {:>9.1} tokens/s   a token: {}, {:.1} allocations\n\
         memory     weights {}, cache {} of {}, scratch {}, peak {} (expected {})\n",
        report.model,
        report.label,
        count(report.budget_rows),
        report.threads,
        report.simd,
        report.decode_tokens_per_second,
        moving(
            report.bytes_per_token as f64,
            1.0 / report.decode_tokens_per_second,
            copy
        ),
        report.allocations_per_token,
        bytes(report.weights_bytes),
        bytes(report.kv_bytes),
        bytes(report.kv_bytes_full),
        bytes(report.scratch_bytes),
        report.peak_bytes.map_or("unknown".into(), bytes),
        bytes(report.ledger_peak_bytes + report.base_bytes.unwrap_or(0)),
    ))?;
    if let (Some((seconds, known)), Some(moved)) = (report.again, report.again_bytes) {
        output::print_text(&format!(
            "again      {:>9.1} ms         {:.2} % of reading, behind {} tokens of a vault; {}\n",
            1e3 * seconds,
            100.0 * seconds / report.prefill_seconds,
            count(known),
            moving(moved, seconds, copy)
        ))?;
    }
    let (Some(gpu), Some((expected, taken))) = (&report.gpu, report.gpu_bytes) else {
        return Ok(());
    };
    output::print_text(&format!(
        "GPU        {gpu}: first token after {:.2} s, {} taken of it (expected {})\n",
        report.first_token_seconds,
        bytes(taken),
        bytes(expected),
    ))
}
