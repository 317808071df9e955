//! Dot products in registers of the formats of blocks of 256 numbers.

use std::arch::x86_64::*;

use super::super::format::{Format, Q5K, Unpacked, six_bits};
use super::super::lists::IQ4;
use super::x86::{half, load, nibbles_of, prefetch, signed, sum_of_blocks, unsigned};
use super::{ROWS, Row};
use crate::x86::sum4;

/// The sixteen six-bit scales of a Q3_K block, in order, each 32 too large.
#[inline(always)]
unsafe fn sixteen_scales(at: *const u8) -> __m128i {
    // SAFETY: the caller guarantees the instructions and twelve readable bytes.
    unsafe {
        let words = at.cast::<i32>();
        let [a, b, upper] = [0, 1, 2].map(|i| words.add(i).read_unaligned());
        let lower = _mm_setr_epi32(a, b, a >> 4, b >> 4);
        let upper = _mm_setr_epi32(upper, upper >> 2, upper >> 4, upper >> 6);
        _mm_or_si128(
            _mm_and_si128(lower, _mm_set1_epi8(15)),
            _mm_slli_epi16::<4>(_mm_and_si128(upper, _mm_set1_epi8(3))),
        )
    }
}

/// Q2_K, and Q3_K, which has third bits instead of minima. A number of Q3_K is an unsigned one of three bits less 4: as
/// a minimum of four scales.
#[inline(always)]
pub(super) unsafe fn pairs_of_256<F: Format, const VNNI: bool>(
    rows: [&[u8]; ROWS],
    input: Row<'_>,
) -> [f32; ROWS] {
    let has_third = !F::MINS;
    // SAFETY: the caller guarantees the instructions; rows and input have the same number of whole blocks.
    unsafe {
        let pair = _mm256_set1_epi8(3);
        let pairs_at = if has_third { 32 } else { 16 };
        sum_of_blocks!(F, rows, input, |at, block, both| {
            let scales = scales_of_pairs::<F>(at, input, block, &mut both);
            let third = load(at);
            let x = input.bytes.as_ptr().add(256 * block).cast::<u8>();
            for part in 0..2 {
                let pairs = load(at.add(pairs_at + 32 * part));
                let quarters = [
                    pairs,
                    _mm256_srli_epi16::<2>(pairs),
                    _mm256_srli_epi16::<4>(pairs),
                    _mm256_srli_epi16::<6>(pairs),
                ];
                for (q, pairs) in quarters.into_iter().enumerate() {
                    let mut weights = _mm256_and_si256(pairs, pair);
                    if has_third {
                        let bit = _mm256_set1_epi8((1u8 << (4 * part + q)).cast_signed());
                        let unset =
                            _mm256_cmpeq_epi8(_mm256_and_si256(third, bit), _mm256_setzero_si256());
                        let bit = _mm256_andnot_si256(unset, _mm256_set1_epi8(4));
                        weights = _mm256_or_si256(weights, bit);
                    }
                    let x = load(x.add(32 * (4 * part + q)));
                    let products = _mm256_cvtepi32_ps(unsigned::<VNNI>(weights, x));
                    let group = 8 * part + 2 * q;
                    let scale =
                        _mm256_set_m128(_mm_set1_ps(scales[group + 1]), _mm_set1_ps(scales[group]));
                    both[q % 2] = _mm256_fmadd_ps(products, scale, both[q % 2]);
                }
            }
        })
    }
}

/// The scales of 16 numbers each in the block at `at`, times the levels of the input; the minima's share of the product
/// is subtracted from `both`.
#[inline(always)]
unsafe fn scales_of_pairs<F: Format>(
    at: *const u8,
    input: Row<'_>,
    block: usize,
    both: &mut [__m256; 2],
) -> [f32; 16] {
    let has_third = !F::MINS;
    let mut scales = [0.0f32; 16];
    // SAFETY: as in `pairs_of_256`.
    unsafe {
        let low = _mm_set1_epi8(15);
        // The levels of 32 numbers each, once for each 16 of them.
        let doubled = [
            _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3),
            _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7),
        ];
        let d = _mm256_set1_ps(half(at.add(if has_third { 108 } else { 80 })));
        let (packed, mins, min_d) = if has_third {
            let scales = _mm_sub_epi8(sixteen_scales(at.add(96)), _mm_set1_epi8(32));
            (scales, scales, _mm256_mul_ps(d, _mm256_set1_ps(4.0)))
        } else {
            let packed = _mm_loadu_si128(at.cast());
            let mins = _mm_and_si128(_mm_srli_epi16::<4>(packed), low);
            let min_d = _mm256_set1_ps(half(at.add(82)));
            (_mm_and_si128(packed, low), mins, min_d)
        };
        let levels = _mm256_loadu_ps(input.scales.as_ptr().add(8 * block));
        for (part, doubled) in doubled.into_iter().enumerate() {
            let of_part = |bytes: __m128i| {
                let bytes = if part == 0 {
                    bytes
                } else {
                    _mm_srli_si128::<8>(bytes)
                };
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))
            };
            let level = _mm256_permutevar8x32_ps(levels, doubled);
            let scale = _mm256_mul_ps(of_part(packed), _mm256_mul_ps(d, level));
            _mm256_storeu_ps(scales.as_mut_ptr().add(8 * part), scale);
            let min = _mm256_mul_ps(of_part(mins), _mm256_mul_ps(min_d, level));
            let sums = input.byte_sums.as_ptr().add(16 * block + 8 * part);
            let sums = _mm256_cvtepi32_ps(_mm256_loadu_si256(sums.cast()));
            both[part] = _mm256_fnmadd_ps(min, sums, both[part]);
        }
    }
    scales
}

/// Ternary numbers: unpacked one block after the other, with an offset of 128.
#[inline(always)]
pub(super) unsafe fn ternary<F: Format, const VNNI: bool>(
    rows: [&[u8]; ROWS],
    input: Row<'_>,
) -> [f32; ROWS] {
    // SAFETY: the caller guarantees the instructions; rows and input have the same number of whole blocks.
    unsafe {
        let offset = _mm256_set1_epi8(-128);
        let mut unpacked = Unpacked::new();
        let mut found = [_mm256_setzero_ps(); ROWS];
        for (found, row) in found.iter_mut().zip(rows) {
            let mut both = [_mm256_setzero_ps(); 2];
            for (block, bytes) in row.chunks_exact(F::BYTES).enumerate() {
                unpacked.fill::<F>(bytes);
                for group in 0..8 {
                    let weights = load(unpacked.quants.as_ptr().add(32 * group));
                    let weights = _mm256_xor_si256(weights, offset);
                    let thirty_two = 8 * block + group;
                    let x = load(input.bytes.as_ptr().add(32 * thirty_two).cast());
                    let products = _mm256_cvtepi32_ps(signed::<VNNI>(weights, x));
                    let level = *input.scales.get_unchecked(thirty_two);
                    let scale = _mm256_set1_ps(unpacked.scales[group] * level);
                    both[group % 2] = _mm256_fmadd_ps(products, scale, both[group % 2]);
                }
            }
            *found = _mm256_add_ps(both[0], both[1]);
        }
        sum4(found)
    }
}

/// Scales and minima of a K-quant block, `[8]` each, without the block's factors d and dmin.
#[inline(always)]
unsafe fn scales_and_mins(at: *const u8) -> (__m256, __m256) {
    // SAFETY: the caller guarantees the instructions and twelve readable bytes.
    unsafe {
        let [scales, mins] = six_bits(&*at.cast());
        (floats(scales), floats(mins))
    }
}

/// Converts eight bytes to f32.
#[inline(always)]
unsafe fn floats(bytes: u64) -> __m256 {
    // SAFETY: the caller guarantees the instructions.
    unsafe {
        let bytes = _mm_cvtsi64_si128(bytes.cast_signed());
        _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes))
    }
}

/// Q4_K, and Q5_K, which has fifth bits.
#[inline(always)]
pub(super) unsafe fn nibbles_of_256<F: Format, const VNNI: bool>(
    rows: [&[u8]; ROWS],
    input: Row<'_>,
) -> [f32; ROWS] {
    let has_fifth = F::BYTES == Q5K::BYTES;
    // SAFETY: the caller guarantees the instructions; rows and input have the same number of whole blocks.
    unsafe {
        let low = _mm256_set1_epi8(15);
        let quants = if has_fifth { 48 } else { 16 };
        sum_of_blocks!(F, rows, input, |at, block, both| {
            let levels = _mm256_loadu_ps(input.scales.as_ptr().add(8 * block));
            let totals = _mm256_loadu_ps(input.sums.as_ptr().add(8 * block));
            let (scale, min) = scales_and_mins(at.add(4));
            let scale = _mm256_mul_ps(scale, _mm256_set1_ps(half(at)));
            let mut scales = [0.0f32; 8];
            _mm256_storeu_ps(scales.as_mut_ptr(), _mm256_mul_ps(scale, levels));
            let min = _mm256_mul_ps(min, _mm256_set1_ps(half(at.add(2))));
            both[0] = _mm256_fnmadd_ps(min, totals, both[0]);
            let x = input.bytes.as_ptr().add(256 * block).cast::<u8>();
            for pair in 0..4 {
                let nibbles = load(at.add(quants + 32 * pair));
                let mut weights = [
                    _mm256_and_si256(nibbles, low),
                    _mm256_and_si256(_mm256_srli_epi16::<4>(nibbles), low),
                ];
                if has_fifth {
                    let fifth = load(at.add(16));
                    for (i, weights) in weights.iter_mut().enumerate() {
                        let group = _mm256_set1_epi8(1 << (2 * pair + i));
                        let unset = _mm256_cmpeq_epi8(
                            _mm256_and_si256(fifth, group),
                            _mm256_setzero_si256(),
                        );
                        let bit = _mm256_andnot_si256(unset, _mm256_set1_epi8(16));
                        *weights = _mm256_or_si256(*weights, bit);
                    }
                }
                for (i, (weights, sum)) in weights.into_iter().zip(&mut both).enumerate() {
                    let group = 2 * pair + i;
                    let x = load(x.add(32 * group));
                    let products = _mm256_cvtepi32_ps(unsigned::<VNNI>(weights, x));
                    let scale = _mm256_set1_ps(scales[group]);
                    *sum = _mm256_fmadd_ps(products, scale, *sum);
                }
            }
        })
    }
}

#[inline(always)]
pub(super) unsafe fn q6_k<F: Format, const VNNI: bool>(
    rows: [&[u8]; ROWS],
    input: Row<'_>,
) -> [f32; ROWS] {
    // SAFETY: the caller guarantees the instructions; rows and input have the same number of whole blocks.
    unsafe {
        let (low, pair, offset) = (
            _mm256_set1_epi8(15),
            _mm256_set1_epi8(0x30),
            _mm256_set1_epi8(32),
        );
        sum_of_blocks!(F, rows, input, |at, block, both| {
            let d = _mm256_set1_ps(half(at.add(208)));
            let mut scales = [0.0f32; 16];
            for part in 0..2 {
                let bytes = _mm_loadl_epi64(at.add(192 + 8 * part).cast());
                let of_part = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
                let to = scales.as_mut_ptr().add(8 * part);
                _mm256_storeu_ps(to, _mm256_mul_ps(of_part, d));
            }
            for part in 0..2 {
                let (first, second) = (load(at.add(64 * part)), load(at.add(64 * part + 32)));
                let upper = load(at.add(128 + 32 * part));
                // The two upper bits of each quarter, moved to bits 4 and 5.
                let quarters = [
                    (first, _mm256_slli_epi16::<4>(upper)),
                    (second, _mm256_slli_epi16::<2>(upper)),
                    (_mm256_srli_epi16::<4>(first), upper),
                    (
                        _mm256_srli_epi16::<4>(second),
                        _mm256_srli_epi16::<2>(upper),
                    ),
                ];
                for (q, (nibbles, upper)) in quarters.into_iter().enumerate() {
                    let weights = _mm256_or_si256(
                        _mm256_and_si256(nibbles, low),
                        _mm256_and_si256(upper, pair),
                    );
                    let weights = _mm256_sub_epi8(weights, offset);
                    let thirty_two = 8 * block + 4 * part + q;
                    let x = load(input.bytes.as_ptr().add(32 * thirty_two).cast());
                    let products = _mm256_cvtepi32_ps(signed::<VNNI>(weights, x));
                    let group = 8 * part + 2 * q;
                    let scale =
                        _mm256_set_m128(_mm_set1_ps(scales[group + 1]), _mm_set1_ps(scales[group]));
                    let level = *input.scales.get_unchecked(thirty_two);
                    let scale = _mm256_mul_ps(scale, _mm256_set1_ps(level));
                    both[q % 2] = _mm256_fmadd_ps(products, scale, both[q % 2]);
                }
            }
        })
    }
}

#[inline(always)]
pub(super) unsafe fn iq4_xs<F: Format, const VNNI: bool>(
    rows: [&[u8]; ROWS],
    input: Row<'_>,
) -> [f32; ROWS] {
    // SAFETY: the caller guarantees the instructions; rows and input have the same number of whole blocks.
    unsafe {
        let places = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
        let pairs = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
        sum_of_blocks!(F, rows, input, |at, block, both| {
            let upper = i32::from(at.add(2).cast::<u16>().read_unaligned());
            let lower = at.add(4).cast::<i32>().read_unaligned();
            let scale = _mm256_or_si256(
                _mm256_and_si256(
                    _mm256_srlv_epi32(_mm256_set1_epi32(lower), places),
                    _mm256_set1_epi32(15),
                ),
                _mm256_slli_epi32::<4>(_mm256_and_si256(
                    _mm256_srlv_epi32(_mm256_set1_epi32(upper), pairs),
                    _mm256_set1_epi32(3),
                )),
            );
            let scale = _mm256_sub_epi32(scale, _mm256_set1_epi32(32));
            let d = _mm256_set1_ps(half(at));
            let scale = _mm256_mul_ps(_mm256_cvtepi32_ps(scale), d);
            let levels = _mm256_loadu_ps(input.scales.as_ptr().add(8 * block));
            let mut scales = [0.0f32; 8];
            _mm256_storeu_ps(scales.as_mut_ptr(), _mm256_mul_ps(scale, levels));
            let x = input.bytes.as_ptr().add(256 * block).cast::<u8>();
            for (group, scale) in scales.into_iter().enumerate() {
                let weights = nibbles_of(&IQ4, at.add(8 + 16 * group));
                let x = load(x.add(32 * group));
                let products = _mm256_cvtepi32_ps(signed::<VNNI>(weights, x));
                let sum = &mut both[group % 2];
                *sum = _mm256_fmadd_ps(products, _mm256_set1_ps(scale), *sum);
            }
        })
    }
}
