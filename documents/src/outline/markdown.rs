//! Headings of Markdown: `# Title`, and a line underlined with `===` or `---`. Not in fenced code or front matter.

use super::{Heading, lines, tidy};

/// The longest line that is looked at, in bytes.
const MAX_LINE_BYTES: usize = 1000;

pub(super) fn headings(text: &str) -> Vec<Heading> {
    let mut found = Vec::new();
    let mut fence: Option<&str> = None;
    let mut front_matter = false;
    // The first line of the paragraph that the last line belongs to.
    let mut paragraph: Option<(usize, &str)> = None;
    for (start, line) in lines(text) {
        let ink = line.trim_start();
        let indent = line.len() - ink.len();
        let is_rule = |mark: &str| !ink.is_empty() && ink.trim_start_matches(mark).is_empty();
        if front_matter {
            front_matter = !(ink == "---" || ink == "...");
            continue;
        }
        if start == 0 && line == "---" {
            front_matter = true;
            continue;
        }
        if let Some(open) = fence {
            if ink.starts_with(open) && is_rule(&open[..1]) {
                fence = None;
            }
            continue;
        }
        let before = paragraph.take();
        if let Some(open) = opened(ink) {
            fence = Some(open);
        } else if indent > 3 {
            // Code, or the continuation of a paragraph.
            paragraph = before;
        } else if let Some((level, title)) = hashes(ink) {
            add(&mut found, level, title, start + indent);
        } else if let Some((first, title)) = before.filter(|_| is_rule("=") || is_rule("-")) {
            add(&mut found, if is_rule("=") { 1 } else { 2 }, title, first);
        } else if is_text(ink) {
            paragraph = before.or(Some((start + indent, ink)));
        }
    }
    found
}

/// The marks that open fenced code.
fn opened(ink: &str) -> Option<&str> {
    let mark = ink.chars().next().filter(|&c| c == '`' || c == '~')?;
    let marks = &ink[..ink.len() - ink.trim_start_matches(mark).len()];
    let is_code_span = mark == '`' && ink[marks.len()..].contains('`');
    (marks.len() >= 3 && !is_code_span).then_some(marks)
}

/// Level and title of `## Title ##`.
pub(super) fn hashes(ink: &str) -> Option<(u8, &str)> {
    let title = ink.trim_start_matches('#');
    let level = ink.len() - title.len();
    if !(1..=6).contains(&level) || !title.starts_with([' ', '\t']) {
        return None;
    }
    let title = title.trim();
    let open = title.trim_end_matches('#');
    let closed = open.is_empty() || open.ends_with([' ', '\t']);
    Some((level as u8, if closed { open.trim() } else { title }))
}

/// Whether the line can belong to a paragraph: no list item, quote or row of a table.
fn is_text(ink: &str) -> bool {
    !ink.is_empty()
        && ink.len() <= MAX_LINE_BYTES
        && !ink.starts_with(['>', '|', '<'])
        && !["- ", "* ", "+ "].iter().any(|mark| ink.starts_with(mark))
}

fn add(found: &mut Vec<Heading>, level: u8, title: &str, start: usize) {
    let title = tidy(&plain(title));
    if !title.is_empty() {
        found.push(Heading {
            level,
            title,
            start,
        });
    }
}

/// `title` without emphasis and code marks, and with the words of links in place of links.
fn plain(title: &str) -> String {
    let mut words = title.replace("**", "").replace('`', "");
    while let Some(middle) = words.find("](") {
        let open = words[..middle].rfind('[');
        let close = words[middle..].find(')').map(|at| middle + at);
        let (Some(open), Some(close)) = (open, close) else {
            break;
        };
        let name = words[open + 1..middle].to_owned();
        let open = if words[..open].ends_with('!') {
            open - 1
        } else {
            open
        };
        words.replace_range(open..=close, &name);
    }
    words
}
