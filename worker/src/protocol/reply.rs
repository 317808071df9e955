//! The messages of the worker to the app, as JSON. Sizes are bytes; offsets are bytes of the document's text,
//! or UTF-16 code units if the name ends in 16.
//!
//! Where the description of a message says that bytes follow, they are in the same frame.

use serde::{Deserialize, Serialize};

use super::facts::{AnswerFacts, Inspection, ModelFacts, Vault};
use super::fault::{Fault, FaultCode};
use kept_engine::documents::Document;
use kept_engine::{Estimate, MemoryNow, Note, Progress, Turn};
use kept_eval::fidelity::{ReferenceReport, RunReport};

/// A reply of the worker to the app; `ticket` is that of the request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
#[allow(missing_docs)] // names and types say the rest
pub enum Reply {
    /// The first message, sent at start.
    Hello,
    /// A model was opened.
    Model { model: ModelFacts },
    /// What a model can read.
    Inspected {
        ticket: u64,
        inspection: Box<Inspection>,
    },
    /// Pages of the document that is being opened were recognised.
    Recognising {
        done: usize,
        /// Pages that are recognised.
        pages: usize,
    },
    /// A document was opened. Its text follows as bytes, UTF-8.
    Document {
        /// The document, without its text.
        document: Document,
        /// Languages in which the text of its image pages can be recognised.
        languages: Vec<String>,
    },
    /// Length of the open document in tokens of the open model. Sent when both are open, and again when either
    /// changes.
    Tokens {
        /// Tokens of the document; an estimate if it is far too long.
        tokens: usize,
        estimated: bool,
        context: usize,
        /// Whether the document exceeds the context length: only methods with a streaming mode can read it,
        /// and approximately.
        streams: bool,
        /// Why no question can be asked, if none can.
        refusal: Option<String>,
    },
    /// The estimated cost of a question.
    Estimate { ticket: u64, estimate: Estimate },
    /// The prompt is built. Bytes follow: for every cell of the map ([`kept_engine::MapGrid::bounded`]), in most documents
    /// every token, its end in UTF-16 code units of the text, `u32` little endian, ascending (see [`kept_engine::ends16`]);
    /// then the same for the map of the earlier turns, whose text is that of [`kept_engine::Earlier::of`].
    Prompt {
        ticket: u64,
        /// Tokens of the document.
        document_tokens: usize,
        /// Tokens of the document per cell of the map.
        tokens_per_cell: usize,
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
        kv_heads: usize,
    },
    /// A layer was cut, or its kept rows have changed. Bytes follow: for cells of one token the masks of the KV heads that
    /// keep them ([`kept_engine::MapGrid::set_heads`]); for cells of several tokens `[cells]` u8, the number of slots that
    /// keep each; then the same for the earlier turns.
    Layer {
        ticket: u64,
        /// Index of the layer among those that the method cuts, from 0.
        layer: usize,
    },
    /// Progress of prefill or decode. At most about 20 per second.
    Progress {
        ticket: u64,
        progress: Progress,
        memory: MemoryNow,
    },
    /// Prefill is complete.
    Read {
        ticket: u64,
        /// Tokens of the prompt whose rows came from the vault, without prefill.
        tokens_from_vault: usize,
    },
    /// Progress of reading a document before a question. At most about 20 per second.
    ReadAhead {
        ticket: u64,
        /// The progress over the whole document.
        progress: Progress,
    },
    /// A document was read before a question.
    DocumentRead {
        ticket: u64,
        /// Tokens with which every prompt on the document begins.
        tokens: usize,
        /// How many of them are in the vault.
        stored: usize,
        notes: Vec<Note>,
    },
    /// What is kept for every question (the baseline). Bytes follow: [`kept_engine::MapGrid::to_bytes`].
    NeutralMap { ticket: u64 },
    /// A [`Request::Neutral`] has ended; without a [`Reply::NeutralMap`] if there is no such map.
    NeutralDone { ticket: u64 },
    /// What a question keeps with one budget. Bytes follow: [`kept_engine::MapGrid::shares`].
    Level {
        ticket: u64,
        /// The budget, in percent of the prompt.
        percent: u8,
    },
    /// A [`Request::Levels`] has ended.
    LevelsDone { ticket: u64 },
    /// The vault settings and the stored vaults.
    Vaults { ticket: u64, vault: Vault },
    /// The next piece of the answer.
    Token {
        ticket: u64,
        text: String,
        /// What its last token attended to: cells of the map with weights, as in [`super::AttendedFacts::cells`].
        attended: Vec<(u32, u8)>,
    },
    /// What the method forgot of the document while it answered, just before [`Reply::Answered`]. Bytes follow:
    /// [`kept_engine::EvictionLog::to_bytes`]. Only where something was, and a cell is a token.
    Evictions { ticket: u64 },
    /// The answer is complete.
    Answered {
        ticket: u64,
        answer: Box<AnswerFacts>,
    },
    /// Progress of a run of a comparison. At most about 20 per second.
    Comparing {
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
        ticket: u64,
        seconds: f64,
        report: Box<ReferenceReport>,
    },
    /// A run of a comparison is complete or refused. Bytes follow: `[cells]` u8, the share of the slots that keep each cell,
    /// 255 for 100 % ([`kept_engine::MapGrid::shares`]); none for a refused run.
    Run {
        ticket: u64,
        /// Index of the run, from 0.
        run: usize,
        seconds: f64,
        report: Box<RunReport>,
    },
    /// A comparison is complete.
    Compared { ticket: u64 },
    /// A request failed or was stopped.
    Failed {
        ticket: Option<u64>,
        what: Failure,
        /// A message for the user, one sentence.
        message: String,
        /// Whether the user stopped the request; then `message` is not an error.
        stopped: bool,
        code: FaultCode,
    },
}

impl Reply {
    /// [`Reply::Failed`] because of `fault`.
    pub fn failed(
        ticket: Option<u64>,
        what: Failure,
        fault: impl Into<Fault>,
        stopped: bool,
    ) -> Self {
        let Fault { code, message } = fault.into();
        Reply::Failed {
            ticket,
            what,
            message,
            stopped,
            code,
        }
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
    /// What is kept for every question (the baseline).
    Neutral,
    /// What is kept with other budgets.
    Levels,
    /// A request about vaults.
    Vaults,
    /// An invalid message.
    Request,
}
