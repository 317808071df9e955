//! Random models for the window tests, in the size that a test needs.

use std::path::PathBuf;

use kept_models::testing::TinyLlama;
use kept_tests::window::{App, Home, Launch};
use serde_json::json;

/// Large enough to read the sample for several seconds, with an end token so unlikely that decoding continues.
#[must_use]
pub fn slow_model(home: &Home) -> PathBuf {
    let path = home.path().join("files/slow.gguf");
    let model = TinyLlama {
        layers: 8,
        width: 512,
        ffn: 2048,
        q_heads: 8,
        kv_heads: 2,
        head_dim: 64,
        context: 16_384,
        kind: "Q8_0",
        endless: true,
        ..TinyLlama::default()
    };
    model.write(&path).expect("a model is written");
    path
}

/// The app with [`slow_model`] and the sample; an answer goes on until it is stopped.
#[track_caller]
pub fn answering_long(home: &Home) -> App<'_> {
    let app = Launch::plain()
        .argument("--model")
        .argument(slow_model(home))
        .open(home);
    app.until("the slow model is open", |app| {
        app.snapshot()["model"]["name"] == "slow"
    });
    app.shows_document("sample.txt");
    app.set(json!({"maxTokens": 8000}));
    app
}

/// Small enough to read 128K tokens within a test.
#[must_use]
pub fn wide_model(home: &Home) -> PathBuf {
    small_model(home, "wide.gguf", 200_000)
}

/// A very small model with a context length of `context` tokens, in a file of this name.
pub fn small_model(home: &Home, name: &str, context: usize) -> PathBuf {
    let path = home.path().join("files").join(name);
    let model = TinyLlama {
        layers: 2,
        width: 32,
        ffn: 32,
        q_heads: 1,
        kv_heads: 1,
        head_dim: 16,
        context,
        ..TinyLlama::default()
    };
    model.write(&path).expect("a model is written");
    path
}
