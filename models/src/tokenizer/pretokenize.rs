//! Pre-tokenizers: they split a text before BPE merging. No merge crosses a cut.
//!
//! The expressions are the published ones (`expressions.rs`). The engine is `regex-automata`, whose time is linear: a
//! backtracking engine needs memory proportional to the longest run of letters, and documents may be hostile. In a
//! family with several expressions, each splits the pieces of the previous one.
//!
//! Control tokens are split off before pre-tokenization (in a document, never).
//!
//! ```text
//! gpt-2     " The year 1984."   ->   " The" | " year" | " 1984" | "."
//! smollm                        ->   " The" | " year" | " " | "1" | "9" | "8" | "4" | "."
//! llama-bpe                     ->   " The" | " year" | " " | "198" | "4" | "."
//! tekken    "parseXMLFile/\n"   ->   "parse" | "XMLFile" | "/\n"
//! ```

mod expressions;
#[cfg(test)]
mod tests;

use std::sync::OnceLock;

use kept_kernels::{Stop, Stopped};
use regex_automata::{Input, PatternID, meta::Regex};

use crate::ModelError;
use crate::gguf::Gguf;

/// A supported pre-tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PreTokenizer {
    /// GPT-2's expression.
    Gpt2,
    /// Splits off single digits, then applies GPT-2's expression between them.
    SmolLm,
    /// Llama 3's expression: up to three digits per piece.
    Llama3,
    /// Qwen 2's expression: Llama 3's with one digit per piece.
    Qwen2,
    /// Qwen 3.5's expression: Qwen 2's, where marks belong to words.
    Qwen35,
    /// Mistral's Tekken: splits words at a change to upper case; one digit per piece.
    Tekken,
    /// GPT-4o's expression: Tekken's with contractions and up to three digits per piece.
    Gpt4o,
    /// DeepSeek LLM's five expressions; one digit per piece.
    DeepSeekLlm,
    /// DeepSeek Coder's four expressions; one digit per piece.
    DeepSeekCoder,
    /// DeepSeek V3's three expressions.
    DeepSeek3,
}

/// Rules of a vocabulary that follow from the name of its pre-tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ByteLevelRules {
    /// The pre-tokenizer.
    pub(crate) pre: PreTokenizer,
    /// A piece that is itself a token is encoded as that token, without merging.
    pub(crate) ignores_merges: bool,
    /// Whether prompts begin with the beginning-of-sequence token if the file does not declare it.
    pub(crate) adds_bos: bool,
    /// Whether texts are normalised to Unicode NFC first.
    pub(crate) composes: bool,
}

/// The rules of most names with this pre-tokenizer.
const fn rules(pre: PreTokenizer) -> ByteLevelRules {
    ByteLevelRules {
        pre,
        ignores_merges: matches!(pre, PreTokenizer::Llama3 | PreTokenizer::Tekken),
        adds_bos: matches!(pre, PreTokenizer::Llama3 | PreTokenizer::Tekken),
        composes: false,
    }
}

/// The supported values of `tokenizer.ggml.pre`, as written by llama.cpp's converter. Its name `default`, a fallback expression for unknown
/// models, is not supported.
///
/// Two rules follow the published tokenizers and differ from llama.cpp: Qwen's tokenizers normalise to NFC, and
/// `smaug-bpe` (today SmolLM3, with Llama 3's vocabulary) ignores merges as Llama 3 does.
const NAMES: &[(&str, ByteLevelRules)] = &[
    (
        "gpt-2 phi-2 jina-es jina-de gigachat a.x-4.0 mellum exaone4 olmo",
        rules(PreTokenizer::Gpt2),
    ),
    (
        "smollm starcoder refact command-r codeshell exaone minerva-7b",
        rules(PreTokenizer::SmolLm),
    ),
    (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
        rules(PreTokenizer::Llama3),
    ),
    (
        "smaug-bpe",
        ByteLevelRules {
            adds_bos: false,
            ..rules(PreTokenizer::Llama3)
        },
    ),
    (
        "dbrx chatglm-bpe glm4",
        ByteLevelRules {
            ignores_merges: false,
            adds_bos: false,
            ..rules(PreTokenizer::Llama3)
        },
    ),
    (
        "qwen2 deepseek-r1-qwen",
        ByteLevelRules {
            composes: true,
            ..rules(PreTokenizer::Qwen2)
        },
    ),
    (
        "qwen35",
        ByteLevelRules {
            composes: true,
            ..rules(PreTokenizer::Qwen35)
        },
    ),
    ("megrez hunyuan kormo f2llmv2", rules(PreTokenizer::Qwen2)),
    ("tekken", rules(PreTokenizer::Tekken)),
    ("gpt-4o llama4 kanana2 talkie", rules(PreTokenizer::Gpt4o)),
    ("deepseek-llm", rules(PreTokenizer::DeepSeekLlm)),
    ("deepseek-coder", rules(PreTokenizer::DeepSeekCoder)),
    ("deepseek-v3 hunyuan-dense", rules(PreTokenizer::DeepSeek3)),
];

impl ByteLevelRules {
    /// The rules of a file.
    pub(crate) fn of_file(gguf: &Gguf) -> Result<ByteLevelRules, ModelError> {
        ByteLevelRules::named(gguf.text("tokenizer.ggml.pre")?.unwrap_or_default())
    }

    /// The rules for the pre-tokenizer `name`.
    fn named(name: &str) -> Result<ByteLevelRules, ModelError> {
        let is_named = |names: &str| names.split(' ').any(|known| known == name);
        let found = NAMES.iter().find(|(names, _)| is_named(names));
        found.map(|&(_, rules)| rules).ok_or_else(|| {
            let supported: Vec<&str> = NAMES.iter().map(|&(names, _)| names).collect();
            ModelError::UnsupportedPreTokenizer {
                name: name.to_owned(),
                supported: supported.join(" "),
            }
        })
    }
}

impl PreTokenizer {
    /// The published expressions, in order of application.
    fn expressions(self) -> &'static [&'static str] {
        use expressions::*;
        match self {
            PreTokenizer::Gpt2 => &[GPT2],
            PreTokenizer::SmolLm => &[DIGIT, GPT2],
            PreTokenizer::Llama3 => &[LLAMA3],
            PreTokenizer::Qwen2 => &[QWEN2],
            PreTokenizer::Qwen35 => &[QWEN35],
            PreTokenizer::Tekken => &[TEKKEN],
            PreTokenizer::Gpt4o => &[GPT4O],
            PreTokenizer::DeepSeekLlm => &[
                LINE_BREAK,
                CASED_LETTERS,
                SIGNS,
                TRAILING_SPACES,
                EASTERN,
                DIGIT,
            ],
            PreTokenizer::DeepSeekCoder => &[LINE_BREAK, LETTERS, PUNCTUATION, EASTERN, DIGIT],
            PreTokenizer::DeepSeek3 => &[THREE_DIGITS, HAN_AND_KANA, DEEPSEEK3],
        }
    }

    /// The compiled expressions, in order of application.
    fn stages(self) -> &'static [Regex] {
        static STAGES: [OnceLock<Vec<Regex>>; 10] = [const { OnceLock::new() }; 10];
        STAGES[self as usize]
            .get_or_init(|| self.expressions().iter().map(|e| compile(e)).collect())
    }

    /// Splits `text` into pieces that tile it, and calls `piece` with the end of each.
    pub(crate) fn cut(
        self,
        text: &str,
        stop: &Stop,
        mut piece: impl FnMut(usize),
    ) -> Result<(), Stopped> {
        cut(self.stages(), text, 0, stop, &mut piece)
    }
}

/// The pattern of white space whose last character belongs to the next piece.
const SPACES: PatternID = PatternID::new_unchecked(1);

/// Compiles an expression. The engine has no look-ahead; where an expression has one, it is this end of it: white space
/// up to the end of the text, or else without its last character, if it has several.
fn compile(expression: &str) -> Regex {
    let compiled = match expression.strip_suffix(r"|\s+(?!\S)|\s+") {
        Some(rest) => Regex::new_many(&[&format!(r"{rest}|\s+\z"), r"\s+\s", r"\s"]),
        None => Regex::new(expression),
    };
    compiled.expect("a constant expression that a test compiles")
}

/// Splits a piece that begins at `offset` of the whole text with the remaining expressions. Text between the matches of
/// an expression forms pieces too.
fn cut(
    stages: &[Regex],
    text: &str,
    offset: usize,
    stop: &Stop,
    piece: &mut dyn FnMut(usize),
) -> Result<(), Stopped> {
    let Some((regex, rest)) = stages.split_first() else {
        piece(offset + text.len());
        return Ok(());
    };
    let mut found = |start: usize, end: usize| {
        if start < end {
            cut(rest, &text[start..end], offset + start, stop, piece)
        } else {
            Ok(())
        }
    };
    let mut at = 0;
    while let Some(found_at) = regex.search(&Input::new(text).range(at..)) {
        stop.check()?;
        let (start, mut end) = (found_at.start(), found_at.end());
        if found_at.pattern() == SPACES {
            end -= text[start..end]
                .chars()
                .next_back()
                .map_or(0, char::len_utf8);
        }
        found(at, start)?;
        found(start, end)?;
        at = end;
    }
    found(at, text.len())
}
