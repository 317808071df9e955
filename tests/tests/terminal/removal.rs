//! `kept models remove`: removes models in the hub's cache, and nothing else.

use std::fs;

use kept_models::testing::TinyLlama;
use kept_tests::hub::{at_home, in_cache};
use kept_tests::terminal::{Run, run};
use serde_json::json;

#[test]
fn only_models_of_the_hub_cache_are_removed() {
    let home = tempfile::tempdir().unwrap();
    let bytes = TinyLlama::default().writer().bytes();
    let pointer = in_cache(
        &home.path().join(".cache/huggingface/hub"),
        "maker/tiny-GGUF",
        "tiny-Q8_0.gguf",
        &bytes,
    );
    let own = home.path().join(".lmstudio/models/maker/repo/own.gguf");
    fs::create_dir_all(own.parent().unwrap()).unwrap();
    fs::write(&own, &bytes).unwrap();
    let kept = |arguments: &[&str]| -> Run {
        let mut command = at_home(home.path());
        command.args(["models", "remove"]).args(arguments);
        run(command)
    };
    kept(&["own", "--yes"]).refused(&["'own' is a model of LM Studio", "remove it there"]);
    kept(&["mini", "--yes"]).refused(&["it stays"]);
    kept(&["maker/tiny-GGUF:Q8_0"]).refused(&["tiny-Q8_0.gguf", "add --yes"]);
    kept(&["--unfinished", "--yes"]).refused(&["nothing is unfinished"]);
    assert!(pointer.exists() && own.exists());
    let removed = kept(&["maker/tiny-GGUF:Q8_0", "--yes", "--json"]).json();
    assert_eq!(
        removed,
        json!({"removed": ["maker/tiny-GGUF:tiny-Q8_0.gguf"], "freed_bytes": bytes.len()})
    );
    let repo = home
        .path()
        .join(".cache/huggingface/hub/models--maker--tiny-GGUF");
    assert!(!repo.exists() && own.exists());

    let partial = repo
        .join("blobs")
        .join(format!("{}.incomplete", "e".repeat(64)));
    fs::create_dir_all(partial.parent().unwrap()).unwrap();
    fs::write(&partial, &bytes[..2048]).unwrap();
    kept(&["--unfinished", "maker/other", "--yes"]).refused(&["'maker/other'"]);
    let removed = kept(&["--unfinished", "maker/tiny-GGUF", "--yes", "--json"]).json();
    assert_eq!(removed["freed_bytes"], 2048);
    assert!(!repo.exists());
}
