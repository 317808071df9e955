//! Text to tokens and back, with the vocabulary of the model file: byte-level BPE or SentencePiece.
//!
//! Documents are data: [`Tokenizer::encode`] never recognises control tokens, so a document cannot end the user's turn.
//! Only text rendered by a chat template is encoded with [`Tokenizer::encode_template`].
//!
//! Spans are exact byte ranges that together tile the text. A token may cover part of a character. The space that
//! SentencePiece prepends to a text covers no bytes. A byte without a token ([`Tokenizer::dropped`]) belongs to the
//! span of the next token or, at the end of a text, of the last one.
//!
//! ```text
//! text   "Ich 🙂"     bytes  49 63 68 20 f0 9f 99 82
//! tokens "Ich" " ð" "Ł" "Ļ" "Ĥ"    spans  0..3 3..5 5..6 6..7 7..8
//! ```
//!
//! `byte_level.rs` and `sentencepiece.rs` implement merging.

mod byte_level;
mod channels;
mod nfc;
mod parallel_bpe;
mod pretokenize;
mod sentencepiece;
mod special_tokens;
mod stream_decoder;
pub(crate) mod vocabulary;

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use kept_kernels::{Stop, Stopped};
use sha2::{Digest, Sha256};

use crate::ModelError;
use crate::gguf::Gguf;
use byte_level::ByteLevel;
use pretokenize::ByteLevelRules;
use sentencepiece::SentencePiece;
use special_tokens::SpecialTokens;
pub use stream_decoder::StreamDecoder;
pub(crate) use vocabulary::EOS_IDS;
use vocabulary::{Kind, Script, Vocabulary};

/// A tokenized text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenizedText {
    /// Token ids, all below the vocabulary's size.
    pub ids: Vec<u32>,
    /// The byte range of each token; together they tile the text, if it has tokens. A range may begin or end inside a
    /// character, and is empty if the token covers no bytes of the text.
    pub spans: Vec<Range<u32>>,
}

/// Tokens of a text that is being encoded.
#[derive(Default)]
pub(crate) struct Encoding {
    /// `[tokens]`
    pub(crate) ids: Vec<u32>,
    /// `[tokens]`: end of each token in the text, in bytes.
    pub(crate) ends: Vec<u32>,
}

/// The tokenizer that a model file describes.
pub struct Tokenizer {
    vocabulary: Vocabulary,
    merging: Merging,
    marks: SpecialTokens,
    add_bos: bool,
    last: Mutex<Option<LastDocument>>,
}

/// The document encoded last, cached for the next question about it.
struct LastDocument {
    text: [u8; 32],
    space: bool,
    tokens: Arc<TokenizedText>,
}

/// Largest document, in bytes, whose tokens are cached. The tokens take three times as much memory as the text.
const REMEMBERED: usize = 32 << 20;

/// `tokenizer.ggml.model` of Gemma 4: SentencePiece's notation with BPE's list of merges.
const GEMMA4: &str = "gemma4";

/// Tokenization algorithm.
enum Merging {
    ByteLevel(Box<ByteLevel>),
    SentencePiece(Box<SentencePiece>),
}

impl Tokenizer {
    /// Reads the tokenizer of a file, which may hold a vocabulary only.
    ///
    /// # Errors
    /// [`ModelError`]: `UnsupportedTokenizer`, `UnsupportedPreTokenizer`, `BadVocabulary`, `MissingKey`, `BadValue`.
    pub fn of_file(gguf: &Gguf) -> Result<Tokenizer, ModelError> {
        Tokenizer::read(gguf, None)
    }

    /// Reads the tokenizer of a model whose embedding has `rows` rows.
    pub(crate) fn read(gguf: &Gguf, rows: Option<usize>) -> Result<Tokenizer, ModelError> {
        let script = check_kind(gguf)?;
        let vocabulary = Vocabulary::read(gguf, rows, script)?;
        let (merging, adds_bos) = match script {
            Script::ByteSymbols => {
                let merging = ByteLevel::read(gguf, &vocabulary)?;
                let adds_bos = merging.rules.adds_bos;
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
            add_bos: add_bos && vocabulary.bos.is_some(),
            marks: SpecialTokens::read(gguf, &vocabulary, script)?,
            vocabulary,
            merging,
            last: Mutex::default(),
        })
    }

    /// Encodes a standalone text. Control tokens are not recognised, and [`Self::bos`] is not prepended.
    ///
    /// # Panics
    /// If the text is longer than `u32::MAX` bytes.
    pub fn encode(&self, text: &str) -> TokenizedText {
        self.encode_after(text, self.adds_space())
    }

    /// Like [`Self::encode`], for a text that follows a template's text; `space` is the result of [`Self::before`].
    ///
    /// # Panics
    /// If the text is longer than `u32::MAX` bytes.
    pub fn encode_after(&self, text: &str, space: bool) -> TokenizedText {
        let tokens = self.encode_until(text, space, &Stop::new());
        tokens.expect("never stopped")
    }

    /// Like [`Self::encode_after`], cancelled by `stop`.
    fn encode_until(&self, text: &str, space: bool, stop: &Stop) -> Result<TokenizedText, Stopped> {
        assert!(
            text.len() <= u32::MAX as usize,
            "spans are u32; cut the text first"
        );
        let mut encoding = Encoding::default();
        let (mut at, mut space) = (0, space);
        while let Some((from, mark)) = self.marks.next_in_document(text, at) {
            self.encode_plain(&text[at..from], at, space, &mut encoding, stop)?;
            at = from + mark.text.len();
            space = self.adds_space();
            encoding.ids.push(mark.id);
            encoding.ends.push(at as u32);
        }
        self.encode_plain(&text[at..], at, space, &mut encoding, stop)?;
        let Encoding { ids, mut ends } = encoding;
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

    /// Like [`Self::encode_after`], for a document, which usually gets several questions: the last document's tokens
    /// are cached.
    ///
    /// # Errors
    /// [`Stopped`], within a tenth of a second of a request to `stop`.
    ///
    /// # Panics
    /// If the text is longer than `u32::MAX` bytes.
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
        // Dropped first, so that two documents are never in memory at once.
        *last = None;
        let tokens = Arc::new(self.encode_until(text, space, stop)?);
        *last = Some(LastDocument {
            text: print,
            space,
            tokens: Arc::clone(&tokens),
        });
        Ok(tokens)
    }

    /// Removes trailing white space of a template's text that belongs to its last special token or to the text after
    /// it. Returns the template's text to encode, and whether a space is prepended to the text after it.
    ///
    /// In SentencePiece a space is part of the word after it, so a space at the end of the template's text moves to the
    /// next text. A model that prepends spaces to texts does so at the start of a prompt and after a special token.
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

    /// Encodes a template's text. Control tokens and user-defined tokens are recognised, the longest first.
    /// [`Self::bos`] is not prepended, because templates write it themselves. `continues` is true if text precedes this
    /// one.
    ///
    /// Text after a special token gets a leading space only if it has none, as in Mistral's own encoding of its
    /// template.
    pub fn encode_template(&self, text: &str, continues: bool) -> Vec<u32> {
        // Only the ids are used.
        let mut encoding = Encoding::default();
        let mut at = 0;
        let mut behind_text = continues;
        let plain = |part: &str, behind_text: bool, encoding: &mut Encoding| {
            let space = self.adds_space() && !behind_text && !part.starts_with(' ');
            let done = self.encode_plain(part, 0, space, encoding, &Stop::new());
            done.expect("never stopped");
        };
        while let Some((from, mark)) = self.marks.next_in_template(text, at) {
            plain(&text[at..from], behind_text, &mut encoding);
            encoding.ids.push(mark.id);
            at = from + mark.text.len();
            if mark.takes_space {
                at = text.len() - text[at..].trim_start().len();
            }
            behind_text = false;
        }
        plain(&text[at..], behind_text, &mut encoding);
        encoding.ids
    }

    /// Appends the tokens of `text`, which contains no special tokens and begins at byte `offset` of the whole text.
    fn encode_plain(
        &self,
        text: &str,
        offset: usize,
        space: bool,
        encoding: &mut Encoding,
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let (first, vocabulary) = (encoding.ends.len(), &self.vocabulary);
        match &self.merging {
            Merging::ByteLevel(merging) => merging.encode(vocabulary, text, encoding, stop)?,
            Merging::SentencePiece(merging) => {
                merging.encode(vocabulary, text, space, encoding, stop)?;
            }
        }
        for end in &mut encoding.ends[first..] {
            *end += offset as u32;
        }
        Ok(())
    }

    /// Bytes of `text` that have no token and are dropped, as in llama.cpp and Hugging Face: SmolLM2's vocabularies
    /// lack 21 bytes.
    pub fn dropped(&self, text: &str) -> usize {
        match &self.merging {
            Merging::ByteLevel(merging) => merging.dropped(text),
            Merging::SentencePiece(_) => 0,
        }
    }

    /// Whether a space is prepended to a standalone text.
    fn adds_space(&self) -> bool {
        match &self.merging {
            Merging::ByteLevel(_) => false,
            Merging::SentencePiece(merging) => merging.adds_space,
        }
    }

    /// The bytes of text that a token represents; empty for control tokens.
    ///
    /// # Panics
    /// If there is no token `id`.
    pub fn decode_bytes(&self, id: u32) -> &[u8] {
        self.vocabulary.bytes(id)
    }

    /// The token as stored in the vocabulary: byte-level symbols, a piece, or the name of a control token.
    ///
    /// # Panics
    /// If there is no token `id`.
    pub fn token_text(&self, id: u32) -> &str {
        self.vocabulary.text(id)
    }

    /// The token that the vocabulary stores as `text`.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.vocabulary.id(text)
    }

    /// Whether the token ends an answer (end of sequence, turn or message).
    pub fn is_end(&self, id: u32) -> bool {
        self.vocabulary.is_end(id)
    }

    /// Whether the token is a control token.
    pub fn is_control(&self, id: u32) -> bool {
        self.vocabulary.kind(id) == Kind::Control
    }

    /// Beginning-of-sequence token.
    pub fn bos(&self) -> Option<u32> {
        self.vocabulary.bos
    }

    /// End-of-sequence token. It is never appended to prompts, whatever the file declares, because the model continues
    /// them.
    pub fn eos(&self) -> Option<u32> {
        self.vocabulary.eos
    }

    /// Whether prompts begin with [`Self::bos`].
    pub fn add_bos(&self) -> bool {
        self.add_bos
    }

    /// Number of tokens; ids are below it. The embedding may have more rows.
    pub fn vocab(&self) -> usize {
        self.vocabulary.len()
    }

    /// Memory in bytes: the vocabulary's strings and tables, and the merge tables.
    pub fn bytes(&self) -> u64 {
        let merging = match &self.merging {
            Merging::ByteLevel(merging) => merging.memory_bytes(&self.vocabulary),
            Merging::SentencePiece(merging) => merging.memory_bytes(),
        };
        (self.vocabulary.memory_bytes() + merging) as u64
    }

    /// A lower bound of the number of tokens of `text`, without encoding it: its bytes divided by the length of the
    /// longest token. 0 if one token can represent any number of bytes.
    pub fn fewest_tokens(&self, text: &str) -> usize {
        let longest = self.vocabulary.longest;
        let longest = match &self.merging {
            Merging::ByteLevel(merging) => merging.most_bytes(longest),
            Merging::SentencePiece(merging) if merging.fuses_unknown() => return 0,
            Merging::SentencePiece(merging) => longest.max(merging.longest),
        };
        (text.len() - self.dropped(text)) / longest.max(1)
    }
}

/// The vocabulary's notation, if the tokenizer is supported, judging by its names in the metadata.
pub(crate) fn check_kind(gguf: &Gguf) -> Result<Script, ModelError> {
    const MODEL: &str = "tokenizer.ggml.model";
    let model = gguf.text(MODEL)?.ok_or_else(|| ModelError::MissingKey {
        key: MODEL.to_owned(),
    })?;
    match model {
        "gpt2" => ByteLevelRules::of_file(gguf).map(|_| Script::ByteSymbols),
        "llama" | GEMMA4 => Ok(Script::Pieces),
        name => Err(ModelError::UnsupportedTokenizer {
            name: name.to_owned(),
        }),
    }
}
