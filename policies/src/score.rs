//! Arithmetic that several methods share: group reduction, pooling, top-k with the project's tie rule. All in f32.

/// How the query heads that share a kv head are reduced to one score per key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GroupReduce {
    /// Mean of the group's probabilities.
    #[default]
    Mean,
    /// Largest of the group's probabilities.
    Max,
}

/// How a score is smoothed over its neighbours (stride 1, same length).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pooling {
    /// Largest in the window; padding never wins.
    #[default]
    Max,
    /// Mean with zero padding and a fixed divisor: the edges are pulled down, as in torch's `avg_pool1d`.
    Avg,
}

/// Reduces `[group, n]` (the query heads of one kv head, each row of `scores` `n` long) to `[n]`.
pub fn group_reduce(scores: &[f32], n: usize, group: usize, how: GroupReduce) -> Vec<f32> {
    debug_assert_eq!(scores.len(), n * group);
    let mut out = scores[..n].to_vec();
    for row in scores[n..].chunks_exact(n) {
        for (o, &s) in out.iter_mut().zip(row) {
            *o = match how {
                GroupReduce::Mean => *o + s,
                GroupReduce::Max => o.max(s),
            };
        }
    }
    if how == GroupReduce::Mean && group > 1 {
        let share = 1.0 / group as f32;
        out.iter_mut().for_each(|o| *o *= share);
    }
    out
}

/// Pools `scores` with an odd `kernel`:
///
/// ```text
/// kernel 3, max:  [1 5 2 0 0]  ->  [5 5 5 2 0]
/// kernel 3, avg:  [3 0 0 0 3]  ->  [1 1 0 1 1]
/// ```
pub fn pool(scores: &[f32], kernel: usize, how: Pooling) -> Vec<f32> {
    debug_assert_eq!(kernel % 2, 1);
    let reach = kernel / 2;
    match how {
        Pooling::Max => {
            // Neighbour by neighbour over all scores, which is many at a time.
            let mut largest: Vec<f32> = scores.iter().map(|s| f32::NEG_INFINITY.max(*s)).collect();
            for away in 1..=reach.min(scores.len().saturating_sub(1)) {
                let before = largest[away..].iter_mut().zip(scores);
                before.for_each(|(largest, s)| *largest = largest.max(*s));
                let behind = largest.iter_mut().zip(&scores[away..]);
                behind.for_each(|(largest, s)| *largest = largest.max(*s));
            }
            largest
        }
        // In f64, where the sum of a few f32 is exact: the same scores in another order are a tie, not a coin toss.
        Pooling::Avg => (0..scores.len())
            .map(|i| {
                let seen = &scores[i.saturating_sub(reach)..scores.len().min(i + reach + 1)];
                let sum: f64 = seen.iter().map(|&s| f64::from(s)).sum();
                (sum / kernel as f64) as f32
            })
            .collect(),
    }
}

/// Indices of the `k` largest scores, ascending. Equal scores: the lower index wins.
pub fn top_positions(scores: &[f32], k: usize) -> Vec<u32> {
    // One number for score and index, in the order of `f32::total_cmp` from the largest on: nothing is looked up while they are parted.
    let ranked = |(index, score): (u32, &f32)| {
        let bits = score.to_bits();
        let falling = match bits >> 31 {
            0 => !bits ^ (1 << 31),
            _ => bits,
        };
        u64::from(falling) << 32 | u64::from(index)
    };
    let mut order: Vec<u64> = (0u32..).zip(scores).map(ranked).collect();
    if k < order.len() {
        order.select_nth_unstable(k);
        order.truncate(k);
    }
    let mut best: Vec<u32> = order.into_iter().map(|ranked| ranked as u32).collect();
    best.sort_unstable();
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_to_the_lower_index() {
        assert_eq!(top_positions(&[1.0, 3.0, 3.0, 3.0, 0.0], 2), [1, 2]);
        assert_eq!(top_positions(&[2.0; 5], 3), [0, 1, 2]);
        assert_eq!(top_positions(&[1.0, 2.0], 5), [0, 1]);
        assert!(top_positions(&[1.0, 2.0], 0).is_empty());
    }

    /// Of numbers of every kind the order is that of `f32::total_cmp`, and the pool of each its neighbours' largest.
    #[test]
    fn numbers_of_every_kind_have_their_order() {
        let odd = [
            0.0,
            -0.0,
            f32::NAN,
            -f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            1e-40,
            -1e-40,
            2.5,
            -2.5,
            1e30,
            -1e30,
        ];
        let scores: Vec<f32> = (0..60)
            .map(|i| odd[i * 7 % odd.len()] * (1.0 + (i / 12) as f32))
            .collect();
        let mut order: Vec<u32> = (0..60).collect();
        order.sort_by(|a, b| {
            scores[*b as usize]
                .total_cmp(&scores[*a as usize])
                .then(a.cmp(b))
        });
        for k in [0, 1, 17, 59, 60, 70] {
            let mut expected = order[..k.min(60)].to_vec();
            expected.sort_unstable();
            assert_eq!(top_positions(&scores, k), expected, "{k}");
        }
        for kernel in [1, 3, 7, 59, 121, 301] {
            let found = pool(&scores, kernel, Pooling::Max);
            for (i, found) in found.iter().enumerate() {
                let seen = &scores[i.saturating_sub(kernel / 2)..60.min(i + kernel / 2 + 1)];
                let largest = seen.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                assert!(
                    *found == largest,
                    "kernel {kernel}, {i}: {found}, not {largest}"
                );
            }
        }
    }

    #[test]
    fn infinite_scores_win_first() {
        assert_eq!(
            top_positions(&[f32::INFINITY, 0.5, f32::INFINITY, 0.9], 3),
            [0, 2, 3]
        );
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
