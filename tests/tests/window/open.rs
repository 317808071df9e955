//! The other ways to open a document: the system's dialog, and the command line. (Dropped files are tested in `files`.)
use std::fs;

use kept_tests::golden;
use kept_tests::window::{Dialog, Home, Launch, QUESTION, first_start};

fn sample() -> String {
    fs::read_to_string(golden::repository().join("assets/sample.txt")).expect("the sample")
}

/// The sample with another code: an answer with this code must come from this file.
fn with_another_code() -> String {
    sample().replace("4711", "6382")
}

#[test]
fn a_file_named_on_the_command_line_is_opened() {
    let Some(home) = Home::new() else { return };
    let path = home.file("né à Brest.txt", with_another_code());
    let app = Launch::plain().argument(path).open(&home);
    app.shows_document("né à Brest.txt");
    app.is_ready();
    app.ask(QUESTION);
    app.is_answered();
    assert!(app.answer().contains("6382"), "{}", app.answer());
    app.close();
    // A file named later is opened too; the conversation stays in the list.
    let later = home.file("later.txt", "The tide was low. The quay was dry.");
    let app = Launch::plain().argument(later).open(&home);
    app.shows_document("later.txt");
    let listed = app.snapshot()["conversations"].clone();
    assert_eq!(listed[0]["document"], "né à Brest.txt");
    app.close();
}

#[test]
fn a_missing_file_on_the_command_line_is_reported() {
    let Some(home) = Home::new() else { return };
    let app = Launch::plain()
        .argument(home.path().join("files/absent.txt"))
        .open(&home);
    app.says(&["absent.txt"]);
    app.is_ready();
    app.write("composer", "still here");
    assert_eq!(app.field("composer"), "still here");
    app.close();
}

/// The system's dialog for files.
const DIALOG: Dialog = Dialog {
    title: "Open",
    button: "open-button",
};

#[test]
fn a_file_is_chosen_in_the_system_dialog() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    // Cancelled, it changes nothing.
    DIALOG.open(&app);
    DIALOG.dismiss(&app);
    assert_eq!(app.notices(), []);
    assert_eq!(app.text("document-name").as_deref(), Some("sample.txt"));

    let path = home.file("chosen by hand.txt", with_another_code());
    DIALOG.choose(&app, path.to_str().expect("a path"), |app| {
        app.text("document-name").as_deref() == Some("chosen by hand.txt")
    });
    app.shows_document("chosen by hand.txt");
    app.close();
}
