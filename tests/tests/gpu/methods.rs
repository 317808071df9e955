//! A GPU gives the CPU's answers: the engine with the emulator, which runs the kernels' own source, against the engine
//! without. Products with quantised weights are the emulator's own (they are not our kernels).

use crate::gpus::*;
use kept_cuda::{Device, emulated};
use kept_engine::documents::Document;
use kept_engine::kernels::{CacheType, Stop};
use kept_engine::models::{Model, RopeTable};
use kept_engine::policies::Budget;
use kept_engine::{Ask, Engine, MethodSpec, Prefill};
use kept_engine_cuda::OnGpu;
use kept_models::testing::TinyLlama;
use kept_tests::method_spec::{TestMethod, spec};

/// A small model on the CPU and on a GPU, and a prompt. Its weights are floating-point: products do not round their
/// inputs to bytes, and rows have no near ties.
struct OnBoth {
    _file: Tiny,
    cpu: Model,
    gpu: Model,
    ids: Vec<u32>,
    what: String,
}

impl OnBoth {
    fn new(arch: &'static str, layers: usize, tokens: usize, gpu: &Device) -> Self {
        let file = tiny(&small(arch, layers));
        let cpu = open(&file.path);
        Self {
            gpu: on_gpu(open(&file.path), gpu),
            ids: ids(tokens, cpu.config().vocab),
            cpu,
            what: format!("{arch} on {}", gpu.properties().name),
            _file: file,
        }
    }

    /// Asserts that the GPU keeps the CPU's rows, and that its logits after the prompt and after each of three given
    /// tokens are the CPU's. Several methods share the GPU's prefill.
    #[track_caller]
    fn assert_same(&self, methods: &[TestMethod]) {
        let given = Decode::Given(&self.ids[10..13]);
        let found = match methods {
            &[method] => vec![run(&self.gpu, CacheType::F16, method, &self.ids, given)],
            _ => run_shared(&self.gpu, CacheType::F16, methods, &self.ids, given),
        };
        for (found, &method) in found.iter().zip(methods) {
            let expected = run(&self.cpu, CacheType::F16, method, &self.ids, given);
            let what = format!("{}, {method:?}", self.what);
            assert_eq!(found.map, expected.map, "{what}: what is kept");
            assert_near(found, &expected, BOUND, &what);
        }
    }
}

/// A model of each architecture, with as few layers as it has different ones (two of a llama), on the one emulated GPU
/// or the other; also with re-assigned positions in combination with biases, norms per head, layers without RoPE and
/// sliding windows.
#[test]
fn every_architecture_computes_the_cpus_logits() {
    let full = spec("full", "", 100);
    let reassigned = spec("streaming_llm", "positions=reassigned", 24);
    let (alone, both) = ([full], [full, reassigned]);
    let gpus = gpus();
    let archs = [
        ("llama", 2, 29, &alone[..]),
        ("qwen2", 1, 29, &both),
        ("qwen3", 1, 29, &both),
        ("phi3", 1, 29, &alone),
        ("gemma2", 2, 29, &both),
        // In two chunks: the second chunk's sliding windows begin in the first.
        ("gemma3", 6, 53, &alone),
        ("smollm3", 4, 29, &both),
    ];
    for (i, (arch, layers, tokens, methods)) in archs.into_iter().enumerate() {
        let gpu = &gpus[i % gpus.len()];
        OnBoth::new(arch, layers, tokens, gpu).assert_same(methods);
    }
}

/// Methods and variants, by measurement, positions, and behaviour during decode.
const METHODS: &[TestMethod] = &[
    spec("full", "", 400),
    spec("snapkv", "w=8", 40),
    spec("snapkv", "w=20,decode_cap=42,decode_every=2,decode_w=2", 40),
    spec("streaming_llm", "positions=original", 40),
    spec("streaming_llm", "positions=reassigned", 40),
    spec("pyramidkv", "w=8", 40),
    spec("adakv", "w=8", 40),
    spec("adakv", "base=h2o", 40),
    spec("chunkkv", "w=8,chunk=4", 40),
    spec("hbw_kv", "w=8", 40),
    spec("tova", "", 40),
    spec("scissorhands", "", 40),
    spec("pyramidinfer", "variant=budgeted", 60),
    spec("h2o", "", 40),
    spec("ems", "", 40),
    spec("ems", "positions=reassigned,w=20", 40),
    spec("treekv", "", 40),
    spec("treekv", "positions=original", 40),
    spec("cam", "base=h2o", 40),
    spec("keydiff", "", 40),
    spec("expected_attention", "", 40),
];

/// Methods that need a prefill of their own: tokens dropped between layers, and a reconstruction.
const OWN_PREFILL: [TestMethod; 2] = [
    spec("pyramidinfer", "variant=faithful", 90),
    spec("kvzip", "chunk=50", 40),
];

#[test]
fn methods_keep_the_cpus_rows_with_f16_weights() {
    let gpu = gpus().pop().expect("a GPU");
    OnBoth::new("llama", 2, 53, &gpu).assert_same(METHODS);
}

#[test]
fn methods_with_own_prefill_keep_the_cpus_rows() {
    let gpu = gpus().pop().expect("a GPU");
    let model = OnBoth::new("llama", 2, 53, &gpu);
    for method in OWN_PREFILL {
        model.assert_same(&[method]);
    }
}

/// The prompt of a short document and its question, in the built-in model's tokens.
fn question(model: &Model) -> Vec<u32> {
    let text = "The founding year of the museum is 1884. The locker code of Ann Quorvin is 4711. The market day of Saltmarrow \
        is Thursday. The house number of Nora Vantling is 27.";
    let prompt = kept_engine::Prompt::new(model, text, "What is the locker code of Ann Quorvin?");
    prompt.expect("a prompt").ids
}

/// The built-in model's products round their inputs to bytes, so that one earlier rounding may cost a quantisation
/// step. A row may be exchanged for a nearly tied one; the words of the answer are the same.
fn assert_same_answers(methods: &[TestMethod]) {
    let path = kept_engine::model_path(kept_engine::MINI).expect("the built-in model");
    let here = open(&path);
    let ids = question(&here);
    let gpu = gpus().pop().expect("a GPU");
    let there = on_gpu(open(&path), &gpu);
    for &method in methods {
        let what = format!("{method:?} on {}", gpu.properties().name);
        let expected = run(&here, CacheType::F16, method, &ids, Decode::Greedy(2));
        let found = run(&there, CacheType::F16, method, &ids, Decode::Greedy(2));
        assert_eq!(found.tokens, expected.tokens, "{what}");
        let alike = alike(&found.map, &expected.map);
        assert!(alike > 0.97, "{what}: {alike} of what is kept");
        // After an exchange of two nearly tied rows, the caches differ.
        if found.map == expected.map {
            assert_near(&found, &expected, 2.0 * BOUND, &what);
        }
    }
}

// The built-in model has two KV heads, five layers and quantised weights. One method for each measurement and each way
// to divide a budget.

#[test]
fn methods_by_attention_answer_like_the_cpu() {
    assert_same_answers(&[
        spec("snapkv", "w=8", 40),
        spec("pyramidkv", "w=8", 40),
        spec("adakv", "base=h2o", 40),
        spec("scissorhands", "", 40),
        spec("pyramidinfer", "variant=budgeted", 60),
        spec("pyramidinfer", "variant=faithful", 90),
    ]);
}

#[test]
fn methods_by_rows_answer_like_the_cpu() {
    assert_same_answers(&[
        spec("ems", "positions=reassigned,w=20", 40),
        spec("treekv", "", 40),
        spec("cam", "base=h2o", 40),
        spec("keydiff", "", 40),
        spec("expected_attention", "", 40),
        spec("kvzip", "chunk=50,spread=model", 40),
    ]);
}

/// A GPU without enough memory gives a one-sentence error that names the remedy, at every stage.
#[test]
fn a_gpu_that_is_too_small_is_refused_at_every_stage() {
    if without_emulator() {
        return;
    }
    let file = tiny(&small("llama", 2));
    let ids = ids(40, open(&file.path).config().vocab);
    let weights = open(&file.path).weights_bytes();
    for memory in [weights / 2, weights + 100_000] {
        let gpu = emulated::device(86, memory);
        let refusal = match open(&file.path).on_gpu(gpu) {
            Err(refusal) => refusal.to_string(),
            Ok(model) => {
                let rope = RopeTable::new(model.config(), ids.len());
                let built = built("full", "");
                let read = Prefill::new(&model, &ids, &*built, 100, 0, &rope)
                    .with_cache(CacheType::F16)
                    .run(&mut |_| (), &Stop::new());
                read.err().expect("refused").to_string()
            }
        };
        assert!(
            refusal.contains("CPU") && !refusal.contains('\n'),
            "{memory} bytes: {refusal}"
        );
    }
}

/// A head size without a kernel is refused by its size, a recurrent layer by its name.
#[test]
fn models_without_a_kernel_are_refused() {
    if without_emulator() {
        return;
    }
    let model = TinyLlama {
        head_dim: 32,
        ..small("llama", 1)
    };
    let file = tiny(&model);
    let gpu = emulated::device(86, 1 << 30);
    let refusal = open(&file.path).on_gpu(gpu).expect_err("refused");
    assert!(refusal.to_string().contains("32"), "{refusal}");
    for arch in ["qwen35", "lfm2"] {
        let file = tiny(&small(arch, 2));
        let gpu = emulated::device(86, 1 << 30);
        let refusal = open(&file.path).on_gpu(gpu).expect_err("refused");
        assert_eq!(
            refusal.to_string(),
            "recurrent layers cannot be computed on a GPU yet; use the CPU"
        );
    }
}

/// A stopped prefill ends, on a GPU as well.
#[test]
fn a_stopped_prefill_on_a_gpu_ends() {
    let file = tiny(&small("llama", 2));
    let model = on_gpu(open(&file.path), &gpus()[0]);
    let ids = ids(40, model.config().vocab);
    let rope = RopeTable::new(model.config(), ids.len());
    let (built, stop) = (built("snapkv", "w=8"), Stop::new());
    stop.request();
    let read = Prefill::new(&model, &ids, &*built, 20, 0, &rope)
        .with_cache(CacheType::F16)
        .run(&mut |_| (), &stop);
    assert!(matches!(read, Err(kept_engine::EngineError::Stopped)));
}

/// `--device auto` continues on the CPU if the GPU's memory is too small, with the same engine and its answers.
#[test]
fn an_engine_stays_on_the_cpu_if_the_gpu_is_too_small() {
    if without_emulator() {
        return;
    }
    let file = tiny(&small("llama", 2));
    let mut engine = Engine::open(&file.path).expect("a model");
    let answer = |engine: &Engine| {
        let document = Document::from_bytes(
            "note.txt",
            b"The locker code of Ann Quorvin is 4711.".to_vec(),
        )
        .expect("a text");
        let method = MethodSpec::plain("snapkv");
        let ask = Ask {
            budget: Some(Budget::Rows(40)),
            max_tokens: 3,
            ..Ask::new(&document, "Who?", &method)
        };
        let answer = engine.ask(&ask, &mut |_| (), &Stop::new());
        answer.expect("an answer").text
    };
    let expected = answer(&engine);
    let refused = engine.take_gpu(emulated::device(86, 20_000));
    let refused = refused.expect_err("no room").to_string();
    assert!(refused.contains("emulated sm_86"), "{refused}");
    assert!(engine.model().gpu().is_none());
    assert_eq!(engine.computes_on(), "the CPU");
    assert_eq!(answer(&engine), expected);
    engine
        .take_gpu(emulated::device(86, 1 << 30))
        .expect("memory");
    assert_eq!(engine.computes_on(), "emulated sm_86");
    answer(&engine);
}
