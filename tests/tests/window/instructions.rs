//! Instructions and a temperature: typed in the settings, given to the model with a question, shown with its answer.
use kept_models::testing::TinyLlama;
use kept_tests::window::{App, Home, Launch};
use serde_json::{Value, json};

/// The app with a random model, a short document, and short answers.
fn open(home: &Home) -> App<'_> {
    let model = home.path().join("files/random.gguf");
    let writer = TinyLlama::default().writer();
    writer.write(&model).expect("a model is written");
    let text = "The nets are mended in the morning, and the tea is strong. ".repeat(12);
    let app = Launch::plain()
        .argument(home.file("note.txt", text))
        .argument("--model")
        .argument(&model)
        .open(home);
    app.shows_document("note.txt");
    app.is_ready();
    app.set(json!({"maxTokens": 24}));
    app
}

/// Asks the question again; returns the turn, which is number `index`.
fn again(app: &App<'_>, index: usize) -> Value {
    app.click("ask-again");
    app.until("it is answered again", |app| {
        let turn = app.snapshot()["turns"][index].clone();
        (turn["state"] == "done").then_some(turn)
    })
}

#[test]
fn instructions_reach_the_model_and_at_a_temperature_answers_differ() {
    let Some(home) = Home::new() else { return };
    let app = open(&home);
    app.ask("What is strong?");
    app.reaches(&["done"]);
    let plain = app.snapshot()["turns"][0].clone();
    assert!(!app.text("facts").expect("facts").contains("instructions"));

    app.click("settings-button");
    app.until("the settings are there", |app| {
        app.is_shown("settings-temperature")
    });
    app.script("$('settings-temperature').value = ''", Value::Null);
    app.write("settings-temperature", "1\u{E007}");
    app.until("the temperature is taken", |app| {
        app.snapshot()["settings"]["temperature"] == 1.0
    });
    app.write("settings-instructions", "Answer in German.");
    app.picture("instructions");
    // Escape closes the dialog, and saves what is typed.
    app.driver().keys(&["\u{E00C}"]).expect("a key");
    app.until("the instructions are taken", |app| {
        let settings = &app.snapshot()["settings"];
        settings["instructions"] == "Answer in German." && app.count("settings") == 0
    });

    let (first, second) = (again(&app, 1), again(&app, 2));
    let tokens = |turn: &Value| turn["facts"]["promptTokens"].as_u64().expect("a count");
    assert!(tokens(&first) > tokens(&plain), "{first} {plain}");
    assert_eq!(tokens(&first), tokens(&second));
    assert_ne!(first["answer"], second["answer"]);
    assert_eq!(first["question"], "What is strong?");
    app.until("the answer says so", |app| {
        app.text("facts")
            .filter(|t| t.ends_with("with instructions"))
    });
    app.close();
}
