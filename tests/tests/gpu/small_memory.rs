//! A model or a document too large for a GPU: layers that do not fit are read from the host, and so is the residual
//! stream; the answer equals that of a large enough GPU bit for bit. On the emulator.

use crate::gpus::*;
use kept_cuda::{Device, Meter, emulated};
use kept_engine::documents::Document;
use kept_engine::kernels::{CacheType, PackedRows, Stop, format_bytes};
use kept_engine::models::{Model, RopeTable};
use kept_engine::policies::{Budget, PromptShape};
use kept_engine::vault::Vaults;
use kept_engine::{Ask, Engine, EngineError, Limits, MethodSpec, Prefill, Streaming};
use kept_engine_cuda::OnGpu;
use kept_models::testing::{MetaValue, TinyLlama};
use kept_tests::method_spec::{TestMethod, spec};
use kept_tests::vaults::Place;

const ROOMY: u64 = 1 << 30;

/// With layers of a megabyte, so that layers, not buffers, exceed the memory.
fn heavy(arch: &'static str, layers: usize) -> TinyLlama {
    TinyLlama {
        width: 256,
        ffn: 1024,
        ..quick(arch, layers)
    }
}

/// Memory for about half of a model's layers.
fn half(path: &std::path::Path) -> u64 {
    let whole = open(path).on_gpu(emulated::device(86, ROOMY).dry_run());
    whole.expect("memory").gpu().expect("a GPU").bytes()
}

fn bytes(model: &Model) -> (u64, u64) {
    let gpu = model.gpu().expect("a GPU");
    (gpu.bytes(), gpu.host_bytes())
}

/// A method that decodes as a CUDA graph, and one that does not.
const GRAPH: TestMethod = spec("snapkv", "w=8", 24);
const HOST_STEPPED: TestMethod = spec("h2o", "", 24);

/// Both kinds of decode, and an architecture with norms behind attention and feed-forward.
#[test]
fn layers_beyond_the_memory_stay_on_the_host() {
    if without_emulator() {
        return;
    }
    for (arch, methods) in [("llama", &[GRAPH, HOST_STEPPED][..]), ("gemma2", &[GRAPH])] {
        let file = tiny(&heavy(arch, 4));
        let whole = on_gpu(open(&file.path), &emulated::device(86, ROOMY));
        let memory = half(&file.path);
        let (gpu, meter) = emulated::fault_injecting(86, memory);
        let parted = on_gpu(open(&file.path), &gpu);
        let ((all, none), (there, away)) = (bytes(&whole), bytes(&parted));
        assert_eq!(none, 0);
        assert!(there + away >= all && away > all / 4 && there > all / 4);
        for &method in methods {
            assert_same_answer(&whole, &parted, method, 2);
        }
        assert!(meter.most() <= memory);
    }
}

/// Asserts that a model with layers on the host answers like the whole one, bit for bit.
#[track_caller]
fn assert_same_answer(whole: &Model, parted: &Model, method: TestMethod, steps: usize) {
    let ids = ids(40, whole.config().vocab);
    let expected = run(whole, CacheType::F16, method, &ids, Decode::Greedy(steps));
    let found = run(parted, CacheType::F16, method, &ids, Decode::Greedy(steps));
    assert_eq!(found.map, expected.map, "{method:?}");
    assert_eq!(found.tokens, expected.tokens, "{method:?}");
    assert!(found.logits == expected.logits, "{method:?}");
}

/// The same on this computer's GPU, or on an emulated GPU that reserves as much memory as a large one.
#[test]
fn layers_beyond_a_large_gpus_memory_stay_on_the_host() {
    if is_emulated(&gpus()[0]) {
        // The emulator is slow at decode, and prefill is the same under both methods.
        assert_layers_are_parted(emulated::large, &[GRAPH], 0);
    } else {
        assert_layers_are_parted(limited, &[GRAPH, HOST_STEPPED], 3);
    }
}

/// On the part of a GPU that `limited` gives; answers of `steps` tokens.
fn assert_layers_are_parted(
    limited: impl Fn(u64) -> (Device, Meter),
    methods: &[TestMethod],
    steps: usize,
) {
    let file = tiny(&TinyLlama {
        // Two layers are then larger than the 26 MB that a large GPU's products and multiprocessors reserve plus the
        // buffers of a pass, so that only layers exceed the memory.
        ffn: 48 << 10,
        ..heavy("llama", 4)
    });
    let whole = on_gpu(open(&file.path), &limited(ROOMY).0);
    let all = bytes(&whole).0;
    // Reduces the memory until some layers do not fit.
    let memory = (0..40u64)
        .map(|step| all * (60 - step) / 30)
        .find(|&memory| {
            let there = open(&file.path).on_gpu(limited(memory).0.dry_run());
            there.is_ok_and(|there| bytes(&there).1 > all / 5)
        });
    let memory = memory.expect("a part of them stays");
    let (gpu, meter) = limited(memory);
    let parted = on_gpu(open(&file.path), &gpu);
    for &method in methods {
        assert_same_answer(&whole, &parted, method, steps);
    }
    assert!(meter.most() <= memory);
}

/// Output of a prefill with at most `memory` bytes of the GPU, and the bytes that it takes.
fn read(model: &Model, method: TestMethod, memory: Option<u64>) -> (Vec<f32>, u64) {
    let ids = ids(150, model.config().vocab);
    let rope = RopeTable::new(model.config(), ids.len());
    let built = method.method();
    let outcome = Prefill::new(model, &ids, &*built, method.budget, 0, &rope)
        .with_chunk(48)
        .with_cache(CacheType::F16)
        .with_gpu_memory(memory)
        .run(&mut |_| (), &Stop::new())
        .unwrap_or_else(|e| panic!("{method:?}: {e}"));
    (outcome.hidden, outcome.ledger.gpu)
}

/// Also under a method that drops tokens between layers, and with sliding windows.
#[test]
fn a_residual_stream_beyond_the_memory_stays_on_the_host() {
    for (arch, method) in [
        ("llama", spec("snapkv", "w=8", 60)),
        ("llama", spec("pyramidinfer", "variant=faithful", 150)),
        ("gemma2", spec("h2o", "", 60)),
    ] {
        let file = tiny(&heavy(arch, 2));
        // Asynchronous copies run as late as allowed, and immediately.
        let mut ways = vec![gpus().remove(0)];
        if !gpu_only() {
            ways.push(emulated::with_eager_copies(86, ROOMY));
        }
        for gpu in ways {
            let model = on_gpu(open(&file.path), &gpu);
            let (expected, needed) = read(&model, method, None);
            let (found, less) = read(&model, method, Some(needed - 1));
            assert!(found == expected, "{arch} {method:?}");
            let (stream, stages) = (150 * 256 * 4, 2 * 48 * 256 * 4);
            assert_eq!(needed - less, stream - stages, "{arch} {method:?}");
        }
    }
}

fn ask(engine: &Engine, memory: Option<u64>) -> Result<kept_engine::Answer, EngineError> {
    ask_with(engine, memory, 12, None)
}

fn ask_with(
    engine: &Engine,
    memory: Option<u64>,
    times: usize,
    vault: Option<Vaults<'_>>,
) -> Result<kept_engine::Answer, EngineError> {
    let text = "the word and ".repeat(times).into_bytes();
    let document = Document::from_bytes("note.txt", text).expect("a text");
    let method = MethodSpec::plain("snapkv");
    let ask = Ask {
        budget: Some(Budget::Rows(40)),
        max_tokens: 2,
        limits: Limits {
            memory,
            streaming: Streaming::Off,
        },
        vault,
        ..Ask::new(&document, "Who?", &method)
    };
    engine.ask(&ask, &mut |_| (), &Stop::new())
}

/// The answer's notes list layers on the host, and under a memory limit the residual stream moves to the host before
/// rows are evicted.
#[test]
fn a_note_lists_layers_on_the_host() {
    if without_emulator() {
        return;
    }
    let file = tiny(&heavy("llama", 4));
    let open = || Engine::open(&file.path).expect("a model");
    let whole = open().on_gpu(emulated::device(86, ROOMY)).expect("memory");
    let expected = ask(&whole, None).expect("an answer");
    let said = |answer: &kept_engine::Answer| {
        let mut notes = answer.notes.iter();
        notes.any(|note| note.to_string().contains("do not fit emulated sm_86"))
    };
    assert!(!said(&expected), "{:?}", expected.notes);

    let limit = expected.ledger.gpu - 1;
    let limited = ask(&whole, Some(limit)).expect("an answer");
    assert_eq!(limited.text, expected.text);
    assert_eq!(limited.rows_per_layer, expected.rows_per_layer);
    assert!(limited.ledger.gpu <= limit);

    let parted = open().on_gpu(emulated::device(86, half(&file.path)));
    let parted = parted.expect("room for half");
    let found = ask(&parted, None).expect("an answer");
    assert_eq!(found.text, expected.text);
    assert!(said(&found), "{:?}", found.notes);
    // Layers on the host count as host memory.
    let away = bytes(parted.model()).1;
    assert_eq!(found.ledger.weights, expected.ledger.weights + away);
}

/// A later question uploads the document's rows packed as in the vault and downloads none: the kept ones stay on the
/// GPU.
#[test]
fn vault_rows_are_uploaded_packed_and_none_downloaded() {
    if without_emulator() {
        return;
    }
    let (file, place) = (tiny(&quick("llama", 2)), Place::default());
    let (gpu, meter) = emulated::fault_injecting(86, ROOMY);
    let engine = Engine::open(&file.path).expect("a model");
    let engine = engine.on_gpu(gpu).expect("memory");
    let copied = |times: usize| {
        let vaults = Vaults::new(&place.vaults, PackedRows::Q8_0);
        let before = Transfers::of(&meter);
        let answer = ask_with(&engine, None, times, Some(vaults)).expect("an answer");
        (answer, Transfers::of(&meter).since(before))
    };
    let times = 100;
    copied(times);
    let (answer, transfers) = copied(times);
    let known = answer.vault.tokens_from_vault;
    assert!(known > 300, "{known} tokens of a vault");
    // Two layers with one head of 64 numbers: keys and values as f16. In addition, RoPE tables and the question are
    // uploaded, and measurements downloaded.
    let halves = 2 * 2 * (known * 64 * 2) as u64;
    assert!(
        transfers.downloaded < halves / 4 && transfers.uploaded < halves * 34 / 64 + 280_000,
        "{transfers:?}, of rows of {halves} bytes"
    );
    assert!(
        transfers.downloaded < answer.report.kv_bytes,
        "{transfers:?}, kept rows have {}",
        answer.report.kv_bytes
    );
}

/// A sparse file with the shape of an 8B model in Q4_K_M, mixed as in llama.cpp, whose matrices are holes.
fn eight_billion() -> (tempfile::TempDir, std::path::PathBuf) {
    let (layers, width, ffn, vocab) = (32, 4096, 14336, 128_256);
    let mut w = TinyLlama {
        layers: 0,
        width: 256,
        head_dim: 128,
        context: 1 << 18,
        ..TinyLlama::default()
    }
    .writer();
    for (key, value) in [
        ("block_count", layers),
        ("embedding_length", width),
        ("feed_forward_length", ffn),
        ("attention.head_count", 32),
        ("attention.head_count_kv", 8),
    ] {
        w.set(&format!("llama.{key}"), MetaValue::Whole(value as u32));
    }
    let tokens: Vec<String> = (0..vocab).map(|i| format!("t{i}")).collect();
    w.set(
        "tokenizer.ggml.token_type",
        MetaValue::Wholes(vec![1; vocab]),
    );
    w.set("tokenizer.ggml.tokens", MetaValue::Texts(tokens));
    w.set("tokenizer.ggml.merges", MetaValue::Texts(Vec::new()));
    w.zeros("token_embd.weight", [vocab, width], "Q4_K");
    w.zeros("output.weight", [vocab, width], "Q6_K");
    w.tensor("output_norm.weight", &[width], "F32", &vec![1.0; width]);
    for layer in 0..layers {
        let more = layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
        let delicate = if more { "Q6_K" } else { "Q4_K" };
        for (part, shape, kind) in [
            ("attn_q", [width, width], "Q4_K"),
            ("attn_k", [1024, width], "Q4_K"),
            ("attn_v", [1024, width], delicate),
            ("attn_output", [width, width], "Q4_K"),
            ("ffn_gate", [ffn, width], "Q4_K"),
            ("ffn_up", [ffn, width], "Q4_K"),
            ("ffn_down", [width, ffn], delicate),
        ] {
            w.zeros(&format!("blk.{layer}.{part}.weight"), shape, kind);
        }
        for part in ["attn_norm", "ffn_norm"] {
            let name = format!("blk.{layer}.{part}.weight");
            w.tensor(&name, &[width], "F32", &vec![1.0; width]);
        }
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("eight.gguf");
    w.write(&path).expect("written");
    (folder, path)
}

/// 128K tokens on an 8B model, by dry run: nothing is allocated or read. A GPU of 8 GiB holds everything, one of 6 GiB
/// all but the residual stream and a few layers.
#[test]
fn an_8b_model_with_128k_tokens_fits_8_gib() {
    if without_emulator() {
        return;
    }
    let (_folder, path) = eight_billion();
    for (gib, all_there) in [(8, true), (6, false)] {
        // Memory left by the driver and the kernels' code.
        let free = (gib << 30) - (600 << 20);
        let engine = Engine::open(&path).expect("a model");
        let there = engine.on_gpu(emulated::device(86, free).dry_run());
        let there = there.expect("as if");
        let (weights, away) = bytes(there.model());
        let method = MethodSpec::plain("snapkv");
        let shape = PromptShape::of(128 << 10);
        let ledger = there.expected_ledger(&shape, &method, Some(Budget::Rows(2048)), 512);
        let taken = ledger.expect("an estimate").gpu;
        let report = format!(
            "of {gib} GiB {} are taken, {} of them weights; {} of weights are on the host",
            format_bytes(taken),
            format_bytes(weights),
            format_bytes(away)
        );
        assert!(taken <= free, "{report}");
        assert_eq!(away == 0, all_there, "{report}");
        // The residual stream of that many tokens.
        let beside = taken - weights;
        assert_eq!(beside > 2 << 30, all_there, "{report}");
        eprintln!("{report}");
    }
}
