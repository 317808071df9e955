//! One input times rows of the matrix, read directly from the mapped file: the inner loop of decode.
//!
//! Rows are read one after the other, so memory is read sequentially: interleaving four rows was a third as fast,
//! because the runs are too short for the hardware prefetcher. The code issues software prefetches as well. The common
//! formats are unpacked in registers ([`x86`]). The other formats, and all formats without byte vector instructions,
//! use their description in `format.rs` or `lists.rs`.

use super::format::{Format, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0, Unpacked};
use super::ints::ByteLevel;
use super::lists::{
    Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Iq4Nl, Iq4Xs, Mxfp4, Tq1_0, Tq2_0,
};
use super::rows::{BLOCK, Row};

/// Rows of the matrix per call.
pub(super) const ROWS: usize = 4;

/// A format whose rows can be multiplied with one input.
pub(super) trait Dots: Format {
    /// Dot products of four rows of whole blocks with an input of the same length, at `level`.
    ///
    /// # Safety
    /// The CPU supports the instructions of `level`.
    unsafe fn dots(level: ByteLevel, rows: [&[u8]; ROWS], input: Row<'_>) -> [f32; ROWS];
}

/// Dot products row by row, in plain loops: the specification.
pub(super) fn plain<F: Format>(rows: [&[u8]; ROWS], input: Row<'_>) -> [f32; ROWS] {
    rows.map(|row| plain_row::<F>(row, input))
}

#[inline(always)]
fn plain_row<F: Format>(row: &[u8], input: Row<'_>) -> f32 {
    let mut unpacked = Unpacked::new();
    let mut sum = 0.0;
    for (b, block) in row.chunks_exact(F::BYTES).enumerate() {
        F::unpack(block, &mut unpacked);
        for group in 0..F::NUMBERS / F::GROUP {
            let at = b * F::NUMBERS + group * F::GROUP;
            let quants = unpacked.quants[group * F::GROUP..][..F::GROUP].iter();
            let bytes = &input.bytes[at..at + F::GROUP];
            let products = quants
                .zip(bytes)
                .map(|(&q, &x)| (i32::from(q) - F::OFFSET) * i32::from(x));
            let product: i32 = products.sum();
            let level = input.scales[at / BLOCK];
            sum += product as f32 * unpacked.scales[group] * level;
            if F::MINS {
                let total: i32 = bytes.iter().map(|&x| i32::from(x)).sum();
                sum -= unpacked.mins[group] * level * total as f32;
            }
        }
    }
    sum
}

macro_rules! by_description {
    ($($format:ident)*) => {$(
        impl Dots for $format {
            unsafe fn dots(level: ByteLevel, rows: [&[u8]; ROWS], input: Row<'_>) -> [f32; ROWS] {
                #[cfg(target_arch = "x86_64")]
                #[target_feature(enable = "avx2,fma,f16c")]
                unsafe fn wide(rows: [&[u8]; ROWS], input: Row<'_>) -> [f32; ROWS] {
                    // Not a closure: a closure would be compiled without the instructions.
                    let [a, b, c, d] = rows;
                    [
                        plain_row::<$format>(a, input),
                        plain_row::<$format>(b, input),
                        plain_row::<$format>(c, input),
                        plain_row::<$format>(d, input),
                    ]
                }
                match level {
                    // SAFETY: guaranteed by the caller.
                    #[cfg(target_arch = "x86_64")]
                    ByteLevel::Avx2 | ByteLevel::Vnni => unsafe { wide(rows, input) },
                    _ => plain::<$format>(rows, input),
                }
            }
        }
    )*};
}

by_description! { Q2K Q3K Iq1S Iq1M Iq2Xxs Iq2Xs Iq2S Iq3Xxs Iq3S Tq1_0 Tq2_0 }

macro_rules! in_registers {
    ($($format:ident: $dots:ident;)*) => {$(
        impl Dots for $format {
            unsafe fn dots(level: ByteLevel, rows: [&[u8]; ROWS], input: Row<'_>) -> [f32; ROWS] {
                #[cfg(target_arch = "x86_64")]
                #[target_feature(enable = "avx2,fma,f16c")]
                unsafe fn avx2(rows: [&[u8]; ROWS], input: Row<'_>) -> [f32; ROWS] {
                    // SAFETY: this function is compiled with the instructions.
                    unsafe { x86::$dots::<false>(rows, input) }
                }
                #[cfg(target_arch = "x86_64")]
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
                unsafe fn vnni(rows: [&[u8]; ROWS], input: Row<'_>) -> [f32; ROWS] {
                    // SAFETY: this function is compiled with the instructions.
                    unsafe { x86::$dots::<true>(rows, input) }
                }
                match level {
                    // SAFETY: guaranteed by the caller.
                    #[cfg(target_arch = "x86_64")]
                    ByteLevel::Vnni => unsafe { vnni(rows, input) },
                    // SAFETY: guaranteed by the caller.
                    #[cfg(target_arch = "x86_64")]
                    ByteLevel::Avx2 => unsafe { avx2(rows, input) },
                    _ => plain::<$format>(rows, input),
                }
            }
        }
    )*};
}

in_registers! {
    Q8_0: q8_0;
    Q4_0: q4_0;
    Q4_1: q4_1;
    Q5_0: q5_0;
    Q5_1: q5_1;
    Q4K: q4_k;
    Q5K: q5_k;
    Q6K: q6_k;
    Iq4Nl: iq4_nl;
    Iq4Xs: iq4_xs;
    Mxfp4: mxfp4;
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! Dot products in registers: 32 numbers per vector, with or without VNNI.

    use std::arch::x86_64::*;

    use super::super::format::{Format, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
    use super::super::lists::{FP4, IQ4, Iq4Nl, Iq4Xs, Mxfp4, half_power};
    use super::{BLOCK, ROWS, Row};

    /// Sums of four products each of unsigned `weights` of at most six bits and signed `input`.
    #[inline(always)]
    unsafe fn unsigned<const VNNI: bool>(weights: __m256i, input: __m256i) -> __m256i {
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
    unsafe fn signed<const VNNI: bool>(weights: __m256i, input: __m256i) -> __m256i {
        // SAFETY: the caller guarantees the instructions. A pair sums to at most 2 * 128 * 127, which fits 16 bits.
        unsafe { unsigned::<VNNI>(_mm256_abs_epi8(weights), _mm256_sign_epi8(input, weights)) }
    }

    #[inline(always)]
    unsafe fn half(at: *const u8) -> f32 {
        // SAFETY: the caller guarantees the instructions and two readable bytes.
        unsafe {
            let bits = i32::from(at.cast::<u16>().read_unaligned());
            _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)))
        }
    }

    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m256i {
        // SAFETY: the caller guarantees 32 readable bytes.
        unsafe { _mm256_loadu_si256(at.cast()) }
    }

    /// Prefetches the cache line `AHEAD` bytes after `at`; the address need not be valid.
    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        /// About as many bytes as memory delivers within its latency.
        const AHEAD: usize = 1536;
        // SAFETY: prefetching an invalid address has no effect.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast()) };
    }

    #[inline(always)]
    unsafe fn sums(vectors: [__m256; ROWS]) -> [f32; ROWS] {
        // SAFETY: the caller guarantees the instructions.
        unsafe {
            let [a, b, c, d] = vectors;
            let pairs = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
            let upper = _mm256_extractf128_ps::<1>(pairs);
            let mut sums = [0.0; 4];
            _mm_storeu_ps(
                sums.as_mut_ptr(),
                _mm_add_ps(_mm256_castps256_ps128(pairs), upper),
            );
            sums
        }
    }

    /// A format of blocks of 32 numbers that start with a scale, followed by the minimum (an added constant) if the
    /// format has minima.
    trait BlockOf32: Format {
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
    unsafe fn blocks_of_32<F: BlockOf32, const VNNI: bool>(
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
            sums(found)
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
                let less =
                    _mm256_andnot_si256(expand_bits(at.add(2)), _mm256_set1_epi8(0xf0_u8 as i8));
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
                let more = _mm256_and_si256(expand_bits(at.add(4)), _mm256_set1_epi8(16));
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
            unsafe { _mm_set_ss(half_power(*at)) }
        }
    }

    /// Expands 16 bytes of nibbles to the 32 numbers of `list` that they index.
    #[inline(always)]
    unsafe fn nibbles_of(list: &[i8; 16], at: *const u8) -> __m256i {
        // SAFETY: the caller guarantees the instructions and 16 readable bytes.
        unsafe {
            let list = _mm256_broadcastsi128_si256(_mm_loadu_si128(list.as_ptr().cast()));
            _mm256_shuffle_epi8(list, nibbles(at))
        }
    }

    /// Expands 32 bits to 32 bytes: byte i is all ones where bit i is set.
    #[inline(always)]
    unsafe fn expand_bits(at: *const u8) -> __m256i {
        // SAFETY: the caller guarantees the instructions and four readable bytes.
        unsafe {
            let spread = _mm256_set_epi64x(
                0x0303_0303_0303_0303,
                0x0202_0202_0202_0202,
                0x0101_0101_0101_0101,
                0,
            );
            let others = _mm256_set1_epi64x(0x7fbf_dfef_f7fb_fdfe);
            let bits = _mm256_set1_epi32(at.cast::<i32>().read_unaligned());
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

    #[inline(always)]
    pub(super) unsafe fn q8_0<const VNNI: bool>(
        rows: [&[u8]; ROWS],
        input: Row<'_>,
    ) -> [f32; ROWS] {
        // SAFETY: guaranteed by the caller.
        unsafe { blocks_of_32::<Q8_0, VNNI>(rows, input) }
    }

    #[inline(always)]
    pub(super) unsafe fn q4_0<const VNNI: bool>(
        rows: [&[u8]; ROWS],
        input: Row<'_>,
    ) -> [f32; ROWS] {
        // SAFETY: guaranteed by the caller.
        unsafe { blocks_of_32::<Q4_0, VNNI>(rows, input) }
    }

    #[inline(always)]
    pub(super) unsafe fn q4_1<const VNNI: bool>(
        rows: [&[u8]; ROWS],
        input: Row<'_>,
    ) -> [f32; ROWS] {
        // SAFETY: guaranteed by the caller.
        unsafe { blocks_of_32::<Q4_1, VNNI>(rows, input) }
    }

    #[inline(always)]
    pub(super) unsafe fn q5_0<const VNNI: bool>(
        rows: [&[u8]; ROWS],
        input: Row<'_>,
    ) -> [f32; ROWS] {
        // SAFETY: guaranteed by the caller.
        unsafe { blocks_of_32::<Q5_0, VNNI>(rows, input) }
    }

    #[inline(always)]
    pub(super) unsafe fn q5_1<const VNNI: bool>(
        rows: [&[u8]; ROWS],
        input: Row<'_>,
    ) -> [f32; ROWS] {
        // SAFETY: guaranteed by the caller.
        unsafe { blocks_of_32::<Q5_1, VNNI>(rows, input) }
    }

    #[inline(always)]
    pub(super) unsafe fn iq4_nl<const VNNI: bool>(
        rows: [&[u8]; ROWS],
        input: Row<'_>,
    ) -> [f32; ROWS] {
        // SAFETY: guaranteed by the caller.
        unsafe { blocks_of_32::<Iq4Nl, VNNI>(rows, input) }
    }

    #[inline(always)]
    pub(super) unsafe fn mxfp4<const VNNI: bool>(
        rows: [&[u8]; ROWS],
        input: Row<'_>,
    ) -> [f32; ROWS] {
        // SAFETY: guaranteed by the caller.
        unsafe { blocks_of_32::<Mxfp4, VNNI>(rows, input) }
    }

    /// Scales and minima of a K-quant block, `[8]` each, without the block's factors d and dmin.
    #[inline(always)]
    unsafe fn scales_and_mins(at: *const u8) -> (__m256, __m256) {
        // SAFETY: the caller guarantees the instructions and twelve readable bytes.
        unsafe {
            let words = at.cast::<u32>();
            let [a, b, c] = [0, 1, 2].map(|i| words.add(i).read_unaligned());
            let scales = u64::from(a & 0x3f3f_3f3f)
                | u64::from(c & 0x0f0f_0f0f | (a >> 6 & 0x0303_0303) << 4) << 32;
            let mins = u64::from(b & 0x3f3f_3f3f)
                | u64::from(c >> 4 & 0x0f0f_0f0f | (b >> 6 & 0x0303_0303) << 4) << 32;
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

    /// Q4_K; Q5_K if `FIFTH`.
    #[inline(always)]
    unsafe fn nibbles_of_256<F: Format, const VNNI: bool, const FIFTH: bool>(
        rows: [&[u8]; ROWS],
        input: Row<'_>,
    ) -> [f32; ROWS] {
        // SAFETY: the caller guarantees the instructions; rows and input have the same number of whole blocks.
        unsafe {
            let low = _mm256_set1_epi8(15);
            let mut found = [_mm256_setzero_ps(); ROWS];
            let quants = if FIFTH { 48 } else { 16 };
            for (found, row) in found.iter_mut().zip(rows) {
                let mut both = [_mm256_setzero_ps(); 2];
                let mut at = row.as_ptr();
                for block in 0..input.scales.len() / 8 {
                    for line in (0..F::BYTES).step_by(64) {
                        prefetch(at.add(line));
                    }
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
                        if FIFTH {
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
                    at = at.add(F::BYTES);
                }
                *found = _mm256_add_ps(both[0], both[1]);
            }
            sums(found)
        }
    }

    #[inline(always)]
    pub(super) unsafe fn q4_k<const VNNI: bool>(
        rows: [&[u8]; ROWS],
        input: Row<'_>,
    ) -> [f32; ROWS] {
        // SAFETY: guaranteed by the caller.
        unsafe { nibbles_of_256::<Q4K, VNNI, false>(rows, input) }
    }

    #[inline(always)]
    pub(super) unsafe fn q5_k<const VNNI: bool>(
        rows: [&[u8]; ROWS],
        input: Row<'_>,
    ) -> [f32; ROWS] {
        // SAFETY: guaranteed by the caller.
        unsafe { nibbles_of_256::<Q5K, VNNI, true>(rows, input) }
    }

    #[inline(always)]
    pub(super) unsafe fn q6_k<const VNNI: bool>(
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
            let mut found = [_mm256_setzero_ps(); ROWS];
            for (found, row) in found.iter_mut().zip(rows) {
                let mut both = [_mm256_setzero_ps(); 2];
                let mut at = row.as_ptr();
                for block in 0..input.scales.len() / 8 {
                    for line in (0..Q6K::BYTES).step_by(64) {
                        prefetch(at.add(line));
                    }
                    let d = _mm256_set1_ps(half(at.add(208)));
                    let mut scales = [0.0f32; 16];
                    for part in 0..2 {
                        let bytes = _mm_loadl_epi64(at.add(192 + 8 * part).cast());
                        let of_part = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
                        let to = scales.as_mut_ptr().add(8 * part);
                        _mm256_storeu_ps(to, _mm256_mul_ps(of_part, d));
                    }
                    for part in 0..2 {
                        let (first, second) =
                            (load(at.add(64 * part)), load(at.add(64 * part + 32)));
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
                            let scale = _mm256_set_m128(
                                _mm_set1_ps(scales[group + 1]),
                                _mm_set1_ps(scales[group]),
                            );
                            let level = *input.scales.get_unchecked(thirty_two);
                            let scale = _mm256_mul_ps(scale, _mm256_set1_ps(level));
                            both[q % 2] = _mm256_fmadd_ps(products, scale, both[q % 2]);
                        }
                    }
                    at = at.add(Q6K::BYTES);
                }
                *found = _mm256_add_ps(both[0], both[1]);
            }
            sums(found)
        }
    }

    #[inline(always)]
    pub(super) unsafe fn iq4_xs<const VNNI: bool>(
        rows: [&[u8]; ROWS],
        input: Row<'_>,
    ) -> [f32; ROWS] {
        // SAFETY: the caller guarantees the instructions; rows and input have the same number of whole blocks.
        unsafe {
            let places = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
            let pairs = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
            let mut found = [_mm256_setzero_ps(); ROWS];
            for (found, row) in found.iter_mut().zip(rows) {
                let mut both = [_mm256_setzero_ps(); 2];
                let mut at = row.as_ptr();
                for block in 0..input.scales.len() / 8 {
                    for line in (0..Iq4Xs::BYTES).step_by(64) {
                        prefetch(at.add(line));
                    }
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
                    at = at.add(Iq4Xs::BYTES);
                }
                *found = _mm256_add_ps(both[0], both[1]);
            }
            sums(found)
        }
    }
}
