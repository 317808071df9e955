//! Models already on disk: `kept models list`, `--model NAME`, and the folders of other programs.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use kept_hub::{Finder, Found, FoundModel, HubError, Place};
use kept_models::testing::{GgufWriter, MetaValue, TinyLlama};
use kept_tests::hub::{at_home, in_cache, sha256};
use kept_tests::terminal::{Run, run};
use serde_json::json;

/// A model that Kept supports.
fn model(title: &str) -> GgufWriter {
    let mut writer = TinyLlama::default().writer();
    writer.set("general.name", MetaValue::Text(title.into()));
    writer.set("general.file_type", MetaValue::Whole(7));
    writer
}

fn put(path: &Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

fn finder(home: &Path) -> Finder {
    Finder::from_variables(&|_| None, Some(home))
}

fn named<'a>(found: &'a Found, name: &str) -> &'a FoundModel {
    let models = &found.models;
    let one = models.iter().find(|model| model.name == name);
    one.unwrap_or_else(|| panic!("{name} is not among {models:#?}"))
}

fn names(found: &Found) -> Vec<&str> {
    found
        .models
        .iter()
        .map(|model| model.name.as_str())
        .collect()
}

/// A hub's cache with one file; the path to open.
fn in_hub_cache(home: &Path, repo: &str, file: &str, bytes: &[u8]) -> PathBuf {
    in_cache(&home.join(".cache/huggingface/hub"), repo, file, bytes)
}

fn in_ollama(home: &Path, below: &str, bytes: &[u8]) -> PathBuf {
    let models = home.join(".ollama/models");
    let manifest = json!({"schemaVersion": 2, "layers": [
        {"mediaType": "application/vnd.ollama.image.license", "digest": format!("sha256:{}", "1".repeat(64)), "size": 3},
        {"mediaType": "application/vnd.ollama.image.model", "digest": format!("sha256:{}", sha256(bytes)), "size": bytes.len()},
    ]});
    put(
        &models.join("manifests").join(below),
        manifest.to_string().as_bytes(),
    );
    let blob = models
        .join("blobs")
        .join(format!("sha256-{}", sha256(bytes)));
    put(&blob, bytes);
    blob
}

#[test]
fn models_of_other_programs_are_found() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let bytes = |title: &str| model(title).bytes();
    in_hub_cache(home, "maker/a-GGUF", "a-Q8_0.gguf", &bytes("A"));
    in_ollama(home, "registry.ollama.ai/library/llama3.2/1b", &bytes("B"));
    in_ollama(home, "registry.ollama.ai/ann/own/latest", &bytes("C"));
    in_ollama(home, "hf.co/maker/c-GGUF/Q8_0", &bytes("D"));
    put(
        &home.join(".lmstudio/models/maker/repo/e-Q8_0.gguf"),
        &bytes("E"),
    );
    put(
        &home.join(".cache/lm-studio/models/maker/repo/f.gguf"),
        &bytes("F"),
    );
    put(&home.join("jan/models/g/g.gguf"), &bytes("G"));
    put(
        &home.join(".local/share/Jan/data/llamacpp/models/maker/h/model.gguf"),
        &bytes("H"),
    );
    put(&home.join(".cache/llama.cpp/maker_i_i.gguf"), &bytes("I"));
    put(
        &home.join(".local/share/nomic.ai/GPT4All/j.gguf"),
        &bytes("J"),
    );
    put(&home.join("mine/deep/k.GGUF"), &bytes("K"));
    put(
        &home.join(".cache/kept/models/Tiny-L-Instruct.Q8_0.gguf"),
        &bytes("L"),
    );
    let found = finder(home).with_folder(home.join("mine")).find();
    assert_eq!(found.troubles, [""; 0]);
    for (name, title, place) in [
        ("maker/a-GGUF:a-Q8_0.gguf", "A", Place::HubCache),
        ("llama3.2:1b", "B", Place::Ollama),
        ("ann/own:latest", "C", Place::Ollama),
        ("hf.co/maker/c-GGUF:Q8_0", "D", Place::Ollama),
        ("e-Q8_0", "E", Place::LmStudio),
        ("f", "F", Place::LmStudio),
        ("g", "G", Place::Jan),
        ("h", "H", Place::Jan),
        ("maker_i_i", "I", Place::LlamaCpp),
        ("j", "J", Place::Gpt4All),
        ("k", "K", Place::Folder),
        ("Tiny-L-Instruct.Q8_0", "L", Place::Kept),
    ] {
        let model = named(&found, name);
        assert_eq!(
            (model.title.as_deref(), model.place),
            (Some(title), place),
            "{name}"
        );
        assert!(model.supported, "{name}: {:?}", model.reason);
        assert_eq!(model.architecture.as_deref(), Some("llama"));
        assert_eq!(model.quantisation.as_deref(), Some("Q8_0"));
        assert_eq!(model.bytes, fs::metadata(&model.path).unwrap().len());
        assert!(
            model.context.is_some() && model.parameters.is_some(),
            "{name}"
        );
    }
    assert_eq!(found.models.len(), 12, "{:?}", names(&found));
}

#[test]
fn environment_variables_replace_the_default_folders() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    put(&home.join("o/blobs/sha256-1"), b"");
    put(&home.join("l/one.gguf"), &model("One").bytes());
    put(&home.join("k1/two.gguf"), &model("Two").bytes());
    put(&home.join("k2/three.gguf"), &model("Three").bytes());
    put(
        &home.join(".cache/kept/models/four.gguf"),
        &model("Four").bytes(),
    );
    let both = std::env::join_paths([home.join("k1"), home.join("k2")]).unwrap();
    let variable = |name: &str| -> Option<OsString> {
        match name {
            "OLLAMA_MODELS" => Some(home.join("o").into()),
            "LLAMA_CACHE" => Some(home.join("l").into()),
            "KEPT_MODELS" => Some(both.clone()),
            "HF_HOME" => Some(home.join("hf").into()),
            _ => None,
        }
    };
    let finder = Finder::from_variables(&variable, Some(home));
    assert_eq!(names(&finder.find()), ["one", "three", "two"]);
    let folders: Vec<&Path> = finder.folders().map(|(_, folder)| folder).collect();
    assert_eq!(folders[0], home.join("hf/hub"));
    assert!(!folders.contains(&home.join(".ollama/models").as_path()));
    let cache = |name: &str| -> Option<OsString> {
        (name == "XDG_CACHE_HOME").then(|| home.join("cache").into())
    };
    put(
        &home.join("cache/kept/models/five.gguf"),
        &model("Five").bytes(),
    );
    let found = Finder::from_variables(&cache, Some(home)).find();
    assert_eq!(named(&found, "five").place, Place::Kept);
    assert_eq!(names(&found), ["five"]);
}

/// The models of `make models`, under their names in its folder.
#[test]
fn fetched_models_are_found_by_part_of_their_names() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let folder = home.join(".cache/kept/models");
    let (smollm2, gemma) = (
        folder.join("SmolLM2-135M-Instruct.Q4_1.gguf"),
        folder.join("gemma-3-270m-q4_k_m.gguf"),
    );
    put(&smollm2, &model("Smollm2 135M 8k Lc100K Mix1 Ep2").bytes());
    put(&gemma, &model("Gemma 3 270m").bytes());
    // An abandoned download is ignored.
    put(
        &folder.join(".fetching-1/gemma-3-270m-q4_k_m.gguf"),
        &model("Half").bytes(),
    );
    let finder = finder(home);
    for (name, path) in [
        ("smollm2", &smollm2),
        ("SmolLM2-135M", &smollm2),
        ("gemma-3-270m", &gemma),
        ("gemma", &gemma),
    ] {
        assert_eq!(finder.choose(name).as_ref(), Ok(path), "{name}");
    }
    let listed = kept(home, &["models", "list", "--json"]).json();
    let places: Vec<&str> = (listed["models"].as_array().unwrap().iter())
        .map(|model| model["place"].as_str().unwrap())
        .collect();
    assert_eq!(places, ["Kept", "Kept"]);
    let opened = kept(home, &["models", "inspect", "smollm2", "--json"]).json();
    assert_eq!(opened["name"], "SmolLM2-135M-Instruct.Q4_1");
}

#[test]
fn files_that_are_no_language_models_are_skipped() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join(".lmstudio/models");
    put(&folder.join("good.gguf"), &model("Good").bytes());
    put(&folder.join("mmproj-good-f16.gguf"), &model("Eyes").bytes());
    put(
        &folder.join("ggml-vocab-x.gguf"),
        &model("Vocabulary").bytes(),
    );
    let mut adapter = model("Adapter");
    adapter.set("general.type", MetaValue::Text("adapter".into()));
    put(&folder.join("adapter.gguf"), &adapter.bytes());
    let mut eyes = GgufWriter::default();
    eyes.set("general.architecture", MetaValue::Text("clip".into()));
    eyes.tensor("v.w", &[1, 32], "F32", &[0.0; 32]);
    put(&folder.join("vision.gguf"), &eyes.bytes());
    let mut vocabulary = GgufWriter::default();
    vocabulary.set("general.architecture", MetaValue::Text("llama".into()));
    put(&folder.join("words.gguf"), &vocabulary.bytes());
    put(&folder.join("notes.txt"), b"hello");
    assert_eq!(names(&finder(home.path()).find()), ["good"]);
}

#[test]
fn unsupported_models_state_a_reason() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join(".lmstudio/models");
    let mut other = model("Other");
    other.set("general.architecture", MetaValue::Text("mamba9".into()));
    put(&folder.join("other.gguf"), &other.bytes());
    let whole = model("Cut").bytes();
    put(&folder.join("cut.gguf"), &whole[..whole.len() - 1000]);
    put(
        &folder.join("pointer.gguf"),
        b"version https://git-lfs.github.com/spec/v1\n",
    );
    put(&folder.join("empty.gguf"), b"");
    put(&folder.join("big-Q8_0-00001-of-00003.gguf"), &whole);
    put(&folder.join("big-Q8_0-00003-of-00003.gguf"), &whole);
    let found = finder(home.path()).find();
    for (name, says) in [
        ("other", "\"mamba9\""),
        ("cut", "cut short"),
        ("pointer", "not a GGUF file"),
        ("empty", "not a GGUF file"),
        ("big-Q8_0-00001-of-00003", "part 2 of 3 is missing"),
    ] {
        let model = named(&found, name);
        assert!(!model.supported, "{name}");
        let reason = model.reason.as_deref().unwrap_or_default();
        assert!(reason.contains(says), "{name}: {reason}");
    }
    let other = named(&found, "other");
    assert_eq!(other.architecture.as_deref(), Some("mamba9"));
    let big = named(&found, "big-Q8_0-00001-of-00003");
    assert_eq!((big.parts, big.bytes), (2, 2 * whole.len() as u64));
    assert_eq!(found.models.len(), 5);
}

#[cfg(unix)]
#[test]
fn links_cycles_and_unreadable_folders_are_handled() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join(".lmstudio/models");
    put(&folder.join("a/one.gguf"), &model("One").bytes());
    symlink(&folder, folder.join("a/again")).unwrap();
    symlink("/nowhere", folder.join("broken.gguf")).unwrap();
    symlink(folder.join("a/one.gguf"), folder.join("the-same.gguf")).unwrap();
    let closed = folder.join("closed");
    put(&closed.join("two.txt"), b"");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    let pipe = folder.join("pipe.gguf");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.is_ok_and(|status| status.success()));
    // The hub's cache may link to the same file.
    let hub = home
        .path()
        .join(".cache/huggingface/hub/models--m--r/snapshots")
        .join("b".repeat(40));
    fs::create_dir_all(&hub).unwrap();
    symlink(folder.join("a/one.gguf"), hub.join("one.gguf")).unwrap();
    let found = finder(home.path()).find();
    assert_eq!(names(&found), ["m/r:one.gguf"], "one file is one model");
    // Root can read every folder.
    if fs::read_dir(&closed).is_err() {
        assert_eq!(found.troubles.len(), 1, "{:?}", found.troubles);
        assert!(found.troubles[0].contains("closed' cannot be looked through"));
    }
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn unfinished_downloads_are_listed() {
    let home = tempfile::tempdir().unwrap();
    let hub = home
        .path()
        .join(".cache/huggingface/hub/models--maker--tiny-GGUF/blobs");
    put(
        &hub.join(format!("{}.incomplete", "a".repeat(64))),
        b"GGUF and more",
    );
    put(
        &hub.join(format!("{}.incomplete", "b".repeat(64))),
        b"safetensors",
    );
    put(
        &home
            .path()
            .join(".lmstudio/models/m/r/downloading_x.gguf.part"),
        b"12345",
    );
    put(
        &home
            .path()
            .join(".cache/llama.cpp/y.gguf.downloadInProgress"),
        b"1234",
    );
    put(
        &home
            .path()
            .join(".ollama/models/blobs")
            .join(format!("sha256-{}-partial", "c".repeat(64))),
        b"",
    );
    let found = finder(home.path()).find();
    assert!(found.models.is_empty(), "{:?}", found.models);
    let shown: Vec<(&str, Option<u64>, Place)> = found
        .unfinished
        .iter()
        .map(|one| (one.name.as_str(), one.bytes, one.place))
        .collect();
    assert_eq!(
        shown,
        [
            ("maker/tiny-GGUF", Some(13), Place::HubCache),
            ("downloading_x.gguf", Some(5), Place::LmStudio),
            ("sha256-cccccccccccc", None, Place::Ollama),
            ("y.gguf", Some(4), Place::LlamaCpp),
        ]
    );
    let refused = finder(home.path())
        .choose("maker/tiny-GGUF:Q8_0")
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "'maker/tiny-GGUF:Q8_0' is not complete: 13 bytes of it have arrived; go on with: kept models pull maker/tiny-GGUF:Q8_0"
    );
}

#[test]
fn a_name_selects_exactly_one_model() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let hub = in_hub_cache(
        home,
        "maker/a-GGUF",
        "sub/a-Q8_0.gguf",
        &model("Model A").bytes(),
    );
    let ollama = in_ollama(
        home,
        "registry.ollama.ai/library/llama3.2/latest",
        &model("B").bytes(),
    );
    let (c, d) = (
        home.join(".lmstudio/models/c-Q4.gguf"),
        home.join(".lmstudio/models/x/c-Q8.gguf"),
    );
    put(&c, &model("C four").bytes());
    put(&d, &model("C eight").bytes());
    let finder = finder(home);
    for (name, path) in [
        ("maker/a-GGUF:a-Q8_0.gguf", &hub),
        ("maker/a-GGUF:q8_0", &hub),
        ("maker/a-GGUF", &hub),
        ("https://huggingface.co/maker/a-GGUF", &hub),
        ("a-q8_0", &hub),
        ("model a", &hub),
        ("llama3.2:latest", &ollama),
        ("LLAMA3.2", &ollama),
        ("c-Q8", &d),
        ("c-q4.gguf", &c),
        ("eight", &d),
    ] {
        assert_eq!(finder.choose(name).as_ref(), Ok(path), "{name}");
    }
    for (name, says) in [
        (
            "c-q",
            "'c-q' names several models on this computer; say which: c-Q4, c-Q8",
        ),
        (
            "maker/a-GGUF:Q2_K",
            "'maker/a-GGUF:Q2_K' is not on this computer; download it first: kept models pull maker/a-GGUF:Q2_K",
        ),
        (
            "other/b-GGUF",
            "'other/b-GGUF' is not on this computer; download it first: kept models pull other/b-GGUF",
        ),
        (
            "nothing",
            "'nothing' is no file, and no model on this computer has that name; kept models list shows those that were found",
        ),
        (
            "maker-a",
            "'maker-a' is no file, and no model on this computer has that name; kept models list shows those that were found, such as maker/a-GGUF:sub/a-Q8_0.gguf",
        ),
    ] {
        assert_eq!(finder.choose(name).unwrap_err().to_string(), says);
    }
    // Two files of the same name: only their paths distinguish them.
    let twin = home.join(".lmstudio/models/y/c-Q8.gguf");
    put(&twin, &model("C eight again").bytes());
    let HubError::SeveralModels { candidates, .. } = finder.choose("c-Q8").unwrap_err() else {
        panic!("two models of one name");
    };
    assert_eq!(
        candidates,
        [d.display().to_string(), twin.display().to_string()]
    );
}

#[test]
fn thousands_of_files_are_searched() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join(".lmstudio/models");
    fs::create_dir_all(&folder).unwrap();
    let bytes = model("Many").bytes();
    for n in 0..2000 {
        fs::write(folder.join(format!("text-{n}.txt")), b"x").unwrap();
        if n % 20 == 0 {
            fs::write(folder.join(format!("m-{n:04}.gguf")), &bytes).unwrap();
        }
    }
    let found = finder(home.path()).find();
    assert_eq!(found.models.len(), 100);
    assert!(found.models.iter().all(|model| model.supported));
}

fn kept(home: &Path, arguments: &[&str]) -> Run {
    let mut command = at_home(home);
    command.args(arguments);
    run(command)
}

#[test]
fn models_are_listed_added_forgotten_and_opened() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let empty = kept(home, &["models", "list"]);
    assert!(
        empty
            .succeeded()
            .stdout
            .contains("kept models list --catalogue"),
        "{}",
        empty.stdout
    );
    let mine = home.join("mine");
    put(&mine.join("special-one.gguf"), &model("Special").bytes());
    let mine = mine.to_str().unwrap();
    kept(home, &["models", "inspect", "special-one"])
        .refused(&["'special-one' is no file, and no model on this computer has that name"]);
    let once = kept(home, &["models", "list", "--folder", mine, "--json"]).json();
    assert_eq!(once["models"][0]["name"], "special-one");
    assert_eq!(once["models"][0]["place"], "folder");
    assert_eq!(once["models"][0]["supported"], true);
    let added = kept(home, &["models", "add", mine]);
    assert!(
        added.succeeded().stdout.contains("added; models in it: 1"),
        "{}",
        added.stdout
    );
    kept(home, &["models", "add", mine]).succeeded();
    let listed = kept(home, &["models", "list"]);
    let text = &listed.succeeded().stdout;
    assert!(
        text.contains("special-one") && text.contains("llama Q8_0"),
        "{text}"
    );
    let opened = kept(home, &["models", "inspect", "Special", "--json"]).json();
    assert_eq!(opened["name"], "special-one");
    kept(home, &["models", "forget", mine]).succeeded();
    kept(home, &["models", "forget", mine]).refused(&["was never added"]);
    kept(home, &["models", "add", "/no/such/folder"]).refused(&["'/no/such/folder' is no folder"]);
    kept(home, &["models", "list", "--folder", "/no/such/folder"])
        .refused(&["'/no/such/folder' is no folder"]);
    kept(home, &["models", "inspect", "maker/none-GGUF:Q8_0"]).refused(&[
        "is not on this computer; download it first: kept models pull maker/none-GGUF:Q8_0",
    ]);
    kept(home, &["models", "inspect", "missing.gguf"])
        .refused(&["cannot be opened", "check the path"]);
}

#[test]
fn the_catalogue_is_listed() {
    let home = tempfile::tempdir().unwrap();
    let entries = kept(home.path(), &["models", "list", "--catalogue", "--json"]).json();
    let entries = entries.as_array().unwrap();
    assert!(entries.len() >= 8);
    for entry in entries {
        assert!(entry["reference"].as_str().unwrap().contains(".gguf"));
        assert!(entry["licence"].is_string() && entry["fit"].is_string());
        assert!(entry["pages_per_minute"].as_f64().unwrap() >= 0.0);
    }
    let text = kept(home.path(), &["models", "list", "--catalogue"]);
    assert!(
        text.succeeded()
            .stdout
            .contains("kept models pull HuggingFaceTB/"),
        "{}",
        text.stdout
    );
}

/// A model with a chat template.
fn instruct(title: &str) -> GgufWriter {
    let mut writer = model(title);
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}";
    writer.set(
        "tokenizer.chat_template",
        MetaValue::Text(template.to_owned()),
    );
    writer
}

/// `kept ask` on a short document, without a named model.
fn ask(home: &Path, extra: &[&str]) -> Run {
    let document = home.join("note.txt");
    put(
        &document,
        b"The keeper went to the harbour and came back late.",
    );
    let mut arguments = vec!["ask", "--question", "Who went?", "--max-tokens", "2"];
    arguments.extend(["--vault", "off", "--document", document.to_str().unwrap()]);
    arguments.extend(extra);
    kept(home, &arguments)
}

const MINI_ONLY: &str = "the built-in model (mini) only finds facts";

#[test]
fn the_built_in_model_notes_its_limits() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let alone = ask(home, &[]);
    let said = &alone.succeeded().stderr;
    for part in [
        "note: the model is mini: no other on this computer",
        MINI_ONLY,
        "make models, or kept models pull ",
        "then kept models use NAME",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let told = said.find(MINI_ONLY) < said.find("read in");
    assert!(told, "it is said before the answer: {said}");
    // With `mini` named, its note remains, without the reason for the choice; on stderr, where scripts read no answer.
    let named = ask(home, &["--model", "mini"]);
    let said = &named.succeeded().stderr;
    assert_eq!(said.matches(MINI_ONLY).count(), 1, "{said}");
    assert!(!said.contains("the model is"), "{said}");
    assert!(!named.stdout.contains(MINI_ONLY), "{}", named.stdout);
    let json = ask(home, &["--json"]);
    json.json();
    assert!(json.stderr.contains(MINI_ONLY), "{}", json.stderr);

    // The sample under another name is still the sample, and another text under its name is not.
    let sample = fs::read(kept_tests::golden::repository().join("assets/sample.txt")).unwrap();
    let copy = home.join("copy.md");
    put(&copy, &sample);
    let question = ["--question", "Who?", "--max-tokens", "1", "--vault", "off"];
    let of = |document: &Path, more: &[&str]| {
        let document = document.to_str().unwrap();
        let words = [&["ask", "--document", document], &question[..], more].concat();
        kept(home, &words).succeeded().stderr.clone()
    };
    let said = of(&copy, &[]);
    assert!(
        !said.contains(MINI_ONLY) && said.contains("the model is mini"),
        "{said}"
    );
    let other = home.join("sample.txt");
    put(&other, &[&sample[..], b"\nOne line more.\n"].concat());
    assert!(of(&other, &["--model", "mini"]).contains(MINI_ONLY));
    // A refusal is still one line.
    kept(
        home,
        &["ask", "--question", "Who?", "--document", "/none.txt"],
    )
    .refused(&["/none.txt"]);
}

/// The better of the models that [`two_models`] leaves.
const SMALL: &str = "maker/small-GGUF:small-Q8_0.gguf";

/// A home folder with [`SMALL`] and with a base model, which has more parameters but no chat template.
fn two_models() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    let small = instruct("Small").bytes();
    in_hub_cache(home.path(), "maker/small-GGUF", "small-Q8_0.gguf", &small);
    let base = TinyLlama {
        ffn: 1024,
        ..TinyLlama::default()
    };
    let path = home.path().join(".cache/llama.cpp/base.gguf");
    put(&path, &base.writer().bytes());
    home
}

/// `kept models use`.
fn uses(home: &Path, words: &[&str]) -> Run {
    kept(home, &[&["models", "use"], words].concat())
}

/// Asserts which model answers by default, and why.
#[track_caller]
fn assert_uses(home: &Path, model: &str, why: &str) {
    let now = uses(home, &["--json"]).json();
    assert_eq!(
        (now["model"].as_str(), now["why"].as_str()),
        (Some(model), Some(why))
    );
}

#[test]
fn the_best_model_answers_by_default() {
    let home = two_models();
    let home = home.path();
    assert_uses(home, SMALL, "best");
    let text = uses(home, &[]).succeeded().stdout.clone();
    assert!(
        text.starts_with(SMALL) && text.contains("best on this computer"),
        "{text}"
    );
    let asked = ask(home, &[]);
    let said = &asked.succeeded().stderr;
    assert!(
        said.contains(&format!("note: the model is {SMALL}: the best")),
        "{said}"
    );
    assert!(!said.contains(MINI_ONLY), "{said}");
    assert_eq!(ask(home, &["--json"]).json()["model"], "small-Q8_0");
    // Ollama names files by their hash.
    in_ollama(
        home,
        "registry.ollama.ai/ann/own/latest",
        &instruct("Ann's").bytes(),
    );
    let theirs = ask(home, &["--json", "--model", "ann/own:latest"]).json();
    assert_eq!(theirs["model"], "Ann's");
    let named = ask(home, &["--model", SMALL]);
    assert!(
        !named.succeeded().stderr.contains("the model is"),
        "{}",
        named.stderr
    );
}

#[test]
fn a_chosen_model_answers_until_the_choice_is_cleared() {
    let home = two_models();
    let home = home.path();
    // Chosen by a part of its name, stored by its full name.
    uses(home, &["base"]).succeeded();
    assert_uses(home, "base", "chosen");
    let file = home.join(".config/kept/model");
    assert_eq!(fs::read_to_string(&file).unwrap(), "base\n");
    let said = ask(home, &[]).stderr;
    assert!(
        said.contains("note: the model is base: chosen with kept models use"),
        "{said}"
    );
    uses(home, &["mini"]).succeeded();
    let now = uses(home, &["--json"]).json();
    assert_eq!(
        (now["model"].as_str(), now["path"].is_null()),
        (Some("mini"), true)
    );
    for forget in ["auto", "--clear"] {
        uses(home, &["mini"]).succeeded();
        uses(home, &[forget]).succeeded();
        assert!(!file.exists(), "{forget}");
        assert_uses(home, SMALL, "best");
    }
}

/// A file is stored by its absolute path, whatever the working directory.
#[test]
fn a_chosen_file_that_is_gone_is_named() {
    let home = two_models();
    let home = home.path();
    let mine = home.join("mine/one.gguf");
    put(&mine, &instruct("Mine").bytes());
    uses(home, &[mine.to_str().unwrap()]).succeeded();
    assert_eq!(ask(home, &["--json"]).json()["model"], "one");
    fs::remove_file(&mine).unwrap();
    for gone in [ask(home, &[]), uses(home, &[])] {
        gone.refused(&[
            "mine/one.gguf",
            "not on this computer any more",
            "kept models use auto",
        ]);
    }
    uses(home, &["auto"]).succeeded();
    assert_uses(home, SMALL, "best");
}

#[test]
fn models_that_cannot_be_opened_are_not_chosen() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let uses = |name: &str| kept(home, &["models", "use", name]);
    uses("no-such-model").refused(&["'no-such-model'", "kept models list"]);
    uses("./missing.gguf").refused(&["missing.gguf"]);
    uses("maker/none-GGUF:Q8_0").refused(&["kept models pull maker/none-GGUF:Q8_0"]);
    let broken = home.join("broken.gguf");
    put(&broken, b"GGUF and nothing more");
    uses(broken.to_str().unwrap()).refused(&["broken.gguf"]);
    let mut odd = model("Odd");
    odd.set("general.architecture", MetaValue::Text("mamba9".into()));
    let path = home.join("odd.gguf");
    put(&path, &odd.bytes());
    uses(path.to_str().unwrap()).refused(&["odd.gguf", "mamba9"]);
    let both = kept(home, &["models", "use", "mini", "--clear"]);
    both.refused(&["--clear"]);
    assert!(!home.join(".config/kept").exists());
    // An error about a damaged choice names its file.
    fs::create_dir_all(home.join(".config/kept/model")).unwrap();
    kept(home, &["models", "use"]).refused(&["kept/model", "mend or remove it"]);
}
