//! The products of attention on the matrix unit (AMX), where the processor has one.
//!
//! The unit multiplies numbers of 8 bits' precision (bfloat16) and adds in f32. So each f32 is taken apart into two such numbers, and of
//! their four products the three that matter are made: what is left out is less than 2^-15 of a product. That is three times the work,
//! at sixteen times the speed of fused multiply-adds.
//!
//! ```text
//! x = high + low                 each rounded to bfloat16
//! x * y ~ high * high + low * high + high * low
//!
//! left    [rows][steps of 32][high | low]    64 bytes each         rows of keys; dimensions of values, turned
//! right   [16 lanes][steps of 32][high | low]  1 KiB each: [16 pairs][16 lanes][2]      queries; weights
//! out     [rows][lanes]  f32
//! ```
//!
//! The instructions are written out, as the compiler has no stable names for them. All eight tile registers are used within one block
//! of assembly each time, so that nothing has to keep them. Not here: what is multiplied when (`prefill.rs`).

mod split;

use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::OnceLock;

use split::{halves, pairs, take_keys, take_values};

use crate::panel::{PANEL, TILE};
use crate::prefill::Products;
use crate::x86::Avx512;

/// Rows and lanes of a tile register.
const SIDE: usize = 16;
/// Numbers that one step sums up.
const STEP: usize = 32;
/// Bytes of a step in a row of the left side: high, then low.
const LEFT: usize = 2 * 2 * STEP;
/// Bytes of a step for 16 lanes of the right side.
const RIGHT: usize = 2 * 2 * STEP * SIDE;

/// Whether the processor has the unit and the system lets this process use it.
pub(crate) fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        let leaf = __cpuid_count(7, 0);
        let (bf16, tiles) = (leaf.edx >> 22 & 1 == 1, leaf.edx >> 24 & 1 == 1);
        is_x86_feature_detected!("avx512f") && bf16 && tiles && permitted()
    })
}

/// Linux gives the tile registers to processes that ask for them.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_PRCTL: isize = 158;
    const REQUEST_PERMISSION: usize = 0x1023;
    const TILE_DATA: usize = 18;
    let mut result = ARCH_PRCTL;
    // SAFETY: a system call that touches no memory of ours; the kernel changes rcx and r11.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") result,
            in("rdi") REQUEST_PERMISSION,
            in("rsi") TILE_DATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// All tile registers of this thread have 16 rows of 64 bytes, until it is dropped.
pub(crate) struct Configured;

impl Configured {
    /// # Safety
    /// [`available`].
    pub(crate) unsafe fn new() -> Self {
        let mut shape = [0u8; 64];
        shape[0] = 1;
        for register in 0..8 {
            shape[16 + 2 * register] = 64;
            shape[48 + register] = SIDE as u8;
        }
        // SAFETY: 64 bytes, as the instruction reads; it exists (the caller's promise).
        unsafe { asm!("ldtilecfg [{}]", in(reg) shape.as_ptr(), options(nostack, readonly)) };
        Self
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        // SAFETY: the instruction exists where `new` was called.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// One tile of keys and values, taken apart.
pub(crate) struct Tiles {
    /// Of the keys, filled up with zeros to whole steps.
    rows: usize,
    /// Of queries, keys and values, filled up with zeros to whole steps.
    dims: usize,
    /// Left side: `[TILE]` rows of `dims`.
    keys: *const u8,
    /// Left side: `[dims]` rows of `TILE`.
    values: *const u8,
    /// Right side, a panel: `TILE` numbers for each lane.
    weights: *mut u8,
}

impl Products for Tiles {
    type V = Avx512;

    // Taking a tile apart is shared by more of them.
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
        // SAFETY: the panel holds `dims` numbers for each lane (the caller's promise).
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
        // SAFETY: the level is the caller's promise; sizes as drawn above.
        unsafe {
            take_keys(keys, head_dim, &tiles, key_scratch.as_mut_ptr().cast());
            take_values(values, head_dim, &tiles, value_scratch.as_mut_ptr().cast());
        }
        tiles
    }

    #[inline(always)]
    unsafe fn dots(&self, rows: usize, width: usize, queries: *const f32, logits: *mut f32) {
        let steps = self.dims / STEP;
        // SAFETY: sizes as drawn above (the caller's promise).
        unsafe {
            multiply::<false>(
                (rows.next_multiple_of(STEP), width, steps),
                (self.keys, steps * LEFT),
                (queries.cast(), steps * RIGHT),
                logits,
            );
        }
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
        // SAFETY: sizes as drawn above (the caller's promise).
        unsafe {
            self.take_weights(rows, width, weights);
            rescale(self.dims, width, keep, sums);
            let steps = TILE / STEP;
            multiply::<true>(
                (self.dims, width, rows.div_ceil(STEP)),
                (self.values, steps * LEFT),
                (self.weights, steps * RIGHT),
                sums,
            );
        }
    }
}

impl Tiles {
    /// `weights [rows][width]` to the right side, filled up with zeros to whole steps.
    ///
    /// # Safety
    /// Needs AVX-512F; the pointer covers as much.
    #[inline(always)]
    unsafe fn take_weights(&self, rows: usize, width: usize, weights: *const f32) {
        // SAFETY: the caller's promise; `self.weights` has room for a panel.
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

/// `sums [dims][width]` times `keep [width]`, where that is not 1 in every lane.
///
/// # Safety
/// Needs AVX-512F; pointers cover as much.
#[inline(always)]
unsafe fn rescale(dims: usize, width: usize, keep: *const f32, sums: *mut f32) {
    // SAFETY: the caller's promise.
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

/// `out [rows][width] (+)= left * right` over `steps` of [`STEP`] numbers; `rows` and `width` are multiples of 32. Strides are bytes: of a
/// row of the left side, and of 16 lanes of the right one.
///
/// # Safety
/// [`Configured`]; pointers cover as much.
#[inline(always)]
unsafe fn multiply<const ADD: bool>(
    (rows, width, steps): (usize, usize, usize),
    (left, left_stride): (*const u8, usize),
    (right, right_stride): (*const u8, usize),
    out: *mut f32,
) {
    for row in (0..rows).step_by(2 * SIDE) {
        for lane in (0..width).step_by(2 * SIDE) {
            // SAFETY: the caller's promise.
            unsafe {
                square::<ADD>(
                    steps,
                    (left.add(row * left_stride), left_stride),
                    (right.add(lane / SIDE * right_stride), right_stride),
                    (out.add(row * width + lane), width * size_of::<f32>()),
                );
            }
        }
    }
}

/// [`multiply`] for 32 rows and 32 lanes, which four tile registers hold over all steps.
///
/// # Safety
/// As [`multiply`].
#[inline(always)]
unsafe fn square<const ADD: bool>(
    steps: usize,
    (left, left_stride): (*const u8, usize),
    (right, right_stride): (*const u8, usize),
    (out, out_stride): (*mut f32, usize),
) {
    // SAFETY: the caller's promise; of what is written only `out` is memory.
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
            left = inout(reg) left => _,
            below = inout(reg) left.add(SIDE * left_stride) => _,
            left_stride = in(reg) left_stride,
            right = inout(reg) right => _,
            next = inout(reg) right.add(right_stride) => _,
            line = in(reg) 64usize,
            steps = inout(reg) steps => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}
