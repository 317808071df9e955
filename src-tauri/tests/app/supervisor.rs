//! The real worker, killed and replaced: the app reports the crash and restarts the worker, and no typed or answered
//! text is lost.

#![cfg(unix)]

use crate::common::{Window, prose, script};
use kept_app::contract::{AppEvent, Choice, Drafts, Phase, TurnState, WorkerStatus};
use kept_app::state::MapPlace;

const KILLED: &str =
    "The engine crashed, probably because memory ran out (signal 9). It was restarted";

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_and_its_map_survive_a_restart_of_the_app() {
    let window = Window::open().await;
    let snapshot = window.until_ready().await;
    assert!(
        snapshot
            .methods
            .iter()
            .any(|method| method.name == "snapkv")
    );
    let question = snapshot.document.expect("the sample").suggestions[0].clone();
    let estimate = window
        .effects
        .with(|state| state.estimate(Choice::plain("snapkv", None)))
        .expect("accepted")
        .await
        .expect("answered")
        .expect("estimated");
    assert!(estimate.memory.kept < estimate.memory.kept_full);

    let id = window.ask(&question);
    let done = window
        .until("the answer", |s| {
            s.turns.iter().any(|t| t.state == TurnState::Done)
        })
        .await;
    let turn = done.turns[0].clone();
    assert!(turn.answer.contains("crimson"), "{}", turn.answer);
    assert!(!turn.sources.is_empty());
    let facts = turn.facts.as_ref().expect("facts");
    assert_eq!(facts.finish, kept_engine::Finish::End);
    assert!(facts.kept_bytes < facts.full_bytes);
    let counts = {
        let map = window.effects.map(id).await.expect("a map");
        let map = &kept_app::state::lock(&map).document;
        assert_eq!(map.layers_done(), map.layers());
        map.counts(None)
    };
    assert!(counts.iter().any(|&count| count > 0));
    {
        let events = window.events.lock().expect("whole");
        let position = |wanted: &dyn Fn(&AppEvent) -> bool| events.iter().position(wanted);
        let reading =
            position(&|e| matches!(e, AppEvent::Turn { turn } if turn.state == TurnState::Reading));
        let answering = position(
            &|e| matches!(e, AppEvent::Turn { turn } if turn.state == TurnState::Answering),
        );
        let done =
            position(&|e| matches!(e, AppEvent::Turn { turn } if turn.state == TurnState::Done));
        assert!(reading.is_some() && reading < answering && answering < done);
        assert!(position(&|e| matches!(e, AppEvent::Map { .. })) < done);
        assert!(
            events
                .iter()
                .any(|e| matches!(e, AppEvent::Progress { memory, .. } if memory.weights > 0))
        );
    }

    let drafts = Drafts::from([("conversation 1".to_owned(), "and then?".to_owned())]);
    window
        .effects
        .with(|state| state.save_drafts(drafts.clone()));
    let folder = window.close().await;
    let window = Window::open_in(folder).await;
    let again = window.snapshot();
    assert_eq!(again.turns, [turn]);
    assert_eq!(again.drafts, drafts);
    assert!(matches!(
        window.effects.with(|state| state.map(id)),
        Ok(MapPlace::InStore)
    ));
    let map = window
        .effects
        .map(id)
        .await
        .expect("the map from the store");
    assert_eq!(kept_app::state::lock(&map).document.counts(None), counts);
    window.until_ready().await;
    assert!(window.ask("Why?") > id);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_while_idle_is_replaced() {
    let window = Window::open().await;
    window.until_ready().await;
    window.kill();
    window
        .until_event("a sentence", |event| {
            matches!(event, AppEvent::Notice { message, .. } if message.starts_with(KILLED))
        })
        .await;
    window.until_ready().await;
    let workers = window.workers();
    assert_eq!(workers.len(), 2, "{workers:?}");
    window.ask("What is the locker code of Ann Quorvin?");
    let done = window
        .until("the answer", |s| !s.turns[0].state.is_open())
        .await;
    assert!(done.turns[0].answer.contains("4711"));
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_while_reading_the_question_fails_and_can_be_repeated() {
    let window = Window::open().await;
    window.until_ready().await;
    window.open_slow_model().await;
    window.open_text("long é.txt", &prose(10_000)).await;
    window.until_ready().await;
    window.ask("Why?");
    window
        .until_event("reading", |event| {
            matches!(event, AppEvent::Progress { progress, .. }
                if progress.phase == Phase::Reading && progress.tokens_done > 0)
        })
        .await;
    window.kill();
    let failed = window
        .until("the failure", |s| s.turns[0].state == TurnState::Failed)
        .await;
    let turn = &failed.turns[0];
    assert_eq!(turn.question, "Why?");
    let error = turn.error.as_deref().expect("a sentence");
    assert!(
        error.starts_with(KILLED) && error.ends_with("ask again."),
        "{error}"
    );
    let back = window.until_ready().await;
    assert_eq!(back.document.map(|d| d.name).as_deref(), Some("long é.txt"));
    assert_eq!(back.model.map(|m| m.file).as_deref(), Some("slow.gguf"));
    window.ask("Why?");
    window
        .until("reading again", |s| s.turns[1].state == TurnState::Reading)
        .await;
    window.effects.with(|state| state.stop());
    window
        .until("the stop", |s| s.turns[1].state == TurnState::Stopped)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_while_answering_the_text_and_map_so_far_remain() {
    let window = Window::open().await;
    window.until_ready().await;
    window.open_slow_model().await;
    window.open_text("short.txt", &prose(200)).await;
    window.until_ready().await;
    let mut settings = window.snapshot().settings;
    settings.max_tokens = 20_000;
    window
        .effects
        .with(|state| state.save_settings(settings))
        .expect("accepted");
    let id = window.ask("Why?");
    let before = window
        .until("some of the answer", |s| s.turns[0].answer.len() > 20)
        .await;
    window.kill();
    let failed = window
        .until("the failure", |s| s.turns[0].state == TurnState::Failed)
        .await;
    assert!(failed.turns[0].answer.starts_with(&before.turns[0].answer));
    assert!(failed.turns[0].has_map);
    assert!(window.effects.map(id).await.is_ok());
    window.until_ready().await;

    // The same during a stop by the user: the text so far remains.
    window.ask("Why?");
    window
        .until("some of the answer", |s| s.turns[1].answer.len() > 20)
        .await;
    window.effects.with(|state| state.stop());
    let stopped = window
        .until("the stop", |s| s.turns[1].state == TurnState::Stopped)
        .await;
    assert!(stopped.turns[1].answer.len() > 20);
    assert!(stopped.turns[1].facts.is_some());
}

/// A suspended worker does not notice that its input is closed.
#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_worker_is_killed_when_the_app_closes() {
    let window = Window::open().await;
    window.until_ready().await;
    let id = window.workers().pop().expect("a worker");
    let process = std::path::PathBuf::from(format!("/proc/{id}"));
    let halted = std::process::Command::new("kill")
        .args(["-STOP", &id])
        .status();
    assert!(halted.expect("kill runs").success());
    window.close().await;
    // Without a /proc folder, the test only checks that closing succeeds.
    assert!(!process.exists(), "it is still there");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_by_the_user_starts_another_worker() {
    let window = Window::open().await;
    window.until_ready().await;
    window.effects.with(|state| state.restart_worker());
    window
        .until("another worker", |_| window.workers().len() == 2)
        .await;
    window.until_ready().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_worker_is_reported_and_found_at_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("worker.sh");
    let window = Window::with(folder, program.clone()).await;
    let failed = window
        .until("giving up", |s| s.worker.state == WorkerStatus::Failed)
        .await;
    let message = failed.worker.message.expect("a sentence");
    assert!(
        message.contains("worker.sh") && !message.contains(&program.display().to_string()),
        "its name, not its folder: {message}"
    );
    assert!(message.contains("no such file"), "{message}");
    // A program without execute permission is named as well.
    std::fs::write(&program, "").expect("written");
    window.events.lock().expect("whole").clear();
    window.effects.with(|state| state.restart_worker());
    window
        .until_event("the other reason", |event| {
            matches!(event, AppEvent::Worker { worker } if worker.message.as_deref().is_some_and(|m| m.contains("may not be run")))
        })
        .await;
    script(
        window.folder.path(),
        &format!("exec '{}'", crate::common::kept_worker().display()),
    );
    window.effects.with(|state| state.restart_worker());
    window.until_ready().await;
}

async fn fails_after_three_starts(lines: &str, named: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let count = folder.path().join("starts");
    let program = script(
        folder.path(),
        &format!("echo >> '{}'\n{lines}", count.display()),
    );
    let window = Window::with(folder, program).await;
    let failed = window
        .until("giving up", |s| s.worker.state == WorkerStatus::Failed)
        .await;
    let message = failed.worker.message.expect("a sentence");
    assert!(message.contains(named), "{message}");
    assert!(message.contains("third time"), "{message}");
    let starts = std::fs::read_to_string(count).expect("counted");
    assert_eq!(starts.lines().count(), 3);
    assert!(window.snapshot().document.is_some(), "the window lives");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_exits_at_start_is_tried_three_times() {
    fails_after_three_starts(
        "echo no such library >&2; exit 127",
        "code 127: no such library",
    )
    .await;
    fails_after_three_starts("exit 0", "unexpectedly (code 0)").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_with_invalid_output_is_tried_three_times() {
    fails_after_three_starts(
        "echo hello world, this is no frame; sleep 1000",
        "does not understand",
    )
    .await;
    fails_after_three_starts(
        "printf '\\2\\0\\0\\0\\0\\0\\0\\0{}'; sleep 1000",
        "does not understand",
    )
    .await;
}
