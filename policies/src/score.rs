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
    (0..scores.len())
        .map(|i| {
            let seen = &scores[i.saturating_sub(reach)..scores.len().min(i + reach + 1)];
            match how {
                Pooling::Max => seen.iter().copied().fold(f32::NEG_INFINITY, f32::max),
                // In f64, where the sum of a few f32 is exact: the same scores in another order are a tie, not a coin toss.
                Pooling::Avg => {
                    let sum: f64 = seen.iter().map(|&s| f64::from(s)).sum();
                    (sum / kernel as f64) as f32
                }
            }
        })
        .collect()
}

/// Indices of the `k` largest scores, ascending. Equal scores: the lower index wins.
pub fn top_positions(scores: &[f32], k: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..scores.len() as u32).collect();
    let larger_then_lower = |a: &u32, b: &u32| {
        scores[*b as usize]
            .total_cmp(&scores[*a as usize])
            .then(a.cmp(b))
    };
    if k < order.len() {
        order.select_nth_unstable_by(k, larger_then_lower);
        order.truncate(k);
    }
    order.sort_unstable();
    order
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
