//! Pre-tokenizers: where a text is cut before byte pairs are merged. No merge ever crosses a cut.
//!
//! Each is a scanner for the regular expression its name stands for, written by hand because a regular expression
//! engine that backtracks needs memory in proportion to a run of letters, and documents may be hostile. The tests hold
//! them against the expressions themselves. Where a family has several expressions, each cuts the pieces of the one before.
//!
//! Not here: recognising control tokens; they are cut out before (or, in a document, never).
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
    /// Single digits cut out first, then GPT-2's expression on what is between them.
    SmolLm,
    /// Llama 3's expression: up to three digits together.
    Llama3,
    /// Qwen 2's expression: Llama 3's with single digits.
    Qwen2,
    /// Mistral's Tekken: words split where their case rises, single digits.
    Tekken,
    /// GPT-4o's: Tekken's with contractions and up to three digits together.
    Gpt4o,
    /// DeepSeek LLM's five expressions, and single digits.
    DeepSeekLlm,
    /// DeepSeek Coder's four expressions, and single digits.
    DeepSeekCoder,
    /// DeepSeek V3's three expressions.
    DeepSeek3,
}

/// What a name in `tokenizer.ggml.pre` stands for.
struct Named {
    name: &'static str,
    pre: PreTokenizer,
    /// A piece that is a token by itself is that token, whatever its merges say.
    ignores_merges: bool,
    /// Prompts begin with the beginning-of-sequence token when the file does not say.
    adds_bos: bool,
    /// Texts are brought to Unicode's form C first.
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

/// The names of these families, as llama.cpp's converter writes them. Its `default` is an expression that it takes for
/// models it does not know; it is refused here.
///
/// What the published tokenizers do and llama.cpp does not: Qwen's compose their texts, and what `smaug-bpe` stands for today
/// (SmolLM3, with Llama 3's vocabulary) ignores merges as Llama 3 does.
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
        composes: true,
        ..named("qwen2", PreTokenizer::Qwen2)
    },
    Named {
        composes: true,
        ..named("deepseek-r1-qwen", PreTokenizer::Qwen2)
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

/// What a file's name of a pre-tokenizer says about its vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ByteLevelRules {
    /// Where texts are cut.
    pub(crate) pre: PreTokenizer,
    /// A piece that is a token by itself is that token, whatever its merges say.
    pub(crate) ignores_merges: bool,
    /// Prompts begin with the beginning-of-sequence token when the file does not say.
    pub(crate) adds_bos: bool,
    /// Texts are brought to Unicode's form C first.
    pub(crate) composes: bool,
}

impl ByteLevelRules {
    /// The rules of a file.
    pub(crate) fn of_file(gguf: &Gguf) -> Result<ByteLevelRules, ModelError> {
        ByteLevelRules::named(gguf.text("tokenizer.ggml.pre")?.unwrap_or_default())
    }

    /// The rules behind this name.
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
    /// The expressions, in the order in which they cut.
    fn stages(self) -> &'static [Scan] {
        use scanners::*;
        match self {
            PreTokenizer::Gpt2 => &[gpt2],
            PreTokenizer::SmolLm => &[digit, gpt2],
            PreTokenizer::Llama3 => &[llama3],
            PreTokenizer::Qwen2 => &[qwen2],
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

    /// Cut `text` into pieces, calling `piece` with the end of each in turn; the ends tile the text.
    ///
    /// # Errors
    /// When `stop` was requested.
    pub(crate) fn cut(
        self,
        text: &str,
        stop: &Stop,
        mut piece: impl FnMut(usize),
    ) -> Result<(), Stopped> {
        cut(self.stages(), text, (0, stop), &mut piece)
    }
}

/// Cuts a piece that begins at `offset` of the whole text by the remaining expressions. What an expression does not find between
/// two of its pieces is a piece too.
fn cut(
    stages: &[Scan],
    text: &str,
    (offset, stop): (usize, &Stop),
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
    let mut found = |start: usize, end: usize| match start < end {
        true => cut(rest, &text[start..end], (offset + start, stop), piece),
        false => Ok(()),
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
