//! The messages of the app to the worker, as JSON. Sizes are bytes; offsets are bytes of the document's text,
//! or UTF-16 code units if the name ends in 16.
//!
//! Where the description of a message says that bytes follow, they are in the same frame.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Failure;
use kept_engine::documents::Document;
use kept_engine::{MethodSpec, Turn};

/// How a file is read.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// As it is.
    Plain,
    /// With its password.
    Password(String),
    /// With the text of pages that are images recognised in these languages, among those of [`FaultCode::Scan`].
    Recognition(Vec<String>),
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str("Plain"),
            // A log never has it.
            Self::Password(_) => f.write_str("Password"),
            Self::Recognition(languages) => write!(f, "Recognition({languages:?})"),
        }
    }
}

/// A request of the app to the worker; its replies have its `ticket`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
#[allow(missing_docs)] // names and types say the rest
pub enum Request {
    /// Opens a model. Reply: [`Reply::Model`] or [`Reply::Failed`].
    OpenModel {
        /// A path, or `mini`.
        model: String,
        /// RoPE scaling that extends the context length: `yarn:4`; `None` uses the file's setting.
        stretch: Option<String>,
    },
    /// Computes what a model can read with the memory that is free now, from its header alone: no weights are read.
    /// Reply: [`Reply::Inspected`] or [`Reply::Failed`], also while a question runs.
    InspectModel {
        ticket: u64,
        /// A path, or `mini`.
        model: String,
        /// As in [`Request::OpenModel`].
        stretch: Option<String>,
    },
    /// Reads a file. Reply: [`Reply::Document`] or [`Reply::Failed`]; [`Reply::Recognising`] while text is recognised.
    OpenDocument {
        path: PathBuf,
        /// It is appended to the open document, whose text stays a prefix of the joined text.
        adds: bool,
        access: Access,
    },
    /// Removes one of several joined documents. Reply: [`Reply::Document`] or [`Reply::Failed`].
    RemoveDocument {
        /// Index of the document, from 0.
        part: usize,
    },
    /// Opens a document from text that the app stored. The text follows as bytes. No reply.
    AdoptDocument { document: Document },
    /// Estimates the cost of a question. Reply: [`Reply::Estimate`] or [`Reply::Failed`], also while a question runs.
    Estimate {
        ticket: u64,
        #[serde(flatten)]
        of: EstimateRequest,
        /// Earlier turns that the question will see, oldest first.
        turns: Vec<Turn>,
    },
    /// Asks a question about the open document with the open model. One at a time.
    Ask {
        ticket: u64,
        #[serde(flatten)]
        ask: AskRequest,
    },
    /// Compares methods and budgets with the full cache, for the open document and model. Occupies the worker as a
    /// question does: one of either at a time. Replies: [`Reply::Reference`], a [`Reply::Run`] for each run and
    /// [`Reply::Compared`]; or [`Reply::Failed`], also after a stop, with earlier replies still valid. There is no
    /// memory limit: the full cache and its attention along the answer are the reference of every run and must be
    /// complete.
    Compare {
        ticket: u64,
        #[serde(flatten)]
        compare: CompareRequest,
    },
    /// Reads the open document into its vault, before a question is asked. Occupies the worker, but a question or
    /// comparison stops it. Replies: [`Reply::ReadAhead`] and [`Reply::DocumentRead`], or [`Reply::Failed`].
    ReadDocument {
        ticket: u64,
        /// The questions to come.
        #[serde(flatten)]
        of: EstimateRequest,
    },
    /// Computes what a question's method and budget keep of the open document for every question (the baseline) under
    /// the same instructions. `ask` is the question, whose text is not used. Occupies the worker, but a question or
    /// comparison stops it. Replies: [`Reply::NeutralMap`] and [`Reply::NeutralDone`], or [`Reply::Failed`].
    Neutral {
        ticket: u64,
        #[serde(flatten)]
        ask: AskRequest,
    },
    /// Computes what a question keeps with each budget of [`kept_engine::LEVELS`]; the budget of `ask` and its turns are
    /// not used. Occupies the worker as [`Request::Neutral`] does. Replies: [`Reply::Level`] for each budget that the
    /// method allows, the smallest first, and [`Reply::LevelsDone`], or [`Reply::Failed`].
    Levels {
        ticket: u64,
        #[serde(flatten)]
        ask: AskRequest,
    },
    /// Sets how documents are stored in vaults from now on: `q8_0` (the initial setting), `f16` or `off`. Reply:
    /// [`Reply::Vaults`] or [`Reply::Failed`].
    KeepDocuments {
        ticket: u64,
        /// `q8_0`, `f16` or `off`.
        kind: String,
        /// Bytes that all vaults may take on disk; `None` uses the default.
        budget: Option<u64>,
    },
    /// Lists the stored vaults. Reply: [`Reply::Vaults`] or [`Reply::Failed`].
    Vaults { ticket: u64 },
    /// Removes all vaults that are not in use. Reply: [`Reply::Vaults`] or [`Reply::Failed`].
    ClearVaults { ticket: u64 },
    /// Removes the vaults of conversations about the document of this name, once no job runs, unless another process has
    /// them in use; with `whole` those of the document itself, too. Reply: [`Reply::Vaults`] or [`Reply::Failed`].
    ClearVaultsOf {
        ticket: u64,
        document: String,
        whole: bool,
    },
    /// Stops the question, comparison or reading with this ticket; 0 cancels the document that is being opened. The stopped
    /// request still gets its final reply.
    Stop { ticket: u64 },
}

impl Request {
    /// Ticket and kind of a request that needs an open model and document.
    pub fn about_document(&self) -> Option<(u64, Failure)> {
        match self {
            Request::Ask { ticket, .. } => Some((*ticket, Failure::Ask)),
            Request::Compare { ticket, .. } => Some((*ticket, Failure::Compare)),
            Request::Estimate { ticket, .. } => Some((*ticket, Failure::Estimate)),
            Request::ReadDocument { ticket, .. } => Some((*ticket, Failure::Read)),
            Request::Neutral { ticket, .. } => Some((*ticket, Failure::Neutral)),
            Request::Levels { ticket, .. } => Some((*ticket, Failure::Levels)),
            _ => None,
        }
    }
}

/// A question as far as its cost depends on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EstimateRequest {
    /// The method.
    pub method: MethodSpec,
    /// The budget as the user enters it: `25%`, `512`, `64MiB`; `None` uses the default.
    pub budget: Option<String>,
    /// The cache type: a name of `CacheType`; `None` uses the default, or a narrower type under a
    /// tight memory limit.
    pub cache: Option<String>,
    /// Limit of all memory in bytes, as in [`kept_engine::Limits`]; `None` is no limit.
    pub memory: Option<u64>,
    /// Longest answer, in tokens; `None` uses the default.
    pub max_tokens: Option<usize>,
}

/// A question about the open document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AskRequest {
    /// Earlier turns of the conversation that the model sees, oldest first.
    pub turns: Vec<Turn>,
    /// Instructions of the user, for the answer to this question; may be empty.
    pub instructions: String,
    /// The question.
    pub question: String,
    /// The method.
    pub method: MethodSpec,
    /// As in [`EstimateRequest`].
    pub budget: Option<String>,
    /// Longest answer, in tokens.
    pub max_tokens: usize,
    /// 0 always picks the most likely token.
    pub temperature: f64,
    /// Seed of the sampler.
    pub seed: u64,
    /// As [`kept_engine::Sampling::repeat_penalty`].
    pub repeat_penalty: Option<f64>,
    /// Whether a model that can think before answering does so.
    pub thinking: bool,
    /// As in [`EstimateRequest`].
    pub cache: Option<String>,
    /// As in [`EstimateRequest`].
    pub memory: Option<u64>,
}

impl AskRequest {
    /// `question` behind the instructions, as the model gets it. The prompt begins with the document, so that the vault
    /// serves every question.
    pub fn instructed(&self, question: &str) -> String {
        if self.instructions.is_empty() {
            return question.to_owned();
        }
        format!("{}\n\n{question}", self.instructions)
    }
}

/// A comparison of methods and budgets with the full cache.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompareRequest {
    /// The question.
    pub question: String,
    /// Longest answer of the full cache to compare along, in tokens.
    pub max_tokens: usize,
    /// The runs, in this order.
    pub runs: Vec<CompareRun>,
    /// As in [`EstimateRequest`], for the runs; the full cache itself is stored exactly.
    pub cache: Option<String>,
}

/// One run of a comparison.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompareRun {
    /// The method.
    pub method: MethodSpec,
    /// As in [`EstimateRequest`].
    pub budget: Option<String>,
}
