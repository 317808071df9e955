//! `kept bench`: prefill and decode speed on synthetic tokens, with the bytes that each token moves.

mod decoding;
mod moved;
mod parts;
mod reading;

use anyhow::ensure;
use kept_engine::backend::Gpus;
use kept_engine::kernels::{PackedRows, bandwidth, product_rate, threads};
use kept_engine::policies::PromptShape;
use kept_engine::{
    ComputeDevice, Engine, Limits, MethodSpec, PartTime, PlanRequest, Streaming,
    peak_resident_bytes, resident_bytes,
};
use kept_engine_cuda::CudaGpus;
use serde::Serialize;

use crate::arguments::BenchArguments;
use crate::output::{self, bytes, count};
use crate::own_vaults::OwnVaults;
use crate::progress::{ReadingBar, stop_on_ctrl_c};
use decoding::Decoded;
use moved::Moved;
use reading::{Asked, Reading};

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
    gpu: Option<String>,
    /// Peak GPU memory in bytes, weights included: as computed by the ledger, and as reported by the driver.
    gpu_bytes: Option<(u64, u64)>,
    /// Seconds from the first token of the prompt to the first token of the answer.
    first_token_seconds: f64,
    /// For a second question about the same document, read from a vault: seconds of its prefill, and tokens that came
    /// from the vault.
    again: Option<(f64, usize)>,
    /// Bytes that the second question moves at least.
    again_bytes: Option<f64>,
    /// The parts of a decode step, with `--kernels`.
    #[serde(skip_serializing_if = "Option::is_none")]
    parts: Option<Vec<PartTime>>,
}

#[derive(Serialize)]
struct BandwidthJson {
    threads: usize,
    /// Counts both the bytes read and the bytes written.
    copy_gbs: f64,
    read_gbs: f64,
    /// Billions of multiply-adds per second in the products of a prefill.
    product_gmas: f64,
}

/// Measures the peak rates of a GPU.
fn measure_gpu(arguments: &BenchArguments, name: &str) -> anyhow::Result<()> {
    let rates = CudaGpus.rates(name)?;
    if arguments.json {
        return output::print_json(&rates);
    }
    output::print_text(&format!(
        "{}: copying {:.1} GB/s, to it {:.1} GB/s, products of halves {:.1} TFLOP/s, attention at 32K tokens {:.1} TFLOP/s\n",
        rates.gpu, rates.copy_gbs, rates.to_gpu_gbs, rates.matrix_tflops, rates.attention_tflops
    ))
}

fn measure_bandwidth(arguments: &BenchArguments) -> anyhow::Result<()> {
    let device = arguments.engine.compute.device.device.parse()?;
    if let ComputeDevice::Gpu(name) = &device {
        return measure_gpu(arguments, name);
    }
    threads::configure(arguments.engine.compute.threads);
    let found = bandwidth();
    let report = BandwidthJson {
        threads: threads::count(),
        copy_gbs: found.copy / 1e9,
        read_gbs: found.read / 1e9,
        product_gmas: product_rate()? / 1e9,
    };
    if arguments.json {
        return output::print_json(&report);
    }
    output::print_text(&format!(
        "copying {:.1} GB/s, reading {:.1} GB/s, products {:.0} billion multiply-adds/s, {} threads\n",
        report.copy_gbs, report.read_gbs, report.product_gmas, report.threads
    ))
}

pub fn run(arguments: &BenchArguments) -> anyhow::Result<()> {
    if arguments.bandwidth {
        return measure_bandwidth(arguments);
    }
    let method = arguments.engine.method()?;
    let budget = arguments.engine.budget()?;
    let n = arguments.tokens();
    let decode_tokens = arguments.decode_tokens;
    ensure!(
        n > 0 && decode_tokens > 1,
        "--prompt-tokens {n} and --decode-tokens {decode_tokens} measure nothing; give at least 1 and 2"
    );
    let base_bytes = resident_bytes();
    let engine = arguments.engine.open(&arguments.engine.model_path()?)?;
    check_model(arguments, &engine)?;
    let ids = synthetic_ids(n, engine.model().config().vocab);
    let built = method.build()?;
    let watched = engine.watch_gpu()?;
    let stop = stop_on_ctrl_c();
    let bar = ReadingBar::new();
    let vaults = arguments.again.then(OwnVaults::new);
    let asked = Asked {
        engine: &engine,
        ids: &ids,
        method: &method,
        budget,
        max_new_tokens: decode_tokens,
        vaults: vaults.as_ref(),
        gpu_memory: arguments.gpu_memory()?,
        kernels: arguments.kernels,
    };
    // The estimate is made before the prompt allocates GPU memory.
    let expected_gpu_bytes = if arguments.after.is_none() && !arguments.streaming {
        engine.expected_gpu_bytes(&PlanRequest {
            limits: Limits {
                memory: asked.gpu_memory,
                streaming: Streaming::Off,
            },
            vault: asked.vaults.map(|_| PackedRows::Q8_0),
            ..PlanRequest::new(&PromptShape::of(n), &method, budget, decode_tokens)
        })?
    } else {
        0
    };
    let read = match arguments.streaming {
        _ if arguments.after.is_some() => asked.synthetic(&*built),
        true => asked.stream(&*built, &bar, &stop),
        false => asked.prefill(&*built, &bar, &stop),
    };
    bar.clear();
    let (prompt, reading) = read?;
    let again = if arguments.again {
        Some(asked.second_question(&*built, &bar, &stop)?)
    } else {
        None
    };
    let decoded = asked.decode(prompt, watched, &stop)?;
    let measured = Measured {
        base_bytes,
        expected_gpu_bytes,
        reading,
        again,
        decoded,
    };
    let report = measured.report(arguments, &engine, method);
    if arguments.json {
        output::print_json(&report)
    } else {
        print(&report)?;
        match &report.parts {
            Some(times) => parts::print(times, parts::limit(&engine)?),
            None => Ok(()),
        }
    }
}

/// Checks that the model can take the tokens and the limit of GPU memory.
fn check_model(arguments: &BenchArguments, engine: &Engine) -> anyhow::Result<()> {
    let (n, decode_tokens) = (arguments.tokens(), arguments.decode_tokens);
    let context = engine.model().config().context;
    // Synthetic rows fit any context length.
    ensure!(
        arguments.after.is_some()
            || arguments.streaming
            || n.saturating_add(decode_tokens) <= context,
        "--prompt-tokens {n} and --decode-tokens {decode_tokens} are more than the model's context of {context}; give fewer"
    );
    ensure!(
        arguments.memory.is_none() || engine.uses_gpu(),
        "--memory is the most that is taken of a GPU; name one with --device cuda:0"
    );
    Ok(())
}

/// `n` token ids spread over the vocabulary, except for the control tokens at its start.
fn synthetic_ids(n: usize, vocabulary: usize) -> Vec<u32> {
    let low = 300.min(vocabulary / 2);
    let id = |i: usize| (low + i * 7919 % (vocabulary - low)) as u32;
    (0..n).map(id).collect()
}

/// The measurements of one run.
struct Measured {
    /// Memory of this process before the model was opened.
    base_bytes: Option<u64>,
    /// Estimated peak of GPU memory; 0 without an estimate.
    expected_gpu_bytes: u64,
    reading: Reading,
    /// Prefill of the second question.
    again: Option<Reading>,
    decoded: Decoded,
}

impl Measured {
    fn report(self, arguments: &BenchArguments, engine: &Engine, method: MethodSpec) -> BenchJson {
        let Self {
            base_bytes,
            expected_gpu_bytes,
            reading,
            again,
            decoded,
        } = self;
        let (model, n) = (engine.model(), arguments.tokens());
        let (budget, kv_bytes, prefill_seconds) =
            (reading.budget, reading.kv_bytes, reading.seconds);
        let mut ledger = reading.ledger;
        ledger.decode = decoded.scratch_bytes;
        ledger.rope = decoded.rope_bytes;
        let decode_speed = decoded.tokens_per_second;
        let bytes_per_token = model.step_bytes() + decoded.kv_bytes;
        let gpu_bytes =
            decoded.gpu_peak.map(
                |most| match (engine.weights_on_device(), expected_gpu_bytes) {
                    // Synthetic rows and streaming mode have no estimate: only the memory of decode is counted.
                    (weights, 0) if weights > 0 => (weights + decoded.gpu_bytes, most),
                    _ => (expected_gpu_bytes, most),
                },
            );
        let moved = Moved(engine);
        let read_bytes = match arguments.streaming {
            true => moved.streaming(n, reading.chunk, kv_bytes),
            false => moved.reading(n, reading.chunk),
        };
        BenchJson {
            model: model.name().to_owned(),
            label: method.to_string(),
            method: method.name,
            cache: engine.cache_type().name(),
            budget_rows: budget,
            threads: threads::count(),
            simd: format!("{:?}", kept_engine::kernels::simd_level()).to_lowercase(),
            prompt_tokens: n,
            synthetic: arguments.after.is_some(),
            decode_tokens: arguments.decode_tokens,
            prefill_seconds,
            select_seconds: reading.selecting.as_secs_f64(),
            prefill_tokens_per_second: if prefill_seconds > 0.0 {
                n as f64 / prefill_seconds
            } else {
                0.0
            },
            tenths_tokens_per_second: reading.tenths,
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
            allocations_per_token: decoded.allocations_per_token,
            gpu: (engine.uses_gpu()).then(|| engine.computes_on().to_owned()),
            gpu_bytes,
            first_token_seconds: prefill_seconds + decoded.first_token_seconds,
            again_bytes: (again.as_ref()).map(|again| moved.again(again.known, n - again.known)),
            again: again.map(|again| (again.seconds, again.known)),
            parts: decoded.parts,
        }
    }
}

/// Formats bytes, their rate over `seconds`, and that rate as a share of `copy`, the copy bandwidth; `None` if another
/// memory was used.
fn format_rate(moved: f64, seconds: f64, copy: Option<f64>) -> String {
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
            format_rate(
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
            format_rate(report.select_bytes, report.select_seconds, copy)
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
        format_rate(
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
            format_rate(moved, seconds, copy)
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
