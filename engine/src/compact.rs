//! The compact KV cache: per layer and KV head the kept rows, each with its position, and free slots for the
//! answer.
//!
//! Sliding-window layers hold a ring of the last positions with every method: once the window is full, a new
//! token takes the slot of the oldest one.
//!
//! Rows are addressed by slot. An evicted row leaves a hole that the next token fills, so a single eviction
//! moves nothing. The order of rows is in `ranks` (for methods that re-assign positions) and in `positions`,
//! not in the slot number.
//!
//! ```text
//! slots      0  1  2  3  4         evict slot 2,      0  1  2  3  4
//! positions  0  1  4  5  6         append 7:          0  1  7  5  6
//! ranks      0  1  2  3  4                            0  1  4  2  3
//! ```

mod cache;
mod classes;
mod gather;
mod merging;
mod snapshot;
mod state;

use std::ops::Range;

use kept_kernels::{RecurrentState, RowStore};
use kept_policies::{DecodeValueMerge, Pos, Positions, Row};

pub use cache::CompactCache;
pub(crate) use classes::Classes;
pub(crate) use gather::RowStorage;
pub use gather::{F16_ROWS, Gather, RingGather, group_merges};
pub(crate) use snapshot::snapshot_rows;

/// A change of a method to a layer, for updating a copy of the layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// A row of a KV head.
    Row(usize, Row),
    /// Any rows.
    Rows,
    /// The class table.
    Table,
}

/// How a slot's row became wide (f16).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum F16Placement {
    /// No change: it was wide, or no wide row is available.
    Unchanged,
    /// It got a free wide physical row.
    FreeRow,
    /// The slot swapped physical rows with an old one, whose data was quantised from `wide` into `narrow`.
    Swapped {
        /// The physical row that the slot has now.
        wide: usize,
        /// The physical row that the old slot has now.
        narrow: usize,
    },
}

/// One layer's kept keys and values.
pub struct CompactLayer {
    /// Keys: after RoPE at original positions, or before RoPE if positions are re-assigned. Only the physical
    /// rows, without data, if the rows are on a GPU.
    pub keys: RowStore,
    /// Values, in the slots of `keys`.
    pub values: RowStore,
    /// `[kv_heads]`: filled slots, including a hole.
    pub rows: Vec<usize>,
    /// `[slots]`: position of each slot, head by head as in `keys` ([`RowStore::first_row`]).
    pub(crate) positions: Vec<Pos>,
    /// `[slots]`: rank of each slot among the live ones; empty if positions are original.
    pub ranks: Vec<u32>,
    /// `[kv_heads]`: the evicted slot that the next token will take.
    hole: Vec<Option<Row>>,
    /// `[kv_heads]`: the slot of the token that was appended last.
    pub(crate) newest: Vec<usize>,
    /// Which tokens share which row, if the method merges: a row is then a class with its centre's position.
    pub(crate) classes: Option<Classes>,
    /// Attention window in positions including the token's own, for a sliding-window layer.
    window: Option<usize>,
    /// For a recurrent layer, which has no rows; its window is 0, as in layers that attend to the rows of an earlier one.
    pub(crate) state: Option<Box<RecurrentState>>,
}

impl CompactLayer {
    /// A recurrent layer.
    pub(crate) fn recurrent(state: RecurrentState) -> Self {
        Self {
            state: Some(Box::new(state)),
            ..Self::without_rows()
        }
    }

    /// A layer without rows of its own.
    pub(crate) fn without_rows() -> Self {
        Self {
            window: Some(0),
            ..Self::unfilled(|| RowStore::uniform(0, 0, 1), Positions::Original)
        }
    }

    /// No rows yet, in stores made by `store`.
    fn unfilled(store: impl Fn() -> RowStore, positions: Positions) -> Self {
        let keys = store();
        let kv_heads = keys.kv_heads();
        let slots = keys.first_row(kv_heads);
        Self {
            keys,
            values: store(),
            rows: vec![0; kv_heads],
            positions: vec![Pos(0); slots],
            ranks: match positions {
                Positions::Original => Vec::new(),
                Positions::Reassigned => vec![0; slots],
            },
            hole: vec![None; kv_heads],
            newest: vec![0; kv_heads],
            classes: None,
            window: None,
            state: None,
        }
    }

    /// Attention window in positions including the token's own; `None` for a layer that attends to all kept
    /// rows.
    pub fn window(&self) -> Option<usize> {
        self.window
    }

    /// Replaces positions that are ranks in `positions` (ascending) by the positions themselves.
    pub(crate) fn map_positions(&mut self, positions: &[u32]) {
        for head in 0..self.rows.len() {
            let first = self.keys.first_row(head);
            for position in &mut self.positions[first..first + self.rows[head]] {
                *position = Pos(positions[position.0 as usize]);
            }
        }
    }

    /// Number of rows that hold a token, in one KV head.
    pub fn live_rows(&self, head: usize) -> usize {
        self.rows[head] - usize::from(self.hole[head].is_some())
    }

    /// Positions of the filled slots of one KV head, including a hole.
    pub(crate) fn positions_of(&self, head: usize) -> &[Pos] {
        &self.positions[self.keys.first_row(head)..][..self.rows[head]]
    }

    /// Positions of the live rows of one KV head, ascending; for a class, its centre's position.
    pub fn kept(&self, head: usize) -> Vec<Pos> {
        let slots = self.positions_of(head);
        let hole = self.hole[head].map(|row| row.0 as usize);
        let mut kept: Vec<Pos> = slots
            .iter()
            .enumerate()
            .filter(|(slot, _)| Some(*slot) != hole)
            .map(|(_, position)| *position)
            .collect();
        kept.sort_unstable();
        kept
    }

    /// For each of the prompt's `positions`, the number of KV heads that keep it (255 at most), merged or
    /// not.
    pub fn counts(&self, positions: Range<usize>) -> Vec<u8> {
        let masks = self.masks(positions);
        let heads = |mask: &[u8]| mask.iter().map(|byte| byte.count_ones()).sum::<u32>();
        (masks.chunks(self.mask_bytes()))
            .map(|mask| heads(mask).min(255) as u8)
            .collect()
    }

    fn mask_bytes(&self) -> usize {
        self.rows.len().div_ceil(8).max(1)
    }

    /// For each of the prompt's `positions`, which KV heads keep it, merged or not: `[positions][kv_heads / 8 rounded
    /// up]`, bit `h % 8` of byte `h / 8` for head `h`.
    pub fn masks(&self, positions: Range<usize>) -> Vec<u8> {
        let bytes = self.mask_bytes();
        let mut masks = vec![0u8; positions.len() * bytes];
        for head in 0..self.rows.len() {
            for (position, _) in self.entries(head) {
                let position = position.0 as usize;
                if positions.contains(&position) {
                    masks[(position - positions.start) * bytes + head / 8] |= 1 << (head % 8);
                }
            }
        }
        masks
    }

    /// Number of KV heads.
    pub fn kv_heads(&self) -> usize {
        self.rows.len()
    }

    /// The slot that the next token takes, in a layer without a sliding window.
    pub(crate) fn next_slot(&self, head: usize) -> usize {
        self.hole[head].map_or(self.rows[head], |row| row.0 as usize)
    }

    /// Filled slots of one KV head that hold a token.
    pub(crate) fn live_slots(&self, head: usize) -> impl Iterator<Item = usize> + '_ {
        let hole = self.hole[head].map(|row| row.0 as usize);
        (0..self.rows[head]).filter(move |&slot| Some(slot) != hole)
    }

    /// Copies the rows or entries that take part in the attention of one KV head, by rank, to the first rows
    /// of the only head of `keys` and `values`. Keys are copied as stored, an entry's key scaled to its
    /// length. Returns their number. For layers with re-assigned positions.
    pub(crate) fn copy_ranked(
        &self,
        head: usize,
        keys: &mut RowStore,
        values: &mut RowStore,
    ) -> usize {
        if self.classes.is_some() {
            return self.copy_entries(head, keys, values);
        }
        let ranks = &self.ranks[self.keys.first_row(head)..];
        for slot in self.live_slots(head) {
            let rank = ranks[slot] as usize;
            self.keys.read(head, slot, keys.row_mut(0, rank));
            self.values.read(head, slot, values.row_mut(0, rank));
        }
        self.live_rows(head)
    }

    /// Copies the ranks of one KV head's live slots to `ranks [slots]`; holes keep their values.
    pub(crate) fn copy_ranks(&self, head: usize, ranks: &mut [u32]) {
        let own = &self.ranks[self.keys.first_row(head)..];
        for slot in self.live_slots(head) {
            ranks[slot] = own[slot];
        }
    }

    /// Adds one token's `key` and `value` (`[kv_heads, head_dim]`) in the hole or at the end. Afterwards, no
    /// head has a hole.
    pub fn append(&mut self, key: &[f32], value: &[f32], position: Pos) {
        let dim = self.keys.head_dim();
        for head in 0..self.rows.len() {
            let slot = self.assign_slot(head, position);
            let own = head * dim..(head + 1) * dim;
            self.store_as_f16(head, slot);
            self.write(head, slot, &key[own.clone()], &value[own]);
        }
    }

    /// Assigns a slot of one KV head to the token at `position`, without writing its row.
    pub fn assign_slot(&mut self, head: usize, position: Pos) -> usize {
        let live = self.live_rows(head);
        let first = self.keys.first_row(head);
        let slot = match (self.hole[head].take(), self.window) {
            (Some(row), _) => row.0 as usize,
            // Slot i holds the positions that differ from the first slot's position by i, modulo the window.
            (None, Some(window)) => (position.0 - self.positions[first].0) as usize % window,
            (None, None) => self.rows[head],
        };
        self.newest[head] = slot;
        self.rows[head] = self.rows[head].max(slot + 1);
        self.positions[first + slot] = position;
        if !self.ranks.is_empty() {
            self.ranks[first + slot] = live as u32;
        }
        self.add_entry(head, slot, position);
        slot
    }

    /// Replaces a row.
    pub fn write(&mut self, head: usize, slot: usize, key: &[f32], value: &[f32]) {
        self.keys.write(head, slot, key);
        self.values.write(head, slot, value);
    }

    /// Gives a slot whose physical row is narrow (quantised) a wide (f16) one, so that the newest rows are f16 in a
    /// quantised cache whose rows are replaced. The wide row is a free one, or that of the oldest slot that has one and
    /// is not among the first tokens; that slot is quantised now.
    pub fn store_as_f16(&mut self, head: usize, slot: usize) -> F16Placement {
        if !self.keys.is_narrow(head, slot) {
            return F16Placement::Unchanged;
        }
        let held = self.rows[head];
        let free = self.keys.f16_slots(head).find(|&row| row >= held);
        if let Some(free) = free {
            self.keys.swap_physical_rows(head, slot, free);
            self.values.swap_physical_rows(head, slot, free);
            return F16Placement::FreeRow;
        }
        let positions = self.positions_of(head);
        let f16_slots = self.keys.f16_slots(head);
        let candidates = f16_slots.filter(|&slot| !gather::is_first(positions[slot]));
        let oldest = candidates.min_by_key(|&slot| positions[slot]);
        let Some(oldest) = oldest else {
            return F16Placement::Unchanged;
        };
        let [wide, narrow] = [oldest, slot].map(|row| self.keys.physical_row(head, row));
        self.keys.quantise_and_swap(head, oldest, slot);
        self.values.quantise_and_swap(head, oldest, slot);
        F16Placement::Swapped { wide, narrow }
    }

    /// Empties the slot that `evict` names in each KV head; the next `append` fills it.
    pub(crate) fn evict(&mut self, evict: &[Option<Row>]) {
        for (head, row) in evict.iter().enumerate() {
            let Some(row) = *row else { continue };
            debug_assert!(self.hole[head].is_none(), "one eviction per head and step");
            self.hole[head] = Some(row);
            if !self.ranks.is_empty() {
                let ranks = &mut self.ranks[self.keys.first_row(head)..][..self.rows[head]];
                let gone = ranks[row.0 as usize];
                for rank in ranks {
                    if *rank > gone {
                        *rank -= 1;
                    }
                }
            }
        }
    }

    /// Empties every slot whose flag in `keep` (laid out as `positions`) is unset; the others move together
    /// in their order.
    pub(crate) fn evict_many(&mut self, keep: &[bool]) {
        for head in 0..self.rows.len() {
            let first = self.keys.first_row(head);
            let hole = self.hole[head].take().map(|row| row.0 as usize);
            let mut next = 0;
            for slot in 0..self.rows[head] {
                if !keep[first + slot] || hole == Some(slot) {
                    continue;
                }
                self.keys.move_row(head, slot, next);
                self.values.move_row(head, slot, next);
                self.positions[first + next] = self.positions[first + slot];
                next += 1;
            }
            self.rows[head] = next;
            if !self.ranks.is_empty() {
                let positions = &self.positions[first..first + next];
                for (rank, own) in self.ranks[first..].iter_mut().zip(positions) {
                    *rank = positions.iter().filter(|p| *p < own).count() as u32;
                }
            }
        }
    }

    /// Adds the values of slots that are about to be evicted to kept ones; call before the eviction.
    pub(crate) fn merge_values(&mut self, merges: &[DecodeValueMerge]) {
        for merge in merges {
            let (from, to) = (merge.from.0 as usize, merge.to.0 as usize);
            self.values.mix_row(merge.head, from, to, 1.0, merge.weight);
        }
    }

    /// Empties the row of a class that was merged or evicted; the next `append` fills it.
    pub(crate) fn free_row(&mut self, head: usize, row: Row) {
        debug_assert!(self.hole[head].is_none(), "one class per head and step");
        self.hole[head] = Some(row);
    }

    /// Bytes of the live rows' keys and values.
    pub(crate) fn live_bytes(&self) -> u64 {
        let heads = (0..self.rows.len()).map(|head| {
            let bytes = |store: &RowStore| {
                let hole = self.hole[head].map(|row| store.bytes_of_row(head, row.0 as usize));
                store.bytes_of_rows(head, self.rows[head]) - hole.unwrap_or(0)
            };
            bytes(&self.keys) + bytes(&self.values)
        });
        heads.sum::<usize>() as u64 + self.state_bytes()
    }

    /// Bytes of a recurrent layer's state.
    fn state_bytes(&self) -> u64 {
        self.state.as_ref().map_or(0, |state| state.bytes())
    }

    /// Bytes allocated on host and device: rows with free slots for the answer, positions and ranks.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        (self.keys.bytes() + self.values.bytes()) as u64
            + self.bytes_elsewhere()
            + self.state_bytes()
            + ((self.positions.len() + self.ranks.len()) * size_of::<u32>()) as u64
    }

    /// The part of [`CompactLayer::allocated_bytes`] for rows that are on a GPU only.
    pub(crate) fn bytes_elsewhere(&self) -> u64 {
        (self.keys.bytes_elsewhere() + self.values.bytes_elsewhere()) as u64
    }
}

#[cfg(test)]
mod tests;
