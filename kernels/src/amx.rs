//! Attention products on the CPU's matrix unit (Intel AMX).
//!
//! The unit multiplies bfloat16 numbers (8 bits of precision) and accumulates in f32. Each f32 is split into two
//! bfloat16 numbers, and three of their four products are computed; the omitted product is less than 2^-15 of the
//! result. This is three times the work at sixteen times the speed of fused multiply-adds.
//!
//! ```text
//! x = high + low                 each rounded to bfloat16
//! x * y ~ high * high + low * high + high * low
//!
//! left    [rows][steps of 32][high | low]    64 bytes each         rows of keys; dimensions of values, transposed
//! right   [16 lanes][steps of 32][high | low]  1 KiB each: [16 pairs][16 lanes][2]      queries; weights
//! out     [rows][lanes]  f32
//! ```
//!
//! The instructions are written in assembly because the compiler has no stable intrinsics for them. Each assembly block
//! uses all eight tile registers from start to finish, so no state has to survive between blocks. `prefill.rs` decides
//! what is multiplied when.

pub(crate) mod permission;
mod split;

use std::arch::asm;
use std::arch::x86_64::*;

use split::{halves, pairs, split_keys, split_values};

use crate::panel::{PANEL, ProductShape, TILE};
use crate::prefill::products::Products;
use crate::x86::Avx512;

/// Rows and lanes of a tile register.
const SIDE: usize = 16;
/// Numbers along the summed dimension that one step covers.
const STEP: usize = 32;
/// Bytes of one step in a row of the left operand: high halves, then low halves.
const LEFT: usize = 2 * 2 * STEP;
/// Bytes of one step for 16 lanes of the right operand.
const RIGHT: usize = 2 * 2 * STEP * SIDE;

/// Configures all tile registers of this thread as 16 rows of 64 bytes; dropping it releases them.
pub(crate) struct Configured;

impl Configured {
    /// # Safety
    /// [`available`] must be true.
    pub(crate) unsafe fn new() -> Self {
        let mut shape = [0u8; 64];
        shape[0] = 1;
        for register in 0..8 {
            shape[16 + 2 * register] = 64;
            shape[48 + register] = SIDE as u8;
        }
        // SAFETY: the instruction reads 64 bytes; the caller guarantees that the CPU has it.
        unsafe { asm!("ldtilecfg [{}]", in(reg) shape.as_ptr(), options(nostack, readonly)) };
        Self
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        // SAFETY: `new` ran on this CPU, so the instruction exists.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// One tile of keys and values, split into bfloat16 pairs.
pub(crate) struct Tiles {
    /// Keys, padded with zeros to whole steps.
    rows: usize,
    /// Elements of a query, key or value, padded with zeros to whole steps.
    dims: usize,
    /// Left operand: `[TILE]` rows of `dims`.
    keys: *const u8,
    /// Left operand: `[dims]` rows of `TILE`.
    values: *const u8,
    /// Right operand, one panel: `TILE` numbers for each lane.
    weights: *mut u8,
}

impl Products for Tiles {
    type V = Avx512;

    // More lanes amortise the cost of splitting a tile.
    const LANES: usize = 256;
    const WIDTH: usize = 2 * SIDE;

    fn dims(head_dim: usize) -> usize {
        head_dim.next_multiple_of(STEP)
    }

    fn scratch(head_dim: usize) -> usize {
        TILE * (2 * Self::dims(head_dim) + PANEL)
    }

    #[inline(always)]
    unsafe fn pack_query(query: &[f32], scale: f32, panel: *mut f32, _width: usize, lane: usize) {
        let steps = Self::dims(query.len()) / STEP;
        // SAFETY: the panel holds `dims` numbers for each lane (guaranteed by the caller).
        unsafe {
            let lanes = panel.cast::<u8>().add(lane / SIDE * steps * RIGHT);
            for (i, x) in query.iter().enumerate() {
                let (high, low) = halves(x * scale);
                let pair = i % STEP / 2 * 2 * SIDE + lane % SIDE * 2 + i % 2;
                let at = lanes.add(i / STEP * RIGHT).cast::<u16>().add(pair);
                *at = high;
                *at.add(RIGHT / 4) = low;
            }
        }
    }

    #[inline(always)]
    unsafe fn tile(keys: &[f32], values: &[f32], head_dim: usize, scratch: &mut [f32]) -> Self {
        let dims = Self::dims(head_dim);
        let rows = keys.len() / head_dim;
        let (key_scratch, scratch) = scratch.split_at_mut(TILE * dims);
        let (value_scratch, weights) = scratch.split_at_mut(dims * TILE);
        let tiles = Self {
            rows: rows.next_multiple_of(STEP),
            dims,
            keys: key_scratch.as_ptr().cast(),
            values: value_scratch.as_ptr().cast(),
            weights: weights.as_mut_ptr().cast(),
        };
        // SAFETY: the caller guarantees the level; sizes as drawn above.
        unsafe {
            split_keys(keys, head_dim, &tiles, key_scratch.as_mut_ptr().cast());
            split_values(values, head_dim, &tiles, value_scratch.as_mut_ptr().cast());
        }
        tiles
    }

    #[inline(always)]
    unsafe fn dots(&self, rows: usize, width: usize, queries: *const f32, logits: *mut f32) {
        let shape = ProductShape {
            rows: rows.next_multiple_of(STEP),
            steps: self.dims,
            width,
        };
        let keys = Operand {
            start: self.keys,
            stride: self.dims / STEP * LEFT,
        };
        let queries = Operand {
            start: queries.cast(),
            stride: self.dims / STEP * RIGHT,
        };
        // SAFETY: sizes as drawn above (guaranteed by the caller).
        unsafe { multiply::<false>(shape, keys, queries, logits) };
    }

    #[inline(always)]
    unsafe fn add(
        &self,
        rows: usize,
        width: usize,
        weights: *const f32,
        keep: *const f32,
        sums: *mut f32,
    ) {
        let shape = ProductShape {
            rows: self.dims,
            steps: rows.next_multiple_of(STEP),
            width,
        };
        let values = Operand {
            start: self.values,
            stride: TILE / STEP * LEFT,
        };
        let split_weights = Operand {
            start: self.weights,
            stride: TILE / STEP * RIGHT,
        };
        // SAFETY: sizes as drawn above (guaranteed by the caller).
        unsafe {
            self.split_weights(rows, width, weights);
            rescale(self.dims, width, keep, sums);
            multiply::<true>(shape, values, split_weights, sums);
        }
    }
}

impl Tiles {
    /// Splits `weights [rows][width]` into the right operand, padded with zeros to whole steps.
    ///
    /// # Safety
    /// Needs AVX-512F; `weights` covers `rows * width` numbers.
    #[inline(always)]
    unsafe fn split_weights(&self, rows: usize, width: usize, weights: *const f32) {
        // SAFETY: guaranteed by the caller; `self.weights` has the size of one panel.
        unsafe {
            for lane in (0..width).step_by(SIDE) {
                let to = self.weights.add(lane / SIDE * (TILE / STEP) * RIGHT);
                for row in (0..rows.next_multiple_of(STEP)).step_by(2) {
                    let mut two = [_mm512_setzero_ps(); 2];
                    for (i, x) in two.iter_mut().enumerate() {
                        if row + i < rows {
                            *x = _mm512_loadu_ps(weights.add((row + i) * width + lane));
                        }
                    }
                    let (high, low) = pairs(two[0], two[1]);
                    let to = to.add(row / STEP * RIGHT + row % STEP / 2 * 64);
                    _mm512_storeu_si512(to.cast(), high);
                    _mm512_storeu_si512(to.add(RIGHT / 2).cast(), low);
                }
            }
        }
    }
}

/// Multiplies `sums [dims][width]` by `keep [width]`, unless `keep` is 1 in every lane.
///
/// # Safety
/// Needs AVX-512F; the pointers cover these extents.
#[inline(always)]
unsafe fn rescale(dims: usize, width: usize, keep: *const f32, sums: *mut f32) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        for lane in (0..width).step_by(SIDE) {
            let keep = _mm512_loadu_ps(keep.add(lane));
            if _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(keep, _mm512_set1_ps(1.0)) != 0 {
                for dim in 0..dims {
                    let at = sums.add(dim * width + lane);
                    _mm512_storeu_ps(at, _mm512_mul_ps(_mm512_loadu_ps(at), keep));
                }
            }
        }
    }
}

/// An operand in the layout of the tiles.
#[derive(Clone, Copy)]
struct Operand {
    start: *const u8,
    /// Bytes per row of the left operand, or per 16 lanes of the right one.
    stride: usize,
}

/// `out [rows][width] (+)= left * right`; all extents are multiples of 32.
///
/// # Safety
/// A [`Configured`] is alive on this thread; the pointers cover these extents.
#[inline(always)]
unsafe fn multiply<const ADD: bool>(
    shape: ProductShape,
    left: Operand,
    right: Operand,
    out: *mut f32,
) {
    let ProductShape { rows, steps, width } = shape;
    for row in (0..rows).step_by(2 * SIDE) {
        for lane in (0..width).step_by(2 * SIDE) {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let left = Operand {
                    start: left.start.add(row * left.stride),
                    ..left
                };
                let right = Operand {
                    start: right.start.add(lane / SIDE * right.stride),
                    ..right
                };
                let out = out.add(row * width + lane);
                square::<ADD>(steps / STEP, left, right, out, width * size_of::<f32>());
            }
        }
    }
}

/// [`multiply`] for 32 rows and 32 lanes, which four tile registers accumulate over `steps` steps of [`STEP`] numbers;
/// rows of `out` are `out_stride` bytes apart.
///
/// # Safety
/// As [`multiply`].
#[inline(always)]
unsafe fn square<const ADD: bool>(
    steps: usize,
    left: Operand,
    right: Operand,
    out: *mut f32,
    out_stride: usize,
) {
    // SAFETY: guaranteed by the caller; the only memory written is `out`.
    unsafe {
        let lower = out.cast::<u8>().add(SIDE * out_stride);
        asm!(
            "test {add:e}, {add:e}",
            "jz 2f",
            "tileloadd tmm0, [{upper} + {out_stride}*1]",
            "tileloadd tmm1, [{upper} + {out_stride}*1 + 64]",
            "tileloadd tmm2, [{lower} + {out_stride}*1]",
            "tileloadd tmm3, [{lower} + {out_stride}*1 + 64]",
            "jmp 3f",
            "2:",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "3:",
            // high * high
            "tileloadd tmm4, [{left} + {left_stride}*1]",
            "tileloadd tmm6, [{right} + {line}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{next} + {line}*1]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{below} + {left_stride}*1]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            // low * high
            "tileloadd tmm4, [{left} + {left_stride}*1 + 64]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{below} + {left_stride}*1 + 64]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            // high * low
            "tileloadd tmm4, [{left} + {left_stride}*1]",
            "tileloadd tmm6, [{right} + {line}*1 + 1024]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{next} + {line}*1 + 1024]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{below} + {left_stride}*1]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {left}, 128",
            "add {below}, 128",
            "add {right}, 2048",
            "add {next}, 2048",
            "dec {steps}",
            "jnz 3b",
            "tilestored [{upper} + {out_stride}*1], tmm0",
            "tilestored [{upper} + {out_stride}*1 + 64], tmm1",
            "tilestored [{lower} + {out_stride}*1], tmm2",
            "tilestored [{lower} + {out_stride}*1 + 64], tmm3",
            add = in(reg) u32::from(ADD),
            upper = in(reg) out,
            lower = in(reg) lower,
            out_stride = in(reg) out_stride,
            left = inout(reg) left.start => _,
            below = inout(reg) left.start.add(SIDE * left.stride) => _,
            left_stride = in(reg) left.stride,
            right = inout(reg) right.start => _,
            next = inout(reg) right.start.add(right.stride) => _,
            line = in(reg) 64usize,
            steps = inout(reg) steps => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}
