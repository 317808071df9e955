//! CaM against the oracle: the merged values of kept tokens after selection and during decode, in expectation and with
//! the same uniform random numbers. `golden/decoding.py` generates the cases.

use std::collections::BTreeMap;

use kept_policies::{Pos, Retention, Selection, ValueMerge, merge_probability};
use kept_tests::cases::{Case, Probabilities};
use kept_tests::golden;
use kept_tests::selecting::{Measured, Replay, cut, kept};
use serde_json::Value;

#[test]
fn merges_are_as_probable_as_the_attention_says() {
    assert_eq!(merge_probability(0.2, 0.4), 0.5);
    assert_eq!(merge_probability(0.9, 0.4), 1.0);
    assert_eq!(merge_probability(0.1, 0.0), 1.0);
    assert_eq!(merge_probability(0.0, 0.0), 0.0);
}

/// The selection from the prompt of a case, with its value merges.
fn selection(case: &Case) -> Selection {
    let cut = cut(case, Measured::Slowly);
    assert!(cut.plan.merges_values, "announced: {}", case.describe());
    cut.selection
}

/// Per KV head, the values of the kept tokens after the merges.
fn merged_values(case: &Case, value_merges: &[ValueMerge]) -> Vec<Vec<f32>> {
    let dim = case.head_dim;
    let value_of =
        |head: usize, token: u32| &case.v[(head * case.n + token as usize) * dim..][..dim];
    let mut values: Vec<Vec<f32>> = (case.kept.iter().enumerate())
        .map(|(head, kept)| {
            kept.iter()
                .flat_map(|&t| value_of(head, t))
                .copied()
                .collect()
        })
        .collect();
    for spread in value_merges {
        let targets = values[spread.head].chunks_exact_mut(dim);
        for target in targets.skip(spread.first).take(spread.count) {
            let from = value_of(spread.head, spread.from.0);
            target
                .iter_mut()
                .zip(from)
                .for_each(|(t, v)| *t += spread.weight * v);
        }
    }
    values
}

fn assert_values(found: &[Vec<f32>], expected: &Value, what: &str) {
    for (head, found) in found.iter().enumerate() {
        let expected: Vec<f32> = serde_json::from_value(expected[head].clone()).expect("values");
        assert_eq!(found.len(), expected.len(), "{what}");
        for (found, expected) in found.iter().zip(expected) {
            let near = (found - expected).abs() < 1e-5 * expected.abs().max(1.0);
            assert!(near, "{what}: {found} {expected}");
        }
    }
}

fn samples(case: &Case) -> bool {
    case.set.iter().any(|(_, value)| value == "sample")
}

/// The same case with a seed whose random numbers, after those that the selection from the prompt draws, are the case's
/// own: the oracle's answers draw from the first number on.
fn rewound(case: &Case) -> Case {
    // The generator's state is its seed, and grows by this with every number (splitmix64).
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let drawn = case.kept.iter().map(|kept| {
        let last = kept.last().map_or(0, |last| *last as usize);
        // One number per evicted token with a kept token after it.
        last + 1 - kept.len()
    });
    let back = STEP.wrapping_mul(drawn.sum::<usize>() as u64);
    let mut case = case.clone();
    for (_, seed) in case.set.iter_mut().filter(|(name, _)| name == "seed") {
        *seed = (seed.parse::<u64>().expect("a seed"))
            .wrapping_sub(back)
            .to_string();
    }
    case
}

/// CaM adds to kept values what the oracle adds, and does not change the selection.
#[test]
fn evicted_values_are_merged_as_the_oracle_merges_them() {
    let cases = golden::packed("selections/merged.json.gz");
    let cases = cases.as_array().expect("cases");
    assert!(cases.len() >= 500, "{} cases", cases.len());
    let (mut merged, mut drawn, mut groups) = (0, 0, [0; 8]);
    for value in cases {
        let case = Case::from_json(value);
        for measured in [Measured::Slowly, Measured::ByKernel] {
            assert_eq!(kept(&case, measured), case.kept, "{}", case.describe());
        }
        let value_merges = selection(&case).value_merges;
        merged += value_merges.len();
        drawn += usize::from(samples(&case));
        groups[case.q_heads / case.kv_heads] += 1;
        let values = merged_values(&case, &value_merges);
        assert_values(&values, &value["values"], &case.describe());
        if samples(&case) {
            let whole = |s: &ValueMerge| (s.weight * s.count as f32 - 1.0).abs() < 1e-6;
            assert!(value_merges.iter().all(whole), "all or nothing");
        }
    }
    assert!(
        merged > 1000 && drawn > 150,
        "{merged} merges, {drawn} drawn cases"
    );
    assert!([1, 2, 4, 7].into_iter().all(|group| groups[group] >= 50));
}

/// On top of each method that evicts during decode: source, target and share of every merge, step by step, and the
/// final values.
#[test]
fn values_are_merged_while_answering_as_the_oracle_merges_them() {
    let cases = golden::packed("selections/merged_while_answering.json.gz");
    let cases = cases.as_array().expect("cases");
    assert!(cases.len() >= 200);
    let (mut merges, mut drawn) = (0, 0);
    for golden in cases {
        let case = Case::from_json(golden);
        let steps = golden["answer"].as_u64().expect("steps") as usize;
        let cut = cut(&rewound(&case), Measured::Slowly);
        let (plan, what) = (&cut.plan, case.describe());
        assert!(
            plan.merges_values_in_decode && plan.needs_probabilities,
            "{what}"
        );
        let mut replay = Replay::new(cut.state, case.q_heads, &case.kept);
        let (n, dim) = (case.n, case.head_dim);
        let fresh = case.drawn_after(case.kv_heads * steps * dim);
        let mut values: Vec<BTreeMap<u32, Vec<f32>>> = (0..case.kv_heads)
            .map(|head| {
                let of = |&t: &u32| (t, case.v[(head * n + t as usize) * dim..][..dim].to_vec());
                case.kept[head].iter().map(of).collect()
            })
            .collect();
        let mut draw = Probabilities::new(case.seed + 1, 16);
        for step in 0..steps {
            let new = (n + step) as u32;
            let gone = replay.step(Pos(new), |_, _| draw.draw());
            for (head, values) in values.iter_mut().enumerate() {
                let what = format!("step {step}, head {head}, {}", case.describe());
                values.insert(new, fresh[(head * steps + step) * dim..][..dim].to_vec());
                let expected: Vec<u64> =
                    serde_json::from_value(golden["steps_of"][step][head].clone()).expect("a step");
                let left: Vec<_> = replay.left().iter().filter(|l| l.head == head).collect();
                let Some(from) = gone[head] else {
                    assert!(expected.is_empty() && left.is_empty(), "{what}");
                    continue;
                };
                assert_eq!(u64::from(from), expected[0], "{what}");
                if expected[2] == 0 {
                    assert!(left.iter().all(|l| l.share < 1e-6), "{what}");
                } else {
                    assert_eq!(left.len() as u64, expected[1], "{what}");
                    let share = expected[2] as f32 / 1e6;
                    let after = values.range(from + 1..).map(|(to, _)| *to);
                    for (left, to) in left.iter().zip(after) {
                        assert_eq!((left.from, left.to), (from, to), "{what}");
                        assert!((left.share - share).abs() < 3e-6, "{what}: {}", left.share);
                    }
                }
                for left in &left {
                    let value = values[&from].clone();
                    let target = values.get_mut(&left.to).expect("a kept token").iter_mut();
                    target.zip(value).for_each(|(t, v)| *t += left.share * v);
                }
                merges += usize::from(!left.is_empty());
                values.remove(&from);
            }
        }
        drawn += usize::from(samples(&case));
        let found: Vec<Vec<f32>> = (values.iter())
            .map(|head| head.values().flatten().copied().collect())
            .collect();
        assert_values(&found, &golden["values"], &case.describe());
    }
    assert!(
        merges > 2000 && drawn > 60,
        "{merges} merges, {drawn} drawn cases"
    );
}

/// The specification's example: KV head 0 of the toy, each evicted value shared by three kept ones.
#[test]
fn the_worked_example_of_the_specification() {
    let f = golden::json("fixtures.json");
    let example = &f["cam_expected_m3_head0"];
    let set = [
        ("base", "snapkv"),
        ("w", "4"),
        ("kernel", "3"),
        ("sinks", "0"),
        ("m", "3"),
    ];
    let case = golden::toy(&f["inputs"], "cam", &set, 12);
    let kept = golden::ids(&example["keep"]);
    let Selection {
        retention: Retention::Keep(heads),
        value_merges,
        ..
    } = selection(&case)
    else {
        panic!("12 of 24 rows are kept");
    };
    assert_eq!(heads[0].iter().map(|p| p.0).collect::<Vec<_>>(), kept);
    let window = case.observed(kept_policies::ObservationWindow {
        rows: 4,
        softmax: kept_policies::Softmax::All,
    });
    let seen: Vec<f32> = (0..24)
        .map(|j| 2.0 * (window[j] + window[24 + j]))
        .collect();
    let near = |found: f32, expected: &Value| {
        (found - expected.as_f64().expect("a number") as f32).abs() < 2e-6
    };
    let abar = example["abar"].as_array().expect("numbers").iter();
    assert!(
        seen.iter()
            .zip(abar)
            .all(|(found, expected)| near(*found, expected))
    );
    let targets = example["targets"].as_object().expect("tokens");
    let of_head: Vec<&ValueMerge> = value_merges.iter().filter(|s| s.head == 0).collect();
    assert_eq!(
        of_head.len(),
        targets.len(),
        "every evicted token has a share to give"
    );
    for spread in of_head {
        let name = spread.from.0.to_string();
        let to = &kept[spread.first..spread.first + spread.count];
        assert_eq!(to, golden::ids(&targets[&name]), "token {name}");
        let probability = spread.weight * spread.count as f32;
        assert!(
            near(probability, &example["prob"][&name]),
            "token {name}: {probability}"
        );
    }
    let whole = Case {
        kept: heads
            .iter()
            .map(|h| h.iter().map(|p| p.0).collect())
            .collect(),
        ..case
    };
    let values = merged_values(&whole, &value_merges);
    let expected: Vec<Vec<f64>> =
        serde_json::from_value(example["v_kept"].clone()).expect("rows of values");
    for (found, expected) in values[0].iter().zip(expected.iter().flatten()) {
        assert!(
            (f64::from(*found) - expected).abs() < 1e-5,
            "{found} {expected}"
        );
    }
}
