//! The outline of a document: its headings, found by their form. No model is asked.
//!
//! Markdown marks its headings (`markdown`), and so does the text of office files, books and web pages. A PDF may have
//! bookmarks or larger letters (`crate::pdf_headings`). In prose and in other PDFs a heading is a line that looks like
//! one (`marks`: "Chapter 4", "3.2 Notice period", "PREFACE") in
//! the right surroundings (`prose`), and that agrees with the other headings (`select`): entries of a contents page,
//! list items and running headers are none. A line that is missed costs a click, a wrong one costs trust in all others,
//! so doubtful lines are left out.
//!
//! ```text
//! text --markdown--------------------------------------> Heading{level, title, start}
//!      --prose: candidates in order--> select --levels-->
//! ```

mod contents;
mod levels;
mod markdown;
mod marks;
mod prose;
mod rows;
mod select;
mod title;

use serde::{Deserialize, Serialize};

use crate::{Format, Kind};

/// The most headings of an outline.
const MAX_HEADINGS: usize = 500;
/// The longest title, in characters.
pub(crate) const MAX_TITLE_CHARS: usize = 120;

/// A heading of a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heading {
    /// Depth, from 1.
    pub level: u8,
    /// The heading with its number, in one line of at most 120 characters.
    pub title: String,
    /// First byte of the heading in the text.
    pub start: usize,
}

impl Heading {
    /// The title without its number; empty for "Chapter 4".
    pub fn name(&self) -> &str {
        marks::parse(&self.title).map_or(&self.title, |(_, name)| name)
    }
}

/// The headings of `text`, in order, shortened by [`shorten`]. Source code has none. The time is linear in the text.
pub fn outline(text: &str, kind: &Kind) -> Vec<Heading> {
    let of_prose = |is_pdf| select::headings(prose::candidates(text, is_pdf));
    let mut found = match kind {
        Kind::SourceCode => Vec::new(),
        Kind::Markdown | Kind::Extracted { .. } => markdown::headings(text),
        Kind::PlainText => of_prose(false),
        Kind::Pdf => of_prose(true),
    };
    let can_be_prose = match kind {
        Kind::Markdown => true,
        Kind::Extracted { format } => {
            matches!(
                format,
                Format::Docx | Format::Odt | Format::Epub | Format::Html
            )
        }
        _ => false,
    };
    if can_be_prose && found.is_empty() {
        found = of_prose(false);
    }
    shorten(found)
}

/// At most 500 of `headings`: the deepest levels are left out, or the last headings if all have one level.
pub fn shorten(mut headings: Vec<Heading>) -> Vec<Heading> {
    while headings.len() > MAX_HEADINGS {
        let levels = headings.iter().map(|heading| heading.level);
        let deepest = levels.clone().max();
        if levels.min() == deepest {
            headings.truncate(MAX_HEADINGS);
        } else {
            headings.retain(|heading| Some(heading.level) < deepest);
        }
    }
    headings
}

/// The lines of a text without their ends, each with its first byte. A text without line feeds has carriage returns.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> + Clone {
    let end = if text.contains('\n') { '\n' } else { '\r' };
    text.split_inclusive(end).scan(0, |next, line| {
        let start = *next;
        *next += line.len();
        Some((start, line.trim_end()))
    })
}

/// `title` in one line without marks of emphasis and a final full stop or colon, cut to [`MAX_TITLE_CHARS`] characters.
pub(crate) fn tidy(title: &str) -> String {
    let words: Vec<&str> = title.split_whitespace().collect();
    let line = words.join(" ");
    let mut title = line.trim_matches(['_', '=', '*', ' ']);
    if !title.ends_with("..") {
        title = title.trim_end_matches(['.', ':', ',', ';', ' ']);
    }
    match title.char_indices().nth(MAX_TITLE_CHARS) {
        Some(_) => title
            .chars()
            .take(MAX_TITLE_CHARS - 1)
            .chain(['…'])
            .collect(),
        None => title.to_owned(),
    }
}
