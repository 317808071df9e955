//! A document is read in the background: it begins by itself, is stopped, goes on, and is not lost.

use crate::slow_models::slow_model;
use kept_tests::window::{App, Home, Launch};

/// The line below the question, once it contains `words`.
fn says(app: &App<'_>, id: &str, words: &str) -> String {
    app.until(&format!("{id} says {words}"), |app| {
        app.text(id).filter(|text| text.contains(words))
    })
}

/// Share of the document that is read in the background.
fn share(app: &App) -> Option<f64> {
    let progress = &app.snapshot()["reading"]["progress"];
    Some(progress["tokensDone"].as_f64()? / progress["tokensTotal"].as_f64()?)
}

#[test]
fn a_document_is_read_in_the_background_and_a_stop_loses_nothing() {
    let Some(home) = Home::new() else { return };
    let app = Launch::plain()
        .argument("--model")
        .argument(slow_model(&home))
        .open(&home);
    says(&app, "reading", "Reading in the background");
    app.until("a part is read", |app| (share(app)? > 0.3).then_some(()));
    app.until("the strip shows where", |app| app.is_shown("strip-sweep"));
    app.picture("reading");
    app.click("reading-stop");
    says(&app, "reading", "Reading was stopped:");
    assert_eq!(app.snapshot()["reading"]["running"], false);
    app.picture("stopped");
    // What was read is there after a restart, and reading goes on by itself.
    app.close();
    let app = Launch::plain().open(&home);
    let line = says(&app, "reading", "%");
    let share = share(&app);
    assert!(share.is_none_or(|share| share > 0.1), "{line} {share:?}");
    says(&app, "how-read", "Already read");
    app.close();
    let app = Launch::plain().open(&home);
    says(&app, "how-read", "Already read");
    app.close();
}
