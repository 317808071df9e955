//! The most similar of some candidate tokens for each token, for merging methods: thousands of tokens with a thousand
//! candidates each.
//!
//! ```text
//! others    [head_dim][lanes]  candidate keys scaled to norm 1, transposed once per tile of tokens; likewise values
//! products  [tokens][lanes]    token keys of norm 1 x candidate keys; likewise values; the best product of both wins
//! ```

use crate::panel::{PANEL, ProductShape, Strided, TILE, pack_lane, product, split, with_scratch};
use crate::simd::{Lanes, by_level};
use crate::simd_level;
use crate::threads::{SharedMut, for_each_range};

/// The rows of one head, and the candidates.
struct Task<'a> {
    keys: &'a [f32],
    values: &'a [f32],
    head_dim: usize,
    others: &'a [u32],
}

/// For each of `tokens`, finds the most similar of `others`: the first one with the largest product of key cosine and
/// value cosine. Writes its index in `others` and the product to `best [tokens]`. `keys` and `values`, `[n, head_dim]`,
/// are the rows of one head. A row of norm 0 has cosine 0 with every row.
///
/// # Panics
/// If `best` and `tokens` differ in length, `others` is empty, or a token has no row.
pub fn nearest_by_cosine(
    [keys, values]: [&[f32]; 2],
    head_dim: usize,
    tokens: &[u32],
    others: &[u32],
    best: &mut [(u32, f32)],
) {
    assert_eq!(best.len(), tokens.len(), "a best for each token");
    assert!(!others.is_empty(), "`others` is empty");
    let task = Task {
        keys,
        values,
        head_dim,
        others,
    };
    let (level, best) = (simd_level(), SharedMut::new(best));
    for_each_range(tokens.len().div_ceil(TILE), |items| {
        for item in items {
            let tile = item * TILE..tokens.len().min((item + 1) * TILE);
            // SAFETY: each item runs exactly once.
            let best = unsafe { best.part(tile.clone()) };
            with_scratch(
                2 * (TILE + PANEL) * head_dim + 2 * TILE * PANEL,
                |scratch| {
                    // SAFETY: the level was detected.
                    unsafe { visit_tile(level, &task, &tokens[tile.clone()], best, scratch) }
                },
            );
        }
    });
}

by_level! {
    /// # Safety
    /// The CPU supports the level's instructions.
    unsafe fn visit_tile(task: &Task<'_>, tokens: &[u32], best: &mut [(u32, f32)], scratch: &mut [f32]) = visit_tile_lanes;
}

/// # Safety
/// Call only from code compiled for the level of `V`.
#[inline(always)]
unsafe fn visit_tile_lanes<V: Lanes>(
    task: &Task<'_>,
    tokens: &[u32],
    best: &mut [(u32, f32)],
    scratch: &mut [f32],
) {
    let (dim, panel) = (task.head_dim, V::ACROSS * V::N);
    let (rows, lanes, products) = (TILE * dim, dim * PANEL, TILE * PANEL);
    let [
        keys,
        values,
        other_keys,
        other_values,
        key_products,
        value_products,
    ] = split(scratch, [rows, rows, lanes, lanes, products, products]);
    for (i, &token) in tokens.iter().enumerate() {
        for (all, own) in [(task.keys, &mut *keys), (task.values, &mut *values)] {
            let from = &all[token as usize * dim..][..dim];
            let scale = 1.0 / norm(from);
            let own = &mut own[i * dim..][..dim];
            own.iter_mut()
                .zip(from)
                .for_each(|(own, x)| *own = x * scale);
        }
    }
    best.fill((0, f32::NEG_INFINITY));
    for (number, others) in task.others.chunks(panel).enumerate() {
        let width = others.len().next_multiple_of(V::N);
        let parts = [
            (task.keys, &*keys, &mut *other_keys, &mut *key_products),
            (
                task.values,
                &*values,
                &mut *other_values,
                &mut *value_products,
            ),
        ];
        for (all, own, packed, products) in parts {
            // Unused lanes must be finite.
            packed[..dim * width].fill(0.0);
            for (lane, &other) in others.iter().enumerate() {
                let from = &all[other as usize * dim..][..dim];
                // SAFETY: `packed` is `[dim][PANEL]` at least.
                unsafe {
                    pack_lane(from, 1.0 / norm(from), packed.as_mut_ptr(), width, lane);
                }
            }
            let left = Strided {
                start: own.as_ptr(),
                row_stride: dim,
                step_stride: 1,
            };
            let shape = ProductShape {
                rows: tokens.len(),
                steps: dim,
                width,
            };
            let (right, to) = (packed.as_ptr(), products.as_mut_ptr());
            // SAFETY: the caller guarantees the level; sizes as drawn above.
            unsafe { product::<V>(shape, left, right, None, to) };
        }
        let both = key_products
            .chunks_exact(width)
            .zip(value_products.chunks_exact(width));
        for ((k, v), best) in both.zip(best.iter_mut()) {
            for (lane, (k, v)) in k.iter().zip(v).take(others.len()).enumerate() {
                if k * v > best.1 {
                    *best = ((number * panel + lane) as u32, k * v);
                }
            }
        }
    }
}

/// Lower bound for the norm of a row: a zero row has cosine 0 with every row.
const MIN_NORM: f32 = 1e-12;

/// The norm of a row with this sum of squares, at least [`MIN_NORM`].
#[inline(always)]
pub(crate) fn norm_of_square(square: f32) -> f32 {
    square.sqrt().max(MIN_NORM)
}

#[inline(always)]
fn norm(row: &[f32]) -> f32 {
    norm_of_square(row.iter().map(|x| x * x).sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SimdLevel;

    fn rows(n: usize, dim: usize, salt: f32) -> Vec<f32> {
        let number = |i: usize| (i as f32 * 0.71 + salt).sin() * (1.0 + (i % 13) as f32);
        (0..n * dim).map(number).collect()
    }

    #[test]
    fn the_best_is_the_first_of_the_largest_products() {
        for (n, dim, others) in [(3, 8, 1), (90, 20, 17), (300, 64, 130), (150, 80, 65)] {
            let (keys, values) = (rows(n, dim, 0.3), rows(n, dim, 1.9));
            let others: Vec<u32> = (0..others).map(|i| (i * 7 % n) as u32).collect();
            let tokens: Vec<u32> = (0..n as u32).rev().collect();
            let cosine = |side: &[f32], a: u32, b: u32| -> f64 {
                let row = |t: u32| &side[t as usize * dim..][..dim];
                let dot = |a: &[f32], b: &[f32]| -> f64 {
                    let pairs = a.iter().zip(b);
                    pairs.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
                };
                let (a, b) = (row(a), row(b));
                dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
            };
            for level in SimdLevel::available() {
                let mut best = vec![(0, f32::NAN); n];
                level
                    .with(|| nearest_by_cosine([&keys, &values], dim, &tokens, &others, &mut best));
                for (&token, &(found, product)) in tokens.iter().zip(&best) {
                    let exact = |i: usize| {
                        cosine(&keys, token, others[i]) * cosine(&values, token, others[i])
                    };
                    let most = (0..others.len())
                        .map(exact)
                        .fold(f64::NEG_INFINITY, f64::max);
                    let what = format!("{n} {dim} {level:?} token {token}: {found}, {product}");
                    assert!((exact(found as usize) - most).abs() < 1e-5, "{what}");
                    assert!((f64::from(product) - most).abs() < 1e-5, "{what}");
                }
            }
        }
    }

    #[test]
    fn ties_go_to_first_and_zero_rows_score_zero() {
        let (dim, n) = (16, 100);
        let mut keys = rows(1, dim, 0.3).repeat(n);
        keys[dim..2 * dim].fill(0.0);
        let mut best = [(9, f32::NAN); 2];
        let others: Vec<u32> = (2..n as u32).collect();
        nearest_by_cosine([&keys, &keys], dim, &[0, 1], &others, &mut best);
        assert!(best[0].0 == 0 && (best[0].1 - 1.0).abs() < 1e-5, "{best:?}");
        assert_eq!(best[1], (0, 0.0));
    }
}
