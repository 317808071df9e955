//! Contents pages: their lines are no headings, but name the headings.

use std::collections::HashSet;

use super::marks::{self, Mark};
use super::title::{MAX_LINE_CHARS, begins_with_word, is_title};

/// The most lines of a contents page.
const CONTENTS_LINES: usize = 600;

/// The titles of a contents page.
#[derive(Default)]
pub(super) struct ContentsPage {
    titles: HashSet<String>,
    /// The first entry.
    first: Option<String>,
    /// The most further lines that may belong to the page.
    left: usize,
}

impl ContentsPage {
    /// Whether the next line may belong to the page.
    pub(super) fn is_open(&self) -> bool {
        self.left > 0
    }

    pub(super) fn begin(&mut self) {
        self.left = CONTENTS_LINES;
        self.first = None;
    }

    /// Takes the titles of the contents page from its lines. Returns whether the line can only be such an entry: it
    /// has a page number.
    pub(super) fn take(&mut self, ink: &str) -> bool {
        let entry = listed(ink, self.left > 0);
        let title = entry.unwrap_or(ink);
        if self.left > 0 {
            self.left -= 1;
            let is_entry = begins_with_word(title) || is_title(title);
            let identity = is_entry.then(|| identity(title));
            if identity.is_none() || identity == self.first {
                // Text, or the first heading after the page.
                self.left = 0;
            } else if self.first.is_none() {
                self.first = identity;
            }
        }
        if self.left > 0 || entry.is_some() {
            self.titles.insert(key(title));
            if let Some((_, name)) = marks::parse(title) {
                self.titles.insert(key(name));
            }
        }
        entry.is_some()
    }

    /// Whether a title behind the page is one of its entries.
    pub(super) fn lists(&self, ink: &str) -> bool {
        let key = key(ink);
        self.left == 0 && key.len() >= 4 && self.titles.contains(&key)
    }
}

/// The title in an entry of a contents page with a page number: after leaders, or on the contents page itself
/// (`is_inside`) after any gap.
fn listed(ink: &str, is_inside: bool) -> Option<&str> {
    if ink.len() > 4 * MAX_LINE_CHARS {
        return None;
    }
    let number = ink.rsplit(|c: char| !c.is_ascii_alphanumeric()).next()?;
    let is_roman = !number.is_empty() && number.chars().all(|c| matches!(c, 'i' | 'v' | 'x'));
    if !number.starts_with(|c: char| c.is_ascii_digit()) && !is_roman {
        return None;
    }
    let before = &ink[..ink.len() - number.len()];
    let title = before.trim_end_matches(['.', '…', '·', '_', ' ', '\t']);
    let gap = &before[title.len()..];
    let dots = gap.chars().filter(|c| matches!(c, '.' | '·' | '_'));
    // "Chapter 4" has no page number.
    let has_name = marks::parse(ink).is_none_or(|(_, name)| name.contains(' '));
    let is_single = gap == " " && has_name && title.ends_with(char::is_alphabetic);
    let is_wide = gap.contains('\t') || gap.contains("  ") || is_single;
    let is_led = dots.count() >= 3 || gap.contains('…') || is_inside && is_wide;
    (is_led && !title.is_empty()).then_some(title)
}

/// What an entry of a contents page has in common with its heading.
pub(super) fn identity(line: &str) -> String {
    match marks::parse(line) {
        Some((Mark::Word(word, number), _)) => format!("{word:?} {number}"),
        _ => key(line),
    }
}

/// A title for comparison: its letters and digits in lower case.
pub(super) fn key(title: &str) -> String {
    let mut key = String::with_capacity(title.len());
    for c in title.chars() {
        if c.is_alphanumeric() {
            key.extend(c.to_lowercase());
        } else if !key.is_empty() && !key.ends_with(' ') {
            key.push(' ');
        }
    }
    key.truncate(key.trim_end().len());
    key
}
