//! The models page and the app state: RoPE scaling, inspection, a removed model; the thinking mode; and sliding-window
//! layers.

use kept_worker::protocol::{Failure, Inspection};

use super::*;
use crate::messages;

fn stretched(choice: &str, stretch: &str) -> Reply {
    let Reply::Model { mut model } = model(choice) else {
        panic!("a model")
    };
    model.stretch = Some(stretch.to_owned());
    Reply::Model { model }
}

fn choose(story: &mut Story, path: &str, stretch: Option<&str>) -> Result<(), String> {
    let stretch = stretch.map(str::to_owned);
    let label = path.trim_start_matches('/').to_owned();
    story.state.choose_model(path.into(), label, stretch)
}

fn opened(story: &mut Story) -> Vec<(String, Option<String>)> {
    let opened = |request: Request| match request {
        Request::OpenModel { model, stretch } => Some((model, stretch)),
        _ => None,
    };
    story.requests().into_iter().filter_map(opened).collect()
}

#[test]
fn rope_scaling_is_sent_shown_and_stored() {
    let mut story = Story::ready();
    choose(&mut story, "/a.gguf", Some("yarn:4")).expect("accepted");
    let wanted = ("/a.gguf".to_owned(), Some("yarn:4".to_owned()));
    assert_eq!(opened(&mut story), [wanted]);
    story.hear(stretched("/a.gguf", "yarn:4"));
    let kept = story.look().iter().any(|effect| {
        matches!(effect, Effect::Save(Save::Model(m)) if m.choice.stretch.as_deref() == Some("yarn:4"))
    });
    assert!(kept);
    story.ask("Why?");
    assert_eq!(story.turn().model, "a.gguf (yarn:4)");
}

#[test]
fn a_model_that_cannot_be_stretched_goes_back_to_what_it_was() {
    let mut story = Story::ready();
    choose(&mut story, "/a.gguf", None).expect("accepted");
    story.hear(model("/a.gguf"));
    choose(&mut story, "/a.gguf", Some("yarn:4")).expect("accepted");
    story.look();
    story.hear(failed(Failure::Model, "/a.gguf: it is stretched already"));
    assert_eq!(opened(&mut story), [("/a.gguf".to_owned(), None)]);
    let snapshot = story.state.snapshot();
    assert_eq!(snapshot.models[1].stretch, None);
    assert_eq!(snapshot.settings.model, snapshot.models[1].id);
    story.hear(model("/a.gguf"));
    assert!(story.state.snapshot().model.is_some());
    // After a failure the previous model is opened, and the failed one is unchanged.
    story.state.choose_model_file("mini".into());
    story.hear(model("mini"));
    choose(&mut story, "/a.gguf", Some("linear:2")).expect("accepted");
    story.look();
    story.hear(failed(Failure::Model, "/a.gguf: no"));
    assert_eq!(opened(&mut story), [("mini".to_owned(), None)]);
    assert_eq!(story.state.snapshot().models[1].stretch, None);
}

#[test]
fn what_cannot_be_is_refused_before_anything_happens() {
    let mut story = Story::ready();
    let refused = choose(&mut story, "/a.gguf", Some("twice")).expect_err("refused");
    assert!(refused.contains("yarn:4"), "{refused}");
    let refused = story.state.inspect("/a.gguf".into(), Some("yarn:0".into()));
    assert!(refused.expect_err("refused").contains("above 1"));
    story.ask("Why?");
    assert_eq!(
        choose(&mut story, "/a.gguf", None),
        Err(messages::BUSY_MODEL.to_owned())
    );
    assert_eq!(story.state.snapshot().models.len(), 1);
}

fn inspection() -> Inspection {
    Inspection {
        layers: 2,
        sliding_layers: 1,
        recurrent_layers: 0,
        window: Some(512),
        context: 4096,
        weights_bytes: 10,
        kv_bytes_per_thousand: 5,
        window_bytes: 3,
        can_think: true,
        free_bytes: None,
        missing_bytes: 0,
        lines: Vec::new(),
    }
}

#[test]
fn inspections_are_answered_refused_and_lost_with_the_engine() {
    let mut story = Story::ready();
    let ticket_of = |story: &mut Story| match story.requests().as_slice() {
        [Request::InspectModel { ticket, .. }] => *ticket,
        other => panic!("{other:?}"),
    };
    let inspect = |story: &mut Story| {
        let answer = story.state.inspect("/a b.gguf".into(), None);
        (answer.expect("accepted"), ticket_of(story))
    };
    let (mut answer, ticket) = inspect(&mut story);
    story.hear(Reply::Inspected {
        ticket,
        inspection: Box::new(inspection()),
    });
    let found = answer.try_recv().expect("answered").expect("a success");
    assert_eq!((found.context, found.window), (4096, Some(512)));
    assert_eq!((found.free_bytes, found.missing_bytes), (None, 0));

    let (mut answer, ticket) = inspect(&mut story);
    story.hear(Reply::failed(
        Some(ticket),
        Failure::Inspect,
        "the file is cut off",
        false,
    ));
    assert_eq!(
        answer.try_recv().expect("answered"),
        Err("a b.gguf could not be opened: the file is cut off.".to_owned())
    );

    let (mut answer, _) = inspect(&mut story);
    story.state.worker_died("The engine crashed (signal 11).");
    assert!(matches!(answer.try_recv(), Ok(Err(why)) if why.contains("signal 11")));
    assert_eq!(
        story.state.inspect("/a.gguf".into(), None).err(),
        Some(messages::ENGINE_NOT_YET.to_owned())
    );
}

#[test]
fn a_model_that_is_gone_can_no_longer_be_chosen_but_the_one_in_use_stays() {
    let mut story = Story::ready();
    choose(&mut story, "/a.gguf", None).expect("accepted");
    story.hear(model("/a.gguf"));
    story.state.forget_model("/a.gguf".as_ref());
    assert_eq!(story.state.snapshot().models.len(), 2, "it is in use");
    story.state.choose_model_file("mini".into());
    story.hear(model("mini"));
    story.look();
    story.state.forget_model("/a.gguf".as_ref());
    assert_eq!(story.state.snapshot().models.len(), 1);
    let forgotten = story
        .look()
        .iter()
        .any(|effect| matches!(effect, Effect::Save(Save::NoModel(id)) if id == "m1"));
    assert!(forgotten);
}

#[test]
fn thinking_goes_with_the_question_where_the_model_can_and_ends_with_the_conversation() {
    let mut story = Story::ready();
    story.state.set_thinking(true);
    assert!(matches!(
        story.look(),
        [
            Effect::Save(Save::Thinking(true)),
            Effect::Page(AppEvent::Thinking { thinking: true })
        ]
    ));
    let (_, ticket) = story.ask("Why?");
    assert!(!story.turn().thinking, "this model cannot");
    story.hear(answered(ticket, "so", kept_engine::Finish::End));
    story.state.choose_model_file("/thinker.gguf".into());
    let Reply::Model { model: mut facts } = model("/thinker.gguf") else {
        panic!("a model")
    };
    facts.can_think = true;
    story.hear(Reply::Model { model: facts });
    story.look();
    story.try_to_ask("Why?").expect("accepted");
    let requests = story.requests();
    assert!(matches!(&requests[0], Request::Ask { ask, .. } if ask.thinking));
    assert!(story.turn().thinking);
    story.delete();
    assert!(!story.state.snapshot().thinking);
}

#[test]
fn layers_that_are_not_cut_are_told_with_the_turn() {
    let mut story = Story::ready();
    let prompt = |ticket, windows| Reply::Prompt {
        ticket,
        document_tokens: 3,
        tokens_per_cell: 1,
        turns: Vec::new(),
        turns_left_out: 0,
        turns_cells: 0,
        turns_tokens_per_cell: 1,
        layers: 1,
        windows,
        kv_heads: 1,
    };
    let ends: Vec<u8> = [1u32, 2, 3].iter().flat_map(|e| e.to_le_bytes()).collect();
    let (turn, ticket) = story.ask("Why?");
    story.hear_bytes(prompt(ticket, vec![Some(8), None]), &ends);
    assert_eq!(story.turn().windows, [Some(8), None]);
    assert_eq!(story.state.windows_of(turn), [Some(8), None]);
    story.hear(answered(ticket, "so", kept_engine::Finish::End));
    let (turn, ticket) = story.ask("And?");
    story.hear_bytes(prompt(ticket, vec![None]), &ends);
    assert!(
        story.state.windows_of(turn).is_empty(),
        "every layer is cut"
    );
}
