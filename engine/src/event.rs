//! Events of a question: progress of prefill, layers, text of the answer.

use serde::{Deserialize, Serialize};

use crate::{CompactLayer, MemoryNow, Note, Prompt};

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
    pub tokens_from_vault: usize,
    /// Estimated seconds left at this speed; an answer may end sooner.
    pub seconds_left: f64,
}

/// What happens while a question is answered, in this order. The receiver blocks the engine's thread, so it must be
/// quick.
#[derive(Clone, Copy)]
pub enum Event<'a> {
    /// A decision about the question, or a note on how it is read, before prefill.
    Chosen {
        /// The note, also among the notes of the answer.
        note: &'a Note,
    },
    /// The prompt is built; prefill begins.
    Prompt(&'a Prompt),
    /// A layer was compressed. For methods that evict during decode, sent again for every layer about once a second and
    /// at the end of the answer.
    Layer {
        /// Its index among the compressed layers, without sliding-window layers.
        layer: usize,
        /// What is kept of it.
        kept: &'a CompactLayer,
    },
    /// Progress of prefill or decode, at most about 20 times a second and at the end of each. The memory lacks the figures
    /// of the operating system.
    Progress(Progress, MemoryNow),
    /// Prefill and selection are complete.
    Read {
        /// Tokens of the prompt whose rows came from the vault.
        tokens_from_vault: usize,
    },
    /// The next piece of the answer.
    Token {
        /// The text.
        text: &'a str,
    },
    /// What the next token of the answer attended to in the document, as in [`crate::Attended::tokens`] of the answer so
    /// far.
    Attended(&'a [(u32, f32)]),
}
