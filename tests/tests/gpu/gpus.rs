//! Shared helpers of the GPU tests: GPUs, models small enough for the emulator, one prefill with its answer.

use std::path::PathBuf;

use kept_cuda::emulated;
use kept_engine::kernels::{CacheType, Stop, argmax};
use kept_engine::models::{Model, RopeTable};
use kept_engine::policies::{Parameters, Policy, build};
use kept_engine::{Decoder, Prefill, RetentionMap};
use kept_models::testing::TinyLlama;

/// Relative to the largest logit of a row: the error of f16 instead of f32.
pub const BOUND: f32 = 1e-2;

/// This computer's GPU in a `cuda` build; else emulated GPUs, with shared memory for one tile and for two.
///
/// # Panics
/// If no GPU exists and the emulator is excluded.
pub fn gpus() -> Vec<kept_cuda::Device> {
    #[cfg(feature = "cuda")]
    let why = match kept_cuda::nvidia::open(0) {
        Ok(gpu) => return vec![gpu],
        Err(why) => why,
    };
    #[cfg(not(feature = "cuda"))]
    let why = "this build has no kernels for one";
    assert!(
        !gpu_only(),
        "no CUDA device ({why}), and KEPT_GPU_ONLY leaves out the emulator"
    );
    #[cfg(feature = "cuda")]
    eprintln!("skipped: no CUDA device ({why}); the kernels run in the emulator");
    [75, 90]
        .map(|capability| emulated::device(capability, 1 << 30))
        .into()
}

/// Whether the emulator is excluded everywhere: `scripts/test-gpu` sets this where a GPU exists.
pub fn gpu_only() -> bool {
    std::env::var_os("KEPT_GPU_ONLY").is_some()
}

/// Whether a test that always runs on the emulator is skipped; prints a note.
pub fn without_emulator() -> bool {
    if gpu_only() {
        eprintln!("skipped: the emulator was left out");
    }
    gpu_only()
}

/// This computer's GPU in a `cuda` build; else an emulated one with `memory` bytes.
pub fn gpu_of(memory: u64) -> kept_cuda::Device {
    let gpu = gpus().remove(0);
    if is_emulated(&gpu) {
        emulated::device(90, memory)
    } else {
        gpu
    }
}

/// This computer's GPU in a `cuda` build, else an emulated one; limited to `memory` bytes, with a meter of its use.
pub fn limited(memory: u64) -> (kept_cuda::Device, kept_cuda::Meter) {
    let gpu = gpus().remove(0);
    if is_emulated(&gpu) {
        emulated::fault_injecting(86, memory)
    } else {
        kept_cuda::fault_injecting(&gpu, memory)
    }
}

/// [`limited`]; if emulated, also a GPU that reserves as much memory for itself as a large one.
pub fn limited_ones(memory: u64) -> Vec<(kept_cuda::Device, kept_cuda::Meter)> {
    let one = limited(memory);
    if is_emulated(&one.0) {
        vec![one, emulated::large(memory)]
    } else {
        vec![one]
    }
}

pub fn is_emulated(gpu: &kept_cuda::Device) -> bool {
    gpu.facts().name.starts_with("emulated")
}

pub fn on_gpu(model: Model, gpu: &kept_cuda::Device) -> Model {
    model.on_gpu(gpu.clone()).expect("the model fits the GPU")
}

pub struct Tiny {
    _folder: tempfile::TempDir,
    pub path: PathBuf,
}

pub fn tiny(model: &TinyLlama) -> Tiny {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("tiny.gguf");
    model.write(&path).expect("written");
    Tiny {
        _folder: folder,
        path,
    }
}

pub fn open(path: &std::path::Path) -> Model {
    Model::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

pub fn policy(name: &str, set: &str) -> Box<dyn Policy> {
    let set = Parameters::parse_assignments(set).expect("parameters");
    build(name, &set).unwrap_or_else(|e| panic!("{name}: {e}"))
}

pub struct Run {
    /// `[1 + steps][vocab]`
    pub logits: Vec<Vec<f32>>,
    pub tokens: Vec<u32>,
    pub map: RetentionMap,
}

/// Runs prefill on `ids` in chunks of 48 and decodes `steps`: given tokens, or the most likely ones. Rows are stored as
/// `cache`.
pub fn run(
    (model, cache): (&Model, CacheType),
    (method, set, budget): (&str, &str, usize),
    ids: &[u32],
    given: Result<&[u32], usize>,
) -> Run {
    let mut policy = policy(method, set);
    let steps = given.map_or_else(|steps| steps, <[u32]>::len);
    let rope = RopeTable::new(model.config(), ids.len() + steps);
    let document = 3..ids.len() - 12;
    let outcome = Prefill::new(model, ids, &mut *policy, budget, steps, &rope)
        .with_document(document)
        .with_tail(2)
        .with_chunk(48)
        .with_cache(cache)
        .run(&mut |_| (), &Stop::new())
        .unwrap_or_else(|e| panic!("{method} {set}: {e}"));
    let mut decoder = Decoder::new(model, &rope, &mut *policy, outcome.rows, outcome.cache);
    let mut logits = vec![
        decoder
            .try_logits_of(&outcome.hidden)
            .expect("logits")
            .to_vec(),
    ];
    let mut tokens = Vec::new();
    for step in 0..steps {
        let likeliest = argmax(&logits[step]) as u32;
        let token = given.map_or(likeliest, |given| given[step]);
        tokens.push(token);
        logits.push(decoder.try_step(token, None).expect("logits").to_vec());
    }
    Run {
        logits,
        tokens,
        map: outcome.map,
    }
}

pub fn ids(count: usize, vocab: usize) -> Vec<u32> {
    let usable = vocab as u32 - 3;
    (0..count as u32)
        .map(|i| 3 + (i * i + i * 37 + 11) % usable)
        .collect()
}

/// As [`small`], with weights whose products the emulator computes on the CPU. These products round their inputs to
/// bytes, so that one earlier rounding may cost a quantisation step.
pub fn quick(arch: &'static str, layers: usize) -> TinyLlama {
    TinyLlama {
        kind: "Q8_0",
        ..small(arch, layers)
    }
}

/// Small enough for the emulator.
pub fn small(arch: &'static str, layers: usize) -> TinyLlama {
    TinyLlama {
        arch,
        layers,
        width: 64,
        ffn: 96,
        q_heads: 2,
        kv_heads: 1,
        kind: "F16",
        ..TinyLlama::default()
    }
}

/// Share of the slots of `found` that `expected` has too.
pub fn alike(found: &RetentionMap, expected: &RetentionMap) -> f32 {
    let (found, expected) = (found.counts(), expected.counts());
    let both = found.iter().zip(&expected).map(|(a, b)| *a.min(b));
    both.sum::<u32>() as f32 / expected.iter().sum::<u32>().max(1) as f32
}
