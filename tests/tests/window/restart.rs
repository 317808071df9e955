//! Persistence: the app is closed, or killed, and opened again; a second app is opened at the same time; the database
//! is damaged. Settings, the conversation, its map and unsent text survive, or the app explains why not.
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::slow_models::answering_long;
use kept_tests::window::{App, Home, Launch, QUESTION, TIMEOUT, first_start};
use serde_json::{Value, json};

/// The page's background colour.
fn background(app: &App<'_>) -> String {
    let script = "for (const e of [$('document'), document.body, document.documentElement]) {
        for (let n = e; n; n = n.parentElement) { const c = getComputedStyle(n).backgroundColor
          if (c !== 'rgba(0, 0, 0, 0)' && c !== 'transparent') return c } } return ''";
    app.script(script, Value::Null)
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// Chooses a theme in the settings.
fn choose_theme(app: &App<'_>, theme: &str) {
    app.click("settings-button");
    app.until("the settings open", |app| app.is_shown("settings"));
    app.choose("theme", theme);
    app.until("the theme is taken", |app| {
        app.snapshot()["settings"]["theme"] == theme
    });
    app.driver().keys(&["\u{E00C}"]).expect("a key");
    app.until("the settings close", |app| !app.is_shown("settings"));
}

#[test]
fn the_theme_changes_at_once_and_survives_a_restart() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    choose_theme(&app, "light");
    let light = app.until("a light background", |app| {
        Some(background(app)).filter(|c| brightness(c) > 0.7)
    });
    choose_theme(&app, "dark");
    let dark = app.until("a dark background", |app| {
        Some(background(app)).filter(|c| brightness(c) < 0.3)
    });
    assert_ne!(light, dark);
    app.picture("dark");
    app.close();
    let app = Launch::plain().open(&home);
    app.until("it is dark again", |app| background(app) == dark);
    app.close();
}

/// From 0 to 1, of `rgb(r, g, b)`.
fn brightness(colour: &str) -> f64 {
    let numbers = colour.trim_start_matches(|c: char| !c.is_ascii_digit());
    let sum: f64 = numbers
        .split([',', ' ', ')', '/'])
        .filter(|p| !p.is_empty())
        .take(3)
        .filter_map(|p| p.parse::<f64>().ok())
        .sum();
    sum / 765.0
}

#[test]
fn conversation_map_and_draft_survive_a_restart() {
    let Some(home) = Home::new() else { return };
    let path = home.file(
        "mine.txt",
        fs::read(kept_tests::golden::repository().join("assets/sample.txt")).expect("the sample"),
    );
    let app = Launch::plain().argument(&path).open(&home);
    app.shows_document("mine.txt");
    app.is_ready();
    // Automatic would keep everything of a document this short.
    app.choose_method("snapkv");
    app.ask(QUESTION);
    app.is_answered();
    app.until("the document is painted", |app| {
        app.runs().iter().any(|&s| s > 0)
    });
    app.write("composer", "And where was ");
    app.until("the draft is saved", |app| {
        app.snapshot()["drafts"]["conversation 1"] == "And where was "
    });
    let (answer, facts) = (app.answer(), app.text("facts"));
    let runs = app.runs_because_of_the_question();
    let saved = app.snapshot()["turns"].clone();
    app.close();

    // The file is no longer needed.
    fs::remove_file(&path).expect("the file is removed");
    let app = Launch::plain().open(&home);
    app.shows_document("mine.txt");
    assert_eq!(app.notices(), []);
    app.until("the answer is back", |app| app.answer() == answer);
    assert_eq!(app.text("facts"), facts);
    assert_eq!(app.snapshot()["turns"], saved);
    assert_eq!(app.state().as_deref(), Some("done"));
    assert_eq!(app.field("composer"), "And where was ");
    app.until("the page is at the passage of the answer", |app| {
        let top = app.script("return $('document').scrollTop", Value::Null);
        top.as_f64().filter(|top| *top > 100.0)
    });
    // How many blocks below the window are drawn depends on where the page was before.
    app.until("the map is back", |app| {
        app.script("$('document').scrollTop = 0", Value::Null);
        app.runs().starts_with(&runs)
    });
    app.until("the strip is back", |app| app.strip_colours() > 3);
    app.picture("reopened");
    // The engine has the document again.
    app.is_ready();
    app.click("ask-again");
    app.until("a second answer", |app| {
        let turns = app.snapshot()["turns"].clone();
        let turns = turns.as_array()?;
        (turns.len() == 2 && turns[1]["state"] == "done").then_some(())
    });
    app.close();
}

#[test]
fn a_partial_answer_survives_a_kill_of_the_app() {
    let Some(home) = Home::new() else { return };
    let app = answering_long(&home);
    app.ask(QUESTION);
    app.until("it answers", |app| {
        (app.state()? == "answering" && app.answer().chars().count() > 100).then_some(())
    });
    // The answer is saved about once a second: the text on the screen is saved once this much more is shown.
    let shown = app.snapshot()["turns"][0]["answer"]
        .as_str()
        .expect("an answer")
        .to_owned();
    app.until("it is saved", |app| {
        let now = app.snapshot()["turns"][0]["answer"]
            .as_str()?
            .chars()
            .count();
        let settled = app.state()? != "answering" || now > shown.chars().count() + 400;
        settled.then_some(())
    });
    let worker = app.worker().expect("the engine runs");
    app.process().signal("KILL");
    worker.ends_within(TIMEOUT);
    drop(app);

    let app = Launch::plain().open(&home);
    app.until("the question is back", |app| {
        app.text("question").as_deref() == Some(QUESTION)
    });
    assert_eq!(app.state().as_deref(), Some("failed"));
    let turn = app.snapshot()["turns"][0].clone();
    assert!(
        turn["error"]
            .as_str()
            .is_some_and(|e| e.contains("closed before")),
        "{turn}"
    );
    assert!(
        !turn["answer"].as_str().unwrap_or_default().is_empty(),
        "what was written is there: {turn}"
    );
    app.picture("killed-window");
    app.close();
}

#[test]
fn a_second_window_does_not_save_without_a_session_bus() {
    let Some(home) = Home::new() else { return };
    let first = first_start(&home);
    choose_theme(&first, "dark");
    let second = Launch::plain().beside(&first).open(&home);
    second.says(&["another kept window", "save"]);
    let there = second.snapshot();
    assert_eq!(
        (&there["saves"], &there["settings"]["theme"]),
        (&json!(false), &json!("dark"))
    );
    second.is_ready();
    second.shows_document("sample.txt");
    second.ask(QUESTION);
    second.is_answered();
    second.picture("second");
    second.close();
    assert_eq!(first.snapshot()["saves"], true);
    assert_eq!(
        first.count("turn"),
        0,
        "the first window has a conversation of its own"
    );
    first.ask(QUESTION);
    first.is_answered();
    first.close();
    let app = Launch::plain().open(&home);
    app.until(
        "the first window's conversation is the one that was kept",
        |app| app.count("turn") == 1,
    );
    app.close();
}

#[test]
fn a_second_start_passes_its_file_to_the_first_window() {
    let Some(home) = Home::new() else { return };
    let app = Launch::plain().with_session_bus().open(&home);
    app.is_ready();
    app.shows_document("sample.txt");
    let path = home.file(
        "second.txt",
        "The tide was low that day, and the second file was opened.",
    );
    let bus = app
        .process()
        .environment("DBUS_SESSION_BUS_ADDRESS")
        .expect("a session bus");
    let mut command = Command::new(app.process().program().expect("kept-app"));
    home.apply(&mut command);
    let second = command
        .arg("second.txt")
        .current_dir(path.parent().expect("a folder"))
        .env("DISPLAY", app.display().name())
        .env("DBUS_SESSION_BUS_ADDRESS", bus)
        .env("GDK_BACKEND", "x11")
        .env_remove("WAYLAND_DISPLAY")
        .stdin(Stdio::null())
        .output()
        .expect("kept-app starts");
    assert!(second.status.success(), "it ends well: {second:?}");
    app.shows_document("second.txt");
    app.close();
}

/// Every file below a folder.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .flat_map(|path| {
            if path.is_dir() {
                files_below(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}

#[test]
fn a_damaged_database_is_moved_aside() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    app.close();
    let database = &home.data().join("kept.db");
    assert!(
        fs::metadata(database).is_ok_and(|m| m.len() > 0),
        "the database"
    );
    // A write-ahead log would override the damaged database.
    for path in files_below(database.parent().expect("a folder")) {
        let name = path.to_string_lossy().into_owned();
        if name.starts_with(&*database.to_string_lossy()) && path != *database {
            fs::remove_file(&path).expect("the log is removed");
        }
    }
    let damage =
        b"SQLite format 3\0 but the rest of it is nothing that anybody could read ".repeat(200);
    fs::write(database, &damage).expect("the database is damaged");

    let app = Launch::plain().open(&home);
    let notice = app.says(&["could not be read", "moved"]);
    assert!(
        !notice.text.contains("code:") && !notice.text.contains("sqlx"),
        "for a person: {}",
        notice.text
    );
    app.picture("damaged-database");
    app.is_ready();
    app.shows_document("sample.txt");
    app.ask(QUESTION);
    app.is_answered();
    app.close();
    let kept = files_below(&home.path().join("data"))
        .into_iter()
        .any(|p| fs::read(p).is_ok_and(|b| b == damage));
    assert!(kept, "the damaged file is put aside, not deleted");

    let app = Launch::plain().open(&home);
    app.until("the new database holds", |app| app.count("turn") == 1);
    assert_eq!(app.notices(), []);
    app.close();
}

#[test]
fn the_app_starts_without_a_database() {
    let Some(home) = Home::new() else { return };
    // A folder in place of the file: not even root can write to it.
    fs::create_dir_all(home.data().join("kept.db/in the way")).expect("a folder");
    let app = Launch::plain().open(&home);
    let notice = app.says(&["save"]);
    assert!(
        !notice.text.contains("os error") && !notice.text.contains("code:"),
        "for a person: {}",
        notice.text
    );
    assert_eq!(app.snapshot()["saves"], false);
    app.is_ready();
    app.shows_document("sample.txt");
    app.ask(QUESTION);
    app.is_answered();
    app.close();
    assert!(
        home.data().join("kept.db/in the way").is_dir(),
        "it is left alone"
    );
}
