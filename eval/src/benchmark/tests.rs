//! Scores against LongBench's own program, and the files of both benchmarks.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use kept_engine::PromptForm;
use serde::Deserialize;
use serde_json::json;

use super::{BenchmarkError, Case, Gsm8k, LongBench};

#[derive(Deserialize)]
struct Golden {
    classes: Vec<String>,
    cases: Vec<Scored>,
}

#[derive(Deserialize)]
struct Scored {
    task: String,
    answer: String,
    accepted: Vec<String>,
    score: f64,
}

/// A LongBench folder whose tasks have these lines.
fn longbench(folder: &Path, lines: &HashMap<String, Vec<serde_json::Value>>) -> LongBench {
    let prompts: HashMap<&String, &str> = lines
        .keys()
        .map(|task| {
            (
                task,
                "Read this.\n\n{context}\n\nQuestion: {input}\nAnswer: ",
            )
        })
        .collect();
    let lengths: HashMap<&String, usize> = lines.keys().map(|task| (task, 32)).collect();
    fs::create_dir_all(folder.join("config")).unwrap();
    fs::create_dir_all(folder.join("data")).unwrap();
    let write =
        |name: &str, value: serde_json::Value| fs::write(folder.join(name), value.to_string());
    write("config/dataset2prompt.json", json!(prompts)).unwrap();
    write("config/dataset2maxlen.json", json!(lengths)).unwrap();
    for (task, lines) in lines {
        let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
        fs::write(folder.join(format!("data/{task}.jsonl")), lines).unwrap();
    }
    LongBench::open(folder).unwrap()
}

#[test]
fn scores_equal_those_of_longbench() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/golden/benchmark_scores.json"
    );
    let golden: Golden = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let mut lines: HashMap<String, Vec<serde_json::Value>> = HashMap::new();
    for case in &golden.cases {
        lines.entry(case.task.clone()).or_default().push(json!({
            "input": "Why?", "context": "Because.", "answers": case.accepted, "length": 1,
            "all_classes": golden.classes, "dataset": case.task, "language": "en", "_id": "0",
        }));
    }
    let folder = tempfile::tempdir().unwrap();
    let data = longbench(folder.path(), &lines);
    assert_eq!(data.tasks().len(), 18);
    let mut cases: HashMap<&str, std::vec::IntoIter<Case>> = HashMap::new();
    for task in data.tasks() {
        cases.insert(task, data.cases(task, usize::MAX).unwrap().into_iter());
    }
    for scored in &golden.cases {
        let case = cases.get_mut(scored.task.as_str()).unwrap().next().unwrap();
        let score = case.score(&scored.answer);
        assert!(
            (score - scored.score).abs() < 1e-7,
            "{}: {score}, not {}: {:?} for {:?}",
            scored.task,
            scored.score,
            scored.answer,
            scored.accepted
        );
    }
    assert_eq!(golden.cases.len(), 360);
}

#[test]
fn longbench_prompt_is_split_behind_its_context() {
    let folder = tempfile::tempdir().unwrap();
    let line =
        json!({"input": "Who?", "context": "Ann came.", "answers": ["Ann"], "all_classes": null});
    let lines = ["qasper", "lcc"].map(|task| (task.to_owned(), vec![line.clone(), line.clone()]));
    let data = longbench(folder.path(), &HashMap::from(lines));
    let cases = data.cases("qasper", 1).unwrap();
    let [case] = cases.as_slice() else {
        panic!("{} cases", cases.len());
    };
    assert_eq!(case.document, "Read this.\n\nAnn came.");
    assert_eq!(case.question, "\n\nQuestion: Who?\nAnswer: ");
    assert_eq!((case.form, case.max_tokens), (PromptForm::Chat, 32));
    assert_eq!(data.cases("lcc", 9).unwrap()[1].form, PromptForm::Plain);

    for (task, word) in [
        ("dureader", "Chinese words"),
        ("squad", "not of LongBench"),
        ("trec", "config"),
    ] {
        let refused = data.cases(task, 1).unwrap_err().to_string();
        assert!(
            refused.contains(task) && refused.contains(word),
            "{refused}"
        );
    }
    fs::write(
        folder.path().join("data/qasper.jsonl"),
        format!("{line}\n{{}}\n"),
    )
    .unwrap();
    let broken = data.cases("qasper", 9).unwrap_err();
    assert!(
        matches!(broken, BenchmarkError::Content { line: Some(2), .. }),
        "{broken}"
    );
    let empty = tempfile::tempdir().unwrap();
    let refused = LongBench::open(empty.path()).unwrap_err().to_string();
    assert!(
        refused.contains("dataset2prompt.json") && refused.contains("give the folder"),
        "{refused}"
    );
}

#[test]
fn gsm8k_problems_follow_solved_ones() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, lines: &[serde_json::Value]| {
        let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
        fs::write(folder.path().join(name), lines).unwrap();
    };
    let solved = json!({"question": "Two and two?", "answer": "2+2 = <<2+2=4>>4 in all.\n#### 4"});
    write("train.jsonl", &[solved.clone(), solved.clone()]);
    write(
        "test.jsonl",
        &[json!({"question": "A thousand and one?", "answer": "#### 1,001"})],
    );
    let cases = Gsm8k::open(folder.path()).unwrap().cases(1, 9);
    let [case] = cases.as_slice() else {
        panic!("{} cases", cases.len());
    };
    assert_eq!(
        case.document,
        "Question: Two and two?\nAnswer: 2+2 = 4 in all.\nThe answer is 4.\n\n"
    );
    assert_eq!(case.question, "Question: A thousand and one?\nAnswer:");
    for right in [
        "1000 + 1 = 1001",
        "It is 1,001.00",
        "The answer is $1001.\n\nIn 3 steps.",
        "1001\n\nQuestion: And 3?\nAnswer: 3",
        "The answer is 5. No: the answer is 1001 euros",
    ] {
        assert_eq!(case.score(right), 1.0, "{right}");
    }
    for wrong in [
        "",
        "-1001",
        "1001 or 1002",
        "The answer is 100.1",
        "1001.5",
        "10010",
    ] {
        assert_eq!(case.score(wrong), 0.0, "{wrong}");
    }
    write(
        "test.jsonl",
        &[json!({"question": "Why?", "answer": "Because."})],
    );
    let broken = Gsm8k::open(folder.path()).unwrap_err().to_string();
    assert!(
        broken.contains("line 1") && broken.contains("####"),
        "{broken}"
    );
}
