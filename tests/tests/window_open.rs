//! The other ways to a document: the system's dialog, and the command line. (Dropped files are in `window_files`.)
#![cfg(target_os = "linux")]

use std::fs;
use std::time::{Duration, Instant};

use kept_tests::golden;
use kept_tests::window::{App, Home, Launch, QUESTION, first_start, turn};
use serde_json::Value;

fn sample() -> String {
    fs::read_to_string(golden::repository().join("assets/sample.txt")).expect("the sample")
}

/// The sample with another code in it: an answer with this code comes from this file.
fn with_another_code() -> String {
    sample().replace("4711", "6382")
}

#[test]
fn a_file_named_on_the_command_line_is_opened() {
    let Some(_turn) = turn() else { return };
    let home = Home::new();
    let path = home.file("né à Brest.txt", with_another_code());
    let app = Launch::plain().argument(path).open(&home);
    app.shows_document("né à Brest.txt");
    app.is_ready();
    app.ask(QUESTION);
    app.is_answered();
    assert!(app.answer().contains("6382"), "{}", app.answer());
    app.close();
}

#[test]
fn a_missing_file_on_the_command_line_opens_the_window_and_says_so() {
    let Some(_turn) = turn() else { return };
    let home = Home::new();
    let app = Launch::plain()
        .argument(home.path().join("files/absent.txt"))
        .open(&home);
    app.says(&["absent.txt"]);
    app.is_ready();
    app.write("composer", "still here");
    assert_eq!(app.field("composer"), "still here");
    app.close();
}

/// The system's dialog for files, if it is open: its number on the display.
fn dialog(app: &App<'_>) -> Option<String> {
    let search = ["search", "--onlyvisible", "--name", "Open"];
    let found = app.display().try_xdotool(&search)?;
    Some(found.lines().next()?.to_owned())
}

/// Sends the system's dialog away.
fn dismiss_dialog(app: &App<'_>) {
    app.until("the dialog goes away", |app| {
        let Some(number) = dialog(app) else {
            return Some(());
        };
        // It may go between two looks.
        app.display()
            .try_xdotool(&["windowfocus", "--sync", &number])?;
        app.display().xdotool(&["key", "Escape"]);
        std::thread::sleep(Duration::from_millis(200));
        None
    });
}

/// Opens the system's dialog, types a path there and waits for the dialog to take it. Says whether it has: it does not tell
/// when it has got its files together and listens, and what comes before that it may take for something else.
fn choose_in_dialog(app: &App<'_>, path: &str) -> bool {
    app.click("open-button");
    let number = app.until("the dialog is there", dialog);
    // The window goes on answering while the dialog is open.
    assert_eq!(app.script("return 1 + 1", Value::Null), 2);
    let display = app.display();
    display.xdotool(&["windowfocus", "--sync", &number]);
    // A path that starts with a slash opens the dialog's own field for it.
    display.xdotool(&["key", "ctrl+a"]);
    display.xdotool(&["type", "--delay", "20", path]);
    let typed = Instant::now();
    while dialog(app).is_some() && typed.elapsed() < Duration::from_secs(5) {
        // Its button is there to be pressed only after it has looked at the folder.
        display.xdotool(&["key", "Return"]);
        std::thread::sleep(Duration::from_millis(200));
    }
    dialog(app).is_none()
}

#[test]
fn a_file_is_chosen_in_the_dialog_of_the_system() {
    let Some(_turn) = turn() else { return };
    let home = Home::new();
    let app = first_start(&home);
    // Sent away, it changes nothing.
    app.click("open-button");
    app.until("the dialog is there", dialog);
    dismiss_dialog(&app);
    assert_eq!(app.notices(), []);
    assert_eq!(app.text("document-name").as_deref(), Some("sample.txt"));

    let path = home.file("chosen by hand.txt", with_another_code());
    let path = path.to_str().expect("a path");
    app.until("the dialog takes the path", |app| {
        let taken = choose_in_dialog(app, path);
        if !taken {
            dismiss_dialog(app);
        }
        taken.then_some(())
    });
    app.shows_document("chosen by hand.txt");
    app.close();
}
