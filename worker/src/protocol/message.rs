//! The messages between the app and the worker, as JSON. Sizes are bytes; offsets are bytes of the document's text,
//! or UTF-16 code units if the name ends in 16.
//!
//! Where the description of a message says that bytes follow, they are in the next frame.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::facts::{
    AnswerFacts, DocumentInfo, Inspection, MethodFacts, ModelFacts, StoredDocument,
};
use super::fault::FaultCode;
use kept_engine::{Estimate, MemoryNow, MethodSpec, Note, Progress, Turn};
use kept_eval::fidelity::{ReferenceReport, RunReport};

/// A request of the app to the worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
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
        /// Identifies the request in its reply.
        ticket: u64,
        /// A path, or `mini`.
        model: String,
        /// As in [`Request::OpenModel`].
        stretch: Option<String>,
    },
    /// Reads a file. Reply: [`Reply::Document`] or [`Reply::Failed`].
    OpenDocument {
        /// The file.
        #[serde(with = "super::path")]
        path: PathBuf,
    },
    /// Reads a file and appends it to the open document, whose text stays a prefix of the joined text. Reply:
    /// [`Reply::Document`] or [`Reply::Failed`].
    AddDocument {
        /// The file.
        #[serde(with = "super::path")]
        path: PathBuf,
    },
    /// As [`Request::OpenDocument`] or [`Request::AddDocument`], for a file that is protected by a password. The password
    /// follows as bytes.
    UnlockDocument {
        /// The file.
        #[serde(with = "super::path")]
        path: PathBuf,
        /// It is added to the open document.
        adds: bool,
    },
    /// As [`Request::OpenDocument`] or [`Request::AddDocument`], with the text of pages that are images recognised. Replies
    /// also [`Reply::Recognising`].
    RecogniseDocument {
        /// The file.
        #[serde(with = "super::path")]
        path: PathBuf,
        /// It is added to the open document.
        adds: bool,
        /// Languages of the text, among those of [`FaultCode::Scan`].
        languages: Vec<String>,
    },
    /// Removes one of several joined documents. Reply: [`Reply::Document`] or [`Reply::Failed`].
    RemoveDocument {
        /// Index of the document, from 0.
        part: usize,
    },
    /// Opens a document from text that the app stored. The text follows as bytes. No reply.
    AdoptDocument {
        /// The document's facts.
        document: DocumentInfo,
    },
    /// Estimates the cost of a question. Reply: [`Reply::Estimate`] or [`Reply::Failed`], also while a question runs.
    Estimate {
        /// Identifies the request in its reply.
        ticket: u64,
        /// What is estimated.
        #[serde(flatten)]
        of: EstimateRequest,
    },
    /// Asks a question about the open document with the open model. One at a time.
    Ask {
        /// Identifies the request in its replies.
        ticket: u64,
        /// The question.
        #[serde(flatten)]
        ask: AskRequest,
    },
    /// Compares methods and budgets with the full cache, for the open document and model. Occupies the worker as a
    /// question does: one of either at a time. Replies: [`Reply::Reference`], a [`Reply::Run`] for each run and
    /// [`Reply::Compared`]; or [`Reply::Failed`], also after a stop, with earlier replies still valid. There is no
    /// memory limit: the full cache and its attention along the answer are the reference of every run and must be
    /// complete.
    Compare {
        /// Identifies the request in its replies.
        ticket: u64,
        /// The comparison.
        #[serde(flatten)]
        compare: CompareRequest,
    },
    /// Reads the open document into its vault, before a question is asked. Occupies the worker, but a question or
    /// comparison stops it. Replies: [`Reply::ReadAhead`] and [`Reply::DocumentRead`], or [`Reply::Failed`].
    ReadDocument {
        /// Identifies the request in its replies.
        ticket: u64,
        /// The questions to come.
        #[serde(flatten)]
        of: EstimateRequest,
    },
    /// Computes what a question's method and budget keep of the open document whatever is asked. `ask` is the question,
    /// whose text and turns are not used. Occupies the worker, but a question or comparison stops it. Replies:
    /// [`Reply::NeutralMap`] and [`Reply::NeutralDone`], or [`Reply::Failed`].
    Neutral {
        /// Identifies the request in its reply.
        ticket: u64,
        /// The question.
        #[serde(flatten)]
        ask: AskRequest,
    },
    /// Computes what a question keeps with each budget of [`kept_engine::LEVELS`]; the budget of `ask` and its turns are
    /// not used. Occupies the worker as [`Request::Neutral`] does. Replies: [`Reply::Level`] for each budget that the
    /// method allows, the smallest first, and [`Reply::LevelsDone`], or [`Reply::Failed`].
    Levels {
        /// Identifies the request in its reply.
        ticket: u64,
        /// The question.
        #[serde(flatten)]
        ask: AskRequest,
    },
    /// Sets how documents are stored in vaults from now on: `q8_0` (the initial setting), `f16` or `off`. Reply:
    /// [`Reply::Vaults`] or [`Reply::Failed`].
    KeepDocuments {
        /// Identifies the request in its reply.
        ticket: u64,
        /// `q8_0`, `f16` or `off`.
        kind: String,
        /// Bytes that all vaults may take on disk; `None` uses the default.
        budget: Option<u64>,
    },
    /// Lists the stored vaults. Reply: [`Reply::Vaults`] or [`Reply::Failed`].
    Vaults {
        /// Identifies the request in its reply.
        ticket: u64,
    },
    /// Removes all vaults that are not in use. Reply: [`Reply::Vaults`] or [`Reply::Failed`].
    ClearVaults {
        /// Identifies the request in its reply.
        ticket: u64,
    },
    /// Stops the question, comparison or reading with this ticket; 0 cancels the document that is being opened. The stopped
    /// request still gets its final reply.
    Stop {
        /// The ticket of the request.
        ticket: u64,
    },
}

impl Request {
    /// Whether a frame of bytes follows.
    pub fn has_bytes(&self) -> bool {
        matches!(
            self,
            Request::AdoptDocument { .. } | Request::UnlockDocument { .. }
        )
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
    /// The question.
    pub question: String,
    /// The method.
    pub method: MethodSpec,
    /// As in [`EstimateRequest`].
    pub budget: Option<String>,
    /// Longest answer, in tokens.
    pub max_tokens: usize,
    /// 0 always picks the most likely token.
    pub temperature: f32,
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

/// A reply of the worker to the app.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// The first message, sent at start.
    Hello {
        /// Version of the program.
        version: String,
        /// Process id.
        pid: u32,
        /// SIMD instruction set in use: `scalar`, `avx2`, `avx512`.
        simd: String,
        /// Number of compute threads.
        threads: usize,
        /// Memory of the machine, in bytes.
        total_memory: Option<u64>,
        /// All methods, in the order of the table.
        methods: Vec<MethodFacts>,
        /// Name of the default method.
        default_method: String,
        /// Default length limit of an answer, in tokens.
        default_max_tokens: usize,
        /// Names of all cache types, the most exact first.
        caches: Vec<String>,
        /// The default cache type.
        default_cache: String,
    },
    /// A model was opened.
    Model {
        /// Facts of the model.
        model: ModelFacts,
    },
    /// What a model can read.
    Inspected {
        /// Ticket of the request.
        ticket: u64,
        /// What the model can read, from its header.
        inspection: Box<Inspection>,
    },
    /// Pages of the document that is being opened were recognised.
    Recognising {
        /// Pages done.
        done: usize,
        /// Pages that are recognised.
        pages: usize,
    },
    /// A document was opened. Its text follows as bytes, UTF-8.
    Document {
        /// Facts of the document.
        document: DocumentInfo,
        /// Languages in which the text of its image pages can be recognised.
        languages: Vec<String>,
    },
    /// Length of the open document in tokens of the open model. Sent when both are open, and again when either
    /// changes.
    Tokens {
        /// Tokens of the document; a lower bound if it is far too long.
        tokens: usize,
        /// Whether `tokens` is a lower bound.
        at_least: bool,
        /// Context length, in tokens.
        context: usize,
        /// Whether a question can be asked.
        fits: bool,
        /// If no question can be asked, the reason; otherwise a note on streaming mode if the document exceeds the
        /// context length.
        message: Option<String>,
        /// Whether the document exceeds the context length: only methods with [`MethodFacts::streams`] can read it,
        /// and approximately.
        streams: bool,
    },
    /// The estimated cost of a question.
    Estimate {
        /// Ticket of the request.
        ticket: u64,
        /// The figures.
        estimate: Estimate,
    },
    /// The prompt is built. Bytes follow: for every cell of the map ([`kept_engine::MapGrid::bounded`]), in most documents
    /// every token, its end in UTF-16 code units of the text, `u32` little endian, ascending (see [`kept_engine::ends16`]);
    /// then the same for the map of the earlier turns, whose text is that of [`kept_engine::Earlier::of`].
    Prompt {
        /// Ticket of the question.
        ticket: u64,
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens of the document.
        document_tokens: usize,
        /// Tokens of the document per cell of the map.
        tokens_per_cell: usize,
        /// The earlier turns that the model sees.
        turns: Vec<Turn>,
        /// How many older turns were left out.
        turns_left_out: usize,
        /// Cells of the map of the earlier turns.
        turns_cells: usize,
        /// Tokens of the earlier turns per cell of their map.
        turns_tokens_per_cell: usize,
        /// Number of layers that the method cuts; the indices of [`Reply::Layer`] count these layers only.
        layers: usize,
        /// `[layers of the model]`: window of a sliding-window layer; `None` for layers that the method cuts.
        windows: Vec<Option<usize>>,
        /// KV heads per layer.
        kv_heads: usize,
        /// Bytes of the full cache of the prompt.
        kv_bytes_full: u64,
    },
    /// A layer was cut, or its kept rows have changed. Bytes follow: for cells of one token the masks of the KV heads that
    /// keep them ([`kept_engine::MapGrid::set_heads`]); for cells of several tokens `[cells]` u8, the number of slots that
    /// keep each; then the same for the earlier turns.
    Layer {
        /// Ticket of the question.
        ticket: u64,
        /// Index of the layer among those that the method cuts, from 0.
        layer: usize,
    },
    /// Progress of prefill or decode. At most about 20 per second.
    Progress {
        /// Ticket of the question.
        ticket: u64,
        /// The progress.
        progress: Progress,
        /// Memory in use now.
        memory: MemoryNow,
    },
    /// Prefill is complete.
    Read {
        /// Ticket of the question.
        ticket: u64,
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Bytes of the kept keys and values.
        kv_bytes: u64,
        /// Bytes of the full cache of the prompt.
        kv_bytes_full: u64,
        /// Seconds of prefill.
        seconds: f64,
        /// Tokens of the prompt whose rows came from the vault, without prefill.
        tokens_from_vault: usize,
    },
    /// Progress of reading a document before a question. At most about 20 per second.
    ReadAhead {
        /// Ticket of the request.
        ticket: u64,
        /// The progress over the whole document.
        progress: Progress,
    },
    /// A document was read before a question.
    DocumentRead {
        /// Ticket of the request.
        ticket: u64,
        /// Tokens with which every prompt on the document begins.
        tokens: usize,
        /// How many of them are in the vault.
        stored: usize,
        /// Notes for the user.
        notes: Vec<Note>,
    },
    /// What is kept whatever is asked. Bytes follow: [`kept_engine::MapGrid::to_bytes`].
    NeutralMap {
        /// Ticket of the request.
        ticket: u64,
    },
    /// A [`Request::Neutral`] has ended; without a [`Reply::NeutralMap`] if there is no such map.
    NeutralDone {
        /// Ticket of the request.
        ticket: u64,
    },
    /// What a question keeps with one budget. Bytes follow: [`kept_engine::MapGrid::shares`].
    Level {
        /// Ticket of the request.
        ticket: u64,
        /// The budget, in percent of the prompt.
        percent: u8,
    },
    /// A [`Request::Levels`] has ended.
    LevelsDone {
        /// Ticket of the request.
        ticket: u64,
    },
    /// The vault settings and the stored vaults.
    Vaults {
        /// Ticket of the request.
        ticket: u64,
        /// `q8_0`, `f16` or `off`.
        kind: String,
        /// The folder, for display.
        folder: String,
        /// Number of stored documents.
        documents: usize,
        /// Bytes of all vaults on disk.
        bytes: u64,
        /// Bytes that all vaults may take on disk.
        budget: u64,
        /// The stored documents, most recently used first.
        stored: Vec<StoredDocument>,
    },
    /// The next piece of the answer.
    Token {
        /// Ticket of the question.
        ticket: u64,
        /// The text.
        text: String,
        /// What its last token attended to: cells of the map with weights, as in [`super::AttendedFacts::cells`].
        attended: Vec<(u32, u8)>,
    },
    /// What the method forgot of the document while it answered, just before [`Reply::Answered`]. Bytes follow:
    /// [`kept_engine::EvictionLog::to_bytes`]. Only where something was, and a cell is a token.
    Evictions {
        /// Ticket of the question.
        ticket: u64,
    },
    /// The answer is complete.
    Answered {
        /// Ticket of the question.
        ticket: u64,
        /// The answer and what it cost.
        answer: Box<AnswerFacts>,
    },
    /// Progress of a run of a comparison. At most about 20 per second.
    Comparing {
        /// Ticket of the comparison.
        ticket: u64,
        /// Index of the run, from 0; `None` for the run with the full cache.
        run: Option<usize>,
        /// Number of runs that share this prefill: this run and those after it.
        sharing: usize,
        /// The progress; runs whose answer differs from the full cache's share a second prefill.
        progress: Progress,
    },
    /// The run with the full cache is complete. Bytes follow as for [`Reply::Prompt`]: the ends of the document's cells.
    Reference {
        /// Ticket of the comparison.
        ticket: u64,
        /// Seconds of the run, measurements included.
        seconds: f64,
        /// The result.
        report: Box<ReferenceReport>,
    },
    /// A run of a comparison is complete or refused. Bytes follow: `[cells]` u8, the share of the slots that keep each cell,
    /// 255 for 100 % ([`kept_engine::MapGrid::shares`]); none for a refused run.
    Run {
        /// Ticket of the comparison.
        ticket: u64,
        /// Index of the run, from 0.
        run: usize,
        /// Seconds of the run, measurements included.
        seconds: f64,
        /// The result.
        report: Box<RunReport>,
    },
    /// A comparison is complete.
    Compared {
        /// Ticket of the comparison.
        ticket: u64,
    },
    /// A request failed or was stopped.
    Failed {
        /// Ticket of the request, if it has one.
        ticket: Option<u64>,
        /// The kind of the request.
        what: Failure,
        /// A message for the user, one sentence.
        message: String,
        /// Whether the user stopped the request; then `message` is not an error.
        stopped: bool,
        /// Machine-readable kind of the failure.
        code: FaultCode,
    },
}

impl Reply {
    /// Whether a frame of bytes follows.
    pub fn has_bytes(&self) -> bool {
        matches!(
            self,
            Reply::Document { .. }
                | Reply::Prompt { .. }
                | Reply::Layer { .. }
                | Reply::Evictions { .. }
                | Reply::NeutralMap { .. }
                | Reply::Level { .. }
                | Reply::Reference { .. }
                | Reply::Run { .. }
        )
    }
}

/// The kind of a failed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// Opening a model.
    Model,
    /// Inspecting a model.
    Inspect,
    /// Opening a document.
    Document,
    /// An estimate.
    Estimate,
    /// A question.
    Ask,
    /// A comparison.
    Compare,
    /// Reading a document before a question.
    Read,
    /// What is kept whatever is asked.
    Neutral,
    /// What is kept with other budgets.
    Levels,
    /// A request about vaults.
    Vaults,
    /// An invalid message.
    Request,
}
