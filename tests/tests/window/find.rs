//! Reading in the real app: finding words in a long document, and the text size.
use kept_tests::window::{App, Home, Launch, first_start, words};
use serde_json::Value;

/// Presses a letter with Ctrl.
fn control(app: &App<'_>, key: &str) {
    app.driver().keys(&["\u{E009}", key]).expect("keys");
}

#[test]
fn words_are_found_in_a_long_document() {
    let Some(home) = Home::new() else { return };
    let text = format!(
        "{}\n\nThe zanzibarossa was moored.\n\n{}\n\nA Zanzibarossa again.",
        words(300_000),
        words(100_000)
    );
    let app = Launch::plain()
        .argument(home.file("long.txt", text))
        .open(&home);
    app.shows_document("long.txt");
    control(&app, "f");
    app.write("find", "zanzibarossa");
    app.until("it is counted", |app| {
        (app.text("find-count")? == "1 of 2").then_some(())
    });
    let shown = |app: &App<'_>| {
        let script = "const e = document.querySelector('.found.current'); if (!e) return false
            const r = e.getBoundingClientRect(), d = $('document').getBoundingClientRect()
            return r.width > 0 && r.top >= d.top && r.bottom <= d.bottom";
        (app.script(script, Value::Null) == true).then_some(app.scrolled())
    };
    let first = app.until("the first place is in sight and marked", shown);
    assert!(first > 0.0);
    app.picture("first");
    app.driver().keys(&["\u{E007}"]).expect("a key");
    app.until("the second is further down", |app| {
        (app.text("find-count")? == "2 of 2" && shown(app)? > first).then_some(())
    });
    app.driver().keys(&["\u{E008}", "\u{E007}"]).expect("keys");
    app.until("and back", |app| {
        (app.text("find-count")? == "1 of 2").then_some(())
    });
    app.driver().keys(&["\u{E00C}"]).expect("a key");
    app.until("it is closed", |app| !app.is_shown("find-bar"));
    app.close();
}

#[test]
fn the_text_size_survives_a_restart() {
    let Some(home) = Home::new() else { return };
    let size = |app: &App<'_>| {
        let script = "const e = document.querySelector('[data-block]'); return e ? parseFloat(getComputedStyle(e).fontSize) : 0";
        app.script(script, Value::Null).as_f64().expect("a size")
    };
    let app = first_start(&home);
    let before = app.until("the text is there", |app| {
        Some(size(app)).filter(|&s| s > 0.0)
    });
    control(&app, "=");
    app.until("it is larger", |app| size(app) > before);
    let larger = size(&app);
    app.close();
    let app = Launch::plain().open(&home);
    app.until("it is as large again", |app| {
        (size(app) - larger).abs() < 0.01
    });
    control(&app, "0");
    app.until("it is as it was", |app| (size(app) - before).abs() < 0.01);
    app.close();
}
