//! [`Votes`]: attention of an answer to the tokens of the document.

use std::ops::Range;

use kept_policies::Pos;

/// The most document tokens that are remembered for one token of the answer.
const MOST_OF_STEP: usize = 32;

/// Votes of a step in most models, in layers times query heads.
const USUAL_VOTES: usize = 2048;

/// Attention that each token of the answer paid to the tokens of the document: the sum, over layers and query heads, of
/// the probability of the most attended slot where that slot holds a document token.
pub struct Votes {
    /// Positions of the document.
    document: Range<usize>,
    /// Votes of the current step: document tokens, with repetitions.
    current: Vec<(u32, f32)>,
    /// The finished steps, in order.
    steps: Vec<TokenVotes>,
}

/// The votes that led to one token of the answer.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenVotes {
    /// Bytes of the answer before the token.
    pub said: usize,
    /// Its id.
    pub token: u32,
    /// Document tokens with their votes, at most 32, most votes first.
    pub votes: Vec<(u32, f32)>,
}

impl Votes {
    /// No votes yet, for a document at these positions.
    pub fn new(document: Range<usize>) -> Self {
        Self {
            document,
            current: Vec::with_capacity(USUAL_VOTES),
            steps: Vec::new(),
        }
    }

    /// The votes step by step.
    pub fn steps(&self) -> &[TokenVotes] {
        &self.steps
    }

    pub(super) fn count(&mut self, position: Pos, probability: f32) {
        let position = position.0 as usize;
        if self.document.contains(&position) {
            let token = position - self.document.start;
            self.current.push((token as u32, probability));
        }
    }

    /// The votes since the last step led to `token`, which follows `said` bytes of the answer.
    pub fn end_step(&mut self, said: usize, token: u32) {
        self.current.sort_unstable_by_key(|vote| vote.0);
        let mut votes: Vec<(u32, f32)> = Vec::new();
        for (token, probability) in self.current.drain(..) {
            match votes.last_mut() {
                Some(vote) if vote.0 == token => vote.1 += probability,
                _ => votes.push((token, probability)),
            }
        }
        votes.sort_by(|a, b| b.1.total_cmp(&a.1));
        votes.truncate(MOST_OF_STEP);
        votes.shrink_to_fit();
        self.steps.push(TokenVotes { said, token, votes });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn votes_are_merged_per_step() {
        let mut votes = Votes::new(10..50);
        for (position, probability) in [(12, 0.25), (11, 0.5), (12, 0.5), (5, 1.0), (50, 1.0)] {
            votes.count(Pos(position), probability);
        }
        votes.end_step(0, 7);
        votes.count(Pos(11), 0.25);
        votes.end_step(3, 8);
        let said: Vec<_> = votes.steps().iter().map(|step| step.said).collect();
        assert_eq!(said, [0, 3]);
        assert_eq!(votes.steps()[0].votes, [(2, 0.75), (1, 0.5)]);
        assert_eq!(votes.steps()[1].votes, [(1, 0.25)]);
        for position in 10..50 {
            votes.count(Pos(position), position as f32);
        }
        votes.end_step(4, 9);
        let last = &votes.steps()[2].votes;
        assert_eq!((last.len(), last[0]), (MOST_OF_STEP, (39, 49.0)));
    }
}
