//! The compact cache: per layer and kv head the kept rows, each with its position, and room for the answer.
//!
//! Layers that attend to the last positions only hold a ring of them, whatever the method: a new token takes the oldest one's
//! slot once the window is full.
//!
//! Rows are slots. An evicted row leaves a hole that the next token fills, so nothing is ever moved; order lives in `ranks`
//! (for methods that re-assign positions) and in `positions`, never in the slot number.
//!
//! ```text
//! slots      0  1  2  3  4         evict slot 2,      0  1  2  3  4
//! positions  0  1  4  5  6         append 7:          0  1  7  5  6
//! ranks      0  1  2  3  4                            0  1  4  2  3
//! ```

mod cache;
mod gather;
mod state;

use std::ops::Range;

use kept_kernels::{CacheType, RowStore};
use kept_policies::{DecodeValueMerge, Pos, Positions, Retention, Row};

use crate::classes::Classes;

pub use cache::CompactCache;
pub(crate) use gather::{EXACT, Gather, Stored, together};
pub(crate) use state::{snapshot_positions, snapshot_rows};

/// What a method has changed in a layer, for whoever has a copy of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Changed {
    /// A row of a kv head.
    Row(usize, Row),
    /// Any rows.
    Rows,
    /// The look-up table.
    Table,
}

/// What it took that a slot lies in a wide place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Widened {
    /// Nothing: it lies in one, or there is none to be had.
    No,
    /// A free one.
    Free,
    /// The row in place `wide` went to the slot's, `narrow`.
    Traded { wide: usize, narrow: usize },
}

/// One layer's kept keys and values.
pub struct CompactLayer {
    /// Keys: after RoPE at original positions, or before RoPE where positions are re-assigned. Their places alone, where the rows lie on a
    /// GPU.
    pub(crate) keys: RowStore,
    pub(crate) values: RowStore,
    /// `[kv_heads]`: filled slots, a hole included.
    pub(crate) rows: Vec<usize>,
    /// `[slots]`: position of each slot, head after head as in `keys` ([`RowStore::first_row`]).
    pub(crate) positions: Vec<Pos>,
    /// `[slots]`: order of each slot among the live ones; empty where positions are original.
    pub(crate) ranks: Vec<u32>,
    /// `[kv_heads]`: the slot that was evicted and waits for the next token.
    hole: Vec<Option<Row>>,
    /// Which tokens share which row, where the method merges: a row is then a class, and its position its centre's.
    pub(crate) classes: Option<Classes>,
    /// Positions that a token of this layer attends to, its own included, where these are the last ones only.
    window: Option<usize>,
}

impl CompactLayer {
    /// Copies what `retention` keeps of a layer's full `keys` and `values` (`tokens` rows each), as it is computed, with room for
    /// `capacities[h]` rows in kv head h.
    pub fn gather(
        keys: &RowStore,
        values: &RowStore,
        tokens: usize,
        retention: &Retention,
        capacities: &[usize],
        positions: Positions,
    ) -> Self {
        let gather = Gather {
            keys,
            values,
            tokens,
            retention,
            capacities,
            positions,
            stored: Stored::F32,
            places: None,
            unrotate: None,
            value_merges: &[],
            left: None,
            merged: false,
        };
        gather.layer(&mut Vec::new())
    }

    /// The ring of a layer that attends to the last `window` positions only: of a layer's full `keys` and `values` (`tokens` rows
    /// each) the last ones, with room for `new_tokens` more tokens as far as the window has any. Its rows are replaced all the time: where the
    /// cache's type is a quantised one they are f16. `gathered` as in [`Gather::layer`].
    pub(crate) fn ring(
        rows: (&RowStore, &RowStore),
        tokens: usize,
        window: usize,
        new_tokens: usize,
        cache: CacheType,
        gathered: &mut Vec<f32>,
    ) -> Self {
        Self::ring_of(rows, tokens, (window, new_tokens), cache, |gather| {
            gather.layer(gathered)
        })
    }

    /// The same without its rows, as [`Gather::slot_table`] has it.
    pub(crate) fn ring_slots(
        rows: (&RowStore, &RowStore),
        tokens: usize,
        (window, new_tokens): (usize, usize),
        cache: CacheType,
        slots: &mut Vec<Vec<u32>>,
    ) -> Self {
        Self::ring_of(rows, tokens, (window, new_tokens), cache, |gather| {
            gather.slot_table(slots)
        })
    }

    fn ring_of(
        (keys, values): (&RowStore, &RowStore),
        tokens: usize,
        (window, new_tokens): (usize, usize),
        cache: CacheType,
        layer: impl FnOnce(&Gather<'_>) -> Self,
    ) -> Self {
        let first = tokens.saturating_sub(window) as u32;
        let last: Vec<Pos> = (first..tokens as u32).map(Pos).collect();
        let kv_heads = keys.kv_heads();
        let capacity = window.min(tokens + new_tokens);
        let gather = Gather {
            keys,
            values,
            tokens,
            retention: &Retention::Keep(vec![last; kv_heads]),
            capacities: &vec![capacity; kv_heads],
            positions: Positions::Original,
            stored: Stored {
                kind: cache.wide(),
                ..Stored::F32
            },
            places: None,
            unrotate: None,
            value_merges: &[],
            left: None,
            merged: false,
        };
        Self {
            window: Some(window),
            ..layer(&gather)
        }
    }

    /// Positions that a token of this layer attends to, its own included; `None` where these are all that are kept.
    pub fn window(&self) -> Option<usize> {
        self.window
    }

    /// The rows were gathered by their ranks in `positions` (ascending): from now on they stand there.
    pub(crate) fn place(&mut self, positions: &[u32]) {
        for head in 0..self.rows.len() {
            let first = self.keys.first_row(head);
            for position in &mut self.positions[first..first + self.rows[head]] {
                *position = Pos(positions[position.0 as usize]);
            }
        }
    }

    /// Rows that hold a token, per kv head.
    pub fn live_rows(&self, head: usize) -> usize {
        self.rows[head] - usize::from(self.hole[head].is_some())
    }

    /// Positions of the filled slots of one kv head, a hole included.
    pub(crate) fn positions_of(&self, head: usize) -> &[Pos] {
        &self.positions[self.keys.first_row(head)..][..self.rows[head]]
    }

    /// Positions of the live rows of one kv head, ascending; of a row that tokens share its class's centre.
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

    /// For each of the prompt's `positions`, how many kv heads keep it (255 at most), merged or alone.
    pub fn counts(&self, positions: Range<usize>) -> Vec<u8> {
        let mut counts = vec![0u8; positions.len()];
        for head in 0..self.rows.len() {
            for (position, _) in self.entries(head) {
                let position = position.0 as usize;
                if positions.contains(&position) {
                    let count = &mut counts[position - positions.start];
                    *count = count.saturating_add(1);
                }
            }
        }
        counts
    }

    /// Key/value heads.
    pub fn kv_heads(&self) -> usize {
        self.rows.len()
    }

    /// The slot that the next token takes, in a layer without a window.
    pub(crate) fn next_slot(&self, head: usize) -> usize {
        self.hole[head].map_or(self.rows[head], |row| row.0 as usize)
    }

    /// Filled slots of one kv head that hold a token.
    pub(crate) fn live_slots(&self, head: usize) -> impl Iterator<Item = usize> + '_ {
        let hole = self.hole[head].map(|row| row.0 as usize);
        (0..self.rows[head]).filter(move |&slot| Some(slot) != hole)
    }

    /// Copies what takes part in the attention of one kv head, by rank, to the first rows of a store's only head; keys as they are
    /// stored, an entry's at its own length. Gives their number. For layers whose positions are re-assigned.
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

    /// `ranks [slots]` of one kv head, those of holes left as they were.
    pub(crate) fn ranks_into(&self, head: usize, ranks: &mut [u32]) {
        let own = &self.ranks[self.keys.first_row(head)..];
        for slot in self.live_slots(head) {
            ranks[slot] = own[slot];
        }
    }

    /// Adds one token's `key` and `value` (`[kv_heads, head_dim]`), in the hole or at the end. Afterwards no head has a hole.
    pub fn append(&mut self, key: &[f32], value: &[f32], position: Pos) {
        let dim = self.keys.head_dim();
        for head in 0..self.rows.len() {
            let slot = self.evict_oldest(head, position);
            let own = head * dim..(head + 1) * dim;
            self.make_wide(head, slot);
            self.write(head, slot, &key[own.clone()], &value[own]);
        }
    }

    /// The books' part of `append`, for one kv head: the slot that the token at `position` takes.
    pub(crate) fn evict_oldest(&mut self, head: usize, position: Pos) -> usize {
        let live = self.live_rows(head);
        let first = self.keys.first_row(head);
        let slot = match (self.hole[head].take(), self.window) {
            (Some(row), _) => row.0 as usize,
            // Slot i holds the positions that are i more than the first one's, up to multiples of the window.
            (None, Some(window)) => (position.0 - self.positions[first].0) as usize % window,
            (None, None) => self.rows[head],
        };
        self.rows[head] = self.rows[head].max(slot + 1);
        self.positions[first + slot] = position;
        if !self.ranks.is_empty() {
            self.ranks[first + slot] = live as u32;
        }
        self.enter(head, slot, position);
        slot
    }

    /// Replaces a row.
    pub(crate) fn write(&mut self, head: usize, slot: usize, key: &[f32], value: &[f32]) {
        self.keys.write(head, slot, key);
        self.values.write(head, slot, value);
    }

    /// Where rows are replaced in a cache of a quantised type, the newest stay f16: a slot that lies in a narrow place gets a wide one,
    /// which is free, or from the oldest row that has one and is none of the first tokens; that row is rounded now.
    pub(crate) fn make_wide(&mut self, head: usize, slot: usize) -> Widened {
        if !self.keys.is_narrow(head, slot) {
            return Widened::No;
        }
        let held = self.rows[head];
        let free = self.keys.wide_rows(head).find(|&row| row >= held);
        if let Some(free) = free {
            self.keys.swap_places(head, slot, free);
            self.values.swap_places(head, slot, free);
            return Widened::Free;
        }
        let positions = self.positions_of(head);
        let aged = self.keys.wide_rows(head);
        let aged = aged.filter(|&row| !gather::is_first(positions[row]));
        let oldest = aged.min_by_key(|&row| positions[row]);
        let Some(oldest) = oldest else {
            return Widened::No;
        };
        let [wide, narrow] = [oldest, slot].map(|row| self.keys.place(head, row));
        self.keys.trade(head, oldest, slot);
        self.values.trade(head, oldest, slot);
        Widened::Traded { wide, narrow }
    }

    /// Empties one slot per kv head where `evict` names one; the next `append` fills it.
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

    /// Empties every slot whose flag in `keep` (laid out as `positions`) is not set; the others close up in their order.
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

    /// Adds what slots that are given up leave behind; before they are emptied.
    pub(crate) fn spill(&mut self, decode_value_merges: &[DecodeValueMerge]) {
        for spill in decode_value_merges {
            let (from, to) = (spill.from.0 as usize, spill.to.0 as usize);
            self.values
                .mix_row(spill.head, from, to, (1.0, spill.weight));
        }
    }

    /// Empties the row of a class that is gone; the next `append` fills it.
    pub(crate) fn leave(&mut self, head: usize, row: Row) {
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
        heads.sum::<usize>() as u64
    }

    /// Bytes allocated: rows with their room for the answer, wherever they lie, positions and ranks.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        (self.keys.bytes() + self.values.bytes()) as u64
            + self.bytes_elsewhere()
            + ((self.positions.len() + self.ranks.len()) * size_of::<u32>()) as u64
    }

    /// Of these the rows', where they lie on a GPU alone.
    pub(crate) fn bytes_elsewhere(&self) -> u64 {
        (self.keys.bytes_elsewhere() + self.values.bytes_elsewhere()) as u64
    }
}

#[cfg(test)]
mod tests;
