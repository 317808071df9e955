//! Splits f32 numbers into two bfloat16 numbers each, in the layout of the AMX tiles (drawn in `../amx.rs`).

use std::arch::x86_64::*;

use super::{LEFT, SIDE, STEP, Tiles};
use crate::panel::TILE;
use crate::x86::transpose_sixteen;

/// Splits `x` into two bfloat16 numbers, high and low.
#[inline(always)]
pub(super) fn halves(x: f32) -> (u16, u16) {
    let high = x.to_bits().wrapping_add(0x8000) & 0xffff_0000;
    let low = (x - f32::from_bits(high)).to_bits().wrapping_add(0x8000);
    ((high >> 16) as u16, (low >> 16) as u16)
}

/// [`halves`] of sixteen numbers, each in the upper half of its lane; the bits below the low number are unspecified.
///
/// # Safety
/// Needs AVX-512F.
#[inline(always)]
unsafe fn wide_halves(x: __m512) -> (__m512i, __m512i) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let half = _mm512_set1_epi32(0x8000);
        let upper = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
        let high = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(x), half), upper);
        let low = _mm512_sub_ps(x, _mm512_castsi512_ps(high));
        (high, _mm512_add_epi32(_mm512_castps_si512(low), half))
    }
}

/// Per lane a pair of bfloat16 numbers, that of `a` first: one vector of the high halves, one of the low halves.
///
/// # Safety
/// Needs AVX-512F.
#[inline(always)]
pub(super) unsafe fn pairs(a: __m512, b: __m512) -> (__m512i, __m512i) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let ((a_high, a_low), (b_high, b_low)) = (wide_halves(a), wide_halves(b));
        let upper = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
        let (high, low) = (
            _mm512_and_si512(b_high, upper),
            _mm512_and_si512(b_low, upper),
        );
        (
            _mm512_or_si512(_mm512_srli_epi32::<16>(a_high), high),
            _mm512_or_si512(_mm512_srli_epi32::<16>(a_low), low),
        )
    }
}

/// Loads sixteen numbers of `row` from index `i`, with zeros past its end.
///
/// # Safety
/// Needs AVX-512F; `i` is below the row's length.
#[inline(always)]
unsafe fn load(row: &[f32], i: usize) -> __m512 {
    let mask = match row.len() - i {
        0..SIDE => (1u16 << (row.len() - i)) - 1,
        _ => u16::MAX,
    };
    // SAFETY: the masked load does not read past the end of the row.
    unsafe { _mm512_maskz_loadu_ps(mask, row.as_ptr().add(i)) }
}

/// Splits keys into the left operand.
///
/// # Safety
/// Needs AVX-512F; `to` covers the tile.
#[inline(always)]
pub(super) unsafe fn split_keys(keys: &[f32], head_dim: usize, tiles: &Tiles, to: *mut u8) {
    let stride = tiles.dims / STEP * LEFT;
    let rows = keys.len() / head_dim;
    // SAFETY: guaranteed by the caller.
    unsafe {
        for (r, row) in keys.chunks_exact(head_dim).enumerate() {
            for i in (0..tiles.dims).step_by(SIDE) {
                let x = if i < head_dim {
                    load(row, i)
                } else {
                    _mm512_setzero_ps()
                };
                let (high, low) = wide_halves(x);
                let to = to.add(r * stride + i / STEP * LEFT + i % STEP * 2);
                let (high, low) = (_mm512_srli_epi32::<16>(high), _mm512_srli_epi32::<16>(low));
                _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(high));
                _mm256_storeu_si256(to.add(LEFT / 2).cast(), _mm512_cvtepi32_epi16(low));
            }
        }
        to.add(rows * stride)
            .write_bytes(0, (tiles.rows - rows) * stride);
    }
}

/// Splits values into the left operand, transposed: its rows are dimensions.
///
/// # Safety
/// Needs AVX-512F; `to` covers the tile.
#[inline(always)]
pub(super) unsafe fn split_values(values: &[f32], head_dim: usize, tiles: &Tiles, to: *mut u8) {
    let stride = TILE / STEP * LEFT;
    let rows = values.len() / head_dim;
    // SAFETY: guaranteed by the caller.
    unsafe {
        for dim in (0..tiles.dims).step_by(SIDE) {
            for first in (0..tiles.rows).step_by(STEP) {
                let mut highs = [_mm512_setzero_si512(); SIDE];
                let mut lows = highs;
                for (pair, (high, low)) in highs.iter_mut().zip(&mut lows).enumerate() {
                    let row = first + 2 * pair;
                    let mut two = [_mm512_setzero_ps(); 2];
                    for (i, x) in two.iter_mut().enumerate() {
                        if row + i < rows && dim < head_dim {
                            *x = load(&values[(row + i) * head_dim..][..head_dim], dim);
                        }
                    }
                    (*high, *low) = pairs(two[0], two[1]);
                }
                let to = to.add(dim * stride + first / STEP * LEFT);
                let (highs, lows) = (transpose_sixteen(highs), transpose_sixteen(lows));
                for i in 0..SIDE {
                    let to = to.add(i * stride);
                    _mm512_storeu_si512(to.cast(), highs[i]);
                    _mm512_storeu_si512(to.add(LEFT / 2).cast(), lows[i]);
                }
            }
        }
    }
}
