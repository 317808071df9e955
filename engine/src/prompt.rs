//! The prompt as tokens: template, document, earlier turns and question, each token of the document with its byte range.
//!
//! Template, document, turns and question are encoded separately, so that a document can never inject a control token and
//! every document token has an exact byte range:
//!
//! ```text
//! <|im_start|>user\n  DOCUMENT  \n\nQuestion:   QUESTION  <|im_end|>\n<|im_start|>assistant\n
//! template            document  template        question  template: the tail
//! ```
//!
//! The tail, the template's tokens after the question, does not depend on the question; methods with an observation
//! window receive its length (`policies/src/window.rs`).
//!
//! In a conversation the earlier turns stand between document and question, in the model's own template. The document
//! stays the beginning of every prompt, so its rows come from the vault:
//!
//! ```text
//! user DOCUMENT Question: QUESTION 0   assistant ANSWER 0   user QUESTION 1   assistant ANSWER 1   user QUESTION   tail
//!                         | turn 0                      | turn 1                               |
//! ```

mod frame;
mod limits;

use std::ops::Range;
use std::sync::Arc;

use kept_kernels::Stop;
use kept_models::{Model, TokenizedText, Tokenizer};
use kept_policies::PromptShape;

use crate::{Earlier, EngineError};
use frame::Frame;
pub(crate) use limits::{
    MIN_ANSWER_TOKENS, ORDINARY_QUESTION, estimated_tokens, surely_too_long, too_long,
};

/// The part of the prompt that a token belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The model's chat template, and the fixed text between document and question.
    Template,
    /// The document.
    Document,
    /// An earlier question or answer of the conversation, with the template around them.
    Turn,
    /// The question.
    Question,
}

/// An earlier question of a conversation and its answer.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Turn {
    /// The question.
    pub question: String,
    /// The answer, without thoughts.
    pub answer: String,
}

/// Begin and end of a model's thoughts in its answer.
const THOUGHTS: (&str, &str) = ("<think>", "</think>");

impl Turn {
    /// A turn with `answer` as the model wrote it: its thoughts, which later turns do not see, are removed. `None` if
    /// nothing else was said.
    pub fn new(question: &str, answer: &str) -> Option<Self> {
        let (begin, end) = THOUGHTS;
        let (_, said) = answer.rsplit_once(end).unwrap_or(("", answer));
        let said = said.trim();
        (!said.is_empty() && !said.starts_with(begin)).then(|| Self {
            question: question.trim().to_owned(),
            answer: said.to_owned(),
        })
    }
}

/// The texts of a prompt.
#[derive(Debug, Clone, Copy)]
pub struct PromptText<'a> {
    /// The document; empty in a conversation without one.
    pub document: &'a str,
    /// Earlier turns, oldest first.
    pub turns: &'a [Turn],
    /// The question.
    pub question: &'a str,
    /// Whether a model that can think before answering does so.
    pub thinking: bool,
    /// What stands around the texts.
    pub form: PromptForm,
    /// Longest answer, in tokens, for which earlier turns give way; at most a part of the context length.
    pub max_new_tokens: usize,
}

/// What stands around the texts of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PromptForm {
    /// The model's chat template, and "Question:" between document and question.
    #[default]
    Question,
    /// The model's chat template; the question follows the document directly, white space included.
    Chat,
    /// Nothing: the question follows the document directly. For texts that a base model continues. Without turns.
    Plain,
}

impl<'a> PromptText<'a> {
    /// A question that stands alone, answered without thinking first.
    pub fn new(document: &'a str, question: &'a str) -> Self {
        Self {
            document,
            turns: &[],
            question,
            thinking: false,
            form: PromptForm::default(),
            max_new_tokens: usize::MAX,
        }
    }
}

/// One token of the prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptToken {
    /// Token id.
    pub id: u32,
    /// The part that the token belongs to.
    pub part: Part,
    /// Its byte range in the document's text; `None` for tokens of the template and the question.
    pub span: Option<Range<usize>>,
}

/// A document and a question as tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// `[n]`: token ids.
    pub ids: Vec<u32>,
    /// Positions of the document's tokens.
    pub document: Range<usize>,
    /// Positions of the question's tokens.
    pub question: Range<usize>,
    /// Positions of each earlier turn, oldest first: from the end of the document, or of the turn before.
    pub turns: Vec<Range<usize>>,
    /// The texts of these turns, with their tokens.
    pub earlier: Earlier,
    /// Earlier turns that were left out, because they exceed the context length.
    pub turns_left_out: usize,
    /// The document's tokens with their byte ranges, shared with the tokenizer's cache.
    pub(crate) text: Arc<TokenizedText>,
}

/// The most of the context length that a conversation leaves for the answer, as 1 / `ANSWER_PART`: the oldest turns
/// give way to it.
const ANSWER_PART: usize = 8;

impl Prompt {
    /// Encodes `document` and `question` for `model`, which answers without thinking first.
    ///
    /// # Errors
    /// As [`Prompt::of`].
    pub fn new(model: &Model, document: &str, question: &str) -> Result<Self, EngineError> {
        Self::of(model, &PromptText::new(document, question), &Stop::new())
    }

    /// Encodes `text` for `model`. If it exceeds the context length, the oldest turns are left out. `stop` cancels
    /// encoding within a tenth of a second.
    ///
    /// # Errors
    /// If the question is empty, or the prompt exceeds the context length without turns.
    pub fn of(model: &Model, text: &PromptText<'_>, stop: &Stop) -> Result<Self, EngineError> {
        if text.question.trim().is_empty() {
            return Err(EngineError::EmptyQuestion);
        }
        if let Some(at_least) = surely_too_long(model, text.document)? {
            let have = format!("more than {at_least} tokens");
            return Err(too_long(model, text.document, have, 0)?);
        }
        let prompt = Self::within_context(model, text, stop)?;
        match prompt.too_long(model, text.document)? {
            Some(refusal) => Err(refusal),
            None => Ok(prompt),
        }
    }

    /// [`Prompt::of`] with a document of any length: a document longer than the context length is read in streaming
    /// mode.
    ///
    /// # Errors
    /// If the question is empty, or too long by itself.
    pub fn of_any_length(
        model: &Model,
        text: &PromptText<'_>,
        stop: &Stop,
    ) -> Result<Self, EngineError> {
        if text.question.trim().is_empty() {
            return Err(EngineError::EmptyQuestion);
        }
        let prompt = Self::within_context(model, text, stop)?;
        match prompt.too_long(model, text.document)? {
            Some(refusal @ EngineError::QuestionTooLong { .. }) => Err(refusal),
            _ => Ok(prompt),
        }
    }

    /// Encodes `text` without as many of the oldest turns as it takes to fit the context length. Without turns, or
    /// where the document alone exceeds it, the prompt has any length.
    fn within_context(
        model: &Model,
        text: &PromptText<'_>,
        stop: &Stop,
    ) -> Result<Self, EngineError> {
        let context = model.config().context;
        let answer = text.max_new_tokens.min(context / ANSWER_PART);
        let answer = answer.max(MIN_ANSWER_TOKENS);
        let mut left_out = 0;
        loop {
            let shorter = PromptText {
                turns: &text.turns[left_out..],
                ..*text
            };
            let prompt = Self::encode(model, &shorter, stop)?;
            let around = prompt.len() - prompt.document.len();
            let of_turns: usize = prompt.turns.iter().map(Range::len).sum();
            // A prompt that exceeds the context length without turns is streamed, and turns do not have to fit beside
            // the document.
            let streamed = prompt.len() - of_turns + MIN_ANSWER_TOKENS > context;
            let needed = if streamed { around } else { prompt.len() };
            if prompt.turns.is_empty() || needed + answer <= context {
                return Ok(Self {
                    turns_left_out: left_out,
                    ..prompt
                });
            }
            let excess = needed + answer - context;
            let mut dropped = 0;
            for turn in &prompt.turns {
                if dropped >= excess {
                    break;
                }
                dropped += turn.len();
                left_out += 1;
            }
        }
    }

    /// Encodes a prompt of any length.
    pub(crate) fn encode(
        model: &Model,
        text: &PromptText<'_>,
        stop: &Stop,
    ) -> Result<Self, EngineError> {
        let tokenizer = model.tokenizer()?;
        let frame = Frame::new(model, text)?;
        let mut ids = Vec::new();
        let (opening, mut space) = tokenizer.before(&frame.pieces[0], false);
        let opening = tokenizer.encode_template(opening, false);
        if tokenizer.add_bos()
            && let Some(bos) = tokenizer.bos()
            && opening.first() != Some(&bos)
        {
            ids.push(bos);
        }
        ids.extend(opening);
        let document = tokenizer.encode_document(text.document, space, stop)?;
        let document_range = ids.len()..ids.len() + document.ids.len();
        ids.extend_from_slice(&document.ids);
        let (mut turns, mut question) = (Vec::new(), 0..0);
        let mut earlier = Earlier::of(text.turns);
        let mut begins = ids.len();
        let last = frame.texts.len() - 1;
        for (index, (text, piece)) in frame.texts.iter().zip(&frame.pieces[1..]).enumerate() {
            // Without a document the first text follows the first piece directly.
            if index > 0 || !frame.first_follows {
                let (piece, of_text) = tokenizer.before(piece, true);
                ids.extend(tokenizer.encode_template(piece, true));
                space = of_text;
            }
            let from = ids.len();
            let tokens = tokenizer.encode_after(text, space);
            ids.extend_from_slice(&tokens.ids);
            if index == last {
                question = from..ids.len();
                continue;
            }
            earlier.push(from, &tokens);
            if index % 2 == 1 {
                turns.push(begins..ids.len());
                begins = ids.len();
            }
        }
        let tail = frame.pieces.last().map_or("", String::as_str);
        ids.extend(tokenizer.encode_template(tail, true));
        Ok(Self {
            ids,
            document: document_range,
            question,
            turns,
            earlier,
            turns_left_out: 0,
            text: document,
        })
    }

    /// The text of a prompt in the model's template, control tokens included, without turns that are left out.
    ///
    /// # Errors
    /// An invalid chat template.
    pub fn render(&self, model: &Model, text: &PromptText<'_>) -> Result<String, EngineError> {
        let shorter = PromptText {
            turns: &text.turns[self.turns_left_out..],
            ..*text
        };
        let frame = Frame::new(model, &shorter)?;
        let document = std::iter::once(text.document);
        let texts = document.chain(frame.texts.iter().copied()).chain([""]);
        let pieces = frame.pieces.iter().zip(texts);
        Ok(pieces
            .flat_map(|(piece, text)| [piece.as_str(), text])
            .collect())
    }

    /// Number of template tokens after the question; the same for every question.
    pub fn tail(&self) -> usize {
        self.ids.len() - self.question.end
    }

    /// The tail of every prompt for `model`, without thinking.
    ///
    /// # Errors
    /// An invalid tokenizer or chat template.
    pub(crate) fn tail_of(model: &Model) -> Result<usize, EngineError> {
        let tokenizer: &Tokenizer = model.tokenizer()?;
        let frame = Frame::new(model, &PromptText::new("", ORDINARY_QUESTION))?;
        let tail = frame.pieces.last().map_or("", String::as_str);
        Ok(tokenizer.encode_template(tail, true).len())
    }

    /// The error if prompt and a short answer exceed the context length.
    pub(crate) fn too_long(
        &self,
        model: &Model,
        document: &str,
    ) -> Result<Option<EngineError>, EngineError> {
        let context = model.config().context;
        if self.len() + MIN_ANSWER_TOKENS <= context {
            return Ok(None);
        }
        let around = self.len() - self.document.len();
        if around + MIN_ANSWER_TOKENS >= context {
            return Ok(Some(EngineError::QuestionTooLong {
                model: model.name().to_owned(),
                tokens: around,
                context,
            }));
        }
        let have = format!("{} tokens", self.len());
        too_long(model, document, have, around).map(Some)
    }

    /// One byte range of the document's text per document token, in order, without gaps.
    pub fn spans(&self) -> &[Range<u32>] {
        &self.text.spans
    }

    /// Tokens of the whole prompt.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// The prompt's shape, as methods receive it. Without a document the turns and the question take its place.
    pub fn shape(&self) -> PromptShape {
        let end = if self.document.is_empty() {
            self.question.end
        } else {
            self.document.end
        };
        PromptShape {
            before: self.document.start,
            after: self.len() - end,
            tail: self.tail(),
            ..PromptShape::of(self.len())
        }
    }

    /// Never true: a prompt contains at least its question.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The token at `position`.
    pub fn token(&self, position: usize) -> PromptToken {
        let part = if self.document.contains(&position) {
            Part::Document
        } else if self.question.contains(&position) {
            Part::Question
        } else if self.turns.iter().any(|turn| turn.contains(&position)) {
            Part::Turn
        } else {
            Part::Template
        };
        PromptToken {
            id: self.ids[position],
            part,
            span: self.span(position),
        }
    }

    /// Byte range in the document's text of the token at `position`; `None` outside the document.
    pub fn span(&self, position: usize) -> Option<Range<usize>> {
        self.document.contains(&position).then(|| {
            let span = &self.spans()[position - self.document.start];
            span.start as usize..span.end as usize
        })
    }
}
