//! Documents over the pipes: opened, refused, cancelled, too long, adopted after a restart.

use kept_engine::documents::{Document, Part};
use kept_tests::golden::repository;
use kept_worker::protocol::{Access, Failure, FaultCode, Reply, Request, write_message};

use super::{QUESTION, failure, ready};
use kept_engine::Note;
use kept_tests::worker::{
    Worker, add_document, ask, is_end, open_document, open_model, questions, sample,
};

fn streamed(note: &Note) -> bool {
    matches!(note, Note::Streaming { .. })
}

/// Documents that cannot be opened are refused in the document crate's own words, and the worker goes on.
#[test]
fn hostile_documents_are_refused_like_in_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let binary = folder.path().join("binary.bin");
    std::fs::write(&binary, [0u8, 1, 2, 3, 0xff, 0xfe, 0, 0, 9]).expect("a file");
    let fixtures = repository().join("documents/tests/fixtures");
    let mut paths = vec![
        folder.path().to_owned(),
        folder.path().join("missing.txt"),
        binary,
    ];
    for entry in std::fs::read_dir(fixtures).expect("the fixtures") {
        paths.push(entry.expect("an entry").path());
    }
    let mut worker = ready();
    let (mut opened, mut refused) = (0, 0);
    for path in paths {
        worker.say(&open_document(path.clone()));
        let (reply, bytes) =
            worker.find(|reply| matches!(reply, Reply::Document { .. } | Reply::Failed { .. }));
        let name = path.file_name().expect("a name").to_string_lossy();
        match (Document::open_with(&path, &name, None), reply) {
            (Ok(expected), Reply::Document { document, .. }) => {
                opened += 1;
                assert_eq!(document.name, expected.name);
                assert_eq!(bytes, expected.text.as_bytes(), "{}", expected.name);
                assert_eq!(document.pages.len(), expected.pages.len());
            }
            (Err(error), Reply::Failed { what, message, .. }) => {
                refused += 1;
                assert_eq!(what, Failure::Document);
                assert_eq!(message, error.to_string());
            }
            (expected, got) => panic!("{}: {expected:?} but {got:?}", path.display()),
        }
    }
    assert!(opened > 10 && refused > 10, "{opened} {refused}");
    let ended = worker.close();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[test]
fn a_password_opens_a_document() {
    let path = repository().join("documents/tests/fixtures/password.pdf");
    let mut worker = ready();
    let mut unlock = |password: &str| {
        let path = path.clone();
        let access = Access::Password(password.to_owned());
        let adds = false;
        worker.say(&Request::OpenDocument { path, adds, access });
        worker.find(|reply| matches!(reply, Reply::Document { .. } | Reply::Failed { .. }))
    };
    let (reply, _) = unlock("Open Sesame");
    let Reply::Failed { what, code, .. } = reply else {
        panic!("{reply:?}")
    };
    assert_eq!(
        (what, code),
        (Failure::Document, FaultCode::Password { wrong: true })
    );
    let (reply, bytes) = unlock("open sesame");
    assert!(matches!(reply, Reply::Document { .. }), "{reply:?}");
    assert!(!bytes.is_empty());
    assert_eq!(worker.close().code, Some(0));
}

/// A document that ends its reader costs a sentence; the worker, its model and its document stay.
#[test]
fn a_document_that_ends_its_reader_leaves_the_worker_as_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("nested.pdf");
    std::fs::write(&path, kept_tests::hostile::nested_pdf()).expect("a file");
    let mut worker = ready();
    for _ in 0..3 {
        worker.say(&open_document(path.clone()));
        let (_, what, message, _) = failure(worker.find(arrives).0);
        assert_eq!(what, Failure::Document);
        assert!(message.contains("nested.pdf"), "{message}");
        assert!(message.contains("nested too deeply"), "{message}");
    }
    worker.say(&ask(1, QUESTION, "full"));
    let (reply, _) = worker.find(is_end);
    let Reply::Answered { answer, .. } = reply else {
        panic!("{reply:?}")
    };
    assert!(answer.text.contains("4711"), "{}", answer.text);
    let ended = worker.close();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
}

#[cfg(unix)]
#[test]
fn an_unreadable_file_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("closed.txt");
    std::fs::write(&path, "closed").expect("a file");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).expect("permissions");
    let mut worker = Worker::start();
    worker.say(&open_document(path.clone()));
    let (reply, _) = worker.next();
    // A user who may read everything (root) can read this file too.
    match (std::fs::read(&path), reply) {
        (Ok(_), Reply::Document { .. }) => {}
        (Err(_), Reply::Failed { message, .. }) => {
            assert!(message.contains("may not be read"), "{message}");
        }
        (_, reply) => panic!("{reply:?}"),
    }
}

#[test]
fn a_document_beyond_the_context_length_is_announced() {
    let folder = tempfile::tempdir().expect("a folder");
    let long = folder.path().join("long.txt");
    let text = std::fs::read_to_string(sample()).expect("the sample");
    std::fs::write(&long, text.repeat(4)).expect("a long document");
    let mut worker = Worker::start();
    worker.say(&open_document(long));
    worker.say(&open_model("mini"));
    // All of these wait for the model and the token count.
    worker.say(&ask(1, QUESTION, "snapkv"));
    worker.say(&Request::Estimate {
        ticket: 2,
        of: questions("treekv"),
        turns: Vec::new(),
    });
    let (mut announced, mut refused, mut estimated, mut answered) = (false, false, false, false);
    while !(announced && refused && estimated && answered) {
        match worker.next().0 {
            Reply::Tokens {
                tokens,
                estimated: rough,
                context,
                streams,
                refusal,
            } => {
                assert_eq!(refusal, None);
                assert!(streams && tokens > context, "{tokens} {context}");
                // Four samples are counted completely.
                assert!(!rough, "{tokens}");
                announced = true;
            }
            // A method that needs the whole prompt.
            Reply::Failed {
                ticket, message, ..
            } => {
                assert_eq!(ticket, Some(1), "{message}");
                assert!(message.contains("treekv"), "{message}");
                refused = true;
                worker.say(&ask(3, QUESTION, "treekv"));
            }
            Reply::Estimate { estimate, .. } => {
                assert!(estimate.notes.iter().any(streamed), "{:?}", estimate.notes);
                assert!(estimate.kv_bytes < estimate.kv_bytes_full / 2);
                estimated = true;
            }
            Reply::Answered { ticket, answer } => {
                assert_eq!(ticket, 3);
                assert!(answer.notes.iter().any(streamed), "{:?}", answer.notes);
                answered = true;
            }
            _ => {}
        }
    }
}

/// After a restart the app sends its document back; the answer is the same as before.
#[test]
fn an_adopted_document_is_answered_like_an_opened_one() {
    let mut worker = Worker::start();
    worker.say(&open_document(sample()));
    let (reply, text) = worker.next();
    let Reply::Document { mut document, .. } = reply else {
        panic!("{reply:?}")
    };
    document.unread_pages = vec![3];
    drop(worker);
    let mut worker = Worker::start();
    worker.say(&open_model("mini"));
    worker.say_with_bytes(&Request::AdoptDocument { document }, &text);
    worker.say(&ask(1, QUESTION, "full"));
    let (reply, _) = worker.find(is_end);
    let Reply::Answered { answer, .. } = reply else {
        panic!("{reply:?}")
    };
    assert!(answer.text.contains("4711"), "{}", answer.text);
    let damaged = "these pages of sample.txt are damaged and were not read: 3";
    assert_eq!(answer.notes, [Note::from(damaged)]);
}

/// An empty document is none: nothing is painted, stored or cited.
#[test]
fn a_conversation_needs_no_document() {
    let mut worker = Worker::start();
    worker.say(&open_model("mini"));
    worker.say(&open_document(sample()));
    let (Reply::Document { mut document, .. }, _) = worker.find(arrives) else {
        panic!("no document");
    };
    document.name = String::new();
    worker.say(&Request::AdoptDocument { document });
    for (ticket, name) in [(1, "snapkv"), (2, "kvzip"), (3, "auto")] {
        worker.say(&ask(ticket, QUESTION, name));
        let heard = worker.until(is_end);
        let said = heard.iter().find_map(|(reply, _)| match reply {
            Reply::Prompt {
                document_tokens, ..
            } => Some(*document_tokens),
            _ => None,
        });
        assert_eq!(said, Some(0), "{name}");
        let Some((Reply::Answered { answer, .. }, _)) = heard.last() else {
            panic!("{name}: {:?}", heard.last());
        };
        assert!(answer.sources.is_empty() && answer.citations.is_empty());
        assert!(!answer.vault.written, "{name}");
    }
}

/// Cancelling a document is confirmed at once, and the document never arrives.
#[test]
fn a_cancelled_document_never_arrives() {
    let folder = tempfile::tempdir().expect("a folder");
    let slow = folder.path().join("slow.txt");
    std::fs::write(&slow, "words and words\n".repeat(1 << 20)).expect("a large file");
    let mut worker = Worker::start();
    // In one write, so that the stop arrives long before the file is read.
    let mut frames = Vec::new();
    for request in [
        open_document(slow.clone()),
        Request::Stop { ticket: 0 },
        open_document(slow),
        open_document(sample()),
    ] {
        write_message(&mut frames, &request, &[]).expect("a frame");
    }
    worker.say_raw(&frames);
    for _ in 0..2 {
        let (ticket, what, _, stopped) = failure(worker.next().0);
        assert_eq!((ticket, what, stopped), (None, Failure::Document, true));
    }
    let (reply, _) = worker.next();
    let Reply::Document { document, .. } = reply else {
        panic!("{reply:?}")
    };
    assert_eq!(document.name, "sample.txt");
    // A stop without a target has no reply: the next reply is the model.
    worker.say(&Request::Stop { ticket: 0 });
    worker.say(&Request::Stop { ticket: 8 });
    worker.say(&open_model("mini"));
    assert!(matches!(worker.next().0, Reply::Model { .. }));
}

fn arrives(reply: &Reply) -> bool {
    matches!(reply, Reply::Document { .. } | Reply::Failed { .. })
}

/// The next document: its facts and its text.
fn arrived(worker: &Worker) -> (Document, String) {
    let (reply, bytes) = worker.find(arrives);
    let Reply::Document { document, .. } = reply else {
        panic!("{reply:?}")
    };
    (document, String::from_utf8(bytes).expect("UTF-8"))
}

/// Names and texts of the parts of a document.
fn parts(document: &Document, text: &str) -> Vec<(String, String)> {
    let part = |part: &Part| {
        (
            part.document.name.clone(),
            text[part.range.clone()].to_owned(),
        )
    };
    if document.parts.is_empty() {
        vec![(document.name.clone(), text.to_owned())]
    } else {
        document.parts.iter().map(part).collect()
    }
}

#[test]
fn documents_are_joined_adopted_and_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let note = folder.path().join("note.txt");
    std::fs::write(&note, "The tide was low that day. The quay was dry.").expect("a file");
    let handbook = std::fs::read_to_string(sample()).expect("the sample");
    let mut worker = Worker::start();
    worker.say(&open_model("mini"));
    worker.say(&open_document(note.clone()));
    worker.find(arrives);
    worker.say(&add_document(sample()));
    let (document, text) = arrived(&worker);
    assert_eq!(document.name, "note.txt + sample.txt");
    let both = parts(&document, &text);
    assert_eq!(
        (both[0].0.as_str(), both[1].0.as_str()),
        ("note.txt", "sample.txt")
    );
    assert!(both[0].1.starts_with("The tide") && both[1].1 == handbook);

    // Another worker adopts them, as after a restart, and attributes each passage to its document.
    let mut worker = Worker::start();
    worker.say(&open_model("mini"));
    let adopt = Request::AdoptDocument {
        document: document.clone(),
    };
    worker.say_with_bytes(&adopt, text.as_bytes());
    worker.say(&ask(7, QUESTION, "snapkv"));
    let Reply::Answered { answer, .. } = worker.find(is_end).0 else {
        panic!("no answer")
    };
    assert!(answer.text.contains("4711"), "{}", answer.text);
    let whose = |name: &str| {
        let mut sources = answer.sources.iter();
        sources.any(|s| s.document.as_deref() == Some(name) && s.text.contains("4711"))
    };
    assert!(whose("sample.txt"), "{:?}", answer.sources);

    worker.say(&add_document(note.clone()));
    let (three, _) = arrived(&worker);
    assert_eq!(three.parts.len(), 3);
    worker.say(&Request::RemoveDocument { part: 3 });
    assert_eq!(failure(worker.find(arrives).0).1, Failure::Document);
    worker.say(&Request::RemoveDocument { part: 1 });
    let (two, text) = arrived(&worker);
    let left = parts(&two, &text);
    assert_eq!(
        (left[0].0.as_str(), left[1].0.as_str(), left.len()),
        ("note.txt", "note (2).txt", 2)
    );
    worker.say(&Request::RemoveDocument { part: 0 });
    let (one, text) = arrived(&worker);
    let alone = parts(&one, &text);
    assert_eq!(alone.len(), 1);
    assert!(alone[0].1.ends_with("dry."), "as it was: {alone:?}");
    worker.say(&Request::RemoveDocument { part: 0 });
    assert_eq!(failure(worker.find(arrives).0).1, Failure::Document);

    // Parts outside the text are refused.
    let mut false_parts = document;
    false_parts.parts[1].range.end += 1_000_000;
    let adopt = Request::AdoptDocument {
        document: false_parts,
    };
    worker.say_with_bytes(&adopt, both[0].1.as_bytes());
    let refused = failure(worker.find(arrives).0);
    assert!(
        refused.2.contains("does not lie in the text"),
        "{}",
        refused.2
    );
}
