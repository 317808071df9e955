//! PyramidInfer as published: the tokens that enter each layer and the rows kept during decode, against numpy; and a
//! whole model that drops tokens between its layers, against plain torch. `golden/thinning.py` and
//! `golden/thinned_logits.py` generate the files.

use kept_engine::kernels::Stop;
use kept_engine::models::RopeTable;
use kept_engine::policies::{
    ModelShape, Observation, Parameters, Pos, PromptShape, Retention, RowRequest, build,
    thinning_lengths,
};
use kept_engine::{EngineError, Prefill};
use kept_tests::cases::{Case, Probabilities, ranges};
use kept_tests::compare::{apart, assert_same};
use kept_tests::engine::{open, read_and_step};
use kept_tests::golden::{self, Tensors};
use kept_tests::selecting::{Measured, Replay, kept, request};

fn set(text: &str) -> Vec<(String, String)> {
    Parameters::parse_assignments(text).expect("parameters")
}

#[test]
fn drawn_cases_enter_their_layer_as_in_the_oracle() {
    let cases = golden::packed("selections/pyramidinfer_faithful.json.gz");
    let cases = cases.as_array().expect("a list of cases");
    assert!(cases.len() >= 500, "{} cases", cases.len());
    let (mut thinned, mut ties, mut groups) = (0, 0, [0; 8]);
    for value in cases {
        let case = Case::from_json(value);
        let method = build(&case.method, &case.set).expect("a method");
        let plan = method.plan(&request(&case)).expect("rows");
        let lengths: Vec<u32> = plan.rows.iter().map(|&rows| rows as u32).collect();
        assert_eq!(
            lengths,
            golden::ids(&value["lengths"]),
            "{}",
            case.describe()
        );
        for measured in [Measured::Slowly, Measured::ByKernel] {
            let found = kept(&case, measured);
            assert_eq!(found, case.kept, "{measured:?}: {}", case.describe());
        }
        thinned += usize::from(case.kept[0].len() < case.n);
        ties += usize::from(!value["repeat"].is_null());
        groups[case.q_heads / case.kv_heads] += 1;
    }
    assert!(thinned >= 200, "{thinned} cases lost tokens");
    assert!(ties >= 100, "{ties} cases with ties");
    assert!([1, 2, 4, 7].into_iter().all(|group| groups[group] >= 50));
}

#[test]
fn lengths_are_those_of_the_worked_example() {
    let f = golden::json("fixtures.json")["pyramidinfer_lengths"].clone();
    let plain = |lengths: Vec<usize>| -> Vec<u32> { lengths.iter().map(|&n| n as u32).collect() };
    assert_eq!(
        plain(thinning_lengths(1000, 8, 200, 64, 0.9)),
        golden::ids(&f["n1000_L8_r0.9"])
    );
    let deep = plain(thinning_lengths(4096, 32, 819, 64, 0.9));
    let eighths: Vec<u32> = deep.iter().copied().step_by(8).collect();
    assert_eq!(eighths, golden::ids(&f["n4096_L32_r0.9_every8th"]));
}

/// Of every 16 decoded tokens that leave the recent ones, the kept ones equal numpy's selection over all rows.
#[test]
fn answers_are_thinned_as_numpy_thins_them() {
    let cases = golden::packed("selections/thinned_answers.json.gz");
    let cases = cases.as_array().expect("cases");
    assert!(cases.len() >= 100);
    let mut dropped = 0;
    for case in cases {
        let number = |name: &str| case[name].as_u64().expect(name) as usize;
        let (n, layer, layers) = (number("n"), number("layer"), number("layers"));
        let parameters: Vec<String> = (case["set"].as_object().expect("set").iter())
            .map(|(name, v)| format!("{name}={}", v.to_string().replace('"', "")))
            .collect();
        let method = build("pyramidinfer", &set(&parameters.join(","))).expect("a method");
        let request = RowRequest {
            model: ModelShape {
                layers,
                q_heads: 2,
                kv_heads: 1,
                head_dim: 8,
            },
            prompt: PromptShape::of(n),
            budget: n,
        };
        let plan = method.plan(&request).expect("rows");
        let rows = plan.rows[layer];
        assert_eq!(rows, n, "a ratio of 1 drops nothing of the prompt");
        let observation = Observation {
            layer,
            tokens: n,
            kv_heads: 1,
            group: 2,
            ..Observation::default()
        };
        let mut state = method.start(&plan);
        let whole = state.select(&plan, &observation).retention;
        assert_eq!(whole, Retention::Everything);
        let all: Vec<u32> = (0..n as u32).collect();
        let mut replay = Replay::new(state, 2, &[all]).at_layer(layer);
        let mut drawn = Probabilities::new(number("seed") as u64, 16);
        let mut before = n;
        for (step, held) in case["held"].as_array().expect("steps").iter().enumerate() {
            let row: Vec<f32> = (0..2 * (before + 1)).map(|_| drawn.draw()).collect();
            replay.step(Pos((n + step) as u32), |head, rank| {
                row[head * (before + 1) + rank]
            });
            let found = replay.held(0);
            let what = format!("{} step {step}", case["set"]);
            assert_eq!(found, ranges(held.as_str().expect("ranges")), "{what}");
            dropped += usize::from(found.len() < before);
            before = found.len();
        }
    }
    assert!(dropped >= 200, "{dropped} drops");
}

const STEM: &str = "deep-group2-tied";

#[test]
fn a_model_that_drops_rows_between_layers_is_the_one_in_torch() {
    let (tensors, model) = (Tensors::golden(STEM), open(&golden::model(STEM)));
    let ids = tensors.whole("ids");
    let (prompt, steps) = ids.split_at(120);
    let layer_input_tokens: Vec<Vec<u32>> = (0..model.config().layers)
        .map(|layer| tensors.whole(&format!("entering_{layer}")))
        .collect();
    assert!(
        layer_input_tokens[5].len() < 70,
        "half of the prompt is gone at the end"
    );
    let logits = tensors.rows("logits");
    for chunk in [512, 17] {
        let parameters = set("variant=faithful,ratio=0.5,min_context=8");
        let method = build("pyramidinfer", &parameters).expect("a method");
        let found = read_and_step(&model, &*method, 120, chunk, prompt, steps);
        for (layer, heads) in found.kept.iter().enumerate() {
            for head in heads {
                assert_eq!(
                    head, &layer_input_tokens[layer],
                    "layer {layer}, chunks of {chunk}"
                );
            }
        }
        let every_third = found.logits.iter().step_by(3);
        assert_eq!(every_third.len(), logits.len());
        for (row, (logits, reference)) in every_third.zip(&logits).enumerate() {
            assert_same(logits, reference, 1e-4, &format!("after step {}", 3 * row));
        }
        // `held` has the rows before each step; the file's last entry is the state after the last step.
        let last = found.held.last().expect("steps");
        for (layer, heads) in last.iter().enumerate() {
            let mut held = tensors.whole(&format!("held_{layer}"));
            held.retain(|&position| (position as usize) < ids.len() - 1);
            assert_eq!(heads[0], held, "layer {layer}");
        }
    }
    // The full cache gives other logits, so the test is meaningful.
    let full = build("full", &[]).expect("full");
    let full = read_and_step(&model, &*full, 120, 512, prompt, &[]);
    assert!(apart(&full.logits[0], &logits[0]) > 0.01);
}

/// Memory accounting: a layer holds exactly the rows that entered it.
#[test]
fn what_is_stored_is_what_entered() {
    let model = open(&golden::model(STEM));
    let ids: Vec<u32> = (0..200).map(|i| 3 + i * 11 % 300).collect();
    let rope = RopeTable::new(model.config(), ids.len() + 5);
    let method = build("pyramidinfer", &set("variant=faithful,min_context=8")).expect("it");
    let outcome = Prefill::new(&model, &ids, &*method, 150, 5, &rope)
        .run(&mut |_| (), &Stop::new())
        .expect("it is read");
    let rows: usize = outcome.plan.rows.iter().sum();
    assert!(rows <= 150 * 6 && rows > 145 * 6, "{:?}", outcome.plan.rows);
    let config = model.config();
    let a_row = (2 * config.kv_heads * config.head_dim * size_of::<f32>()) as u64;
    assert_eq!(outcome.cache.kv_bytes(), rows as u64 * a_row);
    assert_eq!(outcome.map.rows_per_layer(), outcome.plan.rows);
    assert!(
        outcome.notes[0].to_string().contains("of 200 tokens"),
        "{:?}",
        outcome.notes
    );
}

#[test]
fn what_cannot_be_is_refused_in_one_sentence() {
    for (method, given, said) in [
        (
            "pyramidinfer",
            "variant=faithful,decode_cap=64",
            "decode_cap=64 does not go with variant=faithful",
        ),
        (
            "pyramidinfer",
            "min_context=8",
            "min_context=8 does not go with variant=budgeted",
        ),
        (
            "pyramidinfer",
            "variant=faithful,ratio=1.5",
            "ratio=1.5 is not allowed",
        ),
        (
            "pyramidinfer",
            "variant=half",
            "variant=half is not allowed",
        ),
        ("kvzip", "spread=token", "spread=token is not allowed"),
        ("kvzip", "chunk=0", "chunk=0 is not allowed"),
        (
            "adakv",
            "base=kvzip,spread=model",
            "base=kvzip is not allowed",
        ),
    ] {
        let error = build(method, &set(given)).err().expect("refused");
        assert!(error.to_string().contains(said), "{error}");
    }
    let model = ModelShape {
        layers: 16,
        q_heads: 2,
        kv_heads: 1,
        head_dim: 8,
    };
    let refused = |method: &str, given: &str, budget: usize| {
        let method = build(method, &set(given)).expect("a method");
        let request = RowRequest {
            model,
            prompt: PromptShape::of(2000),
            budget,
        };
        method.plan(&request).expect_err("refused").to_string()
    };
    let said = refused("pyramidinfer", "variant=faithful", 300);
    assert!(
        said.contains("at least") && said.contains("variant=budgeted"),
        "{said}"
    );
    let said = refused("pyramidinfer", "variant=faithful,ratio=0.9", 1200);
    assert!(
        said.contains("ratio=0.9") && said.contains("1200"),
        "{said}"
    );
    let said = refused("cam", "base=pyramidinfer,variant=faithful", 1500);
    assert!(said.contains("variant=budgeted"), "{said}");
    let error = build("cam", &set("base=h2o,decode_cap=64")).err();
    let said = error.expect("refused").to_string();
    assert!(said.contains("decode_cap=64"), "{said}");
    let said = refused("kvzip", "sinks=8", 8);
    assert!(said.contains("at least 9 rows"), "{said}");

    // Dropped tokens have no logits.
    let model = open(&golden::model(STEM));
    let ids: Vec<u32> = (3..203).collect();
    let rope = RopeTable::new(model.config(), ids.len());
    let method = build("pyramidinfer", &set("variant=faithful,ratio=0.5")).expect("it");
    let mut prefill = Prefill::new(&model, &ids, &*method, 200, 0, &rope);
    prefill.every_row = true;
    let error = prefill.run(&mut |_| (), &Stop::new()).err();
    assert!(matches!(error, Some(EngineError::NoLogits { .. })));
}
