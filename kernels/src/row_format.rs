//! Memory layout of packed rows, and how their numbers are loaded into registers: one type per
//! [`CacheType`](crate::CacheType).
//!
//! A row is read [`BLOCK`] numbers at a time, because in quantised types that many numbers share a scale. Scales are
//! f16 and quantised steps have at most 8 bits, so every product of the two is exact: all SIMD levels read the same
//! numbers.

use crate::simd::{Lanes, half_to_f32};

/// Numbers per block.
pub(crate) const BLOCK: usize = 32;

/// A storage format for the numbers of a row.
pub(crate) trait RowFormat {
    /// Bytes per block of [`BLOCK`] numbers.
    const BYTES: usize;

    /// Loads numbers `first..first + V::N` of a block, without undoing the Hadamard transform.
    ///
    /// # Safety
    /// The block holds these numbers, `first` is a multiple of `V::N`, and the caller runs at the level of `V`.
    unsafe fn vector<V: Lanes>(block: *const u8, first: usize) -> V;

    /// Number `i` of a block.
    ///
    /// # Safety
    /// The block holds number `i`.
    unsafe fn single(block: *const u8, i: usize) -> f32;
}

/// [`crate::CacheType::F32`], in native byte order.
pub(crate) struct F32Rows;

/// [`crate::CacheType::F16`]
pub(crate) struct F16Rows;

/// [`crate::CacheType::Q8_0`]
pub(crate) struct Q8Rows;

/// [`crate::CacheType::Q4_0`]
pub(crate) struct Q4Rows;

impl RowFormat for F32Rows {
    const BYTES: usize = 4 * BLOCK;

    #[inline(always)]
    unsafe fn vector<V: Lanes>(block: *const u8, first: usize) -> V {
        // SAFETY: guaranteed by the caller.
        unsafe { V::load(block.cast::<f32>().add(first)) }
    }
    #[inline(always)]
    unsafe fn single(block: *const u8, i: usize) -> f32 {
        // SAFETY: guaranteed by the caller.
        unsafe { block.cast::<f32>().add(i).read_unaligned() }
    }
}

impl RowFormat for F16Rows {
    const BYTES: usize = 2 * BLOCK;

    #[inline(always)]
    unsafe fn vector<V: Lanes>(block: *const u8, first: usize) -> V {
        // SAFETY: guaranteed by the caller.
        unsafe { V::load_halves(block.add(2 * first)) }
    }
    #[inline(always)]
    unsafe fn single(block: *const u8, i: usize) -> f32 {
        // SAFETY: guaranteed by the caller.
        unsafe { half(block.add(2 * i)) }
    }
}

/// Bytes of a block's scale, which precedes its numbers.
const SCALE: usize = 2;

impl RowFormat for Q8Rows {
    const BYTES: usize = SCALE + BLOCK;

    #[inline(always)]
    unsafe fn vector<V: Lanes>(block: *const u8, first: usize) -> V {
        // SAFETY: guaranteed by the caller.
        unsafe { V::load_bytes(block.add(SCALE + first)).mul(V::splat_half(block)) }
    }
    #[inline(always)]
    unsafe fn single(block: *const u8, i: usize) -> f32 {
        // SAFETY: guaranteed by the caller.
        unsafe { f32::from((*block.add(SCALE + i)).cast_signed()) * half(block) }
    }
}

impl RowFormat for Q4Rows {
    const BYTES: usize = SCALE + BLOCK / 2;

    #[inline(always)]
    unsafe fn vector<V: Lanes>(block: *const u8, first: usize) -> V {
        let high = first >= BLOCK / 2;
        // SAFETY: guaranteed by the caller; vectors are at most half a block.
        unsafe {
            let steps = V::load_nibbles(block.add(SCALE + first % (BLOCK / 2)), high);
            let scale = V::splat_half(block);
            steps.mul_add(scale, scale.mul(V::splat(-8.0)))
        }
    }
    #[inline(always)]
    unsafe fn single(block: *const u8, i: usize) -> f32 {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let pair = *block.add(SCALE + i % (BLOCK / 2));
            let steps = if i < BLOCK / 2 { pair & 15 } else { pair >> 4 };
            (f32::from(steps) - 8.0) * half(block)
        }
    }
}

/// # Safety
/// `from` covers two bytes.
#[inline(always)]
unsafe fn half(from: *const u8) -> f32 {
    // SAFETY: guaranteed by the caller.
    half_to_f32(unsafe { from.cast::<[u8; 2]>().read() })
}

/// Unpacks the row at `bytes` into `row`.
///
/// # Safety
/// `bytes` covers `row.len()` numbers, and the caller runs at the level of `V`.
#[inline(always)]
pub(crate) unsafe fn unpack<V: Lanes, S: RowFormat>(bytes: *const u8, row: &mut [f32]) {
    for (number, values) in row.chunks_mut(BLOCK).enumerate() {
        // SAFETY: guaranteed by the caller; vectors and single numbers stay inside the block.
        unsafe {
            let block = bytes.add(number * S::BYTES);
            let whole = values.len() - values.len() % V::N;
            for first in (0..whole).step_by(V::N) {
                S::vector::<V>(block, first).store(values.as_mut_ptr().add(first));
            }
            for (i, x) in values.iter_mut().enumerate().skip(whole) {
                *x = S::single(block, i);
            }
        }
    }
}
