//! Byte-level BPE. Bytes become symbols, the pre-tokenizer (`pretokenize.rs`) splits the text, and pairs are merged in
//! the order of the file's merges.

use std::ops::Range;

use kept_kernels::{Stop, Stopped};
use tokenizers::Model as _;
use tokenizers::models::bpe::{BPE, Vocab};

use super::nfc::{self, Composed};
use super::parallel_bpe::{Pieces, merge_pieces};
use super::pretokenize::ByteLevelRules;
use super::vocabulary::{Kind, Vocabulary, byte_of_symbol, symbol_of_byte};
use crate::ModelError;
use crate::gguf::Gguf;
use crate::memory_size::{allocated, table};
use crate::tokenizer::Encoding;

pub(crate) struct ByteLevel {
    bpe: BPE,
    pub(super) rules: ByteLevelRules,
    merges: usize,
    /// `[256]`: which bytes have a token. SmolLM2's vocabularies lack 21 bytes by design.
    has_token: [bool; 256],
}

impl ByteLevel {
    pub(crate) fn read(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<ByteLevel, ModelError> {
        let rules = ByteLevelRules::of_file(gguf)?;
        // As in `merges`: of several equal tokens, one plain one suffices.
        let mut has_token = [false; 256];
        for id in (0..vocabulary.len() as u32).filter(|&id| vocabulary.kind(id) == Kind::Normal) {
            let mut symbols = vocabulary.text(id).chars();
            if let (Some(symbol), None) = (symbols.next(), symbols.next())
                && let Some(byte) = byte_of_symbol(symbol)
            {
                has_token[usize::from(byte)] = true;
            }
        }
        if !has_token.contains(&true) {
            let what = "no byte has a token, so no text can be encoded".to_owned();
            return Err(ModelError::BadVocabulary { what });
        }
        let (bpe, merges) = merges(gguf, vocabulary, rules)?;
        Ok(ByteLevel {
            bpe,
            rules,
            merges,
            has_token,
        })
    }

    /// Bytes of `text` that have no token: [`Self::encode`] drops them, as llama.cpp and Hugging Face do.
    pub(crate) fn dropped(&self, text: &str) -> usize {
        let lacks = |&byte: &u8| !self.has_token[byte as usize];
        text.as_bytes().iter().filter(|byte| lacks(byte)).count()
    }

    /// Memory in bytes: plain tokens by text and by id, and the merges. Excludes the library's cache of merged words,
    /// which has about ten thousand entries at most.
    pub(crate) fn memory_bytes(&self, vocabulary: &Vocabulary) -> usize {
        let ids = 0..vocabulary.len() as u32;
        let plain = ids.filter(|&id| vocabulary.kind(id) == Kind::Normal);
        let lengths = plain.map(|id| allocated(vocabulary.text(id).len()));
        let (tokens, texts) = lengths.fold((0, 0), |(n, sum), length| (n + 1, sum + length));
        let named = table(tokens, size_of::<(String, u32)>());
        2 * (texts + named) + table(self.merges, 4 * size_of::<u32>())
    }

    /// The largest number of text bytes that a token of `bytes` bytes can represent.
    pub(crate) fn most_bytes(&self, bytes: usize) -> usize {
        bytes
            * if self.rules.composes {
                nfc::MAX_BYTES_PER_NFC_BYTE
            } else {
                1
            }
    }

    /// Appends the tokens of a text. A byte without a token belongs to the next token.
    ///
    /// # Errors
    /// [`Stopped`] if `stop` was requested.
    pub(crate) fn encode(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        encoding: &mut Encoding,
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let composed = if self.rules.composes {
            Composed::new(text)
        } else {
            Composed::as_written(text)
        };
        let text = &*composed.text;
        let mut cuts = Vec::with_capacity(text.len() / 4);
        self.rules.pre.cut(text, stop, |end| cuts.push(end))?;
        let merged = merge_pieces(text.len(), &cuts, |pieces| {
            self.merge(vocabulary, text, pieces, stop)
        })?;
        let first = encoding.ends.len();
        encoding.ids.extend(merged.iter().map(|&(id, _)| id));
        encoding.ends.extend(merged.iter().map(|&(_, end)| end));
        composed.ends_as_written(&mut encoding.ends[first..]);
        Ok(())
    }

    /// Merges `pieces` of `text` into tokens, each with its end offset.
    fn merge(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        pieces: Pieces<'_>,
        stop: &Stop,
    ) -> Result<Vec<(u32, u32)>, Stopped> {
        let mut merged = Vec::new();
        let mut symbols = String::new();
        for Range { start, end } in pieces.ranges() {
            stop.check()?;
            symbols.clear();
            symbols.extend(
                text.as_bytes()[start..end]
                    .iter()
                    .map(|&byte| symbol_of_byte(byte)),
            );
            let tokens = self
                .bpe
                .tokenize(&symbols)
                .expect("BPE fails with an unknown token or a dropout only, and here is neither");
            let mut at = start;
            merged.extend(tokens.iter().map(|token| {
                // Bytes without a token are missing between those of tokens.
                for byte in vocabulary.bytes(token.id) {
                    let rest = &text.as_bytes()[at..end];
                    let gap = rest.iter().position(|other| other == byte);
                    at += gap.map_or(rest.len(), |gap| gap + 1);
                }
                (token.id, at as u32)
            }));
        }
        Ok(merged)
    }
}

/// The merges, and how many they are.
fn merges(
    gguf: &Gguf,
    vocabulary: &Vocabulary,
    rules: ByteLevelRules,
) -> Result<(BPE, usize), ModelError> {
    const MERGES: &str = "tokenizer.ggml.merges";
    let bad = |what: String| ModelError::BadVocabulary { what };
    let lines = gguf.texts(MERGES)?.ok_or_else(|| ModelError::MissingKey {
        key: MERGES.to_owned(),
    })?;
    // Only plain tokens take part, so a merge cannot form a control token from a document.
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
        let parts = [left, right, &merged];
        if parts[..2]
            .iter()
            .any(|part| is_never_made(vocabulary, part))
            || parts.iter().any(|part| is_cut_out(vocabulary, part))
        {
            continue;
        }
        // The builder panics if a merge's result is longer than every token, so all three are looked up first.
        if let Some(unknown) = parts.iter().find(|part| !plain.contains_key(**part)) {
            return Err(bad(format!(
                "merge {line:?} needs a plain token {unknown:?}, and there is none"
            )));
        }
        merges.push((left.to_owned(), right.to_owned()));
    }
    let count = merges.len();
    let built = BPE::builder()
        .vocab_and_merges(plain, merges)
        .ignore_merges(rules.ignores_merges)
        .build();
    Ok((built.map_err(|e| bad(e.to_string()))?, count))
}

/// Whether `part` is a sequence of several symbols without a token. No merge produces it, so a merge of it never
/// applies.
fn is_never_made(vocabulary: &Vocabulary, part: &str) -> bool {
    part.chars().nth(1).is_some() && vocabulary.id(part).is_none()
}

/// Whether `part` is a token that merging must not produce: a user-defined token is split off before merging, and a
/// control token must not come from a document. (For non-ASCII characters the symbols differ from the text.)
fn is_cut_out(vocabulary: &Vocabulary, part: &str) -> bool {
    let kind = vocabulary.id(part).map(|id| vocabulary.kind(id));
    kind == Some(Kind::Control) || kind == Some(Kind::UserDefined) && part.is_ascii()
}
