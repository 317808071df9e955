//! Opening and closing documents.

use kept_engine::Finish;
use kept_worker::protocol::{Failure, FaultCode};

use super::*;
use crate::contract::{FileNeeds, PendingFile};
use crate::messages;
use crate::state::Open;

#[test]
fn a_first_start_shows_the_sample_and_gives_it_to_the_worker() {
    let mut story = Story::first_start();
    let facts = story.document().expect("the sample");
    assert!(facts.sample && !facts.beyond_box);
    assert_eq!(facts.suggestions.len(), 5);
    story.look();
    story.hello();
    let requests = story.requests();
    assert!(matches!(&requests[0], Request::OpenModel { model, .. } if model == "mini"));
    assert!(
        matches!(&requests[1], Request::AdoptDocument { document } if document.name == "sample.txt")
    );
    let later = Story::after(Remembered {
        started_before: true,
        ..Remembered::default()
    })
    .document();
    assert_eq!(later, None, "a closed document stays closed");
}

#[test]
fn a_scan_waits_for_the_languages_of_its_text() {
    let mut story = Story::ready();
    let languages = || vec!["deu".to_owned(), "eng".to_owned()];
    let refused = || Reply::Failed {
        ticket: None,
        what: Failure::Document,
        message: "it has no text".into(),
        code: FaultCode::Scan {
            pages: 3,
            languages: languages(),
        },
        stopped: false,
    };
    let asked = AppEvent::Pending {
        file: Some(PendingFile {
            name: "lease.pdf".into(),
            needs: FileNeeds::Recognition {
                open: false,
                pages: 3,
                languages: languages(),
            },
        }),
    };
    // The second of two files that were dropped together is added to the first.
    story
        .state
        .open_paths(vec!["/lease.pdf".into(), "/b.txt".into()]);
    story.look();
    story.hear(refused());
    assert!(story.events().contains(&asked));
    assert_eq!(story.notices(), [] as [&str; 0], "nothing went wrong yet");
    story.state.recognise_document(Some(vec!["deu".into()]));
    let recognise = Request::OpenDocument {
        path: "/lease.pdf".into(),
        adds: false,
        access: Access::Recognition(vec!["deu".into()]),
    };
    assert_eq!(story.requests(), [recognise]);
    let (done, pages) = (1, 3);
    story.hear(Reply::Recognising { done, pages });
    assert!(
        story
            .events()
            .contains(&AppEvent::Recognising { done, pages })
    );
    story.hear_bytes(document("lease.pdf"), b"the lease");
    let add = Request::OpenDocument {
        path: "/b.txt".into(),
        adds: true,
        access: Access::Plain,
    };
    assert!(story.requests().contains(&add));
}

#[test]
fn a_document_with_pages_of_images_is_open_and_offers_their_text() {
    let mut story = Story::ready();
    let arrived = |name: &str| Reply::Document {
        document: Document {
            image_pages: vec![2, 5],
            ..info(name)
        },
        languages: vec!["eng".into()],
    };
    let offered = AppEvent::Pending {
        file: Some(PendingFile {
            name: "lease.pdf".into(),
            needs: FileNeeds::Recognition {
                open: true,
                pages: 2,
                languages: vec!["eng".into()],
            },
        }),
    };
    let gone = AppEvent::Pending { file: None };
    story.state.open_path("/lease.pdf".into());
    story.look();
    story.hear_bytes(arrived("lease.pdf"), b"the lease");
    let events = story.events();
    assert!(events.contains(&offered), "{events:?}");
    assert!(story.document().is_some_and(|d| d.name == "lease.pdf"));
    // Another document ends the offer.
    story.state.open_sample();
    assert!(story.events().contains(&gone));
    story.state.recognise_document(Some(vec!["eng".into()]));
    assert_eq!(story.state.snapshot().opening, None);
    // Accepted, the file is opened again.
    story.state.open_path("/lease.pdf".into());
    story.look();
    story.hear_bytes(arrived("lease.pdf"), b"the lease");
    story.look();
    story.state.recognise_document(Some(vec!["eng".into()]));
    let recognise = Request::OpenDocument {
        path: "/lease.pdf".into(),
        adds: false,
        access: Access::Recognition(vec!["eng".into()]),
    };
    assert_eq!(story.requests(), [recognise]);
}

#[test]
fn a_locked_document_waits_for_its_password() {
    let mut story = Story::ready();
    let refused = |wrong| Reply::Failed {
        ticket: None,
        what: Failure::Document,
        message: "it is protected".into(),
        code: FaultCode::Password { wrong },
        stopped: false,
    };
    let asked = |wrong| AppEvent::Pending {
        file: Some(PendingFile {
            name: "bank.pdf".into(),
            needs: FileNeeds::Password { wrong },
        }),
    };
    story.state.open_path("/bank.pdf".into());
    story.look();
    story.hear(refused(false));
    assert!(story.events().contains(&asked(false)));
    let pending = story.state.snapshot().pending;
    assert_eq!(
        AppEvent::Pending { file: pending },
        asked(false),
        "a page that loads later asks too"
    );
    assert_eq!(story.notices(), [] as [&str; 0], "nothing went wrong yet");
    story.state.unlock_document(Some("Sesame".into()));
    let unlock = Request::OpenDocument {
        path: "/bank.pdf".into(),
        adds: false,
        access: Access::Password("Sesame".into()),
    };
    assert_eq!(story.requests(), [unlock]);
    story.hear(refused(true));
    assert!(story.events().contains(&asked(true)));
    // Given up: the open document stays, and no file is read later.
    story.state.unlock_document(None);
    story.state.unlock_document(Some("late".into()));
    assert_eq!(story.requests(), []);
    assert!(story.document().is_some_and(|d| d.sample));
    assert_eq!(story.state.snapshot().opening, None);
}

#[test]
fn a_file_opened_while_an_answer_is_written_does_not_stop_it() {
    let mut story = Story::ready();
    let (_, ticket) = story.ask("Why?");
    story.state.open_path("/home/ann/a b.pdf".into());
    assert_eq!(story.state.snapshot().opening.as_deref(), Some("a b.pdf"));
    assert!(
        story.document().is_some_and(|d| d.sample),
        "until it is there"
    );
    assert_eq!(story.requests(), [open_document("/home/ann/a b.pdf")]);
    story.hear_bytes(document("a b.pdf"), "text é".as_bytes());
    assert_eq!(story.requests(), []);
    let snapshot = story.state.snapshot();
    assert_eq!((snapshot.opening, snapshot.turns.len()), (None, 0));
    let facts = snapshot.document.expect("the file");
    assert_eq!((facts.name.as_str(), facts.length), ("a b.pdf", 6));
    story.hear(answered(ticket, "late", Finish::End));
    assert!(story.state.snapshot().turns.is_empty());
}

#[test]
fn the_same_file_again_is_a_new_document() {
    let mut story = Story::ready();
    let mut ids = Vec::new();
    for _ in 0..2 {
        story.state.open_path("/a.txt".into());
        story.hear_bytes(document("a.txt"), b"a");
        ids.push(story.document().expect("open").id);
    }
    assert!(ids[0] < ids[1]);
}

#[test]
fn a_file_that_cannot_be_opened_changes_nothing() {
    let mut story = Story::ready();
    let before = story.document();
    story.state.open_path("/gone.txt".into());
    story.hear(failed(Failure::Document, "there is no file gone.txt"));
    assert_eq!(story.notices(), ["There is no file gone.txt."]);
    assert_eq!(story.document(), before);
    assert_eq!(story.state.snapshot().opening, None);
}

#[test]
fn a_new_file_takes_the_place_of_one_that_is_being_opened() {
    let mut story = Story::ready();
    story.state.open_path("/slow.pdf".into());
    story.look();
    story.state.open_path("/other.txt".into());
    assert_eq!(story.requests(), [Request::Stop { ticket: 0 }]);
    assert_eq!(story.state.snapshot().opening.as_deref(), Some("other.txt"));
    // The first file arrives nevertheless: it is not shown, and the worker gets the open document again.
    story.hear_bytes(document("slow.pdf"), b"slow");
    assert!(story.document().is_some_and(|d| d.sample));
    let requests = story.requests();
    assert!(
        matches!(requests.as_slice(), [Request::OpenDocument { path, .. }, Request::AdoptDocument { document }]
            if path.as_os_str() == "/other.txt" && document.name == "sample.txt"),
        "{requests:?}"
    );
    story.hear_bytes(document("other.txt"), b"other");
    assert!(story.document().is_some_and(|d| d.name == "other.txt"));
}

#[test]
fn the_sample_wins_over_a_file_that_is_being_opened() {
    let mut story = Story::ready();
    story.state.open_path("/slow.pdf".into());
    story.state.open_sample();
    assert_eq!(story.state.snapshot().opening, None);
    story.look();
    story.hear(Reply::failed(None, Failure::Document, "stopped", true));
    assert_eq!(story.notices(), [] as [&str; 0]);
    assert!(story.document().is_some_and(|d| d.sample));
}

#[test]
fn closing_a_document_empties_the_state() {
    let mut story = Story::ready();
    story.ask("Why?");
    story.state.close_document();
    assert!(story.state.snapshot().turns.is_empty());
    let effects = story.look();
    assert!(
        effects
            .iter()
            .any(|e| matches!(e, Effect::Save(Save::Open(open)) if *open == Open::default()))
    );
    assert!(
        effects
            .iter()
            .any(|e| matches!(e, Effect::Page(AppEvent::Document { document: None, .. })))
    );
    story.hear(tokens(5, 9));
    assert_eq!(story.document(), None);
}

#[test]
fn tokens_are_told_and_forgotten_with_the_model() {
    let mut story = Story::ready();
    story.hear(tokens(1234, 2048));
    assert_eq!(story.document().and_then(|d| d.tokens), Some(1234));
    story.state.choose_model_file("/other.gguf".into());
    assert_eq!(story.document().and_then(|d| d.tokens), None);
}

#[cfg(unix)]
#[test]
fn a_name_that_is_no_unicode_is_refused_with_a_sentence() {
    use std::os::unix::ffi::OsStringExt;
    let mut story = Story::ready();
    let path = std::ffi::OsString::from_vec(b"/a\xff.txt".to_vec());
    story.state.open_path(path.into());
    let notices = story.notices();
    assert!(notices[0].contains("not valid Unicode"), "{notices:?}");
    assert_eq!(story.state.snapshot().opening, None);
}

#[test]
fn tokens_of_a_document_far_too_long_are_estimated() {
    let mut story = Story::ready();
    for estimated in [true, false] {
        story.hear(Reply::Tokens {
            tokens: 36_693,
            estimated,
            context: 2048,
            streams: false,
            refusal: Some("it is too long".into()),
        });
        let document = story.document().expect("a document");
        assert_eq!(
            (document.tokens, document.tokens_estimated),
            (Some(36_693), estimated)
        );
    }
}

/// Two texts as the worker joins them: `one` and `two`, three bytes each, with a line between them.
fn both() -> Reply {
    let part = |name: &str, start, end| Part {
        document: info(name),
        range: start..end,
    };
    Reply::Document {
        document: Document {
            parts: vec![part("a.txt", 0, 3), part("b.txt", 4, 7)],
            ..info("a.txt + b.txt")
        },
        languages: Vec::new(),
    }
}

/// `a.txt` is open, and a question about it was answered.
fn answered_about_one() -> Story {
    let mut story = Story::ready();
    story.state.open_path("/a.txt".into());
    story.hear_bytes(document("a.txt"), b"one");
    let (_, ticket) = story.ask("Why?");
    story.read(ticket, 2);
    story.hear(answered(ticket, "Because", Finish::End));
    story.look();
    story
}

#[test]
fn a_document_is_added_and_the_conversation_stays() {
    let mut story = answered_about_one();
    let id = story.document().expect("open").id;
    story.state.add_path("/b.txt".into());
    assert_eq!(story.state.snapshot().opening.as_deref(), Some("b.txt"));
    let requests = story.requests();
    let [
        Request::OpenDocument {
            path, adds: true, ..
        },
    ] = requests.as_slice()
    else {
        panic!("{requests:?}")
    };
    assert_eq!(path.as_os_str(), "/b.txt");
    story.hear_bytes(both(), b"one\ntwo");
    let saved = story.look();
    assert!(
        saved
            .iter()
            .any(|e| matches!(e, Effect::Save(Save::Document(d)) if d.facts.id == id))
    );
    let snapshot = story.state.snapshot();
    assert_eq!((snapshot.opening, snapshot.turns.len()), (None, 1));
    let facts = snapshot.document.expect("both");
    let parts: Vec<(&str, usize, usize)> = (facts.documents.iter())
        .map(|part| (part.name.as_str(), part.start, part.end))
        .collect();
    assert_eq!(parts, [("a.txt", 0, 3), ("b.txt", 4, 7)]);
    assert_eq!((facts.id, facts.length), (id, 7));
    // The document cannot be changed while a question runs.
    let (_, ticket) = story.ask("And now?");
    story.state.add_path("/c.txt".into());
    assert_eq!(story.notices(), [messages::BUSY_DOCUMENTS]);
    let refused = story.state.remove_document(0);
    assert_eq!(refused, Err(messages::BUSY_DOCUMENTS.to_owned()));
    story.hear(answered(ticket, "So", Finish::End));

    assert!(story.state.remove_document(2).is_err(), "there are two");
    story.look();
    story.state.remove_document(0).expect("asked for");
    assert_eq!(story.requests(), [Request::RemoveDocument { part: 0 }]);
    assert!(story.state.remove_document(0).is_err(), "one at a time");
    story.hear_bytes(document("b.txt"), b"two");
    let snapshot = story.state.snapshot();
    assert_eq!(
        story.state.remove_document(0),
        Err(messages::NO_SUCH_DOCUMENT.to_owned())
    );
    let left = snapshot.document.expect("one is left");
    assert_eq!((left.name.as_str(), left.documents.len()), ("b.txt", 0));
    assert!(left.id > id && snapshot.turns.is_empty());
    // It is said where the answers are.
    assert_eq!(story.notices(), [messages::NEW_CONVERSATION]);
}

#[test]
fn a_question_is_not_asked_about_the_document_that_is_about_to_be_replaced() {
    let mut story = answered_about_one();
    story.state.open_path("/b.txt".into());
    let refused = story.try_to_ask("What is in b?");
    assert_eq!(refused, Err(messages::still_opening("b.txt")));
    assert_eq!(story.state.snapshot().turns.len(), 1);
    story.hear_bytes(document("b.txt"), b"two");
    story.try_to_ask("What is in b?").expect("asked");
}

#[test]
fn another_file_begins_a_new_conversation() {
    let mut story = answered_about_one();
    let before = story.state.snapshot();
    story.state.open_path("/b.txt".into());
    story.hear_bytes(document("b.txt"), b"two");
    let snapshot = story.state.snapshot();
    assert_eq!(snapshot.document.map(|d| d.name).as_deref(), Some("b.txt"));
    assert_eq!((snapshot.conversation, snapshot.turns), (None, vec![]));
    assert_eq!(snapshot.conversations, before.conversations);
    assert_eq!(snapshot.conversations.len(), 1);
}

#[test]
fn files_that_are_dropped_together_are_read_together() {
    let mut story = Story::ready();
    let paths = ["/a.txt", "/gone.txt", "/b.txt"];
    story
        .state
        .open_paths(paths.iter().map(Into::into).collect());
    story.look();
    story.hear_bytes(document("a.txt"), b"one");
    let added = |story: &mut Story| match story.requests().as_slice() {
        [
            Request::OpenDocument {
                path, adds: true, ..
            },
        ] => path.display().to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(added(&mut story), "/gone.txt");
    story.hear(failed(Failure::Document, "there is no file gone.txt"));
    assert_eq!(story.state.snapshot().opening.as_deref(), Some("b.txt"));
    assert_eq!(added(&mut story), "/b.txt");
    story.hear_bytes(both(), b"one\ntwo");
    assert_eq!(story.document().map(|d| d.documents.len()), Some(2));
    // If the first cannot be opened, the next takes its place: it is not added to the previous document.
    let mut other = Story::ready();
    other
        .state
        .open_paths(vec!["/gone.txt".into(), "/m.gguf".into(), "/b.txt".into()]);
    assert!(
        other
            .requests()
            .iter()
            .any(|r| matches!(r, Request::OpenModel { .. }))
    );
    other.hear(failed(Failure::Document, "there is no file gone.txt"));
    assert!(matches!(
        other.requests().as_slice(),
        [Request::OpenDocument { path, .. }] if path.as_os_str() == "/b.txt"
    ));
    // A worker that crashes in between gets both again.
    story.state.worker_died("The engine was ended.");
    story.look();
    story.hello();
    let parts = story.requests().into_iter().find_map(|r| match r {
        Request::AdoptDocument { document } => Some(document.parts.len()),
        _ => None,
    });
    assert_eq!(parts, Some(2));
}

#[test]
fn what_is_left_of_documents_that_are_no_longer_open_is_not_shown() {
    let mut story = answered_about_one();
    story.state.add_path("/b.txt".into());
    story.hear_bytes(both(), b"one\ntwo");
    story.state.remove_document(0).expect("asked for");
    story.state.open_sample();
    story.look();
    story.hear_bytes(document("b.txt"), b"two");
    assert!(story.document().is_some_and(|d| d.sample));
    assert!(matches!(
        story.requests().as_slice(),
        [Request::AdoptDocument { document }] if document.name == "sample.txt"
    ));
}
