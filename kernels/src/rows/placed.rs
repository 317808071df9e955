//! Stores of rows in the cache's type: with their numbers, or with the places alone.

use super::{Packed, RowStore, first_rows};
use crate::CacheType;

impl RowStore {
    /// Rows stored as `kind`, all zero: `capacities[h]` of them for kv head `h`. Of a quantised type the first `narrow[h]` are stored so
    /// and the others as f16; other types take no notice of it. With `replaced`, rows of a quantised type may trade places.
    ///
    /// # Panics
    /// When `narrow` is more than a head holds.
    pub fn stored(
        kind: CacheType,
        head_dim: usize,
        capacities: &[usize],
        narrow: &[usize],
        replaced: bool,
    ) -> Self {
        if kind == CacheType::F32 {
            return Self::new(head_dim, capacities);
        }
        let mut store = Self::placed(kind, head_dim, capacities, narrow, replaced);
        if let Some(packed) = &mut store.packed {
            packed.bytes = vec![0; packed.row_bytes];
        }
        store
    }

    /// The places of such rows, whose numbers lie elsewhere: where each is and how it is stored is known, and none can be read or written.
    ///
    /// # Panics
    /// As [`RowStore::stored`], and of rows in f32, which have no type to be placed by.
    pub fn placed(
        kind: CacheType,
        head_dim: usize,
        capacities: &[usize],
        narrow: &[usize],
        replaced: bool,
    ) -> Self {
        assert!(
            kind != CacheType::F32,
            "rows of f32 lie where their store is"
        );
        let mut store = Self {
            data: Vec::new(),
            ..Self::new(head_dim, &vec![0; capacities.len()])
        };
        store.first_rows = first_rows(capacities);
        assert_eq!(narrow.len(), capacities.len(), "narrow is [kv_heads]");
        let narrow: Vec<usize> = match kind.is_quantised() {
            true => narrow.to_vec(),
            false => vec![0; capacities.len()],
        };
        let mut starts = Vec::with_capacity(narrow.len());
        let mut row_bytes = 0;
        for (&narrow, &capacity) in narrow.iter().zip(capacities) {
            assert!(narrow <= capacity, "{narrow} rows of {capacity}");
            starts.push(row_bytes);
            row_bytes += narrow * kind.row_bytes(head_dim)
                + (capacity - narrow) * kind.wide().row_bytes(head_dim);
        }
        let (mut places, mut in_wide, mut first_wide) = (Vec::new(), Vec::new(), Vec::new());
        if replaced && kind.is_quantised() {
            for (&narrow, &capacity) in narrow.iter().zip(capacities) {
                first_wide.push(in_wide.len());
                places.extend(0..capacity as u32);
                in_wide.extend(narrow as u32..capacity as u32);
            }
            first_wide.push(in_wide.len());
            places.shrink_to_fit();
            in_wide.shrink_to_fit();
        }
        store.packed = Some(Packed {
            kind,
            bytes: Vec::new(),
            row_bytes,
            narrow,
            starts,
            places,
            in_wide,
            first_wide,
            turned: vec![0.0; head_dim],
            other: vec![0.0; head_dim],
        });
        store
    }

    /// Bytes of rows whose numbers lie elsewhere; 0 where they lie here.
    pub fn bytes_elsewhere(&self) -> usize {
        let packed = self.packed.as_ref();
        packed.map_or(0, |packed| packed.row_bytes - packed.bytes.len())
    }
}
