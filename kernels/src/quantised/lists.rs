//! The block formats of ggml whose bits index a list of numbers: IQ1 to IQ4, TQ and MXFP4. As in `format.rs`, each
//! unpacks a block to integers and scales; quants are offset by 128.
//!
//! The lists are part of the formats. `lists.bin` holds those of IQ1 to IQ3, packed: 16 bits for each vector, the first
//! number in the lowest bits (`tests/golden/weight_types.py` writes it).

use super::format::{
    Format, ONES, formats, half, half_at, half_word, nibbles, ones_where, part, word,
};

const PACKED: &[u8; 2 * (256 + 512 + 1024 + 256 + 512 + 2048)] = include_bytes!("lists.bin");

/// The list of `COUNT` vectors that starts at vector `first` of the file, `bits` for each number, which index `numbers`.
const fn list<const COUNT: usize, const LENGTH: usize>(
    first: usize,
    bits: u32,
    numbers: &[i8],
) -> [[i8; LENGTH]; COUNT] {
    let mut list = [[0; LENGTH]; COUNT];
    let mut v = 0;
    while v < COUNT {
        let at = 2 * (first + v);
        let packed = u16::from_le_bytes([PACKED[at], PACKED[at + 1]]);
        let mut i = 0;
        while i < LENGTH {
            let index = packed >> (bits * i as u32) & ((1 << bits) - 1);
            list[v][i] = numbers[index as usize];
            i += 1;
        }
        v += 1;
    }
    list
}

pub(super) static IQ2_XXS: [[i8; 8]; 256] = list(0, 2, &[8, 25, 43, 0]);
pub(super) static IQ2_XS: [[i8; 8]; 512] = list(256, 2, &[8, 25, 43, 0]);
pub(super) static IQ2_S: [[i8; 8]; 1024] = list(768, 2, &[8, 25, 43, 0]);
pub(super) static IQ3_XXS: [[i8; 4]; 256] = list(1792, 3, &[4, 12, 20, 28, 36, 44, 52, 62]);
pub(super) static IQ3_S: [[i8; 4]; 512] = list(2048, 3, &[1, 3, 5, 7, 9, 11, 13, 15]);
/// Eighths.
pub(super) static IQ1: [[i8; 8]; 2048] = list(2560, 2, &[-8, 0, 8, 0]);
pub(super) const IQ4: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];
/// Halves: 0, 1/2, 1, 3/2, 2, 3, 4 and 6, then the same with a minus.
pub(super) const FP4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Eight numbers in a word, the first in its lowest byte.
#[inline(always)]
fn eight(numbers: &[i8; 8]) -> u64 {
    u64::from_le_bytes(numbers.map(i8::cast_unsigned))
}

/// As [`eight`], of two vectors.
#[inline(always)]
fn two_of_four(first: &[i8; 4], second: &[i8; 4]) -> u64 {
    let [first, second] = [first, second]
        .map(|numbers| u64::from(u32::from_le_bytes(numbers.map(i8::cast_unsigned))));
    first | second << 32
}

/// `quants [8] = numbers`, which are above 0, negative where a bit of `signs` is set.
#[inline(always)]
fn signed(numbers: u64, signs: u8, quants: &mut [u8]) {
    let minus = ones_where(signs);
    // Two's complement of the bytes with a minus; none of them is 0, so that no byte carries.
    let numbers = (numbers ^ (minus * 0xff)) + minus;
    quants.copy_from_slice(&(numbers ^ (0x80 * ONES)).to_le_bytes());
}

/// Seven signs; the eighth makes the number of minuses even.
#[inline(always)]
fn even_signs(seven: u32) -> u8 {
    let seven = (seven & 127) as u8;
    seven | ((seven.count_ones() & 1) << 7) as u8
}

/// The low nibbles of `packed [16]`, then the high ones, as numbers of `list`, offset by 128.
#[inline(always)]
fn nibbles_of(list: &[i8; 16], packed: &[u8; 16], quants: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("ssse3") {
        // SAFETY: the CPU has the instruction.
        return unsafe { shuffled(list, packed, quants) };
    }
    nibbles(packed, quants);
    for quant in quants {
        *quant = 128u8.wrapping_add_signed(list[usize::from(*quant)]);
    }
}

/// [`nibbles_of`], by an instruction that indexes a list of 16 bytes.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "ssse3")]
fn shuffled(list: &[i8; 16], packed: &[u8; 16], quants: &mut [u8]) {
    use std::arch::x86_64::*;
    let (low, high) = quants.split_at_mut(16);
    // SAFETY: both lists and both halves have at least 16 bytes.
    unsafe {
        let list = _mm_loadu_si128(list.as_ptr().cast());
        let list = _mm_xor_si128(list, _mm_set1_epi8(-128));
        let packed = _mm_loadu_si128(packed.as_ptr().cast());
        for (half, packed) in [(low, packed), (high, _mm_srli_epi16::<4>(packed))] {
            let numbers = _mm_shuffle_epi8(list, _mm_and_si128(packed, _mm_set1_epi8(15)));
            _mm_storeu_si128(half[..16].as_mut_ptr().cast(), numbers);
        }
    }
}

/// Half of the power of two that each exponent stands for (E8M0), so that [`FP4`] can be in halves.
/// A table: computing them took a third of a product's time.
pub(super) static HALF_POWERS: [f32; 256] = {
    let mut powers = [0.0; 256];
    let mut exponent = 0;
    while exponent < 256 {
        powers[exponent] = f32::from_bits(match exponent {
            0 | 1 => 0x0020_0000 << exponent,
            _ => (exponent as u32 - 1) << 23,
        });
        exponent += 1;
    }
    powers
};

/// Unpacks the scales of an IQ4_XS block.
#[inline(always)]
pub(super) fn iq4_xs_scales(block: &[u8; 136], scales: &mut [f32]) {
    let (d, upper) = (half_at(block, 0), half_word(block, 2));
    for (group, out) in scales[..8].iter_mut().enumerate() {
        let low = block[4 + group / 2] >> (4 * (group % 2)) & 15;
        let scale = u16::from(low) | (upper >> (2 * group) & 3) << 4;
        *out = d * (f32::from(scale) - 32.0);
    }
}

/// Numbers of the list of IQ1, each an eighth more or less.
#[inline(always)]
fn shifted(index: usize, less: bool, quants: &mut [u8]) {
    let numbers = eight(&IQ1[index]) ^ (0x80 * ONES);
    let numbers = if less { numbers - ONES } else { numbers + ONES };
    quants.copy_from_slice(&numbers.to_le_bytes());
}

/// Digit `n` of the five ternary digits of a byte, which is a fraction of 256; as a quant.
#[inline(always)]
fn digit(byte: u8, n: usize) -> u8 {
    let rest = byte.wrapping_mul([1, 3, 9, 27, 81][n]);
    127 + ((u16::from(rest) * 3) >> 8) as u8
}

formats! {
    /// `f16 d, 16 bytes of nibbles`.
    Iq4Nl: 32 numbers in 18 bytes, group 32, offset 128, mins false, |block, quants, scales, _| {
        scales[0] = half_at(block, 0);
        nibbles_of(&IQ4, part(block, 2), quants);
    };
    /// `f16 d, upper two bits of 8 scales, 4 bytes of their lower nibbles, 128 bytes of nibbles`.
    Iq4Xs: 256 numbers in 136 bytes, group 32, offset 128, mins false, |block, quants, scales, _| {
        iq4_xs_scales(block, scales);
        for (group, quants) in quants.chunks_exact_mut(32).enumerate() {
            nibbles_of(&IQ4, part(block, 8 + 16 * group), quants);
        }
    };
    /// `exponent, 16 bytes of nibbles`.
    Mxfp4: 32 numbers in 17 bytes, group 32, offset 128, mins false, |block, quants, scales, _| {
        scales[0] = HALF_POWERS[usize::from(block[0])];
        nibbles_of(&FP4, part(block, 1), quants);
    };
    /// `f16 d`, then for 32 numbers: 4 indices, and 4 times 7 signs with a scale above.
    Iq2Xxs: 256 numbers in 66 bytes, group 32, offset 128, mins false, |block, quants, scales, _| {
        let d = half_at(block, 0);
        for (group, quants) in quants.chunks_exact_mut(32).enumerate() {
            let indices = &block[2 + 8 * group..][..4];
            let signs = word(block, 2 + 8 * group + 4);
            scales[group] = d * (0.5 + (signs >> 28) as f32) * 0.25;
            for (i, (quants, &index)) in quants.chunks_exact_mut(8).zip(indices).enumerate() {
                signed(eight(&IQ2_XXS[usize::from(index)]), even_signs(signs >> (7 * i)), quants);
            }
        }
    };
    /// `f16 d, 32 indices of nine bits with seven signs above, 16 scales of four bits`.
    Iq2Xs: 256 numbers in 74 bytes, group 16, offset 128, mins false, |block, quants, scales, _| {
        let d = half_at(block, 0);
        for (group, scale) in scales.iter_mut().enumerate() {
            let four = block[66 + group / 2] >> (4 * (group % 2)) & 15;
            *scale = d * (0.5 + f32::from(four)) * 0.25;
        }
        for (i, quants) in quants.chunks_exact_mut(8).enumerate() {
            let packed = half_word(block, 2 + 2 * i);
            let signs = even_signs(u32::from(packed >> 9));
            signed(eight(&IQ2_XS[usize::from(packed & 511)]), signs, quants);
        }
    };
    /// `f16 d, 32 lower bytes of indices, 32 bytes of signs, 8 bytes of upper index bits, 16 scales of four bits`.
    Iq2S: 256 numbers in 82 bytes, group 16, offset 128, mins false, |block, quants, scales, _| {
        let d = half_at(block, 0);
        for (group, scale) in scales.iter_mut().enumerate() {
            let four = block[74 + group / 2] >> (4 * (group % 2)) & 15;
            *scale = d * (0.5 + f32::from(four)) * 0.25;
        }
        for (i, quants) in quants.chunks_exact_mut(8).enumerate() {
            let upper = usize::from(block[66 + i / 4] >> (2 * (i % 4)) & 3);
            signed(eight(&IQ2_S[usize::from(block[2 + i]) | upper << 8]), block[34 + i], quants);
        }
    };
    /// `f16 d, 64 indices`, then for 32 numbers: 4 times 7 signs with a scale above.
    Iq3Xxs: 256 numbers in 98 bytes, group 32, offset 128, mins false, |block, quants, scales, _| {
        let d = half_at(block, 0);
        for (group, quants) in quants.chunks_exact_mut(32).enumerate() {
            let signs = word(block, 66 + 4 * group);
            scales[group] = d * (0.5 + (signs >> 28) as f32) * 0.5;
            for (i, quants) in quants.chunks_exact_mut(8).enumerate() {
                let numbers = |n: usize| &IQ3_XXS[usize::from(block[2 + 8 * group + 2 * i + n])];
                let signs = even_signs(signs >> (7 * i));
                signed(two_of_four(numbers(0), numbers(1)), signs, quants);
            }
        }
    };
    /// `f16 d, 64 lower bytes of indices, 8 bytes of their ninth bits, 32 bytes of signs, 8 scales of four bits`.
    Iq3S: 256 numbers in 110 bytes, group 32, offset 128, mins false, |block, quants, scales, _| {
        let d = half_at(block, 0);
        for (group, scale) in scales.iter_mut().enumerate() {
            let four = block[106 + group / 2] >> (4 * (group % 2)) & 15;
            *scale = d * (1.0 + 2.0 * f32::from(four));
        }
        for (i, quants) in quants.chunks_exact_mut(8).enumerate() {
            let ninths = usize::from(block[66 + i / 4]) >> (2 * (i % 4));
            let numbers = |n: usize| {
                &IQ3_S[usize::from(block[2 + 2 * i + n]) | (ninths >> n & 1) << 8]
            };
            signed(two_of_four(numbers(0), numbers(1)), block[74 + i], quants);
        }
    };
    /// `f16 d, 32 lower bytes of indices`, then for 32 numbers: 4 times 3 upper index bits, a scale of three bits, and
    /// the sign of the shift.
    Iq1S: 256 numbers in 50 bytes, group 32, offset 128, mins false, |block, quants, scales, _| {
        let d = half_at(block, 0);
        for (group, quants) in quants.chunks_exact_mut(32).enumerate() {
            let packed = half_word(block, 34 + 2 * group);
            scales[group] = d * f32::from(2 * (packed >> 12 & 7) + 1) * 0.125;
            for (i, quants) in quants.chunks_exact_mut(8).enumerate() {
                let upper = usize::from(packed >> (3 * i) & 7);
                let index = usize::from(block[2 + 4 * group + i]) | upper << 8;
                shifted(index, packed >> 15 == 1, quants);
            }
        }
    };
    /// `32 lower bytes of indices, 16 bytes with a nibble for each: 3 upper index bits and the sign of the shift, 8
    /// bytes: 16 scales of three bits, and four bits of d in each 16`.
    Iq1M: 256 numbers in 56 bytes, group 16, offset 128, mins false, |block, quants, scales, _| {
        let packed: [u16; 4] = std::array::from_fn(|i| half_word(block, 48 + 2 * i));
        let d = packed.iter().rev().fold(0, |d, packed| d << 4 | packed >> 12);
        let d = half(d);
        for (group, scale) in scales.iter_mut().enumerate() {
            let three = packed[group / 4] >> (3 * (group % 4)) & 7;
            *scale = d * f32::from(2 * three + 1) * 0.125;
        }
        for (i, quants) in quants.chunks_exact_mut(8).enumerate() {
            let nibble = block[32 + i / 2] >> (4 * (i % 2)) & 15;
            let index = usize::from(block[i]) | usize::from(nibble & 7) << 8;
            shifted(index, nibble & 8 != 0, quants);
        }
    };
    /// `48 bytes of five digits, 4 bytes of four digits, f16 d`: digits n of 32, 16 or 4 bytes lie together.
    Tq1_0: 256 numbers in 54 bytes, group 32, offset 128, mins false, |block, quants, scales, _| {
        scales.fill(half_at(block, 52));
        let (first, rest) = quants.split_at_mut(160);
        let (second, last) = rest.split_at_mut(80);
        for (bytes, quants) in [(&block[..32], first), (&block[32..48], second), (&block[48..52], last)] {
            for (n, quants) in quants.chunks_exact_mut(bytes.len()).enumerate() {
                for (quant, byte) in quants.iter_mut().zip(bytes) {
                    *quant = digit(*byte, n);
                }
            }
        }
    };
    /// `64 bytes of bit pairs, f16 d`: two halves of 128 numbers, the four quarters of a half share 32 bytes.
    Tq2_0: 256 numbers in 66 bytes, group 32, offset 128, mins false, |block, quants, scales, _| {
        scales.fill(half_at(block, 64));
        for (half, pairs) in quants.chunks_exact_mut(128).zip(block.chunks_exact(32)) {
            for (quarter, quants) in half.chunks_exact_mut(32).enumerate() {
                for (quant, pairs) in quants.iter_mut().zip(pairs) {
                    *quant = 127 + (pairs >> (2 * quarter) & 3);
                }
            }
        }
    };
}
