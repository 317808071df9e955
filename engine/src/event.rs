//! What the engine says while it works, in short: progress of reading, text of the answer. [`crate::Watch`] hears more.

use serde::{Deserialize, Serialize};

/// What the engine is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Prefill: the prompt runs through the layers.
    Reading,
    /// Decode: tokens of the answer.
    Answering,
}

/// How far reading or answering has come.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// What is being done.
    pub phase: Phase,
    /// Tokens done; reading counts whole passes through all layers.
    pub tokens_done: usize,
    /// Tokens in all; of an answer, the most it may have.
    pub tokens_total: usize,
    /// Mean speed so far.
    pub tokens_per_second: f64,
    /// Tokens of the prompt besides, whose rows come from the vault: they need no reading.
    #[serde(default)]
    pub tokens_from_vault: usize,
    /// Time left at that speed, in seconds; an answer may end sooner.
    pub seconds_left: f64,
}

/// A message from the engine to whoever shows it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Event {
    /// Something was chosen for the question, or has to be known of how it is read. Before anything is read.
    Chosen {
        /// One sentence, which is among the answer's notes too.
        note: String,
    },
    /// Reading goes on. At most about twenty a second.
    Progress(Progress),
    /// The prompt is read and cut: what the cache costs now, and what the full cache would.
    Read {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Bytes of kept keys and values.
        kv_bytes: u64,
        /// Bytes of the full cache at this length.
        kv_bytes_full: u64,
        /// Seconds spent reading.
        seconds: f64,
    },
    /// The next piece of the answer, valid UTF-8.
    Token {
        /// The text; may be empty while a character is incomplete.
        text: String,
    },
}
