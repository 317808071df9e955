//! The worker is a separate process: it can be stopped, killed, or fail to start. The app survives, explains the event,
//! and loses nothing that was typed or answered.
use crate::conversations::{self, show_list};
use crate::slow_models::slow_model;
use kept_tests::window::{App, Home, Launch, Process, QUESTION, TIMEOUT, first_start};
use serde_json::{Value, json};

/// An app with a random model that takes seconds to read the sample and does not stop decoding by itself.
fn slow(home: &Home) -> App<'_> {
    let app = Launch::plain()
        .argument("--model")
        .argument(slow_model(home))
        .open(home);
    app.until("the slow model is open", |app| {
        let now = app.snapshot();
        now["worker"]["state"] == "ready" && now["model"]["name"] == "slow"
    });
    app.shows_document("sample.txt");
    app.set(json!({"maxTokens": 4000}));
    listen(&app);
    app
}

/// Records every message about the engine from now on, however briefly it is shown.
fn listen(app: &App<'_>) {
    app.script(
        "window.__said = new Set()
         const look = () => ['worker-message', 'notice'].forEach(id => $$(id).forEach(e => e.innerText.trim() && window.__said.add(e.innerText.trim())))
         new MutationObserver(look).observe(document.body, {subtree: true, childList: true, characterData: true}); look()",
        Value::Null,
    );
}

fn said(app: &App<'_>) -> Vec<String> {
    let said = app.script("return [...window.__said]", Value::Null);
    said.as_array()
        .expect("a list")
        .iter()
        .filter_map(|s| s.as_str().map(str::to_owned))
        .collect()
}

fn worker(app: &App<'_>) -> Process {
    app.until("the engine runs", App::worker)
}

/// Kills the worker as a system short of memory does, and waits until another one is ready.
fn kill(app: &App<'_>) {
    let first = worker(app);
    first.signal("KILL");
    first.ends_within(TIMEOUT);
    let second = app.until("another engine runs", |app| {
        app.worker().filter(|w| w.pid != first.pid)
    });
    app.is_ready();
    assert!(second.is_alive(), "and goes on running");
}

#[test]
fn reading_shows_its_progress_and_can_be_stopped() {
    let Some(home) = Home::new() else { return };
    let app = slow(&home);
    // Without the vault nothing is read in the background.
    app.set(json!({"keep": "off"}));
    app.ask(QUESTION);
    let progress = app.until("the progress has a share", |app| {
        app.text("progress").filter(|t| t.contains('%'))
    });
    assert!(progress.contains("token"), "how fast it reads: {progress}");
    // A section that is being read in the background is read to its end first.
    app.until("the question reads", |app| {
        (app.state()? == "reading").then_some(())
    });
    assert!(!app.is_shown("send"), "stop stands in the place of send");
    app.until("a line shows where it reads", |app| {
        app.count("strip-sweep") == 1
    });
    app.picture("reading");
    app.click("stop");
    assert_eq!(app.reaches(&["stopped", "done", "failed"]), "stopped");
    assert_eq!(app.count("strip-sweep"), 0);
    app.until("one can ask again", |app| app.is_shown("send"));
    assert_eq!(app.text("question").as_deref(), Some(QUESTION));
    app.click("ask-again");
    app.until("it reads again", |app| {
        (app.state()? == "reading").then_some(())
    });
    app.click("stop");
    assert_eq!(app.reaches(&["stopped", "done", "failed"]), "stopped");
    app.close();
}

#[test]
fn another_conversation_is_read_while_a_question_is_answered() {
    let Some(home) = Home::new() else { return };
    let app = slow(&home);
    let begins = |app: &App<'_>| {
        app.until("the answer begins", |app| {
            (app.state()? == "answering" && !app.answer().is_empty()).then_some(())
        });
    };
    app.ask(QUESTION);
    begins(&app);
    app.click("stop");
    assert_eq!(app.reaches(&["stopped", "done", "failed"]), "stopped");
    show_list(&app);
    app.click("new-conversation");
    app.until("a new one", |app| app.count("turn") == 0);
    app.ask("Who may come in free?");
    begins(&app);
    conversations::open(&app, QUESTION);
    app.until("the other answer is there", |app| {
        (app.state()? == "stopped" && !app.answer().is_empty()).then_some(())
    });
    app.picture("another-conversation");
    let said = app.text("elsewhere").unwrap_or_default();
    assert!(said.starts_with("Who may"), "it goes on: {said}");
    app.click("elsewhere-stop");
    app.until("it is stopped", |app| !app.is_shown("elsewhere"));
    conversations::open(&app, "Who may come in free?");
    app.until("as far as it came", |app| {
        (app.state()? == "stopped" && !app.answer().is_empty()).then_some(())
    });
    app.close();
}

#[test]
fn a_stopped_answer_keeps_its_text() {
    let Some(home) = Home::new() else { return };
    let app = slow(&home);
    app.ask(QUESTION);
    app.until("the answer begins", |app| {
        (app.state()? == "answering" && !app.answer().is_empty()).then_some(())
    });
    let early = app.answer().chars().count();
    let later = app.until("the answer grows", |app| {
        Some(app.answer().chars().count()).filter(|&n| n > early + 20)
    });
    app.until("what it looks at glows", |app| app.count("strip-glow") > 0);
    app.picture("answering");
    app.click("stop");
    assert_eq!(app.reaches(&["stopped", "done", "failed"]), "stopped");
    // The complete answer is rendered as Markdown, where some characters are markup; the earlier text is still present.
    assert!(
        app.answer().chars().count() * 2 > later,
        "the answer so far stays: {}",
        app.answer()
    );
    assert!(
        app.snapshot()["turns"][0]["answer"]
            .as_str()
            .is_some_and(|a| a.chars().count() >= later)
    );
    app.close();
}

#[test]
fn escape_stops_the_question_and_the_next_one_begins() {
    let Some(home) = Home::new() else { return };
    let app = slow(&home);
    app.ask(QUESTION);
    app.until("it reads", |app| (app.state()? == "reading").then_some(()));
    app.ask("And now?");
    assert_eq!(app.state().as_deref(), Some("waiting"));
    app.driver().keys(&["\u{E00C}"]).expect("a key");
    app.until("Escape stops it", |app| {
        app.snapshot()["turns"][0]["state"] == "stopped"
    });
    app.reaches(&["reading"]);
    app.driver().keys(&["\u{E00C}"]).expect("a key");
    app.reaches(&["stopped"]);
    app.close();
}

#[test]
fn a_kill_while_reading_fails_the_question() {
    let Some(home) = Home::new() else { return };
    let app = slow(&home);
    app.ask(QUESTION);
    app.until("it reads", |app| (app.state()? == "reading").then_some(()));
    app.write("composer", "half a thought");
    kill(&app);
    assert_eq!(app.reaches(&["failed", "stopped", "done"]), "failed");
    let told = app.texts("turn").join(" ") + &said(&app).join(" ");
    assert!(told.contains("signal 9"), "it says what happened: {told}");
    app.picture("killed-reading");
    assert_eq!(app.text("question").as_deref(), Some(QUESTION));
    assert_eq!(app.field("composer"), "half a thought");
    assert!(
        app.text("document-name")
            .is_some_and(|n| n.contains("sample.txt"))
    );
    assert_eq!(
        app.snapshot()["model"]["name"],
        "slow",
        "the model is opened again"
    );
    app.click("ask-again");
    app.until("it reads again", |app| {
        (app.state()? == "reading").then_some(())
    });
    app.click("stop");
    app.reaches(&["stopped"]);
    app.close();
}

#[test]
fn a_kill_while_answering_keeps_the_text() {
    let Some(home) = Home::new() else { return };
    let app = slow(&home);
    app.ask(QUESTION);
    app.until("it answers", |app| {
        (app.state()? == "answering" && app.answer().chars().count() > 40).then_some(())
    });
    let shown = app.snapshot()["turns"][0]["answer"]
        .as_str()
        .expect("an answer")
        .to_owned();
    kill(&app);
    assert_eq!(app.reaches(&["failed", "stopped", "done"]), "failed");
    let kept = app.snapshot()["turns"][0]["answer"]
        .as_str()
        .expect("an answer")
        .to_owned();
    assert!(
        kept.starts_with(&shown),
        "what was written stays:\n{shown:?}\n{kept:?}"
    );
    assert!(!app.answer().is_empty(), "and is shown");
    let told = app.texts("turn").join(" ") + &said(&app).join(" ");
    assert!(told.contains("signal 9"), "it says what happened: {told}");
    app.picture("killed-answering");
    app.close();
}

#[test]
fn a_kill_while_idle_is_reported() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    app.ask(QUESTION);
    app.is_answered();
    listen(&app);
    kill(&app);
    app.until("it says what happened", |app| {
        said(app).iter().any(|s| s.contains("signal 9"))
    });
    app.picture("killed-idle");
    assert_eq!(
        app.state().as_deref(),
        Some("done"),
        "what was answered stays answered"
    );
    assert!(app.answer().contains("4711"));
    app.ask("What is the founding year of the museum?");
    app.is_answered();
    assert!(app.answer().contains("1884"), "{}", app.answer());
    app.close();
}

#[test]
fn repeated_crashes_stop_the_restarts() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    app.until("the window gives up starting it", |app| {
        if let Some(worker) = app.worker() {
            worker.signal("KILL");
        }
        app.snapshot()["worker"]["state"] == "failed"
    });
    let message = app.until("it says so", |app| {
        app.text("worker-message")
            .filter(|_| app.is_shown("restart-button"))
    });
    assert!(message.contains(' '), "a sentence: {message}");
    app.picture("keeps-dying");
    app.write("composer", QUESTION);
    app.click("restart-button");
    app.until("the engine is back", |app| {
        let now = app.snapshot();
        now["worker"]["state"] == "ready" && !now["model"].is_null()
    });
    assert_eq!(
        app.field("composer"),
        QUESTION,
        "what was typed is still there"
    );
    app.write("composer", "\u{E007}");
    app.until("it is asked", |app| app.count("turn") == 1);
    app.is_answered();
    app.close();
}

#[test]
fn a_dropped_file_restarts_a_failed_engine() {
    let Some(home) = Home::new() else { return };
    let app = first_start(&home);
    app.until("the window gives up starting it", |app| {
        if let Some(worker) = app.worker() {
            worker.signal("KILL");
        }
        app.snapshot()["worker"]["state"] == "failed"
    });
    app.drop_files(&[&home.file("another.txt", "The tide was low. The quay was dry.")]);
    app.shows_document("another.txt");
    app.is_ready();
    assert!(!app.is_shown("restart-button"));
    app.close();
}

#[test]
fn an_answer_goes_on_while_another_document_is_read() {
    let Some(home) = Home::new() else { return };
    let app = slow(&home);
    app.set(json!({"maxTokens": 400}));
    app.ask(QUESTION);
    app.until("it reads", |app| (app.state()? == "reading").then_some(()));
    let other = home.file("other.txt", "The tide was low. The quay was dry.");
    app.drop_files(&[&other]);
    app.shows_document("other.txt");
    assert_eq!(app.count("turn"), 0);
    app.until("it says that it goes on", |app| {
        app.text("elsewhere")?.contains(QUESTION).then_some(())
    });
    app.picture("elsewhere");
    app.ask("When was the tide low?");
    app.until("the question waits", |app| {
        (app.state()? == "waiting").then_some(())
    });
    app.until("the answer is there", |app| {
        let said = app.text("elsewhere")?;
        said.contains("Answered").then_some(())
    });
    app.is_answered();
    app.picture("elsewhere-done");
    app.click("elsewhere-open");
    app.shows_document("sample.txt");
    app.is_answered();
    assert!(!app.answer().is_empty());
    app.until("and its map", |app| app.strip_colours() > 3);
    assert!(!app.is_shown("elsewhere"));
    app.close();
}

/// Opens the app with `path` in place of the worker; the message that it shows.
fn with_engine(home: &Home, path: &str) {
    let app = Launch::plain().variable("KEPT_WORKER", path).open(home);
    let message = app.until("the window says that the engine does not run", |app| {
        app.text("worker-message")
            .filter(|_| app.is_shown("restart-button"))
    });
    assert!(
        message.contains(' ') && !message.contains("os error"),
        "a sentence: {message}"
    );
    if !std::path::Path::new(path).exists() {
        assert!(
            message.contains("kept-worker") && !message.contains(path),
            "with its name, not its folder: {message}"
        );
        assert!(app.log().contains(path), "which is in the log");
    }
    app.picture("no-engine");
    app.shows_document("sample.txt");
    app.write("composer", "typed all the same");
    app.driver().keys(&["\u{E007}"]).expect("a key");
    app.until("what is typed is not lost", |app| {
        let typed = app.field("composer");
        typed.contains("typed all the same")
    });
    assert_eq!(app.snapshot()["worker"]["state"], "failed");
    app.click("restart-button");
    app.until("it fails again, in words again", |app| {
        app.is_shown("restart-button") && app.text("worker-message").is_some()
    });
    app.close();
}

#[test]
fn a_missing_engine_is_reported() {
    let Some(home) = Home::new() else { return };
    with_engine(&home, "/nonexistent/kept-worker");
}

#[test]
fn an_engine_that_exits_at_once_is_reported() {
    let Some(home) = Home::new() else { return };
    with_engine(&home, "/bin/false");
}

#[test]
fn an_engine_with_invalid_output_is_reported() {
    let Some(home) = Home::new() else { return };
    with_engine(&home, "/usr/bin/yes");
}

#[test]
fn an_engine_without_permission_is_reported() {
    let Some(home) = Home::new() else { return };
    let path = home.file("kept-worker", "#!/bin/sh\n");
    with_engine(&home, path.to_str().expect("a path"));
}
