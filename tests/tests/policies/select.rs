//! `kept select`: the methods with the product's own attention kernels, on tensors from a file.

use std::collections::HashMap;
use std::path::Path;

use kept_tests::cases::Case;
use kept_tests::golden::{self, ids};
use kept_tests::selecting::{self, Measured};
use kept_tests::terminal::{Run, kept};
use safetensors::{Dtype, tensor::TensorView};
use serde_json::Value;

/// Writes `q`, `k` and `v` in the input format of `kept select`.
fn write(case: &Case, path: &Path) {
    let bytes = |values: &[f32]| {
        values
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let mut data = vec![
        ("q", case.q_heads, case.n, &case.q),
        ("k", case.kv_heads, case.n, &case.k),
        ("v", case.kv_heads, case.n, &case.v),
    ];
    let mut chunks = Vec::new();
    if let Some(repetition) = &case.repetition {
        let rows = repetition.rows();
        data.push(("q_repeat", case.q_heads, rows, &repetition.q));
        data.push(("k_repeat", case.kv_heads, rows, &repetition.k));
        let bounds = repetition.chunks.iter().flatten();
        chunks = bounds.flat_map(|&b| (b as i64).to_le_bytes()).collect();
    }
    let data: Vec<_> = (data.into_iter())
        .map(|(name, heads, rows, values)| (name, vec![heads, rows, case.head_dim], bytes(values)))
        .collect();
    let mut views: HashMap<&str, TensorView<'_>> = data
        .iter()
        .map(|(name, shape, bytes)| {
            let view = TensorView::new(Dtype::F32, shape.clone(), bytes).expect("a tensor");
            (*name, view)
        })
        .collect();
    if !chunks.is_empty() {
        let shape = vec![chunks.len() / 32, 4];
        let view = TensorView::new(Dtype::I64, shape, &chunks).expect("a tensor");
        views.insert("chunks", view);
    }
    let file = safetensors::serialize(views, None).expect("a safetensors file");
    std::fs::write(path, file).expect("the tensors are written");
}

fn select(case: &Case, input: &Path) -> Run {
    let set = (case.set.iter())
        .map(|(name, value)| format!("{name}={value}"))
        .collect::<Vec<_>>()
        .join(",");
    let budget = case.budget.to_string();
    let (layer, layers) = (case.layer.to_string(), case.layers.to_string());
    kept([
        "select".as_ref(),
        "--json".as_ref(),
        "--method".as_ref(),
        case.method.as_ref(),
        "--budget".as_ref(),
        budget.as_ref(),
        "--set".as_ref(),
        set.as_ref(),
        "--layer".as_ref(),
        layer.as_ref(),
        "--layers".as_ref(),
        layers.as_ref(),
        "--input".as_ref(),
        input.as_os_str(),
    ])
}

fn kept_of(answer: &Value) -> Vec<Vec<u32>> {
    answer["kept"]
        .as_array()
        .expect("kept")
        .iter()
        .map(ids)
        .collect()
}

#[test]
fn drawn_cases_are_kept_as_the_oracle_keeps_them() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let input = folder.path().join("case.safetensors");
    for case in golden::json("selections.json")
        .as_array()
        .expect("cases")
        .iter()
        .map(Case::from_json)
    {
        write(&case, &input);
        assert_eq!(
            kept_of(&select(&case, &input).json()),
            case.kept,
            "{}",
            case.describe()
        );
    }
}

/// The file with a method's synthetic cases.
fn cases_of(method: &str) -> String {
    match method {
        "ems" => "ems.json.gz".to_owned(),
        "cam" => "selections/merged.json.gz".to_owned(),
        _ => format!("selections/{method}.json.gz"),
    }
}

/// Methods without cases of an oracle; `baselines.rs` has their definitions.
const WITHOUT_CASES: [&str; 3] = ["full", "random", "knorm"];

/// Every method through `kept select` from end to end, on every fiftieth of its cases.
#[test]
fn every_method_is_kept_as_the_oracle_keeps_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let input = folder.path().join("case.safetensors");
    let methods = kept_policies::methods().iter().map(|method| method.name);
    for method in methods.chain(["pyramidinfer_faithful"]) {
        if WITHOUT_CASES.contains(&method) {
            continue;
        }
        let cases = golden::packed(&cases_of(method));
        let cases = cases.as_array().expect("cases");
        assert!(cases.len() >= 500, "{method}: {} cases", cases.len());
        for case in cases.iter().step_by(50) {
            let case = Case::from_json(case);
            write(&case, &input);
            let found = kept_of(&select(&case, &input).json());
            assert_eq!(found, case.kept, "{}", case.describe());
        }
    }
}

/// The methods without an oracle, through `kept select` as in the library.
#[test]
fn baselines_are_kept_as_in_the_library() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let input = folder.path().join("case.safetensors");
    let cases = golden::packed("selections/keydiff.json.gz");
    let cases = cases.as_array().expect("cases");
    for (method, set) in [
        ("random", &[("seed", "3"), ("sinks", "0")][..]),
        ("knorm", &[("sinks", "0")]),
        ("full", &[]),
    ] {
        for case in cases.iter().step_by(50) {
            let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
            let case = Case {
                method: method.to_owned(),
                set: set.iter().map(own).collect(),
                ..Case::from_json(case)
            };
            write(&case, &input);
            let expected = selecting::kept(&case, Measured::ByKernel);
            let found = kept_of(&select(&case, &input).json());
            assert_eq!(found, expected, "{}", case.describe());
        }
    }
}

fn one_case() -> Case {
    Case::from_json(&golden::json("selections.json")[0])
}

#[test]
fn files_that_hold_something_else_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let input = folder.path().join("case.safetensors");
    let case = one_case();
    select(&case, &input).refused(&["case.safetensors"]);
    std::fs::write(&input, b"not tensors").expect("a file is written");
    select(&case, &input).refused(&["case.safetensors"]);
    select(&case, &golden::path("group1-plain-tied.safetensors")).refused(&["q"]);

    // `k` with a head too many for the group, and `v` shorter than `k`.
    let mut odd = case.clone();
    odd.kv_heads = 2;
    odd.k.resize(2 * case.n * case.head_dim, 0.0);
    odd.v.resize(2 * case.n * case.head_dim, 0.0);
    odd.q_heads = 3;
    odd.q.resize(3 * case.n * case.head_dim, 0.0);
    write(&odd, &input);
    select(&odd, &input).refused(&[]);
}

#[test]
fn a_repetition_that_does_not_fit_its_document_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let input = folder.path().join("case.safetensors");
    let cases = golden::packed("selections/kvzip.json.gz");
    let cases = cases.as_array().expect("cases").iter().map(Case::from_json);
    let case = (cases.filter(|case| case.budget < case.n))
        .find(|case| case.repetition.as_ref().is_some_and(|r| r.chunks.len() > 2))
        .expect("a case with chunks");
    let with = |change: &dyn Fn(&mut Vec<[usize; 4]>)| {
        let mut odd = case.clone();
        change(&mut odd.repetition.as_mut().expect("a repetition").chunks);
        odd
    };
    let mut none = case.clone();
    none.repetition = None;
    write(&none, &input);
    select(&none, &input).refused(&["q_repeat", "k_repeat", "chunks"]);
    let gap = with(&|chunks| chunks[1][0] += 1);
    write(&gap, &input);
    select(&gap, &input).refused(&["chunk"]);
    let empty = with(&|chunks| chunks[0][1] = chunks[0][0]);
    write(&empty, &input);
    select(&empty, &input).refused(&["chunk"]);
    let past = with(&|chunks| chunks.last_mut().expect("a chunk")[1] = case.n + 1);
    write(&past, &input);
    select(&past, &input).refused(&[&format!("{} tokens", case.n)]);
}
