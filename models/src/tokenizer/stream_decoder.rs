//! Tokens of an answer to text, as they come.

use super::Tokenizer;
use super::channels::Channels;

/// Decodes tokens one at a time to valid UTF-8. Holds back the bytes of an incomplete character.
#[derive(Debug, Clone, Default)]
pub struct StreamDecoder {
    /// At most three bytes: the beginning of a character.
    held: Vec<u8>,
    /// Whether a space at the start of the answer is dropped.
    drops_space: bool,
    /// If the model writes its thoughts to a channel of their own.
    channels: Option<Channels>,
}

impl StreamDecoder {
    /// A decoder at the start of an answer.
    pub fn new() -> StreamDecoder {
        StreamDecoder::default()
    }

    /// A decoder at the start of an answer by `tokenizer`. If it prepends spaces to texts, the answer's first space is
    /// dropped. Thoughts that a model writes to a channel of their own become `<think>...</think>`.
    pub fn of_answer(tokenizer: &Tokenizer) -> StreamDecoder {
        StreamDecoder {
            drops_space: tokenizer.adds_space(),
            channels: Channels::of(tokenizer),
            ..StreamDecoder::default()
        }
    }

    /// Appends to `out` all text that is complete after one more token. Bytes that cannot form a character become
    /// U+FFFD.
    ///
    /// # Panics
    /// If there is no token `id`.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32, out: &mut String) {
        let mut bytes = tokenizer.decode_bytes(id);
        let written;
        if let Some(channels) = &mut self.channels {
            written = channels.push(id, bytes);
            bytes = &written;
        }
        if self.drops_space && !bytes.is_empty() {
            self.drops_space = false;
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        self.held.extend_from_slice(bytes);
        let mut done = 0;
        for chunk in self.held.utf8_chunks() {
            out.push_str(chunk.valid());
            done += chunk.valid().len();
            let invalid = chunk.invalid();
            let at_end = done + invalid.len() == self.held.len();
            if at_end && could_become_char(invalid) {
                break;
            }
            if !invalid.is_empty() {
                out.push(char::REPLACEMENT_CHARACTER);
                done += invalid.len();
            }
        }
        self.held.drain(..done);
    }

    /// Appends the held-back bytes as one U+FFFD and resets the decoder.
    pub fn finish(&mut self, out: &mut String) {
        if !self.held.is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
            self.held.clear();
        }
    }
}

/// Whether `bytes` is a proper prefix of a character's UTF-8 encoding.
fn could_become_char(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|e| e.error_len().is_none())
}
