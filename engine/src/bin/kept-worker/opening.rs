//! Opening models and documents, and counting a document's tokens: each on a thread of its own, so that nothing waits.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use kept_engine::documents::Document;
use kept_engine::protocol::{DocumentInfo, MAX_PAYLOAD_BYTES, ModelFacts};
use kept_engine::{DocumentLength, Engine, model_path};

use crate::desk::Input;
use crate::facts;

/// A model that is ready to be asked.
pub struct OpenModel {
    pub engine: Engine,
    pub facts: ModelFacts,
}

/// A document that is ready to be asked about.
pub struct OpenDocument {
    pub info: DocumentInfo,
    pub document: Document,
}

/// What came of something that was opened or counted; the error is a sentence.
pub type Outcome<T> = Result<T, String>;

/// Opens the model that `choice` names; the desk hears of it under `number`.
pub fn model(number: u64, choice: String, inbox: Sender<Input>) {
    on_a_thread(inbox, "model", move || {
        Input::ModelOpened(number, or_bug(|| open_model(&choice)).map(Arc::new))
    });
}

/// Reads the document at `path`; the desk hears of it under `number`.
pub fn document(number: u64, path: PathBuf, inbox: Sender<Input>) {
    on_a_thread(inbox, "document", move || {
        Input::DocumentOpened(number, or_bug(|| open_document(&path)).map(Arc::new))
    });
}

/// Counts the tokens of `document` for `model`; the desk hears of it under `number`.
pub fn count(number: u64, model: Arc<OpenModel>, text: Arc<OpenDocument>, inbox: Sender<Input>) {
    on_a_thread(inbox, "count", move || {
        let counted = or_bug(|| {
            DocumentLength::new(model.engine.model(), &text.document.text)
                .map_err(|error| error.to_string())
        });
        Input::Counted(number, counted)
    });
}

fn on_a_thread(inbox: Sender<Input>, name: &str, work: impl FnOnce() -> Input + Send + 'static) {
    let started = std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            // The desk outlives everything but the process.
            let _ = inbox.send(work());
        });
    if let Err(error) = started {
        eprintln!("kept-worker: no thread could be started ({error})");
        std::process::exit(crate::BROKEN);
    }
}

/// A bug in what is opened is an answer too, not the end of the process.
fn or_bug<T>(work: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err("the engine met an internal error while opening it; choose another file and report this one".to_owned())
    })
}

fn open_model(choice: &str) -> Outcome<OpenModel> {
    let path = model_path(choice).map_err(|error| error.to_string())?;
    let engine = Engine::open(&path).map_err(|error| error.to_string())?;
    // Both are made on first use: what is wrong with them should be known now, and nobody should wait for them later.
    let model = engine.model();
    let of_file = |error| format!("{}: {error}", path.display());
    model.tokenizer().map_err(of_file)?;
    model.chat_template().map_err(of_file)?;
    Ok(OpenModel {
        facts: facts::model(&engine, choice, &path),
        engine,
    })
}

fn open_document(path: &Path) -> Outcome<OpenDocument> {
    let document = Document::open(path).map_err(|error| error.to_string())?;
    if document.text.len() > MAX_PAYLOAD_BYTES {
        return Err(format!(
            "{} has {} bytes of text, more than the {MAX_PAYLOAD_BYTES} that can be shown: split it into smaller files",
            path.display(),
            document.text.len()
        ));
    }
    Ok(OpenDocument {
        info: facts::document(&document),
        document,
    })
}
