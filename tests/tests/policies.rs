//! Every method keeps what `oracle.py` says it keeps: policies alone, given attention computed the slow and obvious way.

use kept_policies::{
    ModelShape, Observation, Pos, PromptShape, Retention, Row, StepObservation, build,
};
use kept_tests::cases::Case;
use kept_tests::golden;
use serde_json::Value;

/// What a policy keeps of a case, as positions per kv head.
fn kept(case: &Case) -> Vec<Vec<u32>> {
    let mut policy =
        build(&case.method, &case.set).unwrap_or_else(|_| panic!("{}", case.describe()));
    let model = ModelShape {
        layers: case.layers,
        q_heads: case.q_heads,
        kv_heads: case.kv_heads,
        head_dim: case.head_dim,
    };
    let rows = policy
        .rows(&model, &PromptShape { tokens: case.n }, case.budget)
        .unwrap_or_else(|_| panic!("{}", case.describe()));
    let window = policy
        .needs(case.layer)
        .window
        .map(|window| case.observed(window));
    let observation = Observation {
        layer: case.layer,
        tokens: case.n,
        kv_heads: case.kv_heads,
        group: case.q_heads / case.kv_heads,
        window: window.as_deref(),
    };
    match policy.select(&observation, rows[case.layer]) {
        Retention::Everything => vec![(0..case.n as u32).collect(); case.kv_heads],
        Retention::Keep(heads) => heads
            .into_iter()
            .map(|head| head.into_iter().map(|pos| pos.0).collect())
            .collect(),
    }
}

#[test]
fn drawn_cases_are_kept_as_the_oracle_keeps_them() {
    let cases = golden::json("selections.json");
    let cases = cases.as_array().expect("a list of cases");
    assert!(cases.len() >= 60);
    for case in cases.iter().map(Case::from_json) {
        let found = kept(&case);
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
    };
    assert_eq!(kept(&case), case.kept, "{}", case.describe());
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
    worked_example(
        "streaming_llm",
        &[("sinks", "4")],
        12,
        &f["streaming_B12_s4"],
        &f,
    );
}

/// Positions left in one kv head's cache after each step: an evicted slot is taken by the next token.
#[test]
fn streaming_moves_its_window_while_answering() {
    let expected = golden::json("fixtures.json")["streaming_decode_B6_s2"].clone();
    let mut policy = build("streaming_llm", &[("sinks".into(), "2".into())]).expect("streaming");
    assert!(policy.evicts_at_decode());
    let budget = 6;
    let mut slots: Vec<Pos> = (0..budget as u32).map(Pos).collect();
    let mut free = None;
    for (step, kept) in expected.as_array().expect("steps").iter().enumerate() {
        let new = Pos((budget + step) as u32);
        match free {
            Some(Row(slot)) => slots[slot as usize] = new,
            None => slots.push(new),
        }
        let observation = StepObservation {
            layer: 0,
            rows: &[slots.len()],
            capacity: slots.len(),
            positions: &slots,
        };
        let mut evict = [None];
        policy.step(&observation, budget, &mut evict);
        free = evict[0];
        let mut left: Vec<u32> = (slots.iter().enumerate())
            .filter(|(slot, _)| free != Some(Row(*slot as u32)))
            .map(|(_, pos)| pos.0)
            .collect();
        left.sort_unstable();
        assert_eq!(left, golden::ids(kept), "after step {step}");
    }
}
