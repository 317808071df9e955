//! Chat templates: messages to the text of a prompt.

use crate::gguf::Gguf;
use crate::{ModelError, Tokenizer};

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// What was said.
    pub content: String,
}

/// A model's chat template, compiled.
pub struct ChatTemplate {}

impl ChatTemplate {
    pub(crate) fn read(_gguf: &Gguf, _tokenizer: &Tokenizer) -> Result<ChatTemplate, ModelError> {
        Err(ModelError::NoTemplate)
    }

    /// The text of a prompt, special tokens written out (for [`Tokenizer::encode_with_control`]).
    ///
    /// # Errors
    /// [`ModelError::Template`].
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, ModelError> {
        let _ = (messages, add_generation_prompt);
        Err(ModelError::NoTemplate)
    }
}
