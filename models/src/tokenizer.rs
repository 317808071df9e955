//! Text to tokens and back, from the vocabulary in the model file.

use std::ops::Range;

use crate::ModelError;
use crate::gguf::Gguf;

/// A text as tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenizedText {
    /// Token ids, all below the vocabulary's size.
    pub ids: Vec<u32>,
    /// For each token the bytes of the text it stands for; together they tile the text. A range may begin or end
    /// inside a character.
    pub spans: Vec<Range<u32>>,
}

/// A byte-level BPE tokenizer.
pub struct Tokenizer {}

#[expect(unused_variables, clippy::todo, reason = "signatures first")]
impl Tokenizer {
    pub(crate) fn read(gguf: &Gguf, vocab: usize) -> Result<Tokenizer, ModelError> {
        Err(ModelError::MissingKey {
            key: "tokenizer.ggml.tokens".to_owned(),
        })
    }

    /// Tokens of a text; nothing in it is ever taken for a control token.
    ///
    /// # Errors
    /// [`ModelError::BadVocabulary`] is impossible here; a text longer than `u32::MAX` bytes is refused.
    pub fn encode(&self, text: &str) -> TokenizedText {
        todo!()
    }

    /// Tokens of a template's text, in which control and user-defined tokens are recognised.
    pub fn encode_with_control(&self, text: &str) -> Vec<u32> {
        todo!()
    }

    /// Bytes that a token stands for; none for control tokens.
    pub fn decode_bytes(&self, id: u32) -> &[u8] {
        todo!()
    }

    /// The token as the vocabulary writes it.
    pub fn token_text(&self, id: u32) -> &str {
        todo!()
    }

    /// Whether the token ends an answer (end of sequence, of turn or of message).
    pub fn is_end(&self, id: u32) -> bool {
        todo!()
    }

    /// Whether the token is a control token.
    pub fn is_control(&self, id: u32) -> bool {
        todo!()
    }

    /// Beginning-of-sequence token.
    pub fn bos(&self) -> Option<u32> {
        todo!()
    }

    /// End-of-sequence token.
    pub fn eos(&self) -> Option<u32> {
        todo!()
    }

    /// Whether prompts begin with [`Self::bos`].
    pub fn add_bos(&self) -> bool {
        todo!()
    }

    /// Number of tokens.
    pub fn vocab(&self) -> usize {
        todo!()
    }

    /// Bytes of the longest token: a text of `n` bytes has at least `n / longest` tokens.
    pub fn longest_token_bytes(&self) -> usize {
        todo!()
    }
}

/// Decodes tokens one by one into valid UTF-8.
#[derive(Debug, Clone, Default)]
pub struct StreamDecoder {
    held: Vec<u8>,
}

#[expect(unused_variables, clippy::todo, reason = "signatures first")]
impl StreamDecoder {
    /// A decoder at the start of an answer.
    pub fn new() -> StreamDecoder {
        StreamDecoder::default()
    }

    /// Append what one more token makes certain to `out`; an incomplete character is held back.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32, out: &mut String) {
        todo!()
    }

    /// Append what is still held back, as replacement characters.
    pub fn finish(&mut self, out: &mut String) {
        todo!()
    }
}
