//! The class tables of a merging method: which tokens share which row.
//!
//! Entries are ordered by position, so an entry's index is its rank; removing one moves the later ones up. As
//! long as nothing was merged or dropped, entry i is row i and attention ignores the table, bit-identical to
//! the full cache. The decisions are in `policies/src/methods/ems_decode.rs`, the attention is in
//! `kernels/src/classes.rs`.
//!
//! ```text
//! rows       0  1  2  3  4         keys and values of classes; row 2 is a hole
//! entries    0  1  0  3  4         class (row) of each entry
//! norms      5. 1. 4. 1. 1.        factor on the class's key: 1 if the key is the token's own
//! ```

use kept_policies::{ClassChange, ClassTable, Pos, Snapshot};

use super::snapshot::snapshot_positions;

/// A layer's class tables.
pub(crate) struct Classes {
    /// Capacity per KV head, in entries.
    pub(super) capacity: usize,
    /// f32 values that the method keeps per entry.
    pub(super) elements: usize,
    /// `[kv_heads]`: entries in use.
    pub(super) entries: Vec<usize>,
    /// `[kv_heads, capacity]`: row of each entry's class.
    pub(super) classes: Vec<u32>,
    /// `[kv_heads, capacity]`: factor on the class's key.
    pub(super) norms: Vec<f32>,
    /// `[kv_heads, capacity]`: position of each entry.
    pub(super) positions: Vec<Pos>,
    /// `[slots]`: whether the key of a row is a mean of directions (unit norm) instead of a token's own
    /// key.
    pub(super) direction: Vec<bool>,
    /// Whether tokens were merged or dropped.
    pub(super) shared: bool,
    /// `[kv_heads]`, scratch: changes of each head after a token.
    pub(super) changes: Vec<ClassChange>,
}

impl Classes {
    /// Bytes of a layer's tables: `table.entries` per head for `kv_heads` heads, and a flag for each of
    /// `slots` rows.
    pub(crate) fn bytes_for(table: ClassTable, kv_heads: usize, slots: usize) -> u64 {
        let entry = 3 * size_of::<u32>() + table.elements * size_of::<f32>();
        (kv_heads * table.entries * entry + slots * size_of::<bool>()) as u64
    }

    /// Passes all mutable state to `through`.
    pub(crate) fn snapshot(&mut self, through: &mut dyn Snapshot) {
        for entries in &mut self.entries {
            through.count(entries, self.capacity);
        }
        through.words(&mut self.classes);
        through.floats(&mut self.norms);
        snapshot_positions(&mut self.positions, through);
        for flag in self.direction.iter_mut().chain([&mut self.shared]) {
            let mut set = [u8::from(*flag)];
            through.bytes(&mut set);
            *flag = set != [0];
        }
    }

    pub(super) fn push(&mut self, head: usize, class: u32, norm: f32, position: Pos) {
        let at = head * self.capacity + self.entries[head];
        self.classes[at] = class;
        self.norms[at] = norm;
        self.positions[at] = position;
        self.entries[head] += 1;
    }

    /// Drops the entries of `head` for which `stays` is false; the others keep their order.
    pub(super) fn retain(&mut self, head: usize, stays: impl Fn(usize, u32) -> bool) {
        let first = head * self.capacity;
        let mut left = 0;
        for entry in 0..self.entries[head] {
            if stays(entry, self.classes[first + entry]) {
                let (from, to) = (first + entry, first + left);
                self.classes[to] = self.classes[from];
                self.norms[to] = self.norms[from];
                self.positions[to] = self.positions[from];
                left += 1;
            }
        }
        self.entries[head] = left;
    }

    /// Drops one entry of `head`.
    pub(super) fn remove(&mut self, head: usize, entry: usize) {
        let first = head * self.capacity;
        let (at, end) = (first + entry, first + self.entries[head]);
        self.classes.copy_within(at + 1..end, at);
        self.norms.copy_within(at + 1..end, at);
        self.positions.copy_within(at + 1..end, at);
        self.entries[head] -= 1;
    }

    pub(super) fn positions_of(&self, head: usize) -> &[Pos] {
        &self.positions[head * self.capacity..][..self.entries[head]]
    }

    pub(super) fn classes_of(&self, head: usize) -> &[u32] {
        &self.classes[head * self.capacity..][..self.entries[head]]
    }
}
