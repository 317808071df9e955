//! Every worked example of the specification (`golden/fixtures.json`, written by the oracle) holds in the product; a
//! fixture without an assertion fails the test.

use std::cell::RefCell;
use std::collections::BTreeSet;

use kept_policies::{
    HbwKv, ModelShape, ObservationWindow, Pos, PromptShape, RowRequest, Safeguard, Schedule,
    Serial, Softmax, build, global_local,
};
use kept_tests::cases::Case;
use kept_tests::golden;
use kept_tests::method_spec::{TestMethod, spec};
use kept_tests::selecting::{Measured, Replay, kept};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Fixtures that other files assert: name and source text of the file.
const ELSEWHERE: [(&str, &str); 4] = [
    ("ems_head0_B8_w4_g2_tau0.1_k3", include_str!("ems.rs")),
    ("ems_decode_head0", include_str!("ems.rs")),
    ("cam_expected_m3_head0", include_str!("cam.rs")),
    ("pyramidinfer_lengths", include_str!("token_dropping.rs")),
];

/// The fixtures, and the names of those already asserted.
struct Fixtures {
    all: Value,
    asked: RefCell<BTreeSet<String>>,
}

impl Fixtures {
    /// The value at `name`; a slash separates folder and name.
    fn get<T: DeserializeOwned>(&self, name: &str) -> T {
        let value = name.split('/').fold(&self.all, |at, part| &at[part]);
        assert!(!value.is_null(), "there is no fixture {name}");
        self.asked.borrow_mut().insert(name.to_owned());
        serde_json::from_value(value.clone()).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// Names of all examples; a fixture that is a map of examples contributes each of them.
    fn names(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for (name, value) in self.all.as_object().expect("a map") {
            match value.as_object() {
                Some(parts) if !ELSEWHERE.iter().any(|(other, _)| other == name) => {
                    names.extend(parts.keys().map(|part| format!("{name}/{part}")));
                }
                _ => _ = names.insert(name.clone()),
            }
        }
        names
    }

    /// Asserts that a method's selection from the toy in `inputs` equals fixture `name`, with the naive attention and
    /// with the kernels'.
    fn hold(&self, inputs: &str, method: TestMethod, layer: Layer, name: &str) {
        let set = pairs(method.set);
        let case = Case {
            kept: self.get(name),
            layer: layer.index,
            layers: layer.of,
            ..golden::toy(&self.all[inputs], method.name, &set, method.budget)
        };
        for measured in [Measured::Slowly, Measured::ByKernel] {
            let found = kept(&case, measured);
            assert_eq!(
                found,
                case.kept,
                "{name}, {measured:?}: {}",
                case.describe()
            );
        }
    }
}

/// A layer, and how many the model has.
#[derive(Debug, Clone, Copy)]
struct Layer {
    index: usize,
    of: usize,
}

const ONLY_LAYER: Layer = Layer { index: 0, of: 1 };

/// `"a=1,b=2"` as pairs.
fn pairs(text: &str) -> Vec<(&str, &str)> {
    text.split(',')
        .filter_map(|pair| pair.split_once('='))
        .collect()
}

fn near(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        let bound = 1e-5 * expected.abs().max(1.0);
        assert!(
            (found - expected).abs() < bound,
            "{what}: {found} {expected}"
        );
    }
}

/// `[kv_heads][n]`: mean over the group of `[q_heads, n]`.
fn of_kv_heads(scores: &[f32], n: usize, group: usize) -> Vec<Vec<f32>> {
    let heads = scores.chunks_exact(n * group);
    heads
        .map(|head| {
            let of = |j: usize| head.iter().skip(j).step_by(n).sum::<f32>() / group as f32;
            (0..n).map(of).collect()
        })
        .collect()
}

#[test]
fn every_fixture_holds() {
    let f = Fixtures {
        all: golden::json("fixtures.json"),
        asked: RefCell::default(),
    };
    selections(&f);
    scores(&f);
    budgets(&f);
    answers(&f);
    let mut asked = f.asked.take();
    asked.extend(
        f.names()
            .into_iter()
            .filter(|name| name.starts_with("inputs")),
    );
    for (name, text) in ELSEWHERE {
        assert!(
            text.contains(&format!("\"{name}\"")),
            "{name} is asserted nowhere"
        );
        asked.insert(name.to_owned());
    }
    let left: Vec<String> = f.names().difference(&asked).cloned().collect();
    assert!(left.is_empty(), "fixtures that nobody asserts: {left:?}");
}

/// Selections of 12 rows from the toy, and their fixtures.
const SELECTIONS: [(TestMethod, &str); 19] = [
    (spec("streaming_llm", "sinks=4", 12), "streaming_B12_s4"),
    (spec("h2o", "recent=6,sinks=0", 12), "h2o_B12_r6"),
    (
        spec("h2o", "recent=6,sinks=0,normalise=true", 12),
        "h2o_norm_B12_r6",
    ),
    (spec("tova", "force_last=false,sinks=0", 12), "tova_B12"),
    (
        spec("snapkv", "w=4,kernel=3,sinks=0", 12),
        "snapkv_B12_w4_max3",
    ),
    (
        spec("snapkv", "w=4,kernel=3,sinks=0,pooling=avg", 12),
        "snapkv_B12_w4_avg3",
    ),
    (
        spec("snapkv", "w=4,kernel=3,sinks=0,group=max", 12),
        "snapkv_B12_w4_max3_gqamax",
    ),
    (
        spec("chunkkv", "w=4,chunk=5,sinks=0", 12),
        "chunkkv_B12_w4_c5_clean_shared",
    ),
    (
        spec("chunkkv", "w=4,chunk=5,sinks=0,heads=per_head", 12),
        "chunkkv_B12_w4_c5_clean_perhead",
    ),
    (
        spec("chunkkv", "w=4,chunk=5,variant=literal", 12),
        "chunkkv_B12_w4_c5_literal_shared",
    ),
    (
        spec("treekv", "block=3,sinks=2", 12),
        "treekv_prefill_B12_b3_s2",
    ),
    (
        spec("treekv", "block=3,sinks=2,rule=printed", 12),
        "treekv_prefill_B12_b3_s2_printed",
    ),
    (
        spec("hbw_kv", "w=4,block=2,rounds=1+2,sinks=0", 12),
        "hbw_B12_w4_T2_M1_2",
    ),
    (
        spec("hbw_kv", "w=4,block=2,rounds=1,shares=1,sinks=0", 12),
        "hbw_B12_w4_T2_M1",
    ),
    (spec("h2o", "recent=6,sinks=2", 12), "sinks2/h2o_B12_r6"),
    (spec("tova", "sinks=2", 12), "sinks2/tova_B12_forcelast"),
    (
        spec("snapkv", "w=4,kernel=3,sinks=2", 12),
        "sinks2/snapkv_B12_w4_max3",
    ),
    (
        spec("chunkkv", "w=4,chunk=5,sinks=2", 12),
        "sinks2/chunkkv_B12_w4_c5_shared",
    ),
    (
        spec("hbw_kv", "w=4,block=3,rounds=1+2,sinks=2", 12),
        "sinks2/hbw_B12_w4_T3_M1_2",
    ),
];

fn selections(f: &Fixtures) {
    for (method, name) in SELECTIONS {
        f.hold("inputs", method, ONLY_LAYER, name);
    }
    let keydiff = spec("keydiff", "recent=0,sinks=0", 8);
    f.hold("inputs", keydiff, ONLY_LAYER, "keydiff_top8");
    for (set, layers) in [
        ("w=4,kernel=3,sinks=0", "pyramid_B12_w4_layers4/layer"),
        ("w=4,kernel=3,sinks=2", "sinks2/pyramid_B12_w4_L4_layer"),
    ] {
        for index in [0, 3] {
            let layer = Layer { index, of: 4 };
            f.hold(
                "inputs",
                spec("pyramidkv", set, 12),
                layer,
                &format!("{layers}{index}"),
            );
        }
    }
    for (set, name) in [
        (
            "w=4,chunk=5,sinks=0",
            "chunkkv_seed0_B12_w4_c5_clean_shared",
        ),
        (
            "w=4,chunk=5,variant=literal",
            "chunkkv_seed0_B12_w4_c5_literal_shared",
        ),
    ] {
        f.hold("inputs_seed0", spec("chunkkv", set, 12), ONLY_LAYER, name);
    }

    // One eviction of PyramidInfer: 10 of 17 tokens remain in addition to the last 1 + 6, in every head.
    let name = "pyramidinfer_lengths/n24_cut_recent6_keep10";
    let expected: Vec<u32> = f.get(name);
    let case = golden::toy(
        &f.all["inputs"],
        "pyramidinfer",
        &pairs("recent=7,sinks=2"),
        17,
    );
    for measured in [Measured::Slowly, Measured::ByKernel] {
        let found = kept(&case, measured);
        assert!(
            found.iter().all(|head| *head == expected),
            "{name}: {found:?}"
        );
    }
}

fn scores(f: &Fixtures) {
    let case = golden::toy(&f.all["inputs"], "full", &[], 24);
    let window = case.observed(ObservationWindow {
        rows: 4,
        softmax: Softmax::All,
    });
    let mut local = of_kv_heads(&window, 24, 2);
    local.iter_mut().flatten().for_each(|p| *p *= 4.0);
    let expected: Vec<Vec<f32>> = f.get("window_scores_sum_w4");
    for (found, expected) in local.iter().zip(&expected) {
        near(&found[..expected.len()], expected, "the window's sums");
    }
    let global = of_kv_heads(&case.column_sums(), 24, 2);
    near(
        &global[0],
        &f.get::<Vec<f32>>("ems_scores_head0/glo"),
        "glo",
    );
    near(&local[0], &f.get::<Vec<f32>>("ems_scores_head0/loc"), "loc");
    let mut both = vec![0.0; 24];
    global_local(&global[0], &local[0], &mut both);
    near(&both, &f.get::<Vec<f32>>("ems_scores_head0/gl"), "gl");
    let scores: Vec<Vec<f32>> = f.get("adakv/scores");
    let scores: Vec<&[f32]> = scores.iter().map(Vec::as_slice).collect();
    let (per_head, floor) = (f.get("adakv/per_head"), f.get("adakv/floor"));
    let split = Safeguard::Blend.split(&Serial, &scores, per_head, floor);
    assert_eq!(split, f.get::<Vec<usize>>("adakv/budgets"));
}

/// Rows per layer under a method's budget schedule.
fn rows(method: &str, set: &str, tokens: usize, layers: usize, budget: usize) -> Vec<usize> {
    let set: Vec<(String, String)> = pairs(set)
        .into_iter()
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .collect();
    let model = ModelShape {
        layers,
        q_heads: 4,
        kv_heads: 2,
        head_dim: 8,
    };
    let request = RowRequest {
        model,
        prompt: PromptShape::of(tokens),
        budget,
    };
    let method = build(method, &set).expect("a method");
    method.plan(&request).expect("rows").rows
}

fn budgets(f: &Fixtures) {
    let prefix = |schedule: &str, tokens, layers, budget, w: usize| -> Vec<usize> {
        let set = format!("w={w},sinks=0,schedule={schedule}");
        let rows = rows("pyramidkv", &set, tokens, layers, budget);
        rows.iter().map(|rows| rows - w).collect()
    };
    for schedule in ["exact", "code"] {
        let expected: Vec<usize> = f.get(&format!("pyramid_B12_w4_layers4/{schedule}"));
        assert_eq!(prefix(schedule, 24, 4, 12, 4), expected, "{schedule}");
    }
    // Eq. 1 is real-valued; a layer gets the nearest integer.
    let real: Vec<f64> = f.get("pyramid_B12_w4_layers4/paper");
    let whole: Vec<usize> = real.iter().map(|rows| rows.round() as usize).collect();
    assert_eq!(Schedule::Paper.prefix_rows(8, 4, 24, 4, 20.0), whole);
    assert_eq!(prefix("paper", 24, 4, 12, 4), whole);
    let code: Vec<usize> = f.get("pyramid_budgets_C128_w8_n8000_L32/code");
    assert_eq!(prefix("code", 8000, 32, 128, 8), code);
    let ends: Vec<usize> = f.get("pyramid_budgets_C128_w8_n8000_L32/exact_first_last");
    let exact = prefix("exact", 8000, 32, 128, 8);
    assert_eq!([exact[0], exact[31]], ends[..]);
    let quota: Vec<usize> = f.get("hbw_quota_31_M1_8");
    let halves = HbwKv {
        rounds: vec![1, 8],
        shares: Some(vec![0.5, 0.5]),
        ..HbwKv::default()
    };
    assert_eq!(halves.quota(31), quota);
    assert_eq!(HbwKv::default().quota(31), quota, "they are the defaults");
}

fn answers(f: &Fixtures) {
    let mut cache = Replay::of_one_head("streaming_llm", &[("sinks", "2")], 6, &[0.0; 6]);
    for (step, kept) in f
        .get::<Vec<Vec<u32>>>("streaming_decode_B6_s2")
        .iter()
        .enumerate()
    {
        assert_eq!(
            cache.answer(Pos(6 + step as u32), &[]),
            *kept,
            "after step {step}"
        );
    }
    for (name, method, set, budget) in [
        ("h2o_decode_B6_r3", "h2o", "recent=3,sinks=0", 6),
        (
            "treekv_cache_B8_s1_r3",
            "treekv",
            "recent=3,sinks=1,block=1",
            8,
        ),
    ] {
        #[derive(serde::Deserialize)]
        struct Step {
            row: Vec<f32>,
            kept: Vec<u32>,
        }
        let steps: Vec<Step> = f.get(name);
        let mut cache = Replay::of_one_head(method, &pairs(set), budget, &steps[0].row);
        for (at, step) in steps.iter().enumerate().skip(1) {
            let left = cache.answer(Pos(at as u32), &step.row);
            assert_eq!(left, step.kept, "{name}, step {at}");
        }
        assert!(steps.len() > budget, "{name} evicts");
    }
    trees(f);
}

/// TreeKV's algorithm 1 in isolation, on the toy's first head: the pair that it compares, and the token that it evicts.
fn trees(f: &Fixtures) {
    let case = golden::toy(&f.all["inputs"], "treekv", &[], 4);
    let row = |t: u32, held: &[u32]| -> Vec<f32> {
        let dot = |k: u32| -> f64 {
            let (q, k) = (
                &case.q[t as usize * 8..][..8],
                &case.k[k as usize * 8..][..8],
            );
            q.iter()
                .zip(k)
                .map(|(a, b)| f64::from(*a) * f64::from(*b))
                .sum()
        };
        let weights: Vec<f64> = held.iter().map(|k| (dot(*k) / 8f64.sqrt()).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|w| (w / sum) as f32).collect()
    };
    for rule in ["cycle", "printed"] {
        let name = format!("treekv_decode_c4_17steps_head0/{rule}");
        #[derive(serde::Deserialize)]
        struct Run {
            r#final: Vec<u32>,
            log_step_idx_evicted: Vec<[u32; 3]>,
        }
        let run: Run = f.get(&name);
        let set = [
            ("recent", "0"),
            ("sinks", "0"),
            ("block", "1"),
            ("rule", rule),
        ];
        let mut cache = Replay::of_one_head("treekv", &set, 4, &[1.0]);
        let (mut held, mut log) = (vec![0], Vec::new());
        for t in 1..17 {
            held.push(t);
            let left = cache.answer(Pos(t), &row(t, &held));
            if let Some(gone) = held.iter().find(|p| !left.contains(p)) {
                log.push((t, *gone, held.clone()));
            }
            held = left;
        }
        assert_eq!(held, run.r#final, "{name}");
        assert_eq!(log.len(), run.log_step_idx_evicted.len(), "{name}");
        for ((t, gone, held), [step, idx, evicted]) in log.iter().zip(run.log_step_idx_evicted) {
            assert_eq!((*t, *gone), (step, evicted), "{name}");
            let pair = &held[idx as usize - 1..=idx as usize];
            assert!(pair.contains(gone), "{name}: {gone} is one of {pair:?}");
        }
    }
}
