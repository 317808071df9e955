//! Arithmetic shared by several methods: group reduction and pooling. All in f32.

use crate::options::words;
use crate::parallel::{Parallel, par_chunks};

/// How the query heads of a KV head are reduced to one score per key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GroupReduce {
    /// Mean of the group's probabilities.
    #[default]
    Mean,
    /// Maximum of the group's probabilities.
    Max,
}

words!(GroupReduce {
    "mean" => GroupReduce::Mean,
    "max" => GroupReduce::Max,
});

/// How a score is pooled over its neighbours (stride 1, same length).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pooling {
    /// Maximum in the window; padding never wins.
    #[default]
    Max,
    /// Mean with zero padding and a fixed divisor: values at the edges are lower, as in torch's `avg_pool1d`.
    Avg,
}

words!(Pooling {
    "max" => Pooling::Max,
    "avg" => Pooling::Avg,
});

/// Tokens per part: the output of a part fits into the L1 cache.
const TOGETHER: usize = 2048;

/// Reduces `[group, n]` (the query heads of one KV head) to `[n]`.
pub fn group_reduce(scores: &[f32], n: usize, group: usize, how: GroupReduce) -> Vec<f32> {
    debug_assert_eq!(scores.len(), n * group);
    let mut out = vec![0.0; n];
    for (part, out) in out.chunks_mut(TOGETHER).enumerate() {
        reduce(scores, n, part * TOGETHER, out, how);
    }
    out
}

/// [`group_reduce`] of only the tokens from `first` on, `out.len()` of them.
pub(crate) fn reduce(scores: &[f32], n: usize, first: usize, out: &mut [f32], how: GroupReduce) {
    let (group, part) = (scores.len() / n, first..first + out.len());
    for (member, row) in scores.chunks_exact(n).enumerate() {
        let row = &row[part.clone()];
        let pairs = out.iter_mut().zip(row);
        match how {
            _ if member == 0 => out.copy_from_slice(row),
            GroupReduce::Mean => pairs.for_each(|(o, s)| *o += s),
            GroupReduce::Max => pairs.for_each(|(o, s)| *o = o.max(*s)),
        }
    }
    if how == GroupReduce::Mean && group > 1 {
        let share = 1.0 / group as f32;
        out.iter_mut().for_each(|o| *o *= share);
    }
}

/// `[until]`: sum over the rows of `scores [rows, n]`, for the first `until` tokens.
pub(crate) fn sum_of_rows(
    threads: &dyn Parallel,
    scores: &[f32],
    n: usize,
    until: usize,
) -> Vec<f32> {
    par_chunks(threads, until, scores.len() / n, |first, out| {
        for row in scores.chunks_exact(n) {
            out.iter_mut().zip(&row[first..]).for_each(|(o, s)| *o += s);
        }
    })
}

/// Pools `scores` with an odd `kernel`:
///
/// ```text
/// kernel 3, max:  [1 5 2 0 0]  ->  [5 5 5 2 0]
/// kernel 3, avg:  [3 0 0 0 3]  ->  [1 1 0 1 1]
/// ```
pub fn pool(scores: &[f32], kernel: usize, how: Pooling) -> Vec<f32> {
    let mut out = vec![0.0; scores.len()];
    for (part, out) in out.chunks_mut(TOGETHER).enumerate() {
        pool_part(scores, part * TOGETHER, out, kernel, how);
    }
    out
}

/// [`pool`] of only the scores from `first` on, `out.len()` of them.
fn pool_part(scores: &[f32], first: usize, out: &mut [f32], kernel: usize, how: Pooling) {
    debug_assert_eq!(kernel % 2, 1);
    let (n, reach) = (scores.len(), kernel / 2);
    match how {
        Pooling::Max => {
            // One neighbour offset at a time over all scores, so that the loop vectorises. A NaN is never larger.
            let larger = |(largest, &s): (&mut f32, &f32)| {
                *largest = if s > *largest { s } else { *largest };
            };
            out.fill(f32::NEG_INFINITY);
            out.iter_mut().zip(&scores[first..]).for_each(larger);
            for away in 1..=reach.min(n.saturating_sub(1)) {
                let skipped = away.saturating_sub(first).min(out.len());
                let before = &scores[(first + skipped).saturating_sub(away)..];
                out[skipped..].iter_mut().zip(before).for_each(larger);
                let behind = &scores[(first + away).min(n)..];
                out.iter_mut().zip(behind).for_each(larger);
            }
        }
        // Sum in f64, where the sum of a few f32 is exact: equal scores in a different order stay equal.
        Pooling::Avg => {
            for (i, out) in (first..).zip(out) {
                let seen = &scores[i.saturating_sub(reach)..n.min(i + reach + 1)];
                let sum: f64 = seen.iter().map(|&s| f64::from(s)).sum();
                *out = (sum / kernel as f64) as f32;
            }
        }
    }
}

/// [`group_reduce`] of a KV head's `scores [group, n]`, then [`pool`] of its first `prefix` tokens, without storing the
/// reduced scores of all tokens.
pub(crate) fn reduce_and_pool(
    scores: &[f32],
    n: usize,
    prefix: usize,
    reduced: GroupReduce,
    kernel: usize,
    pooled: Pooling,
) -> Vec<f32> {
    let reach = kernel / 2;
    // Each part also reduces its neighbours, so a large kernel needs large parts.
    let together = TOGETHER.max(4 * reach);
    let mut near = vec![0.0; prefix.min(together.saturating_add(2 * reach))];
    let mut out = vec![0.0; prefix];
    for (part, out) in out.chunks_mut(together).enumerate() {
        let first = part * together;
        let from = first.saturating_sub(reach);
        let near = &mut near[..prefix.min(first + out.len() + reach) - from];
        reduce(scores, n, from, near, reduced);
        pool_part(near, first - from, out, kernel, pooled);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top_k::tests::ODD;

    /// `n` scores of every kind of float.
    fn odd(n: usize) -> Vec<f32> {
        (0..n)
            .map(|i| ODD[i * 7 % ODD.len()] * (1.0 + (i / 12) as f32))
            .collect()
    }

    #[test]
    fn the_pool_of_every_number_is_its_neighbours_largest() {
        for n in [60, TOGETHER, 2 * TOGETHER + 31] {
            let scores = odd(n);
            for kernel in [1, 3, 7, 59, 121, 301, 2 * TOGETHER + 1, 9 * TOGETHER + 1] {
                let found = pool(&scores, kernel, Pooling::Max);
                for (i, found) in found.iter().enumerate().step_by(1 + kernel / 100) {
                    let seen = &scores[i.saturating_sub(kernel / 2)..n.min(i + kernel / 2 + 1)];
                    let largest = seen.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    assert!(
                        *found == largest,
                        "kernel {kernel}, {i}: {found}, not {largest}"
                    );
                }
            }
        }
    }

    #[test]
    fn reduced_and_pooled_in_one_go_is_the_same() {
        let n = 4 * TOGETHER + 77;
        let scores = odd(3 * n);
        let bits = |scores: Vec<f32>| scores.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        for (prefix, kernel) in [
            (n, 7),
            (n - 9, 1),
            (TOGETHER, 21),
            (n - 1, 1001),
            (5, 7001),
            (0, 7),
        ] {
            for (reduced, pooled) in [
                (GroupReduce::Mean, Pooling::Max),
                (GroupReduce::Max, Pooling::Avg),
            ] {
                let whole = group_reduce(&scores, n, 3, reduced);
                let expected = pool(&whole[..prefix], kernel, pooled);
                let found = reduce_and_pool(&scores, n, prefix, reduced, kernel, pooled);
                assert_eq!(bits(found), bits(expected), "{prefix} {kernel}");
            }
        }
    }

    #[test]
    fn pooling_matches_its_drawing() {
        assert_eq!(
            pool(&[1.0, 5.0, 2.0, 0.0, 0.0], 3, Pooling::Max),
            [5.0, 5.0, 5.0, 2.0, 0.0]
        );
        assert_eq!(
            pool(&[3.0, 0.0, 0.0, 0.0, 3.0], 3, Pooling::Avg),
            [1.0, 1.0, 0.0, 1.0, 1.0]
        );
        assert_eq!(pool(&[4.0, 1.0], 1, Pooling::Avg), [4.0, 1.0]);
        let again = pool(&[0.1, 0.7, 0.31, 0.1, 0.7, 0.31], 3, Pooling::Avg);
        assert!(again[1..5].iter().all(|&s| s == again[1]), "{again:?}");
    }

    #[test]
    fn groups_reduce_by_mean_or_max() {
        let two = [0.2, 0.4, 0.6, 0.0];
        assert_eq!(group_reduce(&two, 2, 2, GroupReduce::Mean), [0.4, 0.2]);
        assert_eq!(group_reduce(&two, 2, 2, GroupReduce::Max), [0.6, 0.4]);
    }
}
