//! "Will it fit?": the context lengths that `kept models inspect` reports for a given memory, against the memory of
//! real readings.

use std::ffi::OsString;
use std::path::PathBuf;

use kept_engine::policies::PromptShape;
use kept_engine::{Engine, MethodSpec};
use kept_models::testing::TinyLlama;
use kept_tests::golden;
use kept_tests::terminal::{Run, kept};
use serde_json::Value;

fn inspect(model: &std::path::Path, memory: &str, json: bool) -> Run {
    let mut arguments: Vec<OsString> = vec!["models".into(), "inspect".into()];
    arguments.extend([model.into(), "--memory".into(), memory.into()]);
    arguments.extend(json.then(|| "--json".into()));
    kept(arguments)
}

/// The lines of the table: rows (0 for the full cache), tokens, bytes, whether they are the whole context length.
fn lines(run: &Run) -> Vec<(u64, u64, u64, bool)> {
    let json: Value = run.json();
    let line = |line: &Value| {
        (
            line["rows"].as_u64().unwrap_or(0),
            line["tokens"].as_u64().expect("tokens"),
            line["peak_bytes"].as_u64().expect("bytes"),
            line["whole_context"].as_bool().expect("a flag"),
        )
    };
    let table = json["fit"]["lines"].as_array().expect("a table");
    table.iter().map(line).collect()
}

fn tiny() -> PathBuf {
    golden::model("group2-llama3-tied")
}

/// With its vocabulary in memory, as for a question.
fn engine() -> Engine {
    let engine = Engine::open(&tiny()).expect("the tiny model opens");
    engine.model().tokenizer().expect("a tokenizer");
    engine
}

#[test]
fn ample_memory_fits_the_whole_context() {
    let found = lines(&inspect(&tiny(), "64GiB", true));
    let context = engine().model().config().context as u64;
    assert!(found.len() > 1, "{found:?}");
    for (rows, tokens, _, whole) in found {
        assert!(whole && tokens == context - 1, "{rows} rows: {tokens}");
    }
}

#[test]
fn fewer_rows_fit_more_tokens_in_little_memory() {
    let engine = engine();
    // Enough for a part of the context length.
    let full = MethodSpec::plain("full");
    let context = engine.model().config().context;
    let free = |tokens| {
        let prompt = PromptShape::of(tokens);
        engine.expected_ledger(&prompt, &full, None, Engine::DEFAULT_MAX_TOKENS)
    };
    let memory = free(context / 2)
        .expect("a full cache has no budget")
        .peak();
    let found = lines(&inspect(
        &tiny(),
        &format!("{}KiB", memory as f64 / 1024.0),
        true,
    ));
    assert_eq!(
        found[0].1,
        context as u64 / 2,
        "the full cache reads just that"
    );
    assert_eq!(found[0].2, memory);
    let fewer = found.last().expect("a table");
    assert!(fewer.1 > found[0].1, "{found:?}");
    assert!(found.iter().all(|line| line.2 <= memory), "{found:?}");
    let text = inspect(&tiny(), &format!("{}KiB", memory as f64 / 1024.0), false);
    assert!(text.stdout.contains("then memory ends"), "{}", text.stdout);
}

#[test]
fn too_little_memory_names_the_missing_bytes() {
    let run = inspect(&tiny(), "1KiB", false);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(run.stdout.contains("are missing"), "{}", run.stdout);
    let run = inspect(&tiny(), "12%", false);
    assert_ne!(run.code, Some(0));
    assert!(
        run.stderr.contains("--memory takes a size"),
        "{}",
        run.stderr
    );
}

#[test]
fn the_largest_context_peaks_as_expected() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("larger.gguf");
    let model = TinyLlama {
        layers: 4,
        width: 1024,
        ffn: 3072,
        q_heads: 16,
        kv_heads: 8,
        head_dim: 64,
        kind: "Q8_0",
        ..TinyLlama::default()
    };
    model.write(&path).expect("the model is written");
    for (method, budget) in [("full", "1"), ("snapkv", "128")] {
        let mut arguments: Vec<OsString> = vec!["bench".into(), "--json".into()];
        arguments.extend(["--model".into(), path.clone().into()]);
        arguments.extend(["--method", method, "--budget", budget].map(OsString::from));
        arguments.extend(["--prompt-tokens", "1500", "--decode-tokens", "4"].map(OsString::from));
        let run = kept(arguments);
        let found: Value = run.json();
        let number = |name: &str| found[name].as_f64().expect("a number");
        let (Some(peak), Some(base)) = (found["peak_bytes"].as_f64(), found["base_bytes"].as_f64())
        else {
            println!("skipped: this system does not tell a process's memory");
            return;
        };
        let expected = base + number("ledger_peak_bytes");
        let off = (expected - peak).abs() / peak;
        assert!(
            off < 0.1,
            "{method}: {expected} expected, {peak} measured, {base} before"
        );
    }
}
