//! AdaKV, KeyDiff, Expected Attention, PyramidInfer and Scissorhands keep what their numpy twins say, on five hundred drawn cases
//! each; CaM merges as its does. `golden/selections_further.py` makes the cases.

use kept_policies::{Safeguard, geometric_rows, merge_probability};
use kept_tests::cases::Case;
use kept_tests::golden;
use kept_tests::selecting::{Measured, kept};

fn hold(method: &str) {
    let cases = golden::packed(&format!("selections/{method}.json.gz"));
    let cases = cases.as_array().expect("a list of cases");
    assert!(cases.len() >= 500, "{method}: {} cases", cases.len());
    let (mut untouched, mut ragged, mut groups) = (0, 0, [0; 8]);
    for value in cases {
        let case = Case::from_json(value);
        assert_eq!(case.method, method);
        for measured in [Measured::Slowly, Measured::ByKernel] {
            let found = kept(&case, measured);
            assert_eq!(found, case.kept, "{measured:?}: {}", case.describe());
        }
        let rows: Vec<usize> = case.kept.iter().map(Vec::len).collect();
        if method != "pyramidinfer" {
            let budget = case.budget.min(case.n) * case.kv_heads;
            assert_eq!(rows.iter().sum::<usize>(), budget, "{}", case.describe());
        }
        ragged += usize::from(rows.iter().any(|r| *r != rows[0]));
        untouched += usize::from(case.budget >= case.n);
        groups[case.q_heads / case.kv_heads] += 1;
    }
    assert!(untouched >= 50, "{untouched} budgets that hold everything");
    assert!([1, 2, 4, 7].into_iter().all(|group| groups[group] >= 50));
    assert_eq!(ragged >= 100, method == "adakv", "{ragged} ragged cases");
}

#[test]
fn keydiff() {
    hold("keydiff");
}

#[test]
fn expected_attention() {
    hold("expected_attention");
}

#[test]
fn adakv() {
    hold("adakv");
}

#[test]
fn pyramidinfer() {
    hold("pyramidinfer");
}

#[test]
fn scissorhands() {
    hold("scissorhands");
}

#[test]
fn rows_are_split_as_in_the_worked_example() {
    let f = golden::json("fixtures.json")["adakv"].clone();
    let scores: Vec<Vec<f32>> = (f["scores"].as_array().expect("heads").iter())
        .map(|head| golden::ids(head).iter().map(|&s| s as f32).collect())
        .collect();
    let scores: Vec<&[f32]> = scores.iter().map(Vec::as_slice).collect();
    let split = Safeguard::Blend.split(&scores, 3, 0.34);
    let split: Vec<u32> = split.iter().map(|&rows| rows as u32).collect();
    assert_eq!(split, golden::ids(&f["budgets"]));
    assert_eq!(Safeguard::Reserve.split(&scores, 3, 0.0), [5, 1]);
    assert_eq!(Safeguard::Reserve.split(&scores, 3, 1.0), [3, 3]);
}

#[test]
fn rows_fall_geometrically_and_sum_to_the_budget() {
    let rows = geometric_rows(100, 12, 39.0);
    assert_eq!(rows.iter().sum::<usize>(), 1200);
    assert!(rows.is_sorted_by(|a, b| a >= b), "{rows:?}");
    let ratio = rows[0] as f64 / rows[11] as f64;
    assert!((ratio - 39.0).abs() < 3.0, "{ratio}");
    assert_eq!(geometric_rows(7, 1, 39.0), [7]);
}

#[test]
fn merges_are_as_probable_as_the_attention_says() {
    let p = |own: f32, targets: &[f32]| merge_probability(own, targets.iter().copied());
    assert_eq!(p(0.2, &[0.4, 0.4]), 0.5);
    assert_eq!(p(0.9, &[0.4]), 1.0);
    assert_eq!(p(0.1, &[0.0, 0.0]), 1.0);
    assert_eq!(p(0.0, &[0.0]), 0.0);
}
