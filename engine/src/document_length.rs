//! [`DocumentLength`]: whether a question can be asked about a document, before there is one.

use kept_kernels::Stop;
use kept_models::Model;
use kept_policies::PromptShape;

use crate::EngineError;
use crate::prompt::{
    ORDINARY_QUESTION, Prompt, PromptText, Turn, estimated_tokens, surely_too_long,
};

/// Longer texts are not tokenised if a lower bound shows that they are too long: tokenising would take many seconds.
const COUNTED_BYTES: usize = 8 << 20;

/// Length of a document in tokens of a model, before a question is asked.
#[derive(Debug)]
pub struct DocumentLength {
    /// Tokens of the document; an estimate if it is far too long.
    pub tokens: usize,
    /// Whether `tokens` is an estimate.
    pub estimated: bool,
    /// Tokens of a prompt with this document and a question of ordinary length.
    pub prompt_tokens: usize,
    /// Shape of this prompt.
    pub prompt: PromptShape,
    /// The tokens with which every prompt on the document begins; empty if the document was not counted completely or
    /// no question can be asked.
    pub prefix_ids: Vec<u32>,
    /// The error, if no question of ordinary length can be asked.
    pub too_long: Option<EngineError>,
    /// Whether the document exceeds the context length, so that it is read in streaming mode.
    pub streams: bool,
}

impl DocumentLength {
    /// Counts the tokens of `document` for `model`: about a second for a book.
    ///
    /// # Errors
    /// An invalid tokenizer or chat template.
    pub fn new(model: &Model, document: &str) -> Result<Self, EngineError> {
        if document.len() > COUNTED_BYTES && surely_too_long(model, document)?.is_some() {
            let tokens = estimated_tokens(model, document)?;
            return Ok(Self {
                tokens,
                estimated: true,
                prompt_tokens: tokens,
                prompt: PromptShape::of(tokens),
                prefix_ids: Vec::new(),
                too_long: None,
                streams: true,
            });
        }
        let text = PromptText::new(document, ORDINARY_QUESTION);
        let prompt = Prompt::encode(model, &text, &Stop::new())?;
        let refusal = prompt.too_long(model, document)?;
        let streams = matches!(refusal, Some(EngineError::TooLong { .. }));
        Ok(Self {
            tokens: prompt.document.len(),
            estimated: false,
            prompt_tokens: prompt.len(),
            prompt: prompt.shape(),
            prefix_ids: if refusal.is_none() || streams {
                prompt.ids[..prompt.document.end].to_vec()
            } else {
                Vec::new()
            },
            too_long: refusal.filter(|_| !streams),
            streams,
        })
    }
}

impl DocumentLength {
    /// Shape of a prompt with this document, `turns`, of which the oldest are left out if they exceed the context length,
    /// and a question of ordinary length.
    ///
    /// # Errors
    /// Those of the tokenizer and the chat template.
    pub fn prompt_after(&self, model: &Model, turns: &[Turn]) -> Result<PromptShape, EngineError> {
        if turns.is_empty() {
            return Ok(self.prompt);
        }
        let tokens = |turns: &[Turn]| {
            let text = PromptText {
                turns,
                ..PromptText::new("", ORDINARY_QUESTION)
            };
            Ok::<_, EngineError>(Prompt::encode(model, &text, &Stop::new())?.len())
        };
        let free = (model.config().context).saturating_sub(self.prompt.tokens);
        let more = tokens(turns)?.saturating_sub(tokens(&[])?).min(free);
        Ok(PromptShape {
            tokens: self.prompt.tokens + more,
            after: self.prompt.after + more,
            ..self.prompt
        })
    }
}
