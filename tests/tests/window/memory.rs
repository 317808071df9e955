//! A memory limit in the app: typed in the settings, applied to the next question and shown with it, refused with the
//! missing amount if too small, and preserved over a restart.
use kept_tests::window::{App, Home, Launch, QUESTION, first_start};
use serde_json::Value;

fn setting(app: &App<'_>) -> Value {
    app.snapshot()["settings"]["memory"].clone()
}

/// Types a limit into the settings, and closes them.
fn limit(app: &App<'_>, typed: &str) {
    app.click("settings-button");
    app.until("the settings are there", |app| {
        app.is_shown("settings-memory")
    });
    app.script("$('settings-memory').value = ''", Value::Null);
    app.write("settings-memory", &format!("{typed}\u{E007}"));
    app.until("it is taken", |app| {
        app.field("settings-memory") == typed && setting(app) != Value::Null
    });
}

fn escape(app: &App<'_>) {
    app.driver().keys(&["\u{E00C}"]).expect("a key");
}

/// The figure in `... 31.4 MiB are missing ...`.
fn missing(refusal: &str) -> f64 {
    let words: Vec<&str> = refusal.split_whitespace().collect();
    let place = words
        .iter()
        .position(|w| *w == "missing.")
        .expect("what is missing");
    assert_eq!(words[place - 2], "MiB", "{refusal}");
    words[place - 3].parse().expect("a figure")
}

#[test]
fn a_memory_limit_is_obeyed_or_refused_if_too_small() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    app.choose_method("snapkv");
    assert_eq!(setting(&app), Value::Null, "nothing is limited");
    text_that_is_no_amount_is_refused(&app);
    let missing = a_limit_below_the_weights_is_refused(&app);
    // A little more than the minimum: as many rows are kept as fit.
    let enough = format!("{:.0} MiB", (1.0 + missing).ceil() + 2.0);
    raise_the_limit(&app, &enough);
    the_answer_states_its_limit(&app, &enough);
    // A comparison states that it ignores the limit.
    app.click("compare");
    let besides = app.until("it is said of a comparison", |app| {
        app.text("compare-memory")
    });
    assert!(besides.contains(&enough), "{besides}");
    app.picture("compare");
    app.close();

    let app = Launch::plain().open(&home);
    app.is_ready();
    assert_eq!(setting(&app), enough.as_str());
    let facts = app.texts("facts").pop().expect("facts");
    assert!(facts.contains(&format!("within {enough}")), "{facts}");
    remove_the_limit(&app, &enough);
    app.close();
}

fn text_that_is_no_amount_is_refused(app: &App<'_>) {
    app.click("settings-button");
    app.write("settings-memory", "lots\u{E007}");
    app.says(&["“lots” is not an amount of memory", "6 GiB"]);
    assert_eq!(
        (setting(app), app.field("settings-memory")),
        (Value::Null, String::new())
    );
    escape(app);
}

/// Refused before prefill, with the remedy; returns the missing MiB.
fn a_limit_below_the_weights_is_refused(app: &App<'_>) -> f64 {
    limit(app, "1 MiB");
    escape(app);
    let refusal = app.until("it is refused in a sentence", |app| {
        app.text("budget-error")
    });
    assert!(
        refusal.starts_with("The memory limit of 1.0 MiB is too small")
            && refusal.contains("weights alone are")
            && refusal.contains("Raise the limit in Settings"),
        "{refusal}"
    );
    app.picture("refused");
    app.ask(QUESTION);
    app.reaches(&["failed"]);
    assert_eq!(app.text("turn-error").as_deref(), Some(refusal.as_str()));
    app.until("the question is back", |app| {
        app.field("composer") == QUESTION
    });
    assert_eq!(app.snapshot()["turns"][0]["memory"], "1 MiB");
    missing(&refusal)
}

/// Types a limit that is large enough into the settings, which are one click away.
fn raise_the_limit(app: &App<'_>, enough: &str) {
    app.click("change-limit");
    app.until("the settings are there", |app| {
        app.is_shown("settings-memory")
    });
    app.script("$('settings-memory').value = ''", Value::Null);
    app.write("settings-memory", &format!("{enough}\u{E007}"));
    app.until("it is taken", |app| setting(app) == enough);
    app.script(
        "$('settings-memory').scrollIntoView({block: 'center'})",
        Value::Null,
    );
    app.picture("settings");
    escape(app);
    let said = app.until("it is said what was chosen", |app| {
        app.text("hint")
            .filter(|t| t.contains("With the memory limit of"))
    });
    assert!(said.contains("are used"), "{said}");
    assert_eq!(app.count("budget-error"), 0);
    app.picture("chosen");
}

/// Sends the question that is still in the composer.
fn the_answer_states_its_limit(app: &App<'_>, enough: &str) {
    app.write("composer", "\u{E007}");
    app.until("it is asked", |app| app.count("turn") == 2);
    app.is_answered();
    let turn = app.snapshot()["turns"][1].clone();
    assert_eq!(turn["memory"], enough);
    let notes = turn["facts"]["notes"].to_string();
    assert!(notes.contains("With the memory limit of"), "{notes}");
    assert!(!notes.contains("--"), "{notes}");
    let facts = app.texts("facts").pop().expect("facts");
    assert!(facts.contains(&format!("within {enough}")), "{facts}");
    app.picture("answered");
}

/// Without the limit everything is as before.
fn remove_the_limit(app: &App<'_>, enough: &str) {
    app.click("settings-button");
    app.until("the settings are there", |app| {
        app.is_shown("settings-memory")
    });
    assert_eq!(app.field("settings-memory"), enough);
    app.script("$('settings-memory').value = ''", Value::Null);
    app.write("settings-memory", "automatic\u{E007}");
    app.until("it is gone", |app| setting(app) == Value::Null);
    escape(app);
    app.until("nothing is said of it", |app| {
        let said = app.text("hint").unwrap_or_default();
        !said.contains("memory limit")
    });
}
