//! Numbered headings continue each other: 1, 2, 3 and 3.1, 3.2.

use std::collections::{HashMap, HashSet};

use super::marks::Mark;
use super::prose::Candidate;

/// The most numbers that may be missing in a row of headings.
const GAP: u32 = 3;
/// The most rows of numbers that can go on.
const MAX_OPEN_ROWS: usize = 16;

/// Numbers that do not continue other numbers.
pub(super) fn incomplete(found: &[Candidate]) -> HashSet<usize> {
    let mut dropped = HashSet::new();
    let (mut roman, mut arabic) = (Rows::default(), Rows::default());
    let mut below: HashMap<&[u32], u32> = HashMap::new();
    let mut deep = Vec::new();
    let mut section = 0;
    for (i, candidate) in found.iter().enumerate() {
        match &candidate.mark {
            Mark::Word(..) => section += 1,
            Mark::Roman(number) => roman.add(i, *number, section, &mut dropped),
            Mark::Number(path) => match path.split_last() {
                Some((number, [])) => arabic.add(i, *number, section, &mut dropped),
                Some((&number, before)) => {
                    let last = below.get(before).copied().unwrap_or(0);
                    if number <= 1 || last > 0 && number > last && number <= last + GAP {
                        below.insert(before, number);
                        deep.push(i);
                    } else {
                        dropped.insert(i);
                    }
                }
                None => {}
            },
            _ => {}
        }
    }
    roman.open.into_iter().for_each(|row| row.end(&mut dropped));
    arabic
        .open
        .into_iter()
        .for_each(|row| row.end(&mut dropped));
    if deep.len() == 1 {
        dropped.extend(deep);
    }
    dropped
}

/// Headings with the numbers 1, 2, 3.
struct Row {
    members: Vec<usize>,
    /// The last number.
    last: u32,
    /// The section of the last number.
    section: usize,
}

impl Row {
    fn end(self, dropped: &mut HashSet<usize>) {
        if self.members.len() < 2 {
            dropped.extend(self.members);
        }
    }
}

/// Rows of which each began after the last number of the one before.
#[derive(Default)]
struct Rows {
    open: Vec<Row>,
}

impl Rows {
    /// Continues a row or begins one. A row of an earlier section goes on only if none has begun since.
    fn add(&mut self, i: usize, number: u32, section: usize, dropped: &mut HashSet<usize>) {
        let newest = self.open.len().saturating_sub(1);
        let place = |gap: u32| {
            let fits = |(at, row): &(usize, &Row)| {
                let is_open = *at == newest || row.section == section;
                is_open && number > row.last && number <= row.last + gap
            };
            let found = self.open.iter().enumerate().rev().find(fits);
            found.map(|(at, _)| at)
        };
        if let Some(at) = place(1).or_else(|| place(GAP)) {
            // The rows since then were lists.
            for list in self.open.drain(at + 1..) {
                dropped.extend(list.members);
            }
            self.open[at].members.push(i);
            self.open[at].last = number;
            self.open[at].section = section;
        } else if number <= 2 {
            if self.open.len() == MAX_OPEN_ROWS {
                self.open.remove(0).end(dropped);
            }
            self.open.push(Row {
                members: vec![i],
                last: number,
                section,
            });
        } else {
            dropped.insert(i);
        }
    }
}
