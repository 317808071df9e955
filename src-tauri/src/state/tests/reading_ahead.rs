//! Reading the document in the background.

use kept_engine::{Finish, Phase, Progress};
use kept_worker::protocol::Failure;

use super::*;
use crate::contract::ReadAhead;

/// The ticket of the only request since the last look, which begins to read.
fn begun(story: &mut Story) -> u64 {
    match story.requests().as_slice() {
        [Request::ReadDocument { ticket, of }] if of.memory.is_none() => *ticket,
        other => panic!("{other:?}"),
    }
}

fn progress(ticket: u64, tokens_done: usize) -> Reply {
    Reply::ReadAhead {
        ticket,
        progress: Progress {
            phase: Phase::Reading,
            tokens_done,
            tokens_total: 10_000,
            tokens_from_vault: 0,
            tokens_per_second: 100.0,
            seconds_left: 9.0,
        },
    }
}

fn interrupted(ticket: u64, stopped: bool) -> Reply {
    Reply::failed(Some(ticket), Failure::Read, "stopped", stopped)
}

fn tokens_done(reading: &ReadAhead) -> usize {
    reading.progress.expect("begun").tokens_done
}

fn shown(story: &mut Story) -> Option<ReadAhead> {
    story.state.snapshot().reading
}

#[test]
fn a_long_document_is_read_as_soon_as_it_is_counted() {
    let mut story = Story::ready();
    story.hear(tokens(500, 32_768));
    assert_eq!(story.requests(), [], "a short one is not");
    story.hear(tokens(10_000, 32_768));
    let ticket = begun(&mut story);
    assert_eq!(shown(&mut story), None, "there may be nothing to read");
    story.hear(progress(ticket, 1_000));
    story.hear(progress(ticket + 1, 9_000));
    let told = story.events();
    let [
        AppEvent::ReadAhead {
            reading: Some(told),
        },
    ] = told.as_slice()
    else {
        panic!("{told:?}")
    };
    assert_eq!((told.running, tokens_done(told)), (true, 1_000));
    story.hear(Reply::DocumentRead {
        ticket,
        tokens: 10_000,
        stored: 10_000,
        notes: Vec::new(),
    });
    assert_eq!(shown(&mut story), None);
    assert!(matches!(
        story.requests().as_slice(),
        [Request::Vaults { .. }]
    ));
    story.hear(tokens(10_000, 32_768));
    assert_eq!(story.requests(), [], "it is read once");
    // With another model it has to be read again.
    story.state.choose_model_file("/other.gguf".into());
    story.hear(model("/other.gguf"));
    story.look();
    story.hear(tokens(10_000, 32_768));
    begun(&mut story);
}

#[test]
fn the_next_document_is_read_once_the_worker_has_stopped_reading_the_last() {
    let mut story = Story::ready();
    story.hear(tokens(10_000, 32_768));
    let first = begun(&mut story);
    story.state.open_text("Another.".into()).expect("opened");
    let requests = story.requests();
    assert!(requests.contains(&Request::Stop { ticket: first }));
    story.hear(tokens(20_000, 32_768));
    assert_eq!(story.requests(), [], "the worker still reads");
    story.hear(interrupted(first, true));
    begun(&mut story);
}

#[test]
fn a_reading_that_failed_begins_again_with_other_settings() {
    let mut story = Story::ready();
    story.hear(tokens(10_000, 32_768));
    let ticket = begun(&mut story);
    story.hear(interrupted(ticket, false));
    assert_eq!(story.requests(), [], "not with the same");
    let settings = Settings {
        max_tokens: 9,
        ..story.state.settings().clone()
    };
    story.state.save_settings(settings).expect("accepted");
    begun(&mut story);
}

#[test]
fn a_document_that_takes_hours_is_read_when_the_user_wants() {
    let mut story = Story::ready();
    story.hear(tokens(1 << 40, 32_768));
    assert_eq!(story.requests(), []);
    let waits = shown(&mut story).expect("it is offered");
    assert_eq!((waits.running, waits.progress), (false, None));
    story.state.resume_reading();
    let ticket = begun(&mut story);
    story.hear(progress(ticket, 1_000));
    story.state.stop_reading();
    story.hear(interrupted(ticket, true));
    story.look();
    story.state.resume_reading();
    begun(&mut story);
    // Another one has to be asked for again.
    story.state.open_text("Another.".into()).expect("opened");
    story.look();
    story.hear(tokens(1 << 40, 32_768));
    assert_eq!(story.requests(), []);
    // A question reads it too.
    let (_, ticket) = story.ask("Why?");
    let mut reply = answered(ticket, "Because", Finish::End);
    if let Reply::Answered { answer, .. } = &mut reply {
        answer.vault.written = true;
    }
    story.hear(reply);
    assert_eq!(shown(&mut story), None);
}

#[test]
fn a_document_that_could_not_be_stored_is_read_again() {
    let mut story = Story::ready();
    story.hear(tokens(10_000, 32_768));
    let ticket = begun(&mut story);
    story.hear(Reply::DocumentRead {
        ticket,
        tokens: 10_000,
        stored: 4_000,
        notes: Vec::new(),
    });
    assert!(story.state.snapshot().unwritten);
    // More space for the vaults may help.
    let settings = Settings {
        keep_budget: Some("2 GiB".into()),
        ..story.state.settings().clone()
    };
    story.state.save_settings(settings).expect("accepted");
    assert!(!story.state.snapshot().unwritten);
}

#[test]
fn reading_stops_and_goes_on_when_the_user_says_so() {
    let mut story = Story::ready();
    story.hear(tokens(10_000, 32_768));
    let ticket = begun(&mut story);
    story.hear(progress(ticket, 3_400));
    story.look();
    story.state.stop_reading();
    assert_eq!(story.requests(), [Request::Stop { ticket }]);
    story.hear(interrupted(ticket, true));
    // It stays stopped; the page learns what is stored.
    let requests = story.requests();
    assert!(
        matches!(requests.as_slice(), [Request::Vaults { .. }]),
        "{requests:?}"
    );
    let now = shown(&mut story).expect("shown");
    assert_eq!((now.running, tokens_done(&now)), (false, 3_400));
    // Neither a question nor anything else begins it again.
    let (_, asked) = story.ask("Why?");
    story.hear(answered(asked, "Because", Finish::End));
    assert_eq!(story.requests(), []);
    story.state.resume_reading();
    let ticket = begun(&mut story);
    story.state.resume_reading();
    assert_eq!(story.requests(), [], "once");
    // A question that reads all of it leaves nothing to resume.
    story.hear(progress(ticket, 5_000));
    story.state.stop_reading();
    story.hear(interrupted(ticket, true));
    assert!(shown(&mut story).is_some());
    let (_, asked) = story.ask("And?");
    let mut reply = answered(asked, "Because", Finish::End);
    if let Reply::Answered { answer, .. } = &mut reply {
        answer.vault.written = true;
    }
    story.hear(reply);
    assert_eq!(shown(&mut story), None);
}

#[test]
fn a_question_interrupts_reading_and_it_goes_on_afterwards() {
    let mut story = Story::ready();
    story.hear(tokens(10_000, 32_768));
    let ticket = begun(&mut story);
    // The worker stops reading by itself.
    let (_, asked) = story.ask("Why?");
    story.hear(interrupted(ticket, true));
    assert_eq!(shown(&mut story), None);
    assert_eq!(story.requests(), []);
    story.hear(answered(asked, "Because", Finish::End));
    begun(&mut story);
    // A question that the user stops leaves the computer quiet.
    let mut story = Story::ready();
    story.hear(tokens(10_000, 32_768));
    let ticket = begun(&mut story);
    let (_, asked) = story.ask("And?");
    story.hear(interrupted(ticket, true));
    story.state.stop();
    story.look();
    story.hear(answered(asked, "", Finish::Stopped));
    assert_eq!(story.requests(), []);
}

#[test]
fn another_document_stops_reading_and_a_failure_is_not_repeated() {
    let mut story = Story::ready();
    story.hear(tokens(10_000, 32_768));
    let ticket = begun(&mut story);
    story.state.open_path("/a.txt".into());
    story.look();
    let reply = document("a.txt");
    story.hear_bytes(reply, b"a");
    assert_eq!(story.requests(), [Request::Stop { ticket }]);
    story.hear(interrupted(ticket, true));
    assert_eq!(story.requests(), [], "not counted yet");
    story.hear(tokens(20_000, 32_768));
    let ticket = begun(&mut story);
    story.hear(interrupted(ticket, false));
    assert_eq!(story.notices(), [] as [&str; 0], "a question will say why");
    story.hear(tokens(20_000, 32_768));
    assert_eq!(story.requests(), []);
    // Reading that ended the worker does not end the next one too.
    let mut story = Story::ready();
    story.hear(tokens(10_000, 32_768));
    begun(&mut story);
    story.state.worker_died("It ended.");
    story.hello();
    story.hear(model("mini"));
    story.look();
    story.hear(tokens(10_000, 32_768));
    assert_eq!(story.requests(), []);
}

#[test]
fn without_vaults_nothing_is_read_ahead() {
    let mut story = Story::ready();
    let off = Settings {
        keep: "off".into(),
        ..story.state.settings().clone()
    };
    story.state.save_settings(off).expect("accepted");
    story.look();
    story.hear(tokens(10_000, 32_768));
    assert_eq!(story.requests(), []);
}

/// Its state depends on method and budget, and not on the question.
#[test]
fn a_document_beyond_the_context_is_read_for_the_questions_to_come() {
    let mut story = Story::ready();
    let streamed = || Reply::Tokens {
        tokens: 90_000,
        estimated: false,
        context: 32_768,
        streams: true,
        refusal: None,
    };
    let read = |story: &mut Story| match story.requests().as_slice() {
        [Request::ReadDocument { ticket, of }] => {
            (*ticket, of.method.name.clone(), of.budget.clone())
        }
        other => panic!("{other:?}"),
    };
    let choose = |story: &mut Story, method: &str, budget: Option<&str>| {
        let settings = Settings {
            method: method.to_owned(),
            budget: budget.map(str::to_owned),
            ..story.state.settings().clone()
        };
        story.state.save_settings(settings).expect("accepted");
    };
    choose(&mut story, "treekv", Some("512"));
    story.look();
    story.hear(streamed());
    let (ticket, method, budget) = read(&mut story);
    assert_eq!((&*method, budget.as_deref()), ("treekv", Some("512")));
    // Another budget while it is read, and after it was read.
    choose(&mut story, "treekv", Some("256"));
    assert_eq!(story.requests(), [Request::Stop { ticket }]);
    story.hear(interrupted(ticket, true));
    let (ticket, _, budget) = read(&mut story);
    assert_eq!(budget.as_deref(), Some("256"));
    story.hear(Reply::DocumentRead {
        ticket,
        tokens: 90_000,
        stored: 90_000,
        notes: Vec::new(),
    });
    story.look();
    choose(&mut story, "snapkv", Some("256"));
    assert_eq!(story.requests(), [], "it cannot read the document");
    choose(&mut story, "tova", Some("256"));
    assert_eq!(read(&mut story).1, "tova");
}
