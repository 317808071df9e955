//! Vaults over the pipes: a later question is answered from the document's vault, also by another worker; the folder's
//! kind and budget take effect at once.

use std::path::Path;

use kept_engine::vault::VaultUse;
use kept_engine::{AUTO, Estimate, Phase, Turn};
use kept_tests::worker::{Worker, ask, is_end, open_document, open_model, questions, sample};
use kept_worker::protocol::{Failure, Reply, Request, Vault};

use super::{QUESTION, failure};

/// A worker with the built-in model and the sample open, and with vaults in `folder`.
fn start(folder: &Path) -> Worker {
    let mut worker = Worker::start_with(&[("KEPT_VAULTS", folder.to_str().expect("UTF-8"))]);
    worker.find(|reply| matches!(reply, Reply::Hello));
    worker.say(&open_model("mini"));
    worker.say(&open_document(sample()));
    worker.find(|reply| matches!(reply, Reply::Tokens { .. }));
    worker
}

fn estimate(worker: &mut Worker, name: &str) -> Estimate {
    let of = questions(name);
    worker.say(&Request::Estimate {
        ticket: 100,
        of,
        turns: Vec::new(),
    });
    match worker.find(|reply| matches!(reply, Reply::Estimate { .. } | Reply::Failed { .. })) {
        (Reply::Estimate { estimate, .. }, _) => estimate,
        other => panic!("{other:?}"),
    }
}

/// Asks [`QUESTION`]; progress, the end of the prefill and the answer state the same use of the vault.
fn asked(worker: &mut Worker, ticket: u64) -> VaultUse {
    worker.say(&ask(ticket, QUESTION, "snapkv"));
    let (mut from_vault, mut read) = (None, None);
    for (reply, _) in worker.until(is_end) {
        match reply {
            Reply::Progress { progress, .. } if progress.phase == Phase::Reading => {
                from_vault = Some(progress.tokens_from_vault);
            }
            Reply::Read {
                tokens_from_vault, ..
            } => read = Some(tokens_from_vault),
            Reply::Answered { answer, .. } => {
                assert!(answer.text.contains("4711"), "{}", answer.text);
                assert_eq!(read, Some(answer.vault.tokens_from_vault));
                assert_eq!(from_vault, read, "progress says so");
                return *answer.vault;
            }
            Reply::Failed { message, .. } => panic!("{message}"),
            _ => {}
        }
    }
    panic!("no answer")
}

/// The vault folder as the worker states it.
#[derive(Debug, PartialEq)]
struct Stored {
    kind: String,
    documents: usize,
    bytes: u64,
}

/// Sends a request about the vaults in `expected_folder`.
fn stored(worker: &mut Worker, expected_folder: &Path, request: &Request) -> Stored {
    worker.say(request);
    match worker.find(|reply| matches!(reply, Reply::Vaults { .. } | Reply::Failed { .. })) {
        (
            Reply::Vaults {
                vault:
                    Vault {
                        kind,
                        documents,
                        bytes,
                        folder,
                        stored,
                        ..
                    },
                ..
            },
            _,
        ) => {
            assert!(stored.iter().map(|document| document.bytes).sum::<u64>() <= bytes);
            assert_eq!(stored.is_empty(), documents == 0);
            assert_eq!(folder, expected_folder.display().to_string());
            Stored {
                kind,
                documents,
                bytes,
            }
        }
        other => panic!("{other:?}"),
    }
}

/// Vaults of this kind from now on, in at most `budget` bytes.
fn keep(kind: &str, budget: u64) -> Request {
    Request::KeepDocuments {
        ticket: 5,
        kind: kind.to_owned(),
        budget: Some(budget),
    }
}

#[test]
fn a_vault_serves_questions_after_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let vaults = folder.path().join("vaults");
    let mut worker = start(&vaults);
    assert_eq!(estimate(&mut worker, "snapkv").tokens_from_vault, 0);
    let first = asked(&mut worker, 1);
    assert!(
        !first.used && first.written && first.kind == "q8_0",
        "{first:?}"
    );
    assert!(asked(&mut worker, 2).tokens_read < 40);
    drop(worker.close());
    let mut worker = start(&vaults);
    let before = estimate(&mut worker, "snapkv");
    // H2O needs attention sums over all tokens, which no question has measured yet.
    assert_eq!(estimate(&mut worker, "h2o").tokens_from_vault, 0);
    let chosen = estimate(&mut worker, AUTO);
    assert!(chosen.chosen.is_some() && chosen.tokens_from_vault > 0);
    let again = asked(&mut worker, 3);
    assert!(again.used && again.tokens_read < 40, "{again:?}");
    assert_eq!(before.tokens_from_vault, again.tokens_from_vault);
    let expected = Stored {
        kind: "q8_0".to_owned(),
        documents: 1,
        bytes: again.bytes,
    };
    let found = stored(&mut worker, &vaults, &Request::Vaults { ticket: 4 });
    assert_eq!(found, expected);
}

#[test]
fn kind_and_budget_of_vaults_take_effect_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let vaults = folder.path().join("vaults");
    let mut worker = start(&vaults);
    assert!(asked(&mut worker, 3).written);
    assert_eq!(
        stored(&mut worker, &vaults, &keep("off", 1 << 30)).kind,
        "off"
    );
    assert_eq!(estimate(&mut worker, "snapkv").tokens_from_vault, 0);
    assert_eq!(asked(&mut worker, 6).kind, "off");
    assert_eq!(
        stored(&mut worker, &vaults, &keep("f16", 1 << 30)).kind,
        "f16"
    );
    assert!(!asked(&mut worker, 7).used, "rows of another kind");
    let both = stored(&mut worker, &vaults, &Request::Vaults { ticket: 8 });
    assert_eq!(both.documents, 1, "two vaults of one document");
    // A smaller budget evicts vaults at once.
    let one = stored(&mut worker, &vaults, &keep("f16", both.bytes - 1));
    assert!(
        one.documents == 1 && one.bytes < both.bytes,
        "{one:?} of {both:?}"
    );
    assert!(
        estimate(&mut worker, "snapkv").tokens_from_vault > 0,
        "the newer one stays"
    );
    let none = stored(&mut worker, &vaults, &Request::ClearVaults { ticket: 9 });
    assert_eq!((none.documents, none.bytes), (0, 0));
    worker.say(&keep("q2", 1 << 30));
    let (refused, _) = worker.find(|reply| matches!(reply, Reply::Failed { .. }));
    let (ticket, what, message, _) = failure(refused);
    assert_eq!((ticket, what), (Some(5), Failure::Vaults));
    assert!(message.contains("q2"), "{message}");
}

/// What a deleted conversation left is removed, and on request the document.
#[test]
fn vaults_of_conversations_are_removed_by_the_name_of_their_document() {
    let place = tempfile::tempdir().expect("a folder");
    let vaults = place.path().join("vaults");
    let mut worker = start(&vaults);
    let list = |worker: &mut Worker, request| stored(worker, &vaults, &request).bytes;
    asked(&mut worker, 1);
    let alone = list(&mut worker, Request::Vaults { ticket: 2 });
    let mut next = ask(3, QUESTION, "snapkv");
    let Request::Ask { ask: asked, .. } = &mut next else {
        unreachable!()
    };
    asked.turns = vec![Turn::new(QUESTION, "It is 4711.").expect("an answer")];
    worker.say(&next);
    worker.find(is_end);
    let both = list(&mut worker, Request::Vaults { ticket: 4 });
    assert!(both > alone);
    let clear = |document: &str, whole| Request::ClearVaultsOf {
        ticket: 5,
        document: document.to_owned(),
        whole,
    };
    assert_eq!(list(&mut worker, clear("other.txt", true)), both);
    assert_eq!(list(&mut worker, clear("sample.txt", false)), alone);
    assert_eq!(list(&mut worker, clear("sample.txt", true)), 0);
    // A vault that a question is writing is removed once it has ended.
    worker.say(&ask(6, QUESTION, "snapkv"));
    worker.say(&clear("sample.txt", true));
    let replies = worker.until(|reply| matches!(reply, Reply::Vaults { ticket: 5, .. }));
    assert!(replies.iter().any(|(reply, _)| is_end(reply)));
    assert_eq!(list(&mut worker, Request::Vaults { ticket: 7 }), 0);
}

/// A question does not wait for the reading before it, and loses nothing that was read.
#[test]
fn a_question_interrupts_a_reading_that_goes_on_later() {
    let place = tempfile::tempdir().expect("a folder");
    let mut worker = super::busy(place.path());
    let read = |ticket| Request::ReadDocument {
        ticket,
        of: questions(AUTO),
    };
    worker.say(&read(5));
    worker.find(|reply| {
        matches!(reply, Reply::ReadAhead { ticket: 5, progress } if progress.tokens_done > 1024)
    });
    worker.say(&read(6));
    let (refused, _) = worker.find(|reply| matches!(reply, Reply::Failed { .. }));
    let (ticket, what, _, stopped) = failure(refused);
    assert_eq!((ticket, what, stopped), (Some(6), Failure::Read, false));
    worker.say(&ask(7, QUESTION, "snapkv"));
    let (interrupted, _) = worker.find(|reply| matches!(reply, Reply::Failed { .. }));
    let (ticket, what, _, stopped) = failure(interrupted);
    assert_eq!((ticket, what, stopped), (Some(5), Failure::Read, true));
    let (first, _) = worker.find(super::is_reading);
    let Reply::Progress { progress, .. } = first else {
        unreachable!()
    };
    let known = progress.tokens_from_vault;
    assert!(known >= 1024, "{known}");
    worker.say(&Request::Stop { ticket: 7 });
    let (stopped, _) = worker.find(|reply| matches!(reply, Reply::Failed { .. }));
    assert_eq!(failure(stopped).0, Some(7));
    worker.say(&read(8));
    let (first, _) = worker.find(|reply| matches!(reply, Reply::ReadAhead { ticket: 8, .. }));
    let Reply::ReadAhead { progress, .. } = first else {
        unreachable!()
    };
    assert_eq!(progress.tokens_from_vault, known);
    assert!(progress.tokens_done >= known && progress.tokens_total > 50_000);
    worker.say(&Request::Stop { ticket: 8 });
    let (stopped, _) = worker.find(|reply| matches!(reply, Reply::Failed { .. }));
    assert_eq!(failure(stopped).0, Some(8));
}

#[test]
fn a_document_is_read_before_its_first_question() {
    let place = tempfile::tempdir().expect("a folder");
    let mut worker = start(place.path());
    worker.say(&Request::ReadDocument {
        ticket: 5,
        of: questions("snapkv"),
    });
    let is_read = |reply: &Reply| matches!(reply, Reply::DocumentRead { .. });
    let (read, _) = worker.find(is_read);
    let Reply::DocumentRead {
        ticket: 5,
        tokens,
        stored,
        notes,
    } = read
    else {
        panic!("{read:?}")
    };
    assert!(tokens > 1000 && stored == tokens && notes.is_empty());
    let used = asked(&mut worker, 6);
    assert_eq!((used.tokens_from_vault, used.written), (tokens, false));
}
