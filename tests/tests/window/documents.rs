//! Several documents in one conversation: dropped together, added by dialog, asked about together, removed. Passages,
//! map and table name their document.
use std::fs;

use kept_tests::golden;
use kept_tests::window::{ANSWER, App, Dialog, Home, Launch, QUESTION, first_start, words};
use serde_json::{Value, json};

fn sample() -> String {
    fs::read_to_string(golden::repository().join("assets/sample.txt")).expect("the sample")
}

/// The system's dialog for one more file.
const ADD: Dialog = Dialog {
    title: "Add a document",
    button: "add-button",
};

/// Waits until these documents are open, in this order.
fn are_open(app: &App<'_>, names: &[&str]) {
    app.until(&format!("{names:?} are open"), |app| {
        let now = app.snapshot();
        let open = now["document"]["documents"].as_array()?;
        let open: Vec<&str> = open.iter().filter_map(|d| d["name"].as_str()).collect();
        (open == names && now["opening"].is_null()).then_some(())
    });
}

#[test]
fn files_on_the_command_line_are_opened_together() {
    let Some(home) = Home::new() else { return };
    let launch = Launch::plain().argument(home.file("tide.txt", words(200)));
    let app = launch
        .argument(home.file("handbook.txt", sample()))
        .open(&home);
    are_open(&app, &["tide.txt", "handbook.txt"]);
    app.is_ready();
    app.ask(QUESTION);
    app.is_answered();
    assert!(app.answer().contains(ANSWER), "{}", app.answer());
    app.close();
}

#[test]
fn files_dropped_together_share_a_conversation() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    let tide = home.file("tide.txt", words(2_000));
    let handbook = home.file("handbook.txt", sample());
    app.drop_files(&[&tide, &handbook]);
    are_open(&app, &["tide.txt", "handbook.txt"]);
    app.until("the header counts them", |app| {
        app.text("documents-button").filter(|t| t == "2 documents")
    });
    for (width, height) in [(860, 560), (1280, 800)] {
        app.driver().resize(width, height).expect("another size");
        app.until("the header fits, and the number is readable", |app| {
            let script = "const [number, button] = [$('documents-button'), $('open-button')]
                return innerWidth === args[0] && number.scrollWidth <= number.clientWidth
                  && $('contents-button').getBoundingClientRect().right <= button.getBoundingClientRect().left";
            (app.script(script, json!([width])) == json!(true)).then_some(())
        });
        app.picture(&format!("header-{width}"));
    }
    app.until("the first says where it begins", |app| {
        app.texts("part-heading").contains(&"tide.txt".to_owned())
    });
    assert_eq!(
        app.count("strip-edge"),
        1,
        "the strip shows where the other begins"
    );
    app.ask(QUESTION);
    app.is_answered();
    assert!(app.answer().contains(ANSWER), "{}", app.answer());
    let sources = app.texts("source");
    assert!(
        sources
            .iter()
            .any(|s| s.contains("handbook.txt") && s.contains(ANSWER)),
        "a passage says whose it is: {sources:?}"
    );
    app.click("source");
    app.picture("two");
    app.click("table-button");
    app.click("table-parts");
    app.until("the table says whose each part is", |app| {
        let rows = app.texts("table-row");
        let of = |name: &str| rows.iter().filter(|r| r.contains(name)).count();
        of("tide.txt") == 10 && of("handbook.txt") == 10
    });
    app.driver().keys(&["\u{E00C}"]).expect("a key");

    // Both documents survive a restart, with the conversation.
    app.close();
    let app = Launch::plain().open(&home);
    are_open(&app, &["tide.txt", "handbook.txt"]);
    assert_eq!(app.count("turn"), 1);
    app.is_ready();
    app.until("it need not be read again", |app| {
        app.text("how-read").filter(|t| t.contains("Already read"))
    });

    // Without one of them, a new conversation begins.
    app.click("documents-button");
    app.picture("list");
    app.click("part-remove");
    app.until("the other is left, alone", |app| {
        let now = app.snapshot();
        let alone = now["document"]["documents"] == Value::Array(Vec::new());
        alone && now["document"]["name"] == "handbook.txt"
    });
    app.until("a new conversation", |app| app.count("turn") == 0);
    let listed = app.snapshot()["conversations"].clone();
    assert_eq!(listed[0]["document"], "tide.txt + handbook.txt");
    app.ask(QUESTION);
    app.is_answered();
    assert!(app.answer().contains(ANSWER), "{}", app.answer());
    app.close();
}

#[test]
fn an_added_document_keeps_the_conversation() {
    let Some(home) = Home::new() else { return };
    let app = Launch::plain()
        .argument(home.file("tide.txt", words(2_000)))
        .open(&home);
    app.shows_document("tide.txt");
    app.is_ready();
    app.ask("Who counted the boxes?");
    app.is_answered();
    let before = app.snapshot()["turns"].clone();
    let handbook = home.file("handbook.txt", sample());
    ADD.choose(&app, handbook.to_str().expect("a path"), |app| {
        app.snapshot()["document"]["documents"]
            .as_array()
            .is_some_and(|open| open.len() == 2)
    });
    are_open(&app, &["tide.txt", "handbook.txt"]);
    assert_eq!(app.snapshot()["turns"], before, "what was asked stays");
    // The first document's tokens need not be read again.
    app.until("the line says how much is known", |app| {
        app.text("how-read").filter(|t| t.contains("lready read"))
    });
    app.ask(QUESTION);
    app.is_answered();
    assert!(app.answer().contains(ANSWER), "{}", app.answer());
    let known = app.snapshot()["turns"][1]["facts"]["tokensFromVault"].as_u64();
    assert!(known > Some(300), "{known:?}");
    app.picture("added");

    // The map of a question from before the addition names the document that it covers.
    app.script(
        "$$('show-map')[0]?.click() ?? $$('turn')[0].click()",
        Value::Null,
    );
    app.until("the footer says so", |app| {
        app.text("kept-share")
            .filter(|t| t.contains("of what was open then"))
    });
    // The list is virtual: scroll down half a screen at a time until the text appears, and from the top again.
    app.script("$('document').scrollTop = 0", Value::Null);
    app.until("the document that came later says so", |app| {
        let said = app.text("added-later");
        if said.is_none() {
            app.script(
                "const d = $('document')
                const end = d.scrollTop + d.clientHeight >= d.scrollHeight - 1
                d.scrollTop = end ? 0 : d.scrollTop + d.clientHeight / 2",
                Value::Null,
            );
        }
        said.filter(|t| t.contains("only the text above"))
    });
    app.picture("added-later");
    app.script("$$('turn').at(-1).click()", Value::Null);
    app.until("the last question knows all of it", |app| {
        let share = app.text("kept-share")?;
        (share.contains("of this document") && app.count("added-later") == 0).then_some(())
    });

    // A dropped file begins a conversation of its own.
    let third = home.file("third.txt", "The tide was low. The quay was dry.");
    app.drop_files(&[&third]);
    app.until("it is alone", |app| {
        app.text("document-name").as_deref() == Some("third.txt")
    });
    assert_eq!((app.count("turn"), app.count("documents-button")), (0, 0));
    app.close();
}
