//! `kept chat`: follow-up questions see earlier turns, the document comes from the vault, and a broken line loses nothing.

use std::path::Path;

use kept_tests::golden;
use kept_tests::terminal::{Run, kept_with_input};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The sample, in a folder with vaults.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().expect("a folder"),
        }
    }

    fn chat(&self, further: &[&str], input: impl AsRef<[u8]>) -> Run {
        let sample = golden::repository().join("assets/sample.txt");
        let sample = sample.to_str().expect("a path");
        let first = [
            "chat",
            "--model",
            "mini",
            "--document",
            sample,
            "--max-tokens",
            "12",
        ];
        let arguments = first.iter().chain(further);
        kept_with_input(self.folder.path(), arguments, input)
    }
}

fn lines(run: &Run) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    run.stdout.lines().map(parse).collect()
}

const QUESTION: &str = "What is the locker code of Ann Quorvin?";

#[test]
fn follow_ups_see_earlier_turns_and_read_only_what_is_new() {
    let place = Place::new();
    let input = format!(
        "{QUESTION}\nWho else has one?\n{}\n{}\n",
        json!({"question": QUESTION, "alone": true, "method": "snapkv", "budget": "35%"}),
        json!({"question": QUESTION, "alone": true, "budget": ""})
    );
    let run = place.chat(&["--json", "--method", "full"], &input);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let answers = lines(&run);
    let [first, second, alone, usual] = answers.as_slice() else {
        panic!("{answers:?}");
    };
    assert_eq!((&first["turns"], &second["turns"]), (&json!(0), &json!(1)));
    assert_eq!(
        (&alone["turns"], &alone["method"]),
        (&json!(0), &json!("snapkv"))
    );
    let tokens = |answer: &Value, field: &str| answer["vault"][field].as_u64().expect(field);
    assert_eq!(tokens(first, "tokens_from_vault"), 0);
    assert!(tokens(second, "tokens_from_vault") > 300, "{second}");
    assert!(tokens(second, "tokens_read") > tokens(alone, "tokens_read"));
    assert!(second["prompt_tokens"].as_u64() > first["prompt_tokens"].as_u64());
    // The method stays, the empty budget is the default.
    assert_eq!(usual["method"], "snapkv");
    assert!(usual["kv_bytes"].as_u64() < alone["kv_bytes"].as_u64());
    // A question that stands alone has the answer of kept ask.
    assert_eq!(alone["answer"], first["answer"]);
}

#[test]
fn broken_lines_and_refusals_do_not_end_a_conversation() {
    let place = Place::new();
    let lines_before = [
        "{\"question\": 1}".to_owned(),
        String::new(),
        json!({"question": QUESTION, "colour": "red"}).to_string(),
        json!({"question": QUESTION, "method": "nosuch"}).to_string(),
        json!({"question": QUESTION, "method": "snapkv", "budget": "lots"}).to_string(),
        json!({"question": " ", "method": "snapkv"}).to_string(),
        "/map".to_owned(),
    ];
    let mut input = lines_before.join("\n").into_bytes();
    input.extend_from_slice(b"\n\xff\xfe\n\xef\xbb\xbf");
    input.extend_from_slice(QUESTION.as_bytes());
    let run = place.chat(&["--json", "--method", "full"], &input);
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert!(run.stderr.contains("7 lines"), "{}", run.stderr);
    let answers = lines(&run);
    assert_eq!(answers.len(), 8);
    for refused in &answers[..7] {
        let said = refused["error"].as_str().expect("a sentence");
        assert!(!said.is_empty() && !said.contains('\n'), "{said}");
    }
    assert_eq!(answers[7]["turns"], 0, "nothing was answered before");
    assert_eq!(answers[7]["question"], QUESTION, "without the mark");
    // A refused line changes no setting.
    assert_eq!(answers[7]["method"], "full");
}

#[test]
fn commands_work_on_piped_lines_and_a_wrong_one_is_named() {
    let place = Place::new();
    let saved = place.folder.path().join("conversation.md");
    let input = format!(
        "{QUESTION}\n/method\tsnapkv[w=8]\n/budget 20%\n/regenerate\n/map\n/save {}\n/alone Who is it?\n/quit\nnever read\n",
        saved.display()
    );
    let run = place.chat(&["--method", "full", "--color", "never"], input.as_bytes());
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(run.stderr.contains("snapkv[w=8]: kept"), "{}", run.stderr);
    assert!(!run.stderr.contains("the model saw"), "{}", run.stderr);
    let text = std::fs::read_to_string(&saved).expect("saved");
    assert_eq!(text.matches(QUESTION).count(), 1, "answered again: {text}");
    let wrong = "/nosuch\n/method\n/method auto[x=1]\n/alone\n/regenerate\n/budget 0\nWho?\n";
    let run = place.chat(&[], wrong.as_bytes());
    assert_eq!(run.code, Some(1));
    assert_eq!(run.stderr.matches("error: ").count(), 7, "{}", run.stderr);
    assert!(run.stderr.contains("/nosuch; /help"), "{}", run.stderr);
    assert!(
        run.stderr.contains("6 lines of the input"),
        "{}",
        run.stderr
    );
    assert!(!run.stdout.is_empty(), "the last line was answered");
}

#[test]
fn the_map_of_an_answer_has_the_earlier_turns_as_a_section_of_their_own() {
    let place = Place::new();
    let [page, json] = ["map.html", "map.json"].map(|name| place.folder.path().join(name));
    let input = format!(
        "{QUESTION}\n/map\nWho else has one?\n/map\n/map {}\n/map {}\n/map x.txt\n",
        page.display(),
        json.display()
    );
    let method = ["--method", "snapkv", "--budget", "40%"];
    let run = place.chat(&[&method[..], &["--color", "always"]].concat(), &input);
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert!(run.stderr.contains("not as x.txt"), "{}", run.stderr);
    let section = "Earlier in this conversation";
    assert_eq!(run.stdout.matches(section).count(), 1, "not at first");
    let (_, after) = run.stdout.split_once(section).expect("a section");
    let plain: String = after
        .split('\u{1b}')
        .filter_map(|s| s.split_once('m'))
        .map(|(_, text)| text)
        .collect();
    assert!(plain.contains(QUESTION), "{plain}");
    assert!(after.contains("turn 1        100 %  100 %"), "{after}");

    let page = std::fs::read_to_string(page).expect("written");
    let (_, after) = page.split_once(section).expect("a section");
    assert!(after.contains("turn 1: 100 % remembered"), "{after}");
    assert!(
        after.contains("<b class=\"k20\">What is the locker code"),
        "{after}"
    );

    let map = std::fs::read_to_string(json).expect("written");
    let map: Value = serde_json::from_str(&map).expect("JSON");
    let earlier = &map["earlier"];
    let text = earlier["text"].as_str().expect("a text");
    assert!(text.starts_with(QUESTION));
    let turn = &earlier["turns"][0];
    assert_eq!(
        (&turn["name"], &turn["share"]),
        (&json!("turn 1"), &json!(1.0))
    );
    assert_eq!(turn["question"], json!([0, QUESTION.len()]));
    let tokens = map["tokens"].as_array().expect("tokens").iter();
    let spans: Vec<(u64, u64)> = tokens
        .filter(|token| token["part"] == "turn")
        .filter_map(|token| Some((token["start"].as_u64()?, token["end"].as_u64()?)))
        .collect();
    assert!(
        spans.windows(2).all(|pair| pair[0].1 == pair[1].0),
        "they tile it"
    );
    let end = spans.last().map(|span| span.1 as usize);
    assert_eq!((spans[0].0, end), (0, Some(text.len())));
}

#[test]
fn a_conversation_is_never_saved_over_its_model_or_document() {
    let place = Place::new();
    let folder = place.folder.path();
    let (model, document) = (folder.join("copy.gguf"), folder.join("copy.txt"));
    let copy =
        |from: &str, to: &Path| std::fs::copy(golden::repository().join(from), to).expect("a copy");
    let sizes = [
        copy("assets/mini.gguf", &model),
        copy("assets/sample.txt", &document),
    ];
    let arguments = [
        "chat".as_ref(),
        "--model".as_ref(),
        model.as_os_str(),
        "--document".as_ref(),
        document.as_os_str(),
        "--max-tokens".as_ref(),
        "2".as_ref(),
    ];
    let input = format!(
        "Who?\n/save {}\n/save {}\n",
        model.display(),
        document.display()
    );
    let run = kept_with_input(folder, arguments, input);
    assert_eq!(run.code, Some(1));
    assert_eq!(
        run.stderr.matches("would be lost").count(),
        2,
        "{}",
        run.stderr
    );
    let size = |path: &Path| std::fs::metadata(path).expect("still there").len();
    let after = [size(&model), size(&document)];
    assert_eq!(sizes, after);
}

#[test]
fn the_prompt_is_shown_in_the_models_template() {
    let place = Place::new();
    let run = place.chat(&["--json", "--show-prompt"], "What is it?\nWhy?\n");
    let answers = lines(&run);
    let prompt = answers[1]["prompt"].as_str().expect("a prompt");
    let parts = [
        "What is it?",
        answers[0]["answer"].as_str().expect("text").trim(),
        "Why?",
    ];
    let mut rest = prompt;
    for part in parts {
        let (_, after) = rest
            .split_once(part)
            .unwrap_or_else(|| panic!("{part} in {prompt}"));
        rest = after;
    }
    assert!(prompt.contains("<|im_start|>assistant"), "{prompt}");
    assert!(answers[0]["prompt"].is_string());
}

#[test]
fn a_document_comes_from_the_standard_input() {
    let place = Place::new();
    let sample = golden::repository().join("assets/sample.txt");
    let text = std::fs::read(&sample).expect("the sample");
    let ask = |document: &str, input: &[u8]| {
        let arguments = [
            "ask",
            "--model",
            "mini",
            "--document",
            document,
            "--question",
            QUESTION,
            "--json",
        ];
        kept_with_input(place.folder.path(), arguments, input)
    };
    let (file, piped) = (ask(sample.to_str().expect("a path"), b""), ask("-", &text));
    let [file, piped] = [file, piped].map(|run| {
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        lines(&run).remove(0)
    });
    assert_eq!(piped["answer"], file["answer"]);
    assert_eq!(piped["sources"][0]["text"], file["sources"][0]["text"]);
    // A named pipe, as shells make it of `<(command)`.
    let pipe = place.folder.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo").success());
    let named = std::thread::scope(|scope| {
        scope.spawn(|| std::fs::write(&pipe, &text).expect("written"));
        ask(pipe.to_str().expect("a path"), b"")
    });
    assert_eq!(named.code, Some(0), "{}", named.stderr);
    assert_eq!(lines(&named).remove(0)["answer"], file["answer"]);
    // Nothing, and the input of a conversation.
    let empty = ask("-", b"");
    assert_eq!(empty.code, Some(1));
    assert!(empty.stderr.contains("standard input"), "{}", empty.stderr);
    let chat = ["chat", "--model", "mini", "--document", "-"];
    let refused = kept_with_input(place.folder.path(), chat, QUESTION);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("as a file"), "{}", refused.stderr);
}
