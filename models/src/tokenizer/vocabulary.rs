//! The vocabulary of a model file: text, bytes and kind of every token, and the tokens with a role.
//!
//! `byte_level.rs` and `sentencepiece.rs` implement merging.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::ModelError;
use crate::gguf::Gguf;
use crate::memory_size::{allocated, table};

/// A space in the internal form.
pub(super) const SPACE: char = '▁';

/// Kind of a token, from `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A piece of text.
    Normal,
    /// A control token, never text.
    Control,
    /// Text that is always a single token: runs of spaces, tags, `<think>`.
    UserDefined,
    /// A byte token of a SentencePiece vocabulary.
    Byte,
    /// Unknown and unused tokens, which encoding does not produce.
    Other,
}

/// Notation of tokens in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Script {
    /// One symbol per byte (GPT-2).
    ByteSymbols,
    /// Plain text with `▁` for spaces (SentencePiece).
    Pieces,
}

/// Texts of tokens that end an answer even if no metadata key declares it; llama.cpp's list. It includes the padding
/// and separator tokens between files and repositories.
const END_TEXTS: &str = "\
    <|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> <|eom_id|> \
    <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response> <｜end▁of▁sentence｜> \
    <|fim_pad|> <fim-pad> <fim_pad> <|fim_repo|> <|repo_name|> <fim-repo> <reponame> <|file_sep|> </s>";

/// Also an HTML tag: ends an answer only if the file types it as a control token.
const STRIKE_END: &str = "</s>";

const TOKENS: &str = "tokenizer.ggml.tokens";

/// All tokens that end an answer, as Ollama's converter lists them.
pub(crate) const EOS_IDS: &str = "tokenizer.ggml.eos_token_ids";

pub(crate) struct Vocabulary {
    texts: Vec<Box<str>>,
    kinds: Vec<Kind>,
    /// Bytes of all tokens, concatenated; token `id` has `bytes[starts[id]..starts[id + 1]]`.
    bytes: Vec<u8>,
    /// `[tokens + 1]`
    starts: Vec<u32>,
    ids: HashMap<Box<str>, u32>,
    ends: Vec<u32>,
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) unknown: Option<u32>,
    /// Bytes of the longest token.
    pub(super) longest: usize,
}

impl Vocabulary {
    pub(crate) fn read(
        gguf: &Gguf,
        rows: Option<usize>,
        script: Script,
    ) -> Result<Vocabulary, ModelError> {
        let bad = |what: String| ModelError::BadVocabulary { what };
        let texts = gguf.texts(TOKENS)?.ok_or_else(|| ModelError::MissingKey {
            key: TOKENS.to_owned(),
        })?;
        if texts.is_empty() || rows.is_some_and(|rows| texts.len() > rows) {
            return Err(bad(format!(
                "it has {} tokens and the embedding {} rows",
                texts.len(),
                rows.unwrap_or_default()
            )));
        }
        let mut kinds = kinds(gguf, texts.len())?;
        // SentencePiece's default ids, for files that declare none.
        let usual = |id: u32| Some(id).filter(|_| script == Script::Pieces);
        let role = |name: &str, usual| role(gguf, name, usual, texts.len());
        let (bos, eos) = (role("bos", usual(1))?, role("eos", usual(2))?);
        let unknown = role("unknown", usual(0))?;
        let mut ends: Vec<u32> = eos.into_iter().collect();
        ends.extend(role("eot", None)?);
        ends.extend(role("eom", None)?);
        let listed = gguf.wholes(EOS_IDS)?.unwrap_or_default().into_iter();
        ends.extend(
            listed
                .filter(|&id| id < texts.len() as u64)
                .map(|id| id as u32),
        );
        // A token with a role is a control token, even if a converter typed it as text.
        for &id in ends.iter().chain(&bos) {
            kinds[id as usize] = Kind::Control;
        }
        let end_texts: Vec<&str> = END_TEXTS.split(' ').collect();
        let mut ids = HashMap::with_capacity(texts.len());
        for (id, text) in texts.iter().enumerate() {
            ids.entry(Box::from(*text)).or_insert(id as u32);
            let ends_answers =
                end_texts.contains(text) && (*text != STRIKE_END || kinds[id] == Kind::Control);
            if ends_answers {
                kinds[id] = Kind::Control;
                ends.push(id as u32);
            }
        }
        // These vocabularies end messages with other tokens; `<|end|>` ends only a part of a message.
        let has = |text: &str| ids.contains_key(text);
        if (has("<|return|>") && has("<|call|>")) || (has("<|calls|>") && has("<|flush|>")) {
            ends.retain(|&id| texts[id as usize] != "<|end|>");
        }
        let (bytes, starts) = bytes(&texts, &kinds, script);
        let longest = starts
            .windows(2)
            .map(|pair| (pair[1] - pair[0]) as usize)
            .max()
            .unwrap_or(0);
        let texts: Vec<Box<str>> = texts.into_iter().map(Box::from).collect();
        let vocabulary = Vocabulary {
            texts,
            kinds,
            bytes,
            starts,
            ids,
            ends,
            bos,
            eos,
            unknown,
            longest,
        };
        Ok(vocabulary)
    }

    pub(crate) fn len(&self) -> usize {
        self.texts.len()
    }

    pub(crate) fn text(&self, id: u32) -> &str {
        &self.texts[id as usize]
    }

    pub(crate) fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    pub(crate) fn kind(&self, id: u32) -> Kind {
        self.kinds[id as usize]
    }

    pub(crate) fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        &self.bytes[self.starts[id] as usize..self.starts[id + 1] as usize]
    }

    pub(crate) fn is_end(&self, id: u32) -> bool {
        self.ends.contains(&id)
    }

    /// Memory in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let texts: usize = self.texts.iter().map(|text| allocated(text.len())).sum();
        let lists = self.texts.len() * (size_of::<Box<str>>() + size_of::<Kind>())
            + self.bytes.capacity()
            + self.starts.capacity() * size_of::<u32>();
        // The table holds a second copy of every text.
        let entry = size_of::<(Box<str>, u32)>();
        2 * texts + lists + table(self.ids.capacity().max(self.ids.len()), entry)
    }
}

fn kinds(gguf: &Gguf, tokens: usize) -> Result<Vec<Kind>, ModelError> {
    const TYPES: &str = "tokenizer.ggml.token_type";
    let Some(types) = gguf.wholes(TYPES)? else {
        return Ok(vec![Kind::Normal; tokens]);
    };
    if types.len() < tokens {
        let what = format!("it has {tokens} tokens and {} token types", types.len());
        return Err(ModelError::BadVocabulary { what });
    }
    let kind = |kind: u64| match kind {
        1 => Kind::Normal,
        3 => Kind::Control,
        4 => Kind::UserDefined,
        6 => Kind::Byte,
        _ => Kind::Other,
    };
    Ok(types.into_iter().take(tokens).map(kind).collect())
}

/// The id of a token with a role. An id outside the vocabulary counts as absent, as in llama.cpp; converters write
/// `u32::MAX` for "none".
fn role(
    gguf: &Gguf,
    name: &str,
    usual: Option<u32>,
    tokens: usize,
) -> Result<Option<u32>, ModelError> {
    let key = format!("tokenizer.ggml.{name}_token_id");
    let valid = |id: &u64| *id < tokens as u64;
    Ok(match gguf.whole(&key)? {
        Some(id) if id == u64::from(u32::MAX) => None,
        said => said
            .filter(valid)
            .or(usual.map(u64::from).filter(valid))
            .map(|id| id as u32),
    })
}

/// Bytes of all tokens, and the start of each. The texts come from the file, so their total size is bounded by it.
fn bytes(texts: &[&str], kinds: &[Kind], script: Script) -> (Vec<u8>, Vec<u32>) {
    let mut bytes = Vec::new();
    let mut starts = vec![0];
    for (text, kind) in texts.iter().zip(kinds) {
        let start = bytes.len();
        match (kind, script) {
            (Kind::Control, _) => {}
            (Kind::Byte, Script::Pieces) => bytes.extend(byte_of_name(text)),
            (_, Script::Pieces) => bytes.extend_from_slice(text.replace(SPACE, " ").as_bytes()),
            (Kind::UserDefined, Script::ByteSymbols) => bytes.extend_from_slice(text.as_bytes()),
            (_, Script::ByteSymbols) => {
                for c in text.chars() {
                    match byte_of_symbol(c) {
                        Some(byte) => bytes.push(byte),
                        None => {
                            // Contains a character that is no byte symbol: use the text itself.
                            bytes.truncate(start);
                            bytes.extend_from_slice(text.as_bytes());
                            break;
                        }
                    }
                }
            }
        }
        starts.push(bytes.len() as u32);
    }
    (bytes, starts)
}

/// The byte that a name such as `<0x41>` denotes.
fn byte_of_name(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(hex, 16).ok()
}

/// GPT-2's table: printable bytes map to themselves, the others to the characters from U+0100 on, in order.
static SYMBOLS: LazyLock<[char; 256]> = LazyLock::new(|| {
    let mut symbols = ['\0'; 256];
    let mut next = 0x100;
    for (byte, symbol) in (0..=255u8).zip(&mut symbols) {
        let printable = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        *symbol = if printable {
            char::from(byte)
        } else {
            char::from_u32(next).unwrap_or_default()
        };
        next += u32::from(!printable);
    }
    symbols
});

pub(crate) fn symbol_of_byte(byte: u8) -> char {
    SYMBOLS[byte as usize]
}

pub(crate) fn byte_of_symbol(symbol: char) -> Option<u8> {
    static BYTES: LazyLock<HashMap<char, u8>> =
        LazyLock::new(|| (0..=255).map(|byte| (symbol_of_byte(byte), byte)).collect());
    BYTES.get(&symbol).copied()
}
