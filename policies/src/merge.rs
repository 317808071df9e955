//! The interface for methods that merge: several tokens share one row (a class); a look-up table maps tokens to rows.
//!
//! This module makes no decisions (`ems.rs` does) and does not merge keys and values (the engine does).
//!
//! ```text
//! entries   position  0  1  4  5  7 | 8  9        one per token that takes part in attention, in order of position
//!           class     0  1  0  2  1 | 3  4        the row it reads: 0 and 4 share one, 1 and 7 share one
//! classes   centre    0  1     5    | 8  9        one row each: a key direction and a value
//! ```
//!
//! An entry's key is its class's direction times the length of the entry's own key. Evicted tokens have no row.

use crate::{Pos, Row, Snapshot};

/// The look-up table of a method that merges, per KV head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassTable {
    /// The most entries between two decode steps.
    pub entries: usize,
    /// f32 elements that the method keeps per entry.
    pub elements: usize,
}

/// A token that takes part in attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Entry {
    /// Its position in the text.
    pub pos: Pos,
    /// Its class, an index into [`MergedHead::centres`].
    pub class: u32,
    /// Its weight in the merged key and value.
    pub weight: f32,
}

/// The classes and entries that one KV head keeps of the prompt.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MergedHead {
    /// Position of each class's centre, ascending.
    pub centres: Vec<Pos>,
    /// Tokens by ascending position; every class has at least one.
    pub entries: Vec<Entry>,
}

impl MergedHead {
    /// `[classes]`: position and weight of each class's members.
    pub fn members(&self) -> Vec<Vec<(Pos, f32)>> {
        let mut members = vec![Vec::new(); self.centres.len()];
        for entry in &self.entries {
            members[entry.class as usize].push((entry.pos, entry.weight));
        }
        members
    }

    /// Entries that are not their class's centre, as `[position, centre's position]`.
    pub fn merged(&self) -> Vec<[u32; 2]> {
        let pair = |e: &Entry| [e.pos.0, self.centres[e.class as usize].0];
        let pairs = self.entries.iter().map(pair);
        pairs.filter(|[entry, centre]| entry != centre).collect()
    }
}

/// The stored rows of one KV head's classes.
pub trait ClassRows {
    /// Writes the cosine of the key of row `one` with the key of each row in `others` to `cosines`; 0 for a zero key.
    fn keys_alike(&self, one: Row, others: &[u32], cosines: &mut [f32]);

    /// The same for values.
    fn values_alike(&self, one: Row, others: &[u32], cosines: &mut [f32]);
}

/// One KV head of a method that also merges during decode.
pub trait ClassHead: Send {
    /// Decides which class is merged or evicted after a token. Must not allocate.
    fn step(&mut self, step: &ClassStep<'_>) -> ClassChange;

    /// Saves or restores the statistics collected so far.
    fn snapshot(&mut self, through: &mut dyn Snapshot);
}

/// One KV head after one decode step. The new token is the last entry and a class of its own; attention included it.
#[derive(Clone, Copy)]
pub struct ClassStep<'a> {
    /// `[entries]`: position of each entry, ascending.
    pub positions: &'a [Pos],
    /// `[entries]`: row of each entry's class.
    pub classes: &'a [u32],
    /// `[rows]`: position of each class's centre. Rows that no entry reads contain stale values.
    pub centres: &'a [Pos],
    /// Keys and values of the classes, by row. The length of a key has no meaning.
    pub rows: &'a dyn ClassRows,
    /// Query heads of this KV head.
    pub group: usize,
    /// `[group, stride]`: probability of each entry at this step.
    pub probabilities: &'a [f32],
    /// Row stride of `probabilities`.
    pub stride: usize,
}

impl ClassStep<'_> {
    /// Writes the group's mean probability of every entry to `means`.
    pub fn mean(&self, means: &mut [f32]) {
        let share = 1.0 / self.group as f32;
        means.fill(0.0);
        for seen in self.probabilities.chunks(self.stride).take(self.group) {
            means
                .iter_mut()
                .zip(seen)
                .for_each(|(m, p)| *m += p * share);
        }
    }
}

/// The changes to a KV head after a step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ClassChange {
    /// The class whose row becomes free.
    pub removed_class: Option<Row>,
    /// The merge of that class; `None` evicts it with all of its entries.
    pub merged_into: Option<ClassMerge>,
    /// Index of the entry that is then removed from the table.
    pub removed_entry: Option<usize>,
}

/// A merge of two classes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClassMerge {
    /// The remaining class.
    pub row: Row,
    /// Weight of the remaining class.
    pub weight: f32,
    /// Weight of the removed class.
    pub removed_weight: f32,
}
