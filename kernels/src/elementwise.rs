//! The row-wise pieces of a transformer layer between its matrix products.
//!
//! No matrix product here and no attention: each function walks its slices once.

use crate::reference;

/// Which elements of a head form the pairs that RoPE turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// `(2i, 2i + 1)`: GGUF files of the llama family.
    Neighbours,
    /// `(i, i + rope_dim / 2)`: Qwen, Phi, Gemma.
    Halves,
}

/// Root-mean-square norm of each row: `out = x / sqrt(mean(x^2) + eps) * weight`. `x` and `out` are `[rows, weight.len()]`.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "x and out differ in length");
    assert_eq!(
        x.len() % weight.len(),
        0,
        "x is not whole rows of {}",
        weight.len()
    );
    reference::rms_norm(x, weight, eps, out);
}

/// Turns each pair of `x [rows, heads, head_dim]` by its row's angle, in place. `cos` and `sin` are `[rows, rope_dim / 2]`
/// for exactly these rows; elements from `rope_dim` on stay as they are.
pub fn rotate(
    x: &mut [f32],
    heads: usize,
    head_dim: usize,
    cos: &[f32],
    sin: &[f32],
    pairing: Pairing,
) {
    check_rotation(x, heads, head_dim, cos, sin);
    reference::rotate(x, heads, head_dim, cos, sin, pairing);
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
    check_rotation(x, heads, head_dim, cos, sin);
    let opposite: Vec<f32> = sin.iter().map(|s| -s).collect();
    reference::rotate(x, heads, head_dim, cos, &opposite, pairing);
}

/// Rows of `x` and columns of its angle tables.
fn check_rotation(x: &[f32], heads: usize, head_dim: usize, cos: &[f32], sin: &[f32]) {
    let width = heads * head_dim;
    assert_eq!(
        x.len() % width,
        0,
        "x has {} elements, not rows of {heads} x {head_dim}",
        x.len()
    );
    let rows = x.len() / width;
    assert_eq!(cos.len(), sin.len(), "cos and sin differ in length");
    assert!(
        rows == 0 || (cos.len() % rows == 0 && 2 * (cos.len() / rows) <= head_dim),
        "{} angles for {rows} rows of head_dim {head_dim}",
        cos.len()
    );
}

/// `gate = silu(gate) * up`, in place, where `silu(x) = x / (1 + exp(-x))`.
pub fn silu_mul(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gate and up differ in length");
    reference::silu_mul(gate, up);
}

/// `x += y`.
pub fn add_assign(x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "x and y differ in length");
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

/// Index of the largest element, the lowest one among equals. NaN never wins; 0 for an empty slice.
pub fn argmax(x: &[f32]) -> usize {
    let mut best = 0;
    for (i, value) in x.iter().enumerate() {
        if *value > x[best] || x[best].is_nan() && !value.is_nan() {
            best = i;
        }
    }
    best
}
