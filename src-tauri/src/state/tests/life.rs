//! Crashes of the worker: no typed or answered text is lost.

use super::*;
use crate::contract::{ComparisonState, TurnState};
use crate::messages;

const KILLED: &str = "The engine crashed, probably because memory ran out (signal 9).";

#[test]
fn a_death_while_answering_keeps_question_answer_and_map() {
    let mut story = Story::ready();
    let (id, ticket) = story.ask("Why?");
    story.read(ticket, 1);
    story.hear(token(ticket, "Beca"));
    story.hear(token(ticket, "use"));
    story.look();
    story.state.worker_died(KILLED);
    let turn = story.turn();
    assert_eq!(turn.state, TurnState::Failed);
    assert_eq!(
        (turn.question.as_str(), turn.answer.as_str()),
        ("Why?", "Because")
    );
    assert_eq!(
        turn.error.as_deref(),
        Some(
            "The engine crashed, probably because memory ran out (signal 9). It was restarted: ask again."
        )
    );
    assert!(turn.has_map && story.state.map(id).is_ok());
    assert_eq!(
        story.state.snapshot().worker.state,
        WorkerStatus::Restarting
    );
    story.look();
    story.hello();
    let notices = story.notices();
    assert_eq!(notices, [] as [&str; 0], "the turn says it");
    story.hear(model("mini"));
    let (_, again) = story.ask("Why?");
    assert_ne!(again, ticket);
    assert_eq!(story.state.snapshot().turns.len(), 2);
}

/// The order in which `kept-worker` ends after a GPU error: first its sentence, then the process.
#[test]
fn a_gpu_that_fails_ends_in_one_sentence_and_a_new_engine() {
    let mut story = Story::ready();
    let (id, ticket) = story.ask("Why?");
    story.read(ticket, 2);
    story.hear(token(ticket, "Beca"));
    story.hear(Reply::failed(
        Some(ticket),
        kept_worker::protocol::Failure::Ask,
        "the GPU NVIDIA X failed in attention: an illegal memory access; use the CPU",
        false,
    ));
    let says = "The GPU failed, and the engine that used it was ended.";
    story.state.worker_died(says);
    story.look();
    story.hello();
    assert_eq!(story.notices(), [messages::restarted(says)]);
    story.hear(model("mini"));
    let turn = story.turn();
    assert_eq!(
        (turn.question.as_str(), turn.answer.as_str()),
        ("Why?", "Beca")
    );
    assert_eq!(
        turn.error.as_deref(),
        Some("The GPU NVIDIA X failed in attention: an illegal memory access; use the CPU.")
    );
    assert!(turn.has_map && story.state.map(id).is_ok());
    let (_, again) = story.ask("Why?");
    story.hear(answered(again, "So", kept_engine::Finish::End));
    assert_eq!(story.turn().state, TurnState::Done);
}

#[test]
fn another_device_is_another_engine_and_nonsense_is_none() {
    let mut story = Story::ready();
    let mut settings = story.state.settings().clone();
    assert_eq!(settings.device, None, "as it comes");
    for nonsense in ["GPU", "", "cuda:x"] {
        settings.device = Some(nonsense.into());
        let refused = story.state.save_settings(settings.clone());
        assert!(refused.expect_err("nonsense").message.contains("cuda:0"));
    }
    settings.device = Some("cpu".into());
    let (_, ticket) = story.ask("Why?");
    assert_eq!(
        story.state.save_settings(settings.clone()),
        Err(messages::BUSY_DEVICE.to_owned().into())
    );
    story.hear(answered(ticket, "So", kept_engine::Finish::End));
    story.look();
    story.state.save_settings(settings).expect("taken");
    let effects = story.look();
    assert!(effects.iter().any(|e| matches!(e, Effect::RestartWorker)));
    assert_eq!(
        story.state.snapshot().worker.state,
        WorkerStatus::Restarting
    );
    story.hello();
    assert_eq!(story.notices(), [] as [&str; 0], "it was wanted");
    story.hear(model("mini"));
    assert_eq!(story.state.snapshot().turns.len(), 1);
}

#[test]
fn the_page_is_told_which_gpus_there_are_or_why_none() {
    let mut story = Story::ready();
    let gpu = kept_engine::Gpu {
        device: "cuda:0".into(),
        name: "NVIDIA X".into(),
        capability: "8.9".into(),
        memory: 24 << 30,
        free: 22 << 30,
    };
    story.state.gpus_found(kept_worker::protocol::Gpus {
        gpus: vec![gpu],
        why_none: None,
    });
    let told = |event: AppEvent| match event {
        AppEvent::Gpus { gpus } => Some(gpus),
        _ => None,
    };
    let gpus: Vec<_> = story.events().into_iter().filter_map(told).collect();
    assert_eq!(gpus[0].gpus[0].free, 22 << 30);
    assert_eq!(story.state.snapshot().gpus, gpus[0]);
    story.state.gpus_found(kept_worker::protocol::Gpus {
        gpus: Vec::new(),
        why_none: Some("no NVIDIA driver was found (libcuda)".into()),
    });
    let gpus = story.state.snapshot().gpus;
    assert_eq!(
        gpus.why_none.as_deref(),
        Some("No NVIDIA driver was found (libcuda).")
    );
}

#[test]
fn the_next_worker_is_given_model_and_document() {
    let mut story = Story::ready();
    story.state.worker_died(KILLED);
    assert_eq!(story.state.snapshot().model, None);
    story.look();
    story.hello();
    let requests: Vec<(u64, Request)> = story
        .look()
        .iter()
        .filter_map(|effect| match effect {
            Effect::Worker {
                generation,
                request,
                ..
            } => Some((*generation, request.clone())),
            _ => None,
        })
        .collect();
    assert!(matches!(requests[0], (2, Request::OpenModel { .. })));
    assert!(matches!(requests[1], (2, Request::AdoptDocument { .. })));
    assert!(matches!(requests[2], (2, Request::KeepDocuments { .. })));
    assert_eq!(requests.len(), 3);
}

#[test]
fn an_idle_death_is_told_once() {
    let mut story = Story::ready();
    story.state.worker_died(KILLED);
    story.look();
    story.hello();
    assert_eq!(story.notices(), [messages::restarted(KILLED)]);
}

#[test]
fn a_death_while_opening_a_file_does_not_open_it_again() {
    let mut story = Story::ready();
    story.state.open_path("/evil.pdf".into());
    story.state.worker_died(KILLED);
    assert_eq!(story.state.snapshot().opening, None);
    story.look();
    story.hello();
    let effects = story.look();
    assert!(!effects.iter().any(|effect| matches!(
        effect,
        Effect::Worker {
            request: Request::OpenDocument { .. },
            ..
        }
    )));
    let told = effects.iter().any(|effect| {
        matches!(effect, Effect::Page(AppEvent::Notice { message, .. }) if message.contains("evil.pdf was not opened"))
    });
    assert!(told);
}

#[test]
fn a_file_passed_before_the_worker_is_there_is_opened_at_its_hello() {
    let mut story = Story::first_start();
    story.state.open_path("/a.txt".into());
    assert_eq!(story.requests(), []);
    story.hello();
    assert!(story.requests().contains(&open_document("/a.txt")));
}

#[test]
fn without_a_worker_everything_but_asking_works() {
    let mut story = Story::first_start();
    story.state.worker_gone("There is no engine.");
    let state = story.state.snapshot().worker;
    assert_eq!(state.state, WorkerStatus::Failed);
    assert_eq!(state.message.as_deref(), Some("There is no engine."));
    assert_eq!(
        story.try_to_ask("Why?"),
        Err(messages::ENGINE_FAILED.to_owned())
    );
    story.look();
    story.state.open_sample();
    story.state.restart_worker();
    assert!(
        story
            .look()
            .iter()
            .any(|effect| matches!(effect, Effect::RestartWorker))
    );
    story.hello();
    story.hear(model("mini"));
    story.ask("Why?");
}

#[test]
fn a_waiting_question_outlives_the_worker() {
    let mut story = Story::ready();
    story.ask("First?");
    story.delete();
    story.try_to_ask("Second?").expect("accepted");
    story.state.worker_died(KILLED);
    assert_eq!(story.turn().state, TurnState::Waiting);
    story.look();
    story.hello();
    story.hear(model("mini"));
    assert_eq!(story.turn().state, TurnState::Asked);
    assert!(
        matches!(story.requests().last(), Some(Request::Ask { ask, .. }) if ask.question == "Second?")
    );
}

#[test]
fn a_file_dropped_on_an_engine_that_has_given_up_starts_it_again_and_is_opened() {
    let mut story = Story::ready();
    story.state.worker_gone("It died three times.");
    story.look();
    story.state.open_path("/a.txt".into());
    let effects = story.look();
    assert!(effects.iter().any(|e| matches!(e, Effect::RestartWorker)));
    assert_eq!(story.state.snapshot().opening.as_deref(), Some("a.txt"));
    story.hello();
    assert!(story.requests().contains(&open_document("/a.txt")));
}

#[test]
fn a_comparison_keeps_what_was_measured_before_a_death() {
    let mut story = Story::ready();
    let id = story
        .state
        .compare("Why?", vec![Choice::plain("snapkv", None)])
        .expect("accepted");
    story.hear(comparing::reference(id));
    story.state.worker_died(KILLED);
    let comparison = story.state.snapshot().comparison.expect("a comparison");
    assert_eq!(comparison.state, ComparisonState::Failed);
    assert!(comparison.reference.is_some());
    assert_eq!(
        comparison.error.as_deref(),
        Some(
            "The engine crashed, probably because memory ran out (signal 9). It was restarted; finished rows stay."
        )
    );
    story.look();
    story.hello();
    assert_eq!(story.notices(), [] as [&str; 0], "the comparison says it");
    story.hear(model("mini"));
    story.ask("Why?");
}
