//! Shared helpers of the GPU tests: GPUs, models small enough for the emulator, one prefill with its answer.

use std::path::PathBuf;

use kept_cuda::emulated;
use std::sync::Arc;

use kept_engine::kernels::{CacheType, Stop, argmax};
use kept_engine::models::{Model, RopeTable};
use kept_engine::policies::{Method, Parameters, build};
use kept_engine::{Decoder, Prefill, PrefillOutcome, RetentionMap};
use kept_engine_cuda::OnGpu;
use kept_models::testing::TinyLlama;
use kept_tests::compare::apart;
use kept_tests::method_spec::TestMethod;

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
    gpu.properties().name.starts_with("emulated")
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

pub fn built(name: &str, set: &str) -> Arc<dyn Method> {
    let set = Parameters::parse_assignments(set).expect("parameters");
    build(name, &set).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The tokens that are decoded.
#[derive(Clone, Copy)]
pub enum Decode<'a> {
    Given(&'a [u32]),
    /// This many most likely tokens.
    Greedy(usize),
}

impl Decode<'_> {
    fn steps(self) -> usize {
        match self {
            Decode::Given(tokens) => tokens.len(),
            Decode::Greedy(steps) => steps,
        }
    }
}

pub struct Run {
    /// `[1 + steps][vocab]`
    pub logits: Vec<Vec<f32>>,
    pub tokens: Vec<u32>,
    pub map: RetentionMap,
}

/// Runs prefill on `ids` in chunks of 48 and decodes an answer. Rows are stored as `cache`.
pub fn run(
    model: &Model,
    cache: CacheType,
    method: TestMethod,
    ids: &[u32],
    decode: Decode<'_>,
) -> Run {
    let built = method.method();
    let rope = RopeTable::new(model.config(), ids.len() + decode.steps());
    let outcome = Prefill::new(model, ids, &*built, method.budget, decode.steps(), &rope)
        .with_document(3..ids.len() - 12)
        .with_tail(2)
        .with_chunk(48)
        .with_cache(cache)
        .run(&mut |_| (), &Stop::new())
        .unwrap_or_else(|e| panic!("{method:?}: {e}"));
    decoded(model, &rope, outcome, decode)
}

/// [`run`] for several methods on one prefill in a single chunk. `kept_rows` and `measurements` check that a shared
/// prefill gives a method the rows that its own would.
pub fn run_shared(
    model: &Model,
    cache: CacheType,
    methods: &[TestMethod],
    ids: &[u32],
    decode: Decode<'_>,
) -> Vec<Run> {
    let rope = RopeTable::new(model.config(), ids.len() + decode.steps());
    let built: Vec<_> = methods.iter().map(TestMethod::method).collect();
    let prefills = built.iter().zip(methods);
    let prefills = prefills.map(|(built, method)| {
        Prefill::new(model, ids, &**built, method.budget, decode.steps(), &rope)
            .with_document(3..ids.len() - 12)
            .with_tail(2)
            .with_cache(cache)
    });
    let outcomes = Prefill::run_each(prefills.collect(), &mut |_| (), &Stop::new());
    let runs = outcomes.expect("a prefill").into_iter().zip(methods);
    runs.map(|(outcome, method)| {
        let outcome = outcome.unwrap_or_else(|e| panic!("{method:?}: {e}"));
        decoded(model, &rope, outcome, decode)
    })
    .collect()
}

fn decoded(model: &Model, rope: &RopeTable, read: PrefillOutcome, decode: Decode<'_>) -> Run {
    let mut decoder = Decoder::new(model, rope, read.evictor, read.cache).expect("memory");
    let first = decoder.logits_of(&read.hidden).expect("logits");
    let mut logits = vec![first.to_vec()];
    let mut tokens = Vec::new();
    for step in 0..decode.steps() {
        let token = match decode {
            Decode::Given(given) => given[step],
            Decode::Greedy(_) => argmax(&logits[step]) as u32,
        };
        tokens.push(token);
        logits.push(decoder.step(token, None).expect("logits").to_vec());
    }
    Run {
        logits,
        tokens,
        map: read.map,
    }
}

/// Asserts that two runs have the same logits, within `bound` of the largest.
#[track_caller]
pub fn assert_near(found: &Run, expected: &Run, bound: f32, what: &str) {
    for (step, (found, expected)) in found.logits.iter().zip(&expected.logits).enumerate() {
        let apart = apart(found, expected);
        assert!(
            apart <= bound,
            "{what}: logits {step} are {apart:.1e} apart"
        );
    }
}

/// Bytes uploaded to a GPU, and downloaded from it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transfers {
    pub uploaded: u64,
    pub downloaded: u64,
}

impl Transfers {
    pub fn of(meter: &kept_cuda::Meter) -> Self {
        let (uploaded, downloaded) = meter.copied();
        Self {
            uploaded,
            downloaded,
        }
    }

    pub fn since(self, before: Self) -> Self {
        Self {
            uploaded: self.uploaded - before.uploaded,
            downloaded: self.downloaded - before.downloaded,
        }
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
