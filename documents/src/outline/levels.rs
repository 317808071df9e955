//! The levels of headings.

use std::collections::HashMap;

use super::marks::{Mark, Word};
use super::prose::Candidate;
use super::{Heading, tidy};

/// The deepest level.
const MAX_HEADING_LEVEL: usize = 6;

/// Candidates of one class have one level.
pub(super) fn class(mark: &Mark) -> Option<(u8, usize)> {
    match mark {
        Mark::Word(word, _) => Some((0, *word as usize)),
        Mark::Roman(_) => Some((1, 0)),
        Mark::Number(path) => Some((2, path.len())),
        _ => None,
    }
}

/// A presumed depth, before the levels are known.
pub(super) fn depth(mark: &Mark) -> (u8, usize) {
    class(mark).unwrap_or((0, Word::Chapter as usize))
}

/// The headings with their levels.
pub(super) fn headings(found: &[Candidate]) -> Vec<Heading> {
    let levels = levels(found);
    let mut section = 0;
    // The levels that the last heading is in, with its own.
    let mut open: Vec<u8> = Vec::new();
    let mut headings: Vec<Heading> = Vec::with_capacity(found.len());
    for candidate in found {
        let level = match &candidate.mark {
            Mark::Explicit(level) => *level,
            Mark::Word(Word::Appendix, _) | Mark::Named | Mark::Contents => {
                section = 0;
                1
            }
            Mark::Listed | Mark::Capitals => section + 1,
            mark => {
                let class = class(mark).unwrap_or_default();
                section = levels.get(&class).copied().unwrap_or(1);
                section
            }
        };
        let title = match candidate.subtitle {
            Some(title) => {
                let number = candidate.line;
                let mark = match candidate.mark {
                    _ if number.ends_with('.') => "",
                    Mark::Number(_) => ".",
                    _ => ":",
                };
                tidy(&format!("{number}{mark} {title}"))
            }
            None if matches!(candidate.mark, Mark::Explicit(_)) => tidy(candidate.name),
            None => tidy(candidate.line),
        };
        // No level is left out.
        while open.last().is_some_and(|&above| above >= level) {
            open.pop();
        }
        open.push(level);
        headings.push(Heading {
            level: open.len().min(MAX_HEADING_LEVEL) as u8,
            title,
            start: candidate.start,
        });
    }
    headings.retain(|heading| !heading.title.is_empty());
    headings
}

/// Whether headings with `word` contain the chapters. Where they are parts of chapters, their numbers begin again, with
/// few chapters between them.
fn contains_chapters(found: &[Candidate], word: Word) -> bool {
    let (mut pairs, mut with_chapter, mut begins_again) = (0, 0, false);
    let mut last: Option<(u32, bool)> = None;
    for candidate in found {
        match &candidate.mark {
            Mark::Word(Word::Chapter, _) => last = last.map(|(number, _)| (number, true)),
            Mark::Word(other, number) if *other == word => {
                let number = number.parse().unwrap_or(u32::MAX);
                if let Some((before, has_chapter)) = last {
                    pairs += 1;
                    with_chapter += usize::from(has_chapter);
                    begins_again |= number <= before;
                }
                last = Some((number, false));
            }
            _ => {}
        }
    }
    !begins_again || 4 * with_chapter >= 3 * pairs
}

/// The level of each class: by what usually contains what; of equal words, the first one contains the others.
fn levels(found: &[Candidate]) -> HashMap<(u8, usize), u8> {
    let mut ranks: Vec<((u8, usize), (u8, usize))> = Vec::new();
    for (i, candidate) in found.iter().enumerate() {
        let Some(class) = class(&candidate.mark) else {
            continue;
        };
        if ranks.iter().any(|(_, known)| *known == class) {
            continue;
        }
        let rank = match candidate.mark {
            Mark::Word(Word::Appendix, _) => continue,
            Mark::Word(word, _) if word < Word::Chapter && contains_chapters(found, word) => (0, i),
            Mark::Word(Word::Chapter, _) => (1, 0),
            Mark::Word(word, _) if word < Word::Article => (1, 1 + i),
            Mark::Word(..) => (2, i),
            Mark::Roman(_) => (3, 0),
            _ => (4, class.1),
        };
        ranks.push((rank, class));
    }
    ranks.sort_unstable();
    let ordered = ranks.into_iter().zip(1..);
    ordered.map(|((_, class), level)| (class, level)).collect()
}
