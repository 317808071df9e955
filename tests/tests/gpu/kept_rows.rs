//! Kept rows that stay on the GPU between prefill and decode: they are not transferred, they equal bit for bit the rows
//! that the host would upload, and they are allocated once. On the emulator.

use std::ops::Range;

use crate::gpus::*;
use kept_cuda::{Device, Meter, emulated};
use kept_engine::kernels::{CacheType, Stop};
use kept_engine::models::{Model, RopeTable};
use kept_engine::policies::{Budget, Method, PromptShape};
use kept_engine::{
    Decoder, Engine, MemoryLedger, MethodSpec, PlanRequest, Prefill, PrefillOutcome, RetentionMap,
    TokenVotes, Votes,
};
use kept_engine_cuda::OnGpu;
use kept_models::testing::TinyLlama;
use kept_tests::method_spec::{TestMethod, spec};

/// Decode steps: the first runs the kernels one by one, the second as a CUDA graph.
const STEPS: usize = 2;

/// Tokens of a prompt: more than the exact rows of a head, so that some rows are quantised.
const LONG: usize = 100;
const DOCUMENT: Range<usize> = 3..LONG - 12;
/// Tokens of a prompt: more than one chunk of the usual width.
const WIDE: usize = 600;

/// A prompt of [`LONG`] tokens on a model, with capacity for an answer.
struct LongPrompt<'a> {
    model: &'a Model,
    /// Type of the kept rows.
    cache: CacheType,
    ids: Vec<u32>,
    rope: RopeTable,
    max_new_tokens: usize,
}

/// Result of an answer of [`STEPS`] tokens.
#[derive(PartialEq)]
struct Answered {
    logits: Vec<Vec<f32>>,
    votes: Vec<TokenVotes>,
    map: RetentionMap,
    /// Bytes of the kept rows of the prompt.
    kv_bytes: u64,
    /// Bytes of the rows after the answer.
    after: u64,
}

impl<'a> LongPrompt<'a> {
    fn new(model: &'a Model, cache: CacheType, max_new_tokens: usize) -> Self {
        Self {
            model,
            cache,
            ids: ids(LONG, model.config().vocab),
            rope: RopeTable::new(model.config(), LONG + max_new_tokens),
            max_new_tokens,
        }
    }

    fn prefill<'p>(&'p self, method: &'p dyn Method, budget: usize) -> Prefill<'p> {
        let max_new_tokens = self.max_new_tokens;
        Prefill::new(
            self.model,
            &self.ids,
            method,
            budget,
            max_new_tokens,
            &self.rope,
        )
        .with_document(DOCUMENT)
        .with_tail(2)
        .with_cache(self.cache)
    }

    /// A prefill under one method, with at most `memory` bytes of the GPU: its rows stay on the GPU if they fit.
    fn read(&self, method: &dyn Method, budget: usize, memory: Option<u64>) -> PrefillOutcome {
        self.prefill(method, budget)
            .with_gpu_memory(memory)
            .run(&mut |_| (), &Stop::new())
            .unwrap_or_else(|e| panic!("{memory:?} bytes: {e}"))
    }

    /// A prefill under several methods: the rows of each are on the host until it answers.
    fn read_shared(&self, methods: &[TestMethod]) -> Vec<PrefillOutcome> {
        let built: Vec<_> = methods.iter().map(TestMethod::method).collect();
        let prefills = built.iter().zip(methods);
        let prefills = prefills.map(|(built, method)| self.prefill(&**built, method.budget));
        let outcomes = Prefill::run_each(prefills.collect(), &mut |_| (), &Stop::new());
        let outcomes = outcomes.expect("a prefill").into_iter();
        outcomes.map(|read| read.expect("a budget")).collect()
    }

    fn answer(&self, read: PrefillOutcome) -> (Answered, MemoryLedger) {
        let (kv_bytes, ledger) = (read.cache.kv_bytes(), read.ledger);
        let mut decoder =
            Decoder::new(self.model, &self.rope, read.evictor, read.cache).expect("memory");
        let mut votes = Votes::new(DOCUMENT);
        let first = decoder.logits_of(&read.hidden).expect("logits");
        let mut logits = vec![first.to_vec()];
        for token in 10..10 + STEPS as u32 {
            let next = decoder.step(token, Some(&mut votes));
            votes.end_step(0, token);
            logits.push(next.expect("logits").to_vec());
        }
        let found = Answered {
            logits,
            votes: votes.steps().to_vec(),
            map: read.map,
            kv_bytes,
            after: decoder.cache().kv_bytes(),
        };
        (found, ledger)
    }

    /// [`LongPrompt::read`] and the answer.
    fn alone(&self, method: TestMethod, memory: Option<u64>) -> (Answered, MemoryLedger) {
        let built = method.method();
        let read = self.read(&*built, method.budget, memory);
        self.answer(read)
    }

    /// [`LongPrompt::read_shared`] and the answer of each method.
    fn shared(&self, methods: &[TestMethod]) -> Vec<(Answered, MemoryLedger)> {
        let outcomes = self.read_shared(methods).into_iter();
        outcomes.map(|read| self.answer(read)).collect()
    }
}

/// With capacity for long answers.
fn long(arch: &'static str) -> TinyLlama {
    TinyLlama {
        context: 1 << 14,
        ..quick(arch, 2)
    }
}

/// Methods that only copy rows, by measurement: none, the question's attention, keys and values, all rows,
/// reconstruction; with equal rows per layer and head, and with unequal ones.
const COPYING: [TestMethod; 7] = [
    spec("full", "", 400),
    spec("snapkv", "w=8", 90),
    spec("pyramidkv", "w=8", 84),
    spec("adakv", "w=8", 84),
    spec("keydiff", "", 84),
    spec("expected_attention", "", 84),
    spec("kvzip", "chunk=50,spread=model", 84),
];

/// Methods by the shape of their kept rows: all, equally many per head, unequally many.
const SHAPES: [TestMethod; 3] = [
    spec("full", "", 400),
    spec("snapkv", "w=8", 90),
    spec("adakv", "w=8", 84),
];

/// Asserts that rows that stay on the GPU equal, bit for bit and slot for slot, those that the host would upload.
fn assert_hosts_rows(arch: &'static str, cache: CacheType, methods: &[TestMethod]) {
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
    let prompt = LongPrompt::new(&there, cache, STEPS);
    for (&method, (expected, by_host)) in methods.iter().zip(prompt.shared(methods)) {
        let (found, ledger) = prompt.alone(method, None);
        let what = format!("{arch} {cache} {method:?}");
        assert!(found.logits == expected.logits, "{what}: other logits");
        assert!(found.votes == expected.votes, "{what}: other votes");
        assert!(found == expected, "{what}: other rows");
        assert!(
            ledger.kept_on_gpu >= found.kv_bytes,
            "{what}: they were downloaded"
        );
        assert_eq!(by_host.kept_on_gpu, 0, "{what}");
        assert_eq!(ledger.kept(), by_host.kept(), "{what}");
        assert!(ledger.kept_rows < by_host.kept_rows / 8, "{what}");
    }
}

// Every measurement with one cache type, and every shape of rows with each type and with sliding windows.

#[test]
fn f16_rows_on_the_gpu_equal_the_hosts() {
    assert_hosts_rows("llama", CacheType::F16, &COPYING);
    assert_hosts_rows("gemma2", CacheType::F16, &SHAPES);
}

#[test]
fn q8_0_rows_on_the_gpu_equal_the_hosts() {
    assert_hosts_rows("llama", CacheType::Q8_0, &SHAPES);
}

#[test]
fn q4_0_rows_on_the_gpu_equal_the_hosts() {
    if without_emulator() {
        return;
    }
    assert_hosts_rows("gemma2", CacheType::Q4_0, &SHAPES);
}

/// Transfers of a prefill and the start of its answer, with rows that stay on the GPU and with rows on the host.
#[test]
fn kept_rows_are_not_transferred() {
    for (arch, method) in [
        ("llama", spec("full", "", 400)),
        ("gemma2", spec("snapkv", "w=8", 90)),
    ] {
        let file = tiny(&quick(arch, 2));
        let (gpu, meter) = limited(1 << 30);
        let there = on_gpu(open(&file.path), &gpu);
        let prompt = LongPrompt::new(&there, CacheType::F16, STEPS);
        let transfers = |shared: bool| {
            let before = Transfers::of(&meter);
            let read = if shared {
                prompt.read_shared(&[method]).remove(0)
            } else {
                prompt.read(&*method.method(), method.budget, None)
            };
            let of_prefill = Transfers::of(&meter).since(before);
            let (rows, before) = (read.cache.kv_bytes(), Transfers::of(&meter));
            let mut decoder =
                Decoder::new(&there, &prompt.rope, read.evictor, read.cache).expect("memory");
            decoder.logits_of(&read.hidden).expect("logits");
            (of_prefill, Transfers::of(&meter).since(before), rows)
        };
        let (read, began, rows) = transfers(false);
        let (read_by_host, began_by_host, same) = transfers(true);
        let what = format!("{arch} {method:?}, of {rows} bytes of rows");
        assert_eq!(rows, same, "{what}");
        // Measurements of the methods, and the last row of the residual stream.
        assert!(read.downloaded < rows / 4, "{what}: {read:?}");
        assert!(
            read.downloaded + rows <= read_by_host.downloaded,
            "{what}: {read:?} {read_by_host:?}"
        );
        // Per row: its slot, its position and its destination.
        let heads = there.config().kv_heads * there.config().head_dim;
        let of_rows = 12 * rows / (4 * heads as u64);
        let of_layers = 1 << 10;
        assert!(
            read.uploaded <= read_by_host.uploaded + of_rows + of_layers,
            "{what}: {read:?} {read_by_host:?}"
        );
        assert!(
            began.uploaded + rows <= began_by_host.uploaded,
            "{what}: {began:?} {began_by_host:?}"
        );
        assert_eq!(began.downloaded, began_by_host.downloaded, "{what}");
    }
}

/// Methods that do more than copy rows, or modify them later, have their rows on the host.
#[test]
fn rows_that_the_host_modifies_are_on_the_host() {
    if without_emulator() {
        return;
    }
    let file = tiny(&quick("llama", 2));
    let there = on_gpu(open(&file.path), &emulated::device(86, 1 << 30));
    let prompt = LongPrompt::new(&there, CacheType::F16, STEPS);
    for method in [
        spec("h2o", "", 40),
        spec("tova", "", 40),
        spec("ems", "", 40),
        spec("treekv", "", 40),
        spec("cam", "base=snapkv", 40),
        spec("cam", "base=h2o", 40),
        spec("pyramidinfer", "variant=faithful", 100),
        spec("streaming_llm", "positions=reassigned", 40),
        spec("snapkv", "w=8,decode_cap=42", 40),
    ] {
        let read = prompt.read(&*method.method(), method.budget, None);
        assert_eq!(read.ledger.kept_on_gpu, 0, "{method:?}");
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
    // On the emulator, each type on another GPU.
    for (i, cache) in [CacheType::F16, CacheType::Q8_0].into_iter().enumerate() {
        let mut gpus = limited_ones(1 << 30);
        let (gpu, meter) = gpus.swap_remove(i % gpus.len());
        assert_allocated_once(&file, cache, gpu, &meter);
    }
}

fn assert_allocated_once(file: &Tiny, cache: CacheType, gpu: Device, meter: &Meter) {
    let engine = Engine::open(&file.path).expect("a model");
    let engine = engine.with_cache(cache).on_gpu(gpu).expect("memory");
    let model = engine.model();
    let weights = model.gpu().expect("a GPU").bytes();
    // Of a large GPU, the multiprocessors and the products reserve 26 MB; the rows of an answer this long take 31 MB.
    let (max_new_tokens, budget) = (60_000, 90);
    let method = MethodSpec::plain("snapkv");
    let shape = PromptShape::of(LONG);
    let rows = Some(Budget::Rows(budget));
    let expected = engine.expected_ledger(&shape, &method, rows, max_new_tokens);
    let expected = expected.expect("an estimate");
    assert!(expected.kept_on_gpu > (expected.gpu - weights) / 3);

    let rope = RopeTable::new(model.config(), LONG + max_new_tokens);
    let built = built("snapkv", "");
    let ids = ids(LONG, model.config().vocab);
    let read = Prefill::new(model, &ids, &*built, budget, max_new_tokens, &rope)
        .with_cache(cache)
        .run(&mut |_| (), &Stop::new())
        .expect("a prefill");
    assert_eq!(read.ledger.kept_on_gpu, expected.kept_on_gpu, "{cache}");
    assert_eq!(read.ledger.kept_rows, expected.kept_rows, "{cache}");
    let mut decoder = Decoder::new(model, &rope, read.evictor, read.cache).expect("memory");
    decoder.logits_of(&read.hidden).expect("logits");
    decoder.step(7, None).expect("logits");
    let (took, said) = (meter.most() as f64, expected.gpu as f64);
    assert!(
        (took / said - 1.0).abs() <= 0.05,
        "{cache}: {took} bytes of the GPU, announced {said}"
    );
}

/// Where prefill buffers and rows exceed the memory, the residual stream moves to the host first, and then the rows;
/// the answer is the same.
#[test]
fn rows_beyond_the_memory_are_on_the_host() {
    if without_emulator() {
        return;
    }
    let file = tiny(&long("llama"));
    let there = on_gpu(open(&file.path), &emulated::device(86, 1 << 30));
    let prompt = LongPrompt::new(&there, CacheType::F16, 2000);
    let method = spec("full", "", 400);
    let (expected, all) = prompt.alone(method, None);
    assert!(all.kept_on_gpu > 0);
    // For so few tokens, the residual stream is no larger on the GPU than two chunks of it; half of the rows is more.
    let (little, much) = (all.kept_on_gpu / 20, all.kept_on_gpu / 2);
    for (limit, stay) in [(all.gpu + little, true), (all.gpu - much, false)] {
        let (found, ledger) = prompt.alone(method, Some(limit));
        assert!(found == expected, "{limit} of {}", all.gpu);
        assert!(ledger.gpu <= limit, "{} of {limit}", ledger.gpu);
        assert_eq!(ledger.kept_on_gpu > 0, stay, "{limit} of {}", all.gpu);
        assert_eq!(ledger.kept(), all.kept(), "{limit} of {}", all.gpu);
    }
}

/// A GPU with memory for it reads wider chunks. The rows that are kept are the same. Attention adds in another order, and
/// products round their inputs to bytes, so the logits, up to 1.6, are not.
#[test]
fn chunks_are_as_wide_as_the_memory_allows() {
    if without_emulator() {
        return;
    }
    let file = tiny(&quick("llama", 2));
    let there = on_gpu(open(&file.path), &emulated::device(86, 1 << 30));
    let prompt = LongPrompt {
        ids: ids(WIDE, there.config().vocab),
        rope: RopeTable::new(there.config(), WIDE + STEPS),
        ..LongPrompt::new(&there, CacheType::F16, STEPS)
    };
    let method = spec("snapkv", "w=8", 90);
    let built = method.method();
    let read = |memory| prompt.read(&*built, method.budget, memory);
    let wide = read(None);
    // The most bytes that are too few for it.
    let limit = wide.ledger.gpu - 1;
    let narrow = read(Some(limit));
    assert_eq!((wide.chunk, narrow.chunk), (WIDE, Prefill::CHUNK));
    assert!(narrow.ledger.gpu <= limit);
    let (expected, found) = (prompt.answer(wide).0, prompt.answer(narrow).0);
    assert!(found.map == expected.map);
    for (found, expected) in found.logits.iter().zip(&expected.logits) {
        let apart = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
        let apart = apart.fold(0.0, f32::max);
        assert!(apart < 0.05, "{apart}");
    }
}

/// A cache can be downloaded after its answer, including the rows of the answer.
#[test]
fn a_cache_on_the_gpu_is_downloaded_after_its_answer() {
    if without_emulator() {
        return;
    }
    let file = tiny(&quick("llama", 2));
    let there = on_gpu(open(&file.path), &emulated::device(86, 1 << 30));
    let method = spec("snapkv", "w=8", 90);
    for cache in [CacheType::F16, CacheType::Q4_0] {
        let prompt = LongPrompt::new(&there, cache, STEPS);
        let (whole, _) = prompt.alone(method, None);
        let built = method.method();
        let read = prompt.read(&*built, method.budget, None);
        let mut kept = read.cache;
        for step in 0..STEPS {
            let mut decoder = Decoder::new(&there, &prompt.rope, None, kept).expect("memory");
            let logits = decoder.step(10 + step as u32, None).expect("logits");
            assert!(*logits == whole.logits[step + 1], "{cache}: token {step}");
            kept = decoder.into_cache();
        }
    }
}

/// An answer that finds no memory on the GPU is refused, and says so.
#[test]
fn an_answer_without_memory_is_refused() {
    if without_emulator() {
        return;
    }
    let file = tiny(&quick("llama", 2));
    let gpu = emulated::device(86, 1 << 30);
    let there = on_gpu(open(&file.path), &gpu);
    let prompt = LongPrompt::new(&there, CacheType::F16, STEPS);
    let built = built("snapkv", "w=8");
    let read = prompt.read(&*built, 90, None);
    let free = gpu.free_memory().expect("it answers");
    let _held = gpu.alloc_uninit::<u8>(free as usize).expect("memory");
    let decoder = Decoder::new(&there, &prompt.rope, read.evictor, read.cache);
    let refused = decoder.err().expect("no memory");
    assert!(refused.loses_gpu(), "{refused}");
}

/// A budget in bytes covers kept rows on the GPU and on the host.
#[test]
fn a_budget_in_bytes_covers_rows_on_the_gpu() {
    if without_emulator() {
        return;
    }
    let file = tiny(&long("llama"));
    let engine = || Engine::open(&file.path).expect("a model");
    let there = engine().on_gpu(emulated::device(86, 1 << 30));
    let there = there.expect("memory");
    let rows = |engine: &Engine| {
        let (built, budget) = (built("snapkv", "w=8"), Some(Budget::Bytes(400_000)));
        let (prompt, snapkv) = (PromptShape::of(3000), MethodSpec::plain("snapkv"));
        let rows = engine.rows_for(&*built, &PlanRequest::new(&prompt, &snapkv, budget, 100));
        rows.expect("some fit")
    };
    assert!((100..1000).contains(&rows(&there)), "{}", rows(&there));
    assert_eq!(rows(&there), rows(&engine()));
}
