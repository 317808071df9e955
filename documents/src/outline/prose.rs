//! Lines of prose that look like headings.

use super::contents::ContentsPage;
use super::marks::{self, Mark, Word};
use super::title::{MAX_LINE_CHARS, SENTENCE, begins_with_word, ends_sentence, is_title};
use super::{lines, markdown};

/// The longest line in capitals that may be a heading, in characters.
const CAPITALS: usize = 75;
/// The longest title at the start of a paragraph, in bytes.
const RUN_IN: usize = 60;
/// Words of a sentence, which is no title.
const VERBS: [&str; 16] = [
    "are", "can", "do", "has", "have", "is", "it", "must", "not", "shall", "them", "then", "this",
    "was", "will", "you",
];
/// Words before an article in a title: "Return of the keys", but "Turn the key".
const RELATIONS: [&str; 10] = [
    "and", "by", "for", "from", "in", "of", "on", "or", "to", "with",
];
/// Where more lines than this share are in capitals, capitals do not mean a heading.
const SHOUTING: f64 = 0.25;

/// A line that may be a heading.
#[derive(Debug, Clone)]
pub(super) struct Candidate<'a> {
    pub mark: Mark,
    /// First byte of the line.
    pub start: usize,
    /// The line.
    pub line: &'a str,
    /// The part of `line` behind the mark.
    pub name: &'a str,
    /// The line with the title, below a lone number.
    pub subtitle: Option<&'a str>,
    /// Whether it stands on a contents page.
    pub in_contents: bool,
    /// Bytes of text between this candidate and the next.
    pub body: usize,
}

/// The lines after a line, trimmed; empty behind the end of the text.
type Ahead<'a> = [&'a str; 4];

/// The candidates of `text`, in order. In a PDF a lone number is a page number.
pub(super) fn candidates(text: &str, is_pdf: bool) -> Vec<Candidate<'_>> {
    let mut found: Vec<Candidate> = Vec::new();
    let mut contents = ContentsPage::default();
    let (mut in_capitals, mut all) = (0, 0);
    let mut rest = lines(text);
    // A heading follows a blank line or another heading.
    let mut is_fresh = true;
    while let Some((start, line)) = rest.next() {
        let ink = line.trim_start();
        if ink.is_empty() {
            is_fresh = true;
            continue;
        }
        let start = start + (line.len() - ink.len());
        let was_fresh = is_fresh || line.starts_with('\u{c}');
        let is_entry = contents.take(ink);
        is_fresh = was_fresh;
        let is_short = ink.len() <= 4 * MAX_LINE_CHARS;
        if was_fresh && !is_entry && (is_short || marks::parse(ink).is_some()) {
            let mut below = rest.clone().map(|(_, line)| line.trim());
            let ahead: Ahead = std::array::from_fn(|_| below.next().unwrap_or(""));
            if let Some(heading) = heading(ink, &ahead, &contents, is_pdf) {
                let in_contents = contents.is_open();
                if heading.mark == Mark::Contents {
                    contents.begin();
                }
                for _ in 0..heading.below {
                    rest.next();
                }
                found.push(Candidate {
                    mark: heading.mark,
                    start,
                    line: &ink[..ink.len() - heading.text],
                    name: heading.name,
                    subtitle: heading.subtitle,
                    in_contents,
                    body: heading.text,
                });
                is_fresh = heading.text == 0;
                continue;
            }
        }
        let is_listed = is_entry || contents.is_open() && begins_with_word(ink);
        if is_listed || !ink.contains(char::is_alphabetic) {
            // A line of a contents page, a page number, or a rule.
            continue;
        }
        is_fresh = false;
        all += 1;
        in_capitals += usize::from(!ink.contains(char::is_lowercase));
        if let Some(last) = found.last_mut() {
            last.body += ink.len();
        }
    }
    if in_capitals as f64 > SHOUTING * all as f64 {
        found.retain(|candidate| candidate.mark != Mark::Capitals);
    }
    found
}

/// A mark with its title.
struct Found<'a> {
    mark: Mark,
    name: &'a str,
    subtitle: Option<&'a str>,
    /// Further lines that belong to the heading.
    below: usize,
    /// Bytes of text behind the heading in its line.
    text: usize,
}

fn heading<'a>(
    ink: &'a str,
    ahead: &Ahead<'a>,
    contents: &ContentsPage,
    is_pdf: bool,
) -> Option<Found<'a>> {
    let next = ahead[0];
    let plain = |mark, name| {
        Some(Found {
            mark,
            name,
            subtitle: None,
            below: 0,
            text: 0,
        })
    };
    if let Some((level, title)) = markdown::hashes(ink).filter(|_| next.is_empty()) {
        return plain(Mark::Explicit(level), title);
    }
    if is_title(ink)
        && let Some(level) = underline(ink, next)
    {
        let found = plain(Mark::Explicit(level), ink)?;
        return Some(Found { below: 1, ..found });
    }
    let lone = marks::bare_number(ink).filter(|_| !is_pdf);
    let lone = lone.map(|number| (Mark::Number(vec![number]), ""));
    let marked = marks::parse(ink).or(lone);
    if let Some((mark, name)) = marked {
        let title = subtitle(ahead).filter(|_| name.is_empty());
        if let Some((below, title)) = title {
            return Some(Found {
                mark,
                name,
                subtitle: Some(title),
                below,
                text: 0,
            });
        }
        if let Some(title) = run_in(&mark, name).filter(|_| !is_item(next, &mark)) {
            let text = name.len() - title.len();
            return Some(Found {
                text,
                ..plain(mark, title)?
            });
        }
        let fits = match mark {
            Mark::Word(..) if name.is_empty() => !continues(next),
            _ if name.is_empty() => next.is_empty() && !matches!(mark, Mark::Number(_)),
            _ => is_title(uncut(name)) && is_name(&mark, name) && stands(ink, ahead, &mark),
        };
        return if fits { plain(mark, name) } else { None };
    }
    let is_apart = next.is_empty() || !continues(next) && ink.chars().count() <= SENTENCE;
    if !is_apart || !is_title(ink) {
        return None;
    }
    if let Some(mark) = marks::named(ink) {
        plain(mark, ink)
    } else if contents.lists(ink) && ink.starts_with(char::is_alphanumeric) && !continues(ink) {
        plain(Mark::Listed, ink)
    } else if next.is_empty() && is_capitals(ink) {
        plain(Mark::Capitals, ink)
    } else {
        None
    }
}

/// Whether the line below does not show that `ink` is a list item or the first line of a paragraph.
fn stands(ink: &str, ahead: &Ahead, mark: &Mark) -> bool {
    let next = ahead[0];
    if next.is_empty() {
        return true;
    }
    if is_item(next, mark) || ends_with_number(ink) && ends_with_number(next) {
        // A list, or two entries of a contents page without leaders.
        return false;
    }
    if marks::parse(next).is_some() {
        return true;
    }
    let is_wrapped = continues(next) || !ink.contains(char::is_lowercase) && is_capitals(next);
    if is_wrapped {
        // A heading of two lines.
        return ahead[1].is_empty() && is_title(next) && !ends_sentence(next);
    }
    ink.chars().count() <= SENTENCE
}

/// Whether `next` is the next item of a list with `mark`.
fn is_item(next: &str, mark: &Mark) -> bool {
    match (marks::parse(next), mark) {
        (Some((Mark::Number(below), _)), Mark::Number(path)) => !below.starts_with(path),
        (Some((Mark::Number(below), _)), _) => below.len() == 1 && below != [1],
        (Some((Mark::Roman(_), _)), Mark::Roman(_)) => true,
        _ => false,
    }
}

/// The title at the start of a numbered paragraph: "1. Rent. The tenant pays".
fn run_in<'a>(mark: &Mark, name: &'a str) -> Option<&'a str> {
    if !matches!(
        mark,
        Mark::Number(_) | Mark::Word(Word::Section | Word::Article, _)
    ) {
        return None;
    }
    let head = &name[..name.floor_char_boundary(RUN_IN)];
    let title = &name[..head.find(". ")?];
    let text = name[title.len() + 1..].trim_start();
    let words: Vec<String> = title.split(' ').map(str::to_lowercase).collect();
    let is_sentence = |i: usize| match words[i].as_str() {
        "a" | "an" | "the" => i == 0 || !RELATIONS.contains(&words[i - 1].as_str()),
        word => VERBS.contains(&word) || word.chars().count() == 1,
    };
    let fits = words.len() <= 6
        && !(0..words.len()).any(is_sentence)
        && title.starts_with(char::is_uppercase)
        && !title.contains([',', ':', '!', '?'])
        && text.starts_with(char::is_uppercase)
        && text.len() >= 20;
    fits.then_some(title)
}

/// The title below a lone number, and how many lines it takes with the blank ones before it.
fn subtitle<'a>(ahead: &Ahead<'a>) -> Option<(usize, &'a str)> {
    let at = ahead[..3].iter().position(|line| !line.is_empty())?;
    let line = ahead[at];
    let is_alone = ahead[at + 1].is_empty();
    let is_plain = marks::parse(line).is_none() && marks::named(line) != Some(Mark::Contents);
    let is_quoted = line.starts_with(['"', '“']) && line.ends_with(['"', '”']);
    let begins = (line.starts_with(char::is_alphanumeric) || is_quoted) && !continues(line);
    let long_words = || {
        let words = line.split_whitespace();
        words.filter(|word| word.chars().count() >= 5)
    };
    let is_loud = !line.contains(char::is_lowercase);
    let is_title_case = (is_loud || !ends_sentence(line))
        && !line.ends_with(':')
        && long_words().all(|word| !word.starts_with(char::is_lowercase));
    let fits = is_alone && is_plain && begins && is_title(line);
    (fits && is_title_case).then_some((at + 1, line))
}

/// `=`, `-` or `~` below a line, about as long as the line: its level.
fn underline(ink: &str, next: &str) -> Option<u8> {
    let mark = next.chars().next()?;
    let level = ['=', '-', '~'].iter().position(|&known| known == mark)?;
    let is_rule = next.chars().all(|c| c == mark);
    let (length, width) = (next.len(), ink.chars().count());
    let fits = length >= 3 && length >= width / 2 && length <= width + 20;
    (is_rule && fits && ink.contains(char::is_alphabetic)).then_some(level as u8 + 1)
}

/// `name` without the comma at the end of a line in capitals, which the next line continues.
fn uncut(name: &str) -> &str {
    let is_loud = !name.contains(char::is_lowercase);
    if is_loud {
        name.trim_end_matches([',', ';'])
    } else {
        name
    }
}

/// Whether what follows a number is a title and not a sentence.
fn is_name(mark: &Mark, name: &str) -> bool {
    let is_repeated = match (mark, marks::parse(name)) {
        (Mark::Word(word, _), Some((Mark::Word(again, _), _))) => *word == again,
        (Mark::Roman(number), _) => marks::contains_roman(name, number + 1),
        _ => false,
    };
    let is_loud = !name.contains(char::is_lowercase);
    let is_sentences = matches!(mark, Mark::Number(_)) && name.contains(". ") && !is_loud;
    let last = name.rsplit(' ').next().unwrap_or("");
    let is_cut = [
        "a", "an", "and", "by", "for", "in", "is", "of", "or", "the", "to", "with",
    ]
    .contains(&last);
    let letters = name.chars().filter(|c| c.is_alphabetic()).count();
    let is_short = letters < 2 && !matches!(mark, Mark::Word(..));
    !is_repeated && !is_sentences && !is_cut && !is_short
}

/// Whether a line in capitals is a heading: words, and no shout, quotation, name or imprint.
fn is_capitals(line: &str) -> bool {
    let letters = line.chars().filter(|c| c.is_uppercase()).count();
    let ink = line.chars().filter(|c| !c.is_whitespace()).count();
    let words = || line.split(|c: char| !c.is_alphabetic());
    line.starts_with(|c: char| c.is_alphanumeric())
        && !line.contains(char::is_lowercase)
        && line.chars().count() <= CAPITALS
        && letters >= 4
        && letters * 5 >= ink * 3
        && words().any(|word| word.chars().count() >= 4)
        && words().next() != Some("BY")
        && !line.ends_with([':', '!', '"', '”', ']'])
        && !is_signature(line)
}

/// "W.J. SMITH", "A. SMITH.", "LONDON, 1901", "SMITH & CO., LTD., LONDON".
fn is_signature(line: &str) -> bool {
    let is_initial =
        |word: &&str| word.len() >= 2 && word.split_terminator('.').all(|part| part.len() == 1);
    let initials: usize = (line.split_whitespace().filter(is_initial))
        .map(|word| word.matches('.').count())
        .sum();
    let is_dated = line.rsplit_once(", ").is_some_and(|(_, year)| {
        let year = year.trim_end_matches('.');
        year.len() == 4 && year.bytes().all(|c| c.is_ascii_digit())
    });
    initials > 1
        || initials == 1 && line.ends_with('.')
        || is_dated
        || line.matches(',').count() > 1
}

/// Whether a line continues a sentence: it begins in lower case.
fn continues(line: &str) -> bool {
    let first = line.chars().find(|c| c.is_alphanumeric());
    first.is_some_and(char::is_lowercase)
}

fn ends_with_number(line: &str) -> bool {
    let number = line.rsplit([' ', '\t']).next().unwrap_or("");
    number.len() <= 4 && number.bytes().all(|c| c.is_ascii_digit())
}
