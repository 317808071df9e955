//! Reading a document before a question: section by section into its vault, with a stop and a second reading.

use kept_engine::documents::Document;
use kept_engine::kernels::{PackedRows, Stop};
use kept_engine::policies::Budget;
use kept_engine::vault::{VaultFolder, Vaults};
use kept_engine::{
    Answer, Ask, DocumentReadRequest, Engine, EngineError, Event, MethodSpec, Phase, Progress,
    SAMPLE,
};
use kept_tests::golden;

/// About 3,500 tokens, which the model reads in two sections: the smallest, and the rest within seconds.
fn document() -> Document {
    let text = format!("{SAMPLE}\n\n{SAMPLE}");
    Document::from_bytes("twice.txt", text.into_bytes()).expect("a document")
}

fn engine() -> Engine {
    let model = golden::repository().join("assets/mini.gguf");
    Engine::open(&model).expect("the built-in model")
}

/// The work of reading 3,000 of the document's 3,500 tokens.
fn half_of(engine: &Engine) -> u64 {
    3000 * engine.model().step_bytes()
}

fn is_stopped<T>(result: &Result<T, EngineError>) -> bool {
    result.as_ref().is_err_and(EngineError::is_stopped)
}

fn question<'a>(
    document: &'a Document,
    method: &'a MethodSpec,
    vault: Option<Vaults<'a>>,
) -> Ask<'a> {
    Ask {
        budget: Some(Budget::Share(0.25)),
        max_tokens: 16,
        vault,
        ..Ask::new(document, "What is the locker code of Ann Quorvin?", method)
    }
}

fn ask(engine: &Engine, document: &Document, vaults: Option<Vaults<'_>>) -> Answer {
    let method = MethodSpec::plain("snapkv");
    let ask = question(document, &method, vaults);
    let answer = engine.ask(&ask, &mut |_| (), &Stop::new());
    answer.expect("an answer")
}

fn auto() -> MethodSpec {
    MethodSpec::plain("auto")
}

fn of<'a>(
    document: &'a Document,
    vaults: Vaults<'a>,
    method: &'a MethodSpec,
) -> DocumentReadRequest<'a> {
    DocumentReadRequest {
        document,
        method,
        budget: None,
        max_tokens: 16,
        vaults,
        memory: None,
        pause: None,
    }
}

#[test]
fn a_stopped_reading_goes_on_after_its_last_section() {
    let (engine, document, auto) = (engine(), document(), auto());
    let place = tempfile::tempdir().expect("a folder");
    let folder = VaultFolder::new(place.path(), 1 << 30);
    let vaults = Vaults::new(&folder, PackedRows::F16);
    let listed = || {
        let list = folder.list().expect("a list");
        list.iter().map(|vault| vault.tokens).collect::<Vec<_>>()
    };
    // Stopped within the second section.
    let stop = Stop::new();
    let mut last: Option<Progress> = None;
    let mut watch = |now: &Progress| {
        let before = last.replace(*now);
        assert!(before.is_none_or(|before| before.tokens_done <= now.tokens_done));
        if now.tokens_done > 1024 {
            stop.request();
        }
    };
    let stopped = engine.read_document(&of(&document, vaults, &auto), &mut watch, &stop);
    assert!(is_stopped(&stopped), "{stopped:?}");
    assert_eq!(listed(), [1024]);
    let last = last.expect("progress");
    assert!(last.tokens_total > 3000 && last.tokens_done < last.tokens_total);

    // A question uses what was read, and its answer is that of a single reading.
    let other = tempfile::tempdir().expect("a folder");
    let alone = VaultFolder::new(other.path(), 1 << 30);
    let whole = ask(
        &engine,
        &document,
        Some(Vaults::new(&alone, PackedRows::F16)),
    );
    assert_eq!(whole.vault.tokens_from_vault, 0);

    // The second reading goes on, and leaves one vault.
    let mut first = None;
    let mut watch = |now: &Progress| {
        first.get_or_insert(*now);
    };
    let read = engine.read_document(&of(&document, vaults, &auto), &mut watch, &Stop::new());
    let read = read.expect("read");
    assert_eq!((read.from_vault, read.stored), (1024, read.tokens));
    let first = first.expect("progress");
    assert!(first.tokens_done >= 1024 && first.tokens_from_vault == 1024);
    assert_eq!(listed(), [read.tokens], "one vault of the document");
    let answer = ask(&engine, &document, Some(vaults));
    assert_eq!(answer.vault.tokens_from_vault, read.tokens);
    assert!(!answer.vault.written);
    assert_eq!((answer.text, answer.map), (whole.text, whole.map));

    // A third one finds everything.
    let again = engine.read_document(&of(&document, vaults, &auto), &mut |_| (), &Stop::new());
    let again = again.expect("read");
    assert_eq!((again.from_vault, again.stored), (read.tokens, read.tokens));
}

#[test]
fn a_question_uses_the_sections_that_were_read() {
    let (engine, document, auto) = (engine(), document(), auto());
    let place = tempfile::tempdir().expect("a folder");
    let folder = VaultFolder::new(place.path(), 1 << 30);
    let vaults = Vaults::new(&folder, PackedRows::F16);
    let stop = Stop::new();
    let mut watch = |now: &Progress| {
        if now.tokens_done > 1024 {
            stop.request();
        }
    };
    let stopped = engine.read_document(&of(&document, vaults, &auto), &mut watch, &stop);
    assert!(is_stopped(&stopped), "{stopped:?}");
    let answer = ask(&engine, &document, Some(vaults));
    assert_eq!(answer.vault.tokens_from_vault, 1024);
    assert!(answer.vault.written);
    let listed = folder.list().expect("a list");
    assert_eq!(listed.len(), 1, "the vault of the sections is replaced");
    let plain = ask(&engine, &document, Some(vaults));
    assert_eq!((answer.text, answer.map), (plain.text, plain.map));
}

/// A question on a long document reads it in sections too: a stop keeps what was read, and the answer is that of a
/// reading at once.
#[test]
fn a_stopped_question_goes_on_after_its_last_section() {
    let document = document();
    let place = tempfile::tempdir().expect("a folder");
    let folder = VaultFolder::new(place.path(), 1 << 30);
    let vaults = Vaults::new(&folder, PackedRows::F16);
    let at_once = engine();
    let other = tempfile::tempdir().expect("a folder");
    let alone = VaultFolder::new(other.path(), 1 << 30);
    let whole = ask(
        &at_once,
        &document,
        Some(Vaults::new(&alone, PackedRows::F16)),
    );
    let engine = engine().with_section_work(0);
    for name in ["snapkv", "kvzip"] {
        let method = MethodSpec::plain(name);
        let question = question(&document, &method, Some(vaults));
        let stop = Stop::new();
        let mut watch = |event: Event<'_>| {
            if matches!(event, Event::Progress(now, _) if now.tokens_done > 1024) {
                stop.request();
            }
        };
        let stopped = engine.ask(&question, &mut watch, &stop);
        let error = stopped.err().expect("stopped");
        let stored = matches!(error, EngineError::StoppedReading { stored: 1024, .. });
        assert!(stored, "{name}: {error}");
        let listed = folder.list().expect("a list");
        assert_eq!(listed.len(), 1, "{name}");
        assert_eq!(listed[0].tokens, 1024, "{name}");

        // A second stop, of a reading that would not take long by itself, loses nothing either.
        let (half, stop) = (
            engine.clone().with_section_work(half_of(&engine)),
            Stop::new(),
        );
        stop.request();
        let stopped = half.ask(&question, &mut |_| (), &stop);
        let error = stopped.err().expect("stopped");
        assert!(error.to_string().contains("1024 of"), "{name}: {error}");

        let mut again: Vec<Progress> = Vec::new();
        let mut watch = |event: Event<'_>| {
            if let Event::Progress(now, _) = event
                && now.phase == Phase::Reading
            {
                again.push(now);
            }
        };
        let answer = engine.ask(&question, &mut watch, &Stop::new()).expect(name);
        assert_eq!(answer.vault.tokens_from_vault, 1024, "{name}");
        assert!(answer.vault.used && answer.vault.written, "{name}");
        let n = answer.prompt.len();
        assert!(answer.vault.tokens_read >= n - 1024, "{name}");
        let (first, last) = (again[0], again[again.len() - 1]);
        assert_eq!(first.tokens_from_vault, 1024, "{name}");
        assert_eq!(last.tokens_done, last.tokens_total, "{name}: {last:?}");
        assert!(again.is_sorted_by_key(|now| now.tokens_done), "{name}");
        assert!(
            again
                .iter()
                .all(|now| now.tokens_total == last.tokens_total)
        );
        if name == "snapkv" {
            assert_eq!(last.tokens_total, n - 1024);
            assert_eq!((&answer.text, &answer.map), (&whole.text, &whole.map));
        }
        let plain = engine
            .ask(&question, &mut |_| (), &Stop::new())
            .expect(name);
        assert_eq!((answer.text, answer.map), (plain.text, plain.map), "{name}");
        folder.clear().expect("removed");
    }
}

/// A pause ends a reading after the section that is being read; in streaming mode after a few chunks.
#[test]
fn a_pause_keeps_what_is_being_read() {
    let (engine, auto) = (engine(), auto());
    let long = SAMPLE.repeat(4).into_bytes();
    let long = Document::from_bytes("long.txt", long).expect("a document");
    for (document, expected) in [(document(), 1024), (long, 512)] {
        paused_after(&engine, &document, &auto, expected);
    }
}

fn paused_after(engine: &Engine, document: &Document, auto: &MethodSpec, expected: usize) {
    let place = tempfile::tempdir().expect("a folder");
    let folder = VaultFolder::new(place.path(), 1 << 30);
    let vaults = Vaults::new(&folder, PackedRows::F16);
    let (stop, pause) = (Stop::new(), Stop::new());
    let request = DocumentReadRequest {
        pause: Some(&pause),
        ..of(document, vaults, auto)
    };
    let mut watch = |_: &Progress| pause.request();
    let paused = engine.read_document(&request, &mut watch, &stop);
    assert!(is_stopped(&paused), "{paused:?}");
    assert_eq!(folder.list().expect("a list")[0].tokens, expected);
    let read = engine.read_document(&of(document, vaults, auto), &mut |_| (), &stop);
    assert_eq!(read.expect("the rest").from_vault, expected);
}

#[test]
fn a_vault_without_space_and_a_document_too_long_are_told() {
    let (engine, document, auto) = (engine(), document(), auto());
    let place = tempfile::tempdir().expect("a folder");
    let small = VaultFolder::new(place.path(), 10_000);
    let vaults = Vaults::new(&small, PackedRows::Q8_0);
    let read = engine.read_document(&of(&document, vaults, &auto), &mut |_| (), &Stop::new());
    let read = read.expect("not an error");
    assert_eq!(read.stored, 0);
    assert_eq!(read.notes.len(), 1, "{:?}", read.notes);
    let long = SAMPLE.repeat(4);
    let long = Document::from_bytes("long.txt", long.into_bytes()).expect("a document");
    let snapkv = MethodSpec::plain("snapkv");
    let refused = engine.read_document(&of(&long, vaults, &snapkv), &mut |_| (), &Stop::new());
    assert!(refused.is_err(), "it has no streaming mode: {refused:?}");
    let read = engine.read_document(&of(&long, vaults, &auto), &mut |_| (), &Stop::new());
    let read = read.expect("not an error");
    assert_eq!((read.stored, read.notes.len()), (0, 1), "{:?}", read.notes);
}

/// In streaming mode the state at the document's end is the beginning of every question with this method and budget.
#[test]
fn a_document_beyond_the_context_is_read_up_to_its_end() {
    let engine = engine();
    let text = SAMPLE.repeat(4);
    let document = Document::from_bytes("long.txt", text.into_bytes()).expect("a document");
    for name in ["h2o", "ems", "auto"] {
        let method = MethodSpec::plain(name);
        let place = tempfile::tempdir().expect("a folder");
        let folder = VaultFolder::new(place.path(), 1 << 30);
        let vaults = Vaults::new(&folder, PackedRows::Q8_0);
        let ask = |vault, question| {
            let ask = Ask {
                budget: Some(Budget::Share(0.02)),
                max_tokens: 8,
                vault,
                ..Ask::new(&document, question, &method)
            };
            engine.ask(&ask, &mut |_| (), &Stop::new()).expect(name)
        };
        let request = DocumentReadRequest {
            budget: Some(Budget::Share(0.02)),
            ..of(&document, vaults, &method)
        };
        // A pause saves the state.
        let pause = Stop::new();
        let mut watch = |now: &Progress| {
            if now.tokens_done > 3000 {
                pause.request();
            }
        };
        let paused = DocumentReadRequest {
            pause: Some(&pause),
            ..request
        };
        let paused = engine.read_document(&paused, &mut watch, &Stop::new());
        assert!(is_stopped(&paused), "{name}");
        let mut all = Vec::new();
        let read = engine.read_document(&request, &mut |now| all.push(*now), &Stop::new());
        let read = read.expect(name);
        assert!(read.from_vault > 3000 && read.notes.is_empty(), "{name}");
        assert_eq!(read.stored, read.tokens, "{name}");
        let (first, last) = (all[0], all[all.len() - 1]);
        assert!(first.tokens_done > read.from_vault, "{name}: {first:?}");
        assert_eq!(
            (first.tokens_total, last.tokens_done),
            (read.tokens, read.tokens)
        );
        let again = engine.read_document(&request, &mut |_| (), &Stop::new());
        assert_eq!(again.expect(name).from_vault, read.tokens, "{name}");
        for question in [
            "Who keeps the safe?",
            "What is the locker code of Ann Quorvin, and who was told?",
        ] {
            let (known, fresh) = (ask(Some(vaults), question), ask(None, question));
            assert_eq!(known.vault.tokens_from_vault, read.tokens, "{name}");
            assert_eq!((known.text, known.map), (fresh.text, fresh.map), "{name}");
        }
    }
}

/// What these methods measure of the document is in the vault before the first question, which then reads the question
/// only, and answers as without a vault.
#[test]
fn the_method_of_the_questions_measures_while_reading() {
    let (engine, document) = (engine(), document());
    for name in ["h2o", "ems", "expected_attention", "kvzip"] {
        let method = MethodSpec::plain(name);
        let ask = |vaults| {
            let ask = Ask {
                max_tokens: 8,
                ..question(&document, &method, Some(vaults))
            };
            engine.ask(&ask, &mut |_| (), &Stop::new()).expect(name)
        };
        let places = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let folders = places
            .each_ref()
            .map(|place| VaultFolder::new(place.path(), 1 << 30));
        let [vaults, others] = folders
            .each_ref()
            .map(|folder| Vaults::new(folder, PackedRows::F16));
        let request = DocumentReadRequest {
            budget: Some(Budget::Share(0.25)),
            ..of(&document, vaults, &method)
        };
        let mut all: Vec<Progress> = Vec::new();
        let read = engine.read_document(&request, &mut |now| all.push(*now), &Stop::new());
        let read = read.expect(name);
        let tokens = read.tokens;
        assert_eq!((read.stored, read.notes.len()), (tokens, 0), "{name}");
        let last = all.last().expect("progress");
        assert_eq!(last.tokens_done, last.tokens_total, "{name}");
        assert!(all.is_sorted_by_key(|now| now.tokens_done), "{name}");
        assert!(all.iter().all(|now| now.tokens_total == last.tokens_total));
        assert_eq!(last.tokens_total > tokens, name == "kvzip", "{name}");
        assert_eq!(folders[0].list().expect("a list").len(), 1, "{name}");

        let mut again = 0;
        let read = engine.read_document(&request, &mut |_| again += 1, &Stop::new());
        assert_eq!((read.expect(name).stored, again), (tokens, 0), "{name}");

        let (known, first) = (ask(vaults), ask(others));
        assert_eq!(known.vault.tokens_from_vault, tokens, "{name}");
        assert!(!known.vault.written && first.vault.written, "{name}");
        assert_eq!((known.text, known.map), (first.text, first.map), "{name}");
    }
}
