//! The real `kept-worker` over its pipes: its replies, their order, and the absence of any other output.

mod documents;
mod memory;
mod vaults;

use std::time::{Duration, Instant};

use kept_engine::documents::Document;
use kept_engine::kernels::{PackedRows, Stop};
use kept_engine::vault::{VaultFolder, Vaults};
use kept_engine::{
    Answer, Ask, Engine, Finish, LEVELS, MapGrid, MethodSpec, NEUTRAL_QUESTIONS, Phase,
};
use kept_tests::gguf_edit::GgufEdit;
use kept_tests::golden::repository;
use kept_worker::protocol::{AnswerFacts, EstimateRequest, Failure, Reply, Request, header};

use kept_tests::worker::{
    Worker, ask, endless, is_end, open_document, open_model, questions, sample,
};

const QUESTION: &str = "What is the locker code of Ann Quorvin?";

/// A worker with the built-in model and the sample open.
fn ready() -> Worker {
    let mut worker = Worker::start();
    worker.say(&open_model("mini"));
    worker.say(&open_document(sample()));
    worker.find(|reply| matches!(reply, Reply::Tokens { .. }));
    worker
}

/// A worker with a prefill of half a minute or more: the built-in model, edited to accept long documents.
fn busy(folder: &std::path::Path) -> Worker {
    let model = folder.join("long.gguf");
    GgufEdit::of(&repository().join("assets/mini.gguf"))
        .number("llama.context_length", 1 << 20)
        .save(&model);
    let document = folder.join("long.txt");
    let text = std::fs::read_to_string(sample()).expect("the sample");
    std::fs::write(&document, text.repeat(60)).expect("a long document");
    let mut worker = Worker::start();
    worker.say(&open_model(model.to_str().expect("UTF-8")));
    worker.say(&open_document(document));
    let (tokens, _) = worker.find(|reply| matches!(reply, Reply::Tokens { .. }));
    let Reply::Tokens {
        tokens, refusal, ..
    } = tokens
    else {
        unreachable!()
    };
    assert!(refusal.is_none() && tokens > 50_000, "{tokens}");
    worker
}

fn is_reading(reply: &Reply) -> bool {
    matches!(reply, Reply::Progress { .. })
}

/// Ticket, request, message of a refusal, and whether a stop caused it.
fn failure(reply: Reply) -> (Option<u64>, Failure, String, bool) {
    match reply {
        Reply::Failed {
            ticket,
            what,
            message,
            stopped,
            ..
        } => (ticket, what, message, stopped),
        other => panic!("not a refusal: {other:?}"),
    }
}

#[test]
fn hello_is_the_first_reply() {
    let worker = Worker::start_with(&[]);
    let (hello, _) = worker.next();
    assert_eq!(hello, Reply::Hello);
    let ended = worker.close();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
}

/// The answer to [`QUESTION`] in this process.
fn answered_in_process(document: &Document) -> Answer {
    let engine = Engine::open(&repository().join("assets/mini.gguf")).expect("mini");
    let folder = tempfile::tempdir().expect("a folder");
    let folder = VaultFolder::new(folder.path(), 1 << 30);
    let method = MethodSpec::plain("snapkv");
    let ask = Ask {
        max_tokens: 48,
        // As in the worker: a document with a vault is read in other chunks.
        vault: Some(Vaults::new(&folder, PackedRows::Q8_0)),
        ..Ask::new(document, QUESTION, &method)
    };
    let answer = engine.ask(&ask, &mut |_| {}, &Stop::new());
    answer.expect("an answer")
}

/// The empty map of a prompt, from the prompt's announcement.
fn announced_map(reply: &Reply, bytes: &[u8], document: &Document) -> MapGrid {
    let &Reply::Prompt {
        document_tokens,
        tokens_per_cell: 1,
        layers,
        kv_heads,
        ..
    } = reply
    else {
        panic!("the prompt comes first: {reply:?}")
    };
    let ends: Vec<u32> = bytes
        .chunks_exact(4)
        .map(|b| u32::from_le_bytes(b.try_into().expect("four bytes")))
        .collect();
    assert_eq!(ends.len(), document_tokens);
    assert_eq!(
        ends.last().map(|&end| end as usize),
        Some(document.text.encode_utf16().count())
    );
    MapGrid::new(layers, kv_heads, ends)
}

/// Asserts that the worker's answer is the one of this process.
fn assert_same_answer(answer: &AnswerFacts, expected: &Answer, document: &Document) {
    assert_eq!(answer.text, expected.text);
    assert!(answer.text.contains("4711"), "{}", answer.text);
    assert_eq!(answer.report.finish, Finish::End);
    assert_eq!(answer.rows_per_layer, expected.rows_per_layer);
    assert_eq!(answer.report.kv_bytes, expected.report.kv_bytes);
    assert_eq!(answer.citations, expected.citations, "the text is ASCII");
    let cited = answer.citations.first().expect("a clear passage");
    assert!(answer.sources[cited.source].text.contains("4711"));
    assert_eq!(answer.sources.len(), expected.sources.len());
    let code = document.text.find("4711").expect("the code") as u32;
    let spans = expected.prompt.spans();
    let mut looked = answer.attended.iter().flat_map(|one| &one.cells);
    assert!(
        looked.any(|&(cell, weight)| weight > 200 && spans[cell as usize].contains(&code)),
        "{:?}",
        answer.attended
    );
    for (one, expected) in answer.attended.iter().zip(&expected.attended) {
        assert_eq!(one.said as usize, expected.said);
        let cells = one.cells.iter().map(|cell| cell.0);
        assert!(cells.eq(expected.tokens.iter().map(|token| token.0)));
    }
    let units: Vec<u16> = document.text.encode_utf16().collect();
    for (source, expected) in answer.sources.iter().zip(&expected.sources) {
        assert_eq!(source.text, expected.text);
        let cut = String::from_utf16(&units[source.start..source.end]);
        assert_eq!(cut.expect("whole characters"), expected.text);
        assert!((0.0..=1.0).contains(&source.kept));
    }
    assert!(answer.first_token_seconds >= answer.report.prefill_seconds);
}

/// What is kept whatever is asked: the mean of the maps of neutral questions, with the document from the vault.
#[test]
fn a_neutral_map_is_that_of_neutral_questions_with_the_same_instructions() {
    let mut worker = ready();
    worker.say(&ask(1, QUESTION, "snapkv"));
    worker.until(is_end);
    let Request::Ask { ask: mut of, .. } = ask(2, "", "snapkv") else {
        panic!("a question")
    };
    of.instructions = "Be brief.".to_owned();
    worker.say(&Request::Neutral { ticket: 2, ask: of });
    let (reply, bytes) =
        worker.find(|reply| matches!(reply, Reply::NeutralMap { .. } | Reply::Failed { .. }));
    assert_eq!(reply, Reply::NeutralMap { ticket: 2 });
    let mean = MapGrid::from_bytes(&bytes).expect("a map");
    worker.find(|reply| matches!(reply, Reply::NeutralDone { ticket: 2 }));
    let document = Document::open(&sample()).expect("the sample");
    let mut maps = Vec::new();
    for question in NEUTRAL_QUESTIONS {
        let question = format!("Be brief.\n\n{question}");
        worker.say(&ask(3, &question, "snapkv"));
        maps.push(map_of(&worker.until(is_end), &document));
    }
    assert_eq!(Some(mean), MapGrid::mean_of(&maps));
}

/// The whole map of a question, from its replies.
fn map_of(heard: &[(Reply, Vec<u8>)], document: &Document) -> MapGrid {
    let mut map = announced_map(&heard[0].0, &heard[0].1, document);
    for (reply, bytes) in heard {
        if let Reply::Layer { layer, .. } = reply {
            map.set_heads(*layer, bytes).expect("a layer that fits");
        }
    }
    map
}

/// What is kept with less memory is what the same question keeps with these budgets.
#[test]
fn levels_are_the_maps_of_smaller_budgets() {
    let mut worker = ready();
    worker.say(&ask(1, QUESTION, "snapkv"));
    worker.until(is_end);
    let with_budget = |ticket: u64, question: &str, percent: u8| {
        let Request::Ask { mut ask, .. } = ask(ticket, question, "snapkv") else {
            panic!("a question")
        };
        ask.budget = Some(format!("{percent}%"));
        ask
    };
    let mut of = with_budget(2, QUESTION, 25);
    of.instructions = "Be brief.".to_owned();
    worker.say(&Request::Levels { ticket: 2, ask: of });
    let heard = worker.until(|reply| matches!(reply, Reply::LevelsDone { ticket: 2 }));
    let levels: Vec<(u8, &Vec<u8>)> = heard
        .iter()
        .filter_map(|(reply, bytes)| match reply {
            Reply::Level { ticket: 2, percent } => Some((*percent, bytes)),
            _ => None,
        })
        .collect();
    let percents: Vec<u8> = levels.iter().map(|(percent, _)| *percent).collect();
    // The observation window alone is more than 2 % of the sample.
    assert!(LEVELS.ends_with(&percents) && percents.len() + 3 > LEVELS.len());
    let document = Document::open(&sample()).expect("the sample");
    let instructed = format!("Be brief.\n\n{QUESTION}");
    for (percent, shares) in levels {
        let request = Request::Ask {
            ticket: 3,
            ask: with_budget(3, &instructed, percent),
        };
        worker.say(&request);
        let map = map_of(&worker.until(is_end), &document);
        assert_eq!(*shares, map.shares(), "{percent} %");
    }
}

#[test]
fn instructions_stand_before_the_question() {
    let mut worker = ready();
    worker.say(&ask(1, QUESTION, "snapkv"));
    worker.until(is_end);
    let document = Document::open(&sample()).expect("the sample");
    let instructed = format!("Be brief.\n\n{QUESTION}");
    let cases = [("Be brief.", QUESTION), ("", &instructed), ("", QUESTION)];
    let [together, joined, alone] = cases.map(|(instructions, question)| {
        let mut request = ask(2, question, "snapkv");
        let Request::Ask { ask, .. } = &mut request else {
            panic!("a question")
        };
        ask.instructions = instructions.to_owned();
        worker.say(&request);
        map_of(&worker.until(is_end), &document)
    });
    assert_eq!(together, joined);
    assert_ne!(together, alone);
}

/// All replies of one question, against the same question in this process.
#[test]
fn answers_equal_those_in_process() {
    let mut worker = ready();
    worker.say(&ask(7, QUESTION, "snapkv"));
    let heard = worker.until(is_end);
    let document = Document::open(&sample()).expect("the sample");
    let expected = answered_in_process(&document);
    let mut grid = announced_map(&heard[0].0, &heard[0].1, &document);
    let (mut text, mut phases) = (String::new(), Vec::new());
    let (mut read, mut glows) = (false, false);
    for (reply, bytes) in &heard[1..] {
        match reply {
            Reply::Layer { ticket: 7, layer } => {
                assert!(!read, "layers are cut while reading");
                grid.set_heads(*layer, bytes).expect("a layer that fits");
            }
            Reply::Progress {
                ticket: 7,
                progress,
                memory,
            } => {
                phases.push(progress.phase);
                assert!(memory.weights > 0 && memory.kept <= memory.kept_full);
                assert!(!cfg!(target_os = "linux") || memory.resident.is_some());
            }
            Reply::Read { ticket: 7, .. } => read = true,
            Reply::Token {
                ticket: 7,
                text: piece,
                attended,
            } => {
                assert!(read, "nothing is said before all is read");
                text += piece;
                glows |= !attended.is_empty();
            }
            Reply::Answered { ticket: 7, answer } => {
                assert_eq!(answer.text, text);
                assert_same_answer(answer, &expected, &document);
                assert!(glows, "also while the answer is written");
            }
            other => panic!("unexpected: {other:?}"),
        }
    }
    assert!(phases.contains(&Phase::Reading) && phases.contains(&Phase::Answering));
    let counts: Vec<u32> = grid.counts(None).into_iter().map(u32::from).collect();
    let positions = expected.prompt.document.clone();
    assert_eq!(counts, expected.map.counts()[positions]);
}

#[test]
fn estimates_do_not_wait_for_a_question() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut worker = busy(folder.path());
    worker.say(&ask(1, QUESTION, "snapkv"));
    worker.find(is_reading);
    for (ticket, budget) in [(2, Some("10%")), (3, Some("ten")), (4, None)] {
        worker.say(&Request::Estimate {
            ticket,
            of: EstimateRequest {
                budget: budget.map(str::to_owned),
                ..questions("snapkv")
            },
            turns: Vec::new(),
        });
    }
    let figures = |ticket: u64| move |reply: &Reply| matches!(reply, Reply::Estimate { ticket: t, .. } if *t == ticket);
    let (reply, _) = worker.find(figures(2));
    let Reply::Estimate { estimate, .. } = reply else {
        unreachable!()
    };
    assert_eq!(estimate.rows, estimate.prompt_tokens / 10);
    assert!(estimate.kv_bytes * 9 < estimate.kv_bytes_full);
    let (ticket, what, message, _) = failure(worker.find(is_end).0);
    assert_eq!((ticket, what), (Some(3), Failure::Estimate));
    assert!(message.contains("ten"), "{message}");
    worker.find(figures(4));
    // A second question is refused, the first continues.
    worker.say(&ask(5, QUESTION, "full"));
    let (ticket, what, message, stopped) = failure(worker.find(is_end).0);
    assert_eq!((ticket, what, stopped), (Some(5), Failure::Ask, false));
    assert!(message.contains("another question"), "{message}");
    worker.find(is_reading);
    // A stop for another question has no effect; the right one ends the prefill at once.
    worker.say(&Request::Stop { ticket: 5 });
    worker.find(is_reading);
    let started = Instant::now();
    worker.say(&Request::Stop { ticket: 1 });
    let (ticket, what, _, stopped) = failure(worker.find(is_end).0);
    assert_eq!((ticket, what, stopped), (Some(1), Failure::Ask, true));
    let took = started.elapsed();
    assert!(took < Duration::from_secs(1), "stopped after {took:?}");
    // The next question is accepted.
    worker.say(&ask(6, QUESTION, "streaming_llm"));
    worker.find(is_reading);
}

#[test]
fn a_stopped_answer_keeps_its_text() {
    let mut worker = ready();
    worker.say(&Request::Ask {
        ticket: 9,
        ask: endless(QUESTION, "streaming_llm", 2000),
    });
    let mut heard = worker.until(|reply| matches!(reply, Reply::Token { .. }));
    worker.say(&Request::Stop { ticket: 9 });
    heard.extend(worker.until(is_end));
    let said: String = heard
        .iter()
        .filter_map(|(reply, _)| match reply {
            Reply::Token { text, .. } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    let Some((Reply::Answered { answer, .. }, _)) = heard.last() else {
        panic!("{:?}", heard.last())
    };
    assert_eq!(answer.report.finish, Finish::Stopped);
    assert_eq!(answer.text, said);
}

#[test]
fn closing_stdin_ends_the_worker_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut worker = busy(folder.path());
    worker.say(&ask(1, QUESTION, "full"));
    worker.find(is_reading);
    let ended = worker.close();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert!(ended.after < Duration::from_secs(1), "{:?}", ended.after);
    assert!(!ended.said.iter().any(|(reply, _)| is_end(reply)));
    // Its partial vault was removed.
    assert_eq!(ended.left, ["counting.lock"]);
}

/// An app that dies closes its end of both pipes.
#[test]
fn an_app_that_dies_leaves_no_partial_vault() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut worker = busy(folder.path());
    worker.say(&ask(1, QUESTION, "full"));
    worker.find(is_reading);
    let ended = worker.abandon();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert_eq!(ended.left, ["counting.lock"]);
}

/// A frame of JSON without bytes.
fn frame(json: &str) -> Vec<u8> {
    let header = header(json.len(), 0).expect("a length");
    [&header, json.as_bytes()].concat()
}

#[test]
fn invalid_frames_end_the_worker_with_one_line() {
    for (garbage, says) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "frame"),
        (vec![0xff; 64], "frame"),
        (vec![9, 0, 0, 0, 0, b'{'], "inside a frame"),
        (frame("{\"request\":"), "not understood"),
        (vec![0; 8], "not understood"),
    ] {
        let mut worker = Worker::start();
        worker.say_raw(&garbage);
        let ended = worker.close();
        assert_eq!(ended.code, Some(2), "{garbage:?}: {}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
        assert!(ended.stderr.contains(says), "{says}: {}", ended.stderr);
    }
}

#[test]
fn an_unknown_request_is_refused_and_the_next_accepted() {
    let mut worker = Worker::start();
    worker.say_raw(&frame("{\"request\":\"make_coffee\"}"));
    let (ticket, what, message, _) = failure(worker.next().0);
    assert_eq!((ticket, what), (None, Failure::Request));
    assert!(message.contains("make_coffee"), "{message}");
    for (request, what, says) in [
        (ask(1, QUESTION, "full"), Failure::Ask, "no model"),
        (
            open_model("/nowhere/model.gguf"),
            Failure::Model,
            "there is no such file",
        ),
    ] {
        worker.say(&request);
        let refused = failure(worker.next().0);
        assert_eq!(refused.1, what);
        assert!(refused.2.contains(says), "{}", refused.2);
    }
    worker.say(&open_model("mini"));
    assert!(matches!(worker.next().0, Reply::Model { .. }));
    worker.say(&ask(2, QUESTION, "full"));
    assert!(failure(worker.next().0).2.contains("no document"));
}

/// Output of libraries never reaches the frames, and the log never contains document text.
#[test]
fn only_frames_reach_stdout() {
    let folder = tempfile::tempdir().expect("a folder");
    let secret = folder.path().join("secret.txt");
    let text = "The password of the vault is Zanzibarossa. ".repeat(30);
    std::fs::write(&secret, text).expect("a document");
    let mut worker = Worker::start_with(&[("KEPT_LOG", "trace")]);
    worker.next();
    if cfg!(target_os = "linux") {
        let open = |fd: u32| {
            std::fs::read_link(format!("/proc/{}/fd/{fd}", worker.pid())).expect("an open file")
        };
        assert_eq!(open(1), open(2), "what is printed goes to standard error");
    }
    worker.say(&open_model("mini"));
    worker.say(&open_document(secret));
    worker.say(&ask(1, "What is the Quetzalword?", "snapkv"));
    assert!(matches!(worker.find(is_end).0, Reply::Answered { .. }));
    let ended = worker.close();
    assert!(ended.stderr.contains("reading"), "{}", ended.stderr);
    for word in ["Zanzibarossa", "Quetzalword", "vault"] {
        assert!(!ended.stderr.contains(word), "{}", ended.stderr);
    }
}
