//! Cache types under every method: the memory equals the announced one, the error is small, and unsupported
//! combinations are refused by name.

use kept_engine::kernels::{CacheType, Stop};
use kept_engine::models::RopeTable;
use kept_engine::policies::{Budget, Parameters, PromptShape, find, methods};
use kept_engine::{Decoder, Engine, MethodSpec, Prefill};
use kept_models::testing::TinyLlama;

const PROMPT: usize = 260;
const STEPS: usize = 24;
const BUDGET: usize = 150;

/// An engine on a model with head_dim 64, saved in a temporary folder.
fn engine() -> (tempfile::TempDir, Engine) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tiny.gguf");
    TinyLlama::default().write(&path).expect("a model");
    let engine = Engine::open(&path).expect("a model");
    (folder, engine)
}

fn method(name: &str, set: &str) -> MethodSpec {
    MethodSpec {
        name: name.to_owned(),
        parameters: Parameters::parse_assignments(set).expect("parameters"),
    }
}

/// Every method at its defaults, and variants that change rows in other ways.
fn variants() -> Vec<(&'static str, &'static str)> {
    let defaults = methods().iter().map(|method| (method.name, ""));
    let others = [
        ("cam", "base=h2o"),
        ("cam", "base=streaming_llm"),
        ("adakv", "base=h2o"),
        ("treekv", "positions=original"),
        ("ems", "positions=reassigned"),
        ("snapkv", "decode_cap=160,decode_every=7,decode_w=3"),
    ];
    defaults.chain(others).collect()
}

/// Logits after the prompt and after each step, concatenated, and the cache's bytes; or the error.
fn run(engine: &Engine, method: &MethodSpec) -> Result<(Vec<f32>, u64), String> {
    let (model, cache) = (engine.model(), engine.cache_type());
    let vocab = model.config().vocab as u32 - 3;
    let ids: Vec<u32> = (0..(PROMPT + STEPS) as u32)
        .map(|i| 3 + (i * i + i * 37 + 11) % vocab)
        .collect();
    let rope = RopeTable::new(model.config(), ids.len());
    let built = method.build().expect("a method");
    let (prompt, steps) = ids.split_at(PROMPT);
    let outcome = Prefill::new(model, prompt, &*built, BUDGET, STEPS, &rope)
        .with_cache(cache)
        .run(&mut |_| (), &Stop::new())
        .map_err(|error| error.to_string())?;
    let bytes = outcome.cache.kv_bytes();
    let kept_rows = outcome.ledger.kept_rows;
    let mut decoder = Decoder::new(model, &rope, outcome.evictor, outcome.cache).expect("memory");
    let mut logits = decoder.logits_of(&outcome.hidden).expect("logits").to_vec();
    for &id in steps {
        logits.extend_from_slice(decoder.step(id, None).expect("logits"));
    }
    let expected = engine
        .expected_ledger(
            &PromptShape::of(PROMPT),
            method,
            Some(Budget::Rows(BUDGET)),
            STEPS,
        )
        .expect("an estimate");
    // Heads with uneven shares may hold slightly less than announced.
    let uneven = method.name == "adakv" || method.name == "kvzip";
    let (announced, took) = (expected.activations, outcome.ledger.activations);
    assert!(
        took <= announced,
        "{} {cache}: {took} {announced}",
        method.name
    );
    assert!(
        uneven || kept_rows == expected.kept_rows,
        "{} {cache}: {kept_rows} bytes, announced {}",
        method.name,
        expected.kept_rows
    );
    Ok((logits, bytes))
}

/// Root mean square of the difference, relative to `reference`.
fn apart(found: &[f32], reference: &[f32]) -> f32 {
    let square = |x: f32| x * x;
    let difference: f32 = found
        .iter()
        .zip(reference)
        .map(|(x, y)| square(x - y))
        .sum();
    let size: f32 = reference.iter().map(|&x| square(x)).sum();
    (difference / size).sqrt()
}

/// Whether a method modifies rows during decode: each change would be quantised again.
fn changes(name: &str, set: &str) -> bool {
    name == "ems" || name == "cam" && !set.is_empty()
}

#[test]
fn methods_accept_each_cache_type_or_name_those_they_do() {
    let (_folder, mut engine) = engine();
    for (name, set) in variants() {
        let method = method(name, set);
        engine = engine.with_cache(CacheType::F32);
        let (reference, full) = run(&engine, &method).expect("f32 always works");
        let mut last = 0.0;
        for (cache, most) in [
            (CacheType::F16, 2e-2),
            (CacheType::Q8_0, 0.1),
            (CacheType::Q4_0, 0.6),
        ] {
            let what = format!("{name} {set} {cache}");
            engine = engine.with_cache(cache);
            match run(&engine, &method) {
                Ok((logits, bytes)) => {
                    assert!(!cache.is_quantised() || !changes(name, set), "{what}");
                    let error = apart(&logits, &reference);
                    assert!(error < most, "{what}: {error}");
                    assert!(
                        name == "tova" || error > 0.0 && error >= last / 2.0,
                        "{what}: rounds less ({error}) than a wider type ({last})"
                    );
                    last = error;
                    let share = bytes as f64 / full as f64;
                    assert!(share <= 0.5, "{what}: {share} of f32's bytes");
                    assert!(!cache.is_quantised() || share < 0.45, "{what}: {share}");
                }
                Err(refusal) => {
                    let title = find(name).expect("a method").title;
                    let names = [cache.name(), title, "f16 and f32 work"];
                    assert!(
                        names.iter().all(|name| refusal.contains(name)),
                        "{what}: {refusal}"
                    );
                    assert!(
                        changes(name, set) && cache.is_quantised(),
                        "{what}: {refusal}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_byte_budget_gives_more_rows_of_a_smaller_type() {
    let rows = |cache| {
        let (_folder, engine) = engine();
        let budget = Budget::Bytes(1 << 20);
        let rows = engine.with_cache(cache).budget_rows(budget, 4000);
        rows.expect("rows")
    };
    assert_eq!(rows(CacheType::F16), 2 * rows(CacheType::F32));
    assert!(rows(CacheType::Q4_0) > 3 * rows(CacheType::F16) / 2);
}
