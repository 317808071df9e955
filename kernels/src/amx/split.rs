//! Numbers taken apart for the matrix unit: two of bfloat16's precision for each f32, and where they lie in a tile (`../amx.rs` draws it).

use std::arch::x86_64::*;

use super::{LEFT, SIDE, STEP, Tiles};
use crate::panel::TILE;

/// `x` as two bfloat16.
#[inline(always)]
pub(super) fn halves(x: f32) -> (u16, u16) {
    let high = x.to_bits().wrapping_add(0x8000) & 0xffff_0000;
    let low = (x - f32::from_bits(high)).to_bits().wrapping_add(0x8000);
    ((high >> 16) as u16, (low >> 16) as u16)
}

/// The same of sixteen numbers, each in the upper half of its lane; what is below `low` is anything.
///
/// # Safety
/// Needs AVX-512F.
#[inline(always)]
unsafe fn wide_halves(x: __m512) -> (__m512i, __m512i) {
    // SAFETY: the caller's promise.
    unsafe {
        let half = _mm512_set1_epi32(0x8000);
        let upper = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
        let high = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(x), half), upper);
        let low = _mm512_sub_ps(x, _mm512_castsi512_ps(high));
        (high, _mm512_add_epi32(_mm512_castps_si512(low), half))
    }
}

/// Lane by lane a pair of bfloat16, `a` first: the high ones, and the low ones.
///
/// # Safety
/// Needs AVX-512F.
#[inline(always)]
pub(super) unsafe fn pairs(a: __m512, b: __m512) -> (__m512i, __m512i) {
    // SAFETY: the caller's promise.
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

/// Sixteen numbers of `row` from `i` on, zeros behind its end.
///
/// # Safety
/// Needs AVX-512F; `i` is below the row's length.
#[inline(always)]
unsafe fn load(row: &[f32], i: usize) -> __m512 {
    let mask = match row.len() - i {
        0..SIDE => (1u16 << (row.len() - i)) - 1,
        _ => u16::MAX,
    };
    // SAFETY: what the mask leaves out is not read.
    unsafe { _mm512_maskz_loadu_ps(mask, row.as_ptr().add(i)) }
}

/// Keys to the left side.
///
/// # Safety
/// Needs AVX-512F; `to` has room for the tile.
#[inline(always)]
pub(super) unsafe fn take_keys(keys: &[f32], head_dim: usize, tiles: &Tiles, to: *mut u8) {
    let stride = tiles.dims / STEP * LEFT;
    let rows = keys.len() / head_dim;
    // SAFETY: the caller's promise.
    unsafe {
        for (r, row) in keys.chunks_exact(head_dim).enumerate() {
            for i in (0..tiles.dims).step_by(SIDE) {
                let x = match i < head_dim {
                    true => load(row, i),
                    false => _mm512_setzero_ps(),
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

/// Values to the left side, turned: dimensions are its rows.
///
/// # Safety
/// Needs AVX-512F; `to` has room for the tile.
#[inline(always)]
pub(super) unsafe fn take_values(values: &[f32], head_dim: usize, tiles: &Tiles, to: *mut u8) {
    let stride = TILE / STEP * LEFT;
    let rows = values.len() / head_dim;
    // SAFETY: the caller's promise.
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
                let (highs, lows) = (turned(highs), turned(lows));
                for i in 0..SIDE {
                    let to = to.add(i * stride);
                    _mm512_storeu_si512(to.cast(), highs[i]);
                    _mm512_storeu_si512(to.add(LEFT / 2).cast(), lows[i]);
                }
            }
        }
    }
}

/// Lane j of vector i becomes lane i of vector j.
///
/// # Safety
/// Needs AVX-512F.
#[inline(always)]
unsafe fn turned(rows: [__m512i; SIDE]) -> [__m512i; SIDE] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut of_two = rows;
        for i in (0..SIDE).step_by(2) {
            of_two[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
            of_two[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
        }
        // Of four rows each: lanes c, c + 4, c + 8 and c + 12, four numbers of each.
        let mut of_four = of_two;
        for i in (0..SIDE).step_by(4) {
            for c in 0..2 {
                let (a, b) = (of_two[i + c], of_two[i + 2 + c]);
                of_four[i + 2 * c] = _mm512_unpacklo_epi64(a, b);
                of_four[i + 2 * c + 1] = _mm512_unpackhi_epi64(a, b);
            }
        }
        let mut turned = of_four;
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
            turned[c] = _mm512_shuffle_i32x4::<0b10_00_10_00>(ab_even, de_even);
            turned[c + 8] = _mm512_shuffle_i32x4::<0b11_01_11_01>(ab_even, de_even);
            turned[c + 4] = _mm512_shuffle_i32x4::<0b10_00_10_00>(ab_odd, de_odd);
            turned[c + 12] = _mm512_shuffle_i32x4::<0b11_01_11_01>(ab_odd, de_odd);
        }
        turned
    }
}
