//! The earlier turns as a section of the map: below the document, with their share in words and painted like it.
use kept_tests::golden;
use kept_tests::window::{App, Home, Launch, QUESTION};
use serde_json::{Value, json};

const SECOND: &str = "What is the gate code of Edgar Tollen?";

/// [`QUESTION`] and [`SECOND`] answered by a model of the user's own, here a copy of the built-in one: it sees what was
/// said before.
pub fn conversation(home: &Home) -> App<'_> {
    let assets = golden::repository().join("assets");
    let bytes = |name: &str| std::fs::read(assets.join(name)).expect(name);
    let app = Launch::plain()
        .argument(home.file("handbook.txt", bytes("sample.txt")))
        .argument("--model")
        .argument(home.file("talks.gguf", bytes("mini.gguf")))
        .open(home);
    app.shows_document("handbook.txt");
    app.is_ready();
    app.choose_method("snapkv");
    app.ask(QUESTION);
    app.is_answered();
    assert_eq!(section(&app), None, "the first question saw none");
    app.ask(SECOND);
    app.is_answered();
    app
}

/// The headings of the section, and shares of the runs in it, in percent.
fn section(app: &App<'_>) -> Option<(Vec<String>, Vec<u64>)> {
    let shares = app.script(
        "const e = $('earlier')
        return e ? [...e.querySelectorAll('[data-testid=run]')].map((run) => Number(run.dataset.share)) : null",
        Value::Null,
    );
    let shares = shares.as_array()?.iter();
    let shares = shares.filter_map(Value::as_f64).map(|share| share as u64);
    Some((app.texts("earlier-turn"), shares.collect()))
}

fn is_painted(app: &App<'_>) -> (Vec<String>, Vec<u64>) {
    app.script(
        "const e = $('document'); e.scrollTop = e.scrollHeight",
        Value::Null,
    );
    app.until("the earlier turn is painted", |app| {
        section(app).filter(|(_, runs)| !runs.is_empty())
    })
}

#[test]
fn the_map_shows_earlier_turns_as_a_section_of_their_own_also_after_a_restart() {
    let Some(home) = Home::new() else { return };
    let app = conversation(&home);
    let answer = app.snapshot()["turns"][0]["answer"].clone();
    let answer = answer.as_str().expect("an answer").trim();
    let (headings, runs) = is_painted(&app);
    assert_eq!(headings, ["Turn 1: 100 % remembered"]);
    assert!(runs.iter().all(|&share| share == 100), "{runs:?}");
    let text = app.text("earlier").expect("a section");
    assert!(text.contains(QUESTION) && text.contains(answer), "{text}");
    for theme in ["light", "dark"] {
        app.set(json!({"theme": theme}));
        app.script(
            "document.documentElement.dataset.theme = args[0]",
            json!(theme),
        );
        app.picture(theme);
    }
    // With the first answer the section goes, with the second one it is back.
    app.script("$$('turn')[0].click()", Value::Null);
    app.until("the first answer saw no turn", |app| section(app).is_none());
    app.close();

    let app = Launch::plain().open(&home);
    app.shows_document("handbook.txt");
    assert_eq!(is_painted(&app), (headings, runs));
    app.close();
}
