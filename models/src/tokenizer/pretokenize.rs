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

/// Meaning of a name in `tokenizer.ggml.pre`.
struct Named {
    name: &'static str,
    pre: PreTokenizer,
    /// A piece that is itself a token is encoded as that token, without merging.
    ignores_merges: bool,
    /// Whether prompts begin with the beginning-of-sequence token if the file does not declare it.
    adds_bos: bool,
    /// Whether texts are normalised to Unicode NFC first.
    composes: bool,
}

const fn named(name: &'static str, pre: PreTokenizer) -> Named {
    Named {
        name,
        pre,
        ignores_merges: matches!(pre, PreTokenizer::Llama3 | PreTokenizer::Tekken),
        adds_bos: matches!(pre, PreTokenizer::Llama3 | PreTokenizer::Tekken),
        composes: false,
    }
}

/// The supported names, as written by llama.cpp's converter. Its name `default`, a fallback expression for unknown
/// models, is not supported.
///
/// Two rules follow the published tokenizers and differ from llama.cpp: Qwen's tokenizers normalise to NFC, and
/// `smaug-bpe` (today SmolLM3, with Llama 3's vocabulary) ignores merges as Llama 3 does.
const NAMES: &[Named] = &[
    named("gpt-2", PreTokenizer::Gpt2),
    named("phi-2", PreTokenizer::Gpt2),
    named("jina-es", PreTokenizer::Gpt2),
    named("jina-de", PreTokenizer::Gpt2),
    named("gigachat", PreTokenizer::Gpt2),
    named("a.x-4.0", PreTokenizer::Gpt2),
    named("mellum", PreTokenizer::Gpt2),
    named("exaone4", PreTokenizer::Gpt2),
    named("olmo", PreTokenizer::Gpt2),
    named("smollm", PreTokenizer::SmolLm),
    named("starcoder", PreTokenizer::SmolLm),
    named("refact", PreTokenizer::SmolLm),
    named("command-r", PreTokenizer::SmolLm),
    named("codeshell", PreTokenizer::SmolLm),
    named("exaone", PreTokenizer::SmolLm),
    named("minerva-7b", PreTokenizer::SmolLm),
    named("llama-bpe", PreTokenizer::Llama3),
    named("llama3", PreTokenizer::Llama3),
    named("llama-v3", PreTokenizer::Llama3),
    named("falcon3", PreTokenizer::Llama3),
    named("falcon-h1", PreTokenizer::Llama3),
    named("pixtral", PreTokenizer::Llama3),
    named("midm-2.0", PreTokenizer::Llama3),
    named("lfm2", PreTokenizer::Llama3),
    Named {
        adds_bos: false,
        ..named("smaug-bpe", PreTokenizer::Llama3)
    },
    Named {
        ignores_merges: false,
        adds_bos: false,
        ..named("dbrx", PreTokenizer::Llama3)
    },
    Named {
        composes: true,
        ..named("qwen2", PreTokenizer::Qwen2)
    },
    Named {
        composes: true,
        ..named("deepseek-r1-qwen", PreTokenizer::Qwen2)
    },
    Named {
        composes: true,
        ..named("qwen35", PreTokenizer::Qwen35)
    },
    named("megrez", PreTokenizer::Qwen2),
    named("hunyuan", PreTokenizer::Qwen2),
    named("kormo", PreTokenizer::Qwen2),
    named("f2llmv2", PreTokenizer::Qwen2),
    named("tekken", PreTokenizer::Tekken),
    named("gpt-4o", PreTokenizer::Gpt4o),
    named("llama4", PreTokenizer::Gpt4o),
    named("kanana2", PreTokenizer::Gpt4o),
    named("talkie", PreTokenizer::Gpt4o),
    named("deepseek-llm", PreTokenizer::DeepSeekLlm),
    named("deepseek-coder", PreTokenizer::DeepSeekCoder),
    named("deepseek-v3", PreTokenizer::DeepSeek3),
    named("hunyuan-dense", PreTokenizer::DeepSeek3),
];

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

impl ByteLevelRules {
    /// The rules of a file.
    pub(crate) fn of_file(gguf: &Gguf) -> Result<ByteLevelRules, ModelError> {
        ByteLevelRules::named(gguf.text("tokenizer.ggml.pre")?.unwrap_or_default())
    }

    /// The rules for the pre-tokenizer `name`.
    fn named(name: &str) -> Result<ByteLevelRules, ModelError> {
        let Some(found) = NAMES.iter().find(|known| known.name == name) else {
            let supported: Vec<&str> = NAMES.iter().map(|known| known.name).collect();
            return Err(ModelError::UnsupportedPreTokenizer {
                name: name.to_owned(),
                supported: supported.join(" "),
            });
        };
        Ok(ByteLevelRules {
            pre: found.pre,
            ignores_merges: found.ignores_merges,
            adds_bos: found.adds_bos,
            composes: found.composes,
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
