//! The programs in `examples`, on the built-in model and its sample.

#[allow(dead_code)]
#[path = "../examples/ask.rs"]
mod ask;
#[allow(dead_code)]
#[path = "../examples/chat.rs"]
mod chat;
#[allow(dead_code)]
#[path = "../examples/map.rs"]
mod map;
#[allow(dead_code)]
#[path = "../examples/own_method.rs"]
mod own_method;

use std::path::{Path, PathBuf};

const QUESTION: &str = "What is the gate code of Edgar Tollen?";

fn asset(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../assets")
        .join(name)
}

#[test]
fn ask_answers() {
    let answer = ask::ask(&asset("mini.gguf"), &asset("sample.txt"), QUESTION).unwrap();
    assert!(answer.text.contains("2906"), "{}", answer.text);
}

#[test]
fn chat_reads_the_document_once() {
    let folder = tempfile::tempdir().unwrap();
    let questions = [QUESTION, "What is the market day of Saltmarrow?"];
    let (model, document) = (asset("mini.gguf"), asset("sample.txt"));
    let answers = chat::chat(&model, &document, folder.path(), &questions).unwrap();
    assert!(answers[0].text.contains("2906"), "{}", answers[0].text);
    assert!(answers[1].text.contains("Thursday"), "{}", answers[1].text);
    assert_eq!(answers[0].vault.tokens_from_vault, 0);
    assert!(answers[1].vault.tokens_from_vault > answers[1].vault.tokens_read);
}

#[test]
fn map_covers_the_document() {
    let tokens = map::map(&asset("mini.gguf"), &asset("sample.txt"), QUESTION).unwrap();
    let text: String = tokens.iter().map(|(text, _)| text.as_str()).collect();
    assert!(text.contains("Edgar Tollen"));
    let mean = tokens.iter().map(|(_, share)| share).sum::<f32>() / tokens.len() as f32;
    assert!((0.05..0.12).contains(&mean), "a budget of 10 %: {mean}");
}

/// With every row the full cache answers; with few rows the method decides what is lost.
#[test]
fn an_own_method_selects() {
    let (model, document) = (asset("mini.gguf"), asset("sample.txt"));
    let answer = |rows| own_method::answer(&model, &document, QUESTION, rows).unwrap();
    assert!(answer(100_000).contains("2906"));
    assert!(!answer(64).contains("2906"));
}
