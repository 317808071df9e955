//! A second question on a document that was read in streaming: it goes on from the document's end, and its answer is the one that a fresh
//! reading gives.

use kept_engine::documents::Document;
use kept_engine::kernels::{PackedRows, Stop};
use kept_engine::policies::STREAMING;
use kept_engine::vault::Vaults;
use kept_engine::{Answer, Ask, Engine, EngineError, Limits, Method, Sampling, Streaming};
use kept_tests::golden::repository;
use kept_tests::vaults::Place;

const FIRST: &str = "What is the locker code of Ann Quorvin?";
const SECOND: &str = "Who keeps the safe, and what opens it?";

fn engine() -> Engine {
    Engine::open(&repository().join("assets/mini.gguf")).expect("the model in the box")
}

fn sample() -> Document {
    Document::open(&repository().join("assets/sample.txt")).expect("the sample")
}

/// A question in streaming, after which the document is remembered if there is a `place` for vaults.
fn ask(
    engine: &Engine,
    document: &Document,
    place: Option<&Place>,
    (method, rows): (&str, u32),
    question: &str,
    stop: &Stop,
) -> Result<Answer, EngineError> {
    let method = Method {
        name: method.to_owned(),
        parameters: Vec::new(),
    };
    let ask = Ask {
        document,
        question,
        method: &method,
        budget: Some(rows.to_string().parse().expect("a budget")),
        sampling: &Sampling::default(),
        max_tokens: 12,
        thinking: false,
        limits: Limits {
            streaming: Streaming::On,
            ..Limits::default()
        },
        vault: place.map(|place| Vaults {
            folder: &place.vaults,
            kind: PackedRows::Q8_0,
        }),
    };
    engine.ask(&ask, &mut |_| (), stop)
}

fn answered(
    engine: &Engine,
    document: &Document,
    place: Option<&Place>,
    how: (&str, u32),
    question: &str,
) -> Answer {
    ask(engine, document, place, how, question, &Stop::new()).expect("an answer")
}

#[test]
fn a_later_question_goes_on_from_the_documents_end_and_answers_the_same() {
    let (engine, document, place) = (engine(), sample(), Place::default());
    for method in STREAMING {
        let how = (method, 160);
        let first = answered(&engine, &document, Some(&place), how, FIRST);
        assert!(!first.vault.used && first.streamed, "{method}");
        assert!(first.ledger.remembered > 0, "{method}");
        let end = first.prompt.document.end;
        // Twice, because what is remembered must not be what was gone on with.
        for question in [SECOND, FIRST, SECOND] {
            let again = answered(&engine, &document, Some(&place), how, question);
            let n = again.prompt.len();
            assert!(again.vault.used, "{method}");
            assert_eq!(again.vault.tokens_from_vault, end, "{method}");
            assert_eq!(again.vault.tokens_read, n - end, "{method}");
            let fresh = answered(&self::engine(), &document, None, how, question);
            assert!(!fresh.vault.used && fresh.ledger.remembered == 0);
            assert_eq!(again.text, fresh.text, "{method}: {question}");
            assert_eq!(again.map, fresh.map, "{method}: {question}");
        }
    }
    assert!(place.files().is_empty(), "nothing of it goes to the disk");
}

#[test]
fn another_reading_begins_anew() {
    let (engine, document, place) = (engine(), sample(), Place::default());
    let how = ("streaming_llm", 160);
    let knows = |how, document: &Document, place: Option<&Place>| {
        answered(&engine, document, place, how, SECOND).vault.used
    };
    assert!(!knows(how, &document, Some(&place)));
    assert!(knows(how, &document, Some(&place)));
    assert!(!knows(("treekv", 160), &document, Some(&place)), "a method");
    assert!(!knows(how, &document, Some(&place)), "only the last one");
    assert!(
        !knows(("streaming_llm", 200), &document, Some(&place)),
        "a budget"
    );
    let other = Document::from_bytes(
        "other.txt",
        document.text.replacen("Ann", "Eve", 1).into_bytes(),
    )
    .expect("a text");
    assert!(
        !knows(("streaming_llm", 200), &other, Some(&place)),
        "a text"
    );
    assert!(knows(("streaming_llm", 200), &other, Some(&place)));
    assert!(!knows(("streaming_llm", 200), &other, None), "not wanted");
    assert!(
        !knows(("streaming_llm", 200), &other, Some(&place)),
        "let go of"
    );
}

#[test]
fn a_stopped_question_leaves_what_was_read_of_the_document() {
    let (engine, document, place) = (engine(), sample(), Place::default());
    let how = ("ems", 160);
    let stopped = Stop::new();
    stopped.request();
    assert!(ask(&engine, &document, Some(&place), how, FIRST, &stopped).is_err());
    let first = answered(&engine, &document, Some(&place), how, FIRST);
    assert!(!first.vault.used, "the document had not been read");
    assert!(ask(&engine, &document, Some(&place), how, SECOND, &stopped).is_err());
    assert!(
        answered(&engine, &document, Some(&place), how, SECOND)
            .vault
            .used
    );
}
