//! Compares the scanners with the expressions they implement.

use kept_kernels::Stop;
use tokenizers::utils::SysRegex;

use super::{NAMES, PreTokenizer, scanners};

/// Splits every piece with the next expression, as Hugging Face's `Split` does when it keeps matches.
fn by_expressions(expressions: &[SysRegex], text: &str) -> Vec<String> {
    let mut pieces = vec![text.to_owned()];
    for expression in expressions {
        let mut cut = Vec::new();
        for piece in pieces {
            let mut start = 0;
            for (from, to) in expression.find_iter(&piece) {
                cut.extend([piece[start..from].to_owned(), piece[from..to].to_owned()]);
                start = to;
            }
            cut.push(piece[start..].to_owned());
        }
        cut.retain(|piece| !piece.is_empty());
        pieces = cut;
    }
    pieces
}

fn by_scanner(scanner: PreTokenizer, text: &str) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut start = 0;
    let done = scanner.cut(text, &Stop::new(), |end| {
        pieces.push(text[start..end].to_owned());
        start = end;
    });
    done.expect("never stopped");
    assert_eq!(start, text.len());
    pieces
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Ling's.
const BAILING: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SEED: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const SIGNS: &str = r"\s?[!-/:-~！-／：-～‘-‟\x{3000}-。]+";
const EASTERN: &str = r"[\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+";
/// For the test strings, the engine's `\p{N}` equals the standard library's `is_numeric`.
const DIGIT: &str = r"\p{N}";

/// Short strings over an alphabet in which every alternative of the expressions occurs next to every other.
fn strings() -> impl Iterator<Item = String> {
    const ALPHABET: [&str; 30] = [
        " ", "  ", "\n", "\r\n", "\t", "\u{a0}", "\u{3000}", "a", "Z", "é", "É", "日", "ʰ", "ǅ",
        "\u{301}", "1", "½", "٣", "'", "s", "LL", "re", ".", "/", "€", "🙂", "ſ", "\u{200b}", "가",
        "ա",
    ];
    let mut state = 7u64;
    (0..60_000).map(move |i| {
        let mut text = String::new();
        for _ in 0..i % 10 {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            text.push_str(ALPHABET[(state >> 33) as usize % ALPHABET.len()]);
        }
        text
    })
}

#[test]
fn scanners_split_like_their_expressions() {
    let cased = scanners::cased_expression();
    let scanners: [(PreTokenizer, &[&str]); 12] = [
        (PreTokenizer::Gpt2, &[GPT2]),
        (PreTokenizer::SmolLm, &[DIGIT, GPT2]),
        (PreTokenizer::Llama3, &[LLAMA3]),
        (PreTokenizer::Qwen2, &[QWEN2]),
        (PreTokenizer::Qwen2, &[BAILING]),
        (PreTokenizer::Qwen35, &[QWEN35]),
        (PreTokenizer::Seed, &[SEED]),
        (PreTokenizer::Tekken, &[TEKKEN]),
        (PreTokenizer::Gpt4o, &[GPT4O]),
        (
            PreTokenizer::DeepSeekLlm,
            &[r"[\r\n]", &cased, SIGNS, r"\s+$", EASTERN, DIGIT],
        ),
        (
            PreTokenizer::DeepSeekCoder,
            &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", EASTERN, DIGIT],
        ),
        (
            PreTokenizer::DeepSeek3,
            &[
                r"\p{N}{1,3}",
                "[\u{4e00}-\u{9fa5}\u{3040}-\u{30ff}]+",
                DEEPSEEK3,
            ],
        ),
    ];
    for (scanner, expressions) in scanners {
        let expressions: Vec<SysRegex> = expressions
            .iter()
            .map(|expression| SysRegex::new(expression).unwrap())
            .collect();
        for text in strings() {
            let expected = by_expressions(&expressions, &text);
            assert_eq!(by_scanner(scanner, &text), expected, "{scanner:?} {text:?}");
        }
    }
}

#[test]
fn a_run_of_a_million_characters_is_split() {
    // Each text with an upper bound of its number of pieces. Where two scripts alternate, every character may be a
    // piece.
    for (text, most) in [
        ("a".repeat(1 << 20), 4),
        ("A".repeat(1 << 20), 4),
        ("日A".repeat(1 << 19), 1 << 20),
        ("\u{301}".repeat(1 << 20), 4),
        (" ".repeat(1 << 20) + "a", 4),
        ("\n".repeat(1 << 20), 4 + (1 << 20)),
        ("\u{3000}".repeat(1 << 20) + "\u{1}", 4),
    ] {
        for (names, rules) in NAMES {
            let pieces = by_scanner(rules.pre, &text).len();
            assert!(pieces <= most, "{names}: {pieces} pieces");
        }
    }
}
