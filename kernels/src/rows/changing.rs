//! Swapping, moving, mixing and normalising rows: the operations of methods that merge and evict.

use super::RowStore;
use crate::row_length;

/// The mutable contents of a store; everything else is fixed when the store is created.
pub struct RowState<'a> {
    /// Rows of an f32 store.
    pub floats: &'a mut [f32],
    /// Rows of a packed store, head after head, in their storage types.
    pub bytes: &'a mut [u8],
    /// The place of each row, and the row in each wide place; empty unless rows can change places.
    pub places: [&'a mut [u32]; 2],
}

impl RowStore {
    /// The contents of this store, to be saved, or to be restored into a store with the same layout.
    pub fn state(&mut self) -> RowState<'_> {
        let floats = self.data.as_mut_slice();
        match &mut self.packed {
            None => RowState {
                floats,
                bytes: &mut [],
                places: [&mut [], &mut []],
            },
            Some(packed) => RowState {
                floats,
                bytes: &mut packed.bytes,
                places: [&mut packed.places, &mut packed.in_wide],
            },
        }
    }

    /// Swaps the places of two rows of head `h` without moving their numbers: each row then has the other's contents.
    ///
    /// # Panics
    /// If rows cannot change places.
    pub fn swap_places(&mut self, h: usize, one: usize, other: usize) {
        let packed = self.packed.as_mut().expect("a packed store");
        packed.swap(self.first_rows[h], h, one, other);
    }

    /// Assigns place `i` to row `order[i]` of head `h`; the rows after them keep their places. For a store that is
    /// still empty.
    ///
    /// # Panics
    /// If rows cannot change places.
    pub fn arrange(&mut self, h: usize, order: &[usize]) {
        let first = self.first_rows[h];
        let packed = self.packed.as_mut().expect("a packed store");
        for (place, &row) in order.iter().enumerate() {
            packed.places[first + row] = place as u32;
            if let Some(wide) = place.checked_sub(packed.narrow[h]) {
                packed.in_wide[packed.first_wide[h] + wide] = row as u32;
            }
        }
    }

    /// Rows of head `h` in wide places, in no particular order; none unless rows can change places.
    pub fn wide_rows(&self, h: usize) -> impl Iterator<Item = usize> + '_ {
        let packed = self
            .packed
            .as_ref()
            .filter(|packed| !packed.places.is_empty());
        let rows = packed.map_or(&[][..], |packed| {
            &packed.in_wide[packed.first_wide[h]..packed.first_wide[h + 1]]
        });
        rows.iter().map(|&row| row as usize)
    }

    /// Moves row `wide` of head `h` to the narrow place of row `narrow`, rounding it to that place's type, and assigns
    /// its old place to row `narrow`. The contents of `narrow` are lost. Allocates nothing.
    ///
    /// # Panics
    /// If rows cannot change places.
    pub fn trade(&mut self, h: usize, wide: usize, narrow: usize) {
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
    /// If the two rows have different storage types and rows cannot change places.
    pub fn move_row(&mut self, h: usize, from: usize, to: usize) {
        let (first, head_dim) = (self.first_rows[h], self.head_dim);
        match &mut self.packed {
            Some(packed) if !packed.places.is_empty() => {
                packed.swap(first, h, from, to);
            }
            Some(packed) => {
                let (one, from) = packed.locate(first, head_dim, h, from);
                let (other, to) = packed.locate(first, head_dim, h, to);
                assert_eq!(one, other, "rows of one type, or rows that trade places");
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

    /// Scales row `r` of head `h` to length 1, rounded once when stored, and returns its previous length. Allocates
    /// nothing.
    pub fn normalise_row(&mut self, h: usize, r: usize) -> f32 {
        let (first, head_dim) = (self.first_rows[h], self.head_dim);
        let unit = |row: &mut [f32]| {
            let length = row_length(row);
            row.iter_mut().for_each(|x| *x /= length);
            length
        };
        match &mut self.packed {
            Some(packed) => {
                // The Hadamard transform preserves lengths.
                let (kind, place) = packed.locate(first, head_dim, h, r);
                kind.read(&packed.bytes[place.clone()], &mut packed.other);
                let length = unit(&mut packed.other);
                kind.write(&packed.other, &mut packed.bytes[place]);
                length
            }
            None => unit(self.row_mut(h, r)),
        }
    }
}
