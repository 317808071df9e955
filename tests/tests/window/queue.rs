//! Questions that wait, versions of an answer, an edited question, a branch, a pasted text, a chat without a document.

use crate::slow_models::{answering_long, slow_model};
use kept_tests::window::{App, Home, Launch, QUESTION, answered, first_start};
use serde_json::{Value, json};

const OTHER: &str = "What is the gate code of Edgar Tollen?";
const THIRD: &str = "What is the safe combination of Mira Stolden?";

fn turns(app: &App<'_>) -> Vec<Value> {
    let turns = app.snapshot()["turns"].clone();
    turns.as_array().cloned().unwrap_or_default()
}

fn waits_for(app: &App<'_>, states: &[&str]) {
    app.until(&format!("the questions are {states:?}"), |app| {
        let turns = turns(app);
        let now: Vec<_> = turns.iter().map(|turn| turn["state"].as_str()).collect();
        let expected: Vec<_> = states.iter().map(|state| Some(*state)).collect();
        now == expected
    });
}

#[test]
fn questions_wait_in_a_queue_and_one_is_taken_back() {
    let Some(home) = Home::new() else { return };
    // The engine starts: the first question waits for it, the others for the first.
    let app = Launch::plain()
        .argument("--model")
        .argument(slow_model(&home))
        .open(&home);
    app.ask(QUESTION);
    app.write("composer", OTHER);
    app.until("Ask next is offered", |app| {
        app.is_shown("send") && app.is_shown("stop")
    });
    app.write("composer", "\u{E007}");
    app.ask(THIRD);
    app.until("two wait", |app| app.count("waiting-remove") == 2);
    app.picture("waiting");
    app.script(
        "$$('waiting-remove').at(-1).click(); return true",
        Value::Null,
    );
    app.until("its text is back in the composer", |app| {
        app.field("composer") == THIRD
    });
    app.click("stop");
    waits_for(&app, &["stopped", "reading"]);
    app.click("stop");
    waits_for(&app, &["stopped", "stopped"]);
    app.close();
}

/// The conversation stays at its end while one question after the other is answered.
#[test]
fn the_conversation_follows_queued_questions() {
    let Some(home) = Home::new() else { return };
    let app = answering_long(&home);
    for question in [QUESTION, OTHER, THIRD, QUESTION, OTHER, THIRD] {
        app.ask(question);
    }
    app.until("most of them wait", |app| app.count("waiting-remove") >= 3);
    app.until("one after the other is stopped", |app| {
        app.script("$$('stop').forEach(e => e.click())", Value::Null);
        let ended = |turn: &Value| turn["state"] == "stopped" || turn["state"] == "done";
        turns(app).iter().all(ended)
    });
    app.until("the last question is in view", |app| {
        let left = app.script(
            "const e = document.querySelector('aside[aria-label=Conversation] .scroll')
             return e.scrollHeight > e.clientHeight + 100 ? e.scrollHeight - e.scrollTop - e.clientHeight : null",
            Value::Null,
        );
        left.as_f64().filter(|left| *left < 40.0)
    });
    app.close();
}

#[test]
fn versions_of_an_answer_stand_side_by_side() {
    let Some(home) = Home::new() else { return };
    let app = answered(&home);
    assert_eq!(app.count("version"), 0);
    app.choose_method("full");
    app.click("ask-again");
    waits_for(&app, &["done", "done"]);
    app.until("one card with two versions", |app| {
        app.count("turn") == 1 && app.count("version") == 2
    });
    let both = turns(&app);
    assert_eq!(both[1]["versionOf"], both[0]["id"]);
    assert_eq!(
        (&both[1]["method"], both[0]["method"] == "full"),
        (&json!("full"), false)
    );
    let runs = app.runs();
    app.picture("versions");
    app.click("version");
    app.until("the page shows the first one's memory", |app| {
        app.runs() != runs
    });
    assert_eq!(
        app.attribute("version", "aria-selected").as_deref(),
        Some("false")
    );
    app.picture("first-version");
    app.close();
}

#[test]
fn an_edited_question_and_a_branch_leave_the_conversation_as_it_is() {
    let Some(home) = Home::new() else { return };
    let app = answered(&home);
    app.ask(OTHER);
    app.is_answered();
    let before = turns(&app);
    app.script(
        "$$('edit-question').at(-1).click(); return true",
        Value::Null,
    );
    app.until("the question is in the composer", |app| {
        app.field("composer") == OTHER && app.is_shown("edit-cancel")
    });
    app.picture("editing");
    app.click("edit-cancel");
    app.until("it is left again", |app| app.field("composer").is_empty());
    app.script(
        "$$('edit-question').at(-1).click(); return true",
        Value::Null,
    );
    app.until("it is edited again", |app| app.field("composer") == OTHER);
    app.write("composer", " Please.\u{E007}");
    waits_for(&app, &["done", "done"]);
    let edited = format!("{OTHER} Please.");
    app.until("a branch with the edited question", |app| {
        let turns = turns(app);
        turns[1]["question"] == edited.as_str() && turns[1]["id"] != before[1]["id"]
    });
    assert_eq!(turns(&app)[0]["answer"], before[0]["answer"]);
    app.until("the copy has its map", |app| !app.runs().is_empty());
    let listed = app.snapshot()["conversations"].clone();
    let questions = listed
        .as_array()
        .expect("a list")
        .iter()
        .map(|c| c["questions"].as_u64());
    assert_eq!(questions.collect::<Vec<_>>(), [Some(2), Some(2)]);
    app.click("branch");
    app.until("a branch with the first question", |app| {
        (turns(app).len() == 1 && app.snapshot()["conversations"].as_array()?.len() == 3)
            .then_some(())
    });
    app.picture("branch");
    app.close();
}

#[test]
fn a_long_pasted_text_is_opened_as_a_document() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    let paste = "const data = new DataTransfer(); data.setData('text/plain', args[0])
        $('composer').dispatchEvent(new ClipboardEvent('paste', {clipboardData: data, bubbles: true, cancelable: true}))
        return true";
    let text = format!(
        "The lease of the mill\n\n{}",
        "The rent is due in May. ".repeat(100)
    );
    app.script(paste, Value::from(vec![text.clone()]));
    app.shows_document("The lease of the mill");
    assert_eq!(app.field("composer"), "");
    app.is_ready();
    app.picture("pasted");
    app.close();
}

#[test]
fn a_chat_needs_no_document() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    app.invoke("close_document", &json!({})).expect("closed");
    app.click("chat");
    app.until("the composer is ready", |app| {
        app.snapshot()["document"]["length"] == 0
    });
    app.is_ready();
    app.ask("Good morning!");
    app.is_answered();
    app.picture("chat");
    app.drop_files(&[&home.file("ferry.txt", "The ferry leaves at noon from the old quay.")]);
    app.shows_document("ferry.txt");
    app.close();
}
