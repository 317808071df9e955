//! The prompt as tokens: template, document and question, each token of the document with its byte range.
//!
//! Template, document and question are encoded separately, so that a document can never inject a control token and
//! every document token has an exact byte range:
//!
//! ```text
//! <|im_start|>user\n  DOCUMENT  \n\nQuestion:   QUESTION  <|im_end|>\n<|im_start|>assistant\n
//! template            document  template        question  template: the tail
//! ```
//!
//! The tail, the template's tokens after the question, does not depend on the question; methods with an observation
//! window receive its length (`policies/src/window.rs`).

use std::ops::Range;
use std::sync::Arc;

use kept_kernels::Stop;
use kept_models::{ChatTemplate, Message, Model, TokenizedText, Tokenizer};
use kept_policies::PromptShape;

use crate::EngineError;

/// The part of the prompt that a token belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The model's chat template, and the fixed text between document and question.
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
    /// The document's tokens with their byte ranges, shared with the tokenizer's cache.
    pub(crate) text: Arc<TokenizedText>,
}

/// Placeholders for document and question while the template is rendered. Private-use characters: no template changes
/// them.
const DOCUMENT_MARK: &str = "\u{F0000}document\u{F0001}";
const QUESTION_MARK: &str = "\u{F0000}question\u{F0001}";
const MARK_OPENS: char = '\u{F0000}';
const MARK_CLOSES: char = '\u{F0001}';

/// Tokens reserved for a short answer: the minimum of the context length after the prompt.
pub(crate) const SMALLEST_ANSWER: usize = 16;

/// Longer texts are not tokenised if a lower bound shows that they are too long: tokenising would take many seconds.
const COUNTED_BYTES: usize = 8 << 20;

/// Bytes of a text that are tokenised to estimate the bytes per token.
const SAMPLE_BYTES: usize = 64 * 1024;

impl Prompt {
    /// Encodes `document` and `question` for `model`, which answers without thinking first.
    ///
    /// # Errors
    /// If the question is empty, or the prompt exceeds the context length.
    pub fn new(model: &Model, document: &str, question: &str) -> Result<Self, EngineError> {
        Self::thinking(model, document, question, false, &Stop::new())
    }

    /// [`Prompt::new`] with a choice: a model that can think before answering does so iff `thinking`. `stop` cancels
    /// encoding within a tenth of a second.
    pub fn thinking(
        model: &Model,
        document: &str,
        question: &str,
        thinking: bool,
        stop: &Stop,
    ) -> Result<Self, EngineError> {
        let question = question.trim();
        if question.is_empty() {
            return Err(EngineError::EmptyQuestion);
        }
        if let Some(at_least) = surely_too_long(model, document)? {
            let have = format!("more than {at_least} tokens");
            return Err(too_long(model, document, have, 0)?);
        }
        let prompt = Self::encode(model, document, question, thinking, stop)?;
        match prompt.too_long(model, document)? {
            Some(refusal) => Err(refusal),
            None => Ok(prompt),
        }
    }

    /// [`Prompt::thinking`] with a document of any length: a document longer than the context length is read in
    /// streaming mode.
    ///
    /// # Errors
    /// If the question is empty, or too long by itself.
    pub fn of_any_length(
        model: &Model,
        document: &str,
        question: &str,
        thinking: bool,
        stop: &Stop,
    ) -> Result<Self, EngineError> {
        let question = question.trim();
        if question.is_empty() {
            return Err(EngineError::EmptyQuestion);
        }
        let prompt = Self::encode(model, document, question, thinking, stop)?;
        match prompt.too_long(model, document)? {
            Some(refusal @ EngineError::QuestionTooLong { .. }) => Err(refusal),
            _ => Ok(prompt),
        }
    }

    /// Encodes a prompt of any length.
    fn encode(
        model: &Model,
        document: &str,
        question: &str,
        thinking: bool,
        stop: &Stop,
    ) -> Result<Self, EngineError> {
        let tokenizer = model.tokenizer()?;
        let frame = Frame::new(model.chat_template()?, thinking)?
            .ok_or_else(|| EngineError::Template(model.name().to_owned()))?;

        let mut ids = Vec::new();
        let (before, space) = tokenizer.before(&frame.before, false);
        let opening = tokenizer.encode_template(before, false);
        if tokenizer.add_bos()
            && let Some(bos) = tokenizer.bos()
            && opening.first() != Some(&bos)
        {
            ids.push(bos);
        }
        ids.extend(opening);
        let text = tokenizer.encode_document(document, space, stop)?;
        let document_range = ids.len()..ids.len() + text.ids.len();
        ids.extend_from_slice(&text.ids);
        let (between, space) = tokenizer.before(&frame.between, true);
        ids.extend(tokenizer.encode_template(between, true));
        let question_ids = tokenizer.encode_after(question, space).ids;
        let question_range = ids.len()..ids.len() + question_ids.len();
        ids.extend(question_ids);
        ids.extend(tokenizer.encode_template(&frame.after, true));
        Ok(Self {
            ids,
            document: document_range,
            question: question_range,
            text,
        })
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
        let frame = Frame::new(model.chat_template()?, false)?
            .ok_or_else(|| EngineError::Template(model.name().to_owned()))?;
        Ok(tokenizer.encode_template(&frame.after, true).len())
    }

    /// The error if prompt and a short answer exceed the context length.
    fn too_long(&self, model: &Model, document: &str) -> Result<Option<EngineError>, EngineError> {
        let context = model.config().context;
        if self.len() + SMALLEST_ANSWER <= context {
            return Ok(None);
        }
        let around = self.len() - self.document.len();
        if around + SMALLEST_ANSWER >= context {
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

    /// The prompt's shape, as methods receive it.
    pub fn shape(&self) -> PromptShape {
        PromptShape {
            before: self.document.start,
            after: self.len() - self.document.end,
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

/// The text of the rendered template around document and question.
struct Frame {
    before: String,
    between: String,
    after: String,
}

impl Frame {
    /// The instruction contains nothing but the question. Right answers to the 105 questions of `tests/qa` that the
    /// documents answer, by SmolLM2-135M with its full cache, and how often it declines (`kept eval qa --data
    /// tests/qa --model smollm2 --methods full --max-tokens 48`, 95 % confidence: plus or minus 8 questions):
    ///
    /// ```text
    /// before the question                                               right   declines wrongly, rightly (of 15)
    /// "Question:"                                                         22       0       0
    /// "Based on the document above, answer this question:"                23       2       0
    /// "Question:", and before the document "Answer ... from this ..."     24       1       0
    /// "Answer the question in one sentence, from the document above."     22       0       0
    /// "Question:", and behind it "Answer in a few words."                 19       0       0
    /// "Answer from the document. If it does not say, answer that ..."     14      70      10
    /// ```
    ///
    /// The first four do not differ significantly; an invitation to decline makes a small model decline nearly
    /// everything.
    ///
    /// `None` if the template does not reproduce document and question exactly once and in order.
    fn new(template: &ChatTemplate, thinking: bool) -> Result<Option<Self>, EngineError> {
        let message = Message {
            role: "user".to_owned(),
            content: format!("{DOCUMENT_MARK}\n\nQuestion: {QUESTION_MARK}"),
        };
        let rendered = template.render(&[message], true, thinking)?;
        let parts = rendered
            .split_once(DOCUMENT_MARK)
            .and_then(|(before, rest)| Some((before, rest.split_once(QUESTION_MARK)?)));
        Ok(parts
            .map(|(before, (between, after))| Self {
                before: before.to_owned(),
                between: between.to_owned(),
                after: after.to_owned(),
            })
            .filter(|frame| !frame.after.contains([MARK_OPENS, MARK_CLOSES])))
    }
}

/// Length of a document in tokens of a model, before a question is asked.
#[derive(Debug)]
pub struct DocumentLength {
    /// Tokens of the document; a lower bound if it is far too long.
    pub tokens: usize,
    /// Whether `tokens` is a lower bound.
    pub at_least: bool,
    /// Tokens of a prompt with this document and a question of ordinary length.
    pub prompt_tokens: usize,
    /// Shape of this prompt.
    pub prompt: PromptShape,
    /// The tokens with which every prompt on the document begins; empty if the document was not counted completely or
    /// no question can be asked.
    pub begins: Vec<u32>,
    /// The error, if no question of ordinary length can be asked.
    pub too_long: Option<EngineError>,
    /// A sentence on streaming mode, if the document exceeds the context length.
    pub streaming: Option<String>,
}

/// A question of ordinary length, as a placeholder: about 16 tokens.
const ORDINARY_QUESTION: &str = "What does the document say about the harbour?";

impl DocumentLength {
    /// Counts the tokens of `document` for `model`: about a second for a book.
    ///
    /// # Errors
    /// An invalid tokenizer or chat template.
    pub fn new(model: &Model, document: &str) -> Result<Self, EngineError> {
        if document.len() > COUNTED_BYTES
            && let Some(at_least) = surely_too_long(model, document)?
        {
            return Ok(Self {
                tokens: at_least,
                at_least: true,
                prompt_tokens: at_least,
                prompt: PromptShape::of(at_least),
                begins: Vec::new(),
                too_long: None,
                streaming: Some(streaming_note(
                    model,
                    &format!("more than {at_least} tokens"),
                )),
            });
        }
        let prompt = Prompt::encode(model, document, ORDINARY_QUESTION, false, &Stop::new())?;
        let refusal = prompt.too_long(model, document)?;
        let beyond = matches!(refusal, Some(EngineError::TooLong { .. }));
        Ok(Self {
            tokens: prompt.document.len(),
            at_least: false,
            prompt_tokens: prompt.len(),
            prompt: prompt.shape(),
            begins: if refusal.is_none() || beyond {
                prompt.ids[..prompt.document.end].to_vec()
            } else {
                Vec::new()
            },
            too_long: refusal.filter(|_| !beyond),
            streaming: beyond.then(|| streaming_note(model, &format!("{} tokens", prompt.len()))),
        })
    }
}

/// The note that a document of `have`, longer than the context length, will be read in streaming mode.
fn streaming_note(model: &Model, have: &str) -> String {
    format!(
        "the document has {have} with the question and {} reads {}: it will be read in streaming mode, which is approximate, because rows evicted on the way cannot be found again; a model with a longer context reads it whole",
        model.name(),
        model.config().context
    )
}

/// A lower bound on the tokens of `document` if it already exceeds the context length: then tokenising is
/// unnecessary.
fn surely_too_long(model: &Model, document: &str) -> Result<Option<usize>, EngineError> {
    let at_least = model.tokenizer()?.fewest_tokens(document);
    Ok((at_least > model.config().context).then_some(at_least))
}

/// The error for a document that is too long, with how much of it would fit; `around` tokens of the prompt are not
/// the document's.
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
    let space = context.saturating_sub(around.max(64) + SMALLEST_ANSWER);
    let bytes = end * space / sample;
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
