//! The messages: what a window may ask of the engine's process, and what it says back. JSON; sizes are bytes, offsets are
//! bytes of the document's text unless a name ends in 16, which counts UTF-16 code units.
//!
//! A message that has bytes says so in its description, and they follow in the next frame.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::facts::{AnswerFacts, DocumentInfo, Inspection, MethodFacts, ModelFacts};
use crate::fidelity::{ReferenceReport, RunReport};
use crate::{Estimate, MemoryNow, Method, Progress};

/// A method by name, with the parameters that were set.
pub type MethodChoice = Method;

/// From the window to the engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// Opens a model. Answered by [`Reply::Model`] or [`Reply::Failed`].
    OpenModel {
        /// A path, or `mini`.
        model: String,
        /// How its context is stretched: `yarn:4`; nothing leaves it as the file says.
        #[serde(default)]
        stretch: Option<String>,
    },
    /// Asks what a model can read with the memory that is free now, from its header alone: no weight is read. Answered by
    /// [`Reply::Inspected`] or [`Reply::Failed`], also while a question runs.
    InspectModel {
        /// Names the request in its answer.
        ticket: u64,
        /// A path, or `mini`.
        model: String,
        /// As in [`Request::OpenModel`].
        #[serde(default)]
        stretch: Option<String>,
    },
    /// Reads a file. Answered by [`Reply::Document`] or [`Reply::Failed`].
    OpenDocument {
        /// The file.
        #[serde(with = "super::path")]
        path: PathBuf,
    },
    /// Reads a file and joins it behind the open document, whose text goes on to begin as it did. Answered by [`Reply::Document`] or
    /// [`Reply::Failed`].
    AddDocument {
        /// The file.
        #[serde(with = "super::path")]
        path: PathBuf,
    },
    /// Takes one of several joined documents away. Answered by [`Reply::Document`] or [`Reply::Failed`].
    RemoveDocument {
        /// Which, from 0.
        part: usize,
    },
    /// Takes a document whose text the window still has. Its text follows as bytes. Not answered.
    AdoptDocument {
        /// What is known of it.
        document: DocumentInfo,
    },
    /// Asks what a question would cost. Answered by [`Reply::Estimate`] or [`Reply::Failed`], also while a question runs.
    Estimate {
        /// Names the request in its answer.
        ticket: u64,
        /// The method.
        method: MethodChoice,
        /// As a person writes it: `25%`, `512`, `64MiB`; nothing takes the default.
        budget: Option<String>,
        /// How kept rows are stored: a name of [`kept_kernels::CacheType`]; nothing takes the default, and where too little memory is
        /// named a narrower one.
        #[serde(default)]
        cache: Option<String>,
        /// Bytes for everything, as in [`crate::Limits`]; nothing is no limit.
        #[serde(default)]
        memory: Option<u64>,
        /// Longest answer, in tokens; nothing takes the default.
        #[serde(default)]
        max_tokens: Option<usize>,
    },
    /// A question about the open document for the open model. One at a time.
    Ask {
        /// Names the request in its answers.
        ticket: u64,
        /// The question.
        question: String,
        /// The method.
        method: MethodChoice,
        /// As in [`Request::Estimate`].
        budget: Option<String>,
        /// Longest answer, in tokens.
        max_tokens: usize,
        /// 0 takes the likeliest token.
        temperature: f32,
        /// Of the draw.
        seed: u64,
        /// As [`crate::Sampling::repeat_penalty`].
        #[serde(default)]
        repeat_penalty: Option<f64>,
        /// Whether a model that can think before it answers does so.
        #[serde(default)]
        thinking: bool,
        /// As in [`Request::Estimate`].
        #[serde(default)]
        cache: Option<String>,
        /// As in [`Request::Estimate`].
        #[serde(default)]
        memory: Option<u64>,
    },
    /// Methods and budgets beside the full cache, for the open document and model. Takes the place of a question: one of either at
    /// a time. Answered by [`Reply::Reference`], a [`Reply::Run`] for each run and [`Reply::Compared`]; or [`Reply::Failed`],
    /// also where it is stopped: what was answered before stands. No memory is named: the full cache with its attention along the
    /// answer is what everything is held against, and of that nothing can be left out.
    Compare {
        /// Names the request in its answers.
        ticket: u64,
        /// The question.
        question: String,
        /// Longest answer of the full cache to compare along, in tokens.
        max_tokens: usize,
        /// What to compare, in this order.
        runs: Vec<CompareRun>,
        /// As in [`Request::Estimate`], of the runs; the full cache's own is exact.
        #[serde(default)]
        cache: Option<String>,
    },
    /// How documents are kept for later questions, from now on: `q8_0` (as it is without this), `f16` or `off`. Answered by
    /// [`Reply::Vaults`] or [`Reply::Failed`].
    KeepDocuments {
        /// Names the request in its answer.
        ticket: u64,
        /// See above.
        kind: String,
        /// Bytes that all vaults may take on disk; nothing takes the default.
        budget: Option<u64>,
    },
    /// Asks what is kept of documents. Answered by [`Reply::Vaults`] or [`Reply::Failed`].
    Vaults {
        /// Names the request in its answer.
        ticket: u64,
    },
    /// Removes what is kept of documents, but what is in use. Answered by [`Reply::Vaults`] or [`Reply::Failed`].
    ClearVaults {
        /// Names the request in its answer.
        ticket: u64,
    },
    /// Stops the question or comparison of this ticket; 0 gives up the document that is being opened. What was running ends as it
    /// ordinarily ends.
    Stop {
        /// The question's ticket.
        ticket: u64,
    },
}

/// Of a message by a program that knew no cells.
fn one() -> usize {
    1
}

impl Request {
    /// Whether a frame of bytes follows.
    pub fn has_bytes(&self) -> bool {
        matches!(self, Request::AdoptDocument { .. })
    }
}

/// One run of a comparison.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompareRun {
    /// The method.
    pub method: MethodChoice,
    /// As in [`Request::Estimate`].
    pub budget: Option<String>,
}

/// From the engine to the window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// The first message, at once.
    Hello {
        /// Of the program.
        version: String,
        /// Of the process.
        pid: u32,
        /// Instructions in use: `scalar`, `avx2`, `avx512`.
        simd: String,
        /// Threads that compute.
        threads: usize,
        /// Memory of the machine.
        total_memory: Option<u64>,
        /// All methods, in the order of the table.
        methods: Vec<MethodFacts>,
        /// Name of the method to begin with.
        default_method: String,
        /// Longest answer to begin with, in tokens.
        default_max_tokens: usize,
        /// Names of all cache types, the most exact first.
        #[serde(default)]
        caches: Vec<String>,
        /// The one that is taken where none is named.
        #[serde(default)]
        default_cache: String,
    },
    /// A model is open.
    Model {
        /// What it is.
        model: ModelFacts,
    },
    /// What a model can read.
    Inspected {
        /// Of the request.
        ticket: u64,
        /// What its header tells.
        inspection: Box<Inspection>,
    },
    /// A document is open. Its text follows as bytes, UTF-8.
    Document {
        /// What it is.
        document: DocumentInfo,
    },
    /// How long the open document is for the open model. Sent when both are there, and again when either changes.
    Tokens {
        /// Tokens of the document; where it is far too long, at least so many.
        tokens: usize,
        /// It has more than that: nobody counted to the end.
        at_least: bool,
        /// Tokens that the model reads.
        context: usize,
        /// Whether a question can be asked.
        fits: bool,
        /// If not, the sentence that says so; else, where the document is longer than the model's context, the one that says how it
        /// will be read.
        message: Option<String>,
        /// It is longer than the model's context: only [`MethodFacts::streams`] can read it, and approximately.
        #[serde(default)]
        streams: bool,
    },
    /// What a question would cost.
    Estimate {
        /// Of the request.
        ticket: u64,
        /// The figures.
        estimate: Estimate,
    },
    /// The prompt is made. Bytes follow: for every cell of the map ([`crate::MapGrid::bounded`]), in most documents every token, its end
    /// in UTF-16 code units of the text, `u32` little endian, ascending (see [`crate::ends16`]).
    Prompt {
        /// Of the question.
        ticket: u64,
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens of the document.
        document_tokens: usize,
        /// Tokens of the document that a cell of the map stands for.
        #[serde(default = "one")]
        tokens_per_cell: usize,
        /// Layers that the method cuts; [`Reply::Layer`] counts these alone.
        layers: usize,
        /// `[layers of the model]`: how many of the last positions each attends to; nothing for those that the method cuts.
        windows: Vec<Option<usize>>,
        /// Key/value heads per layer.
        kv_heads: usize,
        /// The full cache of the prompt.
        kv_bytes_full: u64,
    },
    /// A layer was cut, or what it keeps has changed. Bytes follow: `[cells]` u8, the slots that keep each: of a token the kv heads
    /// that keep it (255 at most; no model has more).
    Layer {
        /// Of the question.
        ticket: u64,
        /// The layer, from 0.
        layer: usize,
    },
    /// How far reading or answering is. At most about twenty a second.
    Progress {
        /// Of the question.
        ticket: u64,
        /// How far.
        progress: Progress,
        /// What is in use now.
        memory: MemoryNow,
    },
    /// The prompt is read.
    Read {
        /// Of the question.
        ticket: u64,
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// The kept keys and values.
        kv_bytes: u64,
        /// The full cache of the prompt.
        kv_bytes_full: u64,
        /// Seconds that reading took.
        seconds: f64,
        /// Tokens of the prompt whose rows came from the vault: they were not read.
        #[serde(default)]
        tokens_from_vault: usize,
    },
    /// What is kept of documents, and how.
    Vaults {
        /// Of the request.
        ticket: u64,
        /// `q8_0`, `f16` or `off`.
        kind: String,
        /// Where, for a person to see.
        folder: String,
        /// Documents that are kept.
        documents: usize,
        /// Bytes that they take on disk.
        bytes: u64,
        /// Bytes that they may take.
        budget: u64,
    },
    /// The next piece of the answer.
    Token {
        /// Of the question.
        ticket: u64,
        /// The text.
        text: String,
    },
    /// The answer is complete.
    Answered {
        /// Of the question.
        ticket: u64,
        /// The answer and what it cost.
        answer: AnswerFacts,
    },
    /// How far a run of a comparison is. At most about twenty a second.
    Comparing {
        /// Of the comparison.
        ticket: u64,
        /// Which run, from 0; `None` for the full cache's.
        run: Option<usize>,
        /// How many runs this reading is for, that one and those behind it.
        sharing: usize,
        /// How far; runs whose answer differs share a second reading.
        progress: Progress,
    },
    /// The full cache's run of a comparison is done.
    Reference {
        /// Of the comparison.
        ticket: u64,
        /// Seconds that it took, measuring and all.
        seconds: f64,
        /// What came out.
        report: Box<ReferenceReport>,
    },
    /// A run of a comparison is done, or refused.
    Run {
        /// Of the comparison.
        ticket: u64,
        /// Which run, from 0.
        run: usize,
        /// Seconds that it took, measuring and all.
        seconds: f64,
        /// What came out.
        report: Box<RunReport>,
    },
    /// A comparison is complete.
    Compared {
        /// Of the comparison.
        ticket: u64,
    },
    /// Something asked for was not done.
    Failed {
        /// Of the request, where it has one.
        ticket: Option<u64>,
        /// What was asked for.
        what: Failure,
        /// One sentence for a person.
        message: String,
        /// It was stopped on request; nothing is wrong.
        stopped: bool,
    },
}

impl Reply {
    /// Whether a frame of bytes follows.
    pub fn has_bytes(&self) -> bool {
        matches!(
            self,
            Reply::Document { .. } | Reply::Prompt { .. } | Reply::Layer { .. }
        )
    }
}

/// What was asked for when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// Opening a model.
    Model,
    /// Saying what a model can read.
    Inspect,
    /// Opening a document.
    Document,
    /// An estimate.
    Estimate,
    /// A question.
    Ask,
    /// A comparison.
    Compare,
    /// What is kept of documents.
    Vaults,
    /// A message that was not understood.
    Request,
}
