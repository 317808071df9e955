//! Dot products in registers: 32 numbers per vector, with or without VNNI. Formats of blocks of 32 numbers, and of few
//! bits with one scale.

use std::arch::x86_64::*;

use super::super::format::{Format, Q1_0, Q2_0, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use super::super::lists::{FP4, HALF_POWERS, IQ4, Iq4Nl, Mxfp4};
use super::super::tile;
use super::{BLOCK, ROWS, Row};
use crate::x86::sum4;

/// Sums of four products each of unsigned `weights` of at most six bits and signed `input`.
#[inline(always)]
pub(super) unsafe fn unsigned<const VNNI: bool>(weights: __m256i, input: __m256i) -> __m256i {
    // SAFETY: the caller guarantees the instructions.
    unsafe {
        if VNNI {
            _mm256_dpbusd_epi32(_mm256_setzero_si256(), weights, input)
        } else {
            _mm256_madd_epi16(_mm256_maddubs_epi16(weights, input), _mm256_set1_epi16(1))
        }
    }
}

/// Sums of four products each of signed `weights` and signed `input`.
#[inline(always)]
pub(super) unsafe fn signed<const VNNI: bool>(weights: __m256i, input: __m256i) -> __m256i {
    // SAFETY: the caller guarantees the instructions. A pair sums to at most 2 * 128 * 127, which fits 16 bits.
    unsafe { unsigned::<VNNI>(_mm256_abs_epi8(weights), _mm256_sign_epi8(input, weights)) }
}

#[inline(always)]
pub(super) unsafe fn half(at: *const u8) -> f32 {
    // SAFETY: the caller guarantees the instructions and two readable bytes.
    unsafe {
        let bits = i32::from(at.cast::<u16>().read_unaligned());
        _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)))
    }
}

#[inline(always)]
pub(super) unsafe fn load(at: *const u8) -> __m256i {
    // SAFETY: the caller guarantees 32 readable bytes.
    unsafe { _mm256_loadu_si256(at.cast()) }
}

/// Prefetches the cache line `AHEAD` bytes after `at`; the address need not be valid.
#[inline(always)]
pub(super) fn prefetch(at: *const u8) {
    /// About as many bytes as memory delivers within its latency.
    const AHEAD: usize = 1536;
    tile::prefetch(at.wrapping_add(AHEAD));
}

/// Sums over the blocks of four rows: the body adds to the pair of vectors `$both` what block `$block` at `$at` gives.
macro_rules! sum_of_blocks {
    ($format:ident, $rows:ident, $input:ident, |$at:ident, $block:ident, $both:ident| $body:block) => {{
        let mut found = [_mm256_setzero_ps(); ROWS];
        for (found, row) in found.iter_mut().zip($rows) {
            let mut $both = [_mm256_setzero_ps(); 2];
            let mut $at = row.as_ptr();
            for $block in 0..$input.scales.len() / ($format::BLOCK_SIZE / 32) {
                for line in (0..$format::BYTES).step_by(64) {
                    prefetch($at.add(line));
                }
                $body
                $at = $at.add($format::BYTES);
            }
            *found = _mm256_add_ps($both[0], $both[1]);
        }
        sum4(found)
    }};
}
pub(super) use sum_of_blocks;

/// A format of blocks of 32 numbers that start with a scale, followed by the minimum (an added constant) if the
/// format has minima.
pub(super) trait BlockOf32: Format {
    /// Unpacks a block to bytes: signed, or unsigned of at most five bits if the format has minima.
    ///
    /// # Safety
    /// Needs AVX2, and a whole block at `at`.
    unsafe fn weights(at: *const u8) -> __m256i;

    /// The scale, and the minimum if any, in the lowest lanes.
    ///
    /// # Safety
    /// As [`Self::weights`].
    #[inline(always)]
    unsafe fn scale(at: *const u8) -> __m128 {
        // Loads four bytes: a two-byte load into a register would depend on the register's old value.
        // SAFETY: the caller guarantees the instructions; a block of every format has more than four bytes.
        unsafe { _mm_cvtph_ps(_mm_cvtsi32_si128(at.cast::<i32>().read_unaligned())) }
    }
}

#[inline(always)]
pub(super) unsafe fn blocks_of_32<F: BlockOf32, const VNNI: bool>(
    rows: [&[u8]; ROWS],
    input: Row<'_>,
) -> [f32; ROWS] {
    // SAFETY: the caller guarantees the instructions; rows and input have the same number of whole blocks.
    unsafe {
        let blocks = input.scales.len();
        let mut found = [_mm256_setzero_ps(); ROWS];
        for (found, row) in found.iter_mut().zip(rows) {
            // Two accumulators hide the latency of the additions; separate variables, because an indexed array
            // would stay in memory.
            let (mut even, mut odd) = (_mm256_setzero_ps(), _mm256_setzero_ps());
            let mut added = _mm_setzero_ps();
            let mut at = row.as_ptr();
            for pair in 0..blocks / 2 {
                even = block_of_32::<F, VNNI>(at, input, 2 * pair, even, &mut added);
                at = at.add(F::BYTES);
                odd = block_of_32::<F, VNNI>(at, input, 2 * pair + 1, odd, &mut added);
                at = at.add(F::BYTES);
            }
            if blocks % 2 == 1 {
                even = block_of_32::<F, VNNI>(at, input, blocks - 1, even, &mut added);
            }
            *found = _mm256_add_ps(even, odd);
            if F::MINS {
                let added = _mm_blend_ps::<0b0010>(_mm_setzero_ps(), added);
                *found = _mm256_add_ps(*found, _mm256_zextps128_ps256(added));
            }
        }
        sum4(found)
    }
}

/// Adds the product of the block at `at` with block `block` of the input to `sum`. If the format has minima, their
/// part is added to the second lane of `added`.
#[inline(always)]
unsafe fn block_of_32<F: BlockOf32, const VNNI: bool>(
    at: *const u8,
    input: Row<'_>,
    block: usize,
    sum: __m256,
    added: &mut __m128,
) -> __m256 {
    // SAFETY: the caller guarantees the instructions and both blocks.
    unsafe {
        prefetch(at);
        let x = load(input.bytes.as_ptr().add(block * BLOCK).cast());
        let halves = F::scale(at);
        let level = _mm_load_ss(input.scales.as_ptr().add(block));
        let (products, level) = if F::MINS {
            let total = _mm_load_ss(input.sums.as_ptr().add(block));
            let both = _mm_mul_ps(halves, _mm_unpacklo_ps(level, total));
            *added = _mm_add_ps(*added, both);
            (unsigned::<VNNI>(F::weights(at), x), both)
        } else {
            (signed::<VNNI>(F::weights(at), x), _mm_mul_ss(level, halves))
        };
        _mm256_fmadd_ps(
            _mm256_cvtepi32_ps(products),
            _mm256_broadcastss_ps(level),
            sum,
        )
    }
}

impl BlockOf32 for Q8_0 {
    #[inline(always)]
    unsafe fn weights(at: *const u8) -> __m256i {
        // SAFETY: guaranteed by the caller.
        unsafe { load(at.add(2)) }
    }
}

impl BlockOf32 for Q4_0 {
    #[inline(always)]
    unsafe fn weights(at: *const u8) -> __m256i {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm256_sub_epi8(nibbles(at.add(2)), _mm256_set1_epi8(8)) }
    }
}

impl BlockOf32 for Q5_0 {
    #[inline(always)]
    unsafe fn weights(at: *const u8) -> __m256i {
        // SAFETY: guaranteed by the caller.
        unsafe {
            // Without the fifth bit the number is 16 less: sets the upper bits of its two's complement.
            let less = _mm256_andnot_si256(
                expand_bits(at.add(2).cast::<u32>().read_unaligned()),
                _mm256_set1_epi8(0xf0_u8 as i8),
            );
            _mm256_or_si256(nibbles(at.add(6)), less)
        }
    }
}

impl BlockOf32 for Q4_1 {
    #[inline(always)]
    unsafe fn weights(at: *const u8) -> __m256i {
        // SAFETY: guaranteed by the caller.
        unsafe { nibbles(at.add(4)) }
    }
}

impl BlockOf32 for Q5_1 {
    #[inline(always)]
    unsafe fn weights(at: *const u8) -> __m256i {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let more = _mm256_and_si256(
                expand_bits(at.add(4).cast::<u32>().read_unaligned()),
                _mm256_set1_epi8(16),
            );
            _mm256_or_si256(nibbles(at.add(8)), more)
        }
    }
}

impl BlockOf32 for Iq4Nl {
    #[inline(always)]
    unsafe fn weights(at: *const u8) -> __m256i {
        // SAFETY: guaranteed by the caller.
        unsafe { nibbles_of(&IQ4, at.add(2)) }
    }
}

impl BlockOf32 for Mxfp4 {
    #[inline(always)]
    unsafe fn weights(at: *const u8) -> __m256i {
        // SAFETY: guaranteed by the caller.
        unsafe { nibbles_of(&FP4, at.add(1)) }
    }

    #[inline(always)]
    unsafe fn scale(at: *const u8) -> __m128 {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm_load_ss(HALF_POWERS.as_ptr().add(usize::from(*at))) }
    }
}

/// Expands 16 bytes of nibbles to the 32 numbers of `list` that they index.
#[inline(always)]
pub(super) unsafe fn nibbles_of(list: &[i8; 16], at: *const u8) -> __m256i {
    // SAFETY: the caller guarantees the instructions and 16 readable bytes.
    unsafe {
        let list = _mm256_broadcastsi128_si256(_mm_loadu_si128(list.as_ptr().cast()));
        _mm256_shuffle_epi8(list, nibbles(at))
    }
}

/// Expands 32 bits to 32 bytes: byte i is all ones where bit i is set.
#[inline(always)]
pub(super) unsafe fn expand_bits(bits: u32) -> __m256i {
    // SAFETY: the caller guarantees the instructions.
    unsafe {
        let spread = _mm256_set_epi64x(
            0x0303_0303_0303_0303,
            0x0202_0202_0202_0202,
            0x0101_0101_0101_0101,
            0,
        );
        let others = _mm256_set1_epi64x(0x7fbf_dfef_f7fb_fdfe);
        let bits = _mm256_set1_epi32(bits.cast_signed());
        let bits = _mm256_or_si256(_mm256_shuffle_epi8(bits, spread), others);
        _mm256_cmpeq_epi8(bits, _mm256_set1_epi8(-1))
    }
}

/// Expands 16 bytes of nibbles to 32 bytes.
#[inline(always)]
unsafe fn nibbles(at: *const u8) -> __m256i {
    // SAFETY: the caller guarantees the instructions and 16 readable bytes.
    unsafe {
        let both = _mm_loadu_si128(at.cast());
        let high = _mm_srli_epi16::<4>(both);
        _mm256_and_si256(_mm256_set_m128i(high, both), _mm256_set1_epi8(15))
    }
}

/// A format of blocks of a scale and then 64 or 128 numbers.
pub(super) trait OneScale: Format {
    /// Unpacks numbers `32 * n..32 * n + 32` of a block to signed bytes.
    ///
    /// # Safety
    /// Needs AVX2, and a whole block at `at` with these numbers.
    unsafe fn weights(at: *const u8, n: usize) -> __m256i;
}

#[inline(always)]
pub(super) unsafe fn one_scale<F: OneScale, const VNNI: bool>(
    rows: [&[u8]; ROWS],
    input: Row<'_>,
) -> [f32; ROWS] {
    let each = F::BLOCK_SIZE / BLOCK;
    // SAFETY: the caller guarantees the instructions; rows and input have the same number of whole blocks.
    unsafe {
        sum_of_blocks!(F, rows, input, |at, block, both| {
            let d = half(at);
            for n in 0..each {
                let thirty_two = block * each + n;
                let x = load(input.bytes.as_ptr().add(thirty_two * BLOCK).cast());
                let products = _mm256_cvtepi32_ps(signed::<VNNI>(F::weights(at, n), x));
                let scale = _mm256_set1_ps(d * *input.scales.get_unchecked(thirty_two));
                both[n % 2] = _mm256_fmadd_ps(products, scale, both[n % 2]);
            }
        })
    }
}

impl OneScale for Q1_0 {
    #[inline(always)]
    unsafe fn weights(at: *const u8, n: usize) -> __m256i {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let set = expand_bits(at.add(2 + 4 * n).cast::<u32>().read_unaligned());
            let two = _mm256_and_si256(set, _mm256_set1_epi8(2));
            _mm256_sub_epi8(two, _mm256_set1_epi8(1))
        }
    }
}

impl OneScale for Q2_0 {
    #[inline(always)]
    unsafe fn weights(at: *const u8, n: usize) -> __m256i {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let packed = _mm256_set1_epi64x(at.add(2 + 8 * n).cast::<i64>().read_unaligned());
            // Each byte four times.
            let spread = _mm256_setr_epi32(
                0,
                0x0101_0101,
                0x0202_0202,
                0x0303_0303,
                0x0404_0404,
                0x0505_0505,
                0x0606_0606,
                0x0707_0707,
            );
            let bytes = _mm256_shuffle_epi8(packed, spread);
            // The first two numbers of a byte are in its low nibble, the other two in its high one.
            let high = _mm256_srli_epi16::<4>(bytes);
            let nibbles = _mm256_blend_epi16::<0b1010_1010>(bytes, high);
            let nibbles = _mm256_and_si256(nibbles, _mm256_set1_epi8(15));
            let list = |numbers: [i8; 16]| {
                let numbers = _mm_loadu_si128(numbers.as_ptr().cast());
                _mm256_broadcastsi128_si256(numbers)
            };
            let first = list([-1, 0, 1, 2, -1, 0, 1, 2, -1, 0, 1, 2, -1, 0, 1, 2]);
            let second = list([-1, -1, -1, -1, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
            _mm256_blendv_epi8(
                _mm256_shuffle_epi8(first, nibbles),
                _mm256_shuffle_epi8(second, nibbles),
                _mm256_set1_epi16(0xff00_u16.cast_signed()),
            )
        }
    }
}
