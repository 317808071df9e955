//! `kept compare` and `kept methods` as a script uses them: every documented field, refusals in one line, the table of
//! docs/methods.md.

use std::ffi::OsString;

use kept_tests::golden;
use kept_tests::terminal::{Run, kept};
use serde_json::Value;

fn compare(extra: &[&str]) -> Run {
    let mut arguments: Vec<OsString> = vec!["compare".into()];
    arguments.extend(["--model".into(), golden::model("group2-llama3-tied").into()]);
    let sample = golden::repository().join("assets/sample.txt");
    arguments.extend(["--document".into(), sample.into()]);
    for (name, value) in [("--question", "Who?"), ("--max-tokens", "8")] {
        if !extra.contains(&name) {
            arguments.extend([name.into(), value.into()]);
        }
    }
    arguments.extend(extra.iter().map(Into::into));
    kept(arguments)
}

fn number(value: &Value, name: &str) -> f64 {
    value[name]
        .as_f64()
        .unwrap_or_else(|| panic!("{name} is a number: {value}"))
}

/// The reference full cache is exact; other runs store f16 rows unless another type is named, and each run states its
/// type.
#[test]
fn compare_measures_the_rounding_of_cache_types() {
    let mut last = 0.0;
    for cache in [None, Some("q8_0"), Some("q4_0")] {
        let named = cache.map(|cache| ["--cache", cache]);
        let named = named.as_ref().map_or(&[][..], |words| &words[..]);
        let words = [
            &["--json", "--methods", "full", "--max-tokens", "8"][..],
            named,
        ]
        .concat();
        let lines = compare(&words).json_lines();
        let full = &lines[1];
        assert_eq!(full["cache"], cache.unwrap_or("f16"));
        let kl = number(&full["fidelity"], "kl");
        assert!(kl > last && kl < 0.1, "{cache:?}: {kl} after {last}");
        assert!(number(full, "kv_bytes") < 0.54 * number(&lines[0], "kv_bytes"));
        last = kl;
    }
    let words = [
        "--methods",
        "ems,snapkv",
        "--cache",
        "q8_0",
        "--budgets",
        "25%",
    ];
    let table = compare(&words);
    assert!(table.stdout.contains("ems") && table.stdout.contains("refused: a cache of type q8_0"));
}

#[test]
fn compare_json_has_every_documented_field() {
    let extra = [
        "--json",
        "--methods",
        "full,snapkv,h2o",
        "--budgets",
        "64,10%",
    ];
    let set = ["--set", "snapkv:w=8,snapkv:pooling=avg", "--cache", "f32"];
    let lines = compare(&[extra.as_slice(), &set].concat()).json_lines();
    let [reference, full, runs @ ..] = lines.as_slice() else {
        panic!("lines: {lines:?}");
    };
    assert_eq!(reference["run"], "reference");
    assert_eq!(reference["answer_tokens"], 8);
    let layers = reference["heads"].as_array().expect("heads by layer").len();
    assert!(reference["heads"][0][0]["sparsity"].is_f64());
    assert_eq!(
        reference["wavelet"]["levels"].as_array().map(Vec::len),
        Some(5)
    );
    // The full cache has no budget and runs once.
    assert_eq!(
        (&full["method"], &full["budget"]),
        (&"full".into(), &"100%".into())
    );
    assert_eq!(number(&full["fidelity"], "kl"), 0.0);
    assert_eq!(number(&full["fidelity"], "top1"), 1.0);
    let order: Vec<(&Value, &Value)> = runs.iter().map(|r| (&r["method"], &r["budget"])).collect();
    let expected = [
        ("snapkv", "64"),
        ("snapkv", "10%"),
        ("h2o", "64"),
        ("h2o", "10%"),
    ];
    assert_eq!(order.len(), expected.len());
    for ((method, budget), (name, asked)) in order.into_iter().zip(expected) {
        assert_eq!((method, budget), (&name.into(), &asked.into()));
    }
    assert_eq!(
        runs[0]["parameters"],
        serde_json::json!(["w=8", "pooling=avg"])
    );
    for run in runs {
        assert_run_fields(run, layers);
    }
}

/// Asserts the fields of a run of an evicting method.
fn assert_run_fields(run: &Value, layers: usize) {
    assert_eq!(run["refused"], Value::Null);
    assert_eq!(run["rows_per_layer"].as_array().map(Vec::len), Some(layers));
    let fidelity = &run["fidelity"];
    assert!(number(fidelity, "kl") > 0.0, "{run}");
    assert!((0.0..=1.0).contains(&number(fidelity, "top1")));
    assert!((0.0..1.0).contains(&number(fidelity, "attention_recall")));
    let tokens = number(run, "prompt_tokens");
    let (kept, whole) = (number(run, "kv_bytes"), number(run, "kv_bytes_full"));
    let rows: f64 = run["rows_per_layer"]
        .as_array()
        .expect("rows")
        .iter()
        .filter_map(Value::as_f64)
        .sum();
    assert_eq!(
        kept * tokens * layers as f64,
        whole * rows,
        "bytes are in proportion to rows"
    );
    let indices = &run["indices"];
    assert!((0.0..=1.0).contains(&number(indices, "jaccard")));
    let histogram = indices["position_histogram"].as_array().expect("bins");
    let sum: f64 = histogram.iter().filter_map(Value::as_f64).sum();
    assert!((sum - 1.0).abs() < 1e-9);
    let most = number(indices, "position_entropy_most");
    assert!((0.0..=most).contains(&number(indices, "position_entropy")));
    for seconds in [
        "prefill_seconds",
        "select_seconds",
        "first_token_seconds",
        "decode_tokens_per_second",
    ] {
        assert!(number(run, seconds) > 0.0, "{seconds}");
    }
    assert!(run["answer"].is_string() && run["same_answer"].is_boolean());
}

#[test]
fn pictures_are_complete_and_name_every_run() {
    let folder = std::env::temp_dir().join(format!("kept-pictures-{}", std::process::id()));
    let mut extra = vec!["--methods", "snapkv,treekv", "--budgets", "64,5"];
    extra.extend(["--pictures", folder.to_str().expect("a plain path")]);
    let run = compare(&extra);
    run.succeeded();
    assert!(run.stderr.contains("pictures are in"), "{}", run.stderr);
    let read = |name: &str| {
        let svg = std::fs::read_to_string(folder.join(name)).expect(name);
        assert!(
            svg.starts_with("<svg ") && svg.ends_with("</svg>\n"),
            "{name}"
        );
        assert!(!svg.contains("NaN") && !svg.contains("inf\""), "{name}");
        assert!(svg.len() < 200_000, "{name} is small");
        svg
    };
    for name in [
        "overview.svg",
        "recall.svg",
        "positions.svg",
        "similarity.svg",
    ] {
        let svg = read(name);
        assert!(
            svg.contains(">snapkv<") || svg.contains(">treekv<"),
            "{name}"
        );
        assert!(svg.contains(">64<"), "{name}");
    }
    read("heads.svg");
    assert_eq!(read("wavelet.svg").matches("<polyline").count(), 5);
    std::fs::remove_dir_all(&folder).expect("a folder of ours");
}

/// One method several times: each run has its own parameters, figures, and a distinct label.
#[test]
fn one_method_is_compared_with_several_parameters() {
    let labels = [
        "snapkv[w=8,kernel=3]",
        "snapkv[w=4,kernel=3]",
        "adakv[base=h2o,recent=8]",
    ];
    let methods = "snapkv[w=8],snapkv[kernel=3,w=4],adakv[recent=8,base=h2o]";
    let set = ["--set", "snapkv:kernel=3,snapkv:w=8"];
    let folder = std::env::temp_dir().join(format!("kept-labels-{}", std::process::id()));
    let extra = [&["--budgets", "48", "--methods", methods][..], &set].concat();
    let lines = compare(&[extra.as_slice(), &["--json"]].concat()).json_lines();
    let found: Vec<&Value> = lines[1..].iter().map(|line| &line["label"]).collect();
    assert_eq!(found, labels);
    assert_eq!(lines[1]["method"], "snapkv");
    assert_eq!(
        lines[2]["parameters"],
        serde_json::json!(["kernel=3", "w=4"])
    );
    assert_ne!(lines[1]["fidelity"], lines[2]["fidelity"]);

    let folder_text = folder.to_str().expect("a plain path");
    let table = compare(&[extra.as_slice(), &["--pictures", folder_text]].concat());
    table.succeeded();
    let overview = std::fs::read_to_string(folder.join("overview.svg")).expect("a picture");
    for label in labels {
        let row = table.stdout.lines().find(|line| line.starts_with(label));
        assert!(row.is_some(), "{label}: {}", table.stdout);
        assert!(overview.contains(&format!(">{label}<")), "{label}");
    }
    std::fs::remove_dir_all(&folder).expect("a folder of ours");
}

/// A parameter without a method is that of every method that has it.
#[test]
fn a_parameter_is_set_for_all_methods() {
    let set = ["--set", "h2o:sinks=2,sinks=0"];
    let methods = "full,snapkv,h2o,adakv";
    let extra = ["--budgets", "64", "--methods", methods, "--json"];
    let lines = compare(&[extra.as_slice(), &set].concat()).json_lines();
    let found: Vec<&Value> = lines[1..].iter().map(|line| &line["label"]).collect();
    let expected = ["full", "snapkv[sinks=0]", "h2o[sinks=2]", "adakv[sinks=0]"];
    assert_eq!(found, expected);
}

#[test]
fn a_refused_budget_is_a_row() {
    let extra = ["--methods", "snapkv,streaming_llm", "--budgets", "5"];
    let lines = compare(&[extra.as_slice(), &["--json"]].concat()).json_lines();
    let sentence = lines[1]["refused"].as_str().expect("a sentence");
    assert!(sentence.contains('5'), "it names the value: {sentence}");
    assert_eq!(lines[1]["fidelity"], Value::Null);
    assert_eq!(lines[2]["refused"], Value::Null);
    let table = compare(&extra);
    table.succeeded();
    assert!(table.stdout.contains(sentence), "{}", table.stdout);
    assert_eq!(table.stderr, "", "no bar in a pipe");
}

#[test]
fn compare_names_invalid_input() {
    compare(&["--methods", "snapvk"]).refused(&["snapvk", "snapkv"]);
    compare(&["--methods", ","]).refused(&["--methods"]);
    compare(&["--methods", "h2o,h2o"]).refused(&["h2o", "twice"]);
    let same = "snapkv[w=8,sinks=0],snapkv[sinks=0,w=08]";
    compare(&["--methods", same]).refused(&["snapkv[w=8,sinks=0] twice"]);
    let told = ["--methods", "snapkv,snapkv[w=8]", "--set", "snapkv:w=8"];
    compare(&told).refused(&["--set", "snapkv[w=8] twice"]);
    for (written, named) in [
        ("snapvk[w=8]", "unknown method 'snapvk'"),
        ("snapkv[windw=8]", "'windw'; it has w, kernel"),
        ("snapkv[kernel=4]", "kernel=4"),
        ("snapkv[w=8,h2o", "'snapkv[w=8,h2o' cannot be read"),
        ("snapkv,,h2o", "'snapkv,,h2o' has an empty place"),
        ("snapkv[w=8]x,h2o", "'snapkv[w=8]x' cannot be read"),
        ("snapkv[]", "'snapkv[]' cannot be read"),
        ("[w=8]", "'[w=8]' cannot be read"),
    ] {
        compare(&["--methods", written]).refused(&[named]);
    }
    compare(&["--budgets", "12,ten"]).refused(&["ten"]);
    compare(&["--budgets", "120%"]).refused(&["120%"]);
    compare(&["--budgets", ""]).refused(&["--budgets"]);
    compare(&["--budgets", "12,25%,12"]).refused(&["--budgets names 12 twice"]);
    compare(&["--set", ":w=8"]).refused(&[":w=8 names no method"]);
    compare(&["--set", "w=8,w=9"]).refused(&["sets w twice"]);
    compare(&["--set", "windw=8"]).refused(&["none of the methods has windw"]);
    compare(&["--methods", "h2o", "--set", "snapkv:w=8"]).refused(&["snapkv", "--methods"]);
    compare(&["--methods", "snapkv", "--set", "snapkv:kernel=4"]).refused(&["kernel=4", "odd"]);
    compare(&["--methods", "snapkv", "--set", "snapkv:windw=8"]).refused(&["windw"]);
    compare(&["--max-tokens", "0"]).refused(&["--max-tokens 0"]);
    compare(&["--threads", "0"]).refused(&["--threads 0"]);
    compare(&["--pictures", "/dev/null/here"]).refused(&["/dev/null/here"]);
    compare(&["--question", " "]).refused(&["question"]);
}

#[test]
fn methods_lists_the_registry() {
    let listed = kept(["methods", "--json"]).json();
    let names: Vec<&str> = listed
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|method| method["name"].as_str())
        .collect();
    let known = kept_engine::policies::methods();
    assert!(names.iter().eq(known.iter().map(|info| &info.name)));
    let one = kept(["methods", "snapkv", "--json"]).json();
    assert_eq!(one[0]["parameters"][1]["name"], "kernel");
    for field in ["default", "range", "meaning"] {
        assert!(one[0]["parameters"][1][field].is_string(), "{field}");
    }
    let plain = kept(["methods"]);
    plain.succeeded();
    for info in known {
        assert!(plain.stdout.contains(info.keeps), "{}", info.name);
        for parameter in info.parameters {
            assert!(
                plain.stdout.contains(parameter.meaning),
                "{}",
                parameter.name
            );
        }
    }
    kept(["methods", "snapvk"]).refused(&["snapvk", "snapkv"]);
}
