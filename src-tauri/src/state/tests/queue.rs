//! Questions that wait, versions of a question, and branches of a conversation.

use kept_engine::Finish;
use kept_worker::protocol::{AskRequest, Failure};

use super::*;
use crate::contract::{Relation, TurnState};
use crate::messages;

/// The ticket of the last request and the turns that it passes on, as (question, answer).
fn sent(story: &mut Story) -> (u64, Vec<(String, String)>) {
    match story.requests().as_slice() {
        [Request::Ask { ticket, ask }] => {
            let turns = ask.turns.iter();
            let turns = turns.map(|turn| (turn.question.clone(), turn.answer.clone()));
            (*ticket, turns.collect())
        }
        other => panic!("{other:?}"),
    }
}

/// Asks `question`; returns its turn.
fn ask(story: &mut Story, question: &str, relation: Relation) -> u64 {
    let choice = Choice::plain("snapkv", None);
    let turn = story.state.ask(question, choice, relation);
    turn.expect("accepted")
}

/// Asks and answers `question`; returns the turns that the model saw.
fn converse_as(
    story: &mut Story,
    question: &str,
    answer: &str,
    relation: Relation,
) -> Vec<(String, String)> {
    story.look();
    ask(story, question, relation);
    let (ticket, seen) = sent(story);
    story.hear(answered(ticket, answer, Finish::End));
    seen
}

fn converse(story: &mut Story, question: &str, answer: &str) -> Vec<(String, String)> {
    converse_as(story, question, answer, Relation::default())
}

fn pairs(turns: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(question, answer): &(&str, &str)| ((*question).to_owned(), (*answer).to_owned());
    turns.iter().map(owned).collect()
}

/// A story with a model that sees earlier turns.
fn conversing() -> Story {
    let mut story = Story::ready();
    story.state.choose_model_file("/other.gguf".into());
    story.hear(model("/other.gguf"));
    story.look();
    story
}

fn again(turn: u64) -> Relation {
    Relation {
        again: Some(turn),
        ..Relation::default()
    }
}

fn edits(turn: u64) -> Relation {
    Relation {
        edits: Some(turn),
        ..Relation::default()
    }
}

fn states(story: &mut Story) -> Vec<(String, TurnState)> {
    let turns = story.state.snapshot().turns.into_iter();
    turns.map(|turn| (turn.question, turn.state)).collect()
}

#[test]
fn a_question_sees_the_earlier_turns_without_thoughts() {
    let mut story = conversing();
    assert_eq!(converse(&mut story, "One?", "<think>hm</think> A"), []);
    assert_eq!(converse(&mut story, "Two?", "B"), pairs(&[("One?", "A")]));
    let both = pairs(&[("One?", "A"), ("Two?", "B")]);
    assert_eq!(converse(&mut story, "Three?", ""), both);
    // An empty answer is no turn, and a question may be typed twice.
    assert_eq!(converse(&mut story, "One?", "D"), both);
    story.look();
    let alone = Relation {
        alone: true,
        ..Relation::default()
    };
    ask(&mut story, "Five?", alone);
    assert_eq!(sent(&mut story).1, []);
}

#[test]
fn a_version_sees_what_its_question_saw_and_later_questions_see_the_newest() {
    let mut story = conversing();
    converse(&mut story, "One?", "A");
    converse(&mut story, "Two?", "B");
    let turns = story.state.snapshot().turns;
    let (one, two) = (turns[0].id, turns[1].id);
    assert_eq!(converse_as(&mut story, "One?", "C", again(one)), []);
    assert_eq!(story.turn().version_of, Some(one));
    // A version of a version has the same first version.
    let third = story.turn().id;
    assert_eq!(converse_as(&mut story, "One?", "D", again(third)), []);
    assert_eq!(story.turn().version_of, Some(one));
    let seen = converse_as(&mut story, "Two?", "E", again(two));
    assert_eq!(seen, pairs(&[("One?", "D")]));
    let both = pairs(&[("One?", "D"), ("Two?", "E")]);
    assert_eq!(converse(&mut story, "Three?", "F"), both);
    assert_eq!(story.state.snapshot().conversations[0].questions, 3);
    let unknown = story
        .state
        .ask("One?", Choice::plain("snapkv", None), again(99));
    assert_eq!(unknown, Err(messages::NO_TURN.to_owned()));
}

/// Ends the question `ticket` before its first word.
fn fails(story: &mut Story, ticket: u64, stopped: bool) {
    story.hear(Reply::failed(
        Some(ticket),
        Failure::Ask,
        "no memory",
        stopped,
    ));
}

#[test]
fn an_attempt_without_a_word_is_replaced_by_the_next() {
    let mut story = conversing();
    let one = ask(&mut story, "One?", Relation::default());
    let (ticket, _) = sent(&mut story);
    story.read(ticket, 1);
    fails(&mut story, ticket, true);
    assert_eq!(
        (story.turn().state, story.turn().has_map),
        (TurnState::Stopped, true)
    );
    converse(&mut story, "Two?", "B");
    story.look();
    // In its place, before the second question; what was stored of it is removed.
    let choice = Choice::plain("h2o", None);
    let asked = story.state.ask("One?", choice, again(one));
    assert_eq!(asked, Ok(one));
    let removed =
        |effect: &Effect| matches!(effect, Effect::Save(Save::RemoveTurn(id)) if *id == one);
    assert!(story.look().iter().any(removed));
    let turns = story.state.snapshot().turns;
    assert_eq!(turns.len(), 2);
    assert_eq!(
        (turns[0].id, turns[0].method.as_str(), turns[0].version_of),
        (one, "h2o", None)
    );
    assert_eq!(
        (turns[0].has_map, turns[0].state),
        (false, TurnState::Asked)
    );
    assert_eq!(story.state.snapshot().conversations[0].questions, 2);
}

#[test]
fn an_attempt_with_an_answer_stays_beside_one_that_is_replaced() {
    let mut story = conversing();
    converse(&mut story, "One?", "A");
    let one = story.turn().id;
    let mut ids = vec![one];
    for stopped in [false, true] {
        story.look();
        ids.push(ask(&mut story, "One?", again(one)));
        let (ticket, _) = sent(&mut story);
        fails(&mut story, ticket, stopped);
    }
    assert_eq!(ids[1], ids[2]);
    assert_ne!(ids[0], ids[1]);
    converse_as(&mut story, "One?", "C", again(ids[1]));
    let turns = story.state.snapshot().turns;
    let answers = turns.iter().map(|t| (t.answer.as_str(), t.version_of));
    assert_eq!(answers.collect::<Vec<_>>(), [("A", None), ("C", Some(one))]);
}

/// Asks and answers a question; returns the temperature and the seed that it was asked with.
fn sampling_of(story: &mut Story, relation: Relation) -> (f64, u64) {
    ask(story, "Why?", relation);
    match story.requests().as_slice() {
        [Request::Ask { ticket, ask }] => {
            story.hear(answered(*ticket, "yes", Finish::End));
            story.look();
            (ask.temperature, ask.seed)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_attempt_has_the_temperature_set_and_a_seed_of_its_own() {
    let mut story = Story::ready();
    let (cold, first) = sampling_of(&mut story, Relation::default());
    let warm = Settings {
        temperature: 0.7,
        ..story.state.settings().clone()
    };
    story.state.save_settings(warm).expect("accepted");
    story.look();
    let one = story.turn().id;
    let (then, second) = sampling_of(&mut story, again(one));
    assert_eq!((cold, then), (0.0, 0.7));
    // Tickets begin at 1 at every start; seeds go on.
    let mut later = Story::after(Remembered {
        last_turn: story.turn().id,
        ..Remembered::default()
    });
    later.hello();
    later.hear(model("mini"));
    later.look();
    let (_, third) = sampling_of(&mut later, Relation::default());
    assert!(first < second && second < third, "{first} {second} {third}");
}

/// Sets the instructions, asks a question and answers it; returns its request.
fn instructed(story: &mut Story, instructions: &str) -> AskRequest {
    let settings = Settings {
        instructions: instructions.to_owned(),
        ..story.state.settings().clone()
    };
    story.state.save_settings(settings).expect("accepted");
    story.look();
    ask(story, "Why?", Relation::default());
    match story.requests().as_slice() {
        [Request::Ask { ticket, ask }] => {
            story.read(*ticket, 2);
            story.hear(answered(*ticket, "yes", Finish::End));
            for request in story.requests() {
                if let Request::Neutral { ticket, .. } = request {
                    story.hear(Reply::NeutralDone { ticket });
                }
            }
            ask.clone()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn instructions_go_with_the_question_and_stay_with_its_maps() {
    let mut story = conversing();
    assert_eq!(instructed(&mut story, " \n").instructions, "");
    let asked = instructed(&mut story, " Be brief.\n");
    assert_eq!(asked.instructions, "Be brief.");
    assert_eq!(asked.question, "Why?");
    assert_eq!(asked.turns[0].question, "Why?", "earlier turns have none");
    let turn = story.turn();
    assert_eq!((turn.question.as_str(), turn.id), ("Why?", 2));
    assert_eq!(turn.instructions, "Be brief.");
    // What is computed for this answer later is computed as it was asked.
    instructed(&mut story, "In German.");
    story.state.show_less_memory(turn.id).expect("a map");
    let requests = story.requests();
    assert!(
        matches!(requests.as_slice(), [Request::Levels { ask, .. }] if ask.instructions == "Be brief."),
        "{requests:?}"
    );
}

#[test]
fn the_built_in_model_gets_no_instructions() {
    let mut story = Story::ready();
    assert_eq!(instructed(&mut story, "Be brief.").instructions, "");
    assert_eq!(story.turn().instructions, "");
}

#[test]
fn the_built_in_model_sees_single_questions() {
    let mut story = Story::ready();
    assert_eq!(converse(&mut story, "One?", "A"), []);
    assert_eq!(converse(&mut story, "Two?", "B"), []);
}

#[test]
fn questions_wait_for_the_one_that_runs_and_see_its_answer() {
    let mut story = conversing();
    let (_, ticket) = story.ask("One?");
    ask(&mut story, "Two?", Relation::default());
    ask(&mut story, "Three?", Relation::default());
    assert_eq!(story.requests(), []);
    assert!(story.state.is_running());
    story.hear(answered(ticket, "A", Finish::End));
    let (ticket, seen) = sent(&mut story);
    assert_eq!(seen, pairs(&[("One?", "A")]));
    let now = [
        ("One?".to_owned(), TurnState::Done),
        ("Two?".to_owned(), TurnState::Asked),
        ("Three?".to_owned(), TurnState::Waiting),
    ];
    assert_eq!(states(&mut story), now);
    // A stop ends one question; the next one begins.
    story.state.stop();
    assert_eq!(story.requests(), [Request::Stop { ticket }]);
    story.hear(answered(ticket, "B", Finish::Stopped));
    let (ticket, seen) = sent(&mut story);
    assert_eq!(seen, pairs(&[("One?", "A"), ("Two?", "B")]));
    story.hear(answered(ticket, "C", Finish::End));
    assert!(!story.state.is_busy());
}

#[test]
fn questions_wait_for_the_engine_and_its_model() {
    let mut story = Story::first_start();
    ask(&mut story, "One?", Relation::default());
    story.hello();
    assert_eq!(story.turn().state, TurnState::Waiting);
    story.look();
    story.hear(model("mini"));
    assert_eq!(sent(&mut story).1, []);
    let mut story = Story::first_start();
    ask(&mut story, "One?", Relation::default());
    story.hello();
    story.hear(failed(Failure::Model, "it is damaged"));
    let turn = story.turn();
    assert_eq!(turn.state, TurnState::Failed);
    let why = "mini could not be opened: it is damaged.";
    assert_eq!(turn.error.as_deref(), Some(why));
    // Nor is there an answer without an engine.
    let mut story = Story::first_start();
    ask(&mut story, "One?", Relation::default());
    story.state.worker_gone("There is no engine.");
    assert_eq!(story.turn().state, TurnState::Failed);
}

#[test]
fn a_waiting_question_can_be_removed_and_stopped() {
    let mut story = conversing();
    let (one, ticket) = story.ask("One?");
    let two = ask(&mut story, "Two?", Relation::default());
    let three = ask(&mut story, "Three?", Relation::default());
    story.look();
    story.state.remove_waiting(two).expect("it waits");
    let effects = story.look();
    assert!(effects.iter().any(|effect| matches!(
        effect,
        Effect::Page(AppEvent::TurnRemoved { turn }) if *turn == two
    )));
    let removed =
        |effect: &Effect| matches!(effect, Effect::Save(Save::RemoveTurn(turn)) if *turn == two);
    assert!(effects.iter().any(removed));
    assert_eq!(story.state.snapshot().conversations[0].questions, 2);
    for turn in [one, two, 99] {
        let refused = story.state.remove_waiting(turn);
        assert_eq!(refused, Err(messages::NOT_WAITING.to_owned()));
    }
    story.hear(answered(ticket, "A", Finish::End));
    assert_eq!(story.turn().state, TurnState::Asked);
    assert!(story.state.remove_waiting(three).is_err());
    // A conversation whose only question is removed leaves the list.
    let mut story = Story::first_start();
    let only = ask(&mut story, "One?", Relation::default());
    story.state.remove_waiting(only).expect("it waits");
    let snapshot = story.state.snapshot();
    assert!(snapshot.turns.is_empty() && snapshot.conversations.is_empty());
    assert_eq!(snapshot.conversation, None);
}

#[test]
fn what_waits_is_stopped_with_its_conversation() {
    let mut story = conversing();
    story.ask("One?");
    ask(&mut story, "Two?", Relation::default());
    story.look();
    story.delete();
    let stopped = story.look().iter().filter_map(|effect| match effect {
        Effect::Save(Save::Turn { turn, .. }) => Some((turn.question.clone(), turn.state)),
        _ => None,
    });
    let both = [
        ("One?".to_owned(), TurnState::Stopped),
        ("Two?".to_owned(), TurnState::Stopped),
    ];
    assert_eq!(stopped.collect::<Vec<_>>(), both);
    assert!(!story.state.is_running());
}

#[test]
fn an_edited_question_begins_a_branch() {
    let mut story = conversing();
    converse(&mut story, "One?", "A");
    converse(&mut story, "Two?", "B");
    converse(&mut story, "Three?", "C");
    let turns = story.state.snapshot().turns;
    let seen = converse_as(&mut story, "Two, please?", "D", edits(turns[1].id));
    assert_eq!(seen, pairs(&[("One?", "A")]));
    let snapshot = story.state.snapshot();
    let listed = snapshot.conversations.iter();
    let listed: Vec<_> = listed.map(|c| (c.title.as_str(), c.questions)).collect();
    assert_eq!(listed, [("Two, please?", 2), ("One?", 3)]);
    assert!(snapshot.turns.iter().all(|turn| turn.id > turns[2].id));
    // The first question: nothing is copied.
    let first = snapshot.turns[0].id;
    assert_eq!(converse_as(&mut story, "Uno?", "E", edits(first)), []);
    assert_eq!(story.state.snapshot().turns.len(), 1);
    // Not while something runs.
    let (turn, _) = story.ask("Due?");
    let refused = story
        .state
        .ask("Tre?", Choice::plain("snapkv", None), edits(turn));
    assert_eq!(refused, Err(messages::BUSY.to_owned()));
}

#[test]
fn a_branch_has_the_turns_up_to_the_chosen_version() {
    let mut story = conversing();
    converse(&mut story, "One?", "A");
    let one = story.turn().id;
    converse_as(&mut story, "One?", "B", again(one));
    converse(&mut story, "Two?", "C");
    let two = story.turn().id;
    converse_as(&mut story, "Two?", "D", again(two));
    let two = story.turn().id;
    converse(&mut story, "Three?", "E");
    story.look();
    story.state.branch_conversation(two).expect("a branch");
    let snapshot = story.state.snapshot();
    let turns = snapshot.turns.iter();
    let answers: Vec<_> = turns.map(|t| (t.answer.as_str(), t.version_of)).collect();
    let first = snapshot.turns[0].id;
    assert_eq!(answers, [("A", None), ("B", Some(first)), ("D", None)]);
    assert_eq!(snapshot.conversations[0].title, "Branch of One?");
    assert_eq!(snapshot.conversations[0].questions, 2);
    let seen = converse(&mut story, "Four?", "F");
    assert_eq!(seen, pairs(&[("One?", "B"), ("Two?", "D")]));
    let unknown = story.state.branch_conversation(one);
    assert_eq!(unknown, Err(messages::NO_TURN.to_owned()), "of another one");
}

#[test]
fn a_conversation_needs_no_document() {
    let mut story = conversing();
    story.state.chat();
    let titles = story.look().iter().filter_map(|effect| match effect {
        Effect::Title(title) => Some(title.clone()),
        _ => None,
    });
    assert_eq!(titles.collect::<Vec<_>>(), ["Kept"]);
    assert_eq!(story.document().expect("an empty one").length, 0);
    assert_eq!(converse(&mut story, "One?", "A"), []);
    assert_eq!(converse(&mut story, "Two?", "B"), pairs(&[("One?", "A")]));
    let listed = &story.state.snapshot().conversations[0];
    assert_eq!((listed.document.as_str(), listed.questions), ("", 2));
}

#[test]
fn a_pasted_text_is_a_document() {
    let mut story = conversing();
    let text = format!("\n  The lease \n{}", "Words. ".repeat(400));
    story.state.open_text(text).expect("opened");
    let document = story.document().expect("a document");
    assert_eq!(
        (document.name.as_str(), document.sample),
        ("The lease", false)
    );
    assert!(matches!(
        story.requests().last(),
        Some(Request::AdoptDocument { .. })
    ));
    let empty = story.state.open_text(" \n".to_owned());
    assert_eq!(empty, Err(messages::EMPTY_TEXT.to_owned()));
}
