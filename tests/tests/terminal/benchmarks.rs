//! `kept eval longbench` and `gsm8k` as a script uses them, with the built-in model and files made here.

use std::ffi::OsString;
use std::path::Path;

use kept_tests::golden;
use kept_tests::terminal::{Run, kept};
use serde_json::{Value, json};

fn write(folder: &Path, name: &str, lines: &[Value]) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
    std::fs::write(path, lines.join("\n")).expect("a file");
}

fn eval(benchmark: &str, data: &Path, extra: &[&str]) -> Run {
    let mut arguments: Vec<OsString> = vec!["eval".into(), benchmark.into()];
    arguments.extend(["--data".into(), data.into()]);
    arguments.extend(["--methods", "full,snapkv", "--budgets", "25%,5"].map(Into::into));
    arguments.extend(extra.iter().map(Into::into));
    kept(arguments)
}

/// The built-in model looks up a code in the sample, and no longer finds it where the middle of the prompt is missing.
#[test]
fn longbench_scores_every_method_on_every_task() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path();
    let prompt = "{context}\n\nQuestion: {input}";
    let prompts = json!({"qasper": prompt, "hotpotqa": prompt});
    write(data, "config/dataset2prompt.json", &[prompts]);
    let lengths = json!({"qasper": 24, "hotpotqa": 8});
    write(data, "config/dataset2maxlen.json", &[lengths]);
    let path = golden::repository().join("assets/sample.txt");
    let sample = std::fs::read_to_string(path).expect("the sample");
    let line = json!({
        "input": "What is the gate code of Edgar Tollen?", "context": sample, "answers": ["no", "2906"],
    });
    write(data, "data/qasper.jsonl", &[line.clone(), line.clone()]);
    write(data, "data/hotpotqa.jsonl", &[line]);

    let lines = eval("longbench", data, &["--json"]).json_lines();
    let (summary, answers) = lines.split_last().expect("lines");
    assert_eq!(answers.len(), 3 * 3, "three runs, three cases");
    for answer in answers {
        assert_eq!(
            answer["refused"].is_string(),
            answer["budget"] == "5",
            "{answer}"
        );
        assert_eq!(
            answer["score"].is_null(),
            answer["budget"] == "5",
            "{answer}"
        );
    }
    let full = &summary["summary"][0];
    let score = full["tasks"]["qasper"]["score"].as_f64().expect("a score");
    assert!(score > 10.0, "the code is found: {answers:?}");
    assert_eq!(full["tasks"]["qasper"]["answered"], 2);
    assert_eq!(summary["summary"][2]["average"], Value::Null);

    let cut = eval(
        "longbench",
        data,
        &["--tasks", "qasper", "--limit", "1", "--length", "200"],
    );
    let table = &cut.succeeded().stdout;
    assert!(table.contains("| method | budget | qasper |"), "{table}");
    assert!(
        table.contains("| `full` |  | 0.0 |") && table.contains("refused"),
        "{table}"
    );

    eval("longbench", data, &["--tasks", "dureader"]).refused(&["dureader", "Chinese"]);
    eval("longbench", data, &["--length", "999999"]).refused(&["--length 999999", "4096"]);
    eval("longbench", data, &["--limit", "0"]).refused(&["--limit 0"]);
    eval("longbench", &data.join("data"), &[]).refused(&["dataset2prompt.json", "give the folder"]);
}

#[test]
fn gsm8k_asks_behind_solved_examples() {
    let folder = tempfile::tempdir().expect("a folder");
    let solved = |a: u32, b: u32| {
        let (question, sum) = (format!("What is {a} and {b}?"), a + b);
        json!({"question": question, "answer": format!("{a}+{b} = <<{a}+{b}={sum}>>{sum}\n#### {sum}")})
    };
    let many: Vec<Value> = (1..40).map(|n| solved(n, n + 3)).collect();
    write(folder.path(), "train.jsonl", &many);
    write(folder.path(), "test.jsonl", &[solved(4, 5), solved(7, 7)]);
    let words = ["--json", "--shots", "30", "--limit", "1"];
    let lines = eval("gsm8k", folder.path(), &words).json_lines();
    let (summary, answers) = lines.split_last().expect("lines");
    assert_eq!((answers.len(), &answers[0]["answers"]), (3, &json!(["9"])));
    let tokens = answers[0]["prompt_tokens"].as_u64().expect("tokens");
    assert!(tokens > 300, "{tokens}");
    assert_eq!(summary["summary"][0]["tasks"]["gsm8k"]["answered"], 1);
    eval("gsm8k", folder.path(), &["--shots", "40"]).refused(&["--shots 40", "39"]);
}
