//! `kept eval needle` as a script uses it: a line per case, a summary, a picture, refusals in one line.

use std::ffi::OsString;

use kept_tests::golden;
use kept_tests::terminal::{Run, kept};

fn needle(extra: &[&str]) -> Run {
    let sample = golden::repository().join("assets/sample.txt");
    let mut arguments: Vec<OsString> = vec!["eval".into(), "needle".into()];
    arguments.extend(["--data".into(), sample.into()]);
    for (name, value) in [
        ("--lengths", "300,512"),
        ("--depths", "0,100"),
        ("--budgets", "25%,5"),
        ("--methods", "full,snapkv"),
    ] {
        if !extra.contains(&name) {
            arguments.extend([name.into(), value.into()]);
        }
    }
    arguments.extend(extra.iter().map(Into::into));
    kept(arguments)
}

#[test]
fn every_case_is_a_line_and_counted_in_the_summary() {
    let lines = needle(&["--json"]).json_lines();
    let (summary, cases) = lines.split_last().expect("lines");
    // Full once, snapkv at two budgets; two lengths, two depths.
    assert_eq!(cases.len(), 3 * 4);
    for case in cases {
        let refused = case["refused"].is_string();
        assert_eq!(refused, case["budget"] == "5", "{case}");
        assert_eq!(refused, case["answer"].is_null(), "{case}");
        if !refused {
            let answer = case["answer"].as_str().expect("an answer");
            let value = case["expected"].as_str().expect("a value");
            assert_eq!(case["correct"], answer.contains(value), "{case}");
            let (length, tokens) = (case["length"].as_f64(), case["prompt_tokens"].as_f64());
            let share = tokens.expect("tokens") / length.expect("a length");
            assert!((0.8..=1.1).contains(&share), "{case}");
        }
    }
    let summary = summary["summary"].as_array().expect("rows");
    assert_eq!(summary.len(), 3);
    let full: Vec<_> = cases.iter().filter(|c| c["method"] == "full").collect();
    let right = full.iter().filter(|c| c["correct"] == true).count();
    assert!(right >= 3, "the built-in model reads short texts: {full:?}");
    assert_eq!(summary[0]["share"], right as f64 / 4.0);
    assert!(summary[2]["share"].is_null(), "refused");
}

/// A method that does not support the cache type is a refused case; the others run.
#[test]
fn a_refused_cache_type_is_a_case() {
    let words = [
        "--json",
        "--methods",
        "ems,snapkv",
        "--budgets",
        "25%",
        "--cache",
        "q8_0",
    ];
    let lines =
        needle(&[&words[..], &["--lengths", "300", "--depths", "50"]].concat()).json_lines();
    let of = |method: &str| {
        let case = lines.iter().find(|line| line["method"] == method);
        case.unwrap_or_else(|| panic!("no case of {method}: {lines:?}"))
    };
    let refused = of("ems")["refused"].as_str().expect("refused");
    assert!(
        refused.contains("a cache of type q8_0 does not work with EMS"),
        "{refused}"
    );
    assert!(of("snapkv")["answer"].is_string(), "{lines:?}");
}

/// An interrupted grid continues where it stopped; its file records the finished cases.
#[test]
fn an_interrupted_grid_resumes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let grid = folder.path().join("cases.jsonl");
    let picture = folder.path().join("grid.svg");
    let of = |extra: &[&str]| {
        let mut arguments = vec!["--grid", grid.to_str().expect("a path"), "--json"];
        arguments.extend(extra);
        needle(&arguments)
    };
    let whole = of(&["--picture", picture.to_str().expect("a path")]).json_lines();
    let kept = std::fs::read_to_string(&grid).expect("the grid's file");
    let lines: Vec<&str> = kept.lines().collect();
    assert_eq!(lines.len(), 1 + 12, "a heading and twelve cases");
    assert!(lines[0].contains("haystack_tokens"), "{}", lines[0]);
    let svg = std::fs::read_to_string(&picture).expect("the picture");
    assert!(svg.contains("512 tokens, depth 100 %"));

    // As if interrupted in the middle of the seventh case.
    let cut: String = lines[..7].iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(&grid, cut + &lines[7][..20]).expect("written");
    let again = of(&[]).json_lines();
    assert_eq!(again.len(), 6 + 1, "six cases and the summary");
    assert_eq!(again.last(), whole.last(), "the same summary");
    let mut before: Vec<&str> = kept.lines().collect();
    let kept = std::fs::read_to_string(&grid).expect("the grid's file");
    let mut after: Vec<&str> = kept.lines().collect();
    before.sort_unstable();
    after.sort_unstable();
    assert_eq!(before, after, "every case once");
    assert_eq!(of(&[]).json_lines().len(), 1, "nothing is left to ask");

    let summary = &whole.last().expect("a summary")["summary"][0];
    let of = |name: &str| summary[name].as_f64().expect("a number");
    assert_eq!(summary["cases"], 4);
    assert!(of("low") <= of("share") && of("share") <= of("high"));

    let other = folder.path().join("other.jsonl");
    std::fs::write(&other, "some text\n").expect("written");
    needle(&["--grid", other.to_str().expect("a path")]).refused(&["other.jsonl", "no grid"]);
    assert_eq!(
        std::fs::read_to_string(&other).expect("read"),
        "some text\n"
    );
    let changed = lines[0].replace("haystack_tokens\":", "haystack_tokens\":1");
    std::fs::write(&other, changed + "\n").expect("written");
    needle(&["--grid", other.to_str().expect("a path")]).refused(&["another file"]);
}

/// One method with different parameters: separate cases and summaries, distinguished in the grid's file. Lines from a
/// file without labels belong to the method at its defaults.
#[test]
fn a_grid_separates_parameters_of_one_method() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let grid = folder.path().join("cases.jsonl");
    let of = |methods: &str| {
        let grid = grid.to_str().expect("a path");
        let few = ["--lengths", "300", "--depths", "0", "--budgets", "25%"];
        needle(&[&["--grid", grid, "--json", "--methods", methods][..], &few].concat()).json_lines()
    };
    let lines = of("snapkv,snapkv[w=8]");
    let labels = |lines: &[serde_json::Value]| -> Vec<String> {
        let label = |line: &serde_json::Value| line["label"].as_str().expect("a label").to_owned();
        lines.iter().map(label).collect()
    };
    assert_eq!(labels(&lines[..2]), ["snapkv", "snapkv[w=8]"]);
    assert_eq!(lines[1]["method"], "snapkv");
    let summary = lines[2]["summary"].as_array().expect("rows");
    assert_eq!(labels(summary), ["snapkv", "snapkv[w=8]"]);
    assert_eq!(of("snapkv[w=08]").len(), 1, "nothing is left to ask");

    let file = std::fs::read_to_string(&grid).expect("the grid's file");
    let old = file.replace("\"label\":\"snapkv\",", "");
    assert_ne!(old, file);
    std::fs::write(&grid, old).expect("written");
    assert_eq!(of("snapkv").len(), 1, "nothing is left to ask");
    assert_eq!(of("snapkv[w=4]").len(), 2, "a case and the summary");
}

#[test]
fn eval_names_invalid_input() {
    needle(&["--lengths", "100"]).refused(&["--lengths 100", "256"]);
    needle(&["--lengths", "5000"]).refused(&["5000", "4096"]);
    needle(&["--lengths", "4000"]).refused(&["sample.txt", "4000", "more text"]);
    needle(&["--depths", "120"]).refused(&["--depths 120"]);
    needle(&["--budgets", "ten"]).refused(&["ten"]);
    needle(&["--methods", "snapvk"]).refused(&["snapvk"]);
    needle(&["--methods", "snapkv[w=0]"]).refused(&["w=0"]);
    needle(&["--methods", "h2o,h2o"]).refused(&["h2o", "twice"]);
    needle(&["--repeats", "0"]).refused(&["--repeats 0"]);
}
