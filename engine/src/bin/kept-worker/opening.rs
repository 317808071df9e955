//! Opening models and documents, and counting a document's tokens: each on a thread of its own, so that nothing waits.

use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kept_engine::documents::Document;
use kept_engine::models::{OpenOptions, RopeChoice};
use kept_engine::protocol::{
    DocumentInfo, Failure, Inspection, MAX_PAYLOAD_BYTES, ModelFacts, Reply,
};
use kept_engine::{DocumentLength, Engine, model_path};

use crate::device;
use crate::dispatcher::Input;
use crate::facts;
use crate::output::Output;

/// A model as a window names it: a path or `mini`, and how its context is stretched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelName {
    pub model: String,
    pub stretch: Option<String>,
}

/// A model that is ready to be asked.
pub struct OpenModel {
    pub engine: Engine,
    pub facts: ModelFacts,
}

impl OpenModel {
    /// What it was opened by.
    pub fn name(&self) -> ModelName {
        ModelName {
            model: self.facts.choice.clone(),
            stretch: self.facts.stretch.clone(),
        }
    }
}

/// A document that is ready to be asked about.
pub struct OpenDocument {
    pub info: DocumentInfo,
    pub document: Document,
}

/// What came of something that was opened or counted; the error is a sentence.
pub type Outcome<T> = Result<T, String>;

/// A model that was opened, or why it was not.
pub struct Opened {
    pub outcome: Outcome<Arc<OpenModel>>,
    /// The one before, where it need not make room.
    pub before: Option<Arc<OpenModel>>,
}

/// Opens the model that `name` means; the desk hears of it under `number`. The one `before` makes room for it, if it is given, once
/// nobody works with it any more.
pub fn model(
    number: u64,
    name: ModelName,
    mut before: Option<Arc<OpenModel>>,
    inbox: Sender<Input>,
) {
    on_a_thread("model", move || {
        let outcome = or_bug(|| open_model(&name, &mut before)).map(Arc::new);
        // The desk outlives everything but the process.
        let _ = inbox.send(Input::ModelOpened(number, Opened { outcome, before }));
    });
}

/// Says what the model that `name` means can read. Nothing on the desk depends on it, so it is said right away.
pub fn inspect(ticket: u64, name: ModelName, output: Output) {
    on_a_thread("inspect", move || {
        output.say(&match or_bug(|| inspected(&name)) {
            Ok(inspection) => Reply::Inspected {
                ticket,
                inspection: Box::new(inspection),
            },
            Err(message) => Reply::Failed {
                ticket: Some(ticket),
                what: Failure::Inspect,
                message,
                stopped: false,
            },
        });
    });
}

/// Reads the document at `path`; the desk hears of it under `number`.
pub fn document(number: u64, path: PathBuf, inbox: Sender<Input>) {
    on_a_thread("document", move || {
        let opened = or_bug(|| open_document(&path)).map(Arc::new);
        let _ = inbox.send(Input::DocumentOpened(number, opened));
    });
}

/// Counts the tokens of `document` for `model`; the desk hears of it under `number`.
pub fn count(number: u64, model: Arc<OpenModel>, text: Arc<OpenDocument>, inbox: Sender<Input>) {
    on_a_thread("count", move || {
        let counted = or_bug(|| {
            DocumentLength::new(model.engine.model(), &text.document.text)
                .map_err(|error| error.to_string())
        });
        let _ = inbox.send(Input::Counted(number, counted));
    });
}

fn on_a_thread(name: &str, work: impl FnOnce() + Send + 'static) {
    let named = std::thread::Builder::new().name(name.to_owned());
    let started = named.spawn(work);
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

/// The engine on the file that `name` means, and that file. Nothing of its weights is read.
fn engine_of(name: &ModelName) -> Outcome<(Engine, PathBuf)> {
    let stretch = name.stretch.as_deref().map(str::parse::<RopeChoice>);
    let options = OpenOptions {
        rope: stretch.transpose()?,
    };
    let path = model_path(&name.model).map_err(|error| error.to_string())?;
    let engine = Engine::open_with(&path, &options).map_err(|error| error.to_string())?;
    Ok((engine, path))
}

fn inspected(name: &ModelName) -> Outcome<Inspection> {
    let (engine, _) = engine_of(name)?;
    Ok(facts::inspection(&engine))
}

fn open_model(name: &ModelName, before: &mut Option<Arc<OpenModel>>) -> Outcome<OpenModel> {
    let (engine, path) = engine_of(name)?;
    // Both are made on first use: what is wrong with them should be known now, and nobody should wait for them later.
    let model = engine.model();
    let of_file = |error| format!("{}: {error}", path.display());
    model.tokenizer().map_err(of_file)?;
    model.chat_template().map_err(of_file)?;
    let (engine, why_processor) = {
        // One after the other, so that none is placed beside another that is on its way out.
        static PLACING: Mutex<()> = Mutex::new(());
        let _alone = PLACING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = before.take() {
            let_go(before);
        }
        device::place(engine)?
    };
    Ok(OpenModel {
        facts: facts::model(&engine, name, &path, why_processor),
        engine,
    })
}

/// Waits until nobody else has the model, and gives back what it holds.
fn let_go(mut model: Arc<OpenModel>) {
    while let Err(held) = Arc::try_unwrap(model) {
        model = held;
        std::thread::sleep(Duration::from_millis(10));
    }
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
