//! Every architecture against transformers (logits) and llama.cpp (answers), on tiny random models that exercise each
//! peculiarity within a hundred tokens. `golden/architectures.py` generates them and asserts that omitting any
//! peculiarity moves the logits.

use std::ffi::OsString;

use kept_engine::documents::Document;
use kept_engine::kernels::{CacheType, Stop};
use kept_engine::models::LayerKind;
use kept_engine::policies::{Budget, PromptShape, build};
use kept_engine::{Ask, Engine, Event, MemoryNow, MethodSpec, PlanRequest};
use kept_tests::compare::{apart, assert_same};
use kept_tests::engine::{Told, open, read_and_step};
use kept_tests::golden::{self, ARCHITECTURES, Tensors, Unpacked, ids};
use kept_tests::terminal::kept;

/// Relative to the largest logit of a row, at F32. Omitting a bias, a norm, a cap or a sliding window moves them by at
/// least 5e-3.
const BOUND: f32 = 1e-4;

/// `kept logits` of `ids`, with additional `flags`.
fn logits_of(model: &Unpacked, ids: &[u32], flags: &[&str]) -> Vec<Vec<f32>> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let output = folder.path().join("logits.safetensors");
    let tokens = ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let mut arguments: Vec<OsString> = vec!["logits".into(), "--model".into()];
    arguments.extend([model.path().into(), "--tokens".into(), tokens.into()]);
    arguments.extend(["--output".into(), output.clone().into()]);
    arguments.extend(flags.iter().map(OsString::from));
    kept(arguments).succeeded();
    Tensors::read(&output).rows("logits")
}

fn assert_golden(stem: &str, prefix: &str, flags: &[&str]) {
    let (model, tensors) = (Unpacked::architecture(stem), Tensors::architecture(stem));
    let name = |what: &str| format!("{prefix}{what}");
    let ids = tensors.whole(&name("ids"));
    let found = logits_of(&model, &ids, flags);
    let rows = tensors.whole(&name("rows"));
    for (&row, reference) in rows.iter().zip(&tensors.rows(&name("logits"))) {
        let what = format!("{stem} {prefix} row {row} of {}", ids.len());
        assert_same(&found[row as usize], reference, BOUND, &what);
    }
}

#[test]
fn logits_equal_those_of_transformers() {
    for stem in ARCHITECTURES {
        assert_golden(stem, "", &[]);
    }
}

#[test]
fn short_texts_use_the_short_rope_factors() {
    assert_golden("phi-4-mini", "short_", &[]);
}

/// Qwen beyond its trained context, by a flag: the file has no scaling parameters.
#[test]
fn yarn_logits_equal_those_of_transformers() {
    assert_golden("qwen2", "yarn_", &["--rope", "yarn:4"]);
}

#[test]
fn decode_and_chunks_equal_one_prefill() {
    for stem in ARCHITECTURES {
        let (file, tensors) = (Unpacked::architecture(stem), Tensors::architecture(stem));
        let model = open(&file.path());
        let (ids, rows) = (tensors.whole("ids"), tensors.whole("rows"));
        let reference = tensors.rows("logits");
        let run = |prompt: usize, chunk: usize| {
            let built = build("full", &[]).expect("full");
            let (prompt, steps) = ids.split_at(prompt);
            read_and_step(&model, &*built, 512, chunk, prompt, steps).logits
        };
        // Shorter than the sliding windows, so that their rings fill during decode; and longer.
        for prompt in [20, 70] {
            let stepped = run(prompt, 16);
            for (row, reference) in rows.iter().zip(&reference) {
                if let Some(step) = (*row as usize + 1).checked_sub(prompt) {
                    let what = format!("{stem} row {row}, step {step} after {prompt}");
                    assert_same(&stepped[step], reference, BOUND, &what);
                }
            }
        }
        let whole = run(ids.len(), 512);
        for chunk in [1, 7, 64, 100] {
            let apart = apart(&run(ids.len(), chunk)[0], &whole[0]);
            assert!(apart < 1e-5, "{stem} in chunks of {chunk}: {apart:.1e}");
        }
    }
}

/// Only global layers evict, with any set of rows; the others keep their window. Against transformers with the evicted
/// keys masked.
#[test]
fn decode_after_eviction_equals_transformers() {
    const PROMPT: usize = 80;
    for stem in ARCHITECTURES {
        let (file, tensors) = (Unpacked::architecture(stem), Tensors::architecture(stem));
        let model = open(&file.path());
        let ids = tensors.whole("steps_ids");
        let (prompt, steps) = ids.split_at(PROMPT);
        let full: Vec<usize> = model.config().full_layers().collect();
        let kept = full.iter();
        let kept: Vec<_> = kept
            .map(|layer| tensors.whole_rows(&format!("steps_kept_{layer}")))
            .collect();
        for chunk in [512, 17] {
            let built = Told(kept.clone());
            let found = read_and_step(&model, &built, 24, chunk, prompt, steps);
            for (told, &layer) in kept.iter().zip(&full) {
                assert_eq!(&found.kept[layer], told, "{stem}, layer {layer}");
            }
            for (layer, kind) in model.config().kinds.iter().enumerate() {
                if let Some(window) = kind.window() {
                    let last: Vec<u32> = ((PROMPT - window) as u32..PROMPT as u32).collect();
                    assert!(found.kept[layer].iter().all(|head| *head == last), "{stem}");
                }
            }
            let expected = tensors.rows("steps_logits");
            for (step, (row, reference)) in found.logits.iter().zip(&expected).enumerate() {
                assert_same(row, reference, BOUND, &format!("{stem} step {step}"));
            }
        }
    }
}

/// The whole program: document and question as files and flags; the answer equals llama.cpp's word for word.
#[test]
fn kept_ask_answers_like_llama_cpp() {
    let golden = golden::json("architectures/llama_cpp.json");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("document.txt");
    for stem in ARCHITECTURES {
        let model = Unpacked::architecture(stem);
        let path = model.path();
        let answers = golden[stem].as_array().expect("answers");
        assert!(answers.len() >= 2, "{stem}");
        for answer in answers {
            let text = |key: &str| answer[key].as_str().expect("a text");
            std::fs::write(&file, text("document")).expect("the document is written");
            let run = kept([
                "ask".as_ref(),
                "--json".as_ref(),
                "--model".as_ref(),
                path.as_os_str(),
                "--document".as_ref(),
                file.as_os_str(),
                "--question".as_ref(),
                text("question").as_ref(),
                "--method".as_ref(),
                "full".as_ref(),
                "--temperature".as_ref(),
                "0".as_ref(),
                "--max-tokens".as_ref(),
                ids(&answer["ids"]).len().to_string().as_ref(),
            ]);
            let found = run.json();
            assert_eq!(found["prompt_tokens"], ids(&answer["prompt"]).len());
            assert_eq!(
                found["answer"],
                text("text"),
                "{stem}: {}",
                text("question")
            );
        }
    }
}

/// Records the events of a question.
#[derive(Default)]
struct Heard {
    layers: Vec<usize>,
    memory: Vec<MemoryNow>,
}

impl Heard {
    fn receive(&mut self, event: Event<'_>) {
        match event {
            Event::Layer { layer, kept } => {
                assert!(kept.window().is_none(), "a method does not cut windows");
                self.layers.push(layer);
            }
            Event::Progress(_, memory) => self.memory.push(memory),
            _ => {}
        }
    }
}

/// Events list the evicting layers, numbered as the policy sees them, and include the sliding windows in the memory.
#[test]
fn events_list_the_evicting_layers() {
    let file = Unpacked::architecture("gemma3");
    let engine = Engine::open(&file.path()).expect("the model opens");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("document.txt");
    let text = "The nets are mended in the morning, and the tea is strong. ".repeat(4);
    std::fs::write(&path, text).expect("the document is written");
    let document = Document::open(&path).expect("a text");
    let method = MethodSpec::plain("streaming_llm");
    let ask = Ask {
        budget: Some(Budget::Rows(30)),
        max_tokens: 20,
        ..Ask::new(&document, "When?", &method)
    };
    let mut heard = Heard::default();
    let answer = engine
        .ask(&ask, &mut |event| heard.receive(event), &Stop::new())
        .expect("an answer");
    let full = engine.model().config().full_layers().count();
    assert_eq!(heard.layers[..full], [0, 1]);
    assert!(heard.layers.iter().all(|&layer| layer < full));
    assert!(heard.layers.len() > full, "told again while rows leave");
    let n = answer.prompt.len();
    assert_eq!(answer.report.kv_bytes_full, engine.kv_bytes_full(n));
    let last = heard.memory.last().expect("progress is told");
    let windows = engine.window_bytes(n);
    assert_eq!(last.kept, windows + 30 * engine.bytes_per_row());
    assert_eq!(
        last.kept_full,
        engine.kv_bytes_full(n + answer.report.answer_tokens)
    );
    assert_eq!(answer.map.compressed_rows(), [30, 30]);
    assert_eq!(answer.rows_per_layer.len(), engine.model().config().layers);
}

/// The accounting includes sliding windows, in estimates and in results, in rows and in bytes, under every method.
#[test]
fn memory_and_map_include_sliding_windows() {
    for stem in ["gemma2", "gemma3", "gemma4-dense", "gemma4-e"] {
        let file = Unpacked::architecture(stem);
        let engine = Engine::open(&file.path()).expect("the model opens");
        let engine = engine.with_cache(CacheType::F32);
        let config = engine.model().config();
        let (layers, full) = (config.layers, config.full_layers().count());
        let (n, max_new_tokens) = (150, 9);
        let a_row = (config.kv_heads * config.head_dim * 2 * 4) as u64;
        let windows = |tokens: usize| -> u64 {
            let of_layer = |kind: &LayerKind| {
                let rows = kind.window().map_or(0, |window| window.min(tokens));
                (rows * kind.kv_heads * kind.head_dim * 2 * 4) as u64
            };
            config.kinds.iter().map(of_layer).sum()
        };
        assert!(full + config.sharing_layers() < layers, "{stem}");
        assert_eq!(engine.bytes_per_row(), full as u64 * a_row);
        for tokens in [n, 5] {
            assert_eq!(engine.window_bytes(tokens), windows(tokens), "{stem}");
        }
        let all = engine.kv_bytes_full(n);
        assert_eq!(all, full as u64 * n as u64 * a_row + engine.window_bytes(n));
        let ids: Vec<u32> = (0..n as u32).map(|i| 3 + i * 7 % 300).collect();
        for (name, budget) in [("full", 0), ("snapkv", 20), ("streaming_llm", 20)] {
            let method = MethodSpec::plain(name);
            let bytes = engine.window_bytes(n) + budget * engine.bytes_per_row();
            // Bytes of the rows alone, sliding windows first; a budget in bytes also covers tables and the answer's
            // buffers (`engine/src/plan/memory.rs`).
            let alone = engine.budget_rows(Budget::Bytes(bytes), n);
            assert_eq!(alone.ok(), (budget > 0).then_some(20), "{stem} {name}");
            let budget = (budget > 0).then_some(Budget::Rows(20));
            let rows = budget.map_or(Engine::default_rows(n), |_| 20);
            let prompt = PromptShape::of(n);
            let estimate = engine
                .estimate(&PlanRequest::new(&prompt, &method, budget, max_new_tokens))
                .expect("known");
            let expected = engine
                .expected_ledger(&prompt, &method, budget, max_new_tokens)
                .expect("known");
            let built = method.build().expect("a method");
            let rope = kept_engine::models::RopeTable::new(config, n + max_new_tokens);
            let outcome = kept_engine::Prefill::new(
                engine.model(),
                &ids,
                &*built,
                rows,
                max_new_tokens,
                &rope,
            )
            .run(&mut |_| (), &Stop::new())
            .expect("the prompt is read");
            assert_eq!(outcome.cache.kv_bytes(), estimate.kv_bytes, "{stem} {name}");
            assert_eq!(estimate.kv_bytes_full, all);
            if budget.is_some() {
                assert_eq!((rows, estimate.kv_bytes), (20, bytes), "{stem} {name}");
            }
            let ledger = outcome.ledger;
            assert_eq!(ledger.kept_rows, expected.kept_rows, "{stem} {name}");
            assert_eq!(ledger.reading(), expected.reading(), "{stem} {name}");
            let windows: Vec<_> = config.kinds.iter().map(|kind| kind.window()).collect();
            assert_eq!(outcome.map.windows, windows);
            assert_eq!(outcome.map.holders(), full * config.kv_heads);
            let rows = outcome.map.rows_per_layer();
            let held = |(rows, w): (&usize, &Option<usize>)| w.is_none_or(|w| *rows == w);
            assert!(rows.iter().zip(&windows).all(held), "{rows:?}");
            let most = outcome.map.counts().into_iter().max();
            assert_eq!(most, Some((full * config.kv_heads) as u32), "{stem} {name}");
        }
        let refused = engine.budget_rows(Budget::Bytes(1000), n).unwrap_err();
        let refused = refused.to_string();
        assert!(refused.contains("sliding-window"), "{refused}");
    }
}
