//! The list of conversations: opening, searching, naming, deleting with undo, exporting and importing, over a restart.
use std::fs;

use kept_tests::window::{ANSWER, App, Dialog, Home, Launch, QUESTION, first_start};
use serde_json::Value;

/// Titles in the list, from the top.
fn titles(app: &App<'_>) -> Vec<String> {
    let listed = app.snapshot()["conversations"].clone();
    let titles = listed.as_array().into_iter().flatten();
    titles
        .filter_map(|entry| entry["title"].as_str().map(str::to_owned))
        .collect()
}

fn are_listed(app: &App<'_>, expected: &[&str]) {
    app.until(&format!("{expected:?} are listed"), |app| {
        titles(app) == expected
    });
}

/// Opens the sidebar.
pub(crate) fn show_list(app: &App<'_>) {
    app.click("sidebar-button");
    app.until("the list is there", |app| app.is_shown("conversations"));
}

/// Clicks an entry of the menu of the conversation with this title.
fn choose(app: &App<'_>, title: &str, entry: &str) {
    let opened = app.script(
        "const row = $$('conversation').find((row) => row.textContent.includes(args[0]))
        row.querySelector('[data-testid=conversation-menu]').click()
        return true",
        Value::from(vec![title]),
    );
    assert_eq!(opened, true);
    app.click(entry);
}

/// Clicks the row of the conversation with this title.
pub(crate) fn open(app: &App<'_>, title: &str) {
    app.script(
        "const row = $$('conversation').find((row) => row.textContent.includes(args[0]))
        row.click()",
        Value::from(vec![title]),
    );
}

/// Asks about a second document, closes the app, and finds the first conversation by a word of its answer.
#[test]
fn a_conversation_is_found_by_a_word_of_its_answer_after_a_restart() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    app.ask(QUESTION);
    app.is_answered();
    let (answer, turns) = (app.answer(), app.snapshot()["turns"].clone());
    assert!(answer.contains(ANSWER));
    let other = "The ferry leaves at noon from the old quay. ".repeat(40);
    app.drop_files(&[&home.file("ferry.txt", other)]);
    app.shows_document("ferry.txt");
    app.is_ready();
    assert_eq!(app.count("turn"), 0);
    app.ask("When does it leave?");
    app.is_answered();
    are_listed(&app, &["When does it leave?", QUESTION]);
    app.close();

    let app = Launch::plain().open(&home);
    app.shows_document("ferry.txt");
    app.until("two conversations: the list is shown", |app| {
        app.is_shown("conversations")
    });
    app.picture("list");
    app.write("conversation-search", ANSWER);
    app.until("one passage of the answer, one of the document", |app| {
        app.count("found-passage") >= 2
    });
    app.picture("found");
    app.script(
        "$$('found-passage').find((row) => row.textContent.includes(args[0])).click()",
        Value::from(vec![ANSWER]),
    );
    app.shows_document("sample.txt");
    app.until("its answer is back", |app| app.answer() == answer);
    assert_eq!(app.snapshot()["turns"], turns);
    app.until("and its map", |app| app.strip_colours() > 3);
    // It goes on where it ended.
    app.click("conversation-search");
    app.driver().keys(&["\u{E00C}"]).expect("a key");
    app.until("the list again", |app| app.count("conversation") == 2);
    app.is_ready();
    app.ask("What is the gate code of Edgar Tollen?");
    app.is_answered();
    assert_eq!(app.count("turn"), 2);
    are_listed(&app, &[QUESTION, "When does it leave?"]);
    // And back, by a click.
    open(&app, "When does it leave?");
    app.shows_document("ferry.txt");
    app.until("one question", |app| app.count("turn") == 1);
    app.close();
}

#[test]
fn conversations_are_named_pinned_deleted_and_restored() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    app.ask(QUESTION);
    app.is_answered();
    show_list(&app);
    app.click("new-conversation");
    app.until("a new one", |app| app.count("turn") == 0);
    assert_eq!(app.text("document-name").as_deref(), Some("sample.txt"));
    app.ask("Who may come in free?");
    app.is_answered();
    are_listed(&app, &["Who may come in free?", QUESTION]);
    choose(&app, QUESTION, "conversation-pin");
    are_listed(&app, &[QUESTION, "Who may come in free?"]);
    choose(&app, QUESTION, "conversation-rename");
    app.write("conversation-title", "The locker");
    app.driver().keys(&["\u{E007}"]).expect("a key");
    are_listed(&app, &["The locker", "Who may come in free?"]);
    app.picture("named");
    choose(&app, "Who may come in free?", "conversation-delete");
    are_listed(&app, &["The locker"]);
    assert_eq!(app.text("document-name").as_deref(), Some("sample.txt"));
    app.until("its turns are gone", |app| app.count("turn") == 0);
    app.picture("deleted");
    app.click("undo-delete");
    are_listed(&app, &["The locker", "Who may come in free?"]);
    app.until("it is open again", |app| app.count("turn") == 1);
    choose(&app, "Who may come in free?", "conversation-delete");
    are_listed(&app, &["The locker"]);
    app.close();
    // The deletion, the name and the pin survive a restart.
    let app = Launch::plain().open(&home);
    are_listed(&app, &["The locker"]);
    assert_eq!(app.snapshot()["conversations"][0]["pinned"], true);
    app.until("the list is still shown", |app| {
        app.is_shown("conversations")
    });
    app.click("sidebar-button");
    app.until("it is folded", |app| !app.is_shown("conversations"));
    app.close();
}

/// The system's dialog for an exported conversation.
const IMPORT: Dialog = Dialog {
    title: "Import a conversation",
    button: "conversation-import",
};

#[test]
fn an_exported_conversation_is_imported_and_a_broken_file_is_refused() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    app.ask(QUESTION);
    app.is_answered();
    show_list(&app);
    // The dialog proposes a name, which the export follows.
    let saved = Dialog {
        title: "Export the conversation",
        button: "conversation-export",
    };
    let path = home.path().join("files").join("saved.json");
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    app.script("$('conversation-menu').click()", Value::Null);
    saved.choose(&app, path.to_str().expect("a path"), |app| {
        let written = path.exists();
        if !written {
            app.script("$('conversation-menu').click()", Value::Null);
        }
        written
    });
    app.says(&["saved.json"]);
    app.close_notices();
    let text = fs::read_to_string(&path).expect("written");
    assert!(text.contains(QUESTION) && text.contains(ANSWER));

    let broken = home.file("broken.json", text.replacen("\"turns\"", "\"turn\"", 1));
    IMPORT.choose(&app, broken.to_str().expect("a path"), |app| {
        !app.notices().is_empty()
    });
    app.says(&["broken.json", "turns"]);
    app.close_notices();
    assert_eq!(titles(&app).len(), 1);
    IMPORT.choose(&app, path.to_str().expect("a path"), |app| {
        titles(app).len() == 2
    });
    app.until("its answer is shown", |app| app.answer().contains(ANSWER));
    app.is_ready();
    app.ask("What is the gate code of Edgar Tollen?");
    app.is_answered();
    assert_eq!(app.count("turn"), 2);
    app.close();
}
