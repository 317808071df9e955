//! Words that the lines of a page divide: `manip-` and `ulation`. Joined, they are found by a search and read by a model.
//!
//! ```text
//! ... easy manip-         ... easy manipulation
//! ulation of types        of types
//! ```
//!
//! A hyphen of the text's own stays (`well-` and `known`): where the document has the word with a hyphen elsewhere, or both
//! halves as words and not the whole.

use std::collections::HashSet;

/// Stands behind a hyphen at the end of a line of a table's cell, until [`join`].
pub(crate) const CELL_LINE: char = '\u{2028}';

/// Joins the divided words of all pages.
pub(crate) fn join(pages: &mut [String]) {
    let words = Words::of(pages);
    for page in pages.iter_mut().filter(|page| division(page).is_some()) {
        *page = joined(page, &words);
    }
}

/// The first hyphen at the end of a line, and whether the line is one of a cell.
fn division(text: &str) -> Option<(usize, bool)> {
    let ends_line = |at: usize| text[at + 1..].starts_with(['\n', CELL_LINE]);
    let (at, _) = text.match_indices('-').find(|&(at, _)| ends_line(at))?;
    Some((at, text[at + 1..].starts_with(CELL_LINE)))
}

/// The words of a document in lower case, without those that a line divides.
struct Words {
    /// Letters only.
    plain: HashSet<String>,
    /// Two words with a hyphen between them.
    hyphenated: HashSet<String>,
}

impl Words {
    fn of(pages: &[String]) -> Self {
        let (mut plain, mut hyphenated) = (HashSet::new(), HashSet::new());
        let lines = pages.iter().flat_map(|page| page.split(['\n', CELL_LINE]));
        for line in lines {
            let line = line
                .strip_suffix('-')
                .map_or(line, |line| line.trim_end_matches(char::is_alphabetic));
            for word in line.split(|c: char| !(c.is_alphabetic() || c == '-')) {
                let word = word.to_lowercase();
                plain.extend(word.split('-').map(str::to_owned));
                if word.contains('-') {
                    hyphenated.insert(word);
                }
            }
        }
        Self { plain, hyphenated }
    }

    /// Whether `first` and `second` are the halves of one word.
    fn divide(&self, first: &str, second: &str) -> bool {
        let [first, second] = [first, second].map(str::to_lowercase);
        if self.plain.contains(&format!("{first}{second}")) {
            return true;
        }
        let both = self.plain.contains(&first) && self.plain.contains(&second);
        !both && !self.hyphenated.contains(&format!("{first}-{second}"))
    }
}

fn joined(page: &str, words: &Words) -> String {
    let mut text = String::with_capacity(page.len());
    let mut rest = page;
    while let Some((at, is_of_cell)) = division(rest) {
        let width = if is_of_cell { CELL_LINE.len_utf8() } else { 1 };
        let (before, after) = (&rest[..at], &rest[at + 1 + width..]);
        let first = before.rsplit(|c: char| !c.is_alphabetic()).next();
        let first = first.unwrap_or_default();
        let second = after.split(|c: char| !c.is_alphabetic()).next();
        let second = second.unwrap_or_default();
        // "SE-" goes on as "QUENCE", and "manip-" as "ulation"; a name does not go on in another case.
        let upper = |word: &str| word.chars().all(char::is_uppercase);
        let fits = second.starts_with(char::is_lowercase)
            || !second.is_empty() && upper(first) && upper(second);
        let goes_on = !first.is_empty() && fits;
        text.push_str(before);
        rest = after;
        if !goes_on || !words.divide(first, second) {
            text.push_str(if is_of_cell { "-" } else { "-\n" });
            continue;
        }
        text.push_str(second);
        rest = &rest[second.len()..];
        // The marks behind the word stay with it.
        let marks = rest.find(char::is_whitespace).unwrap_or(rest.len());
        text.push_str(&rest[..marks]);
        rest = rest[marks..].trim_start_matches([' ', '\t']);
        if !rest.starts_with('\n') && !rest.is_empty() {
            text.push(if is_of_cell { ' ' } else { '\n' });
        }
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pages: &[&str]) -> Vec<String> {
        let mut pages: Vec<String> = pages.iter().map(|page| (*page).to_owned()).collect();
        join(&mut pages);
        pages
    }

    #[test]
    fn divided_words_are_joined() {
        for (page, expected) in [
            (
                "easy manip-\nulation of types",
                "easy manipulation\nof types",
            ),
            ("an OCTET SE-\nQUENCE. Next", "an OCTET SEQUENCE.\nNext"),
            ("the har-\nbour", "the harbour"),
            ("the har-\nbour,\nand more", "the harbour,\nand more"),
            (
                "A | the har-\u{2028}bour known well, well-\u{2028}known | B",
                "A | the harbour known well, well-known | B",
            ),
            ("zwei-\nhundert und drei-\nßig", "zweihundert\nund dreißig"),
        ] {
            assert_eq!(of(&[page]), [expected]);
        }
        // The whole word elsewhere in the document, though its halves are words too.
        let pages = of(&[
            "the war is over",
            "a for-\nward, for the ward",
            "go forward",
        ]);
        assert_eq!(pages[1], "a forward,\nfor the ward");
    }

    #[test]
    fn hyphens_of_the_text_stay() {
        for page in [
            "a well-\nknown man; all is well and known",
            "a re-\nelected one; he was re-elected",
            "1990-\n1995",
            "Mary-\nAnn",
            "a list:\n-\nnone",
            "x -\ny",
        ] {
            assert_eq!(of(&[page]), [page]);
        }
    }
}
