//! Conversations that are left while a question runs or waits in them.

use kept_engine::Finish;
use kept_worker::protocol::Failure;

use super::*;
use crate::contract::{ElsewhereState, Progress, TurnState};

/// A story in which `Why?` runs about the sample, with its turn and ticket, and another document is open since.
fn left() -> (Story, u64, u64) {
    let mut story = Story::ready();
    let (turn, ticket) = story.ask("Why?");
    story.state.open_text("Another.".into()).expect("opened");
    (story, turn, ticket)
}

fn elsewhere(story: &mut Story) -> Vec<(String, ElsewhereState)> {
    let left = story.state.snapshot().elsewhere.into_iter();
    left.map(|left| (left.question, left.state)).collect()
}

fn why(state: ElsewhereState) -> [(String, ElsewhereState); 1] {
    [("Why?".to_owned(), state)]
}

/// Opens the conversation that was left, with turns from the store that are older than those in memory.
fn go_back(story: &mut Story) {
    let conversation = story.state.snapshot().elsewhere[0].conversation;
    story.state.choose_conversation(conversation).expect("one");
    let document = story.state.document().expect("open").clone();
    story.load(conversation, document, Vec::new());
}

/// The turns that were stored since the last look, with the answer that each has.
fn stored(story: &mut Story) -> Vec<(u64, TurnState, String)> {
    let turn = |effect: &Effect| match effect {
        Effect::Save(Save::Turn { turn, .. }) => Some((turn.id, turn.state, turn.answer.clone())),
        _ => None,
    };
    story.look().iter().filter_map(turn).collect()
}

#[test]
fn an_answer_goes_on_while_another_conversation_is_open() {
    let (mut story, turn, ticket) = left();
    let requests = story.requests();
    assert!(
        matches!(requests.as_slice(), [Request::AdoptDocument { document }] if document.name == "Another."),
        "nothing is stopped: {requests:?}"
    );
    assert_eq!(elsewhere(&mut story), why(ElsewhereState::Answering));
    story.read(ticket, 2);
    story.hear(token(ticket, "Because"));
    story.wait(Duration::from_secs(1));
    let events = story.events();
    let of_turn = |event: &AppEvent| {
        let shown = matches!(event, AppEvent::Turn { .. } | AppEvent::Map { .. });
        shown || matches!(event, AppEvent::Token { .. } | AppEvent::Progress { .. })
    };
    assert!(!events.iter().any(of_turn), "{events:?}");
    // The open conversation's own questions wait.
    let next = story.try_to_ask("What else?").expect("accepted");
    assert_eq!(story.turn().state, TurnState::Waiting);
    story.look();
    story.hear(answered(ticket, "Because.", Finish::End));
    let effects = story.look();
    assert!(
        effects
            .iter()
            .any(|e| matches!(e, Effect::Save(Save::Map { turn: of, .. }) if *of == turn))
    );
    let asked = |e: &Effect| matches!(e, Effect::Worker { request: Request::Ask { ask, .. }, .. } if ask.question == "What else?");
    assert!(effects.iter().any(asked));
    assert_eq!(story.turn().id, next);
    assert_eq!(elsewhere(&mut story), why(ElsewhereState::Done));
    go_back(&mut story);
    let shown = story.turn();
    assert_eq!((shown.id, shown.answer.as_str()), (turn, "Because."));
    assert_eq!(
        elsewhere(&mut story),
        [("What else?".to_owned(), ElsewhereState::Answering)]
    );
}

#[test]
fn a_conversation_that_is_opened_again_shows_its_answer_so_far() {
    let (mut story, turn, ticket) = left();
    story.read(ticket, 1);
    let progress = Progress {
        phase: crate::contract::Phase::Reading,
        tokens_from_vault: 0,
        tokens_done: 1,
        tokens_total: 4,
        tokens_per_second: 1.0,
        seconds_left: 3.0,
    };
    story.hear(Reply::Progress {
        ticket,
        progress,
        memory: memory_now(),
    });
    story.hear(token(ticket, "Be"));
    story.look();
    go_back(&mut story);
    let shown = story.turn();
    assert_eq!((shown.id, shown.answer.as_str()), (turn, "Be"));
    let events = story.events();
    assert!(
        events
            .iter()
            .any(|e| matches!(e, AppEvent::Map { turn: of, .. } if *of == turn)),
        "{events:?}"
    );
    assert!(
        events
            .iter()
            .any(|e| matches!(e, AppEvent::Progress { turn: of, .. } if *of == turn)),
        "{events:?}"
    );
    assert_eq!(elsewhere(&mut story), []);
    story.hear(token(ticket, "cause"));
    story.wait(Duration::from_secs(1));
    let text = |event: AppEvent| match event {
        AppEvent::Token { text, .. } => Some(text),
        _ => None,
    };
    let texts: Vec<_> = story.events().into_iter().filter_map(text).collect();
    assert_eq!(texts, ["cause"]);
}

#[test]
fn a_question_that_waits_elsewhere_is_asked_about_its_own_document() {
    let mut story = Story::ready();
    let (_, ticket) = story.ask("Why?");
    story.try_to_ask("And then?").expect("waits");
    story.state.open_text("Another.".into()).expect("opened");
    story.try_to_ask("What else?").expect("waits");
    story.look();
    story.hear(answered(ticket, "Because.", Finish::End));
    let sent = |request: Request| match request {
        Request::AdoptDocument { document } => Some(document.name),
        Request::Ask { ask, .. } => Some(ask.question),
        _ => None,
    };
    let requests = story.requests().into_iter().filter_map(sent);
    let order: Vec<String> = requests.collect();
    assert_eq!(order, ["sample.txt", "And then?", "Another."]);
    let and_then = [("And then?".to_owned(), ElsewhereState::Answering)];
    assert_eq!(elsewhere(&mut story), and_then);
    assert_eq!(story.turn().state, TurnState::Waiting, "after them");
}

/// Another attempt at an old question has its number, and no place before questions that were asked earlier.
#[test]
fn questions_are_answered_in_the_order_in_which_they_were_asked() {
    let mut story = Story::ready();
    let (first, ticket) = story.ask("Why?");
    story.hear(answered(ticket, "", Finish::Stopped));
    let conversation = story.state.snapshot().conversation.expect("one");
    let document = story.state.document().expect("open").clone();
    let turns = story.state.snapshot().turns;
    story.state.open_text("Another.".into()).expect("opened");
    let (_, running) = story.ask("What?");
    story.try_to_ask("What else?").expect("waits");
    story.state.choose_conversation(conversation).expect("one");
    story.load(conversation, document, turns);
    let again = Relation {
        again: Some(first),
        ..Relation::default()
    };
    let choice = Choice::plain("snapkv", None);
    assert_eq!(story.state.ask("Why?", choice, again), Ok(first));
    let left = &story.state.snapshot().elsewhere[0];
    assert_eq!((left.question.as_str(), left.waiting), ("What?", 1));
    story.look();
    story.hear(answered(running, "That.", Finish::End));
    let asked = |request: Request| match request {
        Request::Ask { ask, .. } => Some(ask.question),
        _ => None,
    };
    let asked: Vec<String> = story.requests().into_iter().filter_map(asked).collect();
    assert_eq!(asked, ["What else?"]);
}

#[test]
fn what_goes_on_elsewhere_can_be_stopped_there() {
    let (mut story, turn, ticket) = left();
    story.look();
    let conversation = story.state.snapshot().elsewhere[0].conversation;
    // Stopping here stops nothing there.
    story.state.stop();
    assert_eq!(story.requests(), []);
    story.state.stop_elsewhere(conversation);
    assert_eq!(elsewhere(&mut story), []);
    let effects = story.look();
    assert!(effects.iter().any(|e| matches!(e, Effect::Worker { request: Request::Stop { ticket: of }, .. } if *of == ticket)));
    // What there is of it is stored.
    story.hear(answered(ticket, "Be", Finish::Stopped));
    assert_eq!(
        stored(&mut story),
        [(turn, TurnState::Stopped, "Be".to_owned())]
    );
    assert!(!story.state.is_running() && story.state.left.is_empty());
    let mut story = left().0;
    let conversation = story.state.snapshot().elsewhere[0].conversation;
    story.look();
    story
        .state
        .delete_conversation(conversation)
        .expect("deleted");
    assert_eq!(
        stored(&mut story),
        [(turn, TurnState::Stopped, String::new())]
    );
    assert_eq!(elsewhere(&mut story), []);
    assert!(!story.state.is_running());
}

#[test]
fn an_answer_that_fails_elsewhere_says_so() {
    let (mut story, turn, ticket) = left();
    story.look();
    story.hear(Reply::failed(
        Some(ticket),
        Failure::Ask,
        "the file is gone",
        false,
    ));
    assert_eq!(
        stored(&mut story),
        [(turn, TurnState::Failed, String::new())]
    );
    assert_eq!(elsewhere(&mut story), why(ElsewhereState::Failed));
    // A crash ends the answer of the one that was left, too.
    let (mut story, turn, _) = left();
    story.look();
    story.state.worker_died("It ended.");
    assert_eq!(
        stored(&mut story),
        [(turn, TurnState::Failed, String::new())]
    );
}

#[test]
fn the_map_of_a_running_question_stays_in_memory() {
    let mut story = Story::ready();
    let (turn, ticket) = story.ask("Why?");
    story.read(ticket, 2);
    for other in 100..110 {
        let map = lock(&story.state.maps.known[&turn]).clone();
        story.state.keep_map(other, map);
    }
    story.look();
    story.hear(answered(ticket, "Because.", Finish::End));
    let saved = |e: &Effect| matches!(e, Effect::Save(Save::Map { turn: of, .. }) if *of == turn);
    assert!(story.look().iter().any(saved));
}

#[test]
fn all_questions_that_wait_elsewhere_are_stopped_there() {
    let mut story = Story::ready();
    let (first, ticket) = story.ask("Why?");
    let more = ["And then?", "And now?"].map(|question| story.try_to_ask(question).expect("waits"));
    story.state.open_text("Another.".into()).expect("opened");
    story.look();
    let conversation = story.state.snapshot().elsewhere[0].conversation;
    story.state.stop_elsewhere(conversation);
    let stopped = |id: u64| (id, TurnState::Stopped, String::new());
    assert_eq!(stored(&mut story), more.map(stopped));
    story.hear(answered(ticket, "", Finish::Stopped));
    assert_eq!(stored(&mut story), [stopped(first)]);
    assert!(!story.state.is_busy());
}

/// The worker may have the file by the time it gets the question.
#[test]
fn a_question_waits_for_the_file_that_is_being_opened() {
    let mut story = Story::ready();
    let (_, ticket) = story.ask("Why?");
    story.try_to_ask("And then?").expect("waits");
    story.state.open_path("/a.txt".into());
    story.look();
    story.hear(answered(ticket, "Because.", Finish::End));
    assert_eq!(story.requests(), []);
    let reply = document("a.txt");
    story.hear_bytes(reply, b"a");
    let asked = |request: Request| match request {
        Request::AdoptDocument { document } => Some(document.name),
        Request::Ask { ask, .. } => Some(ask.question),
        _ => None,
    };
    let asked: Vec<String> = story.requests().into_iter().filter_map(asked).collect();
    assert_eq!(asked, ["sample.txt", "And then?", "a.txt"]);
}

#[test]
fn a_document_that_is_still_open_keeps_its_newest_facts() {
    let mut story = Story::ready();
    story.ask("Why?");
    story.state.new_conversation();
    story.hear(tokens(1234, 2048));
    go_back(&mut story);
    assert_eq!(story.document().and_then(|d| d.tokens), Some(1234));
}
