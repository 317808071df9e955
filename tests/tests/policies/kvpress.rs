//! kvpress (NVIDIA's library) and Kept keep the same rows of the same model's prompt, and decode the same logits.
//!
//! `golden/kvpress_rows.py` generates the cases and explains how the parameters of the two correspond.

use kept_engine::policies::{Parameters, build};
use kept_tests::cases::ranges;
use kept_tests::compare::assert_same;
use kept_tests::engine::{open, read_and_step};
use kept_tests::golden::{self, Tensors};

/// Relative to the largest logit of a row.
const BOUND: f32 = 1e-4;

fn hold(method: &str) {
    let cases = golden::json("kvpress.json");
    let tensors = Tensors::golden("kvpress");
    let cases = cases.as_array().expect("a list of cases").iter();
    let cases: Vec<_> = cases.filter(|case| case["method"] == method).collect();
    assert!(cases.len() >= 3, "{method}: {} cases", cases.len());
    for case in cases {
        let text = |name: &str| case[name].as_str().expect(name);
        let (stem, name) = (text("model"), text("case"));
        let set = Parameters::parse_assignments(text("set")).expect("parameters");
        let budget = case["budget"].as_u64().expect("budget") as usize;
        let logits = tensors.rows(&format!("{stem}.{name}"));
        let ids = tensors.whole(&format!("{stem}.ids"));
        let (prompt, steps) = ids.split_at(128);
        let method = build(method, &set).unwrap_or_else(|e| panic!("{e}"));
        let model = open(&golden::model(stem));
        let steps = &steps[..logits.len() - 1];
        let found = read_and_step(&model, &*method, budget, 512, prompt, steps);
        let layers = case["kept"].as_array().expect("layers").iter();
        let expected: Vec<Vec<Vec<u32>>> = layers
            .map(|layer| {
                let heads = layer.as_array().expect("heads").iter();
                heads
                    .map(|head| ranges(head.as_str().expect("ranges")))
                    .collect()
            })
            .collect();
        assert_eq!(found.kept, expected, "{stem} {name}");
        for (step, (row, reference)) in found.logits.iter().zip(&logits).enumerate() {
            assert_same(
                row,
                reference,
                BOUND,
                &format!("{stem} {name}, step {step}"),
            );
        }
    }
}

macro_rules! methods {
    ($($method:ident)*) => {
        $(
            #[test]
            fn $method() {
                hold(stringify!($method));
            }
        )*
    };
}

methods!(snapkv pyramidkv chunkkv streaming_llm tova knorm keydiff adakv expected_attention);
