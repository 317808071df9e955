//! [`Lanes`] in AVX2 and AVX-512 intrinsics.

use std::arch::x86_64::*;

use crate::simd::{Lanes, SimdLevel, WIDEST, methods};

/// Eight lanes.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(pub(crate) __m256);

/// Sixteen lanes.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(pub(crate) __m512);

impl Lanes for Avx2 {
    const LEVEL: SimdLevel = SimdLevel::Avx2;
    const N: usize = 8;
    const ACROSS: usize = 2;
    const HEADS: usize = 4;

    methods! {
        splat(x: f32) -> Self = Self(_mm256_set1_ps(x));
        load(from: *const f32) -> Self = Self(_mm256_loadu_ps(from));
        load_halves(from: *const u8) -> Self = Self(_mm256_cvtph_ps(_mm_loadu_si128(from.cast())));
        splat_half(from: *const u8) -> Self =
            Self(_mm256_cvtph_ps(_mm_set1_epi16(from.cast::<i16>().read_unaligned())));
        load_bytes(from: *const u8) -> Self =
            Self(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))));
        load_nibbles(from: *const u8, high: bool) -> Self = {
            let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()));
            let moved = _mm256_srl_epi32(bytes, _mm_cvtsi32_si128(if high { 4 } else { 0 }));
            Self(_mm256_cvtepi32_ps(_mm256_and_si256(moved, _mm256_set1_epi32(15))))
        };
        store(self: Self, to: *mut f32) -> () = _mm256_storeu_ps(to, self.0);
        add(self: Self, other: Self) -> Self = Self(_mm256_add_ps(self.0, other.0));
        sub(self: Self, other: Self) -> Self = Self(_mm256_sub_ps(self.0, other.0));
        mul(self: Self, other: Self) -> Self = Self(_mm256_mul_ps(self.0, other.0));
        div(self: Self, other: Self) -> Self = Self(_mm256_div_ps(self.0, other.0));
        max(self: Self, other: Self) -> Self = Self(_mm256_max_ps(self.0, other.0));
        mul_add(self: Self, factor: Self, summand: Self) -> Self = Self(_mm256_fmadd_ps(self.0, factor.0, summand.0));
        select_less(a: Self, b: Self, yes: Self, no: Self) -> Self =
            Self(_mm256_blendv_ps(no.0, yes.0, _mm256_cmp_ps::<_CMP_LT_OQ>(a.0, b.0)));
        less_bits(a: Self, b: Self) -> u64 =
            _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(a.0, b.0)) as u32 as u64;
        raise_exponent(self: Self, steps: Self) -> Self = Self(_mm256_castsi256_ps(_mm256_add_epi32(
            _mm256_castps_si256(self.0),
            _mm256_slli_epi32::<23>(_mm256_castps_si256(steps.0)),
        )));
        sum4(vectors: [Self; 4]) -> [f32; 4] = sum4(vectors.map(|vector| vector.0));
        sum_each(vectors: &[Self; WIDEST]) -> Self = {
            let [a, b, c, d, e, f, g, h, ..] = *vectors;
            let (abcd, efgh) = (quarters([a.0, b.0, c.0, d.0]), quarters([e.0, f.0, g.0, h.0]));
            Self(_mm256_add_ps(
                _mm256_permute2f128_ps::<0x20>(abcd, efgh),
                _mm256_permute2f128_ps::<0x31>(abcd, efgh),
            ))
        };
    }
}

impl Lanes for Avx512 {
    const LEVEL: SimdLevel = SimdLevel::Avx512;
    const N: usize = 16;
    const ACROSS: usize = 4;
    const HEADS: usize = 8;

    methods! {
        splat(x: f32) -> Self = Self(_mm512_set1_ps(x));
        load(from: *const f32) -> Self = Self(_mm512_loadu_ps(from));
        load_halves(from: *const u8) -> Self = Self(_mm512_cvtph_ps(_mm256_loadu_si256(from.cast())));
        splat_half(from: *const u8) -> Self =
            Self(_mm512_cvtph_ps(_mm256_set1_epi16(from.cast::<i16>().read_unaligned())));
        load_bytes(from: *const u8) -> Self =
            Self(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))));
        load_nibbles(from: *const u8, high: bool) -> Self = {
            let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()));
            let moved = _mm512_srl_epi32(bytes, _mm_cvtsi32_si128(if high { 4 } else { 0 }));
            Self(_mm512_cvtepi32_ps(_mm512_and_si512(moved, _mm512_set1_epi32(15))))
        };
        store(self: Self, to: *mut f32) -> () = _mm512_storeu_ps(to, self.0);
        add(self: Self, other: Self) -> Self = Self(_mm512_add_ps(self.0, other.0));
        sub(self: Self, other: Self) -> Self = Self(_mm512_sub_ps(self.0, other.0));
        mul(self: Self, other: Self) -> Self = Self(_mm512_mul_ps(self.0, other.0));
        div(self: Self, other: Self) -> Self = Self(_mm512_div_ps(self.0, other.0));
        max(self: Self, other: Self) -> Self = Self(_mm512_max_ps(self.0, other.0));
        mul_add(self: Self, factor: Self, summand: Self) -> Self = Self(_mm512_fmadd_ps(self.0, factor.0, summand.0));
        select_less(a: Self, b: Self, yes: Self, no: Self) -> Self =
            Self(_mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a.0, b.0), no.0, yes.0));
        less_bits(a: Self, b: Self) -> u64 = u64::from(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a.0, b.0));
        raise_exponent(self: Self, steps: Self) -> Self = Self(_mm512_castsi512_ps(_mm512_add_epi32(
            _mm512_castps_si512(self.0),
            _mm512_slli_epi32::<23>(_mm512_castps_si512(steps.0)),
        )));
        sum4(vectors: [Self; 4]) -> [f32; 4] = {
            let [a, b, c, d] = vectors;
            sum4([halved(a.0), halved(b.0), halved(c.0), halved(d.0)])
        };
        sum_each(vectors: &[Self; WIDEST]) -> Self = {
            let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *vectors;
            let (abcd, efgh) = (wide_quarters([a, b, c, d]), wide_quarters([e, f, g, h]));
            let (ijkl, mnop) = (wide_quarters([i, j, k, l]), wide_quarters([m, n, o, p]));
            let (first, last) = (halves(abcd, efgh), halves(ijkl, mnop));
            Self(halves(first, last))
        };
    }
}

/// Sum of the upper and the lower half.
///
/// # Safety
/// Needs AVX-512F.
#[inline(always)]
unsafe fn halved(x: __m512) -> __m256 {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let upper = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(x)));
        _mm256_add_ps(_mm512_castps512_ps256(x), upper)
    }
}

/// Sum of the lanes of each of four vectors.
///
/// # Safety
/// Needs AVX2.
#[inline(always)]
pub(crate) unsafe fn sum4([a, b, c, d]: [__m256; 4]) -> [f32; 4] {
    // SAFETY: guaranteed by the caller; `sums` has four elements.
    unsafe {
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

/// Partial sums, four lanes at a time: lane i of each four is a part of the sum of vector i.
///
/// # Safety
/// Needs AVX2.
#[inline(always)]
unsafe fn quarters([a, b, c, d]: [__m256; 4]) -> __m256 {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
        let cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
        _mm256_add_ps(
            _mm256_shuffle_ps::<0b01_00_01_00>(ab, cd),
            _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd),
        )
    }
}

/// [`quarters`] for sixteen lanes.
///
/// # Safety
/// Needs AVX-512F.
#[inline(always)]
unsafe fn wide_quarters([a, b, c, d]: [Avx512; 4]) -> __m512 {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let ab = _mm512_add_ps(_mm512_unpacklo_ps(a.0, b.0), _mm512_unpackhi_ps(a.0, b.0));
        let cd = _mm512_add_ps(_mm512_unpacklo_ps(c.0, d.0), _mm512_unpackhi_ps(c.0, d.0));
        _mm512_add_ps(
            _mm512_shuffle_ps::<0b01_00_01_00>(ab, cd),
            _mm512_shuffle_ps::<0b11_10_11_10>(ab, cd),
        )
    }
}

/// Adds neighbouring quarters of four lanes: the two sums of `a`, then the two of `b`.
///
/// # Safety
/// Needs AVX-512F.
#[inline(always)]
unsafe fn halves(a: __m512, b: __m512) -> __m512 {
    // SAFETY: guaranteed by the caller.
    unsafe {
        _mm512_add_ps(
            _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b),
            _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b),
        )
    }
}

/// Transposes: lane j of vector i becomes lane i of vector j.
///
/// # Safety
/// Needs AVX2.
#[inline(always)]
pub(crate) unsafe fn transpose_eight(rows: [__m256i; 8]) -> [__m256i; 8] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        // Columns c and c + 4 of each four rows.
        let four = |i: usize| {
            let [a, b, c, d] = [0, 1, 2, 3].map(|r| rows[i + r]);
            let (low, high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            let (next_low, next_high) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
            [
                _mm256_unpacklo_epi64(low, next_low),
                _mm256_unpackhi_epi64(low, next_low),
                _mm256_unpacklo_epi64(high, next_high),
                _mm256_unpackhi_epi64(high, next_high),
            ]
        };
        let (first, second) = (four(0), four(4));
        std::array::from_fn(|c| match c {
            0..4 => _mm256_permute2x128_si256::<0x20>(first[c], second[c]),
            _ => _mm256_permute2x128_si256::<0x31>(first[c - 4], second[c - 4]),
        })
    }
}

/// Transposes: lane j of vector i becomes lane i of vector j.
///
/// # Safety
/// Needs AVX-512F.
#[inline(always)]
pub(crate) unsafe fn transpose_sixteen(rows: [__m512i; 16]) -> [__m512i; 16] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut of_two = rows;
        for i in (0..16).step_by(2) {
            of_two[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
            of_two[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
        }
        // Columns c, c + 4, c + 8 and c + 12 of each four rows, four numbers per column.
        let mut of_four = of_two;
        for i in (0..16).step_by(4) {
            for c in 0..2 {
                let (a, b) = (of_two[i + c], of_two[i + 2 + c]);
                of_four[i + 2 * c] = _mm512_unpacklo_epi64(a, b);
                of_four[i + 2 * c + 1] = _mm512_unpackhi_epi64(a, b);
            }
        }
        let mut transposed = of_four;
        for c in 0..4 {
            let [a, b, d, e] = [of_four[c], of_four[4 + c], of_four[8 + c], of_four[12 + c]];
            let (ab_even, ab_odd) = (
                _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b),
                _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b),
            );
            let (de_even, de_odd) = (
                _mm512_shuffle_i32x4::<0b10_00_10_00>(d, e),
                _mm512_shuffle_i32x4::<0b11_01_11_01>(d, e),
            );
            transposed[c] = _mm512_shuffle_i32x4::<0b10_00_10_00>(ab_even, de_even);
            transposed[c + 8] = _mm512_shuffle_i32x4::<0b11_01_11_01>(ab_even, de_even);
            transposed[c + 4] = _mm512_shuffle_i32x4::<0b10_00_10_00>(ab_odd, de_odd);
            transposed[c + 12] = _mm512_shuffle_i32x4::<0b11_01_11_01>(ab_odd, de_odd);
        }
        transposed
    }
}
