//! Text to tokens and back, by the vocabulary in the model file: byte-level BPE or SentencePiece.
//!
//! A document is data: [`Tokenizer::encode`] never recognises a control token in it, so no document can end the
//! user's turn. Only the text that a chat template makes goes through [`Tokenizer::encode_template`].
//!
//! Spans are byte ranges, exact by construction, and together they tile the text. A token may hold a part of a character; a
//! space that SentencePiece puts before a text has no bytes of it. A byte without a token ([`Tokenizer::dropped`]) falls to the
//! token after it, at the end of a text to the last one.
//!
//! ```text
//! text   "Ich 🙂"     bytes  49 63 68 20 f0 9f 99 82
//! tokens "Ich" " ð" "Ł" "Ļ" "Ĥ"    spans  0..3 3..5 5..6 6..7 7..8
//! ```
//!
//! Not here: chat templates, and how a stretch of text is merged (`byte_level.rs`, `sentencepiece.rs`).

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use kept_kernels::{Stop, Stopped};
use sha2::{Digest, Sha256};

use crate::ModelError;
use crate::byte_level::ByteLevel;
use crate::gguf::Gguf;
use crate::memory_size::{Rounded, allocated};
use crate::pretokenize::ByteLevelRules;
use crate::sentencepiece::SentencePiece;
use crate::special_tokens::SpecialTokens;
use crate::vocabulary::{Kind, Script, Vocabulary};

/// A text as tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenizedText {
    /// Token ids, all below the vocabulary's size.
    pub ids: Vec<u32>,
    /// For each token the bytes of the text it stands for; together they tile a text that has tokens. A range may begin or end
    /// inside a character, and is empty where the token has no bytes of the text.
    pub spans: Vec<Range<u32>>,
}

/// A tokenizer, as the model file describes it.
pub struct Tokenizer {
    vocabulary: Vocabulary,
    merging: Merging,
    marks: SpecialTokens,
    add_bos: bool,
    last: Mutex<Option<LastDocument>>,
}

/// The last document that was encoded, for the next question about it.
struct LastDocument {
    text: [u8; 32],
    space: bool,
    tokens: Arc<TokenizedText>,
}

/// Bytes of a document whose tokens are remembered, at most: a shelf of books. They take three times as much, as they do while it is asked.
const REMEMBERED: usize = 32 << 20;

/// How a stretch of text becomes tokens.
enum Merging {
    ByteLevel(Box<ByteLevel>),
    SentencePiece(Box<SentencePiece>),
}

impl Tokenizer {
    /// Read the tokenizer of a file, which may hold a vocabulary alone.
    ///
    /// # Errors
    /// [`ModelError`]: `UnsupportedTokenizer`, `UnsupportedPreTokenizer`, `BadVocabulary`, `MissingKey`, `BadValue`.
    pub fn of_file(gguf: &Gguf) -> Result<Tokenizer, ModelError> {
        Tokenizer::read(gguf, None)
    }

    /// Read the tokenizer of a model whose embedding has `rows` rows.
    pub(crate) fn read(gguf: &Gguf, rows: Option<usize>) -> Result<Tokenizer, ModelError> {
        let script = check_kind(gguf)?;
        let vocabulary = Vocabulary::read(gguf, rows, script)?;
        let (merging, adds_bos) = match script {
            Script::ByteSymbols => {
                let merging = ByteLevel::read(gguf, &vocabulary)?;
                let adds_bos = merging.adds_bos();
                (Merging::ByteLevel(Box::new(merging)), adds_bos)
            }
            Script::Pieces => {
                let merging = SentencePiece::read(gguf, &vocabulary)?;
                (Merging::SentencePiece(Box::new(merging)), true)
            }
        };
        let add_bos = gguf
            .flag("tokenizer.ggml.add_bos_token")?
            .unwrap_or(adds_bos);
        Ok(Tokenizer {
            add_bos: add_bos && vocabulary.bos().is_some(),
            marks: SpecialTokens::read(gguf, &vocabulary, script)?,
            vocabulary,
            merging,
            last: Mutex::default(),
        })
    }

    /// Tokens of a text that stands alone; nothing in it is ever taken for a control token. Neither is [`Self::bos`] put in front.
    ///
    /// # Panics
    /// When the text is longer than `u32::MAX` bytes.
    pub fn encode(&self, text: &str) -> TokenizedText {
        self.encode_after(text, self.adds_space())
    }

    /// [`Self::encode`] of a text that follows a template's: `space` as [`Self::before`] gave it.
    ///
    /// # Panics
    /// When the text is longer than `u32::MAX` bytes.
    pub fn encode_after(&self, text: &str, space: bool) -> TokenizedText {
        let tokens = self.encode_until(text, space, &Stop::new());
        tokens.expect("nobody else has this stop")
    }

    /// [`Self::encode_after`], until `stop` is requested.
    fn encode_until(&self, text: &str, space: bool, stop: &Stop) -> Result<TokenizedText, Stopped> {
        assert!(
            text.len() <= u32::MAX as usize,
            "spans are u32; cut the text first"
        );
        let (mut ids, mut ends) = (Vec::new(), Vec::new());
        let (mut at, mut space) = (0, space);
        while let Some((from, mark)) = self.marks.next_in_document(text, at) {
            self.plain((&text[at..from], at, space), (&mut ids, &mut ends), stop)?;
            at = from + mark.text.len();
            space = self.adds_space();
            ids.push(mark.id);
            ends.push(at as u32);
        }
        self.plain((&text[at..], at, space), (&mut ids, &mut ends), stop)?;
        if let Some(end) = ends.last_mut() {
            *end = text.len() as u32;
        }
        let mut start = 0;
        let spans = ends
            .into_iter()
            .map(|end| std::mem::replace(&mut start, end)..end)
            .collect();
        Ok(TokenizedText { ids, spans })
    }

    /// [`Self::encode_after`] of a document, which is asked about more than once: the tokens of the last one are remembered.
    ///
    /// # Errors
    /// Within a tenth of a second when `stop` is requested.
    ///
    /// # Panics
    /// When the text is longer than `u32::MAX` bytes.
    pub fn encode_document(
        &self,
        text: &str,
        space: bool,
        stop: &Stop,
    ) -> Result<Arc<TokenizedText>, Stopped> {
        if text.len() > REMEMBERED {
            return Ok(Arc::new(self.encode_until(text, space, stop)?));
        }
        let print: [u8; 32] = Sha256::digest(text).into();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = &*last
            && (last.text, last.space) == (print, space)
        {
            return Ok(Arc::clone(&last.tokens));
        }
        // Never two of them at once.
        *last = None;
        let tokens = Arc::new(self.encode_until(text, space, stop)?);
        *last = Some(LastDocument {
            text: print,
            space,
            tokens: Arc::clone(&tokens),
        });
        Ok(tokens)
    }

    /// How a template's text that ends where a text begins is to be encoded, and whether a space goes before that text.
    ///
    /// SentencePiece writes a space as a part of the word behind it: a space at the end of the template's text moves into the
    /// text. Where a model puts a space before texts, it does so at the start of a prompt and behind a mark of the conversation.
    ///
    /// ```text
    /// "[INST] " DOCUMENT   ->   "[INST]", and a space before the document: "▁DOC" "UMENT", not "▁" "DOC" "UMENT"
    /// ```
    pub fn before<'t>(&self, template: &'t str, continues: bool) -> (&'t str, bool) {
        if let Merging::ByteLevel(_) = self.merging {
            return (template, false);
        }
        let trimmed = template.trim_end();
        if self
            .marks
            .last_in_template(trimmed)
            .is_some_and(|mark| mark.takes_space)
        {
            return (trimmed, self.adds_space());
        }
        if let Some(shorter) = template.strip_suffix(' ') {
            return (shorter, true);
        }
        let first = template.is_empty() && !continues;
        let marked = first || self.marks.last_in_template(template).is_some();
        (template, marked && self.adds_space())
    }

    /// Tokens of a template's text, in which control and user-defined tokens are recognised (the longest first).
    /// [`Self::bos`] is not put in front: templates write it themselves. `continues` says that other text stands before it.
    ///
    /// A text behind a mark gets a space before it only where it has none: so the makers of Mistral's models encode their own
    /// template.
    pub fn encode_template(&self, text: &str, continues: bool) -> Vec<u32> {
        let (mut ids, mut ends) = (Vec::new(), Vec::new());
        let mut at = 0;
        let mut behind_text = continues;
        let mut plain = |part: &str, behind_text: bool, ids: &mut Vec<u32>| {
            let space = self.adds_space() && !behind_text && !part.starts_with(' ');
            let done = self.plain((part, 0, space), (ids, &mut ends), &Stop::new());
            done.expect("nobody else has this stop");
        };
        while let Some((from, mark)) = self.marks.next_in_template(text, at) {
            plain(&text[at..from], behind_text, &mut ids);
            ids.push(mark.id);
            at = from + mark.text.len();
            if mark.takes_space {
                at = text.len() - text[at..].trim_start().len();
            }
            behind_text = false;
        }
        plain(&text[at..], behind_text, &mut ids);
        ids
    }

    /// Appends the tokens of a stretch without marks that begins at `offset` of its text.
    fn plain(
        &self,
        (text, offset, space): (&str, usize, bool),
        (ids, ends): (&mut Vec<u32>, &mut Vec<u32>),
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let (first, vocabulary) = (ends.len(), &self.vocabulary);
        let into = (ids, &mut *ends);
        match &self.merging {
            Merging::ByteLevel(merging) => merging.encode(vocabulary, text, into, stop)?,
            Merging::SentencePiece(merging) => {
                merging.encode(vocabulary, (text, space), into, stop)?;
            }
        }
        for end in &mut ends[first..] {
            *end += offset as u32;
        }
        Ok(())
    }

    /// Bytes of `text` that have no token and are dropped, as llama.cpp and Hugging Face do: SmolLM2's vocabularies lack 21 bytes.
    pub fn dropped(&self, text: &str) -> usize {
        match &self.merging {
            Merging::ByteLevel(merging) => merging.dropped(text),
            Merging::SentencePiece(_) => 0,
        }
    }

    /// Whether a space is put before a text that stands alone.
    fn adds_space(&self) -> bool {
        match &self.merging {
            Merging::ByteLevel(_) => false,
            Merging::SentencePiece(merging) => merging.adds_space(),
        }
    }

    /// Bytes that a token stands for in a text: none for control tokens, which are not text.
    ///
    /// # Panics
    /// When there is no such token.
    pub fn decode_bytes(&self, id: u32) -> &[u8] {
        self.vocabulary.bytes(id)
    }

    /// The token as the vocabulary writes it: byte-level symbols, a piece, or the name of a control token.
    ///
    /// # Panics
    /// When there is no such token.
    pub fn token_text(&self, id: u32) -> &str {
        self.vocabulary.text(id)
    }

    /// The token that the vocabulary writes so.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.vocabulary.id(text)
    }

    /// Whether the token ends an answer (end of sequence, of turn or of message).
    pub fn is_end(&self, id: u32) -> bool {
        self.vocabulary.is_end(id)
    }

    /// Whether the token is a control token.
    pub fn is_control(&self, id: u32) -> bool {
        self.vocabulary.kind(id) == Kind::Control
    }

    /// Beginning-of-sequence token.
    pub fn bos(&self) -> Option<u32> {
        self.vocabulary.bos()
    }

    /// End-of-sequence token. Prompts never end with it, whatever the file says: they are to be continued.
    pub fn eos(&self) -> Option<u32> {
        self.vocabulary.eos()
    }

    /// Whether prompts begin with [`Self::bos`].
    pub fn add_bos(&self) -> bool {
        self.add_bos
    }

    /// Number of tokens; ids are below it. The embedding may have more rows.
    pub fn vocab(&self) -> usize {
        self.vocabulary.len()
    }

    /// Memory in bytes: the vocabulary's texts and tables, and what merges by it.
    pub fn bytes(&self) -> u64 {
        self.bytes_rounded(allocated)
    }

    fn bytes_rounded(&self, rounded: Rounded) -> u64 {
        let merging = match &self.merging {
            Merging::ByteLevel(merging) => merging.held(&self.vocabulary, rounded),
            Merging::SentencePiece(merging) => merging.held(),
        };
        (self.vocabulary.held(rounded) + merging) as u64
    }

    /// [`Tokenizer::bytes`] as if an allocation took no more than was asked for: what an allocator that counts would say.
    pub fn asked_bytes(&self) -> u64 {
        self.bytes_rounded(|bytes| bytes)
    }

    /// A lower bound of the number of tokens of `text`, without encoding it: its bytes by those of the longest token. 0 where one
    /// token can stand for any number of bytes.
    pub fn fewest_tokens(&self, text: &str) -> usize {
        let longest = self.vocabulary.longest();
        let longest = match &self.merging {
            Merging::ByteLevel(merging) => merging.most_bytes(longest),
            Merging::SentencePiece(merging) if merging.fuses_unknown() => return 0,
            Merging::SentencePiece(merging) => longest.max(merging.longest()),
        };
        (text.len() - self.dropped(text)) / longest.max(1)
    }
}

/// How the tokens are written, if the tokenizer is one that is supported, by its names alone.
pub(crate) fn check_kind(gguf: &Gguf) -> Result<Script, ModelError> {
    const MODEL: &str = "tokenizer.ggml.model";
    let model = gguf.text(MODEL)?.ok_or_else(|| ModelError::MissingKey {
        key: MODEL.to_owned(),
    })?;
    match model {
        "gpt2" => ByteLevelRules::of_file(gguf).map(|_| Script::ByteSymbols),
        "llama" => Ok(Script::Pieces),
        name => Err(ModelError::UnsupportedTokenizer {
            name: name.to_owned(),
        }),
    }
}

/// Decodes tokens one by one into valid UTF-8, holding back the bytes of a character that is not complete.
#[derive(Debug, Clone, Default)]
pub struct StreamDecoder {
    /// At most three bytes: the beginning of a character.
    held: Vec<u8>,
    /// Whether a space that begins the answer is left out.
    drops_space: bool,
}

impl StreamDecoder {
    /// A decoder at the start of an answer.
    pub fn new() -> StreamDecoder {
        StreamDecoder::default()
    }

    /// A decoder at the start of an answer by this tokenizer: where it puts a space before texts, the answer's is left out.
    pub fn of_answer(tokenizer: &Tokenizer) -> StreamDecoder {
        StreamDecoder {
            drops_space: tokenizer.adds_space(),
            ..StreamDecoder::default()
        }
    }

    /// Append to `out` what one more token makes certain; bytes that can be no character become U+FFFD.
    ///
    /// # Panics
    /// When there is no such token.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32, out: &mut String) {
        let mut bytes = tokenizer.decode_bytes(id);
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

    /// Append what is still held back, as one U+FFFD, and start anew.
    pub fn finish(&mut self, out: &mut String) {
        if !self.held.is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
            self.held.clear();
        }
    }
}

/// Whether more bytes could make a character of these.
fn could_become_char(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|e| e.error_len().is_none())
}
