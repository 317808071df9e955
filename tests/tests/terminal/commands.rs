//! The commands as a script uses them: every documented field, consistency between fields, and the same answer twice.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use kept_engine::documents::recognised_languages;
use kept_tests::golden::{self, ids};
use kept_tests::hub::at_home;
use kept_tests::terminal::{Run, kept, run};
use serde_json::Value;

fn sample() -> PathBuf {
    golden::repository().join("assets/sample.txt")
}

/// A command on the sample document with a tiny model, which accepts any text and answers nonsense.
fn tiny(command: &str, extra: &[&str]) -> Run {
    let mut arguments: Vec<OsString> = vec![command.into(), "--json".into()];
    arguments.extend(["--model".into(), golden::model("group2-llama3-tied").into()]);
    arguments.extend(["--document".into(), sample().into()]);
    arguments.extend([
        "--question".into(),
        "What is the locker code of Ann Quorvin?".into(),
    ]);
    arguments.extend(extra.iter().map(Into::into));
    kept(arguments)
}

fn whole(value: &Value, name: &str) -> u64 {
    value[name]
        .as_u64()
        .unwrap_or_else(|| panic!("{name} is a whole number: {value}"))
}

#[cfg(unix)]
#[test]
fn help_that_cannot_be_written_is_an_error() {
    let full = std::fs::File::options().write(true).open("/dev/full");
    let mut command = std::process::Command::new(kept_tests::terminal::program());
    command.args(["ask", "--help"]);
    command.stdout(full.expect("a full device"));
    let run = command.output().expect("kept starts");
    let said = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(1));
    assert!(
        said.starts_with("error: the output could not be written"),
        "{said}"
    );
}

#[test]
fn ask_json_has_every_documented_field() {
    let answer = tiny(
        "ask",
        &["--method", "snapkv", "--budget", "64", "--max-tokens", "12"],
    )
    .json();
    assert!(answer["answer"].is_string());
    assert_eq!(answer["model"], "group2-llama3-tied");
    assert_eq!(answer["method"], "snapkv");
    let tokens = whole(&answer, "prompt_tokens");
    assert!(whole(&answer, "answer_tokens") <= 12);
    assert_eq!(ids(&answer["rows_per_layer"]), [64, 64, 64]);
    let (kept, full) = (whole(&answer, "kv_bytes"), whole(&answer, "kv_bytes_full"));
    assert_eq!(kept * tokens, full * 64, "bytes are in proportion to rows");
    assert!(whole(&answer, "peak_bytes") > full);
    for seconds in [
        "prefill_seconds",
        "decode_seconds",
        "decode_tokens_per_second",
    ] {
        assert!(
            answer[seconds].as_f64().is_some_and(|s| s >= 0.0),
            "{seconds}"
        );
    }
    let text = std::fs::read_to_string(sample()).expect("the sample");
    for source in answer["sources"].as_array().expect("sources") {
        let range = whole(source, "start") as usize..whole(source, "end") as usize;
        assert_eq!(
            source["text"], text[range],
            "a source is a piece of the document"
        );
        assert!(source["page"].is_null(), "a text file has no pages");
    }
}

#[test]
fn a_scan_is_read_by_text_recognition() {
    let ask = |extra: &[&str]| {
        let mut arguments: Vec<OsString> =
            vec!["ask".into(), "--json".into(), "--vault=off".into()];
        arguments.extend(["--model=mini".into(), "--document".into()]);
        arguments.push(
            golden::repository()
                .join("documents/tests/fixtures/scan.pdf")
                .into(),
        );
        arguments.push("--question=What is the number of the mooring?".into());
        arguments.extend(extra.iter().map(Into::into));
        kept(arguments)
    };
    ask(&[]).refused(&["scan.pdf has 2 pages without any text", "--recognise eng"]);
    let installed = recognised_languages();
    if !installed.iter().any(|language| language == "eng") {
        ask(&["--recognise=eng"]).refused(&["scan.pdf"]);
        eprintln!("skipped: tesseract with English, or pdftoppm, is not installed");
        return;
    }
    let locked = golden::repository().join("documents/tests/fixtures/password.pdf");
    let locked = locked.to_str().expect("a path");
    let both = ["--recognise=eng", "--password=open sesame", "--document"];
    ask(&[&both[..], &[locked]].concat()).refused(&["password.pdf", "a copy without one"]);
    ask(&["--recognise=eng+tlh"]).refused(&["scan.pdf", "no language tlh", "eng"]);
    let answered = ask(&["--recognise=eng"]).json();
    let says = "The number of the mooring is 5173.";
    assert_eq!(answered["answer"], says, "{answered}");
    let source = &answered["sources"][0];
    assert_eq!(
        (&source["text"], &source["page"]),
        (&says.into(), &2.into())
    );
}

#[test]
fn a_password_opens_a_pdf() {
    let ask = |extra: &[&str]| {
        let mut arguments: Vec<OsString> = vec!["ask".into(), "--json".into()];
        arguments.extend(["--model".into(), golden::model("group2-llama3-tied").into()]);
        let locked = golden::repository().join("documents/tests/fixtures/password.pdf");
        arguments.extend(["--document".into(), locked.into()]);
        arguments.extend(["--question=Who?", "--max-tokens=4", "--vault=off"].map(Into::into));
        arguments.extend(extra.iter().map(Into::into));
        kept(arguments)
    };
    ask(&[]).refused(&["password.pdf", "--password"]);
    ask(&["--password", "Open Sesame"]).refused(&["password.pdf", "does not open"]);
    let answered = ask(&["--password", "open sesame"]).json();
    assert_eq!(whole(&answered, "answer_tokens"), 4);
}

#[test]
fn the_same_seed_gives_the_same_answer() {
    let ask = |seed: &str, temperature: &str| {
        let extra = [
            "--max-tokens",
            "24",
            "--temperature",
            temperature,
            "--seed",
            seed,
        ];
        tiny("ask", &extra).json()["answer"].clone()
    };
    assert_eq!(ask("1", "0.9"), ask("1", "0.9"));
    assert_ne!(ask("1", "0.9"), ask("2", "0.9"));
    assert_eq!(ask("1", "0"), ask("2", "0"), "at 0 nothing is drawn");
}

#[test]
fn answers_do_not_depend_on_the_threads() {
    let ask = |threads: &str| tiny("ask", &["--max-tokens", "16", "--threads", threads]).json();
    assert_eq!(ask("1")["answer"], ask("3")["answer"]);
}

#[test]
fn only_the_answer_goes_to_stdout() {
    let model = golden::model("group2-llama3-tied");
    let base = |extra: &[&str]| {
        let mut arguments: Vec<OsString> =
            vec!["ask".into(), "--model".into(), model.clone().into()];
        arguments.extend(["--document".into(), sample().into()]);
        arguments.extend([
            "--question".into(),
            "Who?".into(),
            "--max-tokens".into(),
            "6".into(),
        ]);
        arguments.extend(extra.iter().map(Into::into));
        kept(arguments)
    };
    let (plain, json) = (base(&[]), base(&["--json"]));
    plain.succeeded();
    assert_eq!(
        plain.stdout.trim_end(),
        json.json()["answer"].as_str().expect("text").trim_end()
    );
    assert!(
        !plain.stdout.contains('\u{1b}') && !plain.stderr.contains('\u{1b}'),
        "no colours in a pipe"
    );
    assert!(!plain.stderr.contains('\r'), "no progress bar in a pipe");
}

#[test]
fn map_covers_every_token() {
    let map = tiny("map", &["--method", "snapkv", "--budget", "64"]).json();
    let tokens = map["tokens"].as_array().expect("tokens");
    let share: Vec<f64> = (map["share"].as_array().expect("share").iter())
        .map(|s| s.as_f64().expect("a share"))
        .collect();
    assert_eq!(tokens.len(), share.len());

    // The document's tokens cover its text without gaps.
    let text = std::fs::read_to_string(sample()).expect("the sample");
    let mut end = 0;
    for token in tokens.iter().filter(|t| t["start"].is_u64()) {
        assert_eq!(whole(token, "start"), end);
        end = whole(token, "end");
    }
    assert_eq!(end as usize, text.len());

    // Layers and shares are consistent.
    let mut counted = vec![0u32; tokens.len()];
    let mut slots = 0;
    for layer in map["layers"].as_array().expect("layers") {
        for head in layer["heads"].as_array().expect("heads") {
            slots += 1;
            let kept = ids(head);
            assert_eq!(kept.len(), 64);
            kept.iter()
                .for_each(|position| counted[*position as usize] += 1);
        }
    }
    for (counted, share) in counted.iter().zip(&share) {
        assert!((f64::from(*counted) / f64::from(slots) - share).abs() < 1e-6);
    }
    for always in (0..4).chain(tokens.len() - 8..tokens.len()) {
        assert_eq!(
            share[always], 1.0,
            "sinks and window are kept everywhere: {always}"
        );
    }
}

#[test]
fn ask_writes_the_map_that_map_prints() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("map.json");
    let shown = path.to_str().expect("a path in UTF-8");
    tiny(
        "ask",
        &["--budget", "64", "--max-tokens", "1", "--map", shown],
    )
    .succeeded();
    assert_eq!(
        golden::read_json(&path),
        tiny("map", &["--budget", "64"]).json()
    );
}

#[test]
fn logits_after_eviction_equal_transformers() {
    let tensors = golden::Tensors::golden("group2-llama3-tied.evicted");
    let tokens: Vec<String> = tensors.whole("ids").iter().map(u32::to_string).collect();
    let prompt = tensors.whole("prompt")[0].to_string();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let output = folder.path().join("logits.safetensors");
    let model = golden::model("group2-llama3-tied");
    let mut arguments: Vec<OsString> = vec!["logits".into(), "--model".into(), model.into()];
    arguments.extend([
        "--tokens".into(),
        tokens.join(",").into(),
        "--prompt-tokens".into(),
        prompt.clone().into(),
    ]);
    arguments.extend(
        [
            "--method",
            "snapkv",
            "--set",
            "w=8,kernel=5,sinks=4",
            "--budget",
            "24",
        ]
        .map(Into::into),
    );
    arguments.extend(["--output".into(), output.clone().into()]);
    kept(arguments).succeeded();
    let rows = golden::Tensors::read(&output).rows("logits");
    assert_eq!(rows.len(), tokens.len());
    let first: usize = prompt.parse().expect("a number");
    for (step, reference) in tensors.rows("snapkv_logits").iter().enumerate() {
        kept_tests::compare::assert_same(
            &rows[first - 1 + step],
            reference,
            1e-3,
            &format!("step {step}"),
        );
    }
}

/// A second question from the vault of the first: all but the last 24 tokens come from the vault. A GPU memory limit
/// does not apply to the CPU.
#[test]
fn bench_measures_a_question_from_the_vault() {
    let model = golden::model("group2-llama3-tied");
    let run = |more: &[&str]| {
        let words = [
            "bench",
            "--json",
            "--prompt-tokens",
            "300",
            "--decode-tokens",
            "2",
        ];
        let words = words.iter().chain(more).map(OsStr::new);
        kept(words.chain(["--model".as_ref(), model.as_os_str()]))
    };
    let bench = run(&["--again"]).json();
    assert_eq!(bench["again"][1], 276, "{bench}");
    assert!(bench["again"][0].as_f64().is_some_and(|x| x > 0.0));
    assert!(bench["again_bytes"].as_f64().is_some_and(|x| x > 0.0));
    assert!(run(&[]).json()["again"].is_null());
    run(&["--memory", "8GiB"]).refused(&["--memory"]);
}

/// The parts of a decode step read all of its bytes.
#[test]
fn bench_times_the_parts_of_a_step() {
    for arch in [
        "qwen2",
        "qwen35moe",
        "lfm2moe",
        "granitehybrid-experts",
        "glm4_moe_lite",
    ] {
        let file = golden::Unpacked::architecture(arch);
        let model = file.path();
        let run = |json: &[&str]| {
            let words = ["bench", "--kernels", "--prompt-tokens", "40"];
            let more = ["--decode-tokens", "4", "--model"];
            let words = words.iter().chain(json).chain(&more).map(OsStr::new);
            kept(words.chain([model.as_os_str()]))
        };
        let bench = run(&["--json"]).json();
        let parts = bench["parts"].as_array().expect("parts");
        let sum = |key: &str| -> f64 {
            parts
                .iter()
                .map(|part| part[key].as_f64().expect("a number"))
                .sum()
        };
        assert_eq!(
            Some(sum("bytes")),
            bench["bytes_per_token"].as_f64(),
            "{bench}"
        );
        assert!(
            parts
                .iter()
                .all(|part| part["seconds"].as_f64() > Some(0.0)),
            "{bench}"
        );
        let text = run(&[]).stdout;
        assert!(
            text.contains("of limit") && text.contains("logits"),
            "{text}"
        );
    }
}

/// A cache of synthetic rows cannot serve a method that continues from prefill measurements.
#[test]
fn bench_refuses_synthetic_rows_for_stateful_methods() {
    let model = golden::model("group2-llama3-tied");
    let run = |method: &str| {
        let words = ["bench", "--after", "300", "--budget", "64", "--method"];
        let words = words.into_iter().chain([method]).map(OsStr::new);
        let more = ["--decode-tokens", "2", "--model"].map(OsStr::new);
        kept(words.chain(more).chain([model.as_os_str()]))
    };
    for method in ["h2o", "treekv", "scissorhands", "ems"] {
        run(method).refused(&[method, "--prompt-tokens"]);
    }
    let run = run("snapkv");
    run.succeeded();
    let text = &run.stdout;
    assert!(text.contains("nothing: 300 tokens"), "{text}");
    assert!(text.contains("% of copying"), "{text}");
}

#[test]
fn bench_measures_and_decodes_without_allocating() {
    let model = golden::model("group2-llama3-tied");
    let run = kept([
        "bench".as_ref(),
        "--json".as_ref(),
        "--model".as_ref(),
        model.as_os_str(),
        "--prompt-tokens".as_ref(),
        "300".as_ref(),
        "--decode-tokens".as_ref(),
        "32".as_ref(),
        "--method".as_ref(),
        "snapkv".as_ref(),
        "--budget".as_ref(),
        "64".as_ref(),
    ]);
    let bench = run.json();
    for positive in [
        "prefill_tokens_per_second",
        "decode_tokens_per_second",
        "weights_bytes",
        "kv_bytes",
        "scratch_bytes",
        "peak_bytes",
        "bytes_per_token",
        "bytes_per_read_token",
        "select_bytes",
    ] {
        assert!(
            bench[positive].as_f64().is_some_and(|x| x > 0.0),
            "{positive}: {bench}"
        );
    }
    assert_eq!(
        bench["allocations_per_token"].as_f64(),
        Some(0.0),
        "decode allocates nothing"
    );
}

#[test]
fn doctor_and_inspect_print_their_facts() {
    assert!(kept(["doctor", "--json"]).json().is_object());
    let home = tempfile::tempdir().expect("a folder");
    let mut command = at_home(home.path());
    command.args(["doctor"]).env("KEPT_SIMD", "mmx");
    run(command).refused(&["KEPT_SIMD=mmx", "write scalar"]);
    let model = golden::model("group2-llama3-tied");
    let run = kept([
        "models".as_ref(),
        "inspect".as_ref(),
        "--json".as_ref(),
        model.as_os_str(),
    ]);
    assert!(run.json().to_string().contains("group2-llama3-tied"));
    let model = golden::Unpacked::architecture("gemma3");
    let path = model.path();
    let inspect = |flags: &[&str]| {
        let mut arguments: Vec<&std::ffi::OsStr> = vec!["models".as_ref(), "inspect".as_ref()];
        arguments.push(path.as_os_str());
        arguments.extend(
            flags
                .iter()
                .map(|flag| -> &std::ffi::OsStr { flag.as_ref() }),
        );
        kept(arguments)
    };
    let found = inspect(&["--json"]).json();
    for (field, value) in [
        ("layers", 12),
        ("full_layers", 2),
        ("sliding_layers", 10),
        ("window", 24),
        ("head_dim", 16),
        ("context", 512),
        // two layers of two heads, keys and values of 16 numbers in half precision
        ("kv_bytes_per_token", 2 * 2 * 2 * 16 * 2),
        ("kv_bytes_context", (2 * 512 + 10 * 24) * 2 * 2 * 16 * 2),
    ] {
        assert_eq!(found[field], value, "{field}");
    }
    assert_eq!(
        (&found["chat_template"], &found["thinking"]),
        (&true.into(), &false.into())
    );
    let screen = inspect(&[]).stdout.clone();
    assert!(screen.lines().count() <= 24, "one screen: {screen}");
    for part in [
        "gemma3",
        "F32 100 %",
        "2 attend to every token",
        "10 to the last 24",
        "stretched linearly by 4; sliding layers: base 10000",
        "gpt2 with pre-tokenizer smollm",
    ] {
        assert!(screen.contains(part), "{part:?} in {screen}");
    }
    let refused = inspect(&["--rope", "yarn:4"]);
    refused.refused(&["linear RoPE scaling already"]);
}

mod mini {
    use super::*;

    fn questions() -> Vec<(String, String)> {
        let sample = golden::read_json(&golden::repository().join("assets/sample.json"));
        let pair = |v: &Value| {
            let text = |name: &str| v[name].as_str().expect(name).to_owned();
            (text("question"), text("answer"))
        };
        let mut all = vec![pair(&sample)];
        all.extend(sample["more"].as_array().expect("more").iter().map(pair));
        all
    }

    fn ask(question: &str, extra: &[&str]) -> Value {
        let mut arguments: Vec<OsString> = vec![
            "ask".into(),
            "--json".into(),
            "--document".into(),
            sample().into(),
        ];
        arguments.extend(["--question".into(), question.into()]);
        arguments.extend(extra.iter().map(Into::into));
        kept(arguments).json()
    }

    /// A new user's first command: the sample question on the sample document with the built-in model, default
    /// settings.
    #[test]
    fn the_sample_question_is_answered_with_its_source() {
        let (question, expected) = questions().remove(0);
        let answer = ask(&question, &[]);
        let text = answer["answer"].as_str().expect("an answer");
        assert!(text.contains(&expected), "{question} {text}");
        let sources = answer["sources"].as_array().expect("sources");
        let best = sources.first().expect("a source")["text"]
            .as_str()
            .expect("a text");
        assert!(best.contains(&expected), "the answer stands on {best:?}");
        // No method is named, and everything of a document this small is kept.
        assert_eq!(answer["kv_bytes"], answer["kv_bytes_full"]);
        let cut = ask(&question, &["--method", "snapkv"]);
        assert!(
            cut["answer"]
                .as_str()
                .expect("an answer")
                .contains(&expected)
        );
        assert!(cut["kv_bytes"].as_u64() < cut["kv_bytes_full"].as_u64());
    }

    /// All ten, with default settings. The model is small: at least nine of ten must be right.
    #[test]
    fn nine_of_ten_sample_questions_are_answered() {
        let wrong: Vec<String> = (questions().iter())
            .filter_map(|(question, expected)| {
                let answer = ask(question, &["--max-tokens", "40"]);
                let text = answer["answer"].as_str().expect("an answer").to_owned();
                (!text.contains(expected)).then(|| format!("{question} {expected}: {text}"))
            })
            .collect();
        assert!(wrong.len() <= 1, "{wrong:#?}");
    }

    /// The sample's answers occur in its text, spread from beginning to end.
    #[test]
    fn sample_answers_are_spread_over_the_text() {
        let text = std::fs::read_to_string(sample()).expect("the sample");
        let mut places = Vec::new();
        for (question, answer) in questions() {
            let sentence = format!(" is {answer}");
            let place = text.find(&sentence);
            let place = place.unwrap_or_else(|| panic!("{question} {sentence:?}"));
            assert_eq!(text.rfind(&sentence), Some(place), "{question}: once");
            places.push(place as f64 / text.len() as f64);
        }
        assert!(
            (0.4..0.6).contains(&places[0]),
            "the sample question is answered in the middle"
        );
        assert!(places.iter().any(|p| *p < 0.15) && places.iter().any(|p| *p > 0.85));
        assert_eq!(places.len(), 10);
    }
}

/// A file or question without its option gives an error that names the option; without a command, the help.
#[test]
fn usage_errors_name_the_option() {
    let refused = kept(["ask", "contract.pdf", "What is the notice period?"]);
    refused.refused(&[
        "contract.pdf",
        "--document",
        "--question",
        "kept ask --help",
    ]);
    kept(["map", "contract.pdf"]).refused(&["contract.pdf", "--document", "kept map --help"]);
    let refused = kept(["ask", "--documents", "contract.pdf"]);
    let line = refused.refused(&["--documents", "kept ask --help"]);
    assert!(!line.contains("are given with"), "{line}");
    kept(["aks"]).refused(&["aks", "kept --help"]);
    let nothing: [&str; 0] = [];
    let help = kept(nothing);
    assert_eq!(help.code, Some(2));
    assert!(
        help.stderr.contains("Usage: kept <COMMAND>") && !help.stderr.contains("error:"),
        "{}",
        help.stderr
    );
}

/// Numbers that are none, or out of range, are refused before the model is opened.
#[test]
fn numbers_out_of_range_are_refused_with_what_is_possible() {
    let ask = |option: &str, value: &str| {
        let first = ["ask", "--model", "mini", "--document", "absent.txt"];
        kept(
            first
                .into_iter()
                .chain(["--question", "Who?", option, value]),
        )
    };
    for (option, value, possible) in [
        ("--seed", "-1", "from 0 to 18446744073709551615"),
        ("--seed", "one", "from 0 to 18446744073709551615"),
        ("--threads", "-1", "a whole number from 0"),
        ("--threads", "99999999999999999999", "a smaller number"),
        ("--top-p", "much", "a number"),
        ("--temperature", "-1", "a number from 0"),
        ("--temperature", "nan", "a number from 0"),
        ("--max-tokens", "-1", "a whole number from 1"),
        ("--top-k", "1.5", "a whole number from 1"),
    ] {
        let refused = ask(option, value);
        refused.refused(&[option, value, possible]);
        assert_eq!(refused.code, Some(2), "{option} {value}");
    }
    ask("--top-p", "2").refused(&["top-p", "2"]);
}

#[test]
fn a_repeating_answer_is_stopped() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let document = folder.path().join("short.txt");
    std::fs::write(&document, "a b.\n").expect("written");
    let document = document.to_str().expect("UTF-8");
    let ask = |extra: &[&str]| {
        let question = "Tell me everything, again and again.";
        let words = ["ask", "--model", "mini", "--question", question];
        let more = ["--document", document, "--max-tokens", "200"];
        kept([&words[..], &more, &["--vault", "off"], extra].concat())
    };
    let answer = ask(&["--json"]).json();
    assert_eq!(answer["finish"], "repetition", "{answer}");
    assert!(whole(&answer, "answer_tokens") < 200);
    let text = ask(&[]);
    let said = &text.succeeded().stderr;
    let note = "note: the answer began to repeat itself and was stopped; ask in other words, or set --repeat-penalty 1.1";
    assert!(said.contains(note), "{said}");
    let with = |penalty: &str| ask(&["--json", "--repeat-penalty", penalty]).json();
    assert_eq!(with("1")["answer"], answer["answer"]);
    assert_ne!(with("2")["finish"], "repetition");
    let tiny_with = |wrong: &str| tiny("ask", &["--repeat-penalty", wrong]);
    for wrong in ["0.5", "2.5", "-1", "NaN"] {
        tiny_with(wrong).refused(&["repeat-penalty", "a number from 1 (off) to 2"]);
    }
    tiny_with("much").refused(&["--repeat-penalty", "much"]);
}
