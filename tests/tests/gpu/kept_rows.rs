//! Kept rows that stay on the GPU between prefill and decode: they are not transferred, they equal bit for bit the rows
//! that the host would upload, and they are allocated once. On the emulator.

use crate::gpus::*;
use kept_cuda::{Device, Meter, emulated};
use kept_engine::kernels::{CacheType, Stop};
use kept_engine::models::{Model, RopeTable};
use kept_engine::policies::{Budget, Policy, PromptShape};
use kept_engine::{
    Cut, Decoder, Engine, EngineError, MemoryLedger, Method, Prefill, PrefillOutcome, RetentionMap,
    SharedPrefill, Votes,
};
use kept_models::testing::TinyLlama;

/// Decode steps.
const STEPS: usize = 4;

/// More than the exact rows of a head, so that some rows are quantised.
const LONG: usize = 100;

/// Kind of prefill.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    /// A single method, with at most so many bytes of the GPU: its rows stay on the GPU if they fit.
    Alone(Option<u64>),
    /// One of several methods on a shared prefill: each method's rows are on the host until it answers.
    Shared,
}

/// Runs prefill on a prompt of [`LONG`] tokens, with capacity for `max_new_tokens` more.
fn read(
    (model, cache): (&Model, CacheType),
    policy: &mut dyn Policy,
    budget: usize,
    (rope, max_new_tokens): (&RopeTable, usize),
    way: Way,
) -> Result<PrefillOutcome, EngineError> {
    let ids = ids(LONG, model.config().vocab);
    let (document, tail) = (3..LONG - 12, 2);
    match way {
        Way::Alone(memory) => Prefill::new(model, &ids, policy, budget, max_new_tokens, rope)
            .with_document(document)
            .with_tail(tail)
            .with_cache(cache)
            .with_gpu_memory(memory)
            .run(&mut |_| (), &Stop::new()),
        Way::Shared => {
            let shared = SharedPrefill {
                model,
                ids: &ids,
                document: Some(document),
                tail,
                max_new_tokens,
                rope,
            };
            let cuts = vec![Cut {
                policy,
                budget,
                cache,
            }];
            let mut outcomes = shared.run(cuts, &mut |_| (), &Stop::new())?;
            outcomes.pop().expect("one method")
        }
    }
}

/// Result and memory of an answer: kept rows of the prompt in bytes, the part of them that is on the GPU only, all
/// logits, votes.
#[derive(PartialEq)]
struct Answered {
    logits: Vec<Vec<f32>>,
    votes: Vec<f32>,
    map: RetentionMap,
    kv_bytes: u64,
    after: u64,
}

fn answered(
    model: (&Model, CacheType),
    method: (&str, &str, usize),
    way: Way,
) -> (Answered, MemoryLedger) {
    answered_with_room(model, method, STEPS, way)
}

fn answered_with_room(
    (model, cache): (&Model, CacheType),
    (method, set, budget): (&str, &str, usize),
    max_new_tokens: usize,
    way: Way,
) -> (Answered, MemoryLedger) {
    let rope = RopeTable::new(model.config(), LONG + max_new_tokens);
    let mut policy = policy(method, set);
    let read = read(
        (model, cache),
        &mut *policy,
        budget,
        (&rope, max_new_tokens),
        way,
    )
    .unwrap_or_else(|e| panic!("{method} {set} {way:?}: {e}"));
    let (kv_bytes, ledger) = (read.cache.kv_bytes(), read.ledger);
    let mut decoder = Decoder::new(model, &rope, &mut *policy, read.rows, read.cache);
    let mut votes = Votes::new(3..LONG - 12);
    let first = decoder.try_logits_of(&read.hidden).expect("logits");
    let mut logits = vec![first.to_vec()];
    for token in 10..10 + STEPS as u32 {
        let next = decoder.try_step(token, Some(&mut votes));
        logits.push(next.expect("logits").to_vec());
    }
    let found = Answered {
        logits,
        votes: votes.per_token().to_vec(),
        map: read.map,
        kv_bytes,
        after: decoder.cache().kv_bytes(),
    };
    (found, ledger)
}

/// With capacity for long answers.
fn long(arch: &'static str) -> TinyLlama {
    TinyLlama {
        context: 1 << 14,
        ..quick(arch, 2)
    }
}

/// Methods that only copy rows, by measurement: none, the question's attention, keys and values, all rows,
/// reconstruction; with equal rows per head, and with unequal ones.
const COPYING: [(&str, &str, usize); 10] = [
    ("full", "", 400),
    ("snapkv", "w=8", 90),
    ("pyramidkv", "w=8", 84),
    ("adakv", "w=8", 84),
    ("chunkkv", "w=8,chunk=4", 84),
    ("hbw_kv", "w=8", 84),
    ("keydiff", "", 84),
    ("expected_attention", "", 84),
    ("kvzip", "chunk=50", 84),
    ("kvzip", "chunk=50,spread=model", 84),
];

/// Rows that stay on the GPU equal, bit for bit and slot for slot, those that the host would upload.
fn the_hosts_rows(arch: &'static str, cache: CacheType) {
    let file = tiny(&TinyLlama {
        q_heads: 4,
        kv_heads: 2,
        ..quick(arch, 2)
    });
    // A GPU compiler may fuse a product and a sum into one rounding: with four bits this occasionally changes the
    // nearest step.
    let gpu = match cache {
        CacheType::Q4_0 => emulated::device(86, 1 << 30),
        _ => gpus().remove(0),
    };
    let there = on_gpu(open(&file.path), &gpu);
    for method in COPYING {
        let (found, ledger) = answered((&there, cache), method, Way::Alone(None));
        let (expected, by_host) = answered((&there, cache), method, Way::Shared);
        let what = format!("{arch} {cache} {method:?}");
        assert!(found.logits == expected.logits, "{what}: other logits");
        assert!(found.votes == expected.votes, "{what}: other votes");
        assert!(found == expected, "{what}: other rows");
        assert!(
            ledger.kept_on_gpu >= found.kv_bytes,
            "{what}: they travelled"
        );
        assert_eq!(by_host.kept_on_gpu, 0, "{what}");
        assert_eq!(ledger.kept(), by_host.kept(), "{what}");
        assert!(ledger.kept_rows < by_host.kept_rows / 8, "{what}");
    }
}

#[test]
fn rows_of_f16_that_stay_are_the_hosts() {
    the_hosts_rows("llama", CacheType::F16);
    the_hosts_rows("gemma2", CacheType::F16);
}

#[test]
fn rows_of_eight_bits_that_stay_are_the_hosts() {
    the_hosts_rows("llama", CacheType::Q8_0);
    the_hosts_rows("gemma2", CacheType::Q8_0);
}

#[test]
fn rows_of_four_bits_that_stay_are_the_hosts() {
    if without_emulator() {
        return;
    }
    the_hosts_rows("llama", CacheType::Q4_0);
    the_hosts_rows("gemma2", CacheType::Q4_0);
}

/// Bytes uploaded to a GPU, and downloaded.
#[derive(Debug, Clone, Copy)]
struct Carried {
    sent: u64,
    brought: u64,
}

impl Carried {
    fn since((sent, brought): (u64, u64), meter: &Meter) -> Self {
        let now = meter.copied();
        Self {
            sent: now.0 - sent,
            brought: now.1 - brought,
        }
    }
}

/// Transfers of a prefill and the first decode step, with rows that stay on the GPU and with rows on the host.
#[test]
fn kept_rows_do_not_travel() {
    for arch in ["llama", "gemma2"] {
        let file = tiny(&quick(arch, 2));
        let (gpu, meter) = limited(1 << 30);
        let there = on_gpu(open(&file.path), &gpu);
        for method in [("full", "", 400), ("snapkv", "w=8", 90)] {
            let copied = |way: Way| {
                let rope = RopeTable::new(there.config(), LONG + STEPS);
                let mut policy = policy(method.0, method.1);
                let before = meter.copied();
                let model = (&there, CacheType::F16);
                let read =
                    read(model, &mut *policy, method.2, (&rope, STEPS), way).expect("a reading");
                let of_reading = Carried::since(before, &meter);
                let (rows, before) = (read.cache.kv_bytes(), meter.copied());
                let mut decoder = Decoder::new(&there, &rope, &mut *policy, read.rows, read.cache);
                decoder.try_logits_of(&read.hidden).expect("logits");
                (of_reading, Carried::since(before, &meter), rows)
            };
            let (read, began, rows) = copied(Way::Alone(None));
            let (read_by_host, began_by_host, same) = copied(Way::Shared);
            let what = format!("{arch} {method:?}, of {rows} bytes of rows");
            assert_eq!(rows, same, "{what}");
            // Measurements of the methods, and the last row of the residual stream.
            assert!(
                read.brought < rows / 4,
                "{what}: {} came back",
                read.brought
            );
            assert!(
                read.brought + rows <= read_by_host.brought,
                "{what}: {read:?} {read_by_host:?}"
            );
            // Per row: its slot, its position and its destination.
            let heads = there.config().kv_heads * there.config().head_dim;
            let books = 12 * rows / (4 * heads as u64);
            let layers = 1 << 10;
            assert!(
                read.sent <= read_by_host.sent + books + layers,
                "{what}: {read:?} {read_by_host:?}"
            );
            assert!(
                began.sent + rows <= began_by_host.sent,
                "{what}: {began:?} {began_by_host:?}"
            );
            assert_eq!(began.brought, began_by_host.brought, "{what}");
        }
    }
}

/// Methods that do more than copy rows, or modify them later, have their rows on the host.
#[test]
fn rows_that_the_host_needs_are_there() {
    if without_emulator() {
        return;
    }
    let file = tiny(&quick("llama", 2));
    let there = on_gpu(open(&file.path), &emulated::device(86, 1 << 30));
    for method in [
        ("h2o", "", 40),
        ("tova", "", 40),
        ("ems", "", 40),
        ("treekv", "", 40),
        ("cam", "base=snapkv", 40),
        ("cam", "base=h2o", 40),
        ("pyramidinfer", "variant=faithful", 100),
        ("streaming_llm", "positions=reassigned", 40),
        ("snapkv", "w=8,decode_cap=42", 40),
    ] {
        let (_, ledger) = answered((&there, CacheType::F16), method, Way::Alone(None));
        assert_eq!(ledger.kept_on_gpu, 0, "{method:?}");
    }
}

/// Rows and prefill buffers are on the GPU at the same time, and decode takes over the same rows: no allocation beyond
/// the estimate, with an answer capacity larger than everything else.
#[test]
fn rows_on_the_gpu_are_allocated_once() {
    let file = tiny(&TinyLlama {
        context: 1 << 16,
        ..long("llama")
    });
    for cache in [CacheType::F16, CacheType::Q8_0] {
        for (gpu, meter) in limited_ones(1 << 30) {
            taken_once(&file, cache, (gpu, &meter));
        }
    }
}

fn taken_once(file: &Tiny, cache: CacheType, (gpu, meter): (Device, &Meter)) {
    let engine = Engine::open(&file.path).expect("a model");
    let engine = engine.with_cache(cache).on_gpu(gpu).expect("memory");
    let model = engine.model();
    let weights = model.gpu().expect("a GPU").bytes();
    // Of a large GPU, the multiprocessors and the products reserve 26 MB; the rows of an answer this long take 31 MB.
    let (max_new_tokens, budget) = (60_000, 90);
    let method = Method {
        name: "snapkv".to_owned(),
        parameters: Vec::new(),
    };
    let shape = PromptShape::of(LONG);
    let rows = Some(Budget::Rows(budget));
    let expected = engine.expected_ledger(&shape, &method, rows, max_new_tokens);
    let expected = expected.expect("an estimate");
    assert!(expected.kept_on_gpu > (expected.gpu - weights) / 3);

    let rope = RopeTable::new(model.config(), LONG + max_new_tokens);
    let mut policy = policy("snapkv", "");
    let ids = ids(LONG, model.config().vocab);
    let read = Prefill::new(model, &ids, &mut *policy, budget, max_new_tokens, &rope)
        .with_cache(cache)
        .run(&mut |_| (), &Stop::new())
        .expect("a reading");
    assert_eq!(read.ledger.kept_on_gpu, expected.kept_on_gpu, "{cache}");
    assert_eq!(read.ledger.kept_rows, expected.kept_rows, "{cache}");
    let mut decoder = Decoder::new(model, &rope, &mut *policy, read.rows, read.cache);
    decoder.try_logits_of(&read.hidden).expect("logits");
    decoder.try_step(7, None).expect("logits");
    let (took, said) = (meter.most() as f64, expected.gpu as f64);
    assert!(
        (took / said - 1.0).abs() <= 0.05,
        "{cache}: {took} bytes of the GPU, announced {said}"
    );
}

/// Where prefill buffers and rows exceed the memory, the residual stream moves to the host first, and then the rows;
/// the answer is the same.
#[test]
fn rows_that_have_no_room_travel() {
    if without_emulator() {
        return;
    }
    let file = tiny(&long("llama"));
    let there = on_gpu(open(&file.path), &emulated::device(86, 1 << 30));
    let (model, method, max_new_tokens) = ((&there, CacheType::F16), ("full", "", 400), 2000);
    let read = |way: Way| answered_with_room(model, method, max_new_tokens, way);
    let (expected, all) = read(Way::Alone(None));
    assert!(all.kept_on_gpu > 0);
    // For so few tokens, the residual stream is no larger on the GPU than two chunks of it; half of the rows is more.
    let (little, much) = (all.kept_on_gpu / 20, all.kept_on_gpu / 2);
    for (limit, stay) in [(all.gpu + little, true), (all.gpu - much, false)] {
        let (found, ledger) = read(Way::Alone(Some(limit)));
        assert!(found == expected, "{limit} of {}", all.gpu);
        assert!(ledger.gpu <= limit, "{} of {limit}", ledger.gpu);
        assert_eq!(ledger.kept_on_gpu > 0, stay, "{limit} of {}", all.gpu);
        assert_eq!(ledger.kept(), all.kept(), "{limit} of {}", all.gpu);
    }
}

/// A cache can be downloaded after its answer, including the rows of the answer.
#[test]
fn a_cache_that_stayed_there_is_given_back() {
    if without_emulator() {
        return;
    }
    let file = tiny(&quick("llama", 2));
    let there = on_gpu(open(&file.path), &emulated::device(86, 1 << 30));
    for cache in [CacheType::F16, CacheType::Q4_0] {
        let (whole, _) = answered((&there, cache), ("snapkv", "w=8", 90), Way::Alone(None));
        let rope = RopeTable::new(there.config(), LONG + STEPS);
        let mut policy = policy("snapkv", "w=8");
        let read = read(
            (&there, cache),
            &mut *policy,
            90,
            (&rope, STEPS),
            Way::Alone(None),
        );
        let read = read.expect("a reading");
        let (rows, mut kept) = (read.rows, read.cache);
        for step in 0..STEPS {
            let mut decoder = Decoder::new(&there, &rope, &mut *policy, rows.clone(), kept);
            let logits = decoder.try_step(10 + step as u32, None).expect("logits");
            assert!(*logits == whole.logits[step + 1], "{cache}: token {step}");
            kept = decoder.into_cache();
        }
    }
}

/// Rows are lost with an answer that failed to start; a second attempt gets an error.
#[test]
fn rows_of_an_answer_that_could_not_begin_are_gone() {
    if without_emulator() {
        return;
    }
    let file = tiny(&quick("llama", 2));
    let gpu = emulated::device(86, 1 << 30);
    let there = on_gpu(open(&file.path), &gpu);
    let rope = RopeTable::new(there.config(), LONG + STEPS);
    let mut policy = policy("snapkv", "w=8");
    let model = (&there, CacheType::F16);
    let read = read(model, &mut *policy, 90, (&rope, STEPS), Way::Alone(None));
    let read = read.expect("a reading");
    let mut decoder = Decoder::new(&there, &rope, &mut *policy, read.rows, read.cache);
    let free = gpu.free_memory().expect("it answers");
    let held = gpu.alloc_uninit::<u8>(free as usize).expect("memory");
    let refused = decoder.try_logits_of(&read.hidden).expect_err("no memory");
    assert!(refused.loses_gpu(), "{refused}");
    drop(held);
    let refused = decoder.try_logits_of(&read.hidden).expect_err("no rows");
    let said = refused.to_string();
    assert!(
        said.contains("an earlier try failed") && !said.contains('\n'),
        "{said}"
    );
}

/// A budget in bytes covers kept rows on the GPU and on the host.
#[test]
fn a_budget_in_bytes_holds_the_rows_that_stay() {
    if without_emulator() {
        return;
    }
    let file = tiny(&long("llama"));
    let engine = || Engine::open(&file.path).expect("a model");
    let there = engine().on_gpu(emulated::device(86, 1 << 30));
    let there = there.expect("memory");
    let rows = |engine: &Engine| {
        let (mut policy, budget) = (policy("snapkv", "w=8"), Some(Budget::Bytes(400_000)));
        let rows = engine.rows_for(&mut *policy, budget, &PromptShape::of(3000), 100);
        rows.expect("some fit")
    };
    assert!((100..1000).contains(&rows(&there)), "{}", rows(&there));
    assert_eq!(rows(&there), rows(&engine()));
}
