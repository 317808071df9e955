//! Dot products in registers of the formats of blocks of 256 numbers that are read from lists: IQ1 to IQ3.

use std::arch::x86_64::*;

use super::super::format::Format;
use super::super::lists::{
    IQ1, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs,
};
use super::x86::{expand_bits, half, load, prefetch, signed, sum_of_blocks, unsigned};
use super::{ROWS, Row};
use crate::x86::sum4;

/// Blocks of 256 numbers, each 8 of which are one or two vectors of a list.
pub(super) trait Listed: Format {
    /// Scales, `[8]` of 32 numbers each or `[2, 8]` of 16 numbers each.
    ///
    /// # Safety
    /// Needs AVX2 and F16C, and a whole block at `at`.
    unsafe fn scales(at: *const u8) -> [__m256; 2];

    /// Sums of four products each of the 32 numbers of `group` with `x`.
    ///
    /// # Safety
    /// As [`Self::scales`], and VNNI if `VNNI`.
    unsafe fn products<const VNNI: bool>(at: *const u8, group: usize, x: __m256i) -> __m256i;
}

/// Dot products of four rows with one input.
///
/// # Safety
/// As [`Listed::products`]; rows and input have the same number of whole blocks.
#[inline(always)]
pub(super) unsafe fn listed<F: Listed, const VNNI: bool>(
    rows: [&[u8]; ROWS],
    input: Row<'_>,
) -> [f32; ROWS] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        sum_of_blocks!(F, rows, input, |at, block, both| {
            let mut scales = [0.0f32; 16];
            let [first, second] = F::scales(at);
            _mm256_storeu_ps(scales.as_mut_ptr(), first);
            _mm256_storeu_ps(scales.as_mut_ptr().add(8), second);
            let levels = input.scales.as_ptr().add(8 * block);
            let x = input.bytes.as_ptr().add(256 * block).cast::<u8>();
            for group in 0..8 {
                let products = F::products::<VNNI>(at, group, load(x.add(32 * group)));
                let level = _mm256_set1_ps(*levels.add(group));
                let scale = if F::GROUP == 32 {
                    _mm256_set1_ps(scales[group])
                } else {
                    _mm256_set_m128(
                        _mm_set1_ps(scales[2 * group + 1]),
                        _mm_set1_ps(scales[2 * group]),
                    )
                };
                let scale = _mm256_mul_ps(scale, level);
                let sum = &mut both[group % 2];
                *sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(products), scale, *sum);
            }
        })
    }
}

/// Four vectors of a list of eights, whose bytes are `list`.
#[inline(always)]
unsafe fn eights(list: *const i64, [a, b, c, d]: [usize; 4]) -> __m256i {
    // SAFETY: the caller guarantees the instructions and indices inside the list.
    unsafe {
        _mm256_setr_epi64x(
            list.add(a).read_unaligned(),
            list.add(b).read_unaligned(),
            list.add(c).read_unaligned(),
            list.add(d).read_unaligned(),
        )
    }
}

/// Eight vectors of a list of fours, whose bytes are `list`.
#[inline(always)]
unsafe fn fours(list: *const i32, [a, b, c, d, e, f, g, h]: [usize; 8]) -> __m256i {
    // SAFETY: the caller guarantees the instructions and indices inside the list.
    unsafe {
        _mm256_setr_epi32(
            list.add(a).read_unaligned(),
            list.add(b).read_unaligned(),
            list.add(c).read_unaligned(),
            list.add(d).read_unaligned(),
            list.add(e).read_unaligned(),
            list.add(f).read_unaligned(),
            list.add(g).read_unaligned(),
            list.add(h).read_unaligned(),
        )
    }
}

/// Products of `numbers`, which are negative where a byte of `minus` is all ones, with `x`.
#[inline(always)]
unsafe fn with_signs<const VNNI: bool>(numbers: __m256i, minus: __m256i, x: __m256i) -> __m256i {
    // SAFETY: the caller guarantees the instructions. No byte of an input is -128.
    unsafe {
        let x = _mm256_sub_epi8(_mm256_xor_si256(x, minus), minus);
        unsigned::<VNNI>(numbers, x)
    }
}

/// For each seven signs eight bytes, all ones where the sign is a minus; the eighth makes the number of minuses even.
static EVEN_SIGNS: [[i8; 8]; 128] = {
    let mut all = [[0; 8]; 128];
    let mut seven: usize = 0;
    while seven < 128 {
        let signs = seven | (seven.count_ones() as usize & 1) << 7;
        let mut i = 0;
        while i < 8 {
            all[seven][i] = -((signs >> i & 1) as i8);
            i += 1;
        }
        seven += 1;
    }
    all
};

/// [`EVEN_SIGNS`] of four times seven bits.
#[inline(always)]
unsafe fn even_signs(packed: u32) -> __m256i {
    let packed = packed as usize;
    let sevens = [
        packed & 127,
        packed >> 7 & 127,
        packed >> 14 & 127,
        packed >> 21 & 127,
    ];
    // SAFETY: the caller guarantees the instructions; seven bits are below the list's length.
    unsafe { eights(EVEN_SIGNS.as_ptr().cast(), sevens) }
}

#[inline(always)]
unsafe fn word(at: *const u8) -> u32 {
    // SAFETY: the caller guarantees four readable bytes.
    unsafe { at.cast::<u32>().read_unaligned() }
}

#[inline(always)]
unsafe fn half_word(at: *const u8) -> u32 {
    // SAFETY: the caller guarantees two readable bytes.
    unsafe { u32::from(at.cast::<u16>().read_unaligned()) }
}

#[inline(always)]
unsafe fn byte(at: *const u8) -> usize {
    // SAFETY: the caller guarantees a readable byte.
    usize::from(unsafe { *at })
}

/// `d * (numbers + plus)`
#[inline(always)]
unsafe fn scaled(d: f32, numbers: __m256i, plus: f32) -> __m256 {
    // SAFETY: the caller guarantees the instructions.
    unsafe {
        let numbers = _mm256_add_ps(_mm256_cvtepi32_ps(numbers), _mm256_set1_ps(plus));
        _mm256_mul_ps(numbers, _mm256_set1_ps(d))
    }
}

/// Sixteen nibbles at `at` as scales: `d * (nibble + 1/2) / 4`.
#[inline(always)]
unsafe fn sixteen_scales(at: *const u8, d: f32) -> [__m256; 2] {
    // SAFETY: the caller guarantees the instructions and eight readable bytes.
    unsafe {
        let packed = _mm_loadl_epi64(at.cast());
        let low = _mm_set1_epi8(15);
        let nibbles = _mm_unpacklo_epi8(
            _mm_and_si128(packed, low),
            _mm_and_si128(_mm_srli_epi16::<4>(packed), low),
        );
        let upper = _mm_srli_si128::<8>(nibbles);
        [
            scaled(0.25 * d, _mm256_cvtepu8_epi32(nibbles), 0.5),
            scaled(0.25 * d, _mm256_cvtepu8_epi32(upper), 0.5),
        ]
    }
}

impl Listed for Iq2Xxs {
    #[inline(always)]
    unsafe fn scales(at: *const u8) -> [__m256; 2] {
        // SAFETY: guaranteed by the caller.
        unsafe {
            // The upper word of each eight bytes.
            let first = _mm256_castsi256_ps(load(at.add(2)));
            let second = _mm256_castsi256_ps(load(at.add(34)));
            let upper = _mm256_castps_si256(_mm256_shuffle_ps::<0b11_01_11_01>(first, second));
            let upper = _mm256_permute4x64_epi64::<0b11_01_10_00>(upper);
            let fours = _mm256_srli_epi32::<28>(upper);
            [scaled(0.25 * half(at), fours, 0.5), _mm256_setzero_ps()]
        }
    }

    #[inline(always)]
    unsafe fn products<const VNNI: bool>(at: *const u8, group: usize, x: __m256i) -> __m256i {
        // SAFETY: guaranteed by the caller; a byte is below the list's length.
        unsafe {
            let at = at.add(2 + 8 * group);
            let mut indices = [0; 4];
            for (i, index) in indices.iter_mut().enumerate() {
                *index = byte(at.add(i));
            }
            let numbers = eights(IQ2_XXS.as_ptr().cast(), indices);
            with_signs::<VNNI>(numbers, even_signs(word(at.add(4))), x)
        }
    }
}

impl Listed for Iq2Xs {
    #[inline(always)]
    unsafe fn scales(at: *const u8) -> [__m256; 2] {
        // SAFETY: guaranteed by the caller.
        unsafe { sixteen_scales(at.add(66), half(at)) }
    }

    #[inline(always)]
    unsafe fn products<const VNNI: bool>(at: *const u8, group: usize, x: __m256i) -> __m256i {
        // SAFETY: guaranteed by the caller; nine bits are below the list's length.
        unsafe {
            let (mut indices, mut signs) = ([0; 4], [0; 4]);
            for i in 0..4 {
                let packed = half_word(at.add(2 + 8 * group + 2 * i)) as usize;
                indices[i] = packed & 511;
                signs[i] = packed >> 9;
            }
            let numbers = eights(IQ2_XS.as_ptr().cast(), indices);
            let minus = eights(EVEN_SIGNS.as_ptr().cast(), signs);
            with_signs::<VNNI>(numbers, minus, x)
        }
    }
}

impl Listed for Iq2S {
    #[inline(always)]
    unsafe fn scales(at: *const u8) -> [__m256; 2] {
        // SAFETY: guaranteed by the caller.
        unsafe { sixteen_scales(at.add(74), half(at)) }
    }

    #[inline(always)]
    unsafe fn products<const VNNI: bool>(at: *const u8, group: usize, x: __m256i) -> __m256i {
        // SAFETY: guaranteed by the caller; ten bits are below the list's length.
        unsafe {
            let upper = byte(at.add(66 + group));
            let mut indices = [0; 4];
            for (i, index) in indices.iter_mut().enumerate() {
                *index = byte(at.add(2 + 4 * group + i)) | (upper << (8 - 2 * i)) & 0x300;
            }
            let numbers = eights(IQ2_S.as_ptr().cast(), indices);
            with_signs::<VNNI>(numbers, expand_bits(word(at.add(34 + 4 * group))), x)
        }
    }
}

impl Listed for Iq3Xxs {
    #[inline(always)]
    unsafe fn scales(at: *const u8) -> [__m256; 2] {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let fours = _mm256_srli_epi32::<28>(load(at.add(66)));
            [scaled(0.5 * half(at), fours, 0.5), _mm256_setzero_ps()]
        }
    }

    #[inline(always)]
    unsafe fn products<const VNNI: bool>(at: *const u8, group: usize, x: __m256i) -> __m256i {
        // SAFETY: guaranteed by the caller; a byte is below the list's length.
        unsafe {
            let mut indices = [0; 8];
            for (i, index) in indices.iter_mut().enumerate() {
                *index = byte(at.add(2 + 8 * group + i));
            }
            let numbers = fours(IQ3_XXS.as_ptr().cast(), indices);
            let signs = even_signs(word(at.add(66 + 4 * group)));
            with_signs::<VNNI>(numbers, signs, x)
        }
    }
}

impl Listed for Iq3S {
    #[inline(always)]
    unsafe fn scales(at: *const u8) -> [__m256; 2] {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let places = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
            let packed = _mm256_set1_epi32(word(at.add(106)).cast_signed());
            let nibbles =
                _mm256_and_si256(_mm256_srlv_epi32(packed, places), _mm256_set1_epi32(15));
            [scaled(2.0 * half(at), nibbles, 0.5), _mm256_setzero_ps()]
        }
    }

    #[inline(always)]
    unsafe fn products<const VNNI: bool>(at: *const u8, group: usize, x: __m256i) -> __m256i {
        // SAFETY: guaranteed by the caller; nine bits are below the list's length.
        unsafe {
            let ninths = byte(at.add(66 + group));
            let mut indices = [0; 8];
            for (i, index) in indices.iter_mut().enumerate() {
                *index = byte(at.add(2 + 8 * group + i)) | (ninths << (8 - i)) & 0x100;
            }
            let numbers = fours(IQ3_S.as_ptr().cast(), indices);
            with_signs::<VNNI>(numbers, expand_bits(word(at.add(74 + 4 * group))), x)
        }
    }
}

impl Listed for Iq1S {
    #[inline(always)]
    unsafe fn scales(at: *const u8) -> [__m256; 2] {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let packed = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.add(34).cast()));
            let threes = _mm256_and_si256(_mm256_srli_epi32::<12>(packed), _mm256_set1_epi32(7));
            [scaled(0.25 * half(at), threes, 0.5), _mm256_setzero_ps()]
        }
    }

    #[inline(always)]
    unsafe fn products<const VNNI: bool>(at: *const u8, group: usize, x: __m256i) -> __m256i {
        // SAFETY: guaranteed by the caller; eleven bits are below the list's length.
        unsafe {
            let packed = half_word(at.add(34 + 2 * group)) as usize;
            let mut indices = [0; 4];
            for (i, index) in indices.iter_mut().enumerate() {
                *index = byte(at.add(2 + 4 * group + i)) | (packed >> (3 * i) & 7) << 8;
            }
            let numbers = eights(IQ1.as_ptr().cast(), indices);
            let shift = _mm256_set1_epi8(if packed >> 15 == 1 { -1 } else { 1 });
            signed::<VNNI>(_mm256_add_epi8(numbers, shift), x)
        }
    }
}

impl Listed for Iq1M {
    #[inline(always)]
    unsafe fn scales(at: *const u8) -> [__m256; 2] {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (mut d, mut scales) = (0, [_mm256_setzero_ps(); 2]);
            for i in 0..4 {
                d |= half_word(at.add(48 + 2 * i)) >> 12 << (4 * i);
            }
            let d = half(d.to_le_bytes().as_ptr());
            let places = _mm256_setr_epi32(0, 3, 6, 9, 0, 3, 6, 9);
            for (i, scales) in scales.iter_mut().enumerate() {
                let first = half_word(at.add(48 + 4 * i)).cast_signed();
                let second = half_word(at.add(50 + 4 * i)).cast_signed();
                let both = _mm256_set_m128i(_mm_set1_epi32(second), _mm_set1_epi32(first));
                let threes =
                    _mm256_and_si256(_mm256_srlv_epi32(both, places), _mm256_set1_epi32(7));
                *scales = scaled(0.25 * d, threes, 0.5);
            }
            scales
        }
    }

    #[inline(always)]
    unsafe fn products<const VNNI: bool>(at: *const u8, group: usize, x: __m256i) -> __m256i {
        // SAFETY: guaranteed by the caller; eleven bits are below the list's length.
        unsafe {
            let nibbles = half_word(at.add(32 + 2 * group)) as usize;
            let mut indices = [0; 4];
            for (i, index) in indices.iter_mut().enumerate() {
                *index = byte(at.add(4 * group + i)) | (nibbles >> (4 * i) & 7) << 8;
            }
            let numbers = eights(IQ1.as_ptr().cast(), indices);
            // Bit 3 of each nibble, in each of eight bytes.
            let less = (nibbles >> 3 & 0x1111) as u32;
            let less =
                (less & 1 | less << 4 & 0x100 | less << 8 & 0x1_0000 | less << 12 & 0x100_0000)
                    * 0xff;
            // -1 where the shift is down, otherwise 1.
            let shift = _mm256_or_si256(expand_bits(less), _mm256_set1_epi8(1));
            signed::<VNNI>(_mm256_add_epi8(numbers, shift), x)
        }
    }
}
