//! A second question on a document that was read in streaming mode, also after a restart: it starts from the checkpoint
//! of the document's end in the vault folder, and its answer equals that of a fresh prefill.

use std::path::Path;

use kept_engine::documents::Document;
use kept_engine::kernels::{CacheType, PackedRows, Stop};
use kept_engine::policies::{Budget, STREAMING};
use kept_engine::vault::Vaults;
use kept_engine::{Answer, Ask, Engine, EngineError, Event, Limits, MethodSpec, Streaming};
use kept_tests::golden::{Unpacked, repository};
use kept_tests::method_spec::{TestMethod, spec};
use kept_tests::vaults::Place;

const FIRST: &str = "What is the locker code of Ann Quorvin?";
const SECOND: &str = "Who keeps the safe, what opens it, and who else was told so?";

/// As after a restart: only the files on disk remain.
fn opened(path: &Path, cache: CacheType) -> Engine {
    Engine::open(path).expect("a model").with_cache(cache)
}

fn engine() -> Engine {
    opened(&repository().join("assets/mini.gguf"), CacheType::F16)
}

fn sample() -> Document {
    Document::open(&repository().join("assets/sample.txt")).expect("the sample")
}

/// A question in streaming mode; with a `place`, the checkpoint of the document's end is stored.
fn ask(
    engine: &Engine,
    document: &Document,
    place: Option<&Place>,
    method: TestMethod,
    question: &str,
    stop: &Stop,
) -> Result<Answer, EngineError> {
    let budget = Some(Budget::Rows(method.budget));
    let method = MethodSpec::plain(method.name);
    let ask = Ask {
        budget,
        // A longer answer on the same document.
        max_tokens: if question == FIRST { 12 } else { 20 },
        limits: Limits::from(Streaming::On),
        vault: place.map(|place| Vaults::new(&place.vaults, PackedRows::Q8_0)),
        ..Ask::new(document, question, &method)
    };
    engine.ask(&ask, &mut |_| (), stop)
}

fn answered(
    engine: &Engine,
    document: &Document,
    place: Option<&Place>,
    method: TestMethod,
    question: &str,
) -> Answer {
    ask(engine, document, place, method, question, &Stop::new()).expect("an answer")
}

/// Under every method, with every cache type, and with sliding-window layers.
#[test]
fn a_checkpoint_gives_the_answer_of_a_fresh_prefill() {
    let mini = repository().join("assets/mini.gguf");
    let gemma = Unpacked::architecture("gemma3");
    let document = sample();
    let cases = [
        (&*mini, CacheType::F16, &STREAMING[..], 160),
        (&*mini, CacheType::F32, &["h2o", "ems"], 160),
        (&*mini, CacheType::Q8_0, &["tova", "treekv"], 160),
        (&*mini, CacheType::Q4_0, &["streaming_llm"], 160),
        (&*gemma.path(), CacheType::F16, &["treekv", "ems"], 40),
    ];
    for (model, cache, methods, rows) in cases {
        for &method in methods {
            let what = format!("{} {cache:?} {method}", model.display());
            let (how, place) = (spec(method, "", rows), Place::default());
            let first = opened(model, cache);
            let first = answered(&first, &document, Some(&place), how, FIRST);
            assert!(!first.vault.used && first.report.streamed, "{what}");
            assert!(first.vault.written, "{what}: {:?}", first.notes);
            let files = place.files();
            assert_eq!(files.len(), 1, "{what}");
            let bytes = files[0].metadata().expect("a file").len();
            assert_eq!(first.vault.bytes, bytes, "{what}");
            let end = first.prompt.document.end;
            for question in [SECOND, FIRST] {
                let again = opened(model, cache);
                let again = answered(&again, &document, Some(&place), how, question);
                let n = again.prompt.len();
                let as_long = n == first.prompt.len();
                assert_eq!(as_long, question == FIRST, "questions of different length");
                assert!(again.vault.used && !again.vault.written, "{what}");
                assert_eq!(again.vault.tokens_from_vault, end, "{what}");
                assert_eq!(again.vault.tokens_read, n - end, "{what}");
                assert_eq!(again.vault.bytes, bytes, "{what}");
                let fresh = opened(model, cache);
                let fresh = answered(&fresh, &document, None, how, question);
                assert!(!fresh.vault.used && fresh.vault.bytes == 0);
                assert_eq!(again.text, fresh.text, "{what}: {question}");
                assert_eq!(again.map, fresh.map, "{what}: {question}");
            }
        }
    }
}

#[test]
fn a_checkpoint_needs_same_text_method_budget_and_type() {
    let (engine, document, place) = (engine(), sample(), Place::default());
    let knows = |how: TestMethod, document: &Document, place: Option<&Place>| {
        answered(&engine, document, place, how, SECOND).vault.used
    };
    let how = spec("streaming_llm", "", 160);
    assert!(!knows(how, &document, Some(&place)));
    assert!(knows(how, &document, Some(&place)));
    let other = Document::from_bytes(
        "other.txt",
        document.text.replacen("Ann", "Eve", 1).into_bytes(),
    )
    .expect("a text");
    for (how, document, what) in [
        (spec("treekv", "", 160), &document, "a method"),
        (spec("streaming_llm", "", 200), &document, "a budget"),
        (how, &other, "a text"),
    ] {
        assert!(!knows(how, document, Some(&place)), "{what}");
        assert!(knows(how, document, Some(&place)), "{what}");
    }
    assert_eq!(place.files().len(), 4);
    assert!(!knows(how, &document, None), "not wanted");
    assert!(knows(how, &document, Some(&place)), "but still there");
    let engine = opened(&repository().join("assets/mini.gguf"), CacheType::F32);
    let f32 = answered(&engine, &document, Some(&place), how, SECOND);
    assert!(!f32.vault.used, "rows that are stored in another way");
}

#[test]
fn a_damaged_checkpoint_is_replaced() {
    let (engine, document) = (engine(), sample());
    for method in STREAMING {
        let how = spec(method, "", 160);
        let place = Place::default();
        let ask = || answered(&engine, &document, Some(&place), how, SECOND);
        let first = ask();
        let [file] = &place.files()[..] else {
            panic!("one file")
        };
        let whole = std::fs::read(file).expect("a file");
        // The footer is the JSON after the last number.
        let braces: Vec<usize> = (0..whole.len() - 1)
            .filter(|&at| whole[at..].starts_with(b"{\""))
            .collect();
        let last = braces[braces.len() - 2] - 1;
        let damages = [
            ("a number", 5000, whole.len()),
            ("the last number", last, whole.len()),
            ("its length", 0, whole.len() / 2),
        ];
        for (what, at, length) in damages {
            let mut bytes = whole.clone();
            bytes[at] ^= 4;
            bytes.truncate(length);
            std::fs::write(file, bytes).expect("it is written");
            let again = ask();
            assert!(!again.vault.used && again.vault.written, "{method}, {what}");
            let notes = format!("{:?}", again.notes);
            assert!(
                notes.contains("the document's vault could not be used"),
                "{method}, {what}: {notes}"
            );
            assert_eq!(again.text, first.text, "{method}, {what}");
            assert_eq!(again.map, first.map, "{method}, {what}");
            assert_eq!(
                std::fs::read(file).expect("a file"),
                whole,
                "{method}, {what}"
            );
        }
        assert!(ask().vault.used);
    }
}

#[test]
fn a_checkpoint_over_the_disk_limit_costs_no_answer() {
    let (engine, document, place) = (engine(), sample(), Place::new(4096));
    let how = spec("h2o", "", 160);
    for _ in 0..2 {
        let answer = answered(&engine, &document, Some(&place), how, FIRST);
        assert!(!answer.vault.used && !answer.vault.written);
        assert_eq!(answer.vault.bytes, 0);
        let notes = format!("{:?}", answer.notes);
        assert!(
            notes.contains("the vault could not be written")
                && notes.contains("may take 4.0 KiB in all"),
            "{notes}"
        );
    }
    assert!(place.files().is_empty());
}

#[test]
fn a_stopped_question_keeps_an_existing_checkpoint() {
    let (engine, document, place) = (engine(), sample(), Place::default());
    let how = spec("ems", "", 160);
    let stopped = Stop::new();
    stopped.request();
    assert!(ask(&engine, &document, Some(&place), how, FIRST, &stopped).is_err());
    assert!(place.files().is_empty(), "nothing half-read");
    let first = answered(&engine, &document, Some(&place), how, FIRST);
    assert!(!first.vault.used, "the document had not been read");
    assert!(ask(&engine, &document, Some(&place), how, SECOND, &stopped).is_err());
    let again = answered(&engine, &document, Some(&place), how, SECOND);
    assert!(again.vault.used);
}

/// A stop, or the end of the program, loses what was read since the state was saved last.
#[test]
fn an_interrupted_reading_goes_on_with_the_same_answer() {
    let engine = engine();
    let text = sample().text.repeat(8);
    let document = Document::from_bytes("long.txt", text.into_bytes()).expect("a document");
    let (place, method) = (Place::default(), spec("streaming_llm", "", 128));
    let fresh = answered(&engine, &document, None, method, FIRST);
    let stop = Stop::new();
    let stopped = {
        let spec = MethodSpec::plain(method.name);
        let ask = Ask {
            budget: Some(Budget::Rows(method.budget)),
            max_tokens: 12,
            limits: Limits::from(Streaming::On),
            vault: Some(Vaults::new(&place.vaults, PackedRows::Q8_0)),
            ..Ask::new(&document, FIRST, &spec)
        };
        let mut on_event = |event: Event<'_>| {
            let saved = || !place.vaults.list().expect("a list").is_empty();
            if matches!(event, Event::Progress(..)) && saved() {
                stop.request();
            }
        };
        engine.ask(&ask, &mut on_event, &stop)
    };
    let Err(EngineError::StoppedReading { stored, .. }) = stopped else {
        panic!("stopped after the state was saved: {:?}", stopped.err());
    };
    let [unfinished] = &place.vaults.list().expect("a list")[..] else {
        panic!("one state");
    };
    let seen = unfinished.tokens;
    assert_eq!(stored, seen);
    assert!((4096..=8192).contains(&seen), "{seen}");
    let again = answered(&engine, &document, Some(&place), method, FIRST);
    assert_eq!(again.vault.tokens_from_vault, seen);
    assert_eq!((again.text, again.map), (fresh.text, fresh.map));
    let [end] = &place.vaults.list().expect("a list")[..] else {
        panic!("one state");
    };
    assert_eq!(end.tokens, again.prompt.document.end);
}
