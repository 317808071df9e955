//! Constructors of packed stores: with their data, or with the physical rows only.

use super::{Packed, RowStore, first_rows};
use crate::CacheType;

impl RowStore {
    /// A store of zeroed rows of type `kind`: `capacities[h]` rows for KV head `h`. If `kind` is quantised, the first
    /// `narrow[h]` physical rows of head `h` are of type `kind` and the others f16; other types ignore `narrow`. With
    /// `replaced`, slots of a quantised type can swap physical rows.
    ///
    /// # Panics
    /// If `narrow[h]` exceeds the capacity of head `h`.
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
        let mut store = Self::without_data(kind, head_dim, capacities, narrow, replaced);
        if let Some(packed) = &mut store.packed {
            packed.bytes = vec![0; packed.row_bytes];
        }
        store
    }

    /// A store that tracks the physical row and type of each slot; the data are stored elsewhere, for example in GPU
    /// memory, so rows cannot be read or written.
    ///
    /// # Panics
    /// As [`RowStore::stored`], and if `kind` is f32, which is not packed.
    pub fn without_data(
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
        let narrow: Vec<usize> = if kind.is_quantised() {
            narrow.to_vec()
        } else {
            vec![0; capacities.len()]
        };
        let mut starts = Vec::with_capacity(narrow.len());
        let mut row_bytes = 0;
        for (&narrow, &capacity) in narrow.iter().zip(capacities) {
            assert!(narrow <= capacity, "{narrow} rows of {capacity}");
            starts.push(row_bytes);
            row_bytes += narrow * kind.row_bytes(head_dim)
                + (capacity - narrow) * kind.wide().row_bytes(head_dim);
        }
        let (mut physical_rows, mut f16_slots, mut first_wide) =
            (Vec::new(), Vec::new(), Vec::new());
        if replaced && kind.is_quantised() {
            for (&narrow, &capacity) in narrow.iter().zip(capacities) {
                first_wide.push(f16_slots.len());
                physical_rows.extend(0..capacity as u32);
                f16_slots.extend(narrow as u32..capacity as u32);
            }
            first_wide.push(f16_slots.len());
            physical_rows.shrink_to_fit();
            f16_slots.shrink_to_fit();
        }
        store.packed = Some(Packed {
            kind,
            bytes: Vec::new(),
            row_bytes,
            narrow,
            starts,
            physical_rows,
            f16_slots,
            first_wide,
            transformed: vec![0.0; head_dim],
            other: vec![0.0; head_dim],
        });
        store
    }

    /// Bytes of rows that are stored elsewhere; 0 if this store has the data.
    pub fn bytes_elsewhere(&self) -> usize {
        let packed = self.packed.as_ref();
        packed.map_or(0, |packed| packed.row_bytes - packed.bytes.len())
    }
}
