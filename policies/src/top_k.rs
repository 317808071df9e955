//! Top-k of many scores, with the project's tie rule, in one pass that stores little more than k candidates.

/// Scores compared together: a block is skipped if no score in it is above the threshold.
const BLOCK: usize = 32;
/// Minimum capacity beyond k: partitioning is expensive compared with a comparison.
const SLACK: usize = 256;

/// The `k` highest of the scores passed to it. On equal scores the lower index wins.
pub(crate) struct TopK {
    k: usize,
    /// `[capacity + BLOCK]`, the first `len` of them used: the top-k at the last partition, and the candidates since
    /// then. Score and index are packed into one number, the smallest for the highest score.
    ranked: Vec<u64>,
    len: usize,
    /// Number of candidates above which they are partitioned.
    capacity: usize,
    /// Threshold that a score must exceed, as returned by [`rising`]; `None` before the first partition.
    bar: Option<i32>,
}

/// The score as an integer with the order of `f32::total_cmp`.
fn rising(score: f32) -> i32 {
    let bits = score.to_bits() as i32;
    bits ^ ((bits >> 31) as u32 >> 1) as i32
}

fn ranked(rising: i32, index: u32) -> u64 {
    let falling = !(rising as u32 ^ 1 << 31);
    u64::from(falling) << 32 | u64::from(index)
}

impl TopK {
    /// The top k of at most `most` scores.
    pub(crate) fn new(k: usize, most: usize) -> Self {
        let capacity = k.saturating_add(k.max(SLACK)).min(most);
        Self {
            k,
            ranked: vec![0; if k > 0 { capacity + BLOCK } else { 0 }],
            len: 0,
            capacity,
            bar: None,
        }
    }

    /// Processes the scores of the indices from `first` on, which must be higher than all indices before.
    pub(crate) fn see(&mut self, first: usize, scores: &[f32]) {
        if self.k == 0 {
            return;
        }
        for (block, scores) in scores.chunks(BLOCK).enumerate() {
            let first = (first + block * BLOCK) as u32;
            match self.bar {
                // On equal scores the earlier one has the lower index and wins.
                Some(bar) => {
                    if (scores.iter()).fold(false, |any, &score| any | (rising(score) > bar)) {
                        self.remember(first, scores, |score| score > bar);
                    }
                }
                None => self.remember(first, scores, |_| true),
            }
            if self.len > self.capacity {
                self.part();
            }
        }
    }

    /// Stores the scores of a block that may be among the top k.
    fn remember(&mut self, first: u32, scores: &[f32], may: impl Fn(i32) -> bool) {
        // Always write, and overwrite if the score is no candidate: this avoids a branch misprediction.
        for (index, &score) in (first..).zip(scores) {
            let score = rising(score);
            self.ranked[self.len] = ranked(score, index);
            self.len += usize::from(may(score));
        }
    }

    /// Partitions the candidates and keeps the top k.
    fn part(&mut self) {
        if self.len > self.k && self.k > 0 {
            let (_, worst, _) = self.ranked[..self.len].select_nth_unstable(self.k - 1);
            // The inverse of the score's encoding in `ranked`.
            self.bar = Some((!((*worst >> 32) as u32) ^ 1 << 31) as i32);
            self.len = self.k;
        }
    }

    /// The indices of the top k, in any order.
    pub(crate) fn indices(mut self) -> Vec<u32> {
        self.part();
        let top_k = self.ranked[..self.len].iter();
        top_k.map(|&ranked| ranked as u32).collect()
    }
}

/// Indices of the `k` highest scores, ascending. On equal scores the lower index wins.
pub fn top_positions(scores: &[f32], k: usize) -> Vec<u32> {
    let mut top_k = TopK::new(k, scores.len());
    top_k.see(0, scores);
    let mut top_k = top_k.indices();
    top_k.sort_unstable();
    top_k
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Every kind of float.
    pub(crate) const ODD: [f32; 12] = [
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

    /// For every kind of float the order is that of `f32::total_cmp`, whatever the number of candidates and the time of
    /// the partitions.
    #[test]
    fn the_best_are_the_first_of_all_in_order() {
        let drawn = |i: usize| ODD[i * 7 % ODD.len()] * (1.0 + (i / 12 % 40) as f32);
        for n in [1, 60, BLOCK, SLACK + 1, 3000] {
            let rising: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let falling = rising.iter().map(|x| -x).collect();
            for scores in [(0..n).map(drawn).collect(), vec![2.0; n], rising, falling] {
                let mut order: Vec<u32> = (0..n as u32).collect();
                order.sort_by(|a, b| {
                    scores[*b as usize]
                        .total_cmp(&scores[*a as usize])
                        .then(a.cmp(b))
                });
                for k in [0, 1, 17, 59, 60, 70, 500, n - 1, n, n + 9] {
                    let mut expected = order[..k.min(n)].to_vec();
                    expected.sort_unstable();
                    assert_eq!(top_positions(&scores, k), expected, "{k} of {n}");
                }
            }
        }
    }
}
