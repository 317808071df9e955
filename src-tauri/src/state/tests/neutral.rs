//! What is kept whatever is asked: computed after an answer, interrupted by a question, shared by equal methods.

use kept_engine::{Finish, MapGrid};
use kept_worker::protocol::Failure;

use super::*;
use crate::contract::{Relation, TurnState};

/// Asks and answers a question with a map; returns its turn.
pub(super) fn answer(story: &mut Story, method: &str, budget: Option<&str>) -> u64 {
    story.look();
    let choice = Choice::plain(method, budget);
    let turn = story.state.ask("Why?", choice, Relation::default());
    let ticket = ticket(&story.requests());
    story.read(ticket, 2);
    story.hear(answered(ticket, "yes", Finish::End));
    turn.expect("accepted")
}

pub(super) fn ticket(requests: &[Request]) -> u64 {
    match requests.last() {
        Some(Request::Ask { ticket, .. }) => *ticket,
        other => panic!("{other:?}"),
    }
}

/// The neutral request that was sent, if any: ticket, method, budget.
fn neutral(story: &mut Story) -> Option<(u64, String, Option<String>)> {
    story
        .requests()
        .into_iter()
        .find_map(|request| match request {
            Request::Neutral { ticket, ask } => Some((ticket, ask.method.name, ask.budget)),
            _ => None,
        })
}

fn arrives(story: &mut Story, ticket: u64) {
    let map = MapGrid::new(2, 1, vec![1, 2, 3]);
    story.hear_bytes(Reply::NeutralMap { ticket }, &map.to_bytes());
    story.hear(Reply::NeutralDone { ticket });
}

#[test]
fn it_is_computed_once_for_equal_methods_and_not_for_blind_ones() {
    let mut story = Story::ready();
    answer(&mut story, "keydiff", None);
    assert_eq!(neutral(&mut story), None);
    let turn = answer(&mut story, "snapkv", Some("25%"));
    let (ticket, method, budget) = neutral(&mut story).expect("sent");
    assert_eq!(
        (method.as_str(), budget.as_deref()),
        ("snapkv", Some("25%"))
    );
    assert!(!story.turn().has_lift && story.state.neutral_map(turn).is_err());
    arrives(&mut story, ticket);
    assert!(story.turn().has_lift);
    let saved = |effect: &Effect| matches!(effect, Effect::Save(Save::Neutral { turn: saved, .. }) if *saved == turn);
    assert!(story.look().iter().any(saved));
    // Another question with the same method shares it; another budget does not.
    answer(&mut story, "snapkv", Some("25%"));
    assert!(story.turn().has_lift);
    assert_eq!(neutral(&mut story), None);
    answer(&mut story, "snapkv", Some("10%"));
    assert!(!story.turn().has_lift);
    assert!(neutral(&mut story).is_some());
}

#[test]
fn other_instructions_have_a_map_of_their_own() {
    let mut story = Story::ready();
    story.state.choose_model_file("/other.gguf".into());
    story.hear(model("/other.gguf"));
    for (instructions, computed) in [("", true), ("", false), ("In German.", true)] {
        let settings = Settings {
            instructions: instructions.to_owned(),
            ..story.state.settings().clone()
        };
        story.state.save_settings(settings).expect("accepted");
        answer(&mut story, "snapkv", None);
        let sent = story.requests().into_iter().find_map(|sent| match sent {
            Request::Neutral { ticket, ask } => Some((ticket, ask.instructions)),
            _ => None,
        });
        let of = sent.as_ref().map(|(_, instructions)| instructions.as_str());
        assert_eq!(of, computed.then_some(instructions));
        if let Some((ticket, _)) = sent {
            arrives(&mut story, ticket);
        }
    }
}

#[test]
fn a_question_comes_first_and_it_is_computed_afterwards() {
    let mut story = Story::ready();
    let turn = answer(&mut story, "snapkv", None);
    let (first, ..) = neutral(&mut story).expect("sent");
    // The worker stops it for the question.
    let choice = Choice::plain("keydiff", None);
    let asked = story.state.ask("And?", choice, Relation::default());
    assert!(asked.is_ok());
    let question = ticket(&story.requests());
    story.hear(Reply::failed(
        Some(first),
        Failure::Neutral,
        "stopped",
        true,
    ));
    assert_eq!(neutral(&mut story), None, "the question runs");
    story.hear(answered(question, "yes", Finish::End));
    let (second, ..) = neutral(&mut story).expect("again");
    arrives(&mut story, second);
    let turns = story.state.snapshot().turns;
    let lifted: Vec<_> = turns.iter().filter(|turn| turn.has_lift).collect();
    assert_eq!((lifted.len(), lifted[0].id), (1, turn));
    assert_eq!(story.turn().state, TurnState::Done);
}

#[test]
fn a_failure_is_not_repeated_and_a_damaged_map_is_refused() {
    let mut story = Story::ready();
    answer(&mut story, "snapkv", None);
    let (ticket, ..) = neutral(&mut story).expect("sent");
    let now = story.now;
    let damaged = story
        .state
        .worker_reply(now, Reply::NeutralMap { ticket }, vec![1, 2]);
    assert!(damaged.is_err());
    story.hear(Reply::failed(
        Some(ticket),
        Failure::Neutral,
        "too little memory",
        false,
    ));
    assert_eq!(neutral(&mut story), None);
    assert!(!story.turn().has_lift && story.notices().is_empty());
}
