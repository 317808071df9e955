//! Rows that trade places, move, are mixed and brought to length 1: what methods do to a cache while they merge and evict.

use super::RowStore;
use crate::row_length;

/// All that changes in a store while it is used; what is not here is as the store was made.
pub struct RowState<'a> {
    /// Rows in f32.
    pub floats: &'a mut [f32],
    /// Rows of any other type, head after head as they are stored.
    pub bytes: &'a mut [u8],
    /// The place of each row, and the row in each wide place, where rows trade places.
    pub places: [&'a mut [u32]; 2],
}

impl RowStore {
    /// The numbers of this store, to be written down, or to be put back into a store that was made in the same way.
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

    /// Exchanges the places of two rows of head `h` and leaves what lies there: each row then holds what the other held, in its own
    /// place.
    ///
    /// # Panics
    /// Where rows cannot trade places.
    pub fn swap_places(&mut self, h: usize, one: usize, other: usize) {
        let packed = self.packed.as_mut().expect("a packed store");
        packed.swap(self.first_rows[h], h, one, other);
    }

    /// Row `order[i]` of head `h` takes place `i`; those behind keep theirs. For a store that nothing was written to.
    ///
    /// # Panics
    /// Where rows cannot trade places.
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

    /// Rows of head `h` that lie in wide places, in no order, where rows trade places; else none.
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

    /// Row `wide` of head `h` goes into the place of row `narrow`, rounded as that place rounds, and leaves its own to it; what `narrow`
    /// held is gone. Allocates nothing.
    ///
    /// # Panics
    /// Where rows cannot trade places.
    pub fn trade(&mut self, h: usize, wide: usize, narrow: usize) {
        let (first, head_dim) = (self.first_rows[h], self.head_dim);
        let packed = self.packed.as_mut().expect("a packed store");
        let (kind, from) = packed.place(first, head_dim, h, wide);
        kind.read(&packed.bytes[from], &mut packed.turned);
        let (kind, to) = packed.place(first, head_dim, h, narrow);
        // Turned already, if rows of this store are.
        kind.write(&packed.turned, &mut packed.bytes[to]);
        packed.swap(first, h, wide, narrow);
    }

    /// Brings row `from` of head `h` to the number `to`; what `from` then holds is of no use. Allocates nothing.
    pub fn move_row(&mut self, h: usize, from: usize, to: usize) {
        let (first, head_dim) = (self.first_rows[h], self.head_dim);
        match &mut self.packed {
            Some(packed) if !packed.places.is_empty() => {
                packed.swap(first, h, from, to);
            }
            Some(packed) => {
                let (one, from) = packed.place(first, head_dim, h, from);
                let (other, to) = packed.place(first, head_dim, h, to);
                assert_eq!(one, other, "rows of one type, or rows that trade places");
                packed.bytes.copy_within(from, to.start);
            }
            None => {
                let from = from * head_dim..(from + 1) * head_dim;
                self.head_mut(h).copy_within(from, to * head_dim);
            }
        }
    }

    /// Makes row `to` of head `h` `keep` times itself and `add` times row `from`, rounded once as it is stored. Allocates nothing.
    pub fn mix_row(&mut self, h: usize, from: usize, to: usize, (keep, add): (f32, f32)) {
        let (first, head_dim) = (self.first_rows[h], self.head_dim);
        match &mut self.packed {
            Some(packed) => {
                // Sums of turned rows are turned sums.
                let (kind, from) = packed.place(first, head_dim, h, from);
                kind.read(&packed.bytes[from], &mut packed.turned);
                let (kind, to) = packed.place(first, head_dim, h, to);
                kind.read(&packed.bytes[to.clone()], &mut packed.other);
                for (sum, x) in packed.other.iter_mut().zip(&packed.turned) {
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

    /// Brings row `r` of head `h` to length 1, rounded once as it is stored, and gives the length it had. Allocates nothing.
    pub fn normalise_row(&mut self, h: usize, r: usize) -> f32 {
        let (first, head_dim) = (self.first_rows[h], self.head_dim);
        let unit = |row: &mut [f32]| {
            let length = row_length(row);
            row.iter_mut().for_each(|x| *x /= length);
            length
        };
        match &mut self.packed {
            Some(packed) => {
                // Turning keeps lengths.
                let (kind, place) = packed.place(first, head_dim, h, r);
                kind.read(&packed.bytes[place.clone()], &mut packed.other);
                let length = unit(&mut packed.other);
                kind.write(&packed.other, &mut packed.bytes[place]);
                length
            }
            None => unit(self.row_mut(h, r)),
        }
    }
}
