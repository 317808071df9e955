//! [`Lanes`] in NEON intrinsics.

use std::arch::aarch64::*;
use std::arch::asm;

use crate::simd::{Lanes, SimdLevel, WIDEST, methods};

/// Eight lanes in two registers: the 32 registers of ARM64 hold as many vectors as the 16 of AVX2.
#[derive(Clone, Copy)]
pub(crate) struct Neon(pub(crate) float32x4_t, pub(crate) float32x4_t);

/// Two registers of 32-bit integers.
#[derive(Clone, Copy)]
pub(crate) struct Ints(pub(crate) int32x4_t, pub(crate) int32x4_t);

/// Lane i has bit i.
static BITS: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

impl Lanes for Neon {
    const LEVEL: SimdLevel = SimdLevel::Neon;
    const N: usize = 8;
    const ACROSS: usize = 2;
    const HEADS: usize = 4;

    methods! {
        splat(x: f32) -> Self = Self(vdupq_n_f32(x), vdupq_n_f32(x));
        load(from: *const f32) -> Self = Self(vld1q_f32(from), vld1q_f32(from.add(4)));
        load_halves(from: *const u8) -> Self = {
            let halves = vreinterpretq_f16_u8(vld1q_u8(from));
            Self(vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves))
        };
        splat_half(from: *const u8) -> Self = Self::splat(half(from));
        load_bytes(from: *const u8) -> Self = Ints::widened(vmovl_s8(vld1_s8(from.cast()))).to_floats();
        load_nibbles(from: *const u8, high: bool) -> Self = {
            let moved = vshl_u8(vld1_u8(from), vdup_n_s8(if high { -4 } else { 0 }));
            let nibbles = vmovl_u8(vand_u8(moved, vdup_n_u8(15)));
            Ints::widened(vreinterpretq_s16_u16(nibbles)).to_floats()
        };
        store(self: Self, to: *mut f32) -> () = {
            vst1q_f32(to, self.0);
            vst1q_f32(to.add(4), self.1);
        };
        add(self: Self, other: Self) -> Self = Self(vaddq_f32(self.0, other.0), vaddq_f32(self.1, other.1));
        sub(self: Self, other: Self) -> Self = Self(vsubq_f32(self.0, other.0), vsubq_f32(self.1, other.1));
        mul(self: Self, other: Self) -> Self = Self(vmulq_f32(self.0, other.0), vmulq_f32(self.1, other.1));
        div(self: Self, other: Self) -> Self = Self(vdivq_f32(self.0, other.0), vdivq_f32(self.1, other.1));
        max(self: Self, other: Self) -> Self = Self(vmaxq_f32(self.0, other.0), vmaxq_f32(self.1, other.1));
        mul_add(self: Self, factor: Self, summand: Self) -> Self =
            Self(vfmaq_f32(summand.0, self.0, factor.0), vfmaq_f32(summand.1, self.1, factor.1));
        select_less(a: Self, b: Self, yes: Self, no: Self) -> Self = Self(
            vbslq_f32(vcltq_f32(a.0, b.0), yes.0, no.0),
            vbslq_f32(vcltq_f32(a.1, b.1), yes.1, no.1),
        );
        less_bits(a: Self, b: Self) -> u64 = {
            let low = vandq_u32(vcltq_f32(a.0, b.0), vld1q_u32(BITS.as_ptr()));
            let high = vandq_u32(vcltq_f32(a.1, b.1), vld1q_u32(BITS.as_ptr().add(4)));
            u64::from(vaddvq_u32(vorrq_u32(low, high)))
        };
        raise_exponent(self: Self, steps: Self) -> Self = Self(raised(self.0, steps.0), raised(self.1, steps.1));
        sum4(vectors: [Self; 4]) -> [f32; 4] = {
            let mut sums = [0.0; 4];
            vst1q_f32(sums.as_mut_ptr(), sums_of(vectors));
            sums
        };
        sum_each(vectors: &[Self; WIDEST]) -> Self = {
            let [a, b, c, d, e, f, g, h, ..] = *vectors;
            Self(sums_of([a, b, c, d]), sums_of([e, f, g, h]))
        };
    }
}

impl Ints {
    /// # Safety
    /// Needs NEON.
    #[inline(always)]
    pub(crate) unsafe fn widened(x: int16x8_t) -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe { Self(vmovl_s16(vget_low_s16(x)), vmovl_high_s16(x)) }
    }

    /// # Safety
    /// Needs NEON.
    #[inline(always)]
    pub(crate) unsafe fn to_floats(self) -> Neon {
        // SAFETY: guaranteed by the caller.
        unsafe { Neon(vcvtq_f32_s32(self.0), vcvtq_f32_s32(self.1)) }
    }
}

/// The f16 number at `from`.
///
/// # Safety
/// Needs NEON, and two readable bytes.
#[inline(always)]
pub(crate) unsafe fn half(from: *const u8) -> f32 {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let bits = vdup_n_u16(from.cast::<u16>().read_unaligned());
        vgetq_lane_f32::<0>(vcvt_f32_f16(vreinterpret_f16_u16(bits)))
    }
}

/// Adds the low bits of `steps` to the exponent of `x`.
///
/// # Safety
/// Needs NEON.
#[inline(always)]
unsafe fn raised(x: float32x4_t, steps: float32x4_t) -> float32x4_t {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let steps = vshlq_n_s32::<23>(vreinterpretq_s32_f32(steps));
        vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(x), steps))
    }
}

/// Lane i is the sum of the lanes of vector i.
///
/// # Safety
/// Needs NEON.
#[inline(always)]
unsafe fn sums_of([a, b, c, d]: [Neon; 4]) -> float32x4_t {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let [a, b, c, d] = [a, b, c, d].map(|vector| vaddq_f32(vector.0, vector.1));
        vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d))
    }
}

/// Adds to each lane of `sums` four products of signed bytes. `vdotq_s32` of the standard library is not stable.
///
/// # Safety
/// Needs the dot-product instructions, which the calling function enables.
#[inline(always)]
pub(crate) unsafe fn sdot(mut sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the instruction accesses these registers only; the caller guarantees that it exists.
    unsafe {
        asm!(
            "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) sums,
            in(vreg) a,
            in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}
