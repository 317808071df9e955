//! The memory limit: parsed as in the terminal program, sent to the engine with every question, and described in the
//! app's words.

use kept_engine::{EngineError, Note, WithinMemory};
use kept_worker::protocol::{Estimate, Failure};

use super::*;
use crate::contract::RefusalCode;

/// The memory limits that the engine receives: with an estimate, with a question.
fn told(story: &mut Story) -> Vec<Option<u64>> {
    story.look();
    let choice = || Choice::plain("snapkv", None);
    story.state.estimate(choice()).expect("accepted");
    story
        .state
        .ask("Why?", choice(), Relation::default())
        .expect("accepted");
    (story.requests().into_iter())
        .filter_map(|request| match request {
            Request::Estimate { of, .. } => Some(of.memory),
            Request::Ask { ask, .. } => Some(ask.memory),
            _ => None,
        })
        .collect()
}

fn limited(story: &mut Story, typed: Option<&str>) -> Result<Settings, Refusal> {
    let mut settings = story.state.settings().clone();
    settings.memory = typed.map(str::to_owned);
    story.state.save_settings(settings)
}

#[test]
fn the_memory_limit_is_read_as_in_the_terminal_and_goes_with_every_question() {
    assert_eq!(told(&mut Story::ready()), [None, None]);
    let mut story = Story::ready();
    for (typed, bytes) in [
        ("6 GiB", 6 << 30),
        ("900MiB", 900 << 20),
        ("1.5 gb", 1_500_000_000),
    ] {
        story = Story::ready();
        let saved = limited(&mut story, Some(typed)).expect("an amount");
        assert_eq!(saved.memory.as_deref(), Some(typed), "as it was typed");
        assert_eq!(told(&mut story), [Some(bytes), Some(bytes)], "{typed}");
    }
    assert_eq!(story.turn().memory.as_deref(), Some("1.5 gb"));
    for typed in ["lots", "6", "25%", "0 GiB", "-1 GiB", ""] {
        let refused = limited(&mut story, Some(typed))
            .expect_err("no amount")
            .message;
        assert!(
            refused.starts_with(&format!("“{typed}” is not an amount of memory"))
                && refused.contains("6 GiB"),
            "{refused}"
        );
        assert_eq!(story.state.settings().memory.as_deref(), Some("1.5 gb"));
    }
}

#[test]
fn an_estimate_is_of_the_longest_answer_that_is_set() {
    let mut story = Story::ready();
    let mut settings = story.state.settings().clone();
    settings.max_tokens = 777;
    story.state.save_settings(settings).expect("taken");
    story.look();
    story
        .state
        .estimate(Choice::plain("snapkv", None))
        .expect("accepted");
    let requests = story.requests();
    let [Request::Estimate { of, .. }] = &requests[..] else {
        panic!("{requests:?}")
    };
    assert_eq!(of.max_tokens, Some(777));
}

#[test]
fn settings_that_a_version_without_a_limit_saved_have_none() {
    let mut saved = serde_json::to_value(default_settings()).expect("JSON");
    let fields = saved.as_object_mut().expect("fields");
    assert!(fields.remove("memory").is_some());
    let settings: Settings = serde_json::from_value(saved).expect("they load");
    assert_eq!(settings, default_settings());
    // A limit from a newer version that cannot be parsed does not become "no limit": the question is refused.
    let mut story = Story::ready();
    story.state.settings.memory = Some("as much as at night".into());
    let choice = || Choice::plain("snapkv", None);
    let refused = [
        story.state.estimate(choice()).expect_err("no amount"),
        story
            .state
            .ask("Why?", choice(), Relation::default())
            .expect_err("no amount"),
    ];
    for refused in refused {
        assert!(
            refused.starts_with("“as much as at night” is not an amount"),
            "{refused}"
        );
    }
    assert!(story.state.open.turns.is_empty());
}

#[test]
fn what_was_chosen_for_a_limit_is_said_first_and_a_refusal_in_the_windows_words() {
    let mut story = Story::ready();
    let mut estimated = |reply: &dyn Fn(u64) -> Reply| {
        story.look();
        let choice = Choice::plain("snapkv", None);
        let mut waiting = story.state.estimate(choice).expect("asked");
        let requests = story.requests();
        let [Request::Estimate { ticket, .. }] = &requests[..] else {
            panic!("{requests:?}")
        };
        story.hear(reply(*ticket));
        waiting.try_recv().expect("answered")
    };
    let within = Note::WithinMemory(WithinMemory {
        limit: 2 << 30,
        rows: 25,
        tokens: 100,
        chunk: 512,
        cache: "f16".into(),
        bytes: 1 << 30,
        kl: Some(0.0002),
        cost: None,
    });
    let estimate = Estimate {
        prompt_tokens: 100,
        rows: 25,
        kv_bytes: 1,
        kv_bytes_full: 4,
        weights: 1,
        scratch: 1,
        notes: vec![within, "a note besides".into()],
        cache: "f16".into(),
        chosen: None,
        tokens_from_vault: 0,
        tokens_to_repeat: 0,
    };
    let found = estimated(&|ticket| Reply::Estimate {
        ticket,
        estimate: estimate.clone(),
    });
    assert_eq!(
        found.expect("an estimate").notes,
        [
            "With the memory limit of 2.00 GiB, 25 % of the text is remembered (25 rows per head), read 512 tokens at a time; at most 1.00 GiB are used. In our tests, answers then hardly differed from those with all of it.",
            "A note besides."
        ]
    );
    let error = EngineError::Memory {
        memory: 64 << 20,
        missing: 32 << 20,
        weights: 80 << 20,
    };
    let refused =
        estimated(&|ticket| Reply::failed(Some(ticket), Failure::Estimate, &error, false));
    let refused = refused.expect_err("too small");
    assert_eq!(refused.code, Some(RefusalCode::MemoryLimit));
    let refused = refused.message;
    assert!(
        refused.starts_with("The memory limit of 64.0 MiB is too small")
            && refused.contains("32.0 MiB are missing")
            && refused.contains("Raise the limit in Settings"),
        "{refused}"
    );
}
