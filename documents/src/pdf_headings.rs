//! Headings of a PDF: its bookmarks, or else the lines in letters larger than those of the text.
//!
//! ```text
//! page texts, sizes of their letters --large_lines--> candidates --levels--> headings without places
//! bookmarks ---------------------------------------------------------------> headings without places
//! headings without places, text without running heads --placed--> Heading{level, title, start}
//! ```

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::outline::MAX_TITLE_CHARS;
use crate::pdf_bookmarks::Bookmark;
use crate::{Heading, Page};

/// Letters at least this much larger than those of the text are large.
const LARGE: f64 = 1.12;
/// Share of a line's letters that are large in a heading.
const MIN_SHARE: f64 = 0.8;
/// The most lines of one heading.
const MAX_LINES: usize = 3;
/// The most times that a heading occurs: a line that occurs more often is a running head.
const MAX_TIMES: usize = 2;
/// The largest share of all letters that headings have: beyond it, large letters mean something else.
const MAX_LETTERS: f64 = 0.12;
/// Sizes closer than this, as a ratio, are one level.
const SAME: f64 = 1.04;
const MAX_LEVEL: usize = 4;
/// Fewer bookmarks say less than the text.
const MIN_BOOKMARKS: usize = 3;

/// Sizes of the letters of one page, in tenths of a point: each from a byte of the text on.
pub(crate) type Sizes = Vec<(usize, u32)>;

/// A heading whose place in the text is not known yet.
struct Unplaced {
    level: u8,
    title: String,
    /// Index of its page.
    page: usize,
}

/// Headings by the sizes of letters, found before running heads are removed.
pub(crate) struct LargeLines(Vec<Unplaced>);

/// Lines of one size that stand together.
struct Candidate {
    page: usize,
    title: String,
    size: u32,
    lines: usize,
}

/// Finds the lines in large letters.
pub(crate) fn large_lines(pages: &[String], sizes: &[Sizes]) -> LargeLines {
    let mut letters: HashMap<u32, usize> = HashMap::new();
    for (text, sizes) in pages.iter().zip(sizes) {
        for (range, size) in runs(text, sizes) {
            *letters.entry(size).or_default() += count(&text[range]);
        }
    }
    let all: usize = letters.values().sum();
    let Some((&body, _)) = letters.iter().max_by_key(|&(&size, &count)| (count, size)) else {
        return LargeLines(Vec::new());
    };
    let mut found: Vec<Candidate> = Vec::new();
    for (page, (text, sizes)) in pages.iter().zip(sizes).enumerate() {
        find_on_page(page, text, sizes, body, &mut found);
    }
    let mut times: HashMap<String, usize> = HashMap::new();
    for candidate in &found {
        *times.entry(candidate.title.clone()).or_default() += 1;
    }
    found.retain(|candidate| {
        let Candidate { title, lines, .. } = candidate;
        *lines <= MAX_LINES && times[title] <= MAX_TIMES && is_title(title)
    });
    let in_headings: usize = found.iter().map(|candidate| count(&candidate.title)).sum();
    if in_headings as f64 > MAX_LETTERS * all as f64 {
        found.clear();
    }
    LargeLines(levels(found))
}

/// The runs of a page's text in letters of one size.
fn runs<'a>(
    text: &'a str,
    sizes: &'a Sizes,
) -> impl Iterator<Item = (std::ops::Range<usize>, u32)> + 'a {
    let ends = sizes.iter().skip(1).map(|&(start, _)| start);
    let ends = ends.chain([text.len()]);
    let runs = sizes.iter().zip(ends);
    runs.filter_map(|(&(start, size), end)| {
        let range = start.min(text.len())..end.min(text.len());
        text.get(range.clone()).map(|_| (range, size))
    })
}

fn count(text: &str) -> usize {
    text.chars().filter(|c| c.is_alphanumeric()).count()
}

fn find_on_page(page: usize, text: &str, sizes: &Sizes, body: u32, found: &mut Vec<Candidate>) {
    let mut joins = false;
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let end = start + line.len();
        let large = large_size(&text[start..end], start, text, sizes, body);
        match (large, found.last_mut().filter(|_| joins)) {
            (Some(size), Some(last)) if is_same(last.size, size) && !is_numbered(line) => {
                last.title = format!("{} {}", last.title, line.trim());
                last.lines += 1;
            }
            (Some(size), _) => found.push(Candidate {
                page,
                title: line.trim().to_owned(),
                size,
                lines: 1,
            }),
            (None, _) => {}
        }
        joins = large.is_some();
        start = end;
    }
}

/// Whether a line begins with the number of a section, `2` or `1.3`: it does not go on with a title.
fn is_numbered(line: &str) -> bool {
    let Some((number, title)) = line.trim().split_once(' ') else {
        return false;
    };
    let parts: Vec<&str> = number.trim_end_matches('.').split('.').collect();
    // A year may be in the middle of a title.
    let is_part = |part: &&str| {
        (1..=2).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
    };
    parts.iter().all(is_part) && title.trim().starts_with(char::is_alphabetic)
}

/// The size of most letters of a line that is in large letters.
fn large_size(line: &str, start: usize, text: &str, sizes: &Sizes, body: u32) -> Option<u32> {
    let end = start + line.len();
    let first = sizes
        .partition_point(|&(at, _)| at <= start)
        .saturating_sub(1);
    let mut letters: BTreeMap<u32, usize> = BTreeMap::new();
    for (index, &(from, size)) in sizes.iter().enumerate().skip(first) {
        if from >= end {
            break;
        }
        let to = sizes.get(index + 1).map_or(end, |&(next, _)| next.min(end));
        *letters.entry(size).or_default() += text.get(from.max(start)..to).map_or(0, count);
    }
    let all: usize = letters.values().sum();
    let large = |size: u32| f64::from(size) >= LARGE * f64::from(body);
    let of_large = letters.iter().filter(|&(&size, _)| large(size));
    let in_large: usize = of_large.clone().map(|(_, count)| count).sum();
    let most = of_large.max_by_key(|&(_, count)| *count)?;
    (in_large as f64 >= MIN_SHARE * all as f64 && in_large > 0).then_some(*most.0)
}

fn is_same(a: u32, b: u32) -> bool {
    f64::from(a.max(b)) <= SAME * f64::from(a.min(b))
}

/// Whether a line in large letters reads like a heading.
fn is_title(line: &str) -> bool {
    let chars = line.chars().filter(|c| !c.is_whitespace()).count();
    let words = line.chars().filter(|c| c.is_alphabetic()).count();
    let starts = line.starts_with(|c: char| c.is_alphanumeric() || "\"'“‘«(§".contains(c));
    let length = line.chars().count();
    starts
        && words >= 2
        && words * 2 > chars
        && length <= MAX_TITLE_CHARS
        && !line.ends_with([',', ';'])
        // An entry of a contents page.
        && !line.contains(". . .")
        && !line.contains("....")
}

/// Gives the candidates levels by their sizes. A size counts if it occurs on two pages, or if it is the largest; a
/// heading that comes before the first of the level above it, such as the name of an author below the title, is none.
fn levels(found: Vec<Candidate>) -> Vec<Unplaced> {
    let largest = found.iter().map(|candidate| candidate.size).max();
    let pages = |size: u32| {
        let same = found.iter().filter(|other| is_same(other.size, size));
        same.map(|other| other.page).collect::<HashSet<_>>().len()
    };
    let mut sizes: Vec<u32> = found.iter().map(|candidate| candidate.size).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes.dedup_by(|a, b| is_same(*a, *b));
    sizes.retain(|&size| Some(size) == largest || pages(size) >= 2);
    let level = |size: u32| sizes.iter().position(|&of| is_same(of, size));
    let mut deepest = 0;
    let placed = found.into_iter().filter_map(|candidate| {
        let level = level(candidate.size)? + 1;
        if level > deepest + 1 {
            return None;
        }
        deepest = deepest.max(level);
        Some(Unplaced {
            level: level.min(MAX_LEVEL) as u8,
            title: candidate.title,
            page: candidate.page,
        })
    });
    placed.collect()
}

/// The headings of a PDF with this `text`; none if its lines by their form (`crate::outline`) are more.
pub(crate) fn headings(
    text: &str,
    pages: &[Page],
    bookmarks: Vec<Bookmark>,
    large: LargeLines,
) -> Vec<Heading> {
    let marked = bookmarks.into_iter().map(|bookmark| Unplaced {
        level: bookmark.level,
        title: bookmark.title,
        page: bookmark.page,
    });
    let marked = placed(text, pages, marked.collect(), true);
    if marked.len() >= MIN_BOOKMARKS {
        return marked;
    }
    let large = placed(text, pages, large.0, false);
    let by_form = crate::outline::outline(text, &crate::Kind::Pdf);
    if large.len() > by_form.len() {
        large
    } else {
        Vec::new()
    }
}

/// Headings with their places. A title that its page does not have leads to the page, if it is `anyway` a heading.
fn placed(text: &str, pages: &[Page], unplaced: Vec<Unplaced>, anyway: bool) -> Vec<Heading> {
    let mut next = 0;
    let mut found = Vec::new();
    for Unplaced { level, title, page } in unplaced {
        let Some(range) = pages.get(page).map(|page| page.range.clone()) else {
            continue;
        };
        let from = range.start.max(next.min(range.end));
        let at = find(&text[from..range.end], &title).map(|at| from + at);
        // Bookmarks may be out of order.
        let at = at.or_else(|| find(&text[range.clone()], &title).map(|at| range.start + at));
        let Some(start) = at.or(Some(range.start).filter(|_| anyway)) else {
            continue;
        };
        // In the middle of a character such as "§" no text begins.
        next = text.ceil_char_boundary(start + 1);
        found.push(Heading {
            level,
            title: crate::outline::tidy(&title),
            start,
        });
    }
    found.sort_by_key(|heading| heading.start);
    found
}

/// The first line of `text` that is `title`, or a number and `title`, whatever the white space and the case.
fn find(text: &str, title: &str) -> Option<usize> {
    let letters = |text: &str| -> String {
        let letters = text.chars().filter(|c| c.is_alphanumeric());
        letters.flat_map(char::to_lowercase).collect()
    };
    let wanted = letters(title);
    let mut start = 0;
    text.split_inclusive('\n').find_map(|line| {
        let at = start;
        start += line.len();
        // A title may go on in the next lines.
        let mut own = letters(line);
        let mut rest = text[start..].split_inclusive('\n').take(MAX_LINES - 1);
        while own.len() < wanted.len() && !own.is_empty() && wanted.starts_with(&own) {
            own += &letters(rest.next()?);
        }
        let unnumbered = own.trim_start_matches(|c: char| c.is_ascii_digit());
        let is_heading = !wanted.is_empty() && (own == wanted || unnumbered == wanted);
        is_heading.then(|| at + line.len() - line.trim_start().len())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heading_may_begin_with_any_character() {
        let text = "§ 1 Miete\nDie Miete.\nÜbergabe\nAm 1. Mai.\n";
        let pages = [Page {
            number: 1,
            range: 0..text.len(),
        }];
        let title = |title: &str| Unplaced {
            level: 1,
            title: title.to_owned(),
            page: 0,
        };
        let found = placed(
            text,
            &pages,
            vec![title("§ 1 Miete"), title("Übergabe")],
            false,
        );
        let starts: Vec<usize> = found.iter().map(|heading| heading.start).collect();
        assert_eq!(starts, [0, text.find("Über").unwrap()]);
    }

    #[test]
    fn the_number_of_a_section_begins_a_heading() {
        let text = "Annual report of\n2025 and 2026\n1 Pilots\n1.1 Section\nThey sail.\n";
        let sizes: Sizes = vec![(0, 180), (text.find("They").unwrap(), 100)];
        let mut found = Vec::new();
        find_on_page(0, text, &sizes, 100, &mut found);
        let titles: Vec<&str> = found.iter().map(|found| found.title.as_str()).collect();
        assert_eq!(
            titles,
            ["Annual report of 2025 and 2026", "1 Pilots", "1.1 Section"]
        );
    }
}
