//! Scanners: hand-written equivalents of the pre-tokenizers' expressions. Each matches at one byte offset of a text.

use super::classes::{Class, Classes};

/// Result of a scan at a byte offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// A match, with its end.
    Piece(usize),
    /// No match begins before this offset.
    Nothing(usize),
}

/// Matches one expression at an offset of a text. The end of the text is the end of input for the expression.
pub(super) type Scan = fn(&Scanner<'_>, usize) -> Found;

pub(super) struct Scanner<'a> {
    pub(super) text: &'a str,
    pub(super) classes: &'static Classes,
}

impl Scanner<'_> {
    /// The character at `at`, its class, and the offset after it.
    fn peek(&self, at: usize) -> Option<(char, Class, usize)> {
        let c = self.text[at..].chars().next()?;
        Some((c, self.classes.class(c), at + c.len_utf8()))
    }

    fn class(&self, at: usize) -> Option<Class> {
        self.peek(at).map(|(_, class, _)| class)
    }

    /// End of the run of at most `most` characters from `at` that satisfy `kind`.
    fn run(&self, at: usize, most: usize, kind: impl Fn(char, Class) -> bool) -> usize {
        let mut end = at;
        for _ in 0..most {
            match self.peek(end) {
                Some((c, class, after)) if kind(c, class) => end = after,
                _ => break,
            }
        }
        end
    }

    /// End of the run of characters from `at` whose class satisfies `kind`.
    fn run_of(&self, at: usize, kind: impl Fn(Class) -> bool) -> usize {
        self.run(at, usize::MAX, |_, class| kind(class))
    }

    /// End of `'s|'t|'re|'ve|'m|'ll|'d` at `at`, if it matches.
    fn contraction(&self, at: usize, ignore_case: bool) -> Option<usize> {
        let rest = self.text[at..].strip_prefix('\'')?;
        let mut letters = rest.chars().map(|c| match c {
            // The only non-ASCII character whose simple case folding is one of these letters.
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

    /// End of `\s+(?!\S)|\s+` at `at`, which is white space: of the whole run at the end of the text, else of the run
    /// without its last character.
    fn spaces(&self, at: usize) -> usize {
        let end = self.run_of(at, |class| class == Class::Space);
        if end == self.text.len() {
            return end;
        }
        match self.text[at..end].char_indices().next_back() {
            Some((last, _)) if last > 0 => at + last,
            _ => end,
        }
    }

    /// End of `\s*[\r\n]+|\s+(?!\S)|\s+` at `at`, which is white space.
    fn lines_and_spaces(&self, at: usize) -> usize {
        let run = &self.text[at..self.run_of(at, |class| class == Class::Space)];
        match run.rfind(['\r', '\n']) {
            Some(last) => at + last + 1,
            None => self.spaces(at),
        }
    }

    /// End of ` ?[...]+` with `kind` in the brackets, followed by any number of `breaks`.
    fn signs(&self, at: usize, kind: impl Fn(Class) -> bool, breaks: &[char]) -> Option<usize> {
        let start = at + usize::from(self.text[at..].starts_with(' '));
        let end = self.run_of(start, kind);
        (end > start).then(|| self.run(end, usize::MAX, |c, _| breaks.contains(&c)))
    }

    /// `\s?[...]+`, where `kind` may include spaces.
    fn after_space(&self, at: usize, kind: impl Fn(char, Class) -> bool) -> Found {
        let Some((c, class, after)) = self.peek(at) else {
            return Found::Nothing(self.text.len());
        };
        let start =
            match class == Class::Space && self.peek(after).is_some_and(|(c, k, _)| kind(c, k)) {
                true => after,
                false if kind(c, class) => at,
                false => return Found::Nothing(after),
            };
        Found::Piece(self.run(start, usize::MAX, kind))
    }

    /// `[...]{1,most}`
    fn only(&self, at: usize, most: usize, kind: impl Fn(char, Class) -> bool) -> Found {
        match self.run(at, most, kind) {
            end if end > at => Found::Piece(end),
            _ => Found::Nothing(self.peek(at).map_or(at, |(.., after)| after)),
        }
    }
}

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
pub(super) fn gpt2(s: &Scanner<'_>, at: usize) -> Found {
    if let Some(end) = s.contraction(at, false) {
        return Found::Piece(end);
    }
    let start = at + usize::from(s.text[at..].starts_with(' '));
    Found::Piece(match s.class(start) {
        None | Some(Class::Space) => s.spaces(at),
        Some(Class::Number) => s.run_of(start, |class| class == Class::Number),
        Some(class) if class.is_letter() => s.run_of(start, Class::is_letter),
        Some(_) => s.run_of(start, Class::is_other),
    })
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`;
/// with `marks`, `[\p{L}\p{M}]+` are words and marks no signs; the line breaks after signs are `breaks`.
fn words(s: &Scanner<'_>, at: usize, digits: usize, marks: bool, breaks: &[char]) -> Found {
    let in_word = |class: Class| class.is_letter() || marks && class == Class::Mark;
    if let Some(end) = s.contraction(at, true) {
        return Found::Piece(end);
    }
    let Some((c, class, after)) = s.peek(at) else {
        return Found::Piece(s.text.len());
    };
    if in_word(class) {
        return Found::Piece(s.run_of(at, in_word));
    }
    if class == Class::Number {
        return Found::Piece(s.run(at, digits, |_, class| class == Class::Number));
    }
    if c != '\r' && c != '\n' && s.class(after).is_some_and(in_word) {
        return Found::Piece(s.run_of(after, in_word));
    }
    let signs = s.signs(at, |class| class.is_other() && !in_word(class), breaks);
    Found::Piece(signs.unwrap_or_else(|| s.lines_and_spaces(at)))
}

const BREAKS: &[char] = &['\r', '\n'];

/// Llama 3's expression.
pub(super) fn llama3(s: &Scanner<'_>, at: usize) -> Found {
    words(s, at, 3, false, BREAKS)
}

/// Qwen 2's expression.
pub(super) fn qwen2(s: &Scanner<'_>, at: usize) -> Found {
    words(s, at, 1, false, BREAKS)
}

/// Qwen 3.5's expression.
pub(super) fn qwen35(s: &Scanner<'_>, at: usize) -> Found {
    words(s, at, 1, true, BREAKS)
}

/// Seed's expression, whose signs end before a line break.
pub(super) fn seed(s: &Scanner<'_>, at: usize) -> Found {
    words(s, at, 1, false, &[])
}

/// `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+`, else the same with `+` before `*`: a
/// word that changes from upper to lower case at most once.
fn cased_word(s: &Scanner<'_>, at: usize) -> Option<usize> {
    let (c, class, after) = s.peek(at)?;
    let sign = !class.is_letter() && class != Class::Number && c != '\r' && c != '\n';
    // First with the sign that precedes it, then without: a mark can be either.
    let starts = [sign.then_some(after), Some(at)];
    let capitals = |start| s.run_of(start, Class::begins_in_capitals);
    let small = |start: usize| {
        let turn = capitals(start);
        let end = s.run_of(turn, Class::goes_on_small);
        if end > turn {
            return Some(end);
        }
        // Backtrack in the upper-case part to the last character that can also match the lower-case part.
        let given_back = s.text[start..turn].char_indices().rev();
        let mut last = given_back.filter(|(_, c)| s.classes.class(*c).goes_on_small());
        last.next().map(|(byte, c)| start + byte + c.len_utf8())
    };
    let large = |start: usize| Some(capitals(start)).filter(|&end| end > start);
    let of = |word: &dyn Fn(usize) -> Option<usize>| starts.into_iter().flatten().find_map(word);
    of(&small).or_else(|| of(&large))
}

/// A cased word (with its contraction), `\p{N}{1,digits}`, ` ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
fn cased_words(s: &Scanner<'_>, at: usize, digits: usize, contractions: bool) -> Found {
    if let Some(end) = cased_word(s, at) {
        let contraction = contractions.then(|| s.contraction(end, true)).flatten();
        return Found::Piece(contraction.unwrap_or(end));
    }
    if s.class(at) == Some(Class::Number) {
        return Found::Piece(s.run(at, digits, |_, class| class == Class::Number));
    }
    let signs = s.signs(at, Class::is_other, &['\r', '\n', '/']);
    Found::Piece(signs.unwrap_or_else(|| s.lines_and_spaces(at)))
}

/// Mistral's Tekken.
pub(super) fn tekken(s: &Scanner<'_>, at: usize) -> Found {
    cased_words(s, at, 1, false)
}

/// GPT-4o's expression (o200k).
pub(super) fn gpt4o(s: &Scanner<'_>, at: usize) -> Found {
    cased_words(s, at, 3, true)
}

/// Single digits as defined by Rust's `char::is_numeric`, which the published tokenizers use too.
pub(super) fn digit(s: &Scanner<'_>, at: usize) -> Found {
    s.only(at, 1, |c, _| c.is_numeric())
}

/// `\p{N}{1,3}`
pub(super) fn three_digits(s: &Scanner<'_>, at: usize) -> Found {
    s.only(at, 3, |_, class| class == Class::Number)
}

/// `[\r\n]`
pub(super) fn line_break(s: &Scanner<'_>, at: usize) -> Found {
    s.only(at, 1, |c, _| matches!(c, '\r' | '\n'))
}

/// `\s?\p{L}+`
pub(super) fn letters(s: &Scanner<'_>, at: usize) -> Found {
    s.after_space(at, |_, class| class.is_letter())
}

/// `\s?\p{P}+`
pub(super) fn punctuation(s: &Scanner<'_>, at: usize) -> Found {
    s.after_space(at, |_, class| class == Class::Punctuation)
}

/// `\s?[A-Za-z...]+`: letters of scripts with two cases, as listed for the first DeepSeek models.
pub(super) fn cased_letters(s: &Scanner<'_>, at: usize) -> Found {
    s.after_space(at, |c, _| in_ranges(c, CASED))
}

/// `\s?[!-/:-~...]+`: printable ASCII without digits, and the full-width forms.
pub(super) fn ascii_signs(s: &Scanner<'_>, at: usize) -> Found {
    s.after_space(at, |c, _| {
        matches!(c, '!'..='/' | ':'..='~' | '\u{ff01}'..='\u{ff0f}' | '\u{ff1a}'..='\u{ff5e}' | '\u{2018}'..='\u{201f}' | '\u{3000}'..='\u{3002}')
    })
}

/// `\s+$`, in a text without line breaks.
pub(super) fn trailing_spaces(s: &Scanner<'_>, at: usize) -> Found {
    match s.only(at, usize::MAX, |_, class| class == Class::Space) {
        Found::Piece(end) if end < s.text.len() => Found::Nothing(end),
        found => found,
    }
}

/// East Asian scripts, and others between U+0800 and U+4E00, as listed for the first DeepSeek models.
pub(super) fn eastern(s: &Scanner<'_>, at: usize) -> Found {
    s.only(
        at,
        usize::MAX,
        |c, _| matches!(c, '\u{800}'..='\u{9fa5}' | '\u{ac00}'..='\u{d7ff}'),
    )
}

/// Chinese characters and Japanese kana.
pub(super) fn han_and_kana(s: &Scanner<'_>, at: usize) -> Found {
    s.only(
        at,
        usize::MAX,
        |c, _| matches!(c, '\u{4e00}'..='\u{9fa5}' | '\u{3040}'..='\u{30ff}'),
    )
}

/// ``[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+``
pub(super) fn deepseek3(s: &Scanner<'_>, at: usize) -> Found {
    let Some((c, class, after)) = s.peek(at) else {
        return Found::Nothing(s.text.len());
    };
    if c.is_ascii_punctuation() {
        let end = s.run(after, usize::MAX, |c, _| c.is_ascii_alphabetic());
        if end > after {
            return Found::Piece(end);
        }
    }
    let leads = !class.is_letter() && !class.is_sign() && c != '\r' && c != '\n';
    for start in [leads.then_some(after), Some(at)].into_iter().flatten() {
        let end = s.run_of(start, Class::is_letter_or_mark);
        if end > start {
            return Found::Piece(end);
        }
    }
    if let Some(end) = s.signs(at, Class::is_sign, &['\r', '\n']) {
        return Found::Piece(end);
    }
    match class {
        Class::Space => Found::Piece(s.lines_and_spaces(at)),
        _ => Found::Nothing(after),
    }
}

fn in_ranges(c: char, ranges: &[(u32, u32)]) -> bool {
    let after = ranges.partition_point(|&(first, _)| first <= c as u32);
    after > 0 && ranges[after - 1].1 >= c as u32
}

/// Inclusive ranges of code points, ascending.
#[rustfmt::skip]
const CASED: &[(u32, u32)] = &[
    (0x41, 0x5a), (0x61, 0x7a), (0xb5, 0xb5), (0xc0, 0xd6), (0xd8, 0xf6), (0xf8, 0x1ba), (0x1bc, 0x1bf), (0x1c4, 0x293),
    (0x295, 0x2af), (0x370, 0x373), (0x376, 0x376), (0x377, 0x377), (0x37b, 0x37d), (0x37f, 0x37f), (0x386, 0x386),
    (0x388, 0x38a), (0x38c, 0x38c), (0x38e, 0x3a1), (0x3a3, 0x3f5), (0x3f7, 0x481), (0x48a, 0x52f), (0x531, 0x556),
    (0x10a0, 0x10c5), (0x13a0, 0x13f5), (0x13f8, 0x13fd), (0x1c90, 0x1cba), (0x1cbd, 0x1cbf), (0x1d00, 0x1d2b),
    (0x1d6b, 0x1d77), (0x1d79, 0x1d9a), (0x1e00, 0x1f15), (0x1f18, 0x1f1d), (0x1f20, 0x1f45), (0x1f48, 0x1f4d),
    (0x1f50, 0x1f57), (0x1f59, 0x1f59), (0x1f5b, 0x1f5b), (0x1f5d, 0x1f5d), (0x1f5f, 0x1f7d), (0x1f80, 0x1fb4),
    (0x1fb6, 0x1fbc), (0x1fbe, 0x1fbe), (0x1fc2, 0x1fc4), (0x1fc6, 0x1fcc), (0x1fd0, 0x1fd3), (0x1fd6, 0x1fdb),
    (0x1fe0, 0x1fec), (0x1ff2, 0x1ff4), (0x1ff6, 0x1ffc), (0x2102, 0x2102), (0x2107, 0x2107), (0x210a, 0x2113),
    (0x2115, 0x2115), (0x2119, 0x211d), (0x2124, 0x2124), (0x2126, 0x2126), (0x2128, 0x2128), (0x212a, 0x212d),
    (0x212f, 0x2134), (0x2139, 0x2139), (0x213c, 0x213f), (0x2145, 0x2149), (0x214e, 0x214e), (0x2183, 0x2183),
    (0x2184, 0x2184), (0x2c00, 0x2c7b), (0x2c7e, 0x2ce4), (0x2ceb, 0x2cee), (0x2cf2, 0x2cf2), (0x2cf3, 0x2cf3),
    (0xa640, 0xa66d), (0xa680, 0xa69b), (0xa722, 0xa76f), (0xa771, 0xa787), (0xa78b, 0xa78e), (0xab70, 0xabbf),
    (0xfb00, 0xfb06), (0xfb13, 0xfb17), (0xff21, 0xff3a), (0xff41, 0xff5a), (0x10400, 0x1044f), (0x104b0, 0x104d3),
    (0x104d8, 0x104fb), (0x10c80, 0x10cb2), (0x10cc0, 0x10cf2), (0x118a0, 0x118df), (0x1e900, 0x1e943),
];

/// The ranges as an expression, for tests.
#[cfg(test)]
pub(super) fn cased_expression() -> String {
    let ranges = CASED
        .iter()
        .map(|(first, last)| format!(r"\x{{{first:x}}}-\x{{{last:x}}}"));
    format!(r"\s?[{}]+", ranges.collect::<String>())
}
