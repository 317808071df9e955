//! Notes: what a user should know about a question, its document or its answer. They are data, so that a terminal and a
//! window each choose their words; [`std::fmt::Display`] gives one plain sentence without its full stop.

use std::fmt;

use kept_kernels::format_bytes;
use serde::{Deserialize, Serialize};

/// A note for the user.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "note", rename_all = "snake_case")]
pub enum Note {
    /// `auto` chose method and budget. The choice itself is [`crate::Answer::chosen`] or [`crate::Estimate::chosen`].
    AutoChose {
        /// The choice and why, one sentence.
        reason: String,
    },
    /// A memory limit decided rows, chunk size and cache type.
    WithinMemory(WithinMemory),
    /// The document exceeds the context length and is read in streaming mode.
    Streaming {
        /// Tokens of the prompt.
        tokens: usize,
        /// Rows per KV head that a layer holds at most.
        rows: usize,
        /// What the method keeps, in words.
        keeps: String,
    },
    /// The requested share of a streamed document is more than the context length can hold.
    StreamingShare {
        /// Rows per KV head that were requested.
        wanted: usize,
        /// Rows per KV head that fit.
        rows: usize,
        /// The context length, in tokens.
        context: usize,
    },
    /// A method that keeps original positions re-assigns them in streaming mode.
    StreamingPositions {
        /// The method's title.
        method: String,
        /// The context length, in tokens.
        context: usize,
    },
    /// The oldest turns of the conversation were left out.
    TurnsLeftOut {
        /// How many turns.
        turns: usize,
        /// The context length in tokens, if they exceed it; otherwise the budget is too small for them.
        context: Option<usize>,
    },
    /// The document runs through the model a second time, for the scores of a reconstruction.
    Reconstruction {
        /// Tokens that are read for it.
        tokens: usize,
        /// Tokens of the prompt, which are read besides; `None` if they come from a vault.
        prompt: Option<usize>,
    },
    /// The budget went to instructions, earlier turns and the question: next to nothing of the document is kept.
    DocumentForgotten {
        /// Tokens of the document.
        tokens: usize,
        /// How many of them are kept, mean over KV heads and layers.
        kept: usize,
        /// Whether there are earlier turns.
        turns: bool,
    },
    /// The answer has numbers that stand nowhere in the document, the conversation or the question.
    UnknownNumbers {
        /// As the answer writes them.
        numbers: Vec<String>,
    },
    /// Anything else.
    Other {
        /// One sentence.
        sentence: String,
    },
}

/// What a memory limit led to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WithinMemory {
    /// The limit, in bytes.
    pub limit: u64,
    /// Rows per KV head that are kept.
    pub rows: usize,
    /// Tokens of the prompt.
    pub tokens: usize,
    /// Tokens per chunk of prefill.
    pub chunk: usize,
    /// Name of the cache type.
    pub cache: String,
    /// Bytes at peak.
    pub bytes: u64,
    /// Expected KL divergence from the full cache, in nats; `None` in streaming mode, where no full cache exists.
    pub kl: Option<f64>,
    /// The measured cost, as a sentence; `None` if the reason of `auto` says it.
    pub cost: Option<String>,
}

impl fmt::Display for WithinMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of memory: {} rows per head ({:.0} % of the prompt), {}, in chunks of {} tokens, {} at the worst moment",
            format_bytes(self.limit),
            self.rows,
            100.0 * self.rows as f64 / self.tokens.max(1) as f64,
            self.cache,
            self.chunk,
            format_bytes(self.bytes),
        )?;
        match &self.cost {
            Some(cost) => write!(f, "; {cost}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::AutoChose { reason } => write!(f, "chose {reason}"),
            Note::WithinMemory(within) => within.fmt(f),
            Note::Streaming {
                tokens,
                rows,
                keeps,
            } => write!(
                f,
                "read in streaming mode, which is approximate: of {tokens} tokens every layer holds at most {rows} rows per head at a time ({keeps}), and rows evicted on the way cannot be found again"
            ),
            Note::StreamingShare {
                wanted,
                rows,
                context,
            } => write!(
                f,
                "the requested share is {wanted} rows per head, but beside the next chunk of the text only {rows} of them fit in the context of {context} tokens"
            ),
            Note::StreamingPositions { method, context } => write!(
                f,
                "in streaming mode {method} rotates keys by their rank in the cache instead of their position in the text, so that no position exceeds the context of {context} tokens"
            ),
            Note::TurnsLeftOut { turns, context } => {
                match context {
                    Some(context) => write!(
                        f,
                        "the conversation exceeds the context of {context} tokens"
                    )?,
                    None => f.write_str("the budget is too small for the whole conversation")?,
                }
                write!(
                    f,
                    ": the model does not see its oldest {}",
                    match turns {
                        1 => "question and answer".to_owned(),
                        _ => format!("{turns} questions and answers"),
                    }
                )
            }
            Note::Reconstruction { tokens, prompt } => {
                write!(
                    f,
                    "the document is read again to see what the model looks back at: {tokens} tokens"
                )?;
                let Some(prompt) = prompt else {
                    return Ok(());
                };
                write!(
                    f,
                    " in addition to the prompt's {prompt}, so reading takes at least {:.1} times as long",
                    1.0 + *tokens as f64 / (*prompt).max(1) as f64
                )
            }
            Note::DocumentForgotten {
                tokens,
                kept,
                turns,
            } => {
                let way_out = if *turns {
                    ", or ask in a new conversation"
                } else {
                    ""
                };
                write!(
                    f,
                    "of the document's {tokens} tokens {kept} are kept, so the answer is not from it: raise the budget{way_out}"
                )
            }
            Note::UnknownNumbers { numbers } => write!(
                f,
                "numbers that stand nowhere in the document are worked out or made up: {}",
                numbers.join(", ")
            ),
            Note::Other { sentence } => f.write_str(sentence),
        }
    }
}

impl From<String> for Note {
    fn from(sentence: String) -> Self {
        Note::Other { sentence }
    }
}

impl From<&str> for Note {
    fn from(sentence: &str) -> Self {
        sentence.to_owned().into()
    }
}
