//! What the worker's threads tell each other: requests and results to the dispatcher, jobs from it.

use std::sync::Arc;

use kept_engine::documents::Document;
use kept_engine::kernels::{Stop, UnknownCacheType};
use kept_engine::policies::Budget;
use kept_engine::{DocumentLength, Engine, EngineError};
use kept_worker::protocol::{Failure, Fault, ModelFacts, Reply, Request};

use crate::vault_settings::VaultSettings;

/// An input of the dispatcher.
pub enum Input {
    /// A request of the app, with its bytes.
    Request(Request, Vec<u8>),
    /// End of standard input: the app exited, or needs this process no longer.
    NothingMore,
    /// A message that is JSON but not a valid request; with the reason as a sentence.
    NotUnderstood(String),
    /// A model was opened, or failed to open; with the number of the operation.
    ModelOpened(u64, Opened),
    /// Of the document that is opened under this number, so many pages of so many were recognised.
    Recognised(u64, usize, usize),
    /// A document was opened, or failed to open.
    DocumentOpened(u64, Outcome<Arc<OpenDocument>>),
    /// The document's tokens were counted, or counting failed.
    Counted(u64, Outcome<DocumentLength>),
    /// A question or comparison ended: its final reply, and the state of the engine after it.
    Ended {
        reply: Reply,
        engine_health: EngineHealth,
    },
}

/// Identifies a model: a path or `mini`, and the RoPE scaling that extends its context length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelName {
    pub model: String,
    pub stretch: Option<String>,
}

/// An open model.
pub struct OpenModel {
    /// The name by which it was opened.
    pub name: ModelName,
    pub engine: Engine,
    pub facts: ModelFacts,
}

/// An open document.
pub struct OpenDocument {
    /// The document without its text.
    pub info: Document,
    pub document: Document,
}

impl OpenDocument {
    pub fn new(mut document: Document) -> Self {
        let text = std::mem::take(&mut document.text);
        let info = document.clone();
        let document = Document { text, ..document };
        Self { info, document }
    }
}

/// Result of opening or counting.
pub type Outcome<T> = Result<T, Fault>;

/// A model that was opened, or why it was not.
pub struct Opened {
    pub outcome: Outcome<Arc<OpenModel>>,
    /// The previous model, unless it was freed to make memory available.
    pub before: Option<Arc<OpenModel>>,
}

/// State of the engine after a question or comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineHealth {
    /// Usable.
    Sound,
    /// A bug (panic) may have left inconsistent state.
    Broken,
    /// The GPU failed or is out of memory.
    GpuLost,
}

/// Why a job has no other final reply, and the state of the engine after it.
pub struct Failed {
    pub fault: Fault,
    /// Whether the user stopped the job.
    pub stopped: bool,
    pub engine_health: EngineHealth,
}

impl From<Fault> for Failed {
    fn from(fault: Fault) -> Self {
        Failed {
            fault,
            stopped: false,
            engine_health: EngineHealth::Sound,
        }
    }
}

impl From<EngineError> for Failed {
    fn from(error: EngineError) -> Self {
        Failed {
            stopped: error.is_stopped(),
            engine_health: if error.loses_gpu() {
                EngineHealth::GpuLost
            } else {
                EngineHealth::Sound
            },
            fault: error.into(),
        }
    }
}

/// A question, comparison or reading with its model, document and stop flag.
pub struct Job {
    pub ticket: u64,
    /// The kind of failure to report.
    pub what: Failure,
    pub request: Request,
    pub vault_settings: VaultSettings,
    pub model: Arc<OpenModel>,
    pub document: Arc<OpenDocument>,
    pub stop: Stop,
    /// Ends the reading of a document after the section that is being read.
    pub pause: Stop,
}

/// Parses the budget that the user entered.
pub fn parse_budget(budget: Option<&str>) -> Result<Option<Budget>, Fault> {
    budget
        .map(|text| {
            text.parse::<Budget>()
                .map_err(|error| error.to_string().into())
        })
        .transpose()
}

/// The engine with the cache type named `cache`, or unchanged without a name.
pub fn with_cache_type(engine: &Engine, cache: Option<&str>) -> Result<Engine, Fault> {
    match cache {
        Some(name) => match name.parse() {
            Ok(cache) => Ok(engine.clone().with_cache(cache)),
            Err(error) => Err(UnknownCacheType::to_string(&error).into()),
        },
        None => Ok(engine.clone()),
    }
}
