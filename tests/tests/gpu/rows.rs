//! Rows kept on a GPU, in every cache type: equal to the CPU's, including the choice of exact rows. Also the total GPU
//! memory, predicted before allocation.

use crate::gpus::*;
use kept_cuda::emulated;
use kept_engine::kernels::{CacheType, Stop};
use kept_engine::models::RopeTable;
use kept_engine::policies::{Budget, PromptShape};
use kept_engine::{Engine, MethodSpec, Prefill};
use kept_engine_cuda::OnGpu;
use kept_tests::compare::apart;
use kept_tests::method_spec::{TestMethod, spec};

/// More than the exact rows, so that some are quantised.
const PROMPT: usize = 100;

/// Largest effect of quantisation to this type when a number crosses a rounding boundary; relative to the largest
/// logit.
fn bound(cache: CacheType) -> f32 {
    match cache {
        CacheType::Q4_0 => 2.0 * BOUND,
        _ => BOUND,
    }
}

#[track_caller]
fn assert_cpus_rows(cache: CacheType, methods: &[TestMethod]) {
    let gpu = gpus().remove(0);
    let file = tiny(&small("llama", 2));
    let here = open(&file.path);
    let there = on_gpu(open(&file.path), &gpu);
    let ids = ids(PROMPT, here.config().vocab);
    let given = Decode::Given(&ids[10..18]);
    let mut tied = 0;
    let found = run_shared(&there, cache, methods, &ids, given);
    for (&method, found) in methods.iter().zip(found) {
        let expected = run(&here, cache, method, &ids, given);
        // After an exchange of two nearly tied rows, the caches differ.
        if found.map != expected.map {
            let alike = alike(&found.map, &expected.map);
            assert!(alike > 0.97, "{cache} {method:?}: {alike} of what is kept");
            tied += 1;
            continue;
        }
        assert_near(
            &found,
            &expected,
            bound(cache),
            &format!("{cache} {method:?}"),
        );
        // And they differ from those of another type.
        let exact = run(&here, CacheType::F16, method, &ids, given);
        let moved = apart(&expected.logits[8], &exact.logits[8]);
        assert!(moved > 0.0, "{cache} {method:?}: nothing was rounded");
    }
    assert!(tied <= 1, "{cache}: {tied} methods kept other rows");
}

// By row handling during decode: rows only added; one evicted per new row and its slot reused; many evicted at once;
// re-assigned positions, rotated in the kernel.

#[test]
fn q8_0_rows_equal_the_cpus() {
    let sweeps = "w=8,decode_cap=88,decode_every=2,decode_w=2";
    let methods = [
        spec("snapkv", "w=8", 90),
        spec("tova", "", 88),
        spec("snapkv", sweeps, 86),
    ];
    assert_cpus_rows(CacheType::Q8_0, &methods);
}

#[test]
fn q4_0_rows_equal_the_cpus() {
    let methods = [
        spec("snapkv", "w=8", 90),
        spec("tova", "", 90),
        spec("streaming_llm", "positions=reassigned", 90),
    ];
    assert_cpus_rows(CacheType::Q4_0, &methods);
}

/// A GPU computes in f16: a more exact cache type is refused before prefill.
#[test]
fn f32_rows_are_refused_on_a_gpu() {
    if without_emulator() {
        return;
    }
    let file = tiny(&quick("llama", 2));
    let model = on_gpu(open(&file.path), &emulated::device(86, 1 << 30));
    let ids = ids(40, model.config().vocab);
    let rope = RopeTable::new(model.config(), ids.len());
    let built = built("snapkv", "w=8");
    let read = Prefill::new(&model, &ids, &*built, 20, 0, &rope)
        .with_cache(CacheType::F32)
        .run(&mut |_| panic!("nothing is read"), &Stop::new());
    let refusal = read.err().expect("refused").to_string();
    assert!(
        refusal.contains("f32") && refusal.contains("CPU") && !refusal.contains('\n'),
        "{refusal}"
    );
}

/// The ledger's prediction of GPU memory is within a twentieth of the measured peak.
#[test]
fn estimated_gpu_memory_equals_the_measured_peak() {
    let file = tiny(&quick("llama", 2));
    for (name, cache, budget) in [
        ("full", CacheType::F16, 0),
        ("snapkv", CacheType::Q8_0, 90),
        ("h2o", CacheType::Q4_0, 90),
        ("treekv", CacheType::Q8_0, 80),
        ("ems", CacheType::F16, 60),
        ("kvzip", CacheType::F16, 60),
    ] {
        let (gpu, meter) = limited(1 << 30);
        let engine = Engine::open(&file.path).expect("a model");
        let engine = engine.with_cache(cache).on_gpu(gpu).expect("it fits");
        let model = engine.model();
        let weights = meter.most();
        let ids = ids(PROMPT, model.config().vocab);
        let budget = (budget > 0).then_some(Budget::Rows(budget));
        let shape = PromptShape::of(ids.len());
        let expected = engine
            .expected_ledger(&shape, &MethodSpec::plain(name), budget, 6)
            .expect("an estimate");
        assert_eq!(meter.most(), weights, "{name}: an estimate takes nothing");

        let built = built(name, "");
        let rope = RopeTable::new(model.config(), ids.len() + 6);
        let rows = budget.map_or(100, |b| b.rows(ids.len(), 1).expect("rows"));
        let outcome = Prefill::new(model, &ids, &*built, rows, 6, &rope)
            .with_cache(cache)
            .run(&mut |_| (), &Stop::new())
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut decoder = kept_engine::Decoder::new(model, &rope, outcome.evictor, outcome.cache)
            .expect("memory");
        decoder.logits_of(&outcome.hidden).expect("logits");
        for token in 10..13 {
            decoder.step(token, None).expect("logits");
        }
        let (took, said) = (meter.most() as f64, expected.gpu as f64);
        assert!(
            (took / said - 1.0).abs() <= 0.05,
            "{name} {cache}: {took} bytes of the GPU, announced {said}"
        );
    }
}

/// A question that does not fit a GPU's memory is refused before prefill, with the missing amount; under a limit, the
/// rows are fitted to it.
#[test]
fn a_question_that_does_not_fit_a_gpu_is_refused() {
    if without_emulator() {
        return;
    }
    let file = tiny(&quick("llama", 2));
    let engine = |memory: u64| {
        let engine = Engine::open(&file.path).expect("a model");
        engine
            .on_gpu(emulated::device(86, memory))
            .expect("it fits")
    };
    let large = engine(1 << 30);
    let weights = large.model().gpu().expect("a GPU").bytes();
    let text = "the word and ".repeat(60).into_bytes();
    let document = kept_engine::documents::Document::from_bytes("note.txt", text).expect("a text");
    let full = MethodSpec::plain("full");
    let ask = |engine: &Engine, memory: Option<u64>| {
        let ask = kept_engine::Ask {
            max_tokens: 2,
            limits: kept_engine::Limits {
                memory,
                ..kept_engine::Limits::default()
            },
            ..kept_engine::Ask::new(&document, "Who?", &full)
        };
        engine.ask(&ask, &mut |_| (), &Stop::new())
    };
    // Memory for the weights and little more.
    let refusal = ask(&engine(weights + 200_000), None)
        .err()
        .expect("refused");
    let refusal = refusal.to_string();
    assert!(
        refusal.contains("missing") && refusal.contains("emulated") && !refusal.contains('\n'),
        "{refusal}"
    );
    let answer = ask(&large, None).expect("an answer");
    let (needed, method) = (answer.ledger.gpu, &answer.report.method);
    assert!(needed > weights, "{method}: {needed} of {weights}");
    // The limit applies to GPU memory: just enough succeeds, and less is refused.
    ask(&large, Some(needed + needed / 20)).expect("an answer");
    let refusal = ask(&large, Some(weights))
        .err()
        .expect("refused")
        .to_string();
    assert!(refusal.contains("memory limit"), "{refusal}");
}

/// The context length that fits a GPU's memory, computed by an engine that is not loaded on a device yet.
#[test]
fn the_context_that_fits_a_gpu_is_computed_without_loading() {
    if without_emulator() {
        return;
    }
    let file = tiny(&quick("llama", 2));
    let (gpu, meter) = emulated::fault_injecting(86, 1 << 30);
    let engine = Engine::open(&file.path).expect("a model");
    let there = engine.on_gpu(gpu.dry_run()).expect("as if");
    assert_eq!(meter.most(), 0, "nothing is copied");
    let usual = MethodSpec::plain("snapkv");
    let weights = there.model().gpu().expect("as if there").bytes();
    let (little, much) = (
        there.fit(weights + (2 << 20), &usual),
        there.fit(1 << 30, &usual),
    );
    let longest = |fit: &kept_engine::Fit| fit.lines[0].tokens;
    assert!(longest(&little) < longest(&much), "{little:?} {much:?}");
    assert!(much.lines[0].whole_context, "{much:?}");
    assert!(there.fit(1000, &usual).missing_bytes() > 0);
}
