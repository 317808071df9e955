//! What the documents say of the repository is true.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use kept_tests::golden;
use kept_tests::terminal::kept;
use serde_json::Value;

type Crates = BTreeMap<String, BTreeSet<String>>;

/// The name of the crate in `folder` below `root`, as ARCHITECTURE.md has it.
fn name_of(folder: &Path, root: &Path) -> String {
    let folder = folder.strip_prefix(root);
    let folder = folder.expect("a crate of the workspace").to_string_lossy();
    folder.strip_prefix("models/").unwrap_or(&folder).to_owned()
}

/// The crates of the workspace that each crate depends on, development apart.
fn dependencies() -> Crates {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let words = [
        "metadata",
        "--no-deps",
        "--offline",
        "--format-version",
        "1",
    ];
    let mut command = Command::new(cargo);
    let printed = command.args(words).current_dir(golden::repository());
    let printed = printed.output().expect("cargo runs").stdout;
    let metadata: Value = serde_json::from_slice(&printed).expect("JSON");
    let root = Path::new(metadata["workspace_root"].as_str().expect("a path"));
    let packages = metadata["packages"].as_array().expect("packages").iter();
    let used = |package: &Value| -> BTreeSet<String> {
        let all = package["dependencies"].as_array().expect("a list").iter();
        let own = all.filter(|of| of["kind"].is_null());
        own.filter_map(|of| of["path"].as_str())
            .map(|path| name_of(Path::new(path), root))
            .collect()
    };
    let folder = |package: &Value| {
        let manifest = Path::new(package["manifest_path"].as_str().expect("a path"));
        name_of(manifest.parent().expect("a folder"), root)
    };
    packages
        .map(|package| (folder(package), used(package)))
        .collect()
}

/// The crates that each crate may use: ``a -> {b, c}`` in the sentence of ARCHITECTURE.md.
fn allowed() -> Crates {
    let page = golden::repository().join("ARCHITECTURE.md");
    let page = std::fs::read_to_string(page).expect("ARCHITECTURE.md");
    let (_, sentence) = page
        .split_once("A crate may use only these:")
        .expect("the sentence");
    let (sentence, _) = sentence.split_once("\n\n").expect("its end");
    let mut found = Crates::new();
    for (user, used) in sentence
        .split('`')
        .filter_map(|words| words.split_once(" -> "))
    {
        let words = used.replace(['{', '}', '\n'], " ");
        let mut all = BTreeSet::new();
        for word in words.split(',').map(str::trim) {
            let (name, more) = match word.strip_suffix(" and what it uses") {
                Some(name) => (name, true),
                None => (word, false),
            };
            all.insert(name.to_owned());
            if more {
                all.extend(dependencies()[name].iter().cloned());
            }
        }
        found.insert(user.to_owned(), all);
    }
    found
}

#[test]
fn crates_use_what_the_architecture_allows() {
    let allowed = allowed();
    assert!(allowed.len() >= 13, "{allowed:?}");
    for (user, used) in dependencies() {
        if user == "tests" {
            continue;
        }
        let none = BTreeSet::new();
        let may = allowed.get(&user).unwrap_or(&none);
        let more: Vec<&String> = used.difference(may).collect();
        assert!(
            more.is_empty(),
            "{user} uses {more:?}, ARCHITECTURE.md does not say so"
        );
    }
}

/// `scripts/methods-table` writes the output of `kept methods --markdown` into docs/methods.md.
#[test]
fn the_methods_table_is_up_to_date() {
    let path = golden::repository().join("docs/methods.md");
    let page = std::fs::read_to_string(path).expect("docs/methods.md");
    let printed = kept(["methods", "--markdown"]);
    printed.succeeded();
    assert!(
        page.contains(&format!(
            "<!-- methods -->\n{}<!-- /methods -->\n",
            printed.stdout
        )),
        "docs/methods.md is not what `kept methods --markdown` prints; run scripts/methods-table"
    );
}

/// Adds the names of all fields of `value`.
fn names_in(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                names.insert(name.clone());
                names_in(field, names);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| names_in(value, names)),
        _ => {}
    }
}

#[test]
fn every_name_in_json_is_documented() {
    let root = golden::repository();
    let page = std::fs::read_to_string(root.join("docs/json.md")).expect("the page");
    let document = root.join("assets/sample.txt");
    let document = document.to_str().expect("a path");
    let about = ["--document", document, "--question", "Who is Ann Quorvin?"];
    let qa = root.join("tests/qa/documents");
    let qa = qa.to_str().expect("a path");
    let method = ["--budgets", "25%", "--methods", "snapkv,ems"];
    let needle = ["--lengths", "512", "--depths", "50", "--repeats", "1"];
    let text = ["--data", document, "--lengths", "64,128"];
    let folder = tempfile::tempdir().expect("a folder");
    let asked = folder.path().join("documents");
    std::fs::create_dir(&asked).expect("a folder");
    std::fs::copy(document, asked.join("sample.txt")).expect("a copy");
    let line = r#"{"document": "sample.txt", "question": "Who is Ann Quorvin?", "answers": []}"#;
    std::fs::write(folder.path().join("questions.jsonl"), line).expect("a question");
    let questions = folder.path().to_str().expect("a path");
    let commands: [Vec<&str>; 7] = [
        [
            &["ask"],
            &about[..],
            &["--document", document, "--show-prompt"],
        ]
        .concat(),
        [&["map"], &about[..], &["--budget", "25%"]].concat(),
        [&["compare"], &about[..], &method].concat(),
        [&["eval", "needle", "--data", qa], &method[..], &needle].concat(),
        [&["eval", "qa", "--data", questions], &method[..]].concat(),
        [&["eval", "perplexity", "--methods", "treekv"], &text[..]].concat(),
        vec![
            "bench",
            "--kernels",
            "--prompt-tokens",
            "64",
            "--decode-tokens",
            "4",
        ],
    ];
    for command in commands {
        let json = ["--json", "--model", "mini"];
        let printed = kept(command.iter().chain(&json)).json_lines();
        let mut names = BTreeSet::new();
        printed.iter().for_each(|line| names_in(line, &mut names));
        assert!(!names.is_empty(), "{command:?} prints nothing");
        names.retain(|name| !page.contains(&format!("`{name}`")));
        assert!(
            names.is_empty(),
            "{command:?}: docs/json.md lacks {names:?}"
        );
    }
}
