//! Every method selects what `oracle.py` selects: methods without a model, on naive attention.

use kept_policies::{Pos, build};
use kept_tests::cases::Case;
use kept_tests::golden;
use kept_tests::selecting::{Measured, Replay, cut_by, kept, positions};

#[test]
fn drawn_cases_are_kept_as_the_oracle_keeps_them() {
    let cases = golden::json("selections.json");
    let cases = cases.as_array().expect("a list of cases");
    assert!(cases.len() >= 60);
    for case in cases.iter().map(Case::from_json) {
        let found = kept(&case, Measured::Slowly);
        assert_eq!(found, case.kept, "{}", case.describe());
        for head in &found {
            // PyramidKV's schedule and the literal ChunkKV keep their own number of rows, not the budget; their sums
            // are tested separately.
            let literal = case.set.iter().any(|(_, value)| value == "literal");
            if case.method != "pyramidkv" && !literal {
                assert_eq!(
                    head.len(),
                    case.budget.min(case.n),
                    "the budget is used: {}",
                    case.describe()
                );
            }
            assert!(
                head.is_sorted_by(|a, b| a < b),
                "ascending: {}",
                case.describe()
            );
        }
    }
}

/// Nothing that a method learns from one prompt changes what it keeps of the next.
#[test]
fn a_method_starts_every_prompt_afresh() {
    for file in [
        "chunkkv",
        "h2o",
        "tova",
        "scissorhands",
        "treekv",
        "pyramidinfer",
        "kvzip",
        "adakv",
        "merged",
    ] {
        let cases = golden::packed(&format!("selections/{file}.json.gz"));
        let cases = cases.as_array().expect("cases").iter().step_by(25);
        for case in cases.map(Case::from_json) {
            let method = build(&case.method, &case.set).expect("a method");
            let first = cut_by(&*method, &case, Measured::Slowly).selection;
            let second = cut_by(&*method, &case, Measured::Slowly).selection;
            assert_eq!(second, first, "{}", case.describe());
            let found = positions(&first.retention, &case);
            assert_eq!(found, case.kept, "{}", case.describe());
        }
    }
}

#[test]
fn tova_drops_what_the_last_query_sees_least() {
    let mut cache = Replay::of_one_head("tova", &[("sinks", "1")], 3, &[0.4, 0.3, 0.3]);
    assert_eq!(
        cache.answer(Pos(3), &[0.0, 0.5, 0.3, 0.2]),
        [0, 1, 3],
        "a sink and the newest stay"
    );
    assert_eq!(cache.answer(Pos(4), &[0.1, 0.2, 0.4, 0.3]), [0, 3, 4]);
    let free = [("sinks", "0"), ("force_last", "false")];
    let mut cache = Replay::of_one_head("tova", &free, 3, &[0.4, 0.3, 0.3]);
    assert_eq!(
        cache.answer(Pos(3), &[0.1, 0.4, 0.4, 0.1]),
        [0, 1, 2],
        "of equals the later goes"
    );
}

#[test]
fn the_tree_keeps_the_past_half_as_dense_every_sweep() {
    // With fixed scores (the ablation) the densities of the specification are exact: 128 rows, 512 tokens, bins of 64.
    let set = [
        ("recent", "0"),
        ("sinks", "0"),
        ("select", "left"),
        ("block", "1"),
    ];
    let mut cache = Replay::of_one_head("treekv", &set, 128, &[1.0]);
    let mut left = Vec::new();
    for at in 1..512 {
        left = cache.answer(Pos(at), &[]);
    }
    let mut bins = [0; 8];
    left.iter().for_each(|p| bins[*p as usize / 64] += 1);
    assert_eq!(bins, [8, 8, 8, 8, 16, 16, 32, 32]);
}
