//! One input times rows of the matrix, read directly from the mapped file: the inner loop of decode.
//!
//! Rows are read one after the other, so memory is read sequentially: interleaving four rows was a third as fast,
//! because the runs are too short for the hardware prefetcher. The code for x86-64 issues software prefetches as well.
//! There every format is multiplied in registers (`x86`, `x86_of_256`, `x86_of_lists`), and on ARM64 by one loop
//! (`neon`); without byte vector instructions all use their description in `format.rs` or `lists.rs`.

use super::format::{
    Format, Q1_0, Q2_0, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0, Unpacked,
};
use super::ints::ByteLevel;
use super::lists::{
    Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Iq4Nl, Iq4Xs, Mxfp4, Tq1_0, Tq2_0,
};
use super::rows::{BLOCK, Row};
#[cfg(target_arch = "x86_64")]
use {
    x86::{blocks_of_32, one_scale},
    x86_of_256::{iq4_xs, nibbles_of_256, pairs_of_256, q6_k, ternary},
    x86_of_lists::listed,
};

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;
#[cfg(target_arch = "x86_64")]
mod x86_of_256;
#[cfg(target_arch = "x86_64")]
mod x86_of_lists;

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
        unpacked.fill::<F>(block);
        for group in 0..F::BLOCK_SIZE / F::GROUP {
            let at = b * F::BLOCK_SIZE + group * F::GROUP;
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

/// For formats whose rows a function multiplies in registers.
macro_rules! in_registers {
    ($($dots:ident: $($format:ident),*;)*) => {$($(
        impl Dots for $format {
            unsafe fn dots(level: ByteLevel, rows: [&[u8]; ROWS], input: Row<'_>) -> [f32; ROWS] {
                #[cfg(target_arch = "x86_64")]
                #[target_feature(enable = "avx2,fma,f16c")]
                unsafe fn avx2(rows: [&[u8]; ROWS], input: Row<'_>) -> [f32; ROWS] {
                    // SAFETY: this function is compiled with the instructions.
                    unsafe { $dots::<$format, false>(rows, input) }
                }
                #[cfg(target_arch = "x86_64")]
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
                unsafe fn vnni(rows: [&[u8]; ROWS], input: Row<'_>) -> [f32; ROWS] {
                    // SAFETY: this function is compiled with the instructions.
                    unsafe { $dots::<$format, true>(rows, input) }
                }
                #[cfg(target_arch = "aarch64")]
                #[target_feature(enable = "dotprod")]
                unsafe fn dotprod(rows: [&[u8]; ROWS], input: Row<'_>) -> [f32; ROWS] {
                    // SAFETY: this function is compiled with the instructions.
                    unsafe { neon::dots::<$format>(rows, input) }
                }
                match level {
                    // SAFETY: guaranteed by the caller.
                    #[cfg(target_arch = "aarch64")]
                    ByteLevel::Dotprod => unsafe { dotprod(rows, input) },
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
    )*)*};
}

in_registers! {
    blocks_of_32: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Iq4Nl, Mxfp4;
    one_scale: Q1_0, Q2_0;
    pairs_of_256: Q2K, Q3K;
    nibbles_of_256: Q4K, Q5K;
    q6_k: Q6K;
    iq4_xs: Iq4Xs;
    ternary: Tq1_0, Tq2_0;
    listed: Iq1S, Iq1M, Iq2Xxs, Iq2Xs, Iq2S, Iq3Xxs, Iq3S;
}
