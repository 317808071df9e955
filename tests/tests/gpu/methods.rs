//! A GPU gives the CPU's answers: the engine with the emulator, which runs the kernels' own source, against the engine
//! without. Products with quantised weights are the emulator's own (they are not our kernels).

use crate::gpus::*;
use kept_cuda::emulated;
use kept_engine::documents::Document;
use kept_engine::kernels::{CacheType, Stop};
use kept_engine::models::{Model, RopeTable};
use kept_engine::policies::Budget;
use kept_engine::{Ask, Engine, Limits, Method, Prefill, Sampling};
use kept_models::testing::TinyLlama;
use kept_tests::compare::apart;

/// Logits after the prompt, and after each later token, equal the CPU's.
#[track_caller]
fn same_logits(model: &TinyLlama, method: (&str, &str, usize), gpu: &kept_cuda::Device) {
    let file = tiny(model);
    let here = open(&file.path);
    let there = on_gpu(open(&file.path), gpu);
    let ids = ids(53, here.config().vocab);
    let given: Vec<u32> = ids[10..13].to_vec();
    let expected = run((&here, CacheType::F16), method, &ids, Ok(&given));
    let found = run((&there, CacheType::F16), method, &ids, Ok(&given));
    assert_eq!(found.map, expected.map, "{}: what is kept", model.arch);
    for (step, (found, expected)) in found.logits.iter().zip(&expected.logits).enumerate() {
        let (apart, arch) = (apart(found, expected), model.arch);
        let name = &gpu.facts().name;
        assert!(
            apart <= BOUND,
            "{arch} on {name}, {method:?}: logits {step} are {apart:.1e} apart"
        );
    }
}

/// Floating-point weights: the GPU is not responsible for differences that stem from rounding inputs to bytes.
#[test]
fn every_architecture_computes_the_processors_logits() {
    let archs = [
        ("llama", 2),
        ("qwen2", 2),
        ("qwen3", 2),
        ("phi3", 2),
        ("gemma2", 2),
        ("gemma3", 6),
        ("smollm3", 4),
    ];
    for (i, gpu) in gpus().iter().enumerate() {
        // The emulator is slow: its second GPU runs the two most different architectures only.
        for (arch, layers) in archs
            .into_iter()
            .skip(3 * i)
            .take(if i == 0 { 7 } else { 2 })
        {
            same_logits(&small(arch, layers), ("full", "", 100), gpu);
        }
    }
}

/// Re-assigned positions in combination with biases, norms per head and layers without RoPE.
#[test]
fn positions_are_reassigned_in_every_architecture() {
    for gpu in gpus().iter().take(1) {
        for (arch, layers) in [("qwen2", 2), ("qwen3", 2), ("smollm3", 4), ("gemma2", 2)] {
            let method = ("streaming_llm", "positions=reassigned", 24);
            same_logits(&small(arch, layers), method, gpu);
        }
    }
}

/// Methods and variants, by measurement, positions, and behaviour during decode.
const METHODS: &[(&str, &str, usize)] = &[
    ("full", "", 400),
    ("snapkv", "w=8", 40),
    ("snapkv", "w=20,decode_cap=42,decode_every=2,decode_w=2", 40),
    ("streaming_llm", "positions=original", 40),
    ("streaming_llm", "positions=reassigned", 40),
    ("pyramidkv", "w=8", 40),
    ("adakv", "w=8", 40),
    ("adakv", "base=h2o", 40),
    ("chunkkv", "w=8,chunk=4", 40),
    ("hbw_kv", "w=8", 40),
    ("tova", "", 40),
    ("scissorhands", "", 40),
    ("pyramidinfer", "variant=budgeted", 60),
    ("pyramidinfer", "variant=faithful", 90),
    ("h2o", "", 40),
    ("ems", "", 40),
    ("ems", "positions=reassigned,w=20", 40),
    ("treekv", "", 40),
    ("treekv", "positions=original", 40),
    ("cam", "base=h2o", 40),
    ("keydiff", "", 40),
    ("expected_attention", "", 40),
    ("kvzip", "chunk=50", 40),
    ("kvzip", "chunk=50,spread=model", 40),
];

/// A floating-point model has no near ties, and its products do not round their inputs: every method keeps exactly the
/// same rows, layer by layer and head by head.
fn same_rows(methods: &[(&str, &str, usize)]) {
    let gpu = gpus().pop().expect("a GPU");
    for &method in methods {
        same_logits(&small("llama", 2), method, &gpu);
    }
}

#[test]
fn every_method_keeps_the_same_rows_of_a_model_in_floating_point() {
    same_rows(&METHODS[..12]);
}

#[test]
fn every_other_method_answers_the_same() {
    same_rows(&METHODS[12..]);
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
fn same_answers(methods: &[(&str, &str, usize)]) {
    let path = kept_engine::model_path(kept_engine::MINI).expect("the built-in model");
    let here = open(&path);
    let ids = question(&here);
    let gpu = gpus().pop().expect("a GPU");
    let there = on_gpu(open(&path), &gpu);
    for &method in methods {
        let expected = run((&here, CacheType::F16), method, &ids, Err(3));
        let found = run((&there, CacheType::F16), method, &ids, Err(3));
        let name = &gpu.facts().name;
        assert_eq!(found.tokens, expected.tokens, "{method:?} on {name}");
        let alike = alike(&found.map, &expected.map);
        assert!(
            alike > 0.97,
            "{method:?} on {name}: {alike} of what is kept"
        );
        // After an exchange of two nearly tied rows, the caches differ.
        if found.map != expected.map {
            continue;
        }
        for (step, (found, expected)) in found.logits.iter().zip(&expected.logits).enumerate() {
            let apart = apart(found, expected);
            assert!(
                apart <= 2.0 * BOUND,
                "{method:?} on {name}: logits {step} are {apart:.1e} apart"
            );
        }
    }
}

// Split, so that the parts run in parallel.

#[test]
fn methods_that_look_from_the_question_answer_the_same() {
    same_answers(&METHODS[..8]);
}

#[test]
fn methods_that_look_from_every_row_answer_the_same() {
    same_answers(&METHODS[8..16]);
}

#[test]
fn methods_that_merge_move_or_repeat_answer_the_same() {
    same_answers(&METHODS[16..]);
}

/// A GPU without enough memory gives a one-sentence error that names the remedy, at every stage.
#[test]
fn a_gpu_that_is_too_small_is_one_sentence() {
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
                let mut policy = policy("full", "");
                let read = Prefill::new(&model, &ids, &mut *policy, 100, 0, &rope)
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

/// A head size without a kernel is refused by its size.
#[test]
fn heads_without_kernels_are_refused() {
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
}

/// A stopped prefill ends, on a GPU as well.
#[test]
fn a_reading_on_a_gpu_is_stopped() {
    let file = tiny(&small("llama", 2));
    let model = on_gpu(open(&file.path), &gpus()[0]);
    let ids = ids(40, model.config().vocab);
    let rope = RopeTable::new(model.config(), ids.len());
    let (mut policy, stop) = (policy("snapkv", "w=8"), Stop::new());
    stop.request();
    let read = Prefill::new(&model, &ids, &mut *policy, 20, 0, &rope)
        .with_cache(CacheType::F16)
        .run(&mut |_| (), &stop);
    assert!(matches!(read, Err(kept_engine::EngineError::Stopped)));
}

/// `--device auto` continues on the CPU if the GPU's memory is too small, with the same engine and its answers.
#[test]
fn a_gpu_that_is_too_small_leaves_the_engine_where_it_computed() {
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
        let method = Method {
            name: "snapkv".to_owned(),
            parameters: Vec::new(),
        };
        let ask = Ask {
            document: &document,
            question: "Who?",
            method: &method,
            budget: Some(Budget::Rows(40)),
            sampling: &Sampling::default(),
            max_tokens: 3,
            thinking: false,
            limits: Limits::default(),
            vault: None,
        };
        let answer = engine.ask(&ask, &mut |_| (), &Stop::new());
        answer.expect("an answer").text
    };
    let expected = answer(&engine);
    let refused = engine.take_gpu(emulated::device(86, 20_000));
    let refused = refused.expect_err("no room").to_string();
    assert!(refused.contains("emulated sm_86"), "{refused}");
    assert!(engine.model().gpu().is_none());
    assert_eq!(engine.computes_on(), "the processor");
    assert_eq!(answer(&engine), expected);
    engine
        .take_gpu(emulated::device(86, 1 << 30))
        .expect("memory");
    assert_eq!(engine.computes_on(), "emulated sm_86");
    answer(&engine);
}
