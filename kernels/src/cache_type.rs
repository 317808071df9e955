//! Storage types of the compact KV cache: how a row is packed and unpacked.
//!
//! ```text
//! f32    head_dim numbers of 4 bytes
//! f16    head_dim numbers of 2 bytes
//! q8_0   blocks of 32 numbers: scale (f16), 32 signed bytes
//! q4_0   Hadamard-transformed (below), then blocks of 32 numbers: scale (f16), 16 bytes of nibbles: numbers 0..16 in
//!        the low nibbles, 16..32 in the high ones, each stored plus 8
//! ```
//!
//! Rows in q4_0 are first multiplied by a normalised Hadamard matrix, which spreads a few large numbers over the whole
//! row. The matrix is its own inverse and preserves dot products. So one query is transformed instead of every key, and
//! the weighted sum of values is transformed back once. If head_dim is not a power of two, the transform works on
//! blocks of the largest power of two that divides it.

use std::fmt;
use std::str::FromStr;

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::row_format::{self, BLOCK, F16Rows, F32Rows, Q4Rows, Q8Rows, RowFormat};
use crate::simd::{Lanes, by_level};

/// Storage type of the rows of a compact KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CacheType {
    /// Single precision, as computed.
    #[default]
    F32,
    /// Half precision.
    F16,
    /// 8 bits per number and one scale per 32 numbers.
    Q8_0,
    /// 4 bits per number and one scale per 32 numbers, after a Hadamard transform.
    Q4_0,
}

/// Error: the name is not a cache type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no cache type {0:?}; there are f32, f16, q8_0 and q4_0")]
pub struct UnknownCacheType(String);

impl CacheType {
    /// All cache types, the most exact first.
    pub const ALL: [CacheType; 4] = [Self::F32, Self::F16, Self::Q8_0, Self::Q4_0];

    /// The name, as in `--cache`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
        }
    }

    /// Bytes of a row of `head_dim` numbers.
    pub fn row_bytes(self, head_dim: usize) -> usize {
        let blocks = head_dim.div_ceil(BLOCK);
        match self {
            Self::F32 => head_dim * 4,
            Self::F16 => head_dim * 2,
            Self::Q8_0 => blocks * Q8Rows::BYTES,
            Self::Q4_0 => blocks * Q4Rows::BYTES,
        }
    }

    /// Whether numbers are rounded in blocks. A quantised cache keeps rows that must stay exact in [`CacheType::wide`].
    pub fn is_quantised(self) -> bool {
        matches!(self, Self::Q8_0 | Self::Q4_0)
    }

    /// The type of rows that must stay exact in a cache of this type: f16 for quantised types, else the type itself.
    pub fn wide(self) -> Self {
        if self.is_quantised() { Self::F16 } else { self }
    }

    /// Whether all rows of a store of this type are Hadamard-transformed, including its f16 rows.
    pub(crate) fn rotates(self) -> bool {
        self == Self::Q4_0
    }

    /// Packs `row` into `bytes`, without the Hadamard transform.
    pub(crate) fn write(self, row: &[f32], bytes: &mut [u8]) {
        match self {
            Self::F32 => {
                for (x, bytes) in row.iter().zip(bytes.chunks_exact_mut(4)) {
                    bytes.copy_from_slice(&x.to_le_bytes());
                }
            }
            Self::F16 => pack_f16(row, bytes),
            Self::Q8_0 => pack_q8_0(row, bytes),
            Self::Q4_0 => pack_q4_0(row, bytes),
        }
    }

    /// Unpacks `bytes` into `row`, without undoing the Hadamard transform.
    pub(crate) fn read(self, bytes: &[u8], row: &mut [f32]) {
        // SAFETY: the level was detected; `unpack` checks the lengths.
        unsafe { unpack(crate::simd_level(), self, bytes, row) };
    }
}

impl fmt::Display for CacheType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CacheType {
    type Err = UnknownCacheType;

    fn from_str(name: &str) -> Result<Self, UnknownCacheType> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownCacheType(name.to_owned()))
    }
}

/// Multiplies `row` by a normalised Hadamard matrix, in place; block by block if its length is not a power of two.
pub(crate) fn hadamard(row: &mut [f32]) {
    let block = 1 << row.len().trailing_zeros();
    let factor = 1.0 / (block as f32).sqrt();
    for row in row.chunks_exact_mut(block) {
        let mut half = 1;
        while half < block {
            for pair in row.chunks_exact_mut(2 * half) {
                let (a, b) = pair.split_at_mut(half);
                for (a, b) in a.iter_mut().zip(b) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            half *= 2;
        }
        row.iter_mut().for_each(|x| *x *= factor);
    }
}

/// Numbers converted between f32 and f16 at a time, on the stack.
const HALVES: usize = 64;

fn pack_f16(row: &[f32], out: &mut [u8]) {
    let mut halves = [f16::ZERO; HALVES];
    for (values, out) in row.chunks(HALVES).zip(out.chunks_mut(2 * HALVES)) {
        let halves = &mut halves[..values.len()];
        halves.convert_from_f32_slice(values);
        for (half, out) in halves.iter().zip(out.chunks_exact_mut(2)) {
            out.copy_from_slice(&half.to_le_bytes());
        }
    }
}

/// As in ggml: the number with the largest magnitude in a block becomes 127 or -127, and the scale is rounded to f16.
fn pack_q8_0(row: &[f32], out: &mut [u8]) {
    for (values, out) in row.chunks(BLOCK).zip(out.chunks_exact_mut(Q8Rows::BYTES)) {
        let largest = values.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        let scale = largest / 127.0;
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        let (head, body) = out.split_at_mut(2);
        head.copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        for (i, out) in body.iter_mut().enumerate() {
            let x = values.get(i).map_or(0.0, |x| (x * inverse).round());
            *out = (x as i8).cast_unsigned();
        }
    }
}

/// Candidates for the step (in absolute value) to which the largest number of a block is mapped. Steps range from -8 to
/// 7: 9 clamps the largest number to -8, 7 makes all other numbers coarser.
const REACHES: [f32; 5] = [8.0, 7.0, 7.5, 8.5, 9.0];

/// Packs a row as q4_0; each block gets the scale of [`REACHES`] with the least squared error.
fn pack_q4_0(row: &[f32], bytes: &mut [u8]) {
    for (values, bytes) in row.chunks(BLOCK).zip(bytes.chunks_exact_mut(Q4Rows::BYTES)) {
        let mut block = [0.0f32; BLOCK];
        block[..values.len()].copy_from_slice(values);
        let furthest = block.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        // Steps reach -8 but only 7, so the sign of the scale maps the largest number to the negative side.
        let furthest = if block.contains(&furthest) {
            -furthest
        } else {
            furthest
        };
        let mut best = (f32::INFINITY, f16::ZERO, [0.0; BLOCK]);
        for reach in REACHES {
            let scale = f16::from_f32(furthest / reach);
            let (steps, error) = steps(&block, scale.to_f32());
            if error < best.0 {
                best = (error, scale, steps);
            }
        }
        let (_, scale, steps) = best;
        bytes[..2].copy_from_slice(&scale.to_le_bytes());
        let (low, high) = steps.split_at(BLOCK / 2);
        for ((byte, low), high) in bytes[2..].iter_mut().zip(low).zip(high) {
            *byte = (low + 8.0) as u8 | ((high + 8.0) as u8) << 4;
        }
    }
}

/// The nearest integers in -8..=7 to the block divided by `scale`, and the squared error of the result.
fn steps(block: &[f32; BLOCK], scale: f32) -> ([f32; BLOCK], f32) {
    // 1.5 * 2^23: adding it rounds an f32 to the nearest integer.
    const ROUNDER: f32 = 12_582_912.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let mut sums = [0.0; 4];
    let mut steps = [0.0; BLOCK];
    for (i, (x, step)) in block.iter().zip(&mut steps).enumerate() {
        *step = ((x * inverse + ROUNDER) - ROUNDER).clamp(-8.0, 7.0);
        let difference = x - *step * scale;
        sums[i % 4] += difference * difference;
    }
    (steps, sums.iter().sum())
}

by_level! {
    /// # Safety
    /// The CPU supports the level's instructions.
    unsafe fn unpack(kind: CacheType, bytes: &[u8], row: &mut [f32]) = unpack_lanes;
}

/// Unpacks `bytes` into `row`, without undoing the Hadamard transform.
///
/// # Safety
/// Call only from code compiled for the level of `V`.
///
/// # Panics
/// If the lengths do not match.
#[inline(always)]
pub(crate) unsafe fn unpack_lanes<V: Lanes>(kind: CacheType, bytes: &[u8], row: &mut [f32]) {
    assert_eq!(bytes.len(), kind.row_bytes(row.len()), "bytes of a row");
    let bytes = bytes.as_ptr();
    // SAFETY: the lengths match; the caller guarantees the level.
    unsafe {
        match kind {
            CacheType::F32 => row_format::unpack::<V, F32Rows>(bytes, row),
            CacheType::F16 => row_format::unpack::<V, F16Rows>(bytes, row),
            CacheType::Q8_0 => row_format::unpack::<V, Q8Rows>(bytes, row),
            CacheType::Q4_0 => row_format::unpack::<V, Q4Rows>(bytes, row),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(len: usize) -> Vec<f32> {
        (0..len)
            .map(|i| (i as f32 * 0.37).sin() * (1.0 + (i % 7) as f32))
            .collect()
    }

    fn round_trip(kind: CacheType, row: &[f32]) -> Vec<f32> {
        let mut store = crate::RowStore::stored(kind, row.len(), &[3], &[2], false);
        store.write(0, 1, row);
        let mut back = vec![f32::NAN; row.len()];
        store.read(0, 1, &mut back);
        back
    }

    #[test]
    fn rows_come_back_as_exactly_as_their_type_allows() {
        for len in [20, 32, 64, 80, 96, 128, 250, 256] {
            let row = row(len);
            let norm = row.iter().map(|x| x * x).sum::<f32>().sqrt();
            let most = [0.0, 4e-4, 6e-3, 0.17];
            for (kind, most) in CacheType::ALL.into_iter().zip(most) {
                let back = round_trip(kind, &row);
                let difference = row.iter().zip(&back).map(|(x, y)| (x - y) * (x - y));
                let error = difference.sum::<f32>().sqrt() / norm;
                assert!(error <= most, "{kind} {len}: {error}");
                assert!(kind == CacheType::F32 || error > 0.0, "{kind} rounds");
            }
        }
    }

    #[test]
    fn turning_twice_is_nothing_and_keeps_dot_products() {
        for len in [16, 64, 80, 96, 250] {
            let (a, b) = (row(len), row(2 * len)[len..].to_vec());
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
            let (mut x, mut y) = (a.clone(), b.clone());
            hadamard(&mut x);
            hadamard(&mut y);
            assert_ne!(x, a);
            assert!((dot(&x, &y) - dot(&a, &b)).abs() < 1e-3, "{len}");
            hadamard(&mut x);
            for (x, a) in x.iter().zip(&a) {
                assert!((x - a).abs() < 1e-5, "{len}: {x} {a}");
            }
        }
    }

    #[test]
    fn q4_0_error_stays_small_with_an_outlier() {
        let mut row = vec![0.01; 64];
        row[5] = 40.0;
        let back = round_trip(CacheType::Q4_0, &row);
        // After the transform all 64 numbers are about 5 or -5; one of the two signs has 7 steps instead of 8.
        assert!((back[5] - 40.0).abs() < 2.5, "{}", back[5]);
    }

    #[test]
    fn every_level_reads_the_same() {
        for kind in CacheType::ALL {
            let row = row(83);
            let mut bytes = vec![0; kind.row_bytes(83)];
            kind.write(&row, &mut bytes);
            let read = |level: crate::SimdLevel| {
                let mut back = vec![0.0; 83];
                level.with(|| kind.read(&bytes, &mut back));
                back
            };
            let expected = read(crate::SimdLevel::Scalar);
            for level in crate::SimdLevel::available() {
                assert_eq!(read(level), expected, "{kind} {level:?}");
            }
        }
    }

    #[test]
    fn names_are_read_back() {
        for kind in CacheType::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        let error = "q5".parse::<CacheType>().unwrap_err().to_string();
        assert!(error.contains("q5") && error.contains("q8_0"), "{error}");
    }
}
