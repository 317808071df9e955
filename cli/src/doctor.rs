//! `kept doctor`: what this computer supports, what is missing, and how to fix it.

use std::io::IsTerminal;

use kept_engine::backend::Gpus;
use kept_engine::kernels::{simd_level, threads};
use kept_engine::{Engine, Gpu, MINI, available_memory, model_path, total_memory};
use kept_engine_cuda::CudaGpus;
use serde::Serialize;

use crate::arguments::{Color, DoctorArguments};
use crate::output::{self, bytes};
use crate::paint;

#[derive(Serialize)]
struct DoctorJson {
    version: &'static str,
    system: String,
    processor: Option<String>,
    threads: usize,
    simd: String,
    memory_bytes: Option<u64>,
    memory_available_bytes: Option<u64>,
    gpus: Vec<Gpu>,
    graphics_error: Option<String>,
    mini: Option<String>,
    mini_error: Option<String>,
    color: bool,
}

pub fn run(arguments: &DoctorArguments) -> anyhow::Result<()> {
    let mini = mini();
    let gpus = CudaGpus.list();
    let report = DoctorJson {
        version: env!("CARGO_PKG_VERSION"),
        system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        processor: field("/proc/cpuinfo", "model name"),
        threads: threads::count(),
        simd: format!("{:?}", simd_level()).to_lowercase(),
        memory_bytes: total_memory(),
        memory_available_bytes: available_memory(),
        gpus: gpus.clone().unwrap_or_default(),
        graphics_error: gpus.err(),
        mini: mini.clone().ok(),
        mini_error: mini.err(),
        color: paint::use_color(Color::Auto, std::io::stdout().is_terminal()),
    };
    let healthy = report.mini.is_some();
    if arguments.json {
        output::print_json(&report)?;
    } else {
        output::print_text(&text(&report))?;
    }
    anyhow::ensure!(
        healthy,
        "the built-in model does not open; see above for the way out"
    );
    Ok(())
}

fn text(report: &DoctorJson) -> String {
    let memory = match (report.memory_bytes, report.memory_available_bytes) {
        (Some(all), Some(free)) => format!("{} of {} free", bytes(free), bytes(all)),
        _ => "not known on this system".into(),
    };
    let gpus: String = match &report.graphics_error {
        Some(why) => format!("ok    no GPU: {why}\n"),
        None => (report.gpus.iter())
            .map(|gpu| {
                let (device, name, capability) = (&gpu.device, &gpu.name, &gpu.capability);
                let memory = format!("{} of {} free", bytes(gpu.free), bytes(gpu.memory));
                format!("ok    GPU {device}: {name} (compute capability {capability}), {memory}\n")
            })
            .collect(),
    };
    let mini = match (&report.mini, &report.mini_error) {
        (Some(text), _) => format!("ok    built-in model: {text}"),
        (None, error) => format!(
            "FAIL  built-in model: {}",
            error.as_deref().unwrap_or("unknown")
        ),
    };
    format!(
        "ok    kept {} on {}\n\
         ok    CPU: {}, {} threads, {} kernels\n\
         ok    memory: {memory}\n\
         {gpus}\
         {mini}\n\
         ok    colour in this terminal: {}\n",
        report.version,
        report.system,
        report.processor.as_deref().unwrap_or("unknown"),
        report.threads,
        report.simd,
        if report.color {
            "yes"
        } else {
            "no (painted output falls back to a table; --color always paints anyway)"
        },
    )
}

fn mini() -> Result<String, String> {
    let path = model_path(MINI).map_err(|e| e.to_string())?;
    let engine = Engine::open(&path).map_err(|e| e.to_string())?;
    engine.model().tokenizer().map_err(|e| e.to_string())?;
    Ok(format!(
        "{}, {}",
        path.display(),
        bytes(engine.model().weights_bytes())
    ))
}

/// The first value of `name` in a file of `name: value` lines.
fn field(file: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
