//! The messages: what a window may ask of the engine's process, and what it says back. JSON; sizes are bytes, offsets are
//! bytes of the document's text unless a name ends in 16, which counts UTF-16 code units.
//!
//! A message that has bytes says so in its description, and they follow in the next frame.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::fidelity::{ReferenceReport, RunReport};
use crate::vault::VaultUse;
use crate::{Estimate, Finish, MemoryNow, Method, Progress};

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
    },
    /// Reads a file. Answered by [`Reply::Document`] or [`Reply::Failed`].
    OpenDocument {
        /// The file.
        #[serde(with = "super::path")]
        path: PathBuf,
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
    },
    /// Methods and budgets beside the full cache, for the open document and model. Takes the place of a question: one of either at
    /// a time. Answered by [`Reply::Reference`], a [`Reply::Run`] for each run and [`Reply::Compared`]; or [`Reply::Failed`],
    /// also where it is stopped: what was answered before stands.
    Compare {
        /// Names the request in its answers.
        ticket: u64,
        /// The question.
        question: String,
        /// Longest answer of the full cache to compare along, in tokens.
        max_tokens: usize,
        /// What to compare, in this order.
        runs: Vec<CompareRun>,
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
    },
    /// A model is open.
    Model {
        /// What it is.
        model: ModelFacts,
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
    },
    /// What a question would cost.
    Estimate {
        /// Of the request.
        ticket: u64,
        /// The figures.
        estimate: Estimate,
    },
    /// The prompt is made. Bytes follow: for every token of the document its end in UTF-16 code units of the text, `u32`
    /// little endian, ascending (see [`crate::ends16`]).
    Prompt {
        /// Of the question.
        ticket: u64,
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens of the document.
        document_tokens: usize,
        /// Layers of the model.
        layers: usize,
        /// Key/value heads per layer.
        kv_heads: usize,
        /// The full cache of the prompt.
        kv_bytes_full: u64,
    },
    /// A layer was cut, or what it keeps has changed. Bytes follow: `[document tokens]` u8, the kv heads that keep each
    /// (255 at most; no model has more).
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
        /// How far; a run whose answer differs is read a second time.
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

/// A method as shown to people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MethodFacts {
    /// Name in [`MethodChoice`].
    pub name: String,
    /// Name in the papers.
    pub title: String,
    /// Where it was published; empty for the full cache.
    pub paper: String,
    /// What it keeps, in a few words.
    pub keeps: String,
    /// When it acts.
    pub acts: String,
    /// Where kept rows stand.
    pub positions: String,
    /// What can be set.
    pub parameters: Vec<ParameterFacts>,
}

/// A parameter of a method.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParameterFacts {
    /// Its name.
    pub name: String,
    /// The value if it is not set.
    pub default: String,
    /// What it takes, in words.
    pub range: String,
    /// What it means.
    pub meaning: String,
}

/// An open model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFacts {
    /// As in the file.
    pub name: String,
    /// As in the request.
    pub choice: String,
    /// The file's name without its folder.
    pub file: String,
    /// The block type of most bytes, such as `Q8_0`.
    pub quantisation: String,
    /// As in the file.
    pub architecture: String,
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub q_heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Numbers in a head.
    pub head_dim: usize,
    /// Tokens that it reads.
    pub context: usize,
    /// Numbers in all weights.
    pub parameters: u64,
    /// Size of all weights.
    pub weights_bytes: u64,
    /// What one row in every head of every layer takes.
    pub bytes_per_row: u64,
}

/// An open document, without its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentInfo {
    /// The file's name without its folder.
    pub name: String,
    /// `text`, `markdown`, `code` or `pdf`.
    pub kind: String,
    /// Encoding of the file; `PDF` for a PDF.
    pub encoding: String,
    /// Size of the file.
    pub source_bytes: u64,
    /// Size of the byte-order mark, which is not in the text.
    pub skipped_bytes: usize,
    /// Places that were not valid in the encoding.
    pub malformed: usize,
    /// Damaged pages that hold no text here.
    pub unread_pages: Vec<u32>,
    /// The pages in order, tiling the text; none where the format has none.
    pub pages: Vec<PageInfo>,
    /// What a person should know about how it was read, one sentence each.
    pub notes: Vec<String>,
}

/// A page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageInfo {
    /// From 1, in the order of the file.
    pub number: u32,
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

/// An answer and what it cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnswerFacts {
    /// The answer.
    pub text: String,
    /// Why it ended.
    pub finish: Finish,
    /// Name of the method.
    pub method: String,
    /// Name of the model.
    pub model: String,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the answer.
    pub answer_tokens: usize,
    /// Rows per kv head that were kept of the prompt, in the layers that the method cuts.
    pub rows_per_layer: Vec<usize>,
    /// The kept keys and values after reading.
    pub kv_bytes: u64,
    /// The full cache of the prompt.
    pub kv_bytes_full: u64,
    /// The most that the process ever had resident.
    pub peak_bytes: Option<u64>,
    /// Seconds spent reading.
    pub prefill_seconds: f64,
    /// Seconds of these spent choosing what to keep.
    pub select_seconds: f64,
    /// Seconds spent answering.
    pub decode_seconds: f64,
    /// Tokens of the answer per second.
    pub decode_tokens_per_second: f64,
    /// Seconds from the question to the first piece of the answer; to the end where there was none.
    pub first_token_seconds: f64,
    /// Passages that the answer stands on, the most attended first.
    pub sources: Vec<SourceInfo>,
    /// What a person should know besides, one sentence each.
    pub notes: Vec<String>,
    /// What is in use at the end.
    pub memory: MemoryNow,
    /// What came from the document's vault and went there.
    pub vault: Box<VaultUse>,
}

/// A passage that an answer stands on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SourceInfo {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
    /// First UTF-16 code unit.
    pub start16: usize,
    /// One past the last UTF-16 code unit.
    pub end16: usize,
    /// Page, where there are pages.
    pub page: Option<u32>,
    /// The passage.
    pub text: String,
    /// Share of the answer's attention votes, 0 to 1.
    pub weight: f32,
    /// Mean share of the layer-head slots that hold it, 0 to 1.
    pub kept: f32,
}
