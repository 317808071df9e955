//! Decode allocates nothing, for any cache type, also when attention votes are counted. A single test in its own
//! program, so that no other thread allocates meanwhile.

use kept_engine::kernels::{CacheType, Stop, allocations, settled_allocations};
use kept_engine::models::{Model, RopeTable};
use kept_engine::policies::{Parameters, build, methods};
use kept_engine::{Decoder, EngineError, Prefill, Votes};
use kept_tests::golden;

const PROMPT: usize = 260;
/// More than the decoded rows that stay exact in the quantised types, so that some are rounded.
const MAX_NEW_TOKENS: usize = 100;

/// Every method at its defaults, and variants with other positions, tables and replaced rows.
fn variants() -> Vec<(&'static str, &'static str)> {
    let defaults = methods().iter().map(|method| (method.name, ""));
    let others = [
        ("streaming_llm", "positions=original"),
        ("treekv", "positions=original"),
        ("ems", "positions=reassigned"),
        ("adakv", "base=h2o"),
        ("snapkv", "decode_cap=120,decode_every=7,decode_w=3"),
    ];
    defaults.chain(others).collect()
}

pub fn decode_allocates_nothing_with_any_cache_type() {
    let model = Model::open(&golden::model("group2-llama3-tied")).expect("a golden model");
    let vocab = model.config().vocab as u32 - 3;
    let ids: Vec<u32> = (0..(PROMPT + MAX_NEW_TOKENS) as u32)
        .map(|i| 3 + (i * i + i * 37 + 11) % vocab)
        .collect();
    let (prompt, answer) = ids.split_at(PROMPT);
    let rope = RopeTable::new(model.config(), ids.len());
    let types = [CacheType::F16, CacheType::Q8_0, CacheType::Q4_0];
    let mut written = [0; 3];
    for (name, set) in variants() {
        for (cache, written) in types.into_iter().zip(&mut written) {
            let what = format!("{name} {set} of {cache}");
            let parameters = Parameters::parse_assignments(set).expect("parameters");
            let built = build(name, &parameters).expect("a method");
            let prefill = Prefill::new(&model, prompt, &*built, 100, MAX_NEW_TOKENS, &rope);
            let outcome = match prefill.with_cache(cache).run(&mut |_| (), &Stop::new()) {
                Ok(outcome) => outcome,
                // Methods that modify rows repeatedly refuse the quantised types by name.
                Err(EngineError::CacheType { .. }) if cache != CacheType::F16 => continue,
                Err(error) => panic!("{what}: {error}"),
            };
            let mut votes = Votes::new(4..PROMPT - 4);
            let mut decoder =
                Decoder::new(&model, &rope, outcome.evictor, outcome.cache).expect("memory");
            // The first tokens fill thread-local scratch buffers.
            let (first, others) = answer.split_at(2);
            for &token in first {
                decoder.step(token, Some(&mut votes)).expect("logits");
            }
            let before = settled_allocations();
            for &token in others {
                decoder.step(token, Some(&mut votes)).expect("logits");
            }
            assert_eq!(allocations() - before, 0, "{what}: allocates to answer");
            votes.end_step(0, 0);
            assert!(!votes.steps()[0].votes.is_empty(), "{what}");
            *written += 1;
        }
    }
    let all = variants().len();
    assert_eq!(written[0], all, "every method takes f16");
    assert!(
        written[1] + 4 >= all && written[1] == written[2],
        "{written:?}"
    );
}

/// Nor with latent attention and experts, whose rows are expanded in place.
pub fn decode_of_latent_attention_allocates_nothing() {
    let file = golden::Unpacked::architecture("glm4_moe_lite");
    let model = Model::open(&file.path()).expect("a golden model");
    let vocab = model.config().vocab as u32 - 3;
    let ids: Vec<u32> = (0..140)
        .map(|i| 3 + (i * i + i * 37 + 11) % vocab)
        .collect();
    let (prompt, answer) = ids.split_at(120);
    let rope = RopeTable::new(model.config(), ids.len());
    let built = build("snapkv", &[]).expect("a method");
    let prefill = Prefill::new(&model, prompt, &*built, 40, answer.len(), &rope);
    let outcome = prefill.run(&mut |_| (), &Stop::new()).expect("a cache");
    let mut decoder = Decoder::new(&model, &rope, outcome.evictor, outcome.cache).expect("memory");
    let (first, others) = answer.split_at(2);
    for &token in first {
        decoder.step(token, None).expect("logits");
    }
    let before = settled_allocations();
    for &token in others {
        decoder.step(token, None).expect("logits");
    }
    assert_eq!(allocations() - before, 0, "allocates to answer");
}
