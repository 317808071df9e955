//! Models that think before they answer, and models with sliding-window layers: the switch next to the question, the
//! thoughts separate from the answer, and the map's layers.
use std::path::PathBuf;

use kept_models::testing::{MetaValue, TinyLlama};
use kept_tests::window::{App, Home, Launch};
use serde_json::{Value, json};

/// A random model whose template has a switch for thinking, and starts the thought itself.
fn thinking_model(home: &Home) -> PathBuf {
    let mut writer = TinyLlama::default().writer();
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                    <|im_start|>assistant\n{% if enable_thinking %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}";
    writer.set(
        "tokenizer.chat_template",
        MetaValue::Text(template.to_owned()),
    );
    let path = home.path().join("files/thinker.gguf");
    writer.write(&path).expect("a model is written");
    path
}

/// A document that a random model reads quickly.
fn note(home: &Home) -> PathBuf {
    let text = "The nets are mended in the morning, and the tea is strong. ".repeat(12);
    home.file("note.txt", text)
}

fn open<'h>(home: &'h Home, model: &PathBuf) -> App<'h> {
    let app = Launch::plain()
        .argument(note(home))
        .argument("--model")
        .argument(model)
        .open(home);
    app.shows_document("note.txt");
    app.is_ready();
    app.set(json!({"maxTokens": 24}));
    app
}

#[test]
fn thoughts_are_shown_apart_from_the_answer() {
    let Some(home) = Home::new() else { return };
    let model = thinking_model(&home);
    let app = open(&home, &model);
    app.until("the switch is by the question", |app| {
        app.is_shown("thinking")
    });
    app.ask("What is strong?");
    app.reaches(&["done"]);
    assert_eq!(app.count("thoughts"), 0, "it answers at once");
    assert!(!app.text("facts").expect("facts").contains("thinking"));
    app.click("thinking");
    app.until("it is taken", |app| app.snapshot()["thinking"] == true);
    app.ask("What is mended?");
    app.reaches(&["done"]);
    let answer = &app.snapshot()["turns"][1];
    assert_eq!(answer["thinking"], true);
    let text = answer["answer"].as_str().expect("a text");
    assert!(text.starts_with("<think>"), "{text:?}");
    assert_eq!(app.count("thoughts"), 1);
    assert_eq!(app.count("answer"), 1, "the thought is no answer");
    assert_eq!(app.count("thoughts-text"), 0, "folded");
    let facts = app.texts("facts").pop().expect("facts");
    assert!(facts.contains("thinking first"), "{facts}");
    app.click("thoughts-fold");
    app.until("unfolded", |app| {
        app.text("thoughts-text").filter(|t| !t.is_empty())
    });
    app.picture("thoughts");
    app.close();
    // The conversation remembers the switch; a new one starts without.
    let app = Launch::plain().open(&home);
    app.is_ready();
    assert_eq!(app.snapshot()["thinking"], true);
    app.drop_files(&[&home.file("other.txt", "Another note. ".repeat(20))]);
    app.shows_document("other.txt");
    assert_eq!(app.snapshot()["thinking"], false);
    app.close();
}

/// Gemma's sliding-window layers hold their last tokens under every method: they are shown as rings, not as empty.
#[test]
fn sliding_window_layers_are_shown_with_their_window() {
    let Some(home) = Home::new() else { return };
    let model = TinyLlama {
        arch: "gemma3",
        layers: 6,
        ..TinyLlama::default()
    };
    let mut writer = model.writer();
    writer.set("gemma3.attention.sliding_window", MetaValue::Whole(512));
    let path = home.path().join("files/gemma.gguf");
    writer.write(&path).expect("a model is written");
    let app = open(&home, &path);
    app.ask("What is strong?");
    app.reaches(&["done"]);
    let windows = app.snapshot()["turns"][0]["windows"].clone();
    let windows = windows.as_array().expect("a list");
    assert_eq!(windows.len(), 6);
    let rings = windows.iter().filter(|w| **w == 512).count();
    assert_eq!(rings, 5, "{windows:?}");
    app.until("the map is there", |app| {
        app.script(
            "return $('table-button') && !$('table-button').disabled",
            Value::Null,
        )
        .as_bool()
        .filter(|there| *there)
    });
    let options = app.script(
        "return [...$('layer-filter').options].map(o => o.text + (o.disabled ? ' (off)' : ''))",
        Value::Null,
    );
    let options: Vec<&str> = options
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert_eq!(options[1], "Layer 1: last 512 tokens (off)");
    assert_eq!(options[6], "Layer 6", "numbered as the model numbers it");
    app.click("table-button");
    app.click("table-layers");
    let rows = app.until("a row for each layer", |app| {
        Some(app.texts("layer-row")).filter(|rows| rows.len() == 6)
    });
    assert!(rows[0].contains("its last 512 tokens"), "{rows:?}");
    assert!(
        rows[5].contains('%') && !rows[5].contains("last"),
        "{rows:?}"
    );
    app.close();
    // The map of an earlier start shows the same.
    let app = Launch::plain().open(&home);
    app.is_ready();
    assert_eq!(app.snapshot()["turns"][0]["windows"][0], 512);
    app.close();
}
