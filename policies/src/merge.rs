//! The contract for methods that merge: several tokens share one row (a class), a look-up table says which.
//!
//! Not here: any decision (`ems.rs`), and the merging of keys and values itself, which the engine does.
//!
//! ```text
//! entries   position  0  1  4  5  7 | 8  9        one per token that still takes part in attention, in order of position
//!           class     0  1  0  2  1 | 3  4        the row it reads: 0 and 4 share one, so do 1 and 7
//! classes   centre    0  1     5    | 8  9        one row each: a direction of keys and a value
//! ```
//!
//! An entry's key is its class's direction times the length of its own key. There is no row for what was dropped.

use crate::{Pos, Row, Snapshot};

/// The look-up table that a merging method asks for, per kv head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassTable {
    /// The most entries between two steps of the answer.
    pub entries: usize,
    /// f32 numbers that the method itself keeps per entry.
    pub numbers: usize,
}

/// A token that takes part in attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Entry {
    /// Its place in the text.
    pub pos: Pos,
    /// Its class, an index into [`MergedHead::centres`].
    pub class: u32,
    /// Its weight in the merged key and value.
    pub weight: f32,
}

/// What one kv head keeps of the prompt.
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

/// The rows of one kv head's classes, as they are stored.
pub trait ClassRows {
    /// Cosine of a class's key with the key of each of the rows `others`, written to `cosines`; 0 where a key has no length.
    fn keys_alike(&self, one: Row, others: &[u32], cosines: &mut [f32]);

    /// The same of values.
    fn values_alike(&self, one: Row, others: &[u32], cosines: &mut [f32]);
}

/// One kv head of a method that goes on merging while it answers.
pub trait ClassHead: Send {
    /// Which class goes where after a token. Must not allocate.
    fn step(&mut self, step: &ClassStep<'_>) -> ClassChange;

    /// Shows the numbers that it has counted so far.
    fn snapshot(&mut self, through: &mut dyn Snapshot);
}

/// One kv head after one decode step: the new token is the last entry, a class of its own, and was attended to.
#[derive(Clone, Copy)]
pub struct ClassStep<'a> {
    /// `[entries]`: position of each entry, ascending.
    pub positions: &'a [Pos],
    /// `[entries]`: row of each entry's class.
    pub classes: &'a [u32],
    /// `[rows]`: position of each class's centre; rows that no entry reads hold what was there before.
    pub centres: &'a [Pos],
    /// Keys and values of the classes, by row; the length of a key means nothing.
    pub rows: &'a dyn ClassRows,
    /// Query heads of this kv head.
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

/// What a kv head changes after a step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ClassChange {
    /// The class whose row becomes free.
    pub gone: Option<Row>,
    /// Where it goes; `None` drops it with all of its entries.
    pub into: Option<Union>,
    /// The entry that leaves the table after that, by index.
    pub dropped: Option<usize>,
}

/// Two classes that become one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Union {
    /// The class that stays.
    pub row: Row,
    /// Weight of the class that stays.
    pub weight: f32,
    /// Weight of the class that goes.
    pub gone_weight: f32,
}
