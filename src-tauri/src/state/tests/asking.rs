//! A question from start to end.

use kept_engine::Finish;
use kept_worker::protocol::Failure;

use super::*;
use crate::contract::{Phase, TurnState};
use crate::{map_views, messages};

#[test]
fn a_question_is_answered() {
    let mut story = Story::ready();
    let (turn, ticket) = story.ask("  What is the locker code?  ");
    assert_eq!(story.turn().state, TurnState::Asked);
    assert_eq!(story.turn().question, "What is the locker code?");

    story.read(ticket, 1);
    assert_eq!(story.turn().state, TurnState::Reading);
    assert!(story.turn().has_map);
    story.hear(token(ticket, "47"));
    story.wait(Duration::from_secs(1));
    story.hear(token(ticket, "11"));
    assert_eq!(story.turn().answer, "4711");
    assert_eq!(story.turn().state, TurnState::Answering);
    story.look();

    story.hear(answered(ticket, "4711", Finish::End));
    let done = story.turn();
    assert_eq!(done.state, TurnState::Done);
    assert_eq!(done.facts.as_ref().map(|facts| facts.rows), Some(2.5));
    assert_eq!((done.sources[0].start, done.sources[0].end), (3, 8));
    let effects = story.look();
    assert!(effects.iter().any(|effect| matches!(
        effect,
        Effect::Save(Save::Turn { turn, .. }) if turn.state == TurnState::Done
    )));
    assert!(
        effects.iter().any(
            |effect| matches!(effect, Effect::Save(Save::Map { turn: id, .. }) if *id == turn)
        )
    );
    assert!(matches!(story.state.map(turn), Ok(MapPlace::Here(_))));
}

#[test]
fn what_was_forgotten_during_the_answer_is_kept_with_its_map() {
    let mut story = Story::ready();
    let (turn, ticket) = story.ask("Why?");
    story.read(ticket, 2);
    let log = [4u32, 1, 0, 2, 1, 3, 1, 1].map(u32::to_le_bytes).concat();
    let too_far = [4u32, 1, 0, 3, 1].map(u32::to_le_bytes).concat();
    let mut hear = |bytes: &[u8]| {
        let reply = Reply::Evictions { ticket };
        (story.state).worker_reply(Instant::now(), reply, bytes.to_vec())
    };
    assert!(hear(&too_far).is_err(), "the document has three tokens");
    assert_eq!(hear(&log), Ok(()));
    story.hear(answered(ticket, "Because.", kept_engine::Finish::End));
    assert!(story.turn().has_replay);
    let Ok(MapPlace::Here(map)) = story.state.map(turn) else {
        panic!("a map in memory");
    };
    assert_eq!(lock(&map).evictions.to_bytes(), log);
}

#[test]
fn the_page_hears_every_piece_once_and_in_order() {
    let mut story = Story::ready();
    let (turn, ticket) = story.ask("Why?");
    story.read(ticket, 0);
    story.look();
    let pieces: Vec<String> = (0..200).map(|number| format!("{number} ")).collect();
    let mut page = String::new();
    let mut messages = 0;
    for (number, piece) in pieces.iter().enumerate() {
        story.hear(token(ticket, piece));
        story.wait(Duration::from_millis(2));
        if number == 100 {
            story.state.snapshot();
        }
        for event in story.events() {
            match event {
                AppEvent::Token {
                    turn: id,
                    text,
                    attended,
                } => {
                    assert_eq!((id, attended), (turn, vec![(1, 255)]));
                    page.push_str(&text);
                    messages += 1;
                }
                AppEvent::Turn { turn } => page = turn.answer,
                _ => {}
            }
        }
    }
    story.wait(Duration::from_secs(1));
    for event in story.events() {
        if let AppEvent::Token { text, .. } = event {
            page.push_str(&text);
        }
    }
    assert_eq!(page, pieces.concat());
    // 400 ms at sixty messages per second, and one for the snapshot.
    assert!(messages <= 26, "{messages} messages");
}

#[test]
fn progress_and_maps_are_thinned_and_the_last_is_not_lost() {
    let mut story = Story::ready();
    let (_, ticket) = story.ask("Why?");
    story.read(ticket, 0);
    story.look();
    let (mut progressed, mut mapped, mut last) = (0, 0, 0);
    for step in 0..=1000usize {
        story.hear(Reply::Progress {
            ticket,
            progress: kept_engine::Progress {
                phase: kept_engine::Phase::Reading,
                tokens_from_vault: 0,
                tokens_done: step,
                tokens_total: 1000,
                tokens_per_second: 1.0,
                seconds_left: 1.0,
            },
            memory: memory_now(),
        });
        let layer = step % 2;
        story.hear_bytes(Reply::Layer { ticket, layer }, &[1, 0, 0]);
        if step < 1000 {
            story.wait(Duration::from_millis(1));
        } else {
            story.wait(Duration::from_secs(1));
        }
        for event in story.events() {
            match event {
                AppEvent::Progress {
                    progress, memory, ..
                } => {
                    assert_eq!(progress.phase, Phase::Reading);
                    assert_eq!(memory.kept_full, 80);
                    last = progress.tokens_done;
                    progressed += 1;
                }
                AppEvent::Map { layers, .. } => {
                    assert_eq!(layers, 2);
                    mapped += 1;
                }
                _ => {}
            }
        }
    }
    assert_eq!(last, 1000);
    assert!((18..=24).contains(&progressed), "{progressed} in a second");
    assert!((8..=12).contains(&mapped), "{mapped} in a second");
}

#[test]
fn a_growing_answer_is_saved_about_once_a_second() {
    let mut story = Story::ready();
    let (_, ticket) = story.ask("Why?");
    let mut saved = Vec::new();
    for _ in 0..300 {
        story.hear(token(ticket, "x"));
        story.wait(Duration::from_millis(10));
        saved.extend(story.look().iter().filter_map(|effect| match effect {
            Effect::Save(Save::Turn { turn, .. }) => Some(turn.answer.len()),
            _ => None,
        }));
    }
    assert!((3..=4).contains(&saved.len()), "{saved:?}");
    assert!(*saved.last().expect("saved") >= 190, "{saved:?}");
    // The app closes within the second.
    story.state.save_running();
    let last = story.look().iter().any(
        |effect| matches!(effect, Effect::Save(Save::Turn { turn, .. }) if turn.answer.len() == 300),
    );
    assert!(last);
}

#[test]
fn what_cannot_be_asked_is_refused_with_a_sentence() {
    let mut story = Story::first_start();
    let ask = |story: &mut Story, question: &str, method: &str, budget: Option<&str>| {
        story
            .state
            .ask(question, Choice::plain(method, budget), Relation::default())
            .expect_err("refused")
    };
    assert_eq!(
        ask(&mut story, " \n", "snapkv", None),
        messages::EMPTY_QUESTION
    );
    story.hello();
    story.hear(failed(Failure::Model, "it is damaged"));
    assert_eq!(
        ask(&mut story, "Why?", "snapkv", None),
        "mini could not be opened: it is damaged."
    );
    let mut story = Story::ready();
    assert!(ask(&mut story, "Why?", "magic", None).contains("Unknown method 'magic'"));
    assert!(ask(&mut story, "Why?", "snapkv", Some("much")).contains("Budget 'much'"));
    story.hear(Reply::Tokens {
        tokens: 9999,
        estimated: true,
        context: 2048,
        streams: false,
        refusal: Some("sample.txt is too long for mini".into()),
    });
    assert_eq!(
        ask(&mut story, "Why?", "snapkv", None),
        "sample.txt is too long for mini."
    );
    assert!(story.state.snapshot().turns.is_empty());
    let mut story = Story::ready();
    story.state.close_document();
    assert_eq!(
        ask(&mut story, "Why?", "snapkv", None),
        messages::NO_DOCUMENT
    );
}

#[test]
fn stopping_ends_as_the_worker_says() {
    let mut story = Story::ready();
    let (_, ticket) = story.ask("Why?");
    story.read(ticket, 0);
    story.state.stop();
    assert_eq!(story.requests(), [Request::Stop { ticket }]);
    story.hear(Reply::failed(Some(ticket), Failure::Ask, "stopped", true));
    // As far as the document was read, it is in the vault.
    assert!(matches!(story.requests()[..], [Request::Vaults { .. }]));
    let turn = story.turn();
    assert_eq!((turn.state, turn.error), (TurnState::Stopped, None));
    assert!(!turn.has_map, "no layer ever came");

    let (_, ticket) = story.ask("Why?");
    story.read(ticket, 2);
    story.hear(token(ticket, "Beca"));
    story.state.stop();
    story.hear(answered(ticket, "Because", Finish::Stopped));
    let turn = story.turn();
    assert_eq!(turn.state, TurnState::Stopped);
    assert_eq!(turn.answer, "Because");
    assert!(turn.facts.is_some() && turn.has_map);
}

#[test]
fn a_failure_keeps_what_was_written() {
    let mut story = Story::ready();
    let (_, ticket) = story.ask("Why?");
    story.hear(token(ticket, "Beca"));
    story.hear(Reply::failed(
        Some(ticket),
        Failure::Ask,
        "raise the budget to 9 or set less",
        false,
    ));
    let turn = story.turn();
    assert_eq!(
        (turn.state, turn.answer.as_str()),
        (TurnState::Failed, "Beca")
    );
    assert_eq!(
        turn.error.as_deref(),
        Some("Raise the budget to 9 or set less.")
    );
}

#[test]
fn a_deleted_conversation_hears_nothing_of_what_still_ends() {
    let mut story = Story::ready();
    let (_, first) = story.ask("First?");
    story.delete();
    let requests = story.requests();
    let [Request::Stop { ticket }, Request::ClearVaultsOf { .. }] = requests.as_slice() else {
        panic!("{requests:?}")
    };
    assert_eq!(*ticket, first);
    let second = story.try_to_ask("Second?").expect("accepted");
    assert_eq!(story.requests(), [], "the worker takes one at a time");
    story.hear(token(first, "late"));
    story.hear(answered(first, "late", Finish::Stopped));
    let turn = story.turn();
    assert_eq!((turn.id, turn.answer.as_str()), (second, ""));
    let requests = story.requests();
    let [Request::Ask { ticket, ask }] = requests.as_slice() else {
        panic!("{requests:?}");
    };
    assert_eq!(ask.question, "Second?");
    story.hear(answered(*ticket, "yes", Finish::End));
    assert_eq!(story.turn().answer, "yes");
}

#[test]
fn a_held_question_can_be_stopped() {
    let mut story = Story::ready();
    let (_, first) = story.ask("First?");
    story.delete();
    story.try_to_ask("Second?").expect("accepted");
    story.look();
    story.state.stop();
    assert_eq!(story.turn().state, TurnState::Stopped);
    story.hear(answered(first, "", Finish::Stopped));
    assert_eq!(story.requests(), []);
}

#[test]
fn an_estimate_goes_to_who_asked() {
    let mut story = Story::ready();
    let mut first = story
        .state
        .estimate(Choice::plain("snapkv", None))
        .expect("accepted");
    let mut second = story
        .state
        .estimate(Choice::plain("full", None))
        .expect("accepted");
    let requests = story.requests();
    let [
        Request::Estimate { ticket: one, .. },
        Request::Estimate { ticket: two, .. },
    ] = requests.as_slice()
    else {
        panic!("{requests:?}");
    };
    story.hear(Reply::failed(Some(*two), Failure::Estimate, "no", false));
    assert!(first.try_recv().is_err(), "not yet");
    assert_eq!(second.try_recv(), Ok(Err("no.".to_owned().into())));
    story.state.worker_died("The engine crashed (signal 11).");
    assert!(matches!(first.try_recv(), Ok(Err(refusal)) if refusal.message.contains("signal 11")));
    assert_ne!(one, two);
}

#[test]
fn senseless_replies_are_errors() {
    let mut story = Story::ready();
    let (_, ticket) = story.ask("Why?");
    let prompt = prompt(ticket);
    let now = story.now;
    assert!(story.state.worker_reply(now, prompt, vec![0; 11]).is_err());
    let document = document("a.txt");
    assert!(story.state.worker_reply(now, document, vec![0xff]).is_err());
}

/// Two earlier turns of two tokens each, one of three older ones: their layers come behind the document's.
#[test]
fn the_map_of_the_earlier_turns_arrives_with_that_of_the_document() {
    let mut story = Story::ready();
    let (turn, ticket) = story.ask("Why?");
    let said = |question: &str| kept_engine::Turn {
        question: question.to_owned(),
        answer: "So.".to_owned(),
    };
    let prompt = Reply::Prompt {
        ticket,
        document_tokens: 3,
        tokens_per_cell: 1,
        turns: vec![said("A?"), said("B?")],
        turns_left_out: 1,
        turns_cells: 4,
        turns_tokens_per_cell: 1,
        layers: 2,
        windows: Vec::new(),
        kv_heads: 1,
    };
    let ends = [1u32, 2, 3, 2, 7, 11, 16];
    let ends: Vec<u8> = ends.iter().flat_map(|end| end.to_le_bytes()).collect();
    story.hear_bytes(prompt, &ends);
    for layer in 0..2 {
        story.hear_bytes(Reply::Layer { ticket, layer }, &[1, 0, 1, 0, 0, 1, 1]);
    }
    // Too short or too long: the map stays as it is.
    for bytes in [&[0; 3][..], &[0; 6], &[0; 8]] {
        story.hear_bytes(Reply::Layer { ticket, layer: 1 }, bytes);
    }
    let Ok(MapPlace::Here(map)) = story.state.map(turn) else {
        panic!("a map in memory");
    };
    let map = lock(&map).clone();
    let earlier = map.earlier.expect("earlier turns");
    assert_eq!(earlier.texts.left_out, 1);
    assert_eq!(earlier.grid.ends16(), [2, 7, 11, 16]);
    assert_eq!(earlier.grid.layer(1), Some(&[0, 0, 1, 1][..]));
    assert_eq!(map.document.layer(1), Some(&[1, 0, 1][..]));
    let shares: Vec<f32> = map_views::earlier(&earlier, None)
        .turns
        .iter()
        .map(|turn| turn.kept)
        .collect();
    assert_eq!(shares, [0.0, 1.0]);
}
