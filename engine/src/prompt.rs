//! The prompt as tokens: template, document and question, each token of the document with its bytes.
//!
//! Template, document and question are encoded apart, so that a document can never inject a control token and every
//! document token has an exact byte range:
//!
//! ```text
//! <|im_start|>user\n  DOCUMENT  \n\nQuestion:   QUESTION  <|im_end|>\n<|im_start|>assistant\n
//! template            document  template        question  template
//! ```

use std::ops::Range;

use kept_models::{Message, Model, TokenizedText};

use crate::EngineError;

/// What a token of the prompt belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The model's chat template and our words between document and question.
    Template,
    /// The document.
    Document,
    /// The question.
    Question,
}

/// One token of the prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptToken {
    /// Token id.
    pub id: u32,
    /// What it belongs to.
    pub part: Part,
    /// Its bytes in the document's text, for tokens of the document.
    pub span: Option<Range<usize>>,
}

/// A document and a question as the model reads them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// `[n]`: token ids.
    pub ids: Vec<u32>,
    /// Positions of the document's tokens.
    pub document: Range<usize>,
    /// Positions of the question's tokens.
    pub question: Range<usize>,
    /// One byte range of the document's text per document token, in order, without gaps.
    pub spans: Vec<Range<u32>>,
}

/// Stand for the document and the question while the template is rendered. Private-use characters: no template changes them.
const DOCUMENT_MARK: &str = "\u{F0000}document\u{F0001}";
const QUESTION_MARK: &str = "\u{F0000}question\u{F0001}";

/// What a question costs at least besides the document: room for a short answer.
pub(crate) const SMALLEST_ANSWER: usize = 16;

/// How much of a text is tokenised to estimate bytes per token.
const SAMPLE_BYTES: usize = 64 * 1024;

impl Prompt {
    /// Encodes `document` and `question` for `model`. Fails if the question is empty or the model's context is too short.
    pub fn new(model: &Model, document: &str, question: &str) -> Result<Self, EngineError> {
        let question = question.trim();
        if question.is_empty() {
            return Err(EngineError::EmptyQuestion);
        }
        let tokenizer = model.tokenizer()?;
        let context = model.config().context;
        // A token has at most so many bytes, so some texts are refused without being tokenised.
        let at_least = document.len() / tokenizer.longest_token_bytes().max(1);
        if at_least > context {
            let have = format!("more than {at_least} tokens");
            return Err(too_long(model, document, have, 0)?);
        }
        let content = format!("{DOCUMENT_MARK}\n\nQuestion: {QUESTION_MARK}");
        let message = Message {
            role: "user".to_owned(),
            content,
        };
        let rendered = model.chat_template()?.render(&[message], true)?;
        let lost = || EngineError::Template(model.name().to_owned());
        let (before, rest) = rendered.split_once(DOCUMENT_MARK).ok_or_else(lost)?;
        let (between, after) = rest.split_once(QUESTION_MARK).ok_or_else(lost)?;

        let mut ids = Vec::new();
        let opening = tokenizer.encode_with_control(before);
        if tokenizer.add_bos()
            && let Some(bos) = tokenizer.bos()
            && opening.first() != Some(&bos)
        {
            ids.push(bos);
        }
        ids.extend(opening);
        let TokenizedText {
            ids: document_ids,
            spans,
        } = tokenizer.encode(document);
        let document_range = ids.len()..ids.len() + document_ids.len();
        ids.extend(document_ids);
        ids.extend(tokenizer.encode_with_control(between));
        let question_ids = tokenizer.encode(question).ids;
        let question_range = ids.len()..ids.len() + question_ids.len();
        ids.extend(question_ids);
        ids.extend(tokenizer.encode_with_control(after));

        if ids.len() + SMALLEST_ANSWER > context {
            let around = ids.len() - document_range.len();
            if around + SMALLEST_ANSWER >= context {
                return Err(EngineError::QuestionTooLong {
                    model: model.name().to_owned(),
                    tokens: around,
                    context,
                });
            }
            return Err(too_long(
                model,
                document,
                format!("{} tokens", ids.len()),
                around,
            )?);
        }
        Ok(Self {
            ids,
            document: document_range,
            question: question_range,
            spans,
        })
    }

    /// Tokens of the whole prompt.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Never true: a prompt has at least its question.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The token at `position`.
    pub fn token(&self, position: usize) -> PromptToken {
        let part = if self.document.contains(&position) {
            Part::Document
        } else if self.question.contains(&position) {
            Part::Question
        } else {
            Part::Template
        };
        PromptToken {
            id: self.ids[position],
            part,
            span: self.span(position),
        }
    }

    /// Bytes of the document that the token at `position` stands for, if it belongs to the document.
    pub fn span(&self, position: usize) -> Option<Range<usize>> {
        self.document.contains(&position).then(|| {
            let span = &self.spans[position - self.document.start];
            span.start as usize..span.end as usize
        })
    }
}

/// The refusal of a document that is too long, with what would fit: `around` tokens are not the document's.
fn too_long(
    model: &Model,
    document: &str,
    have: String,
    around: usize,
) -> Result<EngineError, EngineError> {
    let context = model.config().context;
    let mut end = document.len().min(SAMPLE_BYTES);
    while !document.is_char_boundary(end) {
        end -= 1;
    }
    let sample = model.tokenizer()?.encode(&document[..end]).ids.len().max(1);
    let room = context.saturating_sub(around.max(64) + SMALLEST_ANSWER);
    let bytes = end * room / sample;
    let fits = match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..10_000_000 => format!("{} kB", bytes / 1000),
        _ => format!("{} MB", bytes / 1_000_000),
    };
    let share = 100.0 * bytes as f64 / document.len().max(1) as f64;
    Ok(EngineError::TooLong {
        model: model.name().to_owned(),
        have,
        context,
        fits: format!("{fits} ({share:.1} %)"),
    })
}
