//! The cache type in the app: automatic until the user chooses one, included in estimates, shown next to memory and
//! answer, refused with a message where the method does not support it, and preserved over a restart.
use kept_tests::window::{ANSWER, App, Home, Launch, QUESTION, first_start};
use serde_json::Value;

/// Waits until the memory bar shows this type of rows; returns its text about the kept memory.
fn stored(app: &App<'_>, words: &str) -> String {
    app.until(&format!("rows are {words}"), |app| {
        app.text("memory-cache").filter(|t| t.ends_with(words))?;
        app.text("memory-kept")
    })
}

/// `Kept about 1.2 MiB of 4.7 MiB, 16-bit`: the first figure, in bytes.
fn kept(said: &str) -> f64 {
    let words: Vec<&str> = said.split_whitespace().collect();
    let place = words.iter().position(|w| *w == "of").expect("a figure");
    let unit = match words[place - 1] {
        "KiB" => 1024.0,
        "MiB" => 1048576.0,
        other => panic!("{other} in {said}"),
    };
    let figure: f64 = words[place - 2].parse().expect("a figure");
    figure * unit
}

fn setting(app: &App<'_>) -> Value {
    app.snapshot()["settings"]["cache"].clone()
}

fn escape(app: &App<'_>) {
    app.driver().keys(&["\u{E00C}"]).expect("a key");
}

#[test]
fn the_cache_precision_is_chosen_and_survives_a_restart() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    app.choose_method("snapkv");
    let usual = kept(&stored(&app, "16-bit"));
    assert_eq!(setting(&app), Value::Null, "left to the engine");

    app.click("settings-button");
    app.choose("settings-cache", "q8_0");
    let half = kept(&stored(&app, "8-bit"));
    assert!(half < 0.7 * usual, "{half} of {usual}");
    app.picture("settings");
    escape(&app);
    app.ask(QUESTION);
    app.is_answered();
    assert!(app.answer().contains(ANSWER), "{}", app.answer());
    assert_eq!(app.snapshot()["turns"][0]["facts"]["cache"], "q8_0");
    let facts = app.text("facts").expect("facts");
    assert!(facts.ends_with("SnapKV, 8-bit"), "{facts}");

    // For the next question, next to the method's parameters.
    app.click("advanced");
    app.choose("advanced-cache", "q4_0");
    let quarter = kept(&stored(&app, "4-bit"));
    assert!(quarter < half, "{quarter} of {half}");
    app.until("it counts as set", |app| {
        app.text("advanced-count").filter(|t| t.contains('1'))
    });
    app.script("$('cache-row').scrollIntoView({block: 'end'})", Value::Null);
    app.picture("advanced");
    escape(&app);
    app.close();

    // A restart preserves the choice, and the type of the earlier answer.
    let app = Launch::plain().open(&home);
    app.is_ready();
    stored(&app, "4-bit");
    assert_eq!(setting(&app), "q4_0");
    let facts = app.text("facts").expect("facts");
    assert!(facts.ends_with("SnapKV, 8-bit"), "{facts}");
    app.click("advanced");
    app.click("advanced-reset");
    stored(&app, "16-bit");
    assert_eq!(setting(&app), Value::Null);
    app.close();
}

#[test]
fn ems_refuses_quantised_rows_and_offers_16_bit() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    app.click("settings-button");
    app.choose("settings-cache", "q8_0");
    escape(&app);
    app.choose_method("ems");
    let refusal = app.until("it is refused in a sentence", |app| {
        app.text("budget-error")
    });
    assert!(
        refusal.starts_with("EMS merges rows while it answers") && refusal.contains("16 or 32"),
        "{refusal}"
    );
    let settings = app.snapshot()["settings"].clone();
    assert_eq!(
        (&settings["method"], &settings["cache"]),
        (&Value::from("ems"), &Value::from("q8_0")),
        "nothing changes by itself"
    );
    app.picture("refused");
    // Asked anyway: prefill does not start, and the question's text returns to the input.
    app.ask(QUESTION);
    app.reaches(&["failed"]);
    app.until("the question is back", |app| {
        app.field("composer") == QUESTION
    });
    assert_eq!(app.text("turn-error").as_deref(), Some(refusal.as_str()));

    app.click("store-wider");
    app.until("it is no longer refused", |app| {
        app.count("budget-error") == 0
    });
    stored(&app, "16-bit");
    assert_eq!(setting(&app), "f16");
    app.write("composer", "\u{E007}");
    app.until("it is asked", |app| app.count("turn") == 2);
    app.is_answered();
    assert_eq!(app.snapshot()["turns"][1]["facts"]["cache"], "f16");
    app.close();
}
