//! Lines that stand at the edge of many pages: running heads, and page numbers. Between two pages they would stand in the
//! middle of a sentence.

use std::collections::{HashMap, HashSet};

/// Lines at the beginning and at the end of a page that are looked at. Some programs draw the foot first.
const EDGE: usize = 3;
/// Pages that a line stands on at least, and the share of all pages.
const MIN_PAGES: usize = 4;
const MIN_SHARE: f64 = 0.4;
/// The longest running head, in characters.
const MAX_CHARS: usize = 100;
/// Words beside a number that make it a page number.
const PAGE_WORDS: [&str; 12] = [
    "page", "p", "pg", "of", "seite", "von", "página", "pagina", "di", "de", "sida", "strona",
];
/// With so many words, a line with a number that counts the pages is a running head; `Question 3` is not.
const HEAD_WORDS: usize = 3;

/// What the lines of several pages have in common.
#[derive(PartialEq, Eq, Hash, Clone)]
enum Repeated {
    /// The same line.
    Line(String),
    /// The same line but for a number, which is the page's index plus this one.
    Counted(String, i64),
}

/// Removes running heads but the first of each, and page numbers, from the texts of the pages.
pub(crate) fn remove(pages: &mut [String]) {
    let least = MIN_PAGES.max((MIN_SHARE * pages.len() as f64).ceil() as usize);
    let mut counts: HashMap<Repeated, usize> = HashMap::new();
    for (index, page) in pages.iter().enumerate() {
        let lines = page.lines().collect::<Vec<_>>();
        let edges = edges(&lines).into_iter();
        let found: HashSet<Repeated> = edges.flat_map(|at| repeated(lines[at], index)).collect();
        for one in found {
            *counts.entry(one).or_default() += 1;
        }
    }
    counts.retain(|_, count| *count >= least);
    if counts.is_empty() {
        return;
    }
    let mut kept: HashSet<Repeated> = HashSet::new();
    for (index, page) in pages.iter_mut().enumerate() {
        let mut lines = page.lines().collect::<Vec<_>>();
        let mut gone = HashSet::new();
        for at in edges(&lines) {
            let of = repeated(lines[at], index);
            let known = of.into_iter().find(|one| counts.contains_key(one));
            if known.is_some_and(|known| is_page_number(lines[at]) || !kept.insert(known)) {
                gone.insert(at);
            }
        }
        if !gone.is_empty() {
            let mut at = 0..;
            lines.retain(|_| at.next().is_none_or(|at| !gone.contains(&at)));
            lines.dedup_by(|a, b| a.trim().is_empty() && b.trim().is_empty());
            *page = lines.join("\n").trim_matches('\n').to_owned();
        }
    }
}

/// The numbers of the first and last lines that are not blank.
fn edges(lines: &[&str]) -> Vec<usize> {
    let written = (0..lines.len()).filter(|&at| !lines[at].trim().is_empty());
    let written: Vec<usize> = written.collect();
    let last = written.len().saturating_sub(EDGE);
    let is_edge = |i: &usize| *i < EDGE || *i >= last;
    (0..written.len())
        .filter(is_edge)
        .map(|i| written[i])
        .collect()
}

/// What `line` of page `index` may have in common with lines of other pages.
fn repeated(line: &str, index: usize) -> Vec<Repeated> {
    let line = line.trim();
    if line.chars().count() > MAX_CHARS {
        return Vec::new();
    }
    let mut found = Vec::new();
    if line.chars().any(char::is_alphabetic) {
        found.push(Repeated::Line(line.to_owned()));
    }
    if let Some((number, rest)) = numbered(line)
        && (is_page_number(line) || rest.split_whitespace().count() >= HEAD_WORDS)
    {
        found.push(Repeated::Counted(rest, number - index as i64));
    }
    found
}

/// The first number of a line, and the line without its numbers; `None` without one.
fn numbered(line: &str) -> Option<(i64, String)> {
    let digits = |c: char| c.is_ascii_digit();
    let start = line.find(digits)?;
    let end = line[start..]
        .find(|c| !digits(c))
        .map_or(line.len(), |n| start + n);
    let number = line[start..end].parse().ok()?;
    let rest: String = line.chars().filter(|&c| !digits(c)).collect();
    Some((number, rest))
}

/// Whether a line is a number with nothing beside it but marks and words for pages.
fn is_page_number(line: &str) -> bool {
    let Some((_, rest)) = numbered(line) else {
        return false;
    };
    let mut words = rest.split(|c: char| !c.is_alphabetic());
    words.all(|word| word.is_empty() || PAGE_WORDS.contains(&word.to_lowercase().as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn removed(pages: &[&str]) -> Vec<String> {
        let mut pages: Vec<String> = pages.iter().map(|page| (*page).to_owned()).collect();
        remove(&mut pages);
        pages
    }

    /// Twelve pages with different words, and `edge` of each page's number before and after them.
    fn book(edge: impl Fn(usize) -> (String, String)) -> Vec<String> {
        let page = |i: usize| {
            let ((head, foot), words) = (edge(i), "a".repeat(i));
            let words = format!("Words {words}{} that\non {words}.", i * i);
            format!("{head}\n\n{words}\n\n{foot}").trim_end().to_owned()
        };
        let mut pages = (1..=12).map(page).collect::<Vec<_>>();
        remove(&mut pages);
        pages
    }

    #[test]
    fn running_heads_stay_once_and_page_numbers_go() {
        let pages = book(|i| ("A Book of Words".into(), format!("- {} -", i + 4)));
        assert_eq!(pages[0], "A Book of Words\n\nWords a1 that\non a.");
        assert_eq!(pages[4], "Words aaaaa25 that\non aaaaa.");
        let pages = book(|i| (format!("{i}  The Time Machine"), format!("Page {i} of 12")));
        assert_eq!(pages[1], "Words aa4 that\non aa.");
        // Left and right pages differ.
        let sides = ["H. G. Wells", "The Time Machine"];
        let pages = book(|i| (sides[i % 2].into(), i.to_string()));
        assert_eq!(pages[5], "Words aaaaaa36 that\non aaaaaa.");
    }

    #[test]
    fn what_is_counted_or_repeated_within_pages_stays() {
        let pages = book(|i| (format!("Question {i}"), "".into()));
        assert_eq!(pages[2], "Question 3\n\nWords aaa9 that\non aaa.");
        // Numbers that do not count the pages.
        let pages = book(|i| ((i * 7 % 5).to_string(), "".into()));
        assert_eq!(pages[3], "3\n\nWords aaaa16 that\non aaaa.");
        let few = ["Title\nOne.", "Title\nTwo.", "Title\nThree."];
        assert_eq!(removed(&few), few);
        let inside = ["a\nb\nc\nTotal\nd\ne\nf"; 5];
        assert_eq!(removed(&inside)[1], "Total", "only edges are looked at");
    }
}
