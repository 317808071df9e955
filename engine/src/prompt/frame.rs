//! The model's chat template around the texts of a prompt.

use kept_models::{Message, Model};

use super::{PromptForm, PromptText};
use crate::EngineError;

/// Delimiters of the placeholders for texts while the template is rendered. Private-use characters: no template changes
/// them.
const MARK_OPENS: char = '\u{F0000}';
const MARK_CLOSES: char = '\u{F0001}';

/// The placeholder of text number `index`.
fn mark(index: usize) -> String {
    format!("{MARK_OPENS}{index}{MARK_CLOSES}")
}

/// The rendered template around the texts of a prompt.
pub(super) struct Frame<'a> {
    /// The template's text before the document, then before each of `texts`, then after the last: one more than the
    /// texts with the document.
    pub(super) pieces: Vec<String>,
    /// Questions and answers in turn; the last one is the question.
    pub(super) texts: Vec<&'a str>,
    /// Whether the first text follows the first piece directly: there is no document.
    pub(super) first_follows: bool,
}

impl<'a> Frame<'a> {
    /// The instruction contains nothing but the question: longer ones were no better (`docs/benchmarks.md`), and an
    /// invitation to decline makes a small model decline nearly everything.
    ///
    /// # Errors
    /// [`EngineError::Template`] if the template does not reproduce every text exactly once and in order.
    pub(super) fn new(model: &Model, text: &PromptText<'a>) -> Result<Self, EngineError> {
        let refused = || EngineError::Template(model.name().to_owned());
        if text.form == PromptForm::Plain {
            return Ok(Self {
                pieces: vec![String::new(); 3],
                texts: vec![text.question],
                first_follows: text.document.is_empty(),
            });
        }
        let (question, between) = match text.form {
            PromptForm::Chat => (text.question, ""),
            _ => (text.question.trim(), "\n\nQuestion: "),
        };
        let turns = text.turns.iter();
        let mut texts: Vec<&str> = turns
            .flat_map(|turn| [turn.question.trim(), turn.answer.trim()])
            .collect();
        texts.push(question);
        let first_follows = text.document.is_empty();
        // Text number 0 is the document.
        let message = |(index, _): (usize, &&str)| Message {
            role: if index % 2 == 0 { "user" } else { "assistant" }.to_owned(),
            content: if index == 0 && !first_follows {
                format!("{}{between}{}", mark(0), mark(1))
            } else {
                mark(index + 1)
            },
        };
        let messages: Vec<Message> = texts.iter().enumerate().map(message).collect();
        let template = model.chat_template()?;
        let rendered = template.render(&messages, true, text.thinking)?;
        let mut pieces = Vec::with_capacity(texts.len() + 2);
        let mut rest = rendered.as_str();
        for index in usize::from(first_follows)..=texts.len() {
            let (before, after) = rest.split_once(&mark(index)).ok_or_else(refused)?;
            pieces.push(before.to_owned());
            rest = after;
        }
        pieces.push(rest.to_owned());
        if first_follows {
            // An empty piece stands between the missing document and the first text.
            pieces.insert(1, String::new());
        }
        let mut all = pieces.iter();
        if all.any(|piece| piece.contains([MARK_OPENS, MARK_CLOSES])) {
            return Err(refused());
        }
        Ok(Self {
            pieces,
            texts,
            first_follows,
        })
    }
}
