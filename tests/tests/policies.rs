//! Every method keeps what `oracle.py` says it keeps: policies alone, given attention computed the slow and obvious way.

use kept_policies::{ModelShape, Observation, Pos, PromptShape, Retention, build};
use kept_tests::cases::Case;
use kept_tests::golden;
use kept_tests::selecting::{Measured, Replay, kept};
use serde_json::Value;

#[test]
fn drawn_cases_are_kept_as_the_oracle_keeps_them() {
    let cases = golden::json("selections.json");
    let cases = cases.as_array().expect("a list of cases");
    assert!(cases.len() >= 60);
    for case in cases.iter().map(Case::from_json) {
        let found = kept(&case, Measured::Slowly);
        assert_eq!(found, case.kept, "{}", case.describe());
        for head in &found {
            // The schedule of PyramidKV and the printed ChunkKV keep what they say, not the budget; their sums are tested apart.
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

/// The worked example of the specification: 24 tokens, 4 query heads, 2 kv heads.
fn worked_example(
    method: &str,
    set: &[(&str, &str)],
    budget: usize,
    expected: &Value,
    fixtures: &Value,
) {
    let flat = |tensor: &Value| -> Vec<f32> {
        (tensor.as_array().expect("heads").iter())
            .flat_map(|head| head.as_array().expect("rows"))
            .flat_map(|row| row.as_array().expect("values"))
            .map(|x| x.as_f64().expect("a number") as f32)
            .collect()
    };
    let inputs = &fixtures["inputs"];
    let case = Case {
        method: method.to_owned(),
        set: set
            .iter()
            .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
            .collect(),
        budget,
        layer: 0,
        layers: 1,
        n: 24,
        q_heads: 4,
        kv_heads: 2,
        head_dim: 8,
        q: flat(&inputs["q"]),
        k: flat(&inputs["k"]),
        v: flat(&inputs["v"]),
        kept: expected
            .as_array()
            .expect("heads")
            .iter()
            .map(golden::ids)
            .collect(),
        seed: 0,
        answered: None,
        repetition: None,
    };
    assert_eq!(
        kept(&case, Measured::Slowly),
        case.kept,
        "{}",
        case.describe()
    );
}

/// `"a=1,b=2"` as pairs.
fn assignments(text: &str) -> Vec<(&str, &str)> {
    text.split(',')
        .filter_map(|pair| pair.split_once('='))
        .collect()
}

#[test]
fn worked_examples_of_the_specification() {
    let f = golden::json("fixtures.json");
    let max3 = [("w", "4"), ("kernel", "3"), ("sinks", "0")];
    let avg3 = [
        ("w", "4"),
        ("kernel", "3"),
        ("sinks", "0"),
        ("pooling", "avg"),
    ];
    let group_max = [
        ("w", "4"),
        ("kernel", "3"),
        ("sinks", "0"),
        ("group", "max"),
    ];
    let two_sinks = [("w", "4"), ("kernel", "3"), ("sinks", "2")];
    worked_example("snapkv", &max3, 12, &f["snapkv_B12_w4_max3"], &f);
    worked_example("snapkv", &avg3, 12, &f["snapkv_B12_w4_avg3"], &f);
    worked_example(
        "snapkv",
        &group_max,
        12,
        &f["snapkv_B12_w4_max3_gqamax"],
        &f,
    );
    worked_example(
        "snapkv",
        &two_sinks,
        12,
        &f["sinks2"]["snapkv_B12_w4_max3"],
        &f,
    );
    for (method, set, name) in [
        ("h2o", "recent=6,sinks=0", "h2o_B12_r6"),
        ("h2o", "recent=6,sinks=0,normalise=true", "h2o_norm_B12_r6"),
        ("tova", "force_last=false,sinks=0", "tova_B12"),
        (
            "chunkkv",
            "w=4,chunk=5,sinks=0",
            "chunkkv_B12_w4_c5_clean_shared",
        ),
        (
            "chunkkv",
            "w=4,chunk=5,sinks=0,heads=per_head",
            "chunkkv_B12_w4_c5_clean_perhead",
        ),
        (
            "chunkkv",
            "w=4,chunk=5,variant=literal",
            "chunkkv_B12_w4_c5_literal_shared",
        ),
        ("treekv", "block=3,sinks=2", "treekv_prefill_B12_b3_s2"),
        (
            "treekv",
            "block=3,sinks=2,rule=printed",
            "treekv_prefill_B12_b3_s2_printed",
        ),
        (
            "hbw_kv",
            "w=4,block=2,rounds=1+2,sinks=0",
            "hbw_B12_w4_T2_M1_2",
        ),
        ("hbw_kv", "w=4,block=2,rounds=1,sinks=0", "hbw_B12_w4_T2_M1"),
    ] {
        worked_example(method, &assignments(set), 12, &f[name], &f);
    }
    for (method, set, name) in [
        ("h2o", "recent=6,sinks=2", "h2o_B12_r6"),
        ("tova", "sinks=2", "tova_B12_forcelast"),
        ("chunkkv", "w=4,chunk=5,sinks=2", "chunkkv_B12_w4_c5_shared"),
        (
            "hbw_kv",
            "w=4,block=3,rounds=1+2,sinks=2",
            "hbw_B12_w4_T3_M1_2",
        ),
    ] {
        worked_example(method, &assignments(set), 12, &f["sinks2"][name], &f);
    }
    worked_example(
        "streaming_llm",
        &[("sinks", "4")],
        12,
        &f["streaming_B12_s4"],
        &f,
    );
}

/// One kv head's cache while an answer is written, after a prompt of `first.len()` tokens that all fit the budget; `first` is the
/// attention that each has got.
fn replay(method: &str, set: &[(&str, &str)], budget: usize, first: &[f32]) -> Replay {
    let set: Vec<(String, String)> = (set.iter())
        .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
        .collect();
    let mut policy = build(method, &set).expect("a method");
    let n = first.len();
    let model = ModelShape {
        layers: 1,
        q_heads: 1,
        kv_heads: 1,
        head_dim: 8,
    };
    let rows = policy
        .rows(&model, &PromptShape::of(n), budget)
        .expect("rows");
    assert_eq!(policy.decode_rows(0), Some(budget));
    let observation = Observation {
        layer: 0,
        tokens: n,
        kv_heads: 1,
        group: 1,
        window: Some(first),
        column_sums: Some(first),
        ..Observation::default()
    };
    assert_eq!(policy.select(&observation, rows[0]), Retention::Everything);
    Replay::new(policy, 1, &[(0..n as u32).collect()])
}

/// A step whose query sees the cached tokens with the probabilities `row`. Gives the positions that stay.
fn answer(replay: &mut Replay, new: Pos, row: &[f32]) -> Vec<u32> {
    replay.step(new, |_, rank| row.get(rank).copied().unwrap_or(0.0));
    replay.held(0)
}

#[test]
fn streaming_moves_its_window_while_answering() {
    let expected = golden::json("fixtures.json")["streaming_decode_B6_s2"].clone();
    let mut cache = replay("streaming_llm", &[("sinks", "2")], 6, &[0.0; 6]);
    for (step, kept) in expected.as_array().expect("steps").iter().enumerate() {
        let left = answer(&mut cache, Pos(6 + step as u32), &[]);
        assert_eq!(left, golden::ids(kept), "after step {step}");
    }
}

/// Steps of the specification's decode examples: the probabilities of each query, and what is left after it.
#[test]
fn decode_examples_of_the_specification() {
    let f = golden::json("fixtures.json");
    let h2o = [("recent", "3"), ("sinks", "0")];
    let tree = [("recent", "3"), ("sinks", "1"), ("block", "1")];
    for (name, method, set, budget) in [
        ("h2o_decode_B6_r3", "h2o", &h2o[..], 6),
        ("treekv_cache_B8_s1_r3", "treekv", &tree[..], 8),
    ] {
        let steps = f[name].as_array().expect("steps");
        let row = |step: &Value| -> Vec<f32> {
            let row = step["row"].as_array().expect("a row");
            row.iter()
                .map(|x| x.as_f64().expect("a number") as f32)
                .collect()
        };
        let mut cache = replay(method, set, budget, &row(&steps[0]));
        for (at, step) in steps.iter().enumerate().skip(1) {
            let left = answer(&mut cache, Pos(at as u32), &row(step));
            assert_eq!(left, golden::ids(&step["kept"]), "{name}, step {at}");
        }
        assert!(steps.len() > budget, "{name} evicts");
    }
}

#[test]
fn tova_drops_what_the_last_query_sees_least() {
    let mut cache = replay("tova", &[("sinks", "1")], 3, &[0.4, 0.3, 0.3]);
    assert_eq!(
        answer(&mut cache, Pos(3), &[0.0, 0.5, 0.3, 0.2]),
        [0, 1, 3],
        "a sink and the newest stay"
    );
    assert_eq!(answer(&mut cache, Pos(4), &[0.1, 0.2, 0.4, 0.3]), [0, 3, 4]);
    let free = [("sinks", "0"), ("force_last", "false")];
    let mut cache = replay("tova", &free, 3, &[0.4, 0.3, 0.3]);
    assert_eq!(
        answer(&mut cache, Pos(3), &[0.1, 0.4, 0.4, 0.1]),
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
    let mut cache = replay("treekv", &set, 128, &[1.0]);
    let mut left = Vec::new();
    for at in 1..512 {
        left = answer(&mut cache, Pos(at), &[]);
    }
    let mut bins = [0; 8];
    left.iter().for_each(|p| bins[*p as usize / 64] += 1);
    assert_eq!(bins, [8, 8, 8, 8, 16, 16, 32, 32]);
}
