//! Opens models and documents and counts document tokens, each on a thread of its own, so that the dispatcher never
//! blocks.

use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kept_engine::documents::{Document, Recognition};
use kept_engine::kernels::Stop;
use kept_engine::models::{OpenOptions, RopeChoice};
use kept_engine::{DocumentLength, Engine, EngineError, model_path};
use kept_worker::protocol::{Access, Failure, Fault, Inspection, MAX_PAYLOAD_BYTES, Reply};

use crate::device;
use crate::facts;
use crate::output::Output;
use crate::work::{Input, ModelName, OpenDocument, OpenModel, Opened, Outcome};

/// Opens the model that `name` names and sends the result to `inbox` under `number`. The model `before`, if given, is
/// freed first, as soon as it has no other users.
pub fn model(
    number: u64,
    name: ModelName,
    mut before: Option<Arc<OpenModel>>,
    inbox: Sender<Input>,
) {
    spawn_named("model", move || {
        let outcome = catch_bug(|| open_model(&name, &mut before)).map(Arc::new);
        // The dispatcher lives until the process exits.
        let _ = inbox.send(Input::ModelOpened(number, Opened { outcome, before }));
    });
}

/// Replies with what the model that `name` names can read. No state depends on it, so the reply goes directly to
/// `output`.
pub fn inspect(ticket: u64, name: ModelName, output: Output) {
    spawn_named("inspect", move || {
        output.send(&match catch_bug(|| inspect_model(&name)) {
            Ok(inspection) => Reply::Inspected {
                ticket,
                inspection: Box::new(inspection),
            },
            Err(fault) => Reply::failed(Some(ticket), Failure::Inspect, fault, false),
        });
    });
}

/// Reads the document at `path` and sends the result to `inbox` under `number`.
pub fn document(number: u64, path: PathBuf, access: Access, stop: Stop, inbox: Sender<Input>) {
    spawn_named("document", move || {
        let progress = Mutex::new(inbox.clone());
        let progress = |done, pages| {
            let inbox = progress.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = inbox.send(Input::Recognised(number, done, pages));
        };
        let open = || open_document(&path, &access, &progress, &stop);
        let opened = catch_bug(open).map(Arc::new);
        let _ = inbox.send(Input::DocumentOpened(number, opened));
    });
}

/// Counts the tokens of document `text` for `model` and sends the result to `inbox` under `number`.
pub fn count(number: u64, model: Arc<OpenModel>, text: Arc<OpenDocument>, inbox: Sender<Input>) {
    spawn_named("count", move || {
        let counted = catch_bug(|| {
            DocumentLength::new(model.engine.model(), &text.document.text).map_err(Fault::from)
        });
        let _ = inbox.send(Input::Counted(number, counted));
    });
}

/// Runs `work` on a thread of its own.
pub fn spawn_named(name: &str, work: impl FnOnce() + Send + 'static) {
    let named = std::thread::Builder::new().name(name.to_owned());
    let started = named.spawn(work);
    if let Err(error) = started {
        eprintln!("kept-worker: no thread could be started ({error})");
        std::process::exit(crate::BROKEN);
    }
}

/// Turns a panic into an error, so that it does not end the process.
pub fn catch_bug<T>(work: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(
            "the engine met an internal error with it; choose another file and report this one"
                .into(),
        )
    })
}

/// The engine for the model that `name` names, and its file. Reads no weights.
fn open_engine(name: &ModelName) -> Outcome<(Engine, PathBuf)> {
    let stretch = name.stretch.as_deref().map(str::parse::<RopeChoice>);
    let options = OpenOptions {
        rope: stretch.transpose().map_err(Fault::from)?,
    };
    let path = model_path(&name.model).map_err(|error| error.to_string())?;
    // The app names the file.
    let engine = Engine::open_with(&path, &options).map_err(|error| match error {
        EngineError::Open { error, .. } => Fault::from(error.to_string()),
        error => error.into(),
    })?;
    Ok((engine, path))
}

fn inspect_model(name: &ModelName) -> Outcome<Inspection> {
    let (engine, _) = open_engine(name)?;
    Ok(facts::inspection(&engine))
}

fn open_model(name: &ModelName, before: &mut Option<Arc<OpenModel>>) -> Outcome<OpenModel> {
    let (engine, path) = open_engine(name)?;
    // Tokenizer and chat template are built on first use: building them now reports their errors early and keeps
    // questions fast.
    let model = engine.model();
    model.tokenizer().map_err(|error| error.to_string())?;
    model.chat_template().map_err(|error| error.to_string())?;
    let (engine, why_processor) = {
        // One placement at a time: a model must not be placed while another one still occupies the memory that it is
        // about to free.
        static PLACING: Mutex<()> = Mutex::new(());
        let _alone = PLACING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = before.take() {
            drop_when_unused(before);
        }
        device::on_chosen_device(engine)?
    };
    Ok(OpenModel {
        name: name.clone(),
        facts: facts::model(&engine, name, &path, why_processor),
        engine,
    })
}

/// Waits until all other references to the model are dropped, then drops it.
fn drop_when_unused(mut model: Arc<OpenModel>) {
    while let Err(held) = Arc::try_unwrap(model) {
        model = held;
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn open_document(
    path: &Path,
    access: &Access,
    progress: &(dyn Fn(usize, usize) + Sync),
    stop: &Stop,
) -> Outcome<OpenDocument> {
    let name = path
        .file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy();
    let document = match access {
        Access::Plain => Document::open_with(path, &name, None),
        Access::Password(password) => Document::open_with(path, &name, Some(password)),
        Access::Recognition(languages) => {
            let recognition = Recognition {
                languages,
                progress,
                is_stopped: &|| stop.is_requested(),
            };
            Document::recognise(path, &name, &recognition)
        }
    };
    let document = document.map_err(|error| match access {
        // The programs that recognise text take no password that others cannot see.
        Access::Password(_) if error.pages_to_recognise().is_some() => error.to_string().into(),
        _ => Fault::from(error),
    })?;
    if document.text.len() > MAX_PAYLOAD_BYTES {
        return Err(format!(
            "{} has {} bytes of text, more than the {MAX_PAYLOAD_BYTES} that can be shown: split it into smaller files",
            name,
            document.text.len()
        )
        .into());
    }
    Ok(OpenDocument::new(document))
}
