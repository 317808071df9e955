//! The plan for the reconstruction of a document ([`Reconstruction`]): its chunks, their rows and tokens.
//!
//! ```text
//! chunk 0  "\n\nRepeat the previous context exactly." <end of turn, assistant> chunk 0
//! chunk i  "\n\nRepeat the part of the previous context exactly, starting with" <8 tokens before chunk i> <..> chunk i
//! ```
//!
//! The wording and the order (request, end of the user's turn in the template, chunk) are those of the
//! paper's code. `prefill/reconstruction.rs` runs the plan.

use std::ops::Range;

use kept_models::{Message, Model};
use kept_policies::Reconstruction;

use crate::{EngineError, Note};

/// The requests to the model, for the first chunk and for the others.
const FIRST_REQUEST: &str = "\n\nRepeat the previous context exactly.";
const OTHER_REQUEST: &str = "\n\nRepeat the part of the previous context exactly, starting with";

/// Number of tokens before a chunk that the request quotes.
const QUOTED_TOKENS: usize = 8;

/// Placeholder for the user's message while the template is rendered. Private-use characters: no template
/// changes them.
const MESSAGE_PLACEHOLDER: &str = "\u{F0000}said\u{F0001}";

/// Smallest automatic chunk size in tokens. If the context length leaves less, the document is too long for a
/// reconstruction.
const MIN_CHUNK: usize = 32;

/// One chunk and its repetition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Positions of the chunk's tokens.
    pub chunk: Range<usize>,
    /// Its rows among the rows of all chunks; the chunk's own tokens are the last ones.
    pub rows: Range<usize>,
}

/// The plan for one document.
#[derive(Debug, Clone)]
pub struct ReconstructionPlan {
    /// Positions of the document in the prompt.
    pub(crate) document: Range<usize>,
    /// Tokens of the largest chunk.
    pub(crate) chunk: usize,
    /// First tokens of the prompt that take part in every chunk's scores.
    pub(crate) sinks: usize,
    first_request: Vec<u32>,
    other_request: Vec<u32>,
    /// The end of the user's turn and the beginning of the assistant's.
    turn: Vec<u32>,
}

impl ReconstructionPlan {
    /// The plan for the `document` in a prompt.
    ///
    /// # Errors
    /// Errors of the model's tokenizer or chat template, or [`EngineError::TooLongToRepeat`].
    pub(crate) fn new(
        model: &Model,
        document: Range<usize>,
        asked: Reconstruction,
    ) -> Result<Self, EngineError> {
        let tokenizer = model.tokenizer()?;
        let message = Message {
            role: "user".to_owned(),
            content: MESSAGE_PLACEHOLDER.to_owned(),
        };
        let rendered = model.chat_template()?.render(&[message], true, false)?;
        let (_, turn) = rendered
            .split_once(MESSAGE_PLACEHOLDER)
            .ok_or_else(|| EngineError::Template(model.name().to_owned()))?;
        let mut plan = Self {
            chunk: asked
                .chunk
                .unwrap_or(Reconstruction::CHUNK)
                .min(document.len()),
            document,
            sinks: asked.sinks,
            first_request: tokenizer.encode_after(FIRST_REQUEST, false).ids,
            other_request: tokenizer.encode_after(OTHER_REQUEST, false).ids,
            turn: tokenizer.encode_template(turn, true),
        };
        let context = model.config().context;
        let lead = plan.turn.len()
            + (plan.first_request.len()).max(plan.other_request.len() + QUOTED_TOKENS);
        let left = context.saturating_sub(plan.document.end + lead);
        if plan.longest() + plan.document.end > context {
            let smallest = MIN_CHUNK.min(plan.document.len());
            if asked.chunk.is_some() || left < smallest {
                return Err(EngineError::TooLongToRepeat {
                    model: model.name().to_owned(),
                    tokens: plan.document.end,
                    needed: plan.document.end + plan.longest(),
                    context,
                    way_out: if left >= smallest {
                        format!("set chunk to {left} or less")
                    } else {
                        "choose a method that does not repeat the document".to_owned()
                    },
                });
            }
            plan.chunk = left;
        }
        Ok(plan)
    }

    /// The chunks in order, with their rows.
    pub(crate) fn segments(&self) -> impl Iterator<Item = Segment> + '_ {
        let mut row = 0;
        let starts = self.document.clone().step_by(self.chunk.max(1));
        starts.map(move |first| {
            let chunk = first..(first + self.chunk).min(self.document.end);
            let request = if first == self.document.start {
                self.first_request.len()
            } else {
                self.other_request.len() + QUOTED_TOKENS.min(self.chunk)
            };
            let rows = row..row + request + self.turn.len() + chunk.len();
            row = rows.end;
            Segment { chunk, rows }
        })
    }

    /// Rows of all chunks.
    pub(crate) fn rows(&self) -> usize {
        self.segments().map(|segment| segment.rows.len()).sum()
    }

    /// Rows of the longest chunk.
    pub fn longest(&self) -> usize {
        let rows = self.segments().map(|segment| segment.rows.len());
        rows.max().unwrap_or(0)
    }

    /// `[rows]`: the tokens of all chunks' rows for a prompt `ids`.
    pub(crate) fn ids(&self, ids: &[u32]) -> Vec<u32> {
        let mut all = Vec::with_capacity(self.rows());
        for Segment { chunk, .. } in self.segments() {
            if chunk.start == self.document.start {
                all.extend_from_slice(&self.first_request);
            } else {
                all.extend_from_slice(&self.other_request);
                let called_by = QUOTED_TOKENS.min(self.chunk);
                all.extend_from_slice(&ids[chunk.start - called_by..chunk.start]);
            }
            all.extend_from_slice(&self.turn);
            all.extend_from_slice(&ids[chunk]);
        }
        all
    }

    /// The note for the user: `tokens` of the prompt are read `readings` times; with `from_vault`, they come from a vault.
    pub(crate) fn note(&self, readings: usize, tokens: usize, from_vault: bool) -> Note {
        Note::Reconstruction {
            tokens: match from_vault {
                true => self.rows(),
                false => self.rows() + (readings - 1) * tokens,
            },
            prompt: (!from_vault).then_some(tokens),
        }
    }
}
