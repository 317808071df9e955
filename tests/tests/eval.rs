//! `kept eval needle` as a script uses it: a line for each case, a summary, a picture, refusals in one line.

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
fn every_case_is_a_line_and_the_summary_adds_them_up() {
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
    assert!(
        right >= 3,
        "the model in the box reads short texts: {full:?}"
    );
    assert_eq!(summary[0]["share"], right as f64 / 4.0);
    assert!(summary[2]["share"].is_null(), "refused");
}

#[test]
fn bad_input_is_named() {
    needle(&["--lengths", "100"]).refused(&["--lengths 100", "256"]);
    needle(&["--lengths", "5000"]).refused(&["5000", "4096"]);
    needle(&["--lengths", "4000"]).refused(&["sample.txt", "4000", "more text"]);
    needle(&["--depths", "120"]).refused(&["--depths 120"]);
    needle(&["--budgets", "ten"]).refused(&["ten"]);
    needle(&["--methods", "snapvk"]).refused(&["snapvk"]);
    needle(&["--repeats", "0"]).refused(&["--repeats 0"]);
}
