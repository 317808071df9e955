//! Inner loops shared by prefill and window scores: one tile of keys against one panel of query rows.
//!
//! Query rows lie across the lanes; keys and dimensions lie down the rows. So all operations are vertical: no sum
//! across lanes, no transposed or copied keys and values. A panel is at most `ACROSS` vectors wide.
//!
//! ```text
//! queries   [head_dim][lanes]   transposed once per panel, scaled
//! logits    [keys][lanes]       = keys    [keys][head_dim]   x queries
//! out       [head_dim][lanes]  += values^T [head_dim][keys]  x probabilities [keys][lanes]
//! ```
//!
//! The callers choose which keys and rows to visit, and in what order.

use crate::simd::{Lanes, WIDEST};

/// Keys per tile: the logits of 64 keys x 64 lanes (16 KiB) stay in the L1 cache, as does the tile's share of queries
/// or values while one panel passes over it.
pub(crate) const TILE: usize = 64;

/// Most lanes of a panel, over all levels.
pub(crate) const PANEL: usize = 64;

/// Rows of accumulators in the register tile: 6 x 4 vectors of 32 registers (AVX-512, NEON), 6 x 2 of 16 (AVX2, SSE).
const DOWN: usize = 6;

/// Below every real logit, yet finite: a lane without visible keys must not compute infinity minus infinity.
pub(crate) const LOWEST_LOGIT: f32 = -1e30;

/// A matrix whose element `(row, step)` is `start[row * row_stride + step * step_stride]`.
#[derive(Clone, Copy)]
pub(crate) struct Strided {
    pub start: *const f32,
    pub row_stride: usize,
    pub step_stride: usize,
}

/// Extents of a product `[rows, steps] x [steps, width]`.
#[derive(Clone, Copy)]
pub(crate) struct ProductShape {
    pub rows: usize,
    /// Numbers that each result sums over.
    pub steps: usize,
    /// Lanes of a panel: whole vectors.
    pub width: usize,
}

/// `out[row][lane] = out[row][lane] * rescale[lane] + sum over steps of left(row, step) * right[step][lane]`; without
/// `rescale`, the old `out` is not read. `right` and `out` are `[_][width]`.
///
/// # Safety
/// The pointers cover these extents, `out` overlaps no input, and the caller runs at the level of `V`.
#[inline(always)]
pub(crate) unsafe fn product<V: Lanes>(
    shape: ProductShape,
    left: Strided,
    right: *const f32,
    rescale: Option<*const f32>,
    out: *mut f32,
) {
    let ProductShape { rows, steps, width } = shape;
    // SAFETY: guaranteed by the caller.
    unsafe {
        match width / V::N {
            1 => product_across::<V, 1>(rows, steps, left, right, rescale, out),
            2 => product_across::<V, 2>(rows, steps, left, right, rescale, out),
            3 => product_across::<V, 3>(rows, steps, left, right, rescale, out),
            4 => product_across::<V, 4>(rows, steps, left, right, rescale, out),
            vectors => unreachable!("a panel of {vectors} vectors"),
        }
    }
}

/// [`product`] for a panel of `ACROSS` vectors.
///
/// # Safety
/// As [`product`].
#[inline(always)]
unsafe fn product_across<V: Lanes, const ACROSS: usize>(
    rows: usize,
    steps: usize,
    mut left: Strided,
    right: *const f32,
    rescale: Option<*const f32>,
    mut out: *mut f32,
) {
    let mut remaining = rows;
    // SAFETY: guaranteed by the caller; both pointers move over `rows` rows in all.
    unsafe {
        while remaining > 0 {
            // Two tiles of 4 rows are faster than 6 + 2: a tile with few accumulators leaves the multipliers idle.
            let down = match remaining {
                8 => 4,
                _ => remaining.min(DOWN),
            };
            match down {
                6 => register_tile::<V, 6, ACROSS>(steps, left, right, rescale, out),
                5 => register_tile::<V, 5, ACROSS>(steps, left, right, rescale, out),
                4 => register_tile::<V, 4, ACROSS>(steps, left, right, rescale, out),
                3 => register_tile::<V, 3, ACROSS>(steps, left, right, rescale, out),
                2 => register_tile::<V, 2, ACROSS>(steps, left, right, rescale, out),
                _ => register_tile::<V, 1, ACROSS>(steps, left, right, rescale, out),
            }
            left.start = left.start.add(down * left.row_stride);
            out = out.add(down * ACROSS * V::N);
            remaining -= down;
        }
    }
}

/// [`product`] for `ROWS` x `ACROSS` accumulators held in registers over all steps.
///
/// # Safety
/// As [`product`].
#[inline(always)]
unsafe fn register_tile<V: Lanes, const ROWS: usize, const ACROSS: usize>(
    steps: usize,
    left: Strided,
    right: *const f32,
    rescale: Option<*const f32>,
    out: *mut f32,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut sums = [[V::splat(0.0); ACROSS]; ROWS];
        if let Some(rescale) = rescale {
            for (row, sums) in sums.iter_mut().enumerate() {
                for (v, sum) in sums.iter_mut().enumerate() {
                    let old = V::load(out.add((row * ACROSS + v) * V::N));
                    *sum = old.mul(V::load(rescale.add(v * V::N)));
                }
            }
        }
        for step in 0..steps {
            let mut loaded = [V::splat(0.0); ACROSS];
            for (v, value) in loaded.iter_mut().enumerate() {
                *value = V::load(right.add((step * ACROSS + v) * V::N));
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                let factor = V::splat(
                    *left
                        .start
                        .add(row * left.row_stride + step * left.step_stride),
                );
                for (sum, value) in sums.iter_mut().zip(loaded) {
                    *sum = factor.mul_add(value, *sum);
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                sum.store(out.add((row * ACROSS + v) * V::N));
            }
        }
    }
}

/// Running softmax of one panel, `[vectors * N]` each.
#[derive(Clone, Copy)]
pub(crate) struct OnlineSoftmax {
    /// Largest logit so far; start with [`LOWEST_LOGIT`].
    pub max: *mut f32,
    /// Sum of `exp(logit - max)` so far; start with 0.
    pub sum: *mut f32,
    /// Output: the factor that rescales earlier accumulations to the new `max`.
    pub rescale: *mut f32,
}

/// Replaces `logits [keys][lanes]` by `exp(logit - max)` and updates the running softmax. With `last_visible`, key `j`
/// of the tile is visible in a lane only if `j <= last_visible[lane]`; without it, all keys are visible.
///
/// # Safety
/// The pointers cover these extents, and the caller runs at the level of `V`.
#[inline(always)]
pub(crate) unsafe fn softmax_tile<V: Lanes>(
    keys: usize,
    vectors: usize,
    logits: *mut f32,
    last_visible: Option<*const f32>,
    running: OnlineSoftmax,
) {
    let width = vectors * V::N;
    // SAFETY: guaranteed by the caller.
    unsafe {
        for v in 0..vectors {
            let column = v * V::N;
            let logits = logits.add(column);
            if let Some(last_visible) = last_visible {
                let last_visible = V::load(last_visible.add(column));
                for key in 0..keys {
                    let at = logits.add(key * width);
                    let hidden = V::splat(f32::NEG_INFINITY);
                    let key = V::splat(key as f32);
                    V::select_less(last_visible, key, hidden, V::load(at)).store(at);
                }
            }
            let before = V::load(running.max.add(column));
            // Four independent maxima hide the latency of each operation.
            let mut maxima = [before; 4];
            for first in (0..keys).step_by(4) {
                for (key, max) in maxima.iter_mut().enumerate() {
                    // A repeated last key changes no maximum.
                    let key = (first + key).min(keys - 1);
                    *max = max.max(V::load(logits.add(key * width)));
                }
            }
            let max = maxima[0].max(maxima[1]).max(maxima[2].max(maxima[3]));
            max.store(running.max.add(column));
            let rescale = before.sub(max).exp();
            rescale.store(running.rescale.add(column));
            let mut sum = V::load(running.sum.add(column)).mul(rescale);
            for key in 0..keys {
                let at = logits.add(key * width);
                let weight = V::load(at).sub(max).exp();
                weight.store(at);
                sum = sum.add(weight);
            }
            sum.store(running.sum.add(column));
        }
    }
}

/// Sets the logits of the keys before `first_seen(lane)` to minus infinity, per lane of `logits [keys][width]`.
#[inline(always)]
pub(crate) fn hide_before(logits: &mut [f32], width: usize, first_seen: impl Fn(usize) -> usize) {
    let keys = logits.len() / width;
    for lane in 0..width {
        for key in 0..first_seen(lane).min(keys) {
            logits[key * width + lane] = f32::NEG_INFINITY;
        }
    }
}

/// `out[key] += sum over lanes of weight[lane] * exp(logits[key][lane] - log_sum_exp[lane])`, without hidden keys, as
/// in [`softmax_tile`]. One key per element of `out`.
///
/// # Safety
/// Pointers cover `[keys][vectors * N]` and `[vectors * N]`, and the caller runs at the level of `V`.
#[inline(always)]
pub(crate) unsafe fn add_probabilities<V: Lanes>(
    vectors: usize,
    logits: *const f32,
    last_visible: Option<*const f32>,
    log_sum_exp: *const f32,
    weight: *const f32,
    out: &mut [f32],
) {
    let keys = out.len();
    // SAFETY: guaranteed by the caller.
    unsafe {
        for first in (0..keys).step_by(4) {
            let mut sums = [V::splat(0.0); 4];
            for (key, sum) in (first..keys).zip(&mut sums) {
                for v in 0..vectors {
                    let column = v * V::N;
                    let mut logit = V::load(logits.add(key * vectors * V::N + column));
                    if let Some(last_visible) = last_visible {
                        let (last, key) = (V::load(last_visible.add(column)), V::splat(key as f32));
                        logit = V::select_less(last, key, V::splat(f32::NEG_INFINITY), logit);
                    }
                    let p = logit.sub(V::load(log_sum_exp.add(column))).exp();
                    *sum = p.mul_add(V::load(weight.add(column)), *sum);
                }
            }
            for (out, sum) in out[first..].iter_mut().zip(V::sum4(sums)) {
                *out += sum;
            }
        }
    }
}

/// `out[key] = max(out[key], exp(largest over lanes of logits[key][lane] - log_sum_exp[lane]))`, without hidden keys,
/// as in [`softmax_tile`]. One key per element of `out`. A log-sum-exp of infinity excludes a lane.
///
/// # Safety
/// Pointers cover `[keys][vectors * N]` and `[vectors * N]`, and the caller runs at the level of `V`.
#[inline(always)]
pub(crate) unsafe fn max_probabilities<V: Lanes>(
    vectors: usize,
    logits: *const f32,
    last_visible: Option<*const f32>,
    log_sum_exp: *const f32,
    out: &mut [f32],
) {
    for (key, out) in out.iter_mut().enumerate() {
        let mut lanes = [f32::NEG_INFINITY; WIDEST];
        // SAFETY: guaranteed by the caller; a vector has at most `WIDEST` elements.
        unsafe {
            let mut largest = V::splat(f32::NEG_INFINITY);
            for v in 0..vectors {
                let column = v * V::N;
                let mut logit = V::load(logits.add(key * vectors * V::N + column));
                if let Some(last_visible) = last_visible {
                    let (last, key) = (V::load(last_visible.add(column)), V::splat(key as f32));
                    logit = V::select_less(last, key, V::splat(f32::NEG_INFINITY), logit);
                }
                largest = largest.max(logit.sub(V::load(log_sum_exp.add(column))));
            }
            largest.store(lanes.as_mut_ptr());
        }
        let largest = lanes.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        *out = out.max(largest.exp());
    }
}

/// `logits[key][lane] = exp(logits[key][lane] - log_sum_exp[lane])`, including hidden keys.
///
/// # Safety
/// Pointers cover `[keys][vectors * N]` and `[vectors * N]`, and the caller runs at the level of `V`.
#[inline(always)]
pub(crate) unsafe fn to_probabilities<V: Lanes>(
    keys: usize,
    vectors: usize,
    logits: *mut f32,
    log_sum_exp: *const f32,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        for v in 0..vectors {
            let lse = V::load(log_sum_exp.add(v * V::N));
            for key in 0..keys {
                let at = logits.add((key * vectors + v) * V::N);
                V::load(at).sub(lse).exp().store(at);
            }
        }
    }
}

/// `sums[key][lane] (+)= exp(logits[key][lane] - log_sum_exp[lane])` for one head of a group; adds to `sums` if `more`,
/// else overwrites it. Infinity where the key is hidden, as in [`softmax_tile`].
///
/// # Safety
/// Pointers cover `[keys][vectors * N]` and `[vectors * N]`, and the caller runs at the level of `V`.
#[inline(always)]
pub(crate) unsafe fn sum_group_probabilities<V: Lanes>(
    keys: usize,
    vectors: usize,
    logits: *const f32,
    last_visible: Option<*const f32>,
    log_sum_exp: *const f32,
    sums: *mut f32,
    more: bool,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        for (key, column) in (0..keys).flat_map(|key| (0..vectors).map(move |v| (key, v * V::N))) {
            let at = key * vectors * V::N + column;
            let lse = V::load(log_sum_exp.add(column));
            let mut p = V::load(logits.add(at)).sub(lse).exp();
            if let Some(last_visible) = last_visible {
                let (last, key) = (V::load(last_visible.add(column)), V::splat(key as f32));
                p = V::select_less(last, key, V::splat(f32::INFINITY), p);
            }
            if more {
                V::load(sums.add(at)).add(p).store(sums.add(at))
            } else {
                p.store(sums.add(at))
            }
        }
    }
}

/// Writes one query row, times `scale`, to one lane of a panel `[head_dim][width]`.
///
/// # Safety
/// `panel` covers `row.len() * width` elements, and `lane < width`.
#[inline(always)]
pub(crate) unsafe fn pack_lane(
    row: &[f32],
    scale: f32,
    panel: *mut f32,
    width: usize,
    lane: usize,
) {
    for (i, x) in row.iter().enumerate() {
        // SAFETY: guaranteed by the caller.
        unsafe { *panel.add(i * width + lane) = x * scale };
    }
}

/// Runs `work` on `len` f32 of thread-local scratch, aligned to a cache line, with unspecified contents.
///
/// Call it outside of [`by_level`](crate::simd::by_level) functions: a closure that passes through code compiled for
/// the baseline is itself compiled for the baseline, which made prefill 200 times slower.
pub(crate) fn with_scratch<R>(len: usize, work: impl FnOnce(&mut [f32]) -> R) -> R {
    use std::cell::RefCell;
    thread_local! {
        static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    }
    const LINE: usize = 64 / size_of::<f32>();
    SCRATCH.with(|scratch| {
        let mut scratch = scratch.borrow_mut();
        if scratch.len() < len + LINE {
            scratch.resize(len + LINE, 0.0);
        }
        let skip = scratch.as_ptr().align_offset(64).min(LINE);
        work(&mut scratch[skip..skip + len])
    })
}

/// Splits `scratch` into consecutive parts of the given sizes.
#[inline(always)]
pub(crate) fn split<const PARTS: usize>(
    mut scratch: &mut [f32],
    sizes: [usize; PARTS],
) -> [&mut [f32]; PARTS] {
    sizes.map(|size| {
        let (part, rest) = std::mem::take(&mut scratch).split_at_mut(size);
        scratch = rest;
        part
    })
}
