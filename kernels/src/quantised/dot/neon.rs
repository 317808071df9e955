//! Dot products with the dot-product instructions of ARM64: one loop for all formats, 32 numbers at a time. A format
//! unpacks its numbers in registers, or in plain loops by its description.

use std::arch::aarch64::*;

use super::super::format::{
    Format, MAX_GROUPS, Q1_0, Q2_0, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0,
    Unpacked, six_bits,
};
use super::super::lists::{
    FP4, HALF_POWERS, IQ4, Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Iq4Nl, Iq4Xs, Mxfp4,
    Tq1_0, Tq2_0, iq4_xs_scales,
};
use super::{BLOCK, ROWS, Row};
use crate::neon::{Ints, half, sdot};

/// A format as this loop reads it. By default a block is unpacked to memory first.
pub(super) trait Weights: Format + Sized {
    /// Unpacks scales and minima, and all that [`Self::weights`] does not read from the block.
    ///
    /// # Safety
    /// Needs NEON, and a whole block.
    #[inline(always)]
    unsafe fn prepare(block: &[u8], into: &mut Unpacked) {
        into.fill::<Self>(block);
    }

    /// Numbers `32 * n..32 * n + 32` of the block, without their scale.
    ///
    /// # Safety
    /// As [`Self::prepare`], and `n` is inside the block.
    #[inline(always)]
    unsafe fn weights(_block: &[u8], unpacked: &Unpacked, n: usize) -> [int8x16_t; 2] {
        // SAFETY: guaranteed by the caller.
        unsafe { less(Self::OFFSET, load(unpacked.quants.as_ptr().add(32 * n))) }
    }
}

/// # Safety
/// Needs the dot-product instructions; rows and input have the same number of whole blocks.
#[inline(always)]
pub(super) unsafe fn dots<F: Weights>(rows: [&[u8]; ROWS], input: Row<'_>) -> [f32; ROWS] {
    let per_block = F::BLOCK_SIZE / BLOCK;
    let mut unpacked = Unpacked::new();
    let mut found = [0.0; ROWS];
    // SAFETY: guaranteed by the caller.
    unsafe {
        for (found, row) in found.iter_mut().zip(rows) {
            let mut sums = [vdupq_n_f32(0.0); 2];
            for (b, block) in row.chunks_exact(F::BYTES).enumerate() {
                F::prepare(block, &mut unpacked);
                let first = b * per_block;
                // Four steps, not eight: the compiler unrolls them, so that what depends on `n` is known in each.
                for four in 0..per_block.div_ceil(4) {
                    for step in 0..per_block.min(4) {
                        let n = 4 * four + step;
                        sums = add_products::<F>(sums, block, &unpacked, input, first, n);
                    }
                }
                if F::MINS {
                    sums[0] = less_mins::<F>(sums[0], &unpacked, input, first);
                }
            }
            *found = vaddvq_f32(vaddq_f32(sums[0], sums[1]));
        }
    }
    found
}

/// Adds the products of numbers `32 * n..32 * n + 32` of the block, whose inputs start at block `first`. Two sums in
/// turn hide the latency of the additions.
///
/// # Safety
/// As [`dots`]; the input has the block.
#[inline(always)]
unsafe fn add_products<F: Weights>(
    mut sums: [float32x4_t; 2],
    block: &[u8],
    unpacked: &Unpacked,
    input: Row<'_>,
    first: usize,
    n: usize,
) -> [float32x4_t; 2] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let weights = F::weights(block, unpacked, n);
        let x = input.bytes.as_ptr().add(BLOCK * (first + n));
        let x = [vld1q_s8(x), vld1q_s8(x.add(16))];
        let level = *input.scales.get_unchecked(first + n);
        for i in 0..BLOCK / F::GROUP {
            let mut products = sdot(vdupq_n_s32(0), weights[i], x[i]);
            if F::GROUP == BLOCK {
                products = sdot(products, weights[1], x[1]);
            }
            let scale = unpacked.scales[BLOCK / F::GROUP * n + i] * level;
            let next = vfmaq_n_f32(sums[0], vcvtq_f32_s32(products), scale);
            sums = [sums[1], next];
        }
    }
    sums
}

/// `sums` less each minimum times the sum of its inputs, in the block whose inputs start at block `first`.
///
/// # Safety
/// Needs NEON; the input has the block.
#[inline(always)]
unsafe fn less_mins<F: Format>(
    mut sums: float32x4_t,
    unpacked: &Unpacked,
    input: Row<'_>,
    first: usize,
) -> float32x4_t {
    let groups = F::BLOCK_SIZE / F::GROUP;
    // Minima past the last group are zero.
    let mut totals = [0.0; MAX_GROUPS];
    if F::GROUP == BLOCK {
        totals[..groups].copy_from_slice(&input.sums[first..][..groups]);
    } else {
        let levels = &input.scales[first..][..groups / 2];
        let sums = &input.byte_sums[2 * first..][..groups];
        for (group, total) in totals[..groups].iter_mut().enumerate() {
            *total = levels[group / 2] * sums[group] as f32;
        }
    }
    for group in (0..groups).step_by(4) {
        // SAFETY: guaranteed by the caller; both arrays have whole vectors.
        unsafe {
            let mins = vld1q_f32(unpacked.mins.as_ptr().add(group));
            sums = vfmsq_f32(sums, mins, vld1q_f32(totals.as_ptr().add(group)));
        }
    }
    sums
}

/// # Safety
/// Needs NEON, and 32 readable bytes.
#[inline(always)]
unsafe fn load(at: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: guaranteed by the caller.
    unsafe { [vld1q_u8(at), vld1q_u8(at.add(16))] }
}

/// # Safety
/// Needs NEON.
#[inline(always)]
unsafe fn less(offset: i32, quants: [uint8x16_t; 2]) -> [int8x16_t; 2] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let offset = vdupq_n_u8(offset as u8);
        [
            vreinterpretq_s8_u8(vsubq_u8(quants[0], offset)),
            vreinterpretq_s8_u8(vsubq_u8(quants[1], offset)),
        ]
    }
}

/// The low or the high nibbles.
///
/// # Safety
/// Needs NEON.
#[inline(always)]
unsafe fn nibbles(bytes: [uint8x16_t; 2], high: bool) -> [uint8x16_t; 2] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if high {
            [vshrq_n_u8::<4>(bytes[0]), vshrq_n_u8::<4>(bytes[1])]
        } else {
            let low = vdupq_n_u8(15);
            [vandq_u8(bytes[0], low), vandq_u8(bytes[1], low)]
        }
    }
}

/// The low nibbles of 16 bytes, then the high ones.
///
/// # Safety
/// Needs NEON, and 16 readable bytes.
#[inline(always)]
unsafe fn both_nibbles(at: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let bytes = vld1q_u8(at);
        [vandq_u8(bytes, vdupq_n_u8(15)), vshrq_n_u8::<4>(bytes)]
    }
}

/// The numbers of `list` that [`both_nibbles`] index.
///
/// # Safety
/// As [`both_nibbles`].
#[inline(always)]
unsafe fn nibbles_of(list: &[i8; 16], at: *const u8) -> [int8x16_t; 2] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let (list, [low, high]) = (vld1q_s8(list.as_ptr()), both_nibbles(at));
        [vqtbl1q_s8(list, low), vqtbl1q_s8(list, high)]
    }
}

/// 32 bytes: `16` where a bit is set, else 0.
///
/// # Safety
/// Needs NEON, and four readable bytes.
#[inline(always)]
unsafe fn fifth_bits(at: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let bits = vreinterpretq_u8_u32(vdupq_n_u32(at.cast::<u32>().read_unaligned()));
        let each = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
        let spread = vcombine_u8(vdup_n_u8(0), vdup_n_u8(1));
        let (first, second) = (spread, vaddq_u8(spread, vdupq_n_u8(2)));
        [first, second]
            .map(|spread| vandq_u8(vtstq_u8(vqtbl1q_u8(bits, spread), each), vdupq_n_u8(16)))
    }
}

/// Quants of Q5_0 and Q5_1: fifth bits, then nibbles.
///
/// # Safety
/// Needs NEON, and 20 readable bytes.
#[inline(always)]
unsafe fn fives(at: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: guaranteed by the caller.
    unsafe { both(both_nibbles(at.add(4)), fifth_bits(at)) }
}

/// The bits of either.
///
/// # Safety
/// Needs NEON.
#[inline(always)]
unsafe fn both(a: [uint8x16_t; 2], b: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
    // SAFETY: guaranteed by the caller.
    unsafe { [vorrq_u8(a[0], b[0]), vorrq_u8(a[1], b[1])] }
}

/// `out [8] = factor * bytes`, which are signed.
///
/// # Safety
/// Needs NEON.
#[inline(always)]
unsafe fn scaled(bytes: u64, factor: f32, out: &mut [f32]) {
    // SAFETY: guaranteed by the caller; `out` has eight elements.
    unsafe {
        let floats = Ints::widened(vmovl_s8(vcreate_s8(bytes))).to_floats();
        let out = &mut out[..8];
        vst1q_f32(out.as_mut_ptr(), vmulq_n_f32(floats.0, factor));
        vst1q_f32(out.as_mut_ptr().add(4), vmulq_n_f32(floats.1, factor));
    }
}

/// Scales and minima of Q4_K and Q5_K.
///
/// # Safety
/// Needs NEON, and a whole block.
#[inline(always)]
unsafe fn scales_and_mins(block: *const u8, into: &mut Unpacked) {
    // SAFETY: guaranteed by the caller; the twelve bytes of scales start at byte 4.
    unsafe {
        let [scales, mins] = six_bits(&*block.add(4).cast());
        scaled(scales, half(block), &mut into.scales);
        scaled(mins, half(block.add(2)), &mut into.mins);
    }
}

/// Formats that are unpacked in registers: scales and minima first, then 32 numbers. The bodies may read a whole block.
macro_rules! in_registers {
    ($($format:ident: |$block:ident, $into:ident| $prepare:expr, |$n:ident| $weights:expr;)*) => {$(
        impl Weights for $format {
            #[inline(always)]
            unsafe fn prepare($block: &[u8], $into: &mut Unpacked) {
                let $block = $block.as_ptr();
                // SAFETY: guaranteed by the caller.
                unsafe { $prepare }
            }
            #[inline(always)]
            unsafe fn weights($block: &[u8], _: &Unpacked, $n: usize) -> [int8x16_t; 2] {
                let $block = $block.as_ptr();
                // SAFETY: guaranteed by the caller.
                unsafe { $weights }
            }
        }
    )*};
}

in_registers! {
    Q8_0: |block, into| into.scales[0] = half(block),
        |_n| [vld1q_s8(block.add(2).cast()), vld1q_s8(block.add(18).cast())];
    Q4_0: |block, into| into.scales[0] = half(block),
        |_n| less(8, both_nibbles(block.add(2)));
    Q4_1: |block, into| {
        into.scales[0] = half(block);
        into.mins[0] = -half(block.add(2));
    }, |_n| less(0, both_nibbles(block.add(4)));
    Q5_0: |block, into| into.scales[0] = half(block),
        |_n| less(16, fives(block.add(2)));
    Q5_1: |block, into| {
        into.scales[0] = half(block);
        into.mins[0] = -half(block.add(2));
    }, |_n| less(0, fives(block.add(4)));
    Iq4Nl: |block, into| into.scales[0] = half(block),
        |_n| nibbles_of(&IQ4, block.add(2));
    Mxfp4: |block, into| into.scales[0] = HALF_POWERS[usize::from(*block)],
        |_n| nibbles_of(&FP4, block.add(1));
    Q4K: |block, into| scales_and_mins(block, into),
        |n| less(0, nibbles(load(block.add(16 + 32 * (n / 2))), n % 2 == 1));
    Q5K: |block, into| scales_and_mins(block, into), |n| {
        let low = nibbles(load(block.add(48 + 32 * (n / 2))), n % 2 == 1);
        let (bits, bit, sixteen) = (load(block.add(16)), vdupq_n_u8(1 << n), vdupq_n_u8(16));
        let fifth = [
            vandq_u8(vtstq_u8(bits[0], bit), sixteen),
            vandq_u8(vtstq_u8(bits[1], bit), sixteen),
        ];
        less(0, both(low, fifth))
    };
    Q6K: |block, into| {
        let d = half(block.add(208));
        scaled(block.add(192).cast::<u64>().read_unaligned(), d, &mut into.scales[..8]);
        scaled(block.add(200).cast::<u64>().read_unaligned(), d, &mut into.scales[8..]);
    }, |n| {
        let (half, quarter) = (n / 4, n % 4);
        let low = nibbles(load(block.add(64 * half + 32 * (quarter % 2))), quarter / 2 == 1);
        // The upper two bits, moved to bits 4 and 5.
        let bits = load(block.add(128 + 32 * half));
        let (by, two) = (vdupq_n_s8(4 - 2 * quarter as i8), vdupq_n_u8(0x30));
        let upper = [
            vandq_u8(vshlq_u8(bits[0], by), two),
            vandq_u8(vshlq_u8(bits[1], by), two),
        ];
        less(32, both(low, upper))
    };
    Iq4Xs: |block, into| iq4_xs_scales(&*block.cast(), &mut into.scales),
        |n| nibbles_of(&IQ4, block.add(8 + 16 * n));
}

/// Formats that are unpacked to memory.
macro_rules! in_memory {
    ($($format:ident)*) => {$(impl Weights for $format {})*};
}

in_memory! {
    Q1_0 Q2_0 Q2K Q3K Iq1S Iq1M Iq2Xxs Iq2Xs Iq2S Iq3Xxs Iq3S Tq1_0 Tq2_0
}
