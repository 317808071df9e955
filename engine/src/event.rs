//! Events of the engine in short form: progress of prefill, text of the answer. [`crate::Watch`] receives more
//! detail.

use serde::{Deserialize, Serialize};

use crate::{Note, PrefillSummary};

/// The phase of a [`Progress`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Prefill: the prompt runs through the layers.
    Reading,
    /// Decode: tokens of the answer.
    Answering,
}

/// Progress of prefill or decode.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// The phase.
    pub phase: Phase,
    /// Tokens done. Prefill counts a token once it has passed all layers.
    pub tokens_done: usize,
    /// Tokens in total; for an answer, the limit.
    pub tokens_total: usize,
    /// Mean speed so far.
    pub tokens_per_second: f64,
    /// Further tokens of the prompt whose rows the vault provides, so that they skip prefill.
    #[serde(default)]
    pub tokens_from_vault: usize,
    /// Estimated seconds left at this speed; an answer may end sooner.
    pub seconds_left: f64,
}

/// An event of the engine for its caller.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A decision about the question, or a note on how it is read. Sent before prefill.
    Chosen {
        /// The note, also among the notes of the answer.
        note: Note,
    },
    /// Progress of prefill or decode. At most about 20 per second.
    Progress(Progress),
    /// Prefill is complete.
    Read(PrefillSummary),
    /// The next piece of the answer, valid UTF-8.
    Token {
        /// The text; may be empty while a character is incomplete.
        text: String,
    },
}
