//! Pre-tokenizers: they split a text before BPE merging. No merge crosses a cut.
//!
//! Each pre-tokenizer is a hand-written scanner for a published regular expression. A backtracking regex engine needs
//! memory proportional to the longest run of letters, and documents may be hostile. Tests compare the scanners with the
//! expressions. In a family with several expressions, each splits the pieces of the previous one.
//!
//! Control tokens are split off before pre-tokenization (in a document, never).
//!
//! ```text
//! gpt-2     " The year 1984."   ->   " The" | " year" | " 1984" | "."
//! smollm                        ->   " The" | " year" | " " | "1" | "9" | "8" | "4" | "."
//! llama-bpe                     ->   " The" | " year" | " " | "198" | "4" | "."
//! tekken    "parseXMLFile/\n"   ->   "parse" | "XMLFile" | "/\n"
//! ```

mod classes;
mod scanners;
#[cfg(test)]
mod tests;

use kept_kernels::{Stop, Stopped};

use classes::classes;
use scanners::{Found, Scan, Scanner};

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
    /// Seed's expression: Qwen 2's, where line breaks do not belong to the signs before them.
    Seed,
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
    (
        "megrez hunyuan kormo f2llmv2 bailingmoe bailingmoe2 llada-moe",
        rules(PreTokenizer::Qwen2),
    ),
    ("seed-coder", rules(PreTokenizer::Seed)),
    ("tekken", rules(PreTokenizer::Tekken)),
    (
        "gpt-4o llama4 kanana2 talkie minimax-m2",
        rules(PreTokenizer::Gpt4o),
    ),
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
    /// The scanners, in order of application.
    fn stages(self) -> &'static [Scan] {
        use scanners::*;
        match self {
            PreTokenizer::Gpt2 => &[gpt2],
            PreTokenizer::SmolLm => &[digit, gpt2],
            PreTokenizer::Llama3 => &[llama3],
            PreTokenizer::Qwen2 => &[qwen2],
            PreTokenizer::Qwen35 => &[qwen35],
            PreTokenizer::Seed => &[seed],
            PreTokenizer::Tekken => &[tekken],
            PreTokenizer::Gpt4o => &[gpt4o],
            PreTokenizer::DeepSeekLlm => &[
                line_break,
                cased_letters,
                ascii_signs,
                trailing_spaces,
                eastern,
                digit,
            ],
            PreTokenizer::DeepSeekCoder => &[line_break, letters, punctuation, eastern, digit],
            PreTokenizer::DeepSeek3 => &[three_digits, han_and_kana, deepseek3],
        }
    }

    /// Splits `text` into pieces that tile it, and calls `piece` with the end of each.
    ///
    /// # Errors
    /// [`Stopped`] if `stop` was requested.
    pub(crate) fn cut(
        self,
        text: &str,
        stop: &Stop,
        mut piece: impl FnMut(usize),
    ) -> Result<(), Stopped> {
        cut(self.stages(), text, 0, stop, &mut piece)
    }
}

/// Splits a piece that begins at `offset` of the whole text with the remaining scanners. Text between the matches of a
/// scanner forms pieces too.
fn cut(
    stages: &[Scan],
    text: &str,
    offset: usize,
    stop: &Stop,
    piece: &mut dyn FnMut(usize),
) -> Result<(), Stopped> {
    let Some((scan, rest)) = stages.split_first() else {
        piece(offset + text.len());
        return Ok(());
    };
    let scanner = Scanner {
        text,
        classes: classes(),
    };
    let (mut at, mut start) = (0, 0);
    let mut found = |start: usize, end: usize| {
        if start < end {
            cut(rest, &text[start..end], offset + start, stop, piece)
        } else {
            Ok(())
        }
    };
    while at < text.len() {
        match scan(&scanner, at) {
            Found::Piece(end) => {
                stop.check()?;
                found(start, at)?;
                found(at, end)?;
                (at, start) = (end, end);
            }
            Found::Nothing(end) => at = end,
        }
    }
    found(start, at)
}
