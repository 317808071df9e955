//! `RowStore`: the keys or the values of one layer, one run of rows per kv head; in f32 until they are packed.
//!
//! A row is a place in the cache; which position of the text it holds is the caller's business.
//! How many rows are valid is the caller's business too: the store knows capacities, not lengths.
//!
//! ```text
//! 2 kv heads, capacities [3, 2], head_dim 4          first_row(0) = 0, first_row(1) = 3
//!
//!   head 0 | row 0: a a a a | row 1: b b b b | row 2: c c c c
//!   head 1 | row 0: d d d d | row 1: e e e e |
//! ```
//!
//! A packed store ([`RowStore::stored`]) holds bytes instead: of each head the first `narrow` places as its [`CacheType`], the others as
//! f16 where that type is a quantised one. Its rows are read and written one by one, and each is rounded by itself. Where rows are
//! replaced (`replaced`), a row need not lie in the place of its number: so a row that is to be narrow from now on gives its wide place
//! to another ([`RowStore::trade`]), and no row ever changes its number. And a store may know the places alone, of rows whose numbers lie
//! elsewhere ([`RowStore::placed`]).

mod alike;
mod changing;
mod placed;

use std::ops::Range;

use crate::CacheType;
use crate::cache_type::turn;

pub use changing::RowState;

/// Keys or values of one layer, kv-head-major: head `h` holds `capacity(h)` rows of `head_dim` f32 in one allocation.
/// Heads may have different capacities (ragged).
#[derive(Clone, Debug)]
pub struct RowStore {
    /// Every row of every head, `[rows of all heads, head_dim]`; nothing in a packed store.
    data: Vec<f32>,
    packed: Option<Packed>,
    head_dim: usize,
    /// `first_rows[h]..first_rows[h + 1]` are the rows of head `h`, counted over all heads. `[kv_heads + 1]`
    first_rows: Vec<usize>,
}

/// Most rows of a [`Run`].
pub(crate) const RUN: usize = 64;

/// Rows that are stored in the same way.
pub(crate) struct Run {
    pub kind: CacheType,
    /// At least 1, where any were asked for.
    pub rows: usize,
    /// Where the first `rows` begin; the store is not to change meanwhile.
    starts: [*const u8; RUN],
}

impl Run {
    /// `[rows]`
    #[inline(always)]
    pub fn starts(&self) -> &[*const u8] {
        &self.starts[..self.rows]
    }
}

/// Rows as bytes.
#[derive(Clone, Debug)]
struct Packed {
    kind: CacheType,
    /// Nothing where they lie elsewhere.
    bytes: Vec<u8>,
    /// Bytes of all rows, wherever they lie.
    row_bytes: usize,
    /// `[kv_heads]`: places of each head that are stored as `kind`; those behind them as [`CacheType::wide`].
    narrow: Vec<usize>,
    /// `[kv_heads]`: first byte of each head.
    starts: Vec<usize>,
    /// `[rows of all heads]`: the place of each row in its head; empty where row `r` lies in place `r`.
    places: Vec<u32>,
    /// `[wide places of all heads]`: the row in each of them, where rows trade places.
    in_wide: Vec<u32>,
    /// `[kv_heads + 1]`: where each head's begin in `in_wide`.
    first_wide: Vec<usize>,
    /// `[head_dim]`: for turning a row that is written.
    turned: Vec<f32>,
    /// `[head_dim]`: for a second row.
    other: Vec<f32>,
}

impl Packed {
    fn write(&mut self, first: usize, h: usize, r: usize, row: &[f32]) {
        let (kind, place) = self.place(first, row.len(), h, r);
        let row = match self.kind.rotates() {
            true => {
                self.turned.copy_from_slice(row);
                turn(&mut self.turned);
                &self.turned
            }
            false => row,
        };
        kind.write(row, &mut self.bytes[place]);
    }

    /// Two rows of head `h`, whose first row is `first` of all, take each other's places.
    fn swap(&mut self, first: usize, h: usize, one: usize, other: usize) {
        self.places.swap(first + one, first + other);
        for row in [one, other] {
            if let Some(wide) = (self.places[first + row] as usize).checked_sub(self.narrow[h]) {
                self.in_wide[self.first_wide[h] + wide] = row as u32;
            }
        }
    }

    /// How row `r` of head `h`, whose first row is `first` of all, is stored, and where.
    #[inline(always)]
    fn place(
        &self,
        first: usize,
        head_dim: usize,
        h: usize,
        r: usize,
    ) -> (CacheType, Range<usize>) {
        let r = match self.places.is_empty() {
            true => r,
            false => self.places[first + r] as usize,
        };
        let narrow = self.kind.row_bytes(head_dim);
        let (kind, start, len) = match r < self.narrow[h] {
            true => (self.kind, r * narrow, narrow),
            false => {
                let broad = self.kind.wide().row_bytes(head_dim);
                let before = self.narrow[h] * narrow + (r - self.narrow[h]) * broad;
                (self.kind.wide(), before, broad)
            }
        };
        let start = self.starts[h] + start;
        (kind, start..start + len)
    }
}

impl RowStore {
    /// How rows are stored: the narrower of two ways, where there are two.
    pub fn cache_type(&self) -> CacheType {
        self.packed.as_ref().map_or(CacheType::F32, |p| p.kind)
    }

    /// Whether row `r` of head `h` lies in a place that rounds more than the others of this store.
    pub fn is_narrow(&self, h: usize, r: usize) -> bool {
        self.packed.as_ref().is_some_and(|packed| {
            packed.kind.is_quantised()
                && packed.place(self.first_rows[h], self.head_dim, h, r).0 == packed.kind
        })
    }

    /// How row `r` of head `h` is stored, and its bytes, of a packed store. A turned row is turned.
    #[inline(always)]
    pub fn packed_row(&self, h: usize, r: usize) -> Option<(CacheType, &[u8])> {
        let packed = self.packed.as_ref()?;
        let (kind, place) = packed.place(self.first_rows[h], self.head_dim, h, r);
        Some((kind, &packed.bytes[place]))
    }

    /// The place of row `r` of head `h`: its own number where rows do not trade places.
    pub fn place(&self, h: usize, r: usize) -> usize {
        let places = self.packed.as_ref().map_or(&[][..], |p| &p.places);
        let place = places.get(self.first_rows[h] + r);
        place.map_or(r, |&place| place as usize)
    }

    /// First places of head `h` that round more than those behind them.
    pub fn narrow_places(&self, h: usize) -> usize {
        self.packed.as_ref().map_or(0, |packed| packed.narrow[h])
    }

    /// Where the first rows of `rows` of head `h` lie, as many as are stored in the same way, at most [`RUN`].
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
            let (kind, place) = packed.place(self.first_rows[h], self.head_dim, h, row);
            if run.rows > 0 && kind != run.kind {
                break;
            }
            run.kind = kind;
            run.rows += 1;
            *start = packed.bytes[place].as_ptr();
        }
        run
    }

    /// Copies row `r` of head `h` out, however it is stored.
    pub fn read(&self, h: usize, r: usize, row: &mut [f32]) {
        match self.packed_row(h, r) {
            Some((kind, bytes)) => {
                kind.read(bytes, row);
                if self.cache_type().rotates() {
                    turn(row);
                }
            }
            None => row.copy_from_slice(self.row(h, r)),
        }
    }

    /// Replaces row `r` of head `h`, however it is stored. Allocates nothing.
    pub fn write(&mut self, h: usize, r: usize, row: &[f32]) {
        let first = self.first_rows[h];
        match &mut self.packed {
            Some(packed) => packed.write(first, h, r, row),
            None => self.row_mut(h, r).copy_from_slice(row),
        }
    }

    /// Bytes of the first `rows` rows of head `h`.
    pub fn bytes_of_rows(&self, h: usize, rows: usize) -> usize {
        let Some(packed) = &self.packed else {
            return rows * CacheType::F32.row_bytes(self.head_dim);
        };
        let wide = match packed.places.is_empty() {
            true => rows.saturating_sub(packed.narrow[h]),
            false => self.wide_rows(h).filter(|&row| row < rows).count(),
        };
        let of = |kind: CacheType| kind.row_bytes(self.head_dim);
        (rows - wide) * of(packed.kind) + wide * of(packed.kind.wide())
    }

    /// Bytes of row `r` of head `h`.
    pub fn bytes_of_row(&self, h: usize, r: usize) -> usize {
        match self.is_narrow(h, r) {
            true => self.cache_type().row_bytes(self.head_dim),
            false => self.cache_type().wide().row_bytes(self.head_dim),
        }
    }

    /// Zeroed rows: `capacities[h]` of them for kv head `h`.
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

    /// Zeroed rows, the same number for every kv head.
    pub fn uniform(kv_heads: usize, capacity: usize, head_dim: usize) -> Self {
        Self::new(head_dim, &vec![capacity; kv_heads])
    }

    /// All rows of all heads, `[rows of all heads, head_dim]`; for a uniform store `[kv_heads, capacity, head_dim]`. Not of a packed
    /// store, as all that gives out slices.
    pub fn as_slice(&self) -> &[f32] {
        self.expect_f32();
        &self.data
    }

    /// Number of kv heads.
    pub fn kv_heads(&self) -> usize {
        self.first_rows.len() - 1
    }

    /// Elements of one row.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Rows that head `h` has room for.
    pub fn capacity(&self, h: usize) -> usize {
        self.first_rows[h + 1] - self.first_rows[h]
    }

    /// Number of rows of the heads before `h`: the offset of head `h` in arrays with one entry per row of capacity,
    /// such as [`Rotation::ranks`](crate::Rotation::ranks). `first_row(kv_heads)` is the length of such an array.
    pub fn first_row(&self, h: usize) -> usize {
        self.first_rows[h]
    }

    /// `[kv_heads + 1]`: [`RowStore::first_row`] of every head, and the length of such an array.
    pub fn first_rows(&self) -> &[usize] {
        &self.first_rows
    }

    /// All rows of head `h`, `[capacity, head_dim]`.
    pub fn head(&self, h: usize) -> &[f32] {
        self.expect_f32();
        &self.data[self.first_rows[h] * self.head_dim..self.first_rows[h + 1] * self.head_dim]
    }

    /// All rows of head `h`, `[capacity, head_dim]`.
    pub fn head_mut(&mut self, h: usize) -> &mut [f32] {
        self.expect_f32();
        &mut self.data[self.first_rows[h] * self.head_dim..self.first_rows[h + 1] * self.head_dim]
    }

    /// Row `r` of head `h`, `[head_dim]`.
    pub fn row(&self, h: usize, r: usize) -> &[f32] {
        &self.head(h)[r * self.head_dim..][..self.head_dim]
    }

    /// Row `r` of head `h`, `[head_dim]`.
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

    /// Bytes held here: the rows, used or not, and their places where they trade them.
    pub fn bytes(&self) -> usize {
        let packed = self.packed.as_ref().map_or(0, |packed| {
            let places = packed.places.len() + packed.in_wide.len();
            packed.bytes.len() + places * size_of::<u32>()
        });
        size_of_val(self.data.as_slice()) + packed
    }

    /// Writes a chunk as a projection produces it, `source [rows, kv_heads, head_dim]`, into rows
    /// `first_row..first_row + rows` of every head.
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

/// Copies the rows `positions` of head `source_head` into rows `first_row..` of head `target_head`, in that order.
pub fn gather_rows(
    source: &RowStore,
    source_head: usize,
    positions: &[u32],
    target: &mut RowStore,
    target_head: usize,
    first_row: usize,
) {
    let head_dim = source.head_dim;
    assert_eq!(
        head_dim, target.head_dim,
        "rows of {head_dim} cannot be gathered into rows of {}",
        target.head_dim
    );
    let capacity = target.capacity(target_head);
    assert!(
        first_row + positions.len() <= capacity,
        "rows {first_row}..{} do not fit head {target_head}, which holds {capacity}",
        first_row + positions.len()
    );
    let source = source.head(source_head);
    let target = &mut target.head_mut(target_head)[first_row * head_dim..];
    for (target, &position) in target.chunks_exact_mut(head_dim).zip(positions) {
        target.copy_from_slice(&source[position as usize * head_dim..][..head_dim]);
    }
}
