//! Detection of answers that loop: the same block of tokens again and again.
//!
//! The decode loops stop such an answer; a repetition penalty (`sampler.rs`) prevents it.

/// The longest detected block, in tokens.
const MAX_BLOCK: usize = 64;
/// Number of occurrences of a block that count as a loop.
const MIN_REPEATS: usize = 4;
/// Minimum length of all occurrences together, in tokens: a ruled line or four times "no" is not a loop.
const MIN_TOKENS: usize = 32;

/// Checks the tokens of one answer. A token takes `MAX_BLOCK` comparisons and no allocation.
#[derive(Debug, Clone)]
pub struct Repetition {
    /// The last tokens; token `i` of the answer is at `i % MAX_BLOCK`.
    last: [u32; MAX_BLOCK],
    /// `[block length - 1]`: number of last tokens that each equal the token one block earlier, without a
    /// gap.
    equal: [usize; MAX_BLOCK],
    /// Length of the answer in tokens.
    tokens: usize,
}

impl Default for Repetition {
    fn default() -> Self {
        Self {
            last: [0; MAX_BLOCK],
            equal: [0; MAX_BLOCK],
            tokens: 0,
        }
    }
}

impl Repetition {
    /// Adds the answer's next token; returns whether the answer now ends in a loop.
    pub fn push(&mut self, token: u32) -> bool {
        let mut repeats = false;
        for block in 1..=MAX_BLOCK.min(self.tokens) {
            let before = self.last[(self.tokens - block) % MAX_BLOCK];
            let equal = &mut self.equal[block - 1];
            *equal = if before == token { *equal + 1 } else { 0 };
            // The first occurrence of a block has no earlier block to equal.
            repeats |= *equal + block >= MIN_TOKENS.max(MIN_REPEATS * block);
        }
        self.last[self.tokens % MAX_BLOCK] = token;
        self.tokens += 1;
        repeats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of tokens until a loop is found.
    fn found(tokens: impl IntoIterator<Item = u32>) -> Option<usize> {
        let mut repetition = Repetition::default();
        tokens
            .into_iter()
            .position(|token| repetition.push(token))
            .map(|at| at + 1)
    }

    fn cycle(block: u32) -> impl Iterator<Item = u32> {
        (0..4000).map(move |i| i % block)
    }

    #[test]
    fn blocks_up_to_64_tokens_are_found_at_four_repetitions() {
        for block in 1..=64 {
            assert_eq!(
                found(cycle(block)),
                Some(32.max(4 * block) as usize),
                "{block}"
            );
        }
        assert_eq!(found(cycle(65)), None);
    }

    #[test]
    fn tokens_before_the_repetition_do_not_matter() {
        for before in [1, 7, 63, 64, 65, 200] {
            let start = (0..before).map(|i| 1000 + i);
            let all = start.chain(cycle(5));
            assert_eq!(found(all), Some(before as usize + 32), "{before}");
        }
    }

    #[test]
    fn three_repetitions_or_a_changed_token_do_not_count() {
        assert_eq!(found((0..3).flat_map(|_| 0..60)), None);
        // A numbered list: the same words after a different number each time.
        let list = (0..50).flat_map(|i| [1000 + i, 1, 2, 3, 4, 5, 6]);
        assert_eq!(found(list), None);
        let broken = (0..31).map(|_| 7).chain([8]).chain((0..31).map(|_| 7));
        assert_eq!(found(broken), None);
    }

    #[test]
    fn repetition_matches_a_plain_search() {
        let plain = |tokens: &[u32]| {
            (1..=64usize).any(|block| {
                let span = 32.max(4 * block);
                tokens.len() >= span
                    && tokens[tokens.len() - span..]
                        .windows(block + 1)
                        .all(|w| w[0] == w[block])
            })
        };
        let mut state = 1u64;
        for round in 0..200 {
            let mut repetition = Repetition::default();
            let mut tokens = Vec::new();
            let block = round % 70 + 1;
            for i in 0..400 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                let odd = (state >> 33).is_multiple_of(150);
                tokens.push(if odd { 99 } else { (i % block) as u32 });
                let said = repetition.push(tokens[i]);
                assert_eq!(said, plain(&tokens), "round {round}, token {i}");
            }
        }
    }
}
