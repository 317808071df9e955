//! Compares the pieces with those of the engine that the published tokenizers use.

use kept_kernels::Stop;
use tokenizers::utils::SysRegex;

use super::{NAMES, PreTokenizer};

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

fn pieces(pre: PreTokenizer, text: &str) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut start = 0;
    let done = pre.cut(text, &Stop::new(), |end| {
        pieces.push(text[start..end].to_owned());
        start = end;
    });
    done.expect("never stopped");
    assert_eq!(start, text.len());
    pieces
}

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
fn pieces_are_those_of_the_published_engine() {
    for pre in [
        PreTokenizer::Gpt2,
        PreTokenizer::SmolLm,
        PreTokenizer::Llama3,
        PreTokenizer::Qwen2,
        PreTokenizer::Qwen35,
        PreTokenizer::Tekken,
        PreTokenizer::Gpt4o,
        PreTokenizer::DeepSeekLlm,
        PreTokenizer::DeepSeekCoder,
        PreTokenizer::DeepSeek3,
    ] {
        let expressions: Vec<SysRegex> = (pre.expressions().iter())
            .map(|expression| SysRegex::new(expression).unwrap())
            .collect();
        for text in strings() {
            let expected = by_expressions(&expressions, &text);
            assert_eq!(pieces(pre, &text), expected, "{pre:?} {text:?}");
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
            let pieces = pieces(rules.pre, &text).len();
            assert!(pieces <= most, "{names}: {pieces} pieces");
        }
    }
}
