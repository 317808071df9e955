//! The lanes of AVX2 and AVX-512. Nothing but the mapping of [`Lanes`] onto instructions.

use std::arch::x86_64::*;

use crate::simd::Lanes;

/// Eight lanes.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(pub(crate) __m256);

/// Sixteen lanes.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(pub(crate) __m512);

/// One method per line: name, arguments, and the intrinsic's result.
macro_rules! methods {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty = $value:expr;)*) => {
        $(#[inline(always)]
        unsafe fn $name($($argument: $type),*) -> $result {
            // SAFETY: the trait's contract: the instructions exist and pointers cover N elements.
            unsafe { $value }
        })*
    };
}

impl Lanes for Avx2 {
    const N: usize = 8;
    const ACROSS: usize = 2;

    methods! {
        splat(x: f32) -> Self = Self(_mm256_set1_ps(x));
        load(from: *const f32) -> Self = Self(_mm256_loadu_ps(from));
        load_halves(from: *const u8) -> Self = Self(_mm256_cvtph_ps(_mm_loadu_si128(from.cast())));
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
    }
}

impl Lanes for Avx512 {
    const N: usize = 16;
    const ACROSS: usize = 4;

    methods! {
        splat(x: f32) -> Self = Self(_mm512_set1_ps(x));
        load(from: *const f32) -> Self = Self(_mm512_loadu_ps(from));
        load_halves(from: *const u8) -> Self = Self(_mm512_cvtph_ps(_mm256_loadu_si256(from.cast())));
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
    }
}

/// Upper half plus lower half.
///
/// # Safety
/// Needs AVX-512F.
#[inline(always)]
unsafe fn halved(x: __m512) -> __m256 {
    // SAFETY: the caller's promise.
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
unsafe fn sum4([a, b, c, d]: [__m256; 4]) -> [f32; 4] {
    // SAFETY: the caller's promise; `sums` has room for four elements.
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
