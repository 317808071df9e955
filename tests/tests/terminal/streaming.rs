//! Streaming mode as a user or a script uses it: memory independent of the text length, perplexity along a text, maps,
//! refusals.

use std::ffi::OsString;

use kept_engine::policies::STREAMING;
use kept_tests::golden;
use kept_tests::terminal::{CODE_VARIES, Run, assert_peak, kept, kept_in};
use serde_json::Value;

fn run(words: &[&str], paths: &[(&str, &std::path::Path)]) -> Run {
    let mut arguments: Vec<OsString> = words.iter().map(Into::into).collect();
    for (name, path) in paths {
        arguments.extend([OsString::from(name), path.as_os_str().to_owned()]);
    }
    kept(arguments)
}

fn bytes(value: &Value) -> u64 {
    value.as_u64().expect("bytes")
}

/// Ten times the tokens: the same ledger to the byte except for the tokens themselves, and four more bytes of process
/// memory per token, for the tokens that the command generates.
#[test]
fn streaming_memory_does_not_grow_with_the_text() {
    let model = golden::model("group2-llama3-tied");
    for (method, budget) in [("streaming_llm", "64"), ("treekv", "64"), ("ems", "16")] {
        let lengths: [u64; 2] = match method {
            // Merging is slow.
            "ems" => [7_000, 70_000],
            "treekv" => [10_000, 100_000],
            _ => [20_000, 200_000],
        };
        let read = |tokens: u64| {
            let tokens = tokens.to_string();
            let words = [
                "bench",
                "--json",
                "--streaming",
                "--method",
                method,
                "--budget",
                budget,
            ];
            let words = [words.as_slice(), &["--prompt-tokens", tokens.as_str()]].concat();
            run(&words, &[("--model", &model)]).json()
        };
        let [short, long] = lengths.map(read);
        assert_eq!(short["scratch_bytes"], long["scratch_bytes"], "{method}");
        // The text itself, per token: an id in the tokenizer's result and one in the prompt, a byte range and a vote.
        let ledger = |run: &Value, tokens: u64| bytes(&run["ledger_peak_bytes"]) - 20 * tokens;
        let (before, after) = (ledger(&short, lengths[0]), ledger(&long, lengths[1]));
        assert_eq!(before, after, "{method}");
        assert_eq!(short["kv_bytes"], long["kv_bytes"], "{method}");
        let more = 4 * (lengths[1] - lengths[0]) + CODE_VARIES;
        let (before, after) = (bytes(&short["peak_bytes"]), bytes(&long["peak_bytes"]));
        assert!(
            after <= before + more,
            "{method}: {before} bytes, then {after}"
        );
        assert!(
            bytes(&long["kv_bytes_full"]) > after,
            "{method}: it is no feat"
        );
    }
}

/// Where the memory limit determines the rows, it determines the same number for every process and question: each
/// question starts from the checkpoint that the first one stored.
#[test]
fn a_memory_limit_reuses_the_checkpoint() {
    let folder = tempfile::tempdir().expect("a folder");
    let (long, vaults) = (folder.path().join("long.txt"), folder.path().join("vaults"));
    let sample = golden::repository().join("assets/sample.txt");
    let text = std::fs::read_to_string(sample).expect("the sample");
    std::fs::write(&long, text.repeat(4)).expect("a long document");
    let ask = |question: &str, more: &[&str]| {
        let words = [
            "ask",
            "--json",
            "--method",
            "treekv",
            "--budget",
            "90%",
            "--max-tokens",
            "8",
        ];
        let mut arguments: Vec<OsString> = words.iter().chain(more).map(Into::into).collect();
        arguments.extend(["--document".into(), long.clone().into_os_string()]);
        arguments.extend(["--question".into(), question.into()]);
        kept_in(&vaults, arguments).json()
    };
    let free = ask("Who?", &["--vault", "off"]);
    assert_eq!(free["streamed"], true, "{free}");
    // Smaller chunks save less than that: half of the rows must go.
    let spared = bytes(&free["ledger"]["activations"]) + bytes(&free["kv_bytes"]) / 2;
    let limit = bytes(&free["expected_peak_bytes"]) - spared;
    let limit = format!("{}KiB", limit / 1024);
    let questions = [
        "What is the locker code of Ann Quorvin?",
        "Who?",
        "What is the safe combination of Mira Stolden, who told her, and what else does the text say about that?",
    ];
    let answers = questions.map(|question| ask(question, &["--memory", &limit]));
    for (i, answer) in answers.iter().enumerate() {
        assert_eq!(answer["vault"]["used"], i > 0, "{}", answer["notes"]);
        assert_eq!(answer["rows_per_layer"], answers[0]["rows_per_layer"]);
        if let Some(peak) = answer["peak_bytes"].as_u64() {
            let expected = bytes(&answer["expected_peak_bytes"]);
            // The few tokens of a later question do not fill the buffers of a whole chunk.
            match i {
                0 => assert_peak(expected as f64, peak as f64, "the first question"),
                _ => assert!(
                    peak <= expected + CODE_VARIES,
                    "{i}: {expected} expected, {peak} taken"
                ),
            }
        }
    }
    assert_ne!(
        answers[0]["rows_per_layer"], free["rows_per_layer"],
        "memory decides"
    );
}

/// The perplexity at a length does not depend on the later text, and the full cache's equals that of keeping
/// everything.
#[test]
fn perplexity_is_measured_at_every_length() {
    let sample = golden::repository().join("assets/sample.txt");
    let measured = |words: &[&str]| -> Vec<Value> {
        // A token also attends to its own chunk, whatever the budget.
        let chunk = ["eval", "perplexity", "--json", "--chunk", "32", "--methods"];
        let words = [chunk.as_slice(), words].concat();
        run(&words, &[("--data", &sample)]).json_lines()
    };
    let found = measured(&[
        "full,streaming_llm,treekv,ems,snapkv",
        "--budgets",
        "48,5000",
        "--lengths",
        "300,900",
    ]);
    let of = |method: &str, budget: &str| -> &Value {
        let mut lines = found.iter();
        let same = |line: &&Value| line["method"] == method && line["budget"] == budget;
        lines.find(same).expect("a line")
    };
    let at = |line: &Value, tokens: u64| -> f64 {
        let at = line["at"].as_array().expect("lengths");
        let found = at.iter().find(|at| at["tokens"] == tokens);
        found
            .and_then(|at| at["perplexity"].as_f64())
            .expect("a number")
    };
    let full = of("full", "");
    for method in ["streaming_llm", "treekv", "ems"] {
        for length in [300, 900] {
            // The context length exceeds the text, so this many rows are accepted.
            let (whole, kept) = (at(full, length), at(of(method, "5000"), length));
            assert!(
                (whole / kept - 1.0).abs() < 1e-4,
                "{method}: {whole} {kept}"
            );
            let cut = at(of(method, "48"), length);
            assert!(
                cut > whole * 1.02,
                "{method}: {cut} of a cut cache, {whole}"
            );
        }
    }
    let refused = of("snapkv", "48")["refused"].as_str().expect("a refusal");
    assert!(
        STREAMING.iter().all(|able| refused.contains(able)),
        "{refused}"
    );
    let alone = &measured(&["treekv", "--budgets", "48", "--lengths", "300"])[0];
    let (short, long) = (at(alone, 300), at(of("treekv", "48"), 300));
    assert!((short / long - 1.0).abs() < 1e-6, "{short} {long}");
    let said = run(
        &["eval", "perplexity", "--budgets", "25%"],
        &[("--data", &sample)],
    );
    said.refused(&["25%", "share"]);
}

#[test]
fn a_streamed_map_has_every_token_and_few_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    let long = folder.path().join("long.txt");
    let sample = std::fs::read_to_string(golden::repository().join("assets/sample.txt"));
    std::fs::write(&long, sample.expect("the sample").repeat(4)).expect("a long document");
    let words = [
        "map",
        "--json",
        "--question",
        "What is it about?",
        "--method",
        "tova",
    ];
    let words = [words.as_slice(), &["--budget", "100"]].concat();
    let map = run(&words, &[("--document", &long)]).json();
    let tokens = map["tokens"].as_array().expect("tokens").len();
    assert!(tokens > 4096);
    assert_eq!(map["share"].as_array().expect("shares").len(), tokens);
    for layer in map["layers"].as_array().expect("layers") {
        for head in layer["heads"].as_array().expect("heads") {
            let kept = head.as_array().expect("positions");
            assert_eq!(kept.len(), 100);
            let last = kept.last().and_then(Value::as_u64).expect("a position");
            assert_eq!(last as usize, tokens - 1, "the newest token is kept");
        }
    }
    let off = [words.as_slice(), &["--streaming", "off"]].concat();
    run(&off, &[("--document", &long)]).refused(&["too long", "4096"]);
}

/// A share of a long text may be more rows than the context length allows: as many are kept as fit, and the note names
/// both numbers. An absolute number of rows is used exactly, or refused.
#[test]
fn a_share_beyond_the_context_length_is_reduced() {
    let folder = tempfile::tempdir().expect("a folder");
    let long = folder.path().join("long.txt");
    let sample = std::fs::read_to_string(golden::repository().join("assets/sample.txt"));
    std::fs::write(&long, sample.expect("the sample").repeat(4)).expect("a long document");
    let ask = |method: &str, budget: &str| {
        let words = ["ask", "--json", "--max-tokens", "4", "--vault", "off"];
        let asked = ["--question", "Who?", "--method", method, "--budget", budget];
        run(&[words, asked].concat(), &[("--document", &long)])
    };
    for method in ["treekv", "ems"] {
        let answer = ask(method, "90%").json();
        let rows = bytes(&answer["rows_per_layer"][0]);
        let wanted = bytes(&answer["prompt_tokens"]) * 9 / 10;
        assert!((1..=4096 - 512).contains(&rows), "{method}: {rows}");
        let notes = answer["notes"].as_array().expect("notes");
        let mut notes = notes.iter().filter_map(Value::as_str);
        let note = notes.find(|note| note.starts_with("the requested share is "));
        let note = note.unwrap_or_else(|| panic!("{method}: no note in {answer}"));
        let said: u64 = note
            .split(' ')
            .nth(4)
            .and_then(|n| n.parse().ok())
            .expect("rows");
        assert!(said > rows && wanted - said < 100, "{note}");
        assert!(note.contains(&format!(" {rows} of them")), "{note}");
    }
    ask("treekv", "6000").refused(&["6000 rows", "4096", "give at most"]);
}
