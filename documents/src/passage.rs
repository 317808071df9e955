//! The sentence or line around a byte: the unit in which sources are shown.
//!
//! The search covers a few kilobytes around the byte, so its cost does not depend on the length of the text. A passage
//! is a range of the text; the text is never changed.
//!
//! ```text
//! "... of it. Dr. Mora signed the form,\nthen left. She was ..."
//!             ^~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~^      one passage: neither "Dr." nor the line end ends the sentence
//! ```

use std::ops::Range;

use crate::{Format, Kind};

/// The longest passage in bytes. About five lines: long enough to understand, short enough for a list entry.
const MAX_PASSAGE_BYTES: usize = 400;
/// How far from the byte the search for the ends of a passage goes, in bytes.
const REACH: usize = 4 * MAX_PASSAGE_BYTES;
/// A line shorter than this, in bytes, does not reach the margin, so it may end a heading, a verse or a paragraph.
const SHORT_LINE: usize = 45;

/// Abbreviations whose full stop does not end a sentence, in lower case and without that full stop.
const ABBREVIATIONS: &[&str] = &[
    "al", "approx", "art", "bd", "bzw", "ca", "capt", "cf", "chap", "col", "d.h", "dept", "dr",
    "ed", "eds", "eq", "esp", "est", "etc", "e.g", "evtl", "fig", "figs", "gem", "gen", "ggf",
    "gov", "hon", "i.e", "inc", "inkl", "jr", "kap", "lt", "ltd", "messrs", "mio", "mlle", "mme",
    "mr", "mrd", "mrs", "ms", "mt", "no", "nos", "nr", "op", "p", "pp", "par", "ph.d", "prof",
    "rev", "sec", "sen", "sgt", "sog", "sr", "st", "u.a", "vgl", "vol", "vols", "vs", "z.b", "z.t",
    "ziff", "zzgl",
];
/// German months, and other words that a number with a full stop counts.
const COUNTED: &[&str] = &[
    "Januar",
    "Jänner",
    "Februar",
    "März",
    "Mai",
    "Juni",
    "Juli",
    "Oktober",
    "Dezember",
    "Okt",
    "Dez",
    "Jahrhundert",
    "Jahrhunderts",
];
/// Months with the same name in English: only after one of [`DATE_CUES`].
const SHARED_MONTHS: &[&str] = &[
    "April",
    "August",
    "September",
    "November",
    "Jan",
    "Feb",
    "Apr",
    "Aug",
    "Sep",
    "Sept",
    "Nov",
];
/// German words after which a number with a full stop is an ordinal, whatever it counts: "im 3. Obergeschoss".
const ORDINAL_CUES: &[&str] = &["beim", "dem", "des", "im", "vom", "zum", "zur"];
/// Words before a German date.
const DATE_CUES: &[&str] = &[
    "ab", "am", "bis", "dem", "den", "der", "des", "seit", "und", "vom", "zum",
];

/// The passage in `text` around `byte`, within `bounds` (the page). `byte` may have any value.
pub(crate) fn at(text: &str, kind: &Kind, bounds: Range<usize>, byte: usize) -> Range<usize> {
    let last = bounds.end.saturating_sub(1).max(bounds.start);
    let byte = text.floor_char_boundary(byte.clamp(bounds.start, last));
    let start = text.ceil_char_boundary(byte.saturating_sub(REACH).max(bounds.start));
    let end = text.floor_char_boundary((byte + REACH).min(bounds.end));
    let (start, end) = (start.min(byte), end.max(byte));
    let window = &text[start..end];

    let Some(byte) = nearest_ink(window, byte - start) else {
        return byte..byte;
    };
    let is_break: fn(&str, usize) -> bool = match kind {
        Kind::SourceCode => ends_line,
        // The lines of an e-mail are wrapped.
        Kind::Markdown
        | Kind::Extracted {
            format: Format::Email,
        } => ends_markdown_passage,
        Kind::Extracted { .. } => ends_extracted_passage,
        Kind::Pdf => ends_pdf_passage,
        Kind::PlainText => ends_sentence,
    };
    let breaks_after = |i: usize| window.is_char_boundary(i) && is_break(window, i);
    let from = (1..=byte).rev().find(|i| breaks_after(*i)).unwrap_or(0);
    let to = (byte + 1..window.len())
        .find(|i| breaks_after(*i))
        .unwrap_or(window.len());
    let mut found = shorten(window, trim(window, from..to), byte);
    if matches!(kind, Kind::Markdown | Kind::Extracted { .. }) {
        found.start += heading_marks(&window[found.clone()]);
    }
    start + found.start..start + found.end
}

/// Bytes of the marks before the title of a heading: 3 of `## Title`.
fn heading_marks(passage: &str) -> usize {
    let title = passage.trim_start_matches('#');
    match (passage.len() - title.len(), title.trim_start()) {
        (1..=6, text) if !text.is_empty() && text.len() < title.len() => passage.len() - text.len(),
        _ => 0,
    }
}

/// The sentences, headings and list items of a Markdown text, in bytes, in order and without the white space between
/// them.
pub fn sentences(text: &str) -> Vec<Range<usize>> {
    let ends = |i: &usize| text.is_char_boundary(*i) && ends_markdown_passage(text, *i);
    let mut found = Vec::new();
    let mut start = 0;
    for end in (1..text.len()).filter(ends).chain([text.len()]) {
        let sentence = trim(text, start..end);
        if !sentence.is_empty() {
            found.push(sentence);
        }
        start = end;
    }
    found
}

/// The first byte at or after `byte` that is not white space; if none, the last one before `byte`.
fn nearest_ink(window: &str, byte: usize) -> Option<usize> {
    let after = window[byte..].find(|c: char| !c.is_whitespace());
    after
        .map(|i| byte + i)
        .or_else(|| window[..byte].rfind(|c: char| !c.is_whitespace()))
}

fn trim(window: &str, range: Range<usize>) -> Range<usize> {
    let piece = &window[range.clone()];
    let start = range.start + (piece.len() - piece.trim_start().len());
    start..start + piece.trim().len()
}

/// Whether a line ends just before byte `i`.
fn ends_line(window: &str, i: usize) -> bool {
    let bytes = window.as_bytes();
    bytes[i - 1] == b'\n' || (bytes[i - 1] == b'\r' && bytes.get(i) != Some(&b'\n'))
}

/// As [`ends_sentence`], but headings, list items, table rows and quotes are passages of their own.
fn ends_markdown_passage(window: &str, i: usize) -> bool {
    if ends_line(window, i) {
        let next = window[i..].lines().next().unwrap_or("").trim_start();
        let previous = window[..i].lines().next_back().unwrap_or("").trim_start();
        let own_line = |line: &str| {
            line.starts_with(['#', '|', '>']) || line.starts_with("```") || line.starts_with("---")
        };
        let item = next.starts_with("- ")
            || next.starts_with("* ")
            || next.starts_with("+ ")
            || is_numbered(next);
        if item || own_line(next) || own_line(previous) {
            return true;
        }
    }
    ends_sentence(window, i)
}

/// As [`ends_sentence`] in extracted text, where a paragraph, an item and a table row is a line.
fn ends_extracted_passage(window: &str, i: usize) -> bool {
    ends_line(window, i) || ends_sentence(window, i) && !is_in_row(window, i)
}

/// As [`ends_sentence`], but a table row is a passage of its own.
fn ends_pdf_passage(window: &str, i: usize) -> bool {
    if ends_line(window, i) && (is_in_row(window, i - 1) || is_in_row(window, i)) {
        return true;
    }
    ends_sentence(window, i) && !is_in_row(window, i)
}

/// Whether the line of byte `i` is a row of a table.
fn is_in_row(window: &str, i: usize) -> bool {
    let start = window[..i].rfind('\n').map_or(0, |at| at + 1);
    let end = window[i..].find('\n').map_or(window.len(), |at| i + at);
    window[start..end].contains(" | ")
}

/// Whether the line begins with `12. ` or `3) `.
fn is_numbered(line: &str) -> bool {
    let rest = line.trim_start_matches(|c: char| c.is_ascii_digit());
    rest.len() < line.len() && (rest.starts_with(". ") || rest.starts_with(") "))
}

/// Whether a sentence ends just before byte `i`, after its final mark and closing quotes.
fn ends_sentence(window: &str, i: usize) -> bool {
    if ends_line(window, i) {
        return ends_paragraph(window, i);
    }
    let (before, after) = window.split_at(i);
    let Some(next) = after.chars().next() else {
        return true;
    };
    let body = before.trim_end_matches(is_closing);
    let Some(mark) = body.chars().next_back() else {
        return false;
    };
    if is_closing(next) || is_mark(next) {
        return false;
    }
    match mark {
        // Chinese and Japanese have no space after a sentence.
        '。' | '！' | '？' | '｡' => true,
        '!' | '?' | '…' | '।' | '؟' | '։' => next.is_whitespace() && !continues(after),
        '.' => next.is_whitespace() && !is_within(&body[..body.len() - 1], after),
        _ => false,
    }
}

/// Whether a paragraph or sentence ends with the line before `i`: at a blank line, after a final mark, or after a
/// short line if the next line does not begin in lower case.
fn ends_paragraph(window: &str, i: usize) -> bool {
    let next = window[i..].lines().next().unwrap_or("");
    let line = window[..i].lines().next_back().unwrap_or("");
    if next.trim().is_empty() || line.trim().is_empty() {
        return true;
    }
    // A sentence can also end exactly at the line end.
    let content = line.trim_end();
    let content_end = line.as_ptr() as usize - window.as_ptr() as usize + content.len();
    if !content.is_empty() && ends_sentence_at_line_end(window, content_end, i) {
        return true;
    }
    let first = next.trim_start().chars().next().unwrap_or(' ');
    content.len() < SHORT_LINE && !first.is_lowercase() && !content.ends_with(',')
}

fn ends_sentence_at_line_end(window: &str, content_end: usize, next: usize) -> bool {
    let body = window[..content_end].trim_end_matches(is_closing);
    match body.chars().next_back() {
        Some('.') => !is_within(&body[..body.len() - 1], &window[next..]),
        Some(mark) => is_mark(mark) && !continues(&window[next..]),
        None => false,
    }
}

fn is_mark(c: char) -> bool {
    matches!(
        c,
        '.' | '!' | '?' | '…' | '。' | '！' | '？' | '｡' | '।' | '؟' | '։'
    )
}

fn is_closing(c: char) -> bool {
    matches!(
        c,
        '"' | '\'' | ')' | ']' | '}' | '”' | '’' | '»' | '」' | '』' | '）' | '*' | '_'
    )
}

/// Whether the next word begins in lower case: "approx. ten", "...? he asked".
fn continues(after: &str) -> bool {
    after
        .trim_start()
        .chars()
        .next()
        .is_some_and(char::is_lowercase)
}

/// Whether the full stop between `before` and `after` stands inside a sentence.
fn is_within(before: &str, after: &str) -> bool {
    continues(after)
        || is_abbreviation(before)
        || is_ordinal(before, after)
        || is_letters(before, after)
}

/// Whether a full stop makes an ordinal of a number, as in the German date "14. März", or counts a paragraph of a law.
fn is_ordinal(before: &str, after: &str) -> bool {
    let next = after.trim_start();
    if before.ends_with("Abs") {
        return next.starts_with(|c: char| c.is_ascii_digit());
    }
    let text = before.trim_end_matches(|c: char| c.is_ascii_digit());
    let word = next
        .split(|c: char| !c.is_alphabetic())
        .next()
        .unwrap_or("");
    let cue = text
        .split_whitespace()
        .next_back()
        .unwrap_or("")
        .to_lowercase();
    (1..=2).contains(&(before.len() - text.len()))
        && (COUNTED.contains(&word)
            || ORDINAL_CUES.contains(&cue.as_str())
            || SHARED_MONTHS.contains(&word) && DATE_CUES.contains(&cue.as_str()))
}

/// Whether the full stop is that of a small letter next to another letter with a full stop: "z. B.", "d. h.".
fn is_letters(before: &str, after: &str) -> bool {
    let mut words = before.rsplit(char::is_whitespace);
    let (word, previous) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let next = after.split_whitespace().next().unwrap_or("");
    let is_one = |word: &str| {
        let letter = word.strip_suffix('.').unwrap_or("");
        letter.chars().count() == 1 && letter.starts_with(char::is_alphabetic)
    };
    let is_small = word.len() == 1 && word.starts_with(|c: char| c.is_ascii_lowercase());
    is_small && (is_one(previous) || is_one(next))
}

/// Whether the word before a full stop is an abbreviation, an initial ("J. S. Mill") or the number of a line ("5. Rent").
fn is_abbreviation(before: &str) -> bool {
    let start = before
        .rfind(|c: char| c.is_whitespace() || matches!(c, '(' | '[' | '"' | '“' | '-' | '–' | '—'))
        .map_or(0, |i| {
            i + before[i..].chars().next().map_or(1, char::len_utf8)
        });
    let word = &before[start..];
    let before_word = before[..start].rsplit('\n').next().unwrap_or("");
    if !word.is_empty()
        && word.chars().all(|c| c.is_ascii_digit() || c == '.')
        && before_word.trim_matches([' ', '#']).is_empty()
    {
        return true;
    }
    let mut characters = word.chars();
    if let (Some(only), None) = (characters.next(), characters.next())
        && only.is_uppercase()
        && only != 'I'
    {
        return true;
    }
    ABBREVIATIONS.contains(&word.to_lowercase().as_str())
}

/// Cuts a long passage at white space into pieces of at most [`MAX_PASSAGE_BYTES`] bytes, and returns the piece around
/// `byte`.
fn shorten(window: &str, range: Range<usize>, byte: usize) -> Range<usize> {
    let mut start = range.start;
    while range.end - start > MAX_PASSAGE_BYTES {
        let limit = window.floor_char_boundary(start + MAX_PASSAGE_BYTES);
        let piece = &window[start..limit];
        // Without white space (base64, Chinese), cut at the limit.
        let end = piece
            .rfind(char::is_whitespace)
            .map_or(limit, |i| start + i);
        let end = if end > start { end } else { limit };
        if byte < end {
            return trim(window, start..end);
        }
        start = trim(window, end..range.end).start;
    }
    start..range.end
}
