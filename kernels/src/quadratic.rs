//! Gram matrices and quadratic forms of rows, for methods that model future queries by mean and covariance.
//!
//! ```text
//! gram      [rows][head_dim]^T x [rows][head_dim]      sums over a chunk's queries in f32, added to the total in f64
//! forms     keys [tile][head_dim] x matrix [head_dim][lanes], then multiplied lane by lane with the keys
//! ```

use crate::kv_split::softmax_row;
use crate::panel::{PANEL, ProductShape, Strided, TILE, product, split, with_scratch};
use crate::simd::{Lanes, by_level};
use crate::simd_level;
use crate::threads::{SharedMut, for_each_range};

/// Rows whose products are summed in f32.
const ROWS: usize = 512;

/// Adds, for each head, the Gram matrix of `rows [n, heads, head_dim]` (the sum over rows of `x_i x_j`) to the lower
/// triangle of `sums [heads, head_dim, head_dim]`.
///
/// # Panics
/// If the shapes do not match.
pub fn add_gram(rows: &[f32], heads: usize, head_dim: usize, sums: &mut [f64]) {
    let square = head_dim * head_dim;
    assert_eq!(sums.len(), heads * square, "sums [heads, dim, dim]");
    assert!(
        rows.len().is_multiple_of(heads * head_dim),
        "rows [n, heads {heads}, dim {head_dim}]"
    );
    let (level, sums) = (simd_level(), SharedMut::new(sums));
    for_each_range(heads, |items| {
        for head in items {
            // SAFETY: each head is visited exactly once.
            let sums = unsafe { sums.part(head * square..(head + 1) * square) };
            for values in rows.chunks(ROWS * heads * head_dim) {
                let rows = HeadRows {
                    values,
                    first: head * head_dim,
                    stride: heads * head_dim,
                    head_dim,
                };
                with_scratch((ROWS + head_dim) * PANEL, |scratch| {
                    // SAFETY: the level was detected.
                    unsafe { add_head_gram(level, rows, sums, scratch) }
                });
            }
        }
    });
}

/// The rows of one head in `values [n, heads, head_dim]`: row `r` starts at number `r * stride + first`.
#[derive(Clone, Copy)]
struct HeadRows<'a> {
    values: &'a [f32],
    first: usize,
    stride: usize,
    head_dim: usize,
}

by_level! {
    /// # Safety
    /// The CPU supports the level's instructions.
    unsafe fn add_head_gram(rows: HeadRows<'_>, sums: &mut [f64], scratch: &mut [f32]) = add_head_gram_lanes;
}

/// # Safety
/// Call only from code compiled for the level of `V`.
#[inline(always)]
unsafe fn add_head_gram_lanes<V: Lanes>(rows: HeadRows<'_>, sums: &mut [f64], scratch: &mut [f32]) {
    let HeadRows {
        values,
        first,
        stride,
        head_dim: dim,
    } = rows;
    let panel = V::ACROSS * V::N;
    let [packed, products] = split(scratch, [ROWS * PANEL, dim * PANEL]);
    for column in (0..dim).step_by(panel) {
        let lanes = panel.min(dim - column);
        let width = lanes.next_multiple_of(V::N);
        for (row, to) in values
            .chunks_exact(stride)
            .zip(packed.chunks_exact_mut(width))
        {
            to[..lanes].copy_from_slice(&row[first + column..][..lanes]);
            to[lanes..].fill(0.0);
        }
        // Rows above this panel's first column lie above the diagonal, which is not used.
        let rows_left = dim - column;
        let left = Strided {
            start: values[first + column..].as_ptr(),
            row_stride: 1,
            step_stride: stride,
        };
        let shape = ProductShape {
            rows: rows_left,
            steps: values.len() / stride,
            width,
        };
        let (right, out) = (packed.as_ptr(), products.as_mut_ptr());
        // SAFETY: the caller guarantees the level; sizes as drawn above.
        unsafe { product::<V>(shape, left, right, None, out) };
        for (i, products) in products.chunks_exact(width).take(rows_left).enumerate() {
            let line = &mut sums[(column + i) * dim + column..][..lanes.min(i + 1)];
            let pairs = line.iter_mut().zip(products);
            pairs.for_each(|(sum, x)| *sum += f64::from(*x));
        }
    }
}

/// Writes `out [n]`: `linear . x + x^T matrix x` for each row x of `rows [n, head_dim]`. `linear` is `[head_dim]`;
/// `matrix [head_dim, head_dim]` is symmetric.
///
/// # Panics
/// If the shapes do not match.
pub fn quadratic_forms(rows: &[f32], linear: &[f32], matrix: Option<&[f32]>, out: &mut [f32]) {
    let dim = linear.len();
    assert_eq!(rows.len(), out.len() * dim, "rows [n, dim]");
    assert!(
        matrix.is_none_or(|m| m.len() == dim * dim),
        "a matrix [dim, dim]"
    );
    let (level, n, out) = (simd_level(), out.len(), SharedMut::new(out));
    for_each_range(n.div_ceil(TILE), |items| {
        for item in items {
            let tile = item * TILE..n.min((item + 1) * TILE);
            // SAFETY: each item runs exactly once.
            let out = unsafe { out.part(tile.clone()) };
            let rows = &rows[tile.start * dim..tile.end * dim];
            with_scratch((dim + TILE) * PANEL, |scratch| {
                // SAFETY: the level was detected.
                unsafe { tile_forms(level, rows, linear, matrix, out, scratch) }
            });
        }
    });
}

by_level! {
    /// # Safety
    /// The CPU supports the level's instructions.
    unsafe fn tile_forms(rows: &[f32], linear: &[f32], matrix: Option<&[f32]>, out: &mut [f32], scratch: &mut [f32]) = tile_forms_lanes;
}

/// # Safety
/// Call only from code compiled for the level of `V`.
#[inline(always)]
unsafe fn tile_forms_lanes<V: Lanes>(
    rows: &[f32],
    linear: &[f32],
    matrix: Option<&[f32]>,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let (dim, panel) = (linear.len(), V::ACROSS * V::N);
    for (out, row) in out.iter_mut().zip(rows.chunks_exact(dim)) {
        // SAFETY: the caller guarantees the level.
        *out = unsafe { dot::<V>(row, linear) };
    }
    let Some(matrix) = matrix else { return };
    let [packed, products] = split(scratch, [dim * PANEL, TILE * PANEL]);
    for column in (0..dim).step_by(panel) {
        let lanes = panel.min(dim - column);
        let width = lanes.next_multiple_of(V::N);
        for (line, to) in matrix.chunks_exact(dim).zip(packed.chunks_exact_mut(width)) {
            to[..lanes].copy_from_slice(&line[column..][..lanes]);
            to[lanes..].fill(0.0);
        }
        let left = Strided {
            start: rows.as_ptr(),
            row_stride: dim,
            step_stride: 1,
        };
        let shape = ProductShape {
            rows: out.len(),
            steps: dim,
            width,
        };
        let (right, to) = (packed.as_ptr(), products.as_mut_ptr());
        // SAFETY: the caller guarantees the level; sizes as drawn above.
        unsafe { product::<V>(shape, left, right, None, to) };
        let rows = rows.chunks_exact(dim).map(|row| &row[column..][..lanes]);
        for ((out, row), products) in out.iter_mut().zip(rows).zip(products.chunks_exact(width)) {
            // SAFETY: as above.
            *out += unsafe { dot::<V>(row, products) };
        }
    }
}

/// Softmax of a row, in place, on the calling thread.
pub fn softmax(row: &mut [f32]) {
    // SAFETY: the level was detected.
    unsafe { softmax_at(simd_level(), row) }
}

by_level! {
    /// # Safety
    /// The CPU supports the level's instructions.
    unsafe fn softmax_at(row: &mut [f32]) = softmax_lanes;
}

/// # Safety
/// Call only from code compiled for the level of `V`.
#[inline(always)]
unsafe fn softmax_lanes<V: Lanes>(row: &mut [f32]) {
    // SAFETY: guaranteed by the caller.
    let (_, sum) = unsafe { softmax_row::<V>(row) };
    row.iter_mut().for_each(|x| *x /= sum);
}

/// Dot product of `a` with the first `a.len()` numbers of `b`.
///
/// # Safety
/// Call only from code compiled for the level of `V`.
#[inline(always)]
unsafe fn dot<V: Lanes>(a: &[f32], b: &[f32]) -> f32 {
    assert!(a.len() <= b.len());
    // SAFETY: guaranteed by the caller; vectors stay inside both slices.
    unsafe {
        let zero = V::splat(0.0);
        let (whole, mut sum) = (a.len() - a.len() % V::N, zero);
        for i in (0..whole).step_by(V::N) {
            let (x, y) = (V::load(a.as_ptr().add(i)), V::load(b.as_ptr().add(i)));
            sum = x.mul_add(y, sum);
        }
        let [mut sum, ..] = V::sum4([sum, zero, zero, zero]);
        for i in whole..a.len() {
            sum += a[i] * b[i];
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SimdLevel;

    fn numbers(count: usize, salt: f32) -> Vec<f32> {
        let number = |i: usize| (i as f32 * 0.71 + salt).sin() * (1.0 + (i % 13) as f32 / 4.0);
        (0..count).map(number).collect()
    }

    #[test]
    fn products_are_added_up_for_each_head_below_the_diagonal() {
        for (n, heads, dim) in [(1, 1, 8), (70, 3, 20), (1300, 2, 80), (40, 1, 130)] {
            let rows = numbers(n * heads * dim, 0.3);
            let element =
                |r: usize, head: usize, i: usize| f64::from(rows[(r * heads + head) * dim + i]);
            for level in SimdLevel::available() {
                let mut sums = vec![1.0f64; heads * dim * dim];
                level.with(|| add_gram(&rows, heads, dim, &mut sums));
                for head in 0..heads {
                    for i in 0..dim {
                        for j in 0..dim {
                            let found = sums[(head * dim + i) * dim + j];
                            let products =
                                (0..n).map(|r| element(r, head, i) * element(r, head, j));
                            let lengths: f64 = products.clone().map(f64::abs).sum();
                            let expected = 1.0 + if j <= i { products.sum() } else { 0.0 };
                            assert!(
                                (found - expected).abs() <= 1e-5 * (1.0 + lengths),
                                "{n} {heads} {dim} {level:?}: {head} {i} {j}: {found}, {expected}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_becomes_shares_of_one() {
        for n in [1, 7, 100, 1003] {
            let row = numbers(n, 0.4);
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let raised = row.iter().map(|x| f64::from(x - largest).exp());
            let sum: f64 = raised.clone().sum();
            for level in SimdLevel::available() {
                let mut found = row.clone();
                level.with(|| softmax(&mut found));
                for (found, raised) in found.iter().zip(raised.clone()) {
                    let difference = (f64::from(*found) - raised / sum).abs();
                    assert!(difference < 1e-6, "{n} {level:?}: {found}");
                }
            }
        }
    }

    #[test]
    fn forms_are_those_of_the_definition() {
        for (n, dim) in [(1, 8), (63, 20), (130, 64), (70, 80), (65, 130)] {
            let (rows, linear) = (numbers(n * dim, 0.9), numbers(dim, 2.0));
            let half = numbers(dim * dim, 1.3);
            let at = |i: usize, j: usize| half[i * dim + j] + half[j * dim + i];
            let matrix: Vec<f32> = (0..dim * dim).map(|i| at(i / dim, i % dim)).collect();
            for level in SimdLevel::available() {
                for matrix in [None, Some(matrix.as_slice())] {
                    let mut out = vec![f32::NAN; n];
                    level.with(|| quadratic_forms(&rows, &linear, matrix, &mut out));
                    for (row, found) in rows.chunks_exact(dim).zip(&out) {
                        let x = |i: usize| f64::from(row[i]);
                        let mut expected: f64 = (0..dim).map(|i| x(i) * f64::from(linear[i])).sum();
                        let mut size = expected.abs();
                        if let Some(matrix) = matrix {
                            for (at, m) in matrix.iter().enumerate() {
                                let term = f64::from(*m) * x(at / dim) * x(at % dim);
                                expected += term;
                                size += term.abs();
                            }
                        }
                        assert!(
                            (f64::from(*found) - expected).abs() <= 1e-5 * (1.0 + size),
                            "{n} {dim} {level:?}: {found}, {expected}"
                        );
                    }
                }
            }
        }
    }
}
