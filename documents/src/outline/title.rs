//! Whether a line looks like a title.

use super::marks::{self, Mark};

/// The longest line of a heading, in characters.
pub(super) const MAX_LINE_CHARS: usize = 120;
/// The longest sentence that may be a heading, and the longest heading directly above text, in characters.
pub(super) const SENTENCE: usize = 60;

/// Whether a line can be a heading: short, no row of a table, and no sentence or part of one. In capitals, old books
/// have headings of several lines.
pub(super) fn is_title(line: &str) -> bool {
    let length = line.chars().count();
    let is_loud = !line.contains(char::is_lowercase);
    let is_row = line.contains('\t') || line.contains("   ");
    (length <= MAX_LINE_CHARS || is_loud && length <= 2 * MAX_LINE_CHARS)
        && !is_row
        && !line
            .trim_end_matches(['"', '”'])
            .ends_with([',', ';', '-', '–', '—', '('])
        && !(ends_sentence(line) && length > SENTENCE && !is_loud)
}

/// Whether a line ends like a sentence.
pub(super) fn ends_sentence(line: &str) -> bool {
    let body = line.trim_end_matches(['"', '”', '’', '\'', ')', '»']);
    body.ends_with(['.', '!', '?', '…', '。'])
}

/// Whether the line begins with a word and its number: if too long for a heading, it is an entry of a contents page.
pub(super) fn begins_with_word(ink: &str) -> bool {
    matches!(marks::parse(ink), Some((Mark::Word(..), _)))
}
