//! Row-wise operations of a transformer layer between its matrix products.
//!
//! Matrix products and attention are in other modules.

use crate::simd::{Lanes, by_level, simd_level};
use crate::threads::{SharedMut, for_each_range};

/// Elements per work item; shorter inputs are not worth waking another thread.
const SHARE: usize = 1 << 14;

/// Which elements of a head form the pairs that RoPE rotates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// `(2i, 2i + 1)`: GGUF files of the llama family.
    Neighbours,
    /// `(i, i + rope_dim / 2)`: Qwen, Phi, Gemma.
    Halves,
}

/// Root-mean-square norm of each row: `out = x / sqrt(mean(x^2) + eps) * weight`. `x` and `out` are `[rows,
/// weight.len()]`.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "x and out differ in length");
    norm(Some(x), weight, eps, out);
}

/// [`rms_norm`] of each row of `x [rows, weight.len()]`, in place.
pub fn rms_norm_in_place(x: &mut [f32], weight: &[f32], eps: f32) {
    norm(None, weight, eps, x);
}

/// The norm of `source` or, if there is none, of `x` itself.
fn norm(source: Option<&[f32]>, weight: &[f32], eps: f32, x: &mut [f32]) {
    let width = weight.len();
    assert_eq!(x.len() % width, 0, "x is not whole rows of {width}");
    let level = simd_level();
    for_each_part(x, width, |first, x| {
        if let Some(source) = source {
            x.copy_from_slice(&source[first..first + x.len()]);
        }
        // SAFETY: the level was detected.
        unsafe { norm_rows(level, x, weight, eps) }
    });
}

by_level! {
    /// # Safety
    /// The CPU supports the level's instructions.
    unsafe fn norm_rows(x: &mut [f32], weight: &[f32], eps: f32) = norm_rows_lanes;
}

#[inline(always)]
unsafe fn norm_rows_lanes<V: Lanes>(x: &mut [f32], weight: &[f32], eps: f32) {
    for x in x.chunks_exact_mut(weight.len()) {
        // SAFETY: guaranteed by the caller.
        let factor = unsafe { norm_factor::<V>(x, eps) };
        for (x, weight) in x.iter_mut().zip(weight) {
            *x = *x * factor * weight;
        }
    }
}

/// `1 / sqrt(mean(x^2) + eps)`.
///
/// # Safety
/// Call only from code compiled for the level of `V`.
#[inline(always)]
unsafe fn norm_factor<V: Lanes>(x: &[f32], eps: f32) -> f32 {
    let width = x.len();
    // Four independent sums hide the latency of the additions.
    let (blocks, rest) = x.split_at(width - width % (4 * V::N));
    // SAFETY: blocks are whole groups of four vectors.
    let squares = unsafe {
        let mut sums = [V::splat(0.0); 4];
        for block in blocks.chunks_exact(4 * V::N) {
            for (v, sum) in sums.iter_mut().enumerate() {
                let x = V::load(block.as_ptr().add(v * V::N));
                *sum = x.mul_add(x, *sum);
            }
        }
        V::sum4(sums)
    };
    let sum: f32 = squares.iter().sum::<f32>() + rest.iter().map(|x| x * x).sum::<f32>();
    1.0 / (sum / width as f32 + eps).sqrt()
}

/// Runs `work(first element, part)` over parts of `x` that are whole rows of `width`, on all threads if `x` is long
/// enough.
fn for_each_part(x: &mut [f32], width: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
    let len = x.len();
    let step = SHARE.next_multiple_of(width);
    if len <= step {
        return work(0, x);
    }
    let x = SharedMut::new(x);
    for_each_range(len.div_ceil(step), |items| {
        for item in items {
            let first = item * step;
            // SAFETY: parts of different items do not overlap.
            work(first, unsafe { x.part(first..len.min(first + step)) });
        }
    });
}

/// RoPE: rotates each pair of `x [rows, heads, head_dim]` by the angle of its row, in place. `cos` and `sin` are
/// `[rows, rope_dim / 2]` for exactly these rows; elements from `rope_dim` on are unchanged.
pub fn rotate(
    x: &mut [f32],
    heads: usize,
    head_dim: usize,
    cos: &[f32],
    sin: &[f32],
    pairing: Pairing,
) {
    rotate_rows(x, heads, head_dim, cos, sin, pairing, 1.0);
}

/// The inverse of [`rotate`]: same arguments, opposite angle.
pub fn unrotate(
    x: &mut [f32],
    heads: usize,
    head_dim: usize,
    cos: &[f32],
    sin: &[f32],
    pairing: Pairing,
) {
    rotate_rows(x, heads, head_dim, cos, sin, pairing, -1.0);
}

fn rotate_rows(
    x: &mut [f32],
    heads: usize,
    head_dim: usize,
    cos: &[f32],
    sin: &[f32],
    pairing: Pairing,
    sign: f32,
) {
    let (width, len) = (heads * head_dim, x.len());
    let whole = len.is_multiple_of(width);
    assert!(
        whole,
        "x has {len} elements, not rows of {heads} x {head_dim}"
    );
    assert_eq!(cos.len(), sin.len(), "cos and sin differ in length");
    let rows = len / width;
    if rows == 0 {
        return;
    }
    let columns = cos.len() / rows;
    assert!(
        cos.len().is_multiple_of(rows) && 2 * columns <= head_dim,
        "{} angles for {rows} rows of head_dim {head_dim}",
        cos.len()
    );
    for_each_part(x, width, |first, x| {
        for (row, x) in x.chunks_exact_mut(width).enumerate() {
            let angles = (first / width + row) * columns..(first / width + row + 1) * columns;
            let (cos, sin) = (&cos[angles.clone()], &sin[angles]);
            for x in x.chunks_exact_mut(head_dim) {
                rotate_pairs(x, cos, sin, pairing, sign);
            }
        }
    });
}

/// Rotates one head of one row, `[head_dim]`, by the angles of its position, `[rope_dim / 2]`.
#[inline(always)]
pub(crate) fn rotate_row(x: &mut [f32], cos: &[f32], sin: &[f32], pairing: Pairing) {
    rotate_pairs(x, cos, sin, pairing, 1.0);
}

/// [`rotate_row`] by `sign` times the angle. Plain loops: the compiler vectorises both pairings.
#[inline(always)]
fn rotate_pairs(x: &mut [f32], cos: &[f32], sin: &[f32], pairing: Pairing, sign: f32) {
    let columns = cos.len();
    let (sin, x) = (&sin[..columns], &mut x[..2 * columns]);
    match pairing {
        Pairing::Neighbours => {
            for ((pair, cos), sin) in x.chunks_exact_mut(2).zip(cos).zip(sin) {
                let (a, b, sin) = (pair[0], pair[1], sign * sin);
                pair[0] = a * cos - b * sin;
                pair[1] = a * sin + b * cos;
            }
        }
        Pairing::Halves => {
            let (first, second) = x.split_at_mut(columns);
            for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                let sin = sign * sin;
                (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
            }
        }
    }
}

/// `x = silu(x)`, in place.
pub fn silu(x: &mut [f32]) {
    let level = simd_level();
    for_each_part(x, 1, |_, x| {
        // SAFETY: the level was detected.
        unsafe { silu_part(level, x) }
    });
}

by_level! {
    /// # Safety
    /// The CPU supports the level's instructions.
    unsafe fn silu_part(x: &mut [f32]) = silu_lanes;
}

#[inline(always)]
unsafe fn silu_lanes<V: Lanes>(x: &mut [f32]) {
    let mut vectors = x.chunks_exact_mut(V::N);
    for x in &mut vectors {
        // SAFETY: a whole vector.
        unsafe {
            let y = V::load(x.as_ptr());
            y.times_sigmoid(y).store(x.as_mut_ptr());
        }
    }
    for x in vectors.into_remainder() {
        *x /= 1.0 + (-*x).exp();
    }
}

/// An operation on two slices, element by element.
trait Pairwise {
    /// # Safety
    /// Call only from code compiled for the level of `V`.
    unsafe fn lanes<V: Lanes>(x: V, y: V) -> V;

    fn element(x: f32, y: f32) -> f32;
}

/// `x = op(x, y)`, in place.
fn for_each_pair<O: Pairwise>(x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "the slices differ in length");
    let level = simd_level();
    for_each_part(x, 1, |first, x| {
        // SAFETY: the level was detected.
        unsafe { pairs_part::<O>(level, x, &y[first..first + x.len()]) }
    });
}

by_level! {
    /// # Safety
    /// The CPU supports the level's instructions.
    unsafe fn pairs_part<O: Pairwise>(x: &mut [f32], y: &[f32]) = pairs_lanes;
}

#[inline(always)]
unsafe fn pairs_lanes<V: Lanes, O: Pairwise>(x: &mut [f32], y: &[f32]) {
    let mut vectors = x.chunks_exact_mut(V::N);
    let mut others = y.chunks_exact(V::N);
    for (x, y) in (&mut vectors).zip(&mut others) {
        // SAFETY: whole vectors; the caller guarantees the level.
        unsafe { O::lanes(V::load(x.as_ptr()), V::load(y.as_ptr())).store(x.as_mut_ptr()) };
    }
    for (x, y) in vectors.into_remainder().iter_mut().zip(others.remainder()) {
        *x = O::element(*x, *y);
    }
}

/// Defines operations `name(x, y): on vectors, on elements;` that write their result to `x`.
macro_rules! pairwise {
    ($($(#[$doc:meta])* $name:ident($x:ident, $y:ident): $lanes:expr, $element:expr;)*) => {$(
        $(#[$doc])*
        pub fn $name($x: &mut [f32], $y: &[f32]) {
            struct Operation;
            impl Pairwise for Operation {
                #[inline(always)]
                unsafe fn lanes<V: Lanes>($x: V, $y: V) -> V {
                    // SAFETY: guaranteed by the caller.
                    unsafe { $lanes }
                }

                #[inline(always)]
                fn element($x: f32, $y: f32) -> f32 {
                    $element
                }
            }
            for_each_pair::<Operation>($x, $y);
        }
    )*};
}

/// `2 sqrt(2 / pi)`: this constant times `x + GELU_CUBE x^3` is twice the argument of GELU's tanh.
const GELU_SLOPE: f32 = 1.595_769;
const GELU_CUBE: f32 = 0.044_715;
/// Bound of [`swiglu_clamped`], and the slope of its sigmoid.
const CLAMP: f32 = 7.0;
const CLAMPED_SLOPE: f32 = 1.702;

pairwise! {
    /// `gate = silu(gate) * up`, in place, where `silu(x) = x / (1 + exp(-x))`.
    silu_mul(gate, up): gate.times_sigmoid(gate).mul(up), gate / (1.0 + (-gate).exp()) * up;
    /// `x = x * sigmoid(gate)`, in place.
    sigmoid_mul(x, gate): x.times_sigmoid(gate), x / (1.0 + (-gate).exp());
    /// `gate = gelu(gate) * up`, in place, with the tanh approximation of GELU: `gelu(x) = x / 2 * (1 + tanh(sqrt(2 / pi)
    /// (x + 0.044715 x^3)))`, which equals `x * sigmoid` of twice the tanh argument.
    gelu_mul(gate, up): {
        let (slope, cube, one) = (V::splat(GELU_SLOPE), V::splat(GELU_CUBE), V::splat(1.0));
        let inner = gate.mul(cube).mul_add(gate, one).mul(gate).mul(slope);
        gate.times_sigmoid(inner).mul(up)
    }, {
        let inner = GELU_SLOPE * gate * (1.0 + GELU_CUBE * gate * gate);
        gate / (1.0 + (-inner).exp()) * up
    };
    /// `gate = g * sigmoid(1.702 g) * (u + 1)` with `g = min(gate, 7)` and `u = up` clamped to -7..=7, in place: the
    /// activation of gpt-oss.
    swiglu_clamped(gate, up): {
        let (most, least, one) = (V::splat(CLAMP), V::splat(-CLAMP), V::splat(1.0));
        // Written so that NaN stays NaN: a comparison with NaN is false.
        let g = V::select_less(most, gate, most, gate);
        let u = V::select_less(most, up, most, up);
        let u = V::select_less(u, least, least, u);
        g.times_sigmoid(g.mul(V::splat(CLAMPED_SLOPE))).mul(u.add(one))
    }, {
        let g = if gate > CLAMP { CLAMP } else { gate };
        let u = up.clamp(-CLAMP, CLAMP);
        g / (1.0 + (-CLAMPED_SLOPE * g).exp()) * (u + 1.0)
    };
}

/// `x = cap * tanh(x / cap)`, in place.
pub fn soft_cap(x: &mut [f32], cap: f32) {
    let level = simd_level();
    for_each_part(x, 1, |_, x| {
        // SAFETY: the level was detected.
        unsafe { soft_cap_part(level, x, cap) }
    });
}

by_level! {
    /// # Safety
    /// The CPU supports the level's instructions.
    unsafe fn soft_cap_part(x: &mut [f32], cap: f32) = soft_cap_lanes;
}

/// [`soft_cap`] on the calling thread.
///
/// # Safety
/// Call only from code compiled for the level of `V`.
#[inline(always)]
pub(crate) unsafe fn soft_cap_lanes<V: Lanes>(x: &mut [f32], cap: f32) {
    let whole = x.len() - x.len() % V::N;
    // SAFETY: whole vectors of the slice.
    unsafe {
        let (high, low) = (V::splat(cap), V::splat(1.0 / cap));
        for i in (0..whole).step_by(V::N) {
            let at = x.as_mut_ptr().add(i);
            V::load(at).mul(low).tanh().mul(high).store(at);
        }
    }
    for x in &mut x[whole..] {
        *x = cap * (*x / cap).tanh();
    }
}

/// `x += y`.
pub fn add_assign(x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "x and y differ in length");
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

/// Index of the largest element; the lowest index among equals. NaN is never chosen; 0 for an empty slice.
pub fn argmax(x: &[f32]) -> usize {
    let mut best = 0;
    for (i, value) in x.iter().enumerate() {
        if *value > x[best] || x[best].is_nan() && !value.is_nan() {
            best = i;
        }
    }
    best
}
