//! `RowStore`: the keys or the values of one layer, one run of rows per KV head; f32, or packed as a [`CacheType`].
//!
//! A row index is a slot of the cache. The caller maps slots to positions in the text and tracks how many rows are
//! valid: the store has capacities, not lengths.
//!
//! ```text
//! 2 kv heads, capacities [3, 2], head_dim 4          first_row(0) = 0, first_row(1) = 3
//!
//!   head 0 | row 0: a a a a | row 1: b b b b | row 2: c c c c
//!   head 1 | row 0: d d d d | row 1: e e e e |
//! ```
//!
//! A packed store ([`RowStore::stored`]) holds bytes. If its [`CacheType`] is quantised, the first `narrow` physical
//! rows of each head are of that type and the others are f16 (wide). Rows are read and written one at a time, and each
//! is rounded on its own.
//!
//! A physical row is where a slot's data lies. In a store built with `replaced` it may differ from the slot:
//! [`RowStore::quantise_and_swap`] quantises a slot's data into a narrow physical row, and gives the wide one to
//! another slot. [`RowStore::without_data`] builds a store that tracks physical rows only; the data are stored
//! elsewhere, for example in GPU memory.

mod changing;
mod constructors;
mod cosine;

use std::ops::Range;

use crate::CacheType;
use crate::cache_type::hadamard;

pub use changing::RowState;

/// Keys or values of one layer, kv-head-major: head `h` holds `capacity(h)` rows of `head_dim` f32 in one allocation.
/// Heads may have different capacities (ragged).
#[derive(Clone, Debug)]
pub struct RowStore {
    /// All rows of all heads, `[rows of all heads, head_dim]`; empty in a packed store.
    data: Vec<f32>,
    packed: Option<Packed>,
    head_dim: usize,
    /// `first_rows[h]..first_rows[h + 1]` are the rows of head `h`, counted over all heads. `[kv_heads + 1]`
    first_rows: Vec<usize>,
}

/// Most rows of a [`Run`].
pub(crate) const RUN: usize = 64;

/// Consecutive rows of the same storage type.
pub(crate) struct Run {
    pub kind: CacheType,
    /// At least 1, unless the requested range was empty.
    pub rows: usize,
    /// Start of each of the first `rows` rows; valid until the store changes.
    starts: [*const u8; RUN],
}

impl Run {
    /// `[rows]`
    #[inline(always)]
    pub fn starts(&self) -> &[*const u8] {
        &self.starts[..self.rows]
    }
}

/// Packed rows.
#[derive(Clone, Debug)]
struct Packed {
    kind: CacheType,
    /// Empty if the numbers are stored elsewhere.
    bytes: Vec<u8>,
    /// Bytes of all rows, even if stored elsewhere.
    row_bytes: usize,
    /// `[kv_heads]`: number of physical rows of each head that are stored as `kind`; the physical rows after them as
    /// [`CacheType::wide`].
    narrow: Vec<usize>,
    /// `[kv_heads]`: first byte of each head.
    starts: Vec<usize>,
    /// `[rows of all heads]`: the physical row of each slot within its head; empty if the two are always equal.
    physical_rows: Vec<u32>,
    /// `[wide rows of all heads]`: the slot of each wide (f16) physical row; empty if `physical_rows` is empty.
    f16_slots: Vec<u32>,
    /// `[kv_heads + 1]`: offset of each head in `f16_slots`.
    first_wide: Vec<usize>,
    /// `[head_dim]`: scratch for the Hadamard transform of a row that is written.
    transformed: Vec<f32>,
    /// `[head_dim]`: scratch for a second row.
    other: Vec<f32>,
}

impl Packed {
    fn write(&mut self, first: usize, h: usize, r: usize, row: &[f32]) {
        let (kind, range) = self.locate(first, row.len(), h, r);
        let row = if self.kind.rotates() {
            self.transformed.copy_from_slice(row);
            hadamard(&mut self.transformed);
            &self.transformed
        } else {
            row
        };
        kind.write(row, &mut self.bytes[range]);
    }

    /// Swaps the physical rows of two rows of head `h`; `first` is the head's first row, counted over all heads.
    fn swap(&mut self, first: usize, h: usize, one: usize, other: usize) {
        self.physical_rows.swap(first + one, first + other);
        for row in [one, other] {
            if let Some(wide) =
                (self.physical_rows[first + row] as usize).checked_sub(self.narrow[h])
            {
                self.f16_slots[self.first_wide[h] + wide] = row as u32;
            }
        }
    }

    /// Storage type and byte range of row `r` of head `h`; `first` is the head's first row, counted over all heads.
    #[inline(always)]
    fn locate(
        &self,
        first: usize,
        head_dim: usize,
        h: usize,
        r: usize,
    ) -> (CacheType, Range<usize>) {
        let r = if self.physical_rows.is_empty() {
            r
        } else {
            self.physical_rows[first + r] as usize
        };
        let narrow = self.kind.row_bytes(head_dim);
        let (kind, start, len) = if r < self.narrow[h] {
            (self.kind, r * narrow, narrow)
        } else {
            let broad = self.kind.wide().row_bytes(head_dim);
            let before = self.narrow[h] * narrow + (r - self.narrow[h]) * broad;
            (self.kind.wide(), before, broad)
        };
        let start = self.starts[h] + start;
        (kind, start..start + len)
    }
}

impl RowStore {
    /// Storage type of the rows: the narrow one, if there are two.
    pub fn cache_type(&self) -> CacheType {
        self.packed.as_ref().map_or(CacheType::F32, |p| p.kind)
    }

    /// Whether row `r` of head `h` is narrow (quantised).
    pub fn is_narrow(&self, h: usize, r: usize) -> bool {
        self.packed.as_ref().is_some_and(|packed| {
            packed.kind.is_quantised()
                && packed.locate(self.first_rows[h], self.head_dim, h, r).0 == packed.kind
        })
    }

    /// Storage type and bytes of row `r` of head `h`; `None` if the store is not packed. The Hadamard transform, if the
    /// type has one, is not undone.
    #[inline(always)]
    pub fn packed_row(&self, h: usize, r: usize) -> Option<(CacheType, &[u8])> {
        let packed = self.packed.as_ref()?;
        let (kind, range) = packed.locate(self.first_rows[h], self.head_dim, h, r);
        Some((kind, &packed.bytes[range]))
    }

    /// The physical row of slot `r` of head `h`: `r` itself, unless slots can swap theirs.
    pub fn physical_row(&self, h: usize, r: usize) -> usize {
        let physical_rows = self.packed.as_ref().map_or(&[][..], |p| &p.physical_rows);
        let row = physical_rows.get(self.first_rows[h] + r);
        row.map_or(r, |&row| row as usize)
    }

    /// Number of narrow (quantised) rows of head `h`; they are its first physical rows.
    pub fn narrow_rows(&self, h: usize) -> usize {
        self.packed.as_ref().map_or(0, |packed| packed.narrow[h])
    }

    /// The longest prefix of `rows` of head `h` with one storage type, at most [`RUN`] rows.
    #[inline(always)]
    pub(crate) fn run(&self, h: usize, rows: Range<usize>) -> Run {
        let mut run = Run {
            kind: CacheType::F32,
            rows: 0,
            starts: [std::ptr::null(); RUN],
        };
        let rows = rows.start..rows.end.min(rows.start + RUN);
        let Some(packed) = &self.packed else {
            let head = self.head(h)[rows.start * self.head_dim..].chunks_exact(self.head_dim);
            run.rows = rows.len();
            for (start, row) in run.starts.iter_mut().zip(head.take(rows.len())) {
                *start = row.as_ptr().cast();
            }
            return run;
        };
        for (start, row) in run.starts.iter_mut().zip(rows) {
            let (kind, range) = packed.locate(self.first_rows[h], self.head_dim, h, row);
            if run.rows > 0 && kind != run.kind {
                break;
            }
            run.kind = kind;
            run.rows += 1;
            *start = packed.bytes[range].as_ptr();
        }
        run
    }

    /// Copies row `r` of head `h` to `row` as f32.
    pub fn read(&self, h: usize, r: usize, row: &mut [f32]) {
        match self.packed_row(h, r) {
            Some((kind, bytes)) => {
                kind.read(bytes, row);
                if self.cache_type().rotates() {
                    hadamard(row);
                }
            }
            None => row.copy_from_slice(self.row(h, r)),
        }
    }

    /// Replaces row `r` of head `h`, converting it to its storage type. Allocates nothing.
    pub fn write(&mut self, h: usize, r: usize, row: &[f32]) {
        let first = self.first_rows[h];
        match &mut self.packed {
            Some(packed) => packed.write(first, h, r, row),
            None => self.row_mut(h, r).copy_from_slice(row),
        }
    }

    /// Bytes of rows `0..rows` of head `h`.
    pub fn bytes_of_rows(&self, h: usize, rows: usize) -> usize {
        let Some(packed) = &self.packed else {
            return rows * CacheType::F32.row_bytes(self.head_dim);
        };
        let wide = if packed.physical_rows.is_empty() {
            rows.saturating_sub(packed.narrow[h])
        } else {
            self.f16_slots(h).filter(|&row| row < rows).count()
        };
        let row_bytes = |kind: CacheType| kind.row_bytes(self.head_dim);
        (rows - wide) * row_bytes(packed.kind) + wide * row_bytes(packed.kind.wide())
    }

    /// Bytes of row `r` of head `h`.
    pub fn bytes_of_row(&self, h: usize, r: usize) -> usize {
        if self.is_narrow(h, r) {
            self.cache_type().row_bytes(self.head_dim)
        } else {
            self.cache_type().wide().row_bytes(self.head_dim)
        }
    }

    /// Zeroed rows: `capacities[h]` of them for KV head `h`.
    pub fn new(head_dim: usize, capacities: &[usize]) -> Self {
        assert!(head_dim > 0, "head_dim is 0");
        let first_rows = first_rows(capacities);
        let rows = first_rows[capacities.len()];
        Self {
            data: vec![0.0; rows * head_dim],
            packed: None,
            head_dim,
            first_rows,
        }
    }

    /// Zeroed rows, the same number for every KV head.
    pub fn uniform(kv_heads: usize, capacity: usize, head_dim: usize) -> Self {
        Self::new(head_dim, &vec![capacity; kv_heads])
    }

    /// All rows of all heads, `[rows of all heads, head_dim]`; for a uniform store `[kv_heads, capacity, head_dim]`.
    ///
    /// # Panics
    /// If the store is packed, as all methods that return slices.
    pub fn as_slice(&self) -> &[f32] {
        self.expect_f32();
        &self.data
    }

    /// Number of KV heads.
    pub fn kv_heads(&self) -> usize {
        self.first_rows.len() - 1
    }

    /// Elements of one row.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Capacity of head `h`, in rows.
    pub fn capacity(&self, h: usize) -> usize {
        self.first_rows[h + 1] - self.first_rows[h]
    }

    /// Number of rows of the heads before `h`: the offset of head `h` in arrays with one entry per slot, such as
    /// [`Rotation::ranks`](crate::Rotation::ranks). `first_row(kv_heads)` is the length of these arrays.
    pub fn first_row(&self, h: usize) -> usize {
        self.first_rows[h]
    }

    /// `[kv_heads + 1]`: [`RowStore::first_row`] of every head; the last element is the total number of rows.
    pub fn first_rows(&self) -> &[usize] {
        &self.first_rows
    }

    /// All rows of head `h`, `[capacity, head_dim]`; panics if the store is packed.
    pub fn head(&self, h: usize) -> &[f32] {
        self.expect_f32();
        &self.data[self.first_rows[h] * self.head_dim..self.first_rows[h + 1] * self.head_dim]
    }

    /// All rows of head `h`, `[capacity, head_dim]`; panics if the store is packed.
    pub fn head_mut(&mut self, h: usize) -> &mut [f32] {
        self.expect_f32();
        &mut self.data[self.first_rows[h] * self.head_dim..self.first_rows[h + 1] * self.head_dim]
    }

    /// Row `r` of head `h`, `[head_dim]`; panics if the store is packed.
    pub fn row(&self, h: usize, r: usize) -> &[f32] {
        &self.head(h)[r * self.head_dim..][..self.head_dim]
    }

    /// Row `r` of head `h`, `[head_dim]`; panics if the store is packed.
    pub fn row_mut(&mut self, h: usize, r: usize) -> &mut [f32] {
        let head_dim = self.head_dim;
        &mut self.head_mut(h)[r * head_dim..][..head_dim]
    }

    fn expect_f32(&self) {
        assert!(
            self.packed.is_none(),
            "rows of type {} are read one by one",
            self.cache_type()
        );
    }

    /// Bytes held by this store: all rows, used or not, and the maps between slots and physical rows.
    pub fn bytes(&self) -> usize {
        let packed = self.packed.as_ref().map_or(0, |packed| {
            let maps = packed.physical_rows.len() + packed.f16_slots.len();
            packed.bytes.len() + maps * size_of::<u32>()
        });
        size_of_val(self.data.as_slice()) + packed
    }

    /// Writes a chunk in the layout of a projection, `source [rows, kv_heads, head_dim]`, into rows
    /// `first_row..first_row + rows` of every head.
    ///
    /// # Panics
    /// If `source` is not whole rows, the rows exceed a head's capacity, or the store is packed.
    pub fn copy_in(&mut self, first_row: usize, source: &[f32]) {
        let (kv_heads, head_dim) = (self.kv_heads(), self.head_dim);
        let width = kv_heads * head_dim;
        assert_eq!(
            source.len() % width,
            0,
            "source has {} elements, not a multiple of {kv_heads} kv heads x {head_dim}",
            source.len()
        );
        let rows = source.len() / width;
        for h in 0..kv_heads {
            let capacity = self.capacity(h);
            assert!(
                first_row + rows <= capacity,
                "rows {first_row}..{} do not fit head {h}, which holds {capacity}",
                first_row + rows
            );
            let target = &mut self.head_mut(h)[first_row * head_dim..][..rows * head_dim];
            for (row, target) in target.chunks_exact_mut(head_dim).enumerate() {
                target.copy_from_slice(&source[row * width + h * head_dim..][..head_dim]);
            }
        }
    }
}

/// `[kv_heads + 1]`: see [`RowStore::first_row`].
fn first_rows(capacities: &[usize]) -> Vec<usize> {
    let mut first_rows = Vec::with_capacity(capacities.len() + 1);
    let mut rows = 0;
    first_rows.push(rows);
    for capacity in capacities {
        rows += capacity;
        first_rows.push(rows);
    }
    first_rows
}
