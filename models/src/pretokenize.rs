//! Pre-tokenizers: where a text is cut before byte pairs are merged. No merge ever crosses a cut.
//!
//! Each is a scanner for the regular expression its name stands for, written by hand because a regular expression
//! engine that backtracks needs memory in proportion to a run of letters, and documents may be hostile. The tests hold
//! them against the expressions themselves.
//!
//! Not here: recognising control tokens; they are cut out before (or, in a document, never).
//!
//! ```text
//! gpt-2     " The year 1984."   ->   " The" | " year" | " 1984" | "."
//! smollm                        ->   " The" | " year" | " " | "1" | "9" | "8" | "4" | "."
//! llama-bpe                     ->   " The" | " year" | " " | "198" | "4" | "."
//! ```

use std::sync::OnceLock;

use tokenizers::utils::SysRegex;

use crate::ModelError;

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
}

/// Names of pre-tokenizers in `tokenizer.ggml.pre`. llama.cpp's `default` is a fifth expression that it takes for
/// models it does not know; it is refused here.
const NAMES: &[(&str, PreTokenizer)] = &[
    ("gpt-2", PreTokenizer::Gpt2),
    ("smollm", PreTokenizer::SmolLm),
    ("llama-bpe", PreTokenizer::Llama3),
    ("llama3", PreTokenizer::Llama3),
    ("llama-v3", PreTokenizer::Llama3),
    ("qwen2", PreTokenizer::Qwen2),
];

impl PreTokenizer {
    /// The pre-tokenizer of this name.
    pub(crate) fn named(name: &str) -> Result<PreTokenizer, ModelError> {
        if let Some((_, found)) = NAMES.iter().find(|(known, _)| *known == name) {
            return Ok(*found);
        }
        let supported: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
        Err(ModelError::UnsupportedPreTokenizer {
            name: name.to_owned(),
            supported: supported.join(" "),
        })
    }

    /// Whether a piece that is a token by itself is that token, whatever its merges say.
    pub(crate) fn ignores_merges(self) -> bool {
        self == PreTokenizer::Llama3
    }

    /// Whether prompts begin with the beginning-of-sequence token when the file does not say.
    pub(crate) fn adds_bos(self) -> bool {
        self == PreTokenizer::Llama3
    }

    /// Cut `text` into pieces, calling `piece` with the end of each in turn; the ends tile the text.
    pub(crate) fn cut(self, text: &str, mut piece: impl FnMut(usize)) {
        let classes = classes();
        match self {
            PreTokenizer::Gpt2 => Scanner { text, classes }.scan(gpt2, &mut piece),
            PreTokenizer::SmolLm => {
                let mut start = 0;
                for (at, c) in text.char_indices() {
                    if classes.of(c) == Class::Number {
                        let before = Scanner {
                            text: &text[start..at],
                            classes,
                        };
                        before.scan(gpt2, |end| piece(start + end));
                        start = at + c.len_utf8();
                        piece(start);
                    }
                }
                let rest = Scanner {
                    text: &text[start..],
                    classes,
                };
                rest.scan(gpt2, |end| piece(start + end));
            }
            PreTokenizer::Llama3 => {
                Scanner { text, classes }.scan(|s, at| llama3(s, at, 3), &mut piece)
            }
            PreTokenizer::Qwen2 => {
                Scanner { text, classes }.scan(|s, at| llama3(s, at, 1), &mut piece)
            }
        }
    }
}

/// What the expressions distinguish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    /// `\p{L}`
    Letter,
    /// `\p{N}`
    Number,
    /// `\s`
    Space,
    /// Everything else: punctuation, symbols, combining marks.
    Other,
}

struct Scanner<'a> {
    text: &'a str,
    classes: &'static Classes,
}

impl Scanner<'_> {
    /// Cut the whole text with `next`, which gives the end of the piece that begins at a byte.
    fn scan(&self, next: impl Fn(&Self, usize) -> usize, mut piece: impl FnMut(usize)) {
        let mut at = 0;
        while at < self.text.len() {
            at = next(self, at);
            piece(at);
        }
    }

    /// The character at a byte, its class and the byte behind it.
    fn peek(&self, at: usize) -> Option<(char, Class, usize)> {
        let c = self.text[at..].chars().next()?;
        Some((c, self.classes.of(c), at + c.len_utf8()))
    }

    fn class(&self, at: usize) -> Option<Class> {
        self.peek(at).map(|(_, class, _)| class)
    }

    /// End of the run of `class` from `at`, at most `most` characters.
    fn run(&self, mut at: usize, class: Class, most: usize) -> usize {
        for _ in 0..most {
            match self.peek(at) {
                Some((_, found, end)) if found == class => at = end,
                _ => break,
            }
        }
        at
    }

    /// `'s|'t|'re|'ve|'m|'ll|'d` at `at`, if it is there.
    fn contraction(&self, at: usize, ignore_case: bool) -> Option<usize> {
        let rest = self.text[at..].strip_prefix('\'')?;
        let mut letters = rest.chars().map(|c| match c {
            // The one other character whose simple case folding is among these letters.
            'ſ' if ignore_case => 's',
            c if ignore_case => c.to_ascii_lowercase(),
            c => c,
        });
        let len = match (letters.next(), letters.next()) {
            (Some('s' | 't' | 'm' | 'd'), _) => 1,
            (Some('r' | 'v'), Some('e')) | (Some('l'), Some('l')) => 2,
            _ => return None,
        };
        Some(at + 1 + rest.chars().take(len).map(char::len_utf8).sum::<usize>())
    }

    /// `\s+(?!\S)|\s+` at `at`, where a space is: all of a run at the end, else all but its last character.
    fn spaces(&self, at: usize) -> usize {
        let end = self.run(at, Class::Space, usize::MAX);
        if end == self.text.len() {
            return end;
        }
        match self.text[at..end].char_indices().next_back() {
            Some((last, _)) if last > 0 => at + last,
            _ => end,
        }
    }
}

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
fn gpt2(s: &Scanner<'_>, at: usize) -> usize {
    if let Some(end) = s.contraction(at, false) {
        return end;
    }
    let start = if s.text[at..].starts_with(' ') {
        at + 1
    } else {
        at
    };
    match s.class(start) {
        None | Some(Class::Space) => s.spaces(at),
        Some(class) => s.run(start, class, usize::MAX),
    }
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
fn llama3(s: &Scanner<'_>, at: usize, digits: usize) -> usize {
    if let Some(end) = s.contraction(at, true) {
        return end;
    }
    let Some((c, class, after)) = s.peek(at) else {
        return s.text.len();
    };
    match class {
        Class::Letter => return s.run(at, Class::Letter, usize::MAX),
        Class::Number => return s.run(at, Class::Number, digits),
        _ if c != '\r' && c != '\n' && s.class(after) == Some(Class::Letter) => {
            return s.run(after, Class::Letter, usize::MAX);
        }
        _ => {}
    }
    let start = if c == ' ' { after } else { at };
    if s.class(start) == Some(Class::Other) {
        let end = s.run(start, Class::Other, usize::MAX);
        let breaks = s.text[end..]
            .bytes()
            .take_while(|b| matches!(b, b'\r' | b'\n'))
            .count();
        return end + breaks;
    }
    let run = &s.text[at..s.run(at, Class::Space, usize::MAX)];
    match run.rfind(['\r', '\n']) {
        Some(last) => at + last + 1,
        None => s.spaces(at),
    }
}

/// Letters and numbers as the regular expression engine of the published tokenizers knows them.
struct Classes {
    /// One bit for each code point.
    letters: Vec<u64>,
    /// One bit for each code point.
    numbers: Vec<u64>,
}

impl Classes {
    fn of(&self, c: char) -> Class {
        let bit = |bits: &[u64]| bits[c as usize / 64] >> (c as usize % 64) & 1 == 1;
        if bit(&self.letters) {
            Class::Letter
        } else if bit(&self.numbers) {
            Class::Number
        } else if c.is_whitespace() {
            Class::Space
        } else {
            Class::Other
        }
    }
}

/// Made once in a process by asking the engine about every character; takes some tens of milliseconds.
fn classes() -> &'static Classes {
    static CLASSES: OnceLock<Classes> = OnceLock::new();
    CLASSES.get_or_init(|| {
        let all: String = ('\0'..=char::MAX).collect();
        let bits = |expression: &str| {
            let mut bits = vec![0u64; (char::MAX as usize + 1).div_ceil(64)];
            let expression =
                SysRegex::new(expression).expect("a constant expression that a test compiles");
            for (start, end) in expression.find_iter(&all) {
                for c in all[start..end].chars() {
                    bits[c as usize / 64] |= 1 << (c as usize % 64);
                }
            }
            bits
        };
        Classes {
            letters: bits(r"\p{L}+"),
            numbers: bits(r"\p{N}+"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_expression(expression: &SysRegex, text: &str) -> Vec<String> {
        let pieces = expression.find_iter(text);
        pieces
            .map(|(start, end)| text[start..end].to_owned())
            .collect()
    }

    fn by_scanner(scanner: PreTokenizer, text: &str) -> Vec<String> {
        let mut pieces = Vec::new();
        let mut start = 0;
        scanner.cut(text, |end| {
            pieces.push(text[start..end].to_owned());
            start = end;
        });
        assert_eq!(start, text.len());
        pieces
    }

    const GPT2: &str =
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
    const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

    /// Short strings over an alphabet in which every alternative of the expressions meets every other.
    fn strings() -> impl Iterator<Item = String> {
        const ALPHABET: [&str; 22] = [
            " ", "  ", "\n", "\r\n", "\t", "\u{a0}", "\u{3000}", "a", "Z", "é", "日", "\u{301}",
            "1", "½", "٣", "'", "s", "LL", "re", ".", "🙂", "ſ",
        ];
        let mut state = 7u64;
        (0..60_000).map(move |i| {
            let mut text = String::new();
            for _ in 0..i % 9 {
                state = state
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                text.push_str(ALPHABET[(state >> 33) as usize % ALPHABET.len()]);
            }
            text
        })
    }

    #[test]
    fn scanners_cut_as_their_expressions_do() {
        let scanners = [
            (PreTokenizer::Gpt2, GPT2),
            (PreTokenizer::Llama3, LLAMA3),
            (PreTokenizer::Qwen2, QWEN2),
        ];
        for (scanner, expression) in scanners {
            let expression = SysRegex::new(expression).unwrap();
            for text in strings() {
                let expected = by_expression(&expression, &text);
                assert_eq!(by_scanner(scanner, &text), expected, "{scanner:?} {text:?}");
            }
        }
    }

    #[test]
    fn a_run_of_a_million_letters_or_spaces_is_no_trouble() {
        for text in [
            "a".repeat(1 << 20),
            " ".repeat(1 << 20) + "a",
            "\n".repeat(1 << 20),
        ] {
            for (_, scanner) in NAMES {
                assert!(by_scanner(*scanner, &text).len() < 4);
            }
        }
    }
}
