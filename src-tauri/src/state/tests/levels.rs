//! What an answer would keep with less memory: computed on request, interrupted by a question.

use kept_engine::Finish;
use kept_worker::protocol::Failure;

use super::neutral::{answer, ticket};
use super::*;
use crate::contract::Relation;

/// The request for levels that was sent, if any: ticket and question.
fn levels(story: &mut Story) -> Option<(u64, String)> {
    let requests = story.requests();
    requests.into_iter().find_map(|request| match request {
        Request::Levels { ticket, ask } => Some((ticket, ask.question)),
        _ => None,
    })
}

#[test]
fn levels_arrive_one_by_one_and_are_computed_once() {
    let mut story = Story::ready();
    let turn = answer(&mut story, "keydiff", Some("25%"));
    assert_eq!(levels(&mut story), None, "only on request");
    story.state.show_less_memory(turn).expect("a map");
    let (ticket, question) = levels(&mut story).expect("sent");
    assert_eq!(question, "Why?");
    story.hear_bytes(
        Reply::Level {
            ticket,
            percent: 10,
        },
        &[0, 1, 255],
    );
    assert_eq!((story.turn().levels, story.turn().levels_done), (1, false));
    story.hear_bytes(
        Reply::Level {
            ticket,
            percent: 50,
        },
        &[9, 9, 255],
    );
    story.hear(Reply::LevelsDone { ticket });
    assert_eq!((story.turn().levels, story.turn().levels_done), (2, true));
    let bytes = story.state.levels_of(turn);
    assert_eq!(bytes, [2, 10, 50, 0, 1, 255, 9, 9, 255]);
    story.state.show_less_memory(turn).expect("known");
    assert_eq!(levels(&mut story), None);
    assert_eq!(story.state.levels_of(turn + 1), [0]);
}

/// The method of the next request for levels.
fn method_of_levels(story: &mut Story) -> String {
    let mut requests = story.requests().into_iter();
    let found = requests.find_map(|request| match request {
        Request::Levels { ask, .. } => Some(ask.method.name),
        _ => None,
    });
    found.expect("asked")
}

#[test]
fn an_answer_that_kept_everything_has_the_levels_of_snapkv() {
    for (method, of_levels) in [("full", "snapkv"), ("keydiff", "keydiff")] {
        let mut story = Story::ready();
        let turn = answer(&mut story, method, None);
        story.state.show_less_memory(turn).expect("a map");
        assert_eq!(method_of_levels(&mut story), of_levels);
    }
}

#[test]
fn a_question_comes_first_and_levels_begin_anew() {
    let mut story = Story::ready();
    let turn = answer(&mut story, "keydiff", None);
    story.state.show_less_memory(turn).expect("a map");
    let (first, _) = levels(&mut story).expect("sent");
    story.hear_bytes(
        Reply::Level {
            ticket: first,
            percent: 2,
        },
        &[1, 1, 1],
    );
    let choice = Choice::plain("keydiff", None);
    story
        .state
        .ask("And?", choice, Relation::default())
        .expect("accepted");
    let question = ticket(&story.requests());
    story.hear(Reply::failed(Some(first), Failure::Levels, "stopped", true));
    assert_eq!(levels(&mut story), None, "the question runs");
    story.hear(answered(question, "yes", Finish::End));
    let (second, _) = levels(&mut story).expect("again");
    story.hear_bytes(
        Reply::Level {
            ticket: second,
            percent: 2,
        },
        &[1, 1, 1],
    );
    assert_eq!(story.state.levels_of(turn), [1, 2, 1, 1, 1]);
}

#[test]
fn levels_that_wait_end_where_another_model_is_opened() {
    let mut story = Story::ready();
    let turn = answer(&mut story, "keydiff", None);
    story.state.show_less_memory(turn).expect("a map");
    let (ticket, _) = levels(&mut story).expect("sent");
    story.state.choose_model_file("/other.gguf".into());
    story.hear(Reply::failed(
        Some(ticket),
        Failure::Levels,
        "stopped",
        true,
    ));
    story.hear(model("/other.gguf"));
    assert_eq!(levels(&mut story), None);
    let turns = story.state.snapshot().turns;
    assert!(turns.iter().any(|t| t.id == turn && t.levels_done));
}

#[test]
fn without_a_map_or_a_vault_the_refusal_says_why() {
    let mut story = Story::ready();
    assert!(story.state.show_less_memory(77).is_err());
    let turn = answer(&mut story, "keydiff", None);
    story.state.settings.keep = "off".to_owned();
    let refused = story.state.show_less_memory(turn).expect_err("refused");
    assert!(refused.contains("Settings"), "{refused}");
}
