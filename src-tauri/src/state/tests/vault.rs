//! Vaults on disk, documents beyond the model's context length, and the automatic choice.

use kept_engine::{AUTO, Chosen, Finish, MethodSpec, Note};
use kept_worker::protocol::{Estimate, Failure, StoredDocument, Vault};

use super::*;

fn told(ticket: u64, documents: usize) -> Reply {
    let vault = Vault {
        kind: "q8_0".into(),
        folder: "/home/ann/.cache/kept/vaults".into(),
        documents,
        bytes: 512,
        budget: 1 << 30,
        stored: vec![StoredDocument {
            name: "a.txt".into(),
            tokens: 100,
            bytes: 512,
            used: 1000,
        }],
    };
    Reply::Vaults { ticket, vault }
}

fn kept(story: &mut Story) -> Vec<(u64, String, Option<u64>)> {
    let of = |request: Request| match request {
        Request::KeepDocuments {
            ticket,
            kind,
            budget,
        } => Some((ticket, kind, budget)),
        _ => None,
    };
    story.requests().into_iter().filter_map(of).collect()
}

#[test]
fn the_worker_is_told_how_documents_are_kept_and_again_when_that_changes() {
    let mut story = Story::first_start();
    story.look();
    story.hello();
    let first = kept(&mut story);
    assert_eq!((first[0].1.as_str(), first[0].2), ("q8_0", None));
    story.hear(told(first[0].0, 2));
    let vault = story.state.snapshot().vault.expect("told");
    assert_eq!((vault.documents, vault.bytes), (2, 512));
    assert_eq!(story.notices(), [] as [&str; 0], "nobody asked for it");

    let mut settings = story.state.settings().clone();
    settings.zoom = 120;
    story.state.save_settings(settings.clone()).expect("taken");
    assert_eq!(kept(&mut story), [], "that has nothing to do with it");
    settings.keep = "f16".into();
    settings.keep_budget = Some("2 GiB".into());
    story.state.save_settings(settings.clone()).expect("taken");
    let changed = kept(&mut story);
    assert_eq!(
        (changed[0].1.as_str(), changed[0].2),
        ("f16", Some(2 << 30))
    );
    // A new worker gets the setting as well.
    story.hello();
    assert_eq!(kept(&mut story)[0].1, "f16");

    for (keep, budget, named) in [
        ("q4", None, "“q4”"),
        ("off", Some("much"), "“much”"),
        ("off", Some("25%"), "“25%”"),
        ("f16", Some("1 KiB"), "“1 KiB” holds no document"),
    ] {
        settings.keep = keep.into();
        settings.keep_budget = budget.map(str::to_owned);
        let refused = story.state.save_settings(settings.clone());
        let refused = refused.expect_err("nonsense").message;
        assert!(refused.contains(named), "{refused}");
    }
    assert_eq!(story.state.settings().keep, "f16");
}

#[test]
fn forgetting_everything_says_what_stays() {
    for (left, says) in [(0, "The vault is empty"), (1, "1 document is in use")] {
        let mut story = Story::ready();
        story.state.clear_vault().expect("asked for");
        let ticket = match story.requests().as_slice() {
            [Request::ClearVaults { ticket }] => *ticket,
            other => panic!("{other:?}"),
        };
        story.hear(told(ticket, left));
        let notices = story.notices();
        assert!(notices[0].starts_with(says), "{notices:?}");
    }
    let mut story = Story::ready();
    story.state.clear_vault().expect("asked for");
    story.hear(failed(Failure::Vaults, "there is no home folder"));
    assert_eq!(story.notices(), ["There is no home folder."]);
    assert_eq!(story.state.snapshot().vault, None);
    let mut story = Story::first_start();
    assert!(story.state.clear_vault().is_err(), "no worker yet");
}

#[test]
fn what_an_answer_left_in_the_vault_is_looked_up() {
    let mut story = Story::ready();
    let (_, ticket) = story.ask("Why?");
    let Reply::Answered { mut answer, .. } = answered(ticket, "So", Finish::End) else {
        unreachable!()
    };
    answer.vault.written = true;
    answer.vault.tokens_from_vault = 3;
    story.hear(Reply::Answered { ticket, answer });
    assert!(matches!(
        story.requests().as_slice(),
        [Request::Vaults { .. }]
    ));
    let facts = story.turn().facts.expect("facts");
    assert_eq!(facts.tokens_from_vault, 3);
}

#[test]
fn without_a_written_vault_nothing_says_that_later_questions_are_fast() {
    let mut story = Story::ready();
    story.hear(tokens(1000, 8192));
    // Bytes and tokens of the vault, tokens read, whether it was written; whether the next question reads again.
    let cases = [
        ((0, 0, 1030, false), true),
        ((512, 1000, 30, false), false),
        ((0, 0, 1030, false), true),
        ((512, 0, 1030, true), false),
        // The disk was full before the end, and while a second reading was measured.
        ((512, 600, 430, false), true),
        ((512, 1000, 1030, false), true),
    ];
    for ((bytes, tokens_from_vault, tokens_read, written), again) in cases {
        let (_, ticket) = story.ask("Why?");
        let Reply::Answered { mut answer, .. } = answered(ticket, "So", Finish::End) else {
            unreachable!()
        };
        answer.report.streamed = true;
        answer.vault = Box::new(kept_engine::vault::VaultUse {
            used: tokens_from_vault > 0,
            tokens_from_vault,
            tokens_read,
            bytes,
            kind: "q8_0".into(),
            written,
        });
        story.hear(Reply::Answered { ticket, answer });
        let note = story.turn().facts.expect("facts").notes.remove(0);
        assert_eq!(note.ends_with("reads the document again."), again, "{note}");
        assert_eq!(story.state.snapshot().unwritten, again);
    }
    let told = |e: &AppEvent| {
        matches!(
            e,
            AppEvent::Vault {
                unwritten: false,
                ..
            }
        )
    };
    story.look();
    story
        .state
        .open_text("Another text.".into())
        .expect("opened");
    assert!(story.events().iter().any(told), "of another document");
}

fn long(story: &mut Story) {
    story.hear(Reply::Tokens {
        tokens: 120_000,
        estimated: true,
        context: 8192,
        streams: true,
        refusal: None,
    });
}

#[test]
fn a_document_beyond_the_context_is_read_by_the_methods_that_can_and_by_no_other() {
    let mut story = Story::ready();
    long(&mut story);
    let document = story.document().expect("open");
    assert_eq!(document.too_long, None);
    let said = document.streaming.expect("how it will be read");
    for part in ["about 120,000", "8,192", "may miss"] {
        assert!(said.contains(part), "{said}");
    }
    story.look();
    for method in kept_engine::policies::methods() {
        let choice = Choice::plain(method.name, None);
        let able = kept_engine::policies::STREAMING.contains(&method.name);
        let estimated = story.state.estimate(choice.clone());
        assert_eq!(estimated.is_ok(), able, "{}", method.name);
        let compared = story.state.compare("Why?", vec![choice]);
        assert!(compared.expect_err("refused").contains("too long"));
    }
    let refused = story.try_to_ask("Why?");
    let refused = refused.expect_err("it cannot");
    assert!(refused.starts_with("SnapKV cannot read"), "{refused}");
    assert!(story.state.snapshot().turns.is_empty());
    story.look();
    story
        .state
        .ask("Why?", Choice::plain(AUTO, None), Relation::default())
        .expect("Automatic finds one");
    match story.requests().as_slice() {
        [Request::Ask { ask, .. }] => {
            assert_eq!((ask.method.name.as_str(), &ask.budget), (AUTO, &None));
        }
        other => panic!("{other:?}"),
    }
    // The document may fit with another model.
    story.delete();
    story.state.choose_model_file("/other.gguf".into());
    assert_eq!(story.document().and_then(|d| d.streaming), None);
}

#[test]
fn left_to_itself_the_sample_is_kept_in_part_and_a_document_of_ones_own_is_not() {
    let budget = |story: &mut Story, choice: Choice| {
        story.look();
        story
            .state
            .ask("Why?", choice, Relation::default())
            .expect("accepted");
        let budget = match story.requests().as_slice() {
            [Request::Ask { ask, .. }] => ask.budget.clone(),
            other => panic!("{other:?}"),
        };
        story.delete();
        story.look();
        budget
    };
    let sample = || Story::ready();
    let auto = |given: Option<&str>| Choice::plain(AUTO, given);
    assert_eq!(budget(&mut sample(), auto(None)).as_deref(), Some("25%"));
    assert_eq!(
        budget(&mut sample(), auto(Some("512"))).as_deref(),
        Some("512")
    );
    assert_eq!(budget(&mut sample(), Choice::plain("full", None)), None);
    let mut other = sample();
    other.state.settings.model = "/other.gguf".to_owned();
    assert_eq!(budget(&mut other, auto(None)).as_deref(), Some("50%"));
    let mut own = Story::ready();
    own.state.open_path("/a.txt".into());
    own.hear_bytes(document("a.txt"), b"a");
    assert_eq!(budget(&mut own, auto(None)), None);
}

fn chosen() -> Chosen {
    Chosen {
        method: MethodSpec::plain("snapkv"),
        rows: 25,
        cache: kept_engine::kernels::CacheType::F32,
        expected_bytes: 1,
        free_bytes: None,
        kl: Some(0.0),
        right: Some(1.0),
        reason: "snapkv, 25 rows; fits 1 GiB free".into(),
    }
}

fn auto_chose() -> Note {
    Note::AutoChose {
        reason: chosen().reason,
    }
}

#[test]
fn what_was_chosen_and_why_is_said_once_and_in_the_windows_words() {
    let mut story = Story::ready();
    let mut waiting = story
        .state
        .estimate(Choice::plain(AUTO, None))
        .expect("asked");
    let ticket = match story.requests().as_slice() {
        [Request::Estimate { ticket, .. }] => *ticket,
        other => panic!("{other:?}"),
    };
    let estimate = Estimate {
        prompt_tokens: 100,
        rows: 25,
        kv_bytes: 1,
        kv_bytes_full: 4,
        weights: 1,
        scratch: 1,
        notes: vec![auto_chose(), "a note besides".into()],
        cache: "f16".into(),
        chosen: Some(Box::new(chosen())),
        tokens_from_vault: 90,
        tokens_to_repeat: 0,
    };
    story.hear(Reply::Estimate { ticket, estimate });
    let found = waiting.try_recv().expect("answered").expect("an estimate");
    assert_eq!(found.notes, ["A note besides."]);
    assert_eq!(found.tokens_from_vault, 90);
    let taken = found.chosen.expect("a choice");
    assert_eq!((taken.method.as_str(), taken.rows), ("snapkv", 25));
    assert!(taken.reason.starts_with("Sample setting: 25 %"));

    let (_, ticket) = story.ask("Why?");
    let Reply::Answered { mut answer, .. } = answered(ticket, "So", Finish::End) else {
        unreachable!()
    };
    answer.chosen = Some(Box::new(chosen()));
    answer.report.streamed = true;
    answer.notes = vec![
        auto_chose(),
        Note::Streaming {
            tokens: 9,
            rows: 3,
            keeps: String::new(),
        },
        "the model ended without an answer".into(),
    ];
    story.hear(Reply::Answered { ticket, answer });
    let facts = story.turn().facts.expect("facts");
    assert!(facts.streamed && facts.chosen.is_some());
    assert_eq!(facts.notes.len(), 2, "{:?}", facts.notes);
    assert!(facts.notes[0].starts_with("Read in pieces"));
    assert_eq!(facts.notes[1], "The model ended without an answer.");
}

#[test]
fn rows_are_stored_as_the_settings_say_in_every_request() {
    let mut story = Story::ready();
    let (_, ticket) = story.ask("Why?");
    assert_eq!(story.turn().cache, None, "left to the engine");
    story.hear(answered(ticket, "So", Finish::End));
    assert_eq!(story.turn().facts.expect("facts").cache, "f16");

    let mut settings = story.state.settings().clone();
    settings.cache = Some("q8_0".into());
    story.state.save_settings(settings.clone()).expect("taken");
    story.look();
    story
        .state
        .estimate(Choice::plain("snapkv", None))
        .expect("accepted");
    story.try_to_ask("Why?").expect("accepted");
    let told: Vec<Option<String>> = (story.requests().into_iter())
        .filter_map(|request| match request {
            Request::Estimate { of, .. } => Some(of.cache),
            Request::Ask { ask, .. } => Some(ask.cache),
            _ => None,
        })
        .collect();
    assert_eq!(told, [Some("q8_0".to_owned()), Some("q8_0".to_owned())]);
    assert_eq!(story.turn().cache.as_deref(), Some("q8_0"));

    settings.cache = Some("q2".into());
    let refused = (story.state.save_settings(settings))
        .expect_err("nonsense")
        .message;
    assert!(
        refused.contains("“q2”") && refused.contains("q4_0"),
        "{refused}"
    );
    assert_eq!(story.state.settings().cache.as_deref(), Some("q8_0"));
}
