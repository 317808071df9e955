//! Byte products at the machine's SIMD level: the operations that a tile needs beyond [`Lanes`].
//!
//! AVX-512 is used only together with its byte products (VNNI); without VNNI eight lanes are faster than sixteen.

use crate::simd::{Lanes, Portable};
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use crate::simd::{SimdLevel, simd_level};

/// Level of the instructions for byte products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteLevel {
    /// Plain loops.
    Scalar,
    /// 32 bytes at a time, in two instructions.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 64 bytes at a time, in one instruction.
    #[cfg(target_arch = "x86_64")]
    Vnni,
    /// 16 bytes at a time, in one instruction of ARM64.
    #[cfg(target_arch = "aarch64")]
    Dotprod,
}

/// The level of kernels called from this thread.
pub(super) fn byte_level() -> ByteLevel {
    #[cfg(target_arch = "x86_64")]
    {
        let halves = is_x86_feature_detected!("f16c");
        let vnni = is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl");
        match simd_level() {
            SimdLevel::Avx512 | SimdLevel::Amx if halves && vnni => ByteLevel::Vnni,
            SimdLevel::Avx512 | SimdLevel::Amx | SimdLevel::Avx2 if halves => ByteLevel::Avx2,
            _ => ByteLevel::Scalar,
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        match simd_level() {
            SimdLevel::Neon if std::arch::is_aarch64_feature_detected!("dotprod") => {
                ByteLevel::Dotprod
            }
            _ => ByteLevel::Scalar,
        }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    ByteLevel::Scalar
}

/// `N` sums of four byte products each.
///
/// # Safety
/// Call only from code compiled for the level; pointers must cover `N` elements.
pub(super) trait Bytes: Lanes {
    /// `N` 32-bit integers.
    type Sums: Copy;
    /// Whether weights are signed bytes, with the format's offset already subtracted.
    const SIGNED: bool = false;

    unsafe fn splat_int(x: i32) -> Self::Sums;
    /// `sums[lane] +=` the dot product of the four bytes of `weights[lane]` and the four signed bytes of `input`.
    /// Unsigned weights use all eight bits if `WIDE`, else at most six.
    unsafe fn add_products<const WIDE: bool>(
        sums: Self::Sums,
        weights: *const u32,
        input: i32,
    ) -> Self::Sums;
    unsafe fn to_floats(sums: Self::Sums) -> Self;
    /// Transposes `N` rows of words: word j of row i becomes word i of row j, of which `count` are stored. `from` and
    /// `to` are the first word, and words from one row to the next; each row of `from` has `N` words.
    #[inline(always)]
    unsafe fn transpose(from: (*const u32, usize), to: (*mut u32, usize), count: usize) {
        for row in 0..Self::N {
            for word in 0..count {
                // SAFETY: guaranteed by the caller.
                unsafe { *to.0.add(word * to.1 + row) = *from.0.add(row * from.1 + word) };
            }
        }
    }
}

impl Bytes for Portable {
    type Sums = [i32; 4];

    #[inline(always)]
    unsafe fn splat_int(x: i32) -> [i32; 4] {
        [x; 4]
    }
    #[inline(always)]
    unsafe fn add_products<const WIDE: bool>(
        sums: [i32; 4],
        weights: *const u32,
        input: i32,
    ) -> [i32; 4] {
        let input = input.to_le_bytes();
        std::array::from_fn(|lane| {
            // SAFETY: the caller's pointer covers N elements.
            let weights = unsafe { *weights.add(lane) }.to_le_bytes();
            let products = weights.iter().zip(input);
            let sum: i32 = products
                .map(|(&w, x)| i32::from(w) * i32::from(x.cast_signed()))
                .sum();
            sums[lane] + sum
        })
    }
    #[inline(always)]
    unsafe fn to_floats(sums: [i32; 4]) -> Self {
        let floats = sums.map(|x| x as f32);
        // SAFETY: `floats` has four elements.
        unsafe { Self::load(floats.as_ptr()) }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Bytes;
    use crate::x86::{Avx2, Avx512, transpose_eight, transpose_sixteen};

    impl Bytes for Avx2 {
        type Sums = __m256i;

        #[inline(always)]
        unsafe fn splat_int(x: i32) -> __m256i {
            // SAFETY: the trait's contract.
            unsafe { _mm256_set1_epi32(x) }
        }
        #[inline(always)]
        unsafe fn add_products<const WIDE: bool>(
            sums: __m256i,
            weights: *const u32,
            input: i32,
        ) -> __m256i {
            // SAFETY: the trait's contract.
            unsafe {
                let weights = _mm256_loadu_si256(weights.cast());
                let input = _mm256_set1_epi32(input);
                let pairs = match WIDE {
                    // Pairs of products up to 2 * 63 * 127 fit 16 bits.
                    false => {
                        let pairs = _mm256_maddubs_epi16(weights, input);
                        _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
                    }
                    // Pairs up to 2 * 255 * 127 do not fit 16 bits: multiply even and odd bytes separately, as 16-bit
                    // numbers.
                    true => {
                        let low = _mm256_set1_epi16(0xff);
                        let even = _mm256_madd_epi16(
                            _mm256_and_si256(weights, low),
                            _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(input)),
                        );
                        let odd = _mm256_madd_epi16(
                            _mm256_srli_epi16::<8>(weights),
                            _mm256_srai_epi16::<8>(input),
                        );
                        _mm256_add_epi32(even, odd)
                    }
                };
                _mm256_add_epi32(sums, pairs)
            }
        }
        #[inline(always)]
        unsafe fn to_floats(sums: __m256i) -> Self {
            // SAFETY: the trait's contract.
            unsafe { Self(_mm256_cvtepi32_ps(sums)) }
        }
        #[inline(always)]
        unsafe fn transpose(from: (*const u32, usize), to: (*mut u32, usize), count: usize) {
            // SAFETY: the trait's contract.
            unsafe {
                let row = |i: usize| _mm256_loadu_si256(from.0.add(i * from.1).cast());
                let rows = transpose_eight(std::array::from_fn(row));
                for (i, row) in rows.into_iter().enumerate().take(count) {
                    _mm256_storeu_si256(to.0.add(i * to.1).cast(), row);
                }
            }
        }
    }

    impl Bytes for Avx512 {
        type Sums = __m512i;

        #[inline(always)]
        unsafe fn splat_int(x: i32) -> __m512i {
            // SAFETY: the trait's contract.
            unsafe { _mm512_set1_epi32(x) }
        }
        #[inline(always)]
        unsafe fn add_products<const WIDE: bool>(
            sums: __m512i,
            weights: *const u32,
            input: i32,
        ) -> __m512i {
            // SAFETY: the trait's contract.
            unsafe {
                let weights = _mm512_loadu_si512(weights.cast());
                _mm512_dpbusd_epi32(sums, weights, _mm512_set1_epi32(input))
            }
        }
        #[inline(always)]
        unsafe fn to_floats(sums: __m512i) -> Self {
            // SAFETY: the trait's contract.
            unsafe { Self(_mm512_cvtepi32_ps(sums)) }
        }
        #[inline(always)]
        unsafe fn transpose(from: (*const u32, usize), to: (*mut u32, usize), count: usize) {
            // SAFETY: the trait's contract.
            unsafe {
                let row = |i: usize| _mm512_loadu_si512(from.0.add(i * from.1).cast());
                let rows = transpose_sixteen(std::array::from_fn(row));
                for (i, row) in rows.into_iter().enumerate().take(count) {
                    _mm512_storeu_si512(to.0.add(i * to.1).cast(), row);
                }
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use std::arch::aarch64::*;

    use super::Bytes;
    use crate::neon::{Ints, Neon, sdot};

    impl Bytes for Neon {
        type Sums = Ints;
        const SIGNED: bool = true;

        #[inline(always)]
        unsafe fn splat_int(x: i32) -> Ints {
            // SAFETY: the trait's contract.
            unsafe { Ints(vdupq_n_s32(x), vdupq_n_s32(x)) }
        }
        #[inline(always)]
        unsafe fn add_products<const WIDE: bool>(
            sums: Ints,
            weights: *const u32,
            input: i32,
        ) -> Ints {
            // SAFETY: the trait's contract.
            unsafe {
                let (first, second) = (weights.cast(), weights.add(4).cast());
                let input = vreinterpretq_s8_s32(vdupq_n_s32(input));
                Ints(
                    sdot(sums.0, vld1q_s8(first), input),
                    sdot(sums.1, vld1q_s8(second), input),
                )
            }
        }
        #[inline(always)]
        unsafe fn to_floats(sums: Ints) -> Self {
            // SAFETY: the trait's contract.
            unsafe { sums.to_floats() }
        }
    }
}

/// Defines a function that runs a body, generic over [`Bytes`] and a [`Format`](super::format::Format), at the level
/// given as its first argument. The body and everything it calls must be `#[inline(always)]`.
macro_rules! by_byte_level {
    ($(#[$attribute:meta])* $visible:vis unsafe fn $name:ident<F>($($argument:ident: $type:ty),* $(,)?) = $body:ident;) => {
        $(#[$attribute])*
        $visible unsafe fn $name<F: $crate::quantised::format::Format>(level: $crate::quantised::ints::ByteLevel, $($argument: $type),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2<F: $crate::quantised::format::Format>($($argument: $type),*) {
                // SAFETY: this function is compiled with the instructions; the caller guarantees the rest.
                unsafe { $body::<$crate::x86::Avx2, F>($($argument),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
            unsafe fn vnni<F: $crate::quantised::format::Format>($($argument: $type),*) {
                // SAFETY: this function is compiled with the instructions; the caller guarantees the rest.
                unsafe { $body::<$crate::x86::Avx512, F>($($argument),*) }
            }
            #[cfg(target_arch = "aarch64")]
            #[target_feature(enable = "dotprod")]
            unsafe fn dotprod<F: $crate::quantised::format::Format>($($argument: $type),*) {
                // SAFETY: this function is compiled with the instructions; the caller guarantees the rest.
                unsafe { $body::<$crate::neon::Neon, F>($($argument),*) }
            }
            match level {
                // SAFETY: a level above Scalar exists only if it was detected; the caller guarantees the rest.
                #[cfg(target_arch = "aarch64")]
                $crate::quantised::ints::ByteLevel::Dotprod => unsafe { dotprod::<F>($($argument),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::quantised::ints::ByteLevel::Vnni => unsafe { vnni::<F>($($argument),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::quantised::ints::ByteLevel::Avx2 => unsafe { avx2::<F>($($argument),*) },
                // SAFETY: needs no instructions beyond the baseline.
                _ => unsafe { $body::<$crate::simd::Portable, F>($($argument),*) },
            }
        }
    };
}
pub(super) use by_byte_level;
