//! AdaKV, KeyDiff, Expected Attention, PyramidInfer and Scissorhands select what their numpy counterparts select, on
//! five hundred synthetic cases each. CaM is in `cam.rs`. `golden/selections_further.py` generates the cases.

use kept_policies::{
    LowAttention, ModelShape, Observation, Parameters, Pos, PromptShape, Retention, RowRequest,
    Safeguard, Serial, build, geometric_rows,
};
use kept_tests::cases::{Case, Probabilities, ranges};
use kept_tests::golden;
use kept_tests::selecting::{Measured, Replay, kept};

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
fn a_floor_can_be_reserved() {
    let scores: [&[f32]; 2] = [
        &[9.0, 8.0, 7.0, 6.0, 1.0, 1.0],
        &[5.0, 1.0, 1.0, 1.0, 1.0, 1.0],
    ];
    assert_eq!(Safeguard::Reserve.split(&Serial, &scores, 3, 0.0), [5, 1]);
    assert_eq!(Safeguard::Reserve.split(&Serial, &scores, 3, 1.0), [3, 3]);
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

fn plain(value: &serde_json::Value) -> Vec<(String, String)> {
    let set = value.as_object().expect("set").iter();
    let text: Vec<String> = set
        .map(|(name, v)| {
            format!(
                "{name}={}",
                v.as_str().map_or_else(|| v.to_string(), str::to_owned)
            )
        })
        .collect();
    Parameters::parse_assignments(&text.join(",")).expect("parameters")
}

/// Scissorhands and the decode cap evict many rows at once; the rows after every step equal numpy's.
#[test]
fn answers_hold_what_they_should_after_every_step() {
    let cases = golden::packed("selections/decoding.json.gz");
    let cases = cases.as_array().expect("cases");
    assert!(cases.len() >= 100);
    let mut dropped_many = 0;
    for case in cases {
        let number = |name: &str| case[name].as_u64().expect(name);
        let name = case["method"].as_str().expect("method");
        let method = build(name, &plain(&case["set"])).expect("a method");
        let request = RowRequest {
            model: ModelShape {
                layers: 1,
                q_heads: 2,
                kv_heads: 1,
                head_dim: 8,
            },
            prompt: PromptShape::of(1),
            budget: number("budget") as usize,
        };
        let plan = method.plan(&request).expect("rows");
        let observation = Observation {
            tokens: 1,
            kv_heads: 1,
            group: 2,
            low_attention: Some(LowAttention {
                rows: 1,
                bits: &[0],
            }),
            ..Observation::default()
        };
        let mut state = method.start(&plan);
        let selection = state.select(&plan, &observation);
        assert_eq!(selection.retention, Retention::Everything);
        let mut replay = Replay::new(state, 2, &[vec![0]]);
        let mut drawn = Probabilities::new(number("seed"), 16);
        let mut before = 1;
        for (step, held) in case["held"].as_array().expect("steps").iter().enumerate() {
            let row: Vec<f32> = (0..2 * (before + 1)).map(|_| drawn.draw()).collect();
            replay.step(Pos(step as u32 + 1), |head, rank| {
                row[head * (before + 1) + rank]
            });
            let expected = ranges(held.as_str().expect("ranges"));
            let found = replay.held(0);
            let what = format!("{name} {:?}, step {step}", case["set"]);
            assert_eq!(found, expected, "{what}, seed {}", number("seed"));
            dropped_many += usize::from(found.len() < before);
            before = found.len();
        }
    }
    assert!(dropped_many >= 100, "{dropped_many} drops of several rows");
}

#[test]
fn wrappers_refuse_what_they_cannot_wrap() {
    for (method, set, said) in [
        (
            "adakv",
            "base=chunkkv",
            "AdaKV: base=chunkkv is not allowed",
        ),
        ("adakv", "base=adakv", "AdaKV: base=adakv is not allowed"),
        (
            "adakv",
            "base=snapkv,kernel=4",
            "SnapKV: kernel=4 is not allowed",
        ),
        (
            "adakv",
            "floor=2",
            "AdaKV: floor=2 is not allowed; floor takes a number from 0 to 1",
        ),
        (
            "cam",
            "base=scissorhands",
            "CaM: base=scissorhands is not allowed",
        ),
        ("cam", "base=cam", "CaM: base=cam is not allowed"),
        (
            "snapkv",
            "decode_cap=64,decode_every=4,decode_w=5",
            "decode_w=5 is not allowed",
        ),
        ("h2o", "decode_cap=64", "H2O has no parameter 'decode_cap'"),
    ] {
        let set = Parameters::parse_assignments(set).expect("assignments");
        let error = build(method, &set).err().expect("refused").to_string();
        assert!(error.contains(said), "{error}");
    }
    let set = Parameters::parse_assignments("decode_cap=64").expect("assignments");
    let method = build("snapkv", &set).expect("snapkv");
    let request = RowRequest {
        model: ModelShape {
            layers: 1,
            q_heads: 1,
            kv_heads: 1,
            head_dim: 8,
        },
        prompt: PromptShape::of(500),
        budget: 100,
    };
    let error = method.plan(&request);
    let error = error.expect_err("a cap below the budget").to_string();
    assert!(
        error.contains("decode_cap=64") && error.contains("100 rows"),
        "{error}"
    );
}
