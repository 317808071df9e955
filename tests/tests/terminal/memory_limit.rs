//! Memory budgets, and the automatic choice of a method: the choice for a question holds, a question that does not fit
//! is refused with the missing amount, and a failed allocation ends in an error message.

use std::ffi::OsString;
#[cfg(unix)]
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kept_models::testing::TinyLlama;
use kept_tests::golden;
use kept_tests::terminal::{Run, assert_peak, kept, program};
use serde_json::Value;

/// A model of some size: small enough to be quick, large enough that a tenth of it exceeds the program's own pages.
fn model(folder: &Path) -> PathBuf {
    let path = folder.join("larger.gguf");
    let model = TinyLlama {
        layers: 3,
        width: 1024,
        ffn: 3072,
        q_heads: 16,
        kv_heads: 8,
        head_dim: 64,
        kind: "Q8_0",
        ..TinyLlama::default()
    };
    model.write(&path).expect("the model is written");
    path
}

/// A part of the sample of about 1,000 tokens under the larger model's tokenizer, whose tokens are short.
fn part(folder: &Path) -> PathBuf {
    let path = folder.join("part.txt");
    let text = std::fs::read_to_string(sample()).expect("the sample");
    std::fs::write(&path, &text[..1_000]).expect("a shorter document");
    path
}

fn sample() -> PathBuf {
    golden::repository().join("assets/sample.txt")
}

fn ask(model: Option<&Path>, document: &Path, words: &[&str]) -> Run {
    let mut arguments: Vec<OsString> = vec!["ask".into(), "--json".into()];
    arguments.extend(["--document".into(), document.into()]);
    arguments.extend(["--question", "What is it about?", "--max-tokens", "8"].map(OsString::from));
    arguments.extend(
        model
            .iter()
            .flat_map(|m| ["--model".into(), m.as_os_str().to_owned()]),
    );
    arguments.extend(words.iter().map(Into::into));
    kept(arguments)
}

fn bytes(value: &Value) -> f64 {
    value.as_f64().expect("bytes")
}

/// Bytes of the kept rows, tables and the answer's buffers.
fn held(answer: &Value) -> f64 {
    let ledger = &answer["ledger"];
    ["kept_rows", "tables", "decode"]
        .iter()
        .map(|part| bytes(&ledger[part]))
        .sum()
}

/// A budget in bytes is used up and not exceeded, also for methods with tables, and for a document in streaming mode.
#[test]
fn a_byte_budget_covers_the_whole_cache() {
    let folder = tempfile::tempdir().expect("a folder");
    let long = folder.path().join("long.txt");
    let text = std::fs::read_to_string(sample()).expect("the sample");
    std::fs::write(&long, text.repeat(4)).expect("a long document");
    for (document, method) in [
        (sample(), "snapkv"),
        (sample(), "h2o"),
        (sample(), "ems"),
        (sample(), "kvzip"),
        (long.clone(), "treekv"),
        (long, "ems"),
    ] {
        let words = ["--budget", "1500KiB", "--method", method];
        let answer = ask(None, &document, &words).json();
        let budget = 1500.0 * 1024.0;
        let held = held(&answer);
        assert!(
            held <= budget && held > 0.95 * budget,
            "{method}: {held} of {budget}"
        );
    }
    let refused = ask(
        None,
        &sample(),
        &["--budget", "60KiB", "--method", "snapkv"],
    );
    refused.refused(&["60.0 KiB", "more", "give at least"]);
}

/// With `--memory`, rows and chunk size are chosen, and the announced memory is what the process used.
#[test]
fn a_memory_limit_holds_for_the_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let (model, document) = (model(folder.path()), part(folder.path()));
    let within = |memory: f64, method: &str| {
        let memory = format!("{}KiB", (memory / 1024.0) as u64);
        ask(
            Some(&model),
            &document,
            &["--memory", &memory, "--method", method],
        )
    };
    let whole = within(4e9, "snapkv").json();
    let all = bytes(&whole["expected_peak_bytes"]);
    assert_eq!(
        rows(&whole),
        bytes(&whole["prompt_tokens"]),
        "everything fits"
    );
    let cache = bytes(&whole["kv_bytes_full"]);
    for (less, method) in [(0.3, "snapkv"), (0.6, "h2o")] {
        let limit = all - less * cache;
        let answer = within(limit, method).json();
        let expected = bytes(&answer["expected_peak_bytes"]);
        assert!(expected <= limit, "{method}: {expected} of {limit}");
        // Smaller chunks are tried first; the rest is saved on rows.
        assert!(rows(&answer) > 0.2 * rows(&whole), "{method}");
        let notes = answer["notes"].to_string();
        assert!(
            notes.contains("of memory")
                && notes.contains("at the worst moment")
                && notes.contains("nats of KL divergence"),
            "{notes}"
        );
        if let Some(peak) = answer["peak_bytes"].as_f64() {
            assert_peak(expected, peak, method);
        }
    }
    // `auto` says what its choice costs, so the limit does not say it again.
    let chosen = within(all - 0.6 * cache, "auto").json();
    let notes = chosen["notes"].to_string();
    assert!(
        notes.contains("at the worst moment") && !notes.contains("nats of KL divergence"),
        "{notes}"
    );
    within(bytes(&whole["ledger"]["weights"]), "snapkv").refused(&["more", "weights"]);
    ask(Some(&model), &document, &["--memory", "half"]).refused(&["--memory", "half"]);
}

fn rows(answer: &Value) -> f64 {
    let layers = answer["rows_per_layer"].as_array().expect("layers");
    layers.iter().map(bytes).sum::<f64>() / layers.len() as f64
}

/// The expected peak is the measured one, for methods and budgets, with and without streaming mode.
#[test]
fn the_expected_peak_equals_the_measured_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = model(folder.path());
    for words in [
        ["full", "--budget", "100%", "--cache", "f32"],
        ["full", "--budget", "100%", "--cache", "f16"],
        ["full", "--budget", "100%", "--cache", "q8_0"],
        ["full", "--budget", "100%", "--cache", "q4_0"],
        ["snapkv", "--budget", "10%", "--cache", "q8_0"],
        ["ems", "--budget", "25%", "--cache", "f16"],
        ["kvzip", "--budget", "25%", "--cache", "f16"],
        ["h2o", "--budget", "50%", "--cache", "q4_0"],
        ["treekv", "--streaming", "on", "--cache", "f16"],
        ["tova", "--streaming", "on", "--cache", "q8_0"],
        ["ems", "--streaming", "on", "--cache", "f16"],
    ] {
        let words: Vec<&str> = std::iter::once("--method").chain(words).collect();
        let answer = ask(Some(&model), &part(folder.path()), &words).json();
        let expected = bytes(&answer["expected_peak_bytes"]);
        let Some(peak) = answer["peak_bytes"].as_f64() else {
            println!("skipped: this system does not tell a process's memory");
            return;
        };
        assert_peak(expected, peak, &words.join(" "));
    }
}

/// A named cache type is used or refused; without a name the note says f16, and where the bytes are too few for f16,
/// names a smaller type and its cost.
#[test]
fn the_cache_type_is_stated_and_never_replaced_silently() {
    let refused = |words: &[&str], names: &[&str]| {
        ask(None, &sample(), words).refused(names);
    };
    refused(
        &["--method", "ems", "--cache", "q4_0"],
        &["q4_0", "ems", "merges", "f16 and f32 work"],
    );
    refused(
        &["--method", "cam", "--set", "base=h2o", "--cache", "q8_0"],
        &["q8_0", "cam", "adds to rows", "f16 and f32 work"],
    );
    refused(&["--cache", "q5_0"], &["q5_0", "f32, f16, q8_0 and q4_0"]);
    for (words, cache) in [
        (&["--method", "snapkv"][..], "f16"),
        (&["--method", "ems", "--budget", "20%"], "f16"),
        (&["--method", "full", "--cache", "f32"], "f32"),
        (&["--method", "h2o", "--cache", "q4_0"], "q4_0"),
        (
            &["--method", "treekv", "--streaming", "on", "--cache", "q8_0"],
            "q8_0",
        ),
        (&[], "f16"),
    ] {
        let answer = ask(None, &sample(), words).json();
        assert_eq!(answer["cache"], cache, "{words:?}");
        assert!(answer["answer"].is_string());
    }
    let words = ["--method", "snapkv", "--budget", "450KiB"];
    let usual = ask(None, &sample(), &[&words[..], &["--cache", "f16"]].concat()).json();
    let chosen = ask(None, &sample(), &words).json();
    assert_eq!(usual["cache"], "f16");
    let cache = chosen["cache"].as_str().expect("a type");
    assert!(["q8_0", "q4_0"].contains(&cache), "{cache}");
    assert!(rows(&chosen) > 1.2 * rows(&usual));
    for answer in [&usual, &chosen] {
        let held = held(answer);
        assert!((0.9..=1.0).contains(&(held / (450.0 * 1024.0))), "{held}");
    }
    let note = chosen["notes"][0].as_str().expect("a note");
    let price = format!("stored as {cache}");
    assert!(
        note.contains(&price) && note.contains("nats for rounding"),
        "{note}"
    );
    assert!(!usual["notes"].to_string().contains("stored as"));
    // A method that does not support the smaller type keeps fewer rows of the usual type.
    let words = ["--method", "ems", "--budget", "1500KiB"];
    assert_eq!(ask(None, &sample(), &words).json()["cache"], "f16");
}

/// Without a named method: a small document keeps everything, little memory evicts rows, a long document is streamed;
/// always with the reason.
#[test]
fn the_automatic_choice_states_its_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let answer = ask(None, &sample(), &[]).json();
    assert_eq!(answer["method"], "full");
    let reason = answer["chosen"]["reason"].as_str().expect("a reason");
    assert!(reason.contains("nothing is lost"), "{reason}");
    assert!(
        answer["notes"][0]
            .as_str()
            .expect("a note")
            .contains(reason)
    );

    // A budget in bytes that holds everything needs no other method; and the full cache has no budget.
    for budget in ["64MiB", "2900KiB"] {
        let answer = ask(None, &sample(), &["--budget", budget]).json();
        assert_eq!(answer["method"], "full", "{budget}: {}", answer["chosen"]);
        let kept = bytes(&answer["kv_bytes"]);
        assert!(kept <= if budget == "64MiB" { 65536.0 } else { 2900.0 } * 1024.0);
    }
    let words = ["--method", "full", "--budget", "25%", "--memory", "1GiB"];
    let answer = ask(None, &sample(), &words).json();
    let notes = answer["notes"].to_string();
    assert!(notes.contains("the budget is not used"), "{notes}");
    assert!(!notes.contains("25 % of the prompt"), "{notes}");

    let (model, document) = (model(folder.path()), part(folder.path()));
    let whole = ask(Some(&model), &document, &["--method", "full"]).json();
    let limited = |less: f64| {
        let limit = bytes(&whole["expected_peak_bytes"]) - less * bytes(&whole["kv_bytes_full"]);
        let limit = format!("{}KiB", (limit / 1024.0) as u64);
        ask(Some(&model), &document, &["--memory", &limit]).json()
    };
    // What the user allows is used up, if need be with rows of 8 bits.
    for (less, cache, reason) in [(-0.1, "f16", "nothing is lost"), (1.1, "q8_0", "rounding")] {
        let answer = limited(less);
        let chosen = &answer["chosen"];
        assert_eq!(
            (&answer["method"], &chosen["cache"]),
            (&"full".into(), &cache.into())
        );
        assert!(
            chosen["reason"]
                .as_str()
                .is_some_and(|why| why.contains(reason)),
            "{chosen}"
        );
    }
    let answer = limited(3.5);
    let chosen = &answer["chosen"];
    assert_eq!(answer["method"], chosen["method"]["name"]);
    assert_ne!(answer["method"], "full");
    let reason = chosen["reason"].as_str().expect("a reason");
    assert!(
        reason.contains("in our measurements") && reason.contains("of memory"),
        "{reason}"
    );
    assert!(bytes(&chosen["rows"]) < bytes(&answer["prompt_tokens"]));
    assert!(chosen["kl"].is_number() && chosen["right"].is_number());

    let long = folder.path().join("long.txt");
    let text = std::fs::read_to_string(sample()).expect("the sample");
    std::fs::write(&long, text.repeat(4)).expect("a long document");
    let answer = ask(None, &long, &[]).json();
    let streams = kept_policies::STREAMING
        .iter()
        .any(|name| answer["method"] == *name);
    assert!(
        streams && answer["streamed"] == true,
        "{}",
        answer["method"]
    );
    let reason = answer["chosen"]["reason"].as_str().expect("a reason");
    // `auto` does not choose a method that drops whole parts of the text or takes ten times as long: none is that much
    // better.
    assert!(reason.starts_with("treekv, "), "{reason}");
    assert!(
        reason.contains("all over the text") && reason.contains("perplexity"),
        "{reason}"
    );
    // Under a limit the reason has the rows that are kept.
    for limit in ["30MiB", "32MiB", "34MiB"] {
        let answer = ask(None, &long, &["--memory", limit]).json();
        let rows = &answer["chosen"]["rows"];
        let held = answer["notes"][1].as_str().expect("a note");
        assert!(
            held.contains(&format!("{rows} rows per head (")),
            "{rows}: {held}"
        );
    }
}

/// Ctrl-C while an answer is written prints what there is and ends with 130.
#[cfg(unix)]
#[test]
fn ctrl_c_in_an_answer_is_a_failure() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut run = Command::new(program())
        .args(["ask", "--question", "What?", "--max-tokens", "100000"])
        .args(["--temperature", "9", "--vault", "off", "--document"])
        .arg(part(folder.path()))
        .arg("--model")
        .arg(model(folder.path()))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut first = [0];
    let mut answer = run.stdout.take().expect("a pipe");
    answer.read_exact(&mut first).expect("an answer begins");
    let process = run.id().to_string();
    let sent = Command::new("kill").args(["-INT", &process]).status();
    assert!(sent.expect("kill runs").success());
    let mut rest = Vec::new();
    answer.read_to_end(&mut rest).expect("the answer ends");
    let output = run.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("stopped before its end"), "{said}");
}

/// A failed allocation ends the program with an exit code and a message, never by a signal.
#[cfg(target_os = "linux")]
#[test]
fn a_failed_allocation_is_an_error_message() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = model(folder.path());
    let kept = program().display().to_string();
    let (mut answered, mut refused) = (0, 0);
    for mib in [90, 100, 110, 120, 150, 1000] {
        let asked = format!(
            "ulimit -v {}; exec '{kept}' ask --threads 1 --model '{}' --document '{}' --question 'What?' --max-tokens 2 --method full --cache f32",
            mib * 1024,
            model.display(),
            part(folder.path()).display()
        );
        let run = Command::new("sh")
            .args(["-c", &asked])
            .output()
            .expect("sh runs");
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        match run.status.code() {
            Some(0) => answered += 1,
            Some(1) => {
                refused += 1;
                assert!(
                    said.starts_with("error: ") && !said.contains("bug"),
                    "{mib}: {said}"
                );
            }
            other => panic!("{mib} MiB: ended with {other:?}: {said}"),
        }
    }
    assert!(
        answered > 0 && refused > 0,
        "{answered} answered, {refused} refused"
    );
}
