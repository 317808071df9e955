//! `kept chat`: follow-up questions see earlier turns, the document comes from the vault, and a broken line loses nothing.

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

    fn chat(&self, further: &[&str], input: &str) -> Run {
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
        "{QUESTION}\nWho else has one?\n{}\n",
        json!({"question": QUESTION, "alone": true, "method": "snapkv", "budget": "25%"})
    );
    let run = place.chat(&["--json", "--method", "full"], &input);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let answers = lines(&run);
    let [first, second, alone] = answers.as_slice() else {
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
    // A question that stands alone has the answer of kept ask.
    assert_eq!(alone["answer"], first["answer"]);
}

#[test]
fn broken_lines_and_refusals_do_not_end_a_conversation() {
    let place = Place::new();
    let input = format!(
        "{{\"question\": 1}}\n\n{}\n{}\n{}\n{QUESTION}\n",
        json!({"question": QUESTION, "colour": "red"}),
        json!({"question": QUESTION, "method": "nosuch"}),
        json!({"question": QUESTION, "budget": "lots"}),
    );
    let run = place.chat(&["--json"], &input);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let answers = lines(&run);
    assert_eq!(answers.len(), 5);
    for refused in &answers[..4] {
        let said = refused["error"].as_str().expect("a sentence");
        assert!(!said.is_empty() && !said.contains('\n'), "{said}");
    }
    assert_eq!(answers[4]["turns"], 0, "nothing was answered before");
    assert!(answers[4]["answer"].is_string());
}

#[test]
fn commands_work_on_piped_lines_and_a_wrong_one_is_named() {
    let place = Place::new();
    let saved = place.folder.path().join("conversation.md");
    let input = format!(
        "{QUESTION}\n/method snapkv[w=8]\n/budget 20%\n/regenerate\n/map\n/save {}\n/alone Who is it?\n/quit\nnever read\n",
        saved.display()
    );
    let run = place.chat(&["--method", "full", "--color", "never"], &input);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(run.stderr.contains("snapkv[w=8]: kept"), "{}", run.stderr);
    assert!(!run.stderr.contains("the model saw"), "{}", run.stderr);
    let text = std::fs::read_to_string(&saved).expect("saved");
    assert_eq!(text.matches(QUESTION).count(), 1, "answered again: {text}");
    let run = place.chat(&[], "/nosuch\n");
    assert_eq!(run.code, Some(1));
    assert!(run.stderr.contains("/nosuch; /help"), "{}", run.stderr);
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
