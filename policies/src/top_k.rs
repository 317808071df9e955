//! The largest of many scores, with the project's tie rule, in one pass that remembers little more than it keeps.

/// Scores that are looked at together: none of them may be large enough to remember.
const BLOCK: usize = 32;
/// Room beyond what is kept, at least: parting it is dear beside looking.
const SLACK: usize = 256;

/// The `k` largest of the scores that it is shown, by ascending index. Equal scores: the lower index wins.
pub(crate) struct TopK {
    k: usize,
    /// `[capacity + BLOCK]`, the first `len` of them: the best of those before the last parting, and who may be one since. Score and
    /// index in one number, that of the largest score being the smallest.
    ranked: Vec<u64>,
    len: usize,
    /// As many are parted.
    capacity: usize,
    /// What a score must be above, once k were seen; as [`rising`] gives it.
    bar: Option<i32>,
}

/// The order of `f32::total_cmp` as a number.
fn rising(score: f32) -> i32 {
    let bits = score.to_bits() as i32;
    bits ^ ((bits >> 31) as u32 >> 1) as i32
}

fn ranked(rising: i32, index: u32) -> u64 {
    let falling = !(rising as u32 ^ 1 << 31);
    u64::from(falling) << 32 | u64::from(index)
}

impl TopK {
    /// Of at most `most` scores.
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

    /// Looks at the scores of the indices from `first` on, which are larger than all before.
    pub(crate) fn see(&mut self, first: usize, scores: &[f32]) {
        if self.k == 0 {
            return;
        }
        for (block, scores) in scores.chunks(BLOCK).enumerate() {
            let first = (first + block * BLOCK) as u32;
            match self.bar {
                // Of equal scores the one that was there has the lower index.
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

    /// Those of a block that may be among the best.
    fn remember(&mut self, first: u32, scores: &[f32], may: impl Fn(i32) -> bool) {
        // Written in any case, and over the next one if it was for nothing: no branch to guess.
        for (index, &score) in (first..).zip(scores) {
            let score = rising(score);
            self.ranked[self.len] = ranked(score, index);
            self.len += usize::from(may(score));
        }
    }

    /// Forgets all but the best.
    fn part(&mut self) {
        if self.len > self.k && self.k > 0 {
            let (_, worst, _) = self.ranked[..self.len].select_nth_unstable(self.k - 1);
            // As `ranked` has turned it.
            self.bar = Some((!((*worst >> 32) as u32) ^ 1 << 31) as i32);
            self.len = self.k;
        }
    }

    /// The indices of the best, in any order.
    pub(crate) fn indices(mut self) -> Vec<u32> {
        self.part();
        let top_k = self.ranked[..self.len].iter();
        top_k.map(|&ranked| ranked as u32).collect()
    }
}

/// Indices of the `k` largest scores, ascending. Equal scores: the lower index wins.
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

    /// Numbers of every kind.
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

    /// Of numbers of every kind the order is that of `f32::total_cmp`, however many are remembered and whenever they are parted.
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
