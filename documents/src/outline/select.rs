//! Which candidates are headings.

use std::collections::{HashMap, HashSet};

use super::contents::{identity, key};
use super::levels::{self, class, depth};
use super::marks::Mark;
use super::prose::Candidate;
use super::{Heading, rows};

/// A title without a number that occurs more often is a running header.
const REPEATS: usize = 3;
/// This many headings that are marked as such show that the others are none.
const ENOUGH_EXPLICIT: usize = 3;
/// More candidates without text between them are a list or a contents page.
const STACKED: usize = 3;
/// The most text below an entry of a contents page, in bytes.
const ENTRY: usize = 2000;

pub(super) fn headings(mut found: Vec<Candidate>) -> Vec<Heading> {
    let is_explicit = |c: &Candidate| matches!(c.mark, Mark::Explicit(_));
    if found.iter().filter(|c| is_explicit(c)).count() >= ENOUGH_EXPLICIT {
        found.retain(is_explicit);
    }
    for rule in [
        contents_pages,
        running_titles,
        running_numbers,
        lists,
        stacks,
        rows::incomplete,
    ] {
        let dropped = rule(&found);
        remove(&mut found, &dropped);
    }
    while found
        .last()
        .is_some_and(|last| last.mark == Mark::Capitals && last.body == 0)
    {
        // "THE END".
        found.pop();
    }
    levels::headings(&found)
}

/// Removes candidates; the text below one belongs to the candidate before it.
fn remove(found: &mut Vec<Candidate>, dropped: &HashSet<usize>) {
    let mut kept: Vec<Candidate> = Vec::with_capacity(found.len());
    for (i, candidate) in found.drain(..).enumerate() {
        if !dropped.contains(&i) {
            kept.push(candidate);
        } else if let Some(before) = kept.last_mut() {
            before.body += candidate.body;
        }
    }
    *found = kept;
}

/// Titles without a number that repeat, and lines in capitals that continue the heading above them or sign a section.
fn running_titles(found: &[Candidate]) -> HashSet<usize> {
    let mut times: HashMap<String, Vec<usize>> = HashMap::new();
    let mut dropped = HashSet::new();
    let mut in_section = false;
    for (i, candidate) in found.iter().enumerate() {
        let is_numbered = class(&candidate.mark).is_some();
        in_section |= is_numbered;
        if is_numbered || matches!(candidate.mark, Mark::Explicit(_)) {
            continue;
        }
        let title = candidate.line.trim_matches(|c: char| !c.is_alphabetic());
        times.entry(key(title)).or_default().push(i);
        let above = i.checked_sub(1).map(|i| &found[i]);
        let continues = |above: &Candidate| {
            let is_same = class(&above.mark).is_none() && key(above.line) == key(candidate.line);
            let is_second_line = class(&above.mark).is_some()
                && !above.name.contains(char::is_lowercase)
                && candidate.mark == Mark::Capitals
                && above.body == 0;
            is_same || is_second_line
        };
        let below = found.get(i + 1).map(|below| &below.mark);
        let is_name = in_section
            && candidate.mark == Mark::Capitals
            && candidate.body == 0
            && below.is_some_and(|mark| class(mark).is_some() && !is_first(mark));
        if is_name || above.is_some_and(continues) {
            dropped.insert(i);
        }
    }
    let often = times.into_values().filter(|times| times.len() > REPEATS);
    dropped.extend(often.flatten());
    dropped
}

fn is_first(mark: &Mark) -> bool {
    match mark {
        Mark::Word(_, number) => number == "1",
        Mark::Roman(number) => *number == 1,
        Mark::Number(path) => path.last() == Some(&1),
        _ => false,
    }
}

/// Numbered headings that name the section they are in: the headers of its further pages.
fn running_numbers(found: &[Candidate]) -> HashSet<usize> {
    // The sections that a candidate is in, from the outermost.
    let mut inside: Vec<&Candidate> = Vec::new();
    let mut dropped = HashSet::new();
    for (i, candidate) in found.iter().enumerate() {
        let Some(class) = class(&candidate.mark) else {
            continue;
        };
        let same = |open: &&Candidate| self::class(&open.mark) == Some(class);
        let at = inside.iter().position(same).unwrap_or(inside.len());
        let is_again = inside.get(at).is_some_and(|open| {
            let (one, other) = (key(open.name), key(candidate.name));
            let is_same = one.starts_with(&other) || other.starts_with(&one);
            open.mark == candidate.mark && open.body > 0 && is_same
        });
        if is_again {
            dropped.insert(i);
        } else {
            inside.truncate(at);
            inside.push(candidate);
        }
    }
    dropped
}

/// Contents pages: what occurs again, on the page or until its first entry does.
fn contents_pages(found: &[Candidate]) -> HashSet<usize> {
    // The next candidate that can be the heading of this one.
    let mut next: Vec<Option<usize>> = vec![None; found.len()];
    let mut seen: HashMap<String, usize> = HashMap::new();
    for (i, candidate) in found.iter().enumerate().rev() {
        next[i] = seen.insert(identity(candidate.line), i);
    }
    let mut dropped = HashSet::new();
    let mut end = 0;
    for (title, candidate) in found.iter().enumerate() {
        if candidate.in_contents && candidate.body < ENTRY && next[title].is_some() {
            dropped.insert(title);
        }
        if candidate.mark != Mark::Contents {
            continue;
        }
        dropped.insert(title);
        let near = title.max(end) + 1..found.len().min(title + 6);
        let Some((first, again)) = near.into_iter().find_map(|i| Some((i, next[i]?))) else {
            continue;
        };
        end = again;
        let entries: Vec<usize> = (first..again).filter(|&i| next[i].is_some()).collect();
        // The last entry may be followed by other pages.
        if entries.iter().rev().skip(1).all(|&i| found[i].body < ENTRY) {
            dropped.extend(entries);
        }
    }
    dropped
}

/// Numbered items that follow each other without text between them.
fn lists(found: &[Candidate]) -> HashSet<usize> {
    let mut dropped = HashSet::new();
    for (i, pair) in found.windows(2).enumerate() {
        let is_next = match (&pair[0].mark, &pair[1].mark) {
            (Mark::Roman(one), Mark::Roman(other)) => one + 1 == *other,
            (Mark::Number(one), Mark::Number(other)) => {
                let (last, before) = one.split_last().unwrap_or((&0, &[]));
                other.split_last() == Some((&(last + 1), before))
            }
            _ => false,
        };
        if is_next && pair[0].body == 0 {
            dropped.extend([i, i + 1]);
        }
    }
    dropped
}

/// Many candidates without text between them, except for the last ones if each contains the next.
fn stacks(found: &[Candidate]) -> HashSet<usize> {
    let mut dropped = HashSet::new();
    let mut start = 0;
    for end in 0..found.len() {
        if found[end].body == 0 && end + 1 < found.len() {
            continue;
        }
        let mut tail = end;
        while tail > start && depth(&found[tail - 1].mark) < depth(&found[tail].mark) {
            tail -= 1;
        }
        if tail - start >= STACKED {
            dropped.extend(start..tail);
        }
        start = end + 1;
    }
    dropped
}
