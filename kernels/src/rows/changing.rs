//! Swapping, moving, mixing and normalising rows: the operations of methods that merge and evict.

use super::RowStore;
use crate::row_norm;

/// The mutable contents of a store; everything else is fixed when the store is created.
pub struct RowState<'a> {
    /// Rows of an f32 store.
    pub floats: &'a mut [f32],
    /// Rows of a packed store, head after head, in their storage types.
    pub bytes: &'a mut [u8],
    /// The physical row of each slot, and the slot of each wide physical row; empty unless slots can swap theirs.
    pub row_maps: [&'a mut [u32]; 2],
}

impl RowStore {
    /// The contents of this store, to be saved, or to be restored into a store with the same layout.
    pub fn state(&mut self) -> RowState<'_> {
        let floats = self.data.as_mut_slice();
        match &mut self.packed {
            None => RowState {
                floats,
                bytes: &mut [],
                row_maps: [&mut [], &mut []],
            },
            Some(packed) => RowState {
                floats,
                bytes: &mut packed.bytes,
                row_maps: [&mut packed.physical_rows, &mut packed.f16_slots],
            },
        }
    }

    /// Swaps the physical rows of two slots of head `h` without moving data: each slot then has the other's contents.
    ///
    /// # Panics
    /// If slots cannot swap physical rows.
    pub fn swap_physical_rows(&mut self, h: usize, one: usize, other: usize) {
        let packed = self.packed.as_mut().expect("a packed store");
        packed.swap(self.first_rows[h], h, one, other);
    }

    /// Assigns physical row `i` to slot `order[i]` of head `h`; the slots after them keep theirs. For a store that is
    /// still empty.
    ///
    /// # Panics
    /// If slots cannot swap physical rows.
    pub fn assign_physical_rows(&mut self, h: usize, order: &[usize]) {
        let first = self.first_rows[h];
        let packed = self.packed.as_mut().expect("a packed store");
        for (physical_row, &slot) in order.iter().enumerate() {
            packed.physical_rows[first + slot] = physical_row as u32;
            if let Some(wide) = physical_row.checked_sub(packed.narrow[h]) {
                packed.f16_slots[packed.first_wide[h] + wide] = slot as u32;
            }
        }
    }

    /// Slots of head `h` with wide (f16) rows, in no particular order; none unless slots can swap physical rows.
    pub fn f16_slots(&self, h: usize) -> impl Iterator<Item = usize> + '_ {
        let packed = self
            .packed
            .as_ref()
            .filter(|packed| !packed.physical_rows.is_empty());
        let slots = packed.map_or(&[][..], |packed| {
            &packed.f16_slots[packed.first_wide[h]..packed.first_wide[h + 1]]
        });
        slots.iter().map(|&slot| slot as usize)
    }

    /// Quantises slot `wide` of head `h` into the narrow physical row of slot `narrow`, which gets the wide one in
    /// exchange. The contents of `narrow` are lost. Allocates nothing.
    ///
    /// # Panics
    /// If slots cannot swap physical rows.
    pub fn quantise_and_swap(&mut self, h: usize, wide: usize, narrow: usize) {
        let (first, head_dim) = (self.first_rows[h], self.head_dim);
        let packed = self.packed.as_mut().expect("a packed store");
        let (kind, from) = packed.locate(first, head_dim, h, wide);
        kind.read(&packed.bytes[from], &mut packed.transformed);
        let (kind, to) = packed.locate(first, head_dim, h, narrow);
        // Both rows are already Hadamard-transformed, if rows of this store are.
        kind.write(&packed.transformed, &mut packed.bytes[to]);
        packed.swap(first, h, wide, narrow);
    }

    /// Moves the contents of row `from` of head `h` to row `to`; the contents of `from` are then unspecified. Allocates
    /// nothing.
    ///
    /// # Panics
    /// If the two rows have different storage types and slots cannot swap physical rows.
    pub fn move_row(&mut self, h: usize, from: usize, to: usize) {
        let (first, head_dim) = (self.first_rows[h], self.head_dim);
        match &mut self.packed {
            Some(packed) if !packed.physical_rows.is_empty() => {
                packed.swap(first, h, from, to);
            }
            Some(packed) => {
                let (one, from) = packed.locate(first, head_dim, h, from);
                let (other, to) = packed.locate(first, head_dim, h, to);
                assert_eq!(
                    one, other,
                    "rows of one type, or slots that swap physical rows"
                );
                packed.bytes.copy_within(from, to.start);
            }
            None => {
                let from = from * head_dim..(from + 1) * head_dim;
                self.head_mut(h).copy_within(from, to * head_dim);
            }
        }
    }

    /// Replaces row `to` of head `h` by `keep` times itself plus `add` times row `from`, rounded once when stored.
    /// Allocates nothing.
    pub fn mix_row(&mut self, h: usize, from: usize, to: usize, keep: f32, add: f32) {
        let (first, head_dim) = (self.first_rows[h], self.head_dim);
        match &mut self.packed {
            Some(packed) => {
                // The Hadamard transform is linear, so transformed rows can be mixed directly.
                let (kind, from) = packed.locate(first, head_dim, h, from);
                kind.read(&packed.bytes[from], &mut packed.transformed);
                let (kind, to) = packed.locate(first, head_dim, h, to);
                kind.read(&packed.bytes[to.clone()], &mut packed.other);
                for (sum, x) in packed.other.iter_mut().zip(&packed.transformed) {
                    *sum = keep * *sum + add * x;
                }
                kind.write(&packed.other, &mut packed.bytes[to]);
            }
            None => {
                let (from, to) = (from * head_dim, to * head_dim);
                let rows = self.head_mut(h);
                for i in 0..head_dim {
                    rows[to + i] = keep * rows[to + i] + add * rows[from + i];
                }
            }
        }
    }

    /// Scales row `r` of head `h` to norm 1, rounded once when stored, and returns its previous norm. Allocates
    /// nothing.
    pub fn normalise_row(&mut self, h: usize, r: usize) -> f32 {
        let (first, head_dim) = (self.first_rows[h], self.head_dim);
        let unit = |row: &mut [f32]| {
            let norm = row_norm(row);
            row.iter_mut().for_each(|x| *x /= norm);
            norm
        };
        match &mut self.packed {
            Some(packed) => {
                // The Hadamard transform preserves norms.
                let (kind, range) = packed.locate(first, head_dim, h, r);
                kind.read(&packed.bytes[range.clone()], &mut packed.other);
                let norm = unit(&mut packed.other);
                kind.write(&packed.other, &mut packed.bytes[range]);
                norm
            }
            None => unit(self.row_mut(h, r)),
        }
    }
}
