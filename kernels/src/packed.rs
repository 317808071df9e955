//! Compact formats of key and value rows, for files and for rows that are rarely read: f16, or q8_0 blocks as in GGUF
//! files.
//!
//! ```text
//! f16    head_dim numbers of 2 bytes
//! q8_0   blocks of 32 numbers: scale (f16), 32 signed bytes     an incomplete last block is padded with zeros
//! ```
//!
//! Little-endian, like every file that Kept writes. The callers choose where packed rows are stored.

use crate::CacheType;
use crate::row_format::BLOCK;
use crate::threads::{SharedMut, for_each_range};

/// Rows per work item.
const ROWS_PER_ITEM: usize = 256;

/// Storage format of the numbers of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum PackedRows {
    /// Half precision: 11 significant bits per number.
    F16,
    /// 8 bits per number, with one scale per 32 numbers.
    Q8_0,
}

impl PackedRows {
    fn cache(self) -> CacheType {
        match self {
            PackedRows::F16 => CacheType::F16,
            PackedRows::Q8_0 => CacheType::Q8_0,
        }
    }

    /// The name: `f16` or `q8_0`.
    pub fn name(self) -> &'static str {
        self.cache().name()
    }

    /// The format with this name.
    pub fn named(name: &str) -> Option<Self> {
        let kinds = [PackedRows::F16, PackedRows::Q8_0];
        kinds.into_iter().find(|kind| kind.name() == name)
    }

    /// Bytes of a row of `head_dim` numbers.
    pub fn row_bytes(self, head_dim: usize) -> usize {
        self.cache().row_bytes(head_dim)
    }

    /// Packs `rows [rows, head_dim]` into `out [rows, row_bytes]`.
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn pack(self, rows: &[f32], head_dim: usize, out: &mut [u8]) {
        let row_bytes = self.row_bytes(head_dim);
        assert_eq!(rows.len() / head_dim * row_bytes, out.len(), "as many rows");
        assert!(rows.len().is_multiple_of(head_dim), "whole rows");
        let out = SharedMut::new(out);
        for_each_range((rows.len() / head_dim).div_ceil(ROWS_PER_ITEM), |items| {
            for first in items.map(|item| item * ROWS_PER_ITEM) {
                let count = ROWS_PER_ITEM.min(rows.len() / head_dim - first);
                let from = rows[first * head_dim..][..count * head_dim].chunks_exact(head_dim);
                // SAFETY: each item runs exactly once and writes only its own rows.
                let to = unsafe { out.part(first * row_bytes..(first + count) * row_bytes) };
                for (row, out) in from.zip(to.chunks_exact_mut(row_bytes)) {
                    self.cache().write(row, out);
                }
            }
        });
    }

    /// Unpacks `bytes [rows, row_bytes]` into `out [rows, head_dim]`.
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn unpack(self, bytes: &[u8], head_dim: usize, out: &mut [f32]) {
        let row_bytes = self.row_bytes(head_dim);
        assert_eq!(
            out.len() / head_dim * row_bytes,
            bytes.len(),
            "as many rows"
        );
        assert!(out.len().is_multiple_of(head_dim), "whole rows");
        let rows = out.len() / head_dim;
        let seamless = self.is_seamless(head_dim);
        let out = SharedMut::new(out);
        for_each_range(rows.div_ceil(ROWS_PER_ITEM), |items| {
            for first in items.map(|item| item * ROWS_PER_ITEM) {
                let count = ROWS_PER_ITEM.min(rows - first);
                let from = &bytes[first * row_bytes..][..count * row_bytes];
                // SAFETY: each item runs exactly once and writes only its own rows.
                let to = unsafe { out.part(first * head_dim..(first + count) * head_dim) };
                if seamless {
                    self.unpack_row(from, to);
                    continue;
                }
                let rows = from.chunks_exact(row_bytes);
                for (bytes, row) in rows.zip(to.chunks_exact_mut(head_dim)) {
                    self.unpack_row(bytes, row);
                }
            }
        });
    }

    /// Whether rows have no padding, so that consecutive rows can be unpacked as one long row.
    fn is_seamless(self, head_dim: usize) -> bool {
        self == PackedRows::F16 || head_dim.is_multiple_of(BLOCK)
    }

    /// Unpacks the row in `bytes`, at the machine's SIMD level; or several rows, if they are seamless.
    fn unpack_row(self, bytes: &[u8], row: &mut [f32]) {
        self.cache().read(bytes, row);
    }

    /// Rounds `rows` in place to the values that packing and unpacking gives.
    pub fn round(self, rows: &mut [f32], head_dim: usize) {
        let mut packed = vec![0; self.row_bytes(head_dim)];
        for row in rows.chunks_exact_mut(head_dim) {
            self.cache().write(row, &mut packed);
            self.unpack_row(&packed, row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: usize, head_dim: usize) -> Vec<f32> {
        let wave = |i: usize| (i as f32 * 0.37).sin() * (1.0 + (i % 7) as f32);
        (0..rows * head_dim).map(wave).collect()
    }

    fn round_trip(kind: PackedRows, rows: &[f32], head_dim: usize) -> Vec<f32> {
        let mut packed = vec![0; rows.len() / head_dim * kind.row_bytes(head_dim)];
        kind.pack(rows, head_dim, &mut packed);
        let mut back = vec![f32::NAN; rows.len()];
        kind.unpack(&packed, head_dim, &mut back);
        back
    }

    #[test]
    fn rows_come_back_as_exactly_as_their_type_allows() {
        for head_dim in [16, 32, 64, 80, 96, 128, 250] {
            let rows = rows(700, head_dim);
            for (kind, error) in [
                (PackedRows::F16, 1.0 / 2048.0),
                (PackedRows::Q8_0, 1.0 / 220.0),
            ] {
                let back = round_trip(kind, &rows, head_dim);
                for (row, back) in rows.chunks_exact(head_dim).zip(back.chunks_exact(head_dim)) {
                    let most = row.iter().fold(0.0f32, |m, x| m.max(x.abs()));
                    for (x, y) in row.iter().zip(back) {
                        assert!((x - y).abs() <= error * most, "{kind:?}: {x} became {y}");
                    }
                }
            }
        }
    }

    #[test]
    fn packing_what_was_packed_changes_nothing() {
        for kind in [PackedRows::F16, PackedRows::Q8_0] {
            let mut once = rows(3, 80);
            kind.round(&mut once, 80);
            assert_eq!(round_trip(kind, &once, 80), once, "{kind:?}");
        }
    }

    #[test]
    fn q8_0_is_what_candle_reads() {
        use candle_core::quantized::k_quants::{BlockQ8_0, GgmlType};
        let rows = rows(2, 64);
        let mut packed = vec![0; 2 * PackedRows::Q8_0.row_bytes(64)];
        PackedRows::Q8_0.pack(&rows, 64, &mut packed);
        let mut theirs = vec![BlockQ8_0::zeros(); 4];
        BlockQ8_0::from_float(&rows, &mut theirs);
        let mut expected = vec![0.0; 128];
        BlockQ8_0::to_float(&theirs, &mut expected);
        let mut ours = vec![0.0; 128];
        PackedRows::Q8_0.unpack(&packed, 64, &mut ours);
        assert_eq!(ours, expected);
    }

    #[test]
    fn rows_of_zeros_stay_zeros() {
        let zeros = vec![0.0; 3 * 96];
        assert_eq!(round_trip(PackedRows::Q8_0, &zeros, 96), zeros);
    }
}
