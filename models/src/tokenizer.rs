//! Text to tokens and back, by the byte-level BPE vocabulary in the model file.
//!
//! A document is data: [`Tokenizer::encode`] never recognises a control token in it, so no document can end the
//! user's turn. Only the text that a chat template makes goes through [`Tokenizer::encode_with_control`].
//!
//! Spans are byte ranges, exact by construction: every token stands for as many bytes as its symbols, and together
//! they tile the text. A token may hold a part of a character.
//!
//! ```text
//! text   "Ich 🙂"     bytes  49 63 68 20 f0 9f 99 82
//! tokens "Ich" " ð" "Ł" "Ļ" "Ĥ"    spans  0..3 3..5 5..6 6..7 7..8
//! ```
//!
//! Not here: chat templates, and the pre-tokenizers' expressions (`pretokenize.rs`).

use std::collections::HashMap;
use std::ops::Range;

use tokenizers::Model as _;
use tokenizers::models::bpe::{BPE, Vocab};

use crate::ModelError;
use crate::gguf::Gguf;
use crate::pretokenize::PreTokenizer;
use crate::vocabulary::{Kind, Vocabulary, byte_of_symbol, symbol_of_byte};

/// Texts from this length on are tokenised on several threads.
const PARALLEL_BYTES: usize = 64 << 10;

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
pub struct Tokenizer {
    vocabulary: Vocabulary,
    bpe: BPE,
    pre: PreTokenizer,
    add_bos: bool,
    /// Ids of control and user-defined tokens by the first byte of their text, longest first.
    marked: HashMap<u8, Vec<u32>>,
}

impl Tokenizer {
    /// Read the tokenizer of a model whose embedding has `rows` rows.
    pub(crate) fn read(gguf: &Gguf, rows: usize) -> Result<Tokenizer, ModelError> {
        let pre = check_kind(gguf)?;
        let vocabulary = Vocabulary::read(gguf, rows)?;
        let bpe = merges(gguf, &vocabulary, pre)?;
        let mut marked: HashMap<u8, Vec<u32>> = HashMap::new();
        for id in 0..vocabulary.len() as u32 {
            let text = vocabulary.text(id);
            if vocabulary.is_marked(id)
                && let Some(&first) = text.as_bytes().first()
            {
                marked.entry(first).or_default().push(id);
            }
        }
        for ids in marked.values_mut() {
            ids.sort_by_key(|&id| std::cmp::Reverse(vocabulary.text(id).len()));
        }
        let add_bos = gguf
            .flag("tokenizer.ggml.add_bos_token")?
            .unwrap_or(pre.adds_bos());
        Ok(Tokenizer {
            add_bos: add_bos && vocabulary.bos().is_some(),
            vocabulary,
            bpe,
            pre,
            marked,
        })
    }

    /// Tokens of a text; nothing in it is ever taken for a control token. Neither is [`Self::bos`] put in front.
    ///
    /// # Panics
    /// When the text is longer than `u32::MAX` bytes.
    pub fn encode(&self, text: &str) -> TokenizedText {
        assert!(
            text.len() <= u32::MAX as usize,
            "spans are u32; cut the text first"
        );
        let ids = self.ids(text);
        let mut start = 0;
        let spans = ids
            .iter()
            .map(|&id| {
                let end = start + self.vocabulary.bytes(id).len() as u32;
                std::mem::replace(&mut start, end)..end
            })
            .collect();
        debug_assert_eq!(start as usize, text.len(), "spans tile the text");
        TokenizedText { ids, spans }
    }

    /// Tokens of a template's text, in which control and user-defined tokens are recognised (the longest first).
    /// [`Self::bos`] is not put in front: templates write it themselves.
    pub fn encode_with_control(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        let (mut plain, mut at) = (0, 0);
        while at < text.len() {
            match self.marked_at(&text.as_bytes()[at..]) {
                Some(id) => {
                    ids.extend(self.ids(&text[plain..at]));
                    ids.push(id);
                    at += self.vocabulary.text(id).len();
                    plain = at;
                }
                None => at += text[at..].chars().next().map_or(1, char::len_utf8),
            }
        }
        ids.extend(self.ids(&text[plain..]));
        ids
    }

    fn marked_at(&self, rest: &[u8]) -> Option<u32> {
        let candidates = self.marked.get(rest.first()?)?;
        candidates
            .iter()
            .copied()
            .find(|&id| rest.starts_with(self.vocabulary.text(id).as_bytes()))
    }

    /// Bytes that a token stands for in a text: none for control tokens, which are not text.
    ///
    /// # Panics
    /// When there is no such token.
    pub fn decode_bytes(&self, id: u32) -> &[u8] {
        self.vocabulary.bytes(id)
    }

    /// The token as the vocabulary writes it: byte-level symbols, or the name of a control token.
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

    /// End-of-sequence token.
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

    /// Bytes of the longest token: a text of `n` bytes has at least `n / longest` tokens.
    pub fn longest_token_bytes(&self) -> usize {
        self.vocabulary.longest()
    }

    /// Ids of a text without control tokens. Pieces are cut in one go and merged on as many threads as are worth it:
    /// merges never cross a cut, so the result is the same.
    fn ids(&self, text: &str) -> Vec<u32> {
        let mut ends = Vec::with_capacity(text.len() / 4);
        self.pre.cut(text, |end| ends.push(end));
        if text.len() < PARALLEL_BYTES {
            return self.merge(text, 0, &ends);
        }
        let share = ends.len().div_ceil(kept_kernels::threads::count()).max(1);
        std::thread::scope(|scope| {
            let mut start = 0;
            let workers: Vec<_> = ends
                .chunks(share)
                .map(|ends| {
                    let end = ends.last().copied().unwrap_or(start);
                    let from = std::mem::replace(&mut start, end);
                    scope.spawn(move || self.merge(text, from, ends))
                })
                .collect();
            let mut ids = Vec::with_capacity(text.len() / 3);
            for worker in workers {
                match worker.join() {
                    Ok(part) => ids.extend(part),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            ids
        })
    }

    /// Merge the bytes of each piece; pieces end at `ends`, the first begins at `start`.
    fn merge(&self, text: &str, mut start: usize, ends: &[usize]) -> Vec<u32> {
        let mut ids = Vec::new();
        let mut symbols = String::new();
        for &end in ends {
            symbols.clear();
            symbols.extend(
                text.as_bytes()[start..end]
                    .iter()
                    .map(|&byte| symbol_of_byte(byte)),
            );
            // An error would need a random dropout or an unknown symbol; there is neither, for every byte has a token.
            let tokens = self
                .bpe
                .tokenize(&symbols)
                .expect("BPE over a vocabulary of all bytes");
            ids.extend(tokens.iter().map(|token| token.id));
            start = end;
        }
        ids
    }
}

/// Whether the tokenizer is one that is supported, by its names alone.
pub(crate) fn check_kind(gguf: &Gguf) -> Result<PreTokenizer, ModelError> {
    let model = gguf
        .text("tokenizer.ggml.model")?
        .ok_or_else(|| ModelError::MissingKey {
            key: "tokenizer.ggml.model".to_owned(),
        })?;
    if model != "gpt2" {
        return Err(ModelError::UnsupportedTokenizer {
            name: model.to_owned(),
        });
    }
    PreTokenizer::named(gguf.text("tokenizer.ggml.pre")?.unwrap_or_default())
}

fn merges(gguf: &Gguf, vocabulary: &Vocabulary, pre: PreTokenizer) -> Result<BPE, ModelError> {
    const MERGES: &str = "tokenizer.ggml.merges";
    let bad = |what: String| ModelError::BadVocabulary { what };
    let lines = gguf.texts(MERGES)?.ok_or_else(|| ModelError::MissingKey {
        key: MERGES.to_owned(),
    })?;
    // Only plain tokens take part: a merge can then never make a control token out of a document.
    let plain: Vocab = (0..vocabulary.len() as u32)
        .rev() // the lowest of equal tokens wins
        .filter(|&id| vocabulary.kind(id) == Kind::Normal)
        .filter(|&id| {
            vocabulary
                .text(id)
                .chars()
                .all(|c| byte_of_symbol(c).is_some())
        })
        .map(|id| (vocabulary.text(id).to_owned(), id))
        .collect();
    let mut merges = Vec::with_capacity(lines.len());
    let mut merged = String::new();
    for line in lines {
        let (left, right) = line
            .split_once(' ')
            .filter(|(left, right)| !left.is_empty() && !right.is_empty())
            .ok_or_else(|| bad(format!("merge {line:?} is not two symbols")))?;
        merged.clear();
        merged.extend([left, right]);
        // The builder panics on a result that is longer than every token, so all three are looked up here.
        if let Some(unknown) = [left, right, &merged]
            .into_iter()
            .find(|part| !plain.contains_key(*part))
        {
            return Err(bad(format!(
                "merge {line:?} needs a plain token {unknown:?}, and there is none"
            )));
        }
        merges.push((left.to_owned(), right.to_owned()));
    }
    BPE::builder()
        .vocab_and_merges(plain, merges)
        .ignore_merges(pre.ignores_merges())
        .build()
        .map_err(|e| bad(e.to_string()))
}

/// Decodes tokens one by one into valid UTF-8, holding back the bytes of a character that is not complete.
#[derive(Debug, Clone, Default)]
pub struct StreamDecoder {
    /// At most three bytes: the beginning of a character.
    held: Vec<u8>,
}

impl StreamDecoder {
    /// A decoder at the start of an answer.
    pub fn new() -> StreamDecoder {
        StreamDecoder::default()
    }

    /// Append to `out` what one more token makes certain; bytes that can be no character become U+FFFD.
    ///
    /// # Panics
    /// When there is no such token.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32, out: &mut String) {
        self.held.extend_from_slice(tokenizer.decode_bytes(id));
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
