//! [`Votes`]: attention of an answer to the tokens of the document.

use std::collections::HashMap;
use std::ops::Range;

use kept_kernels::argmax;
use kept_policies::Pos;

/// The most document tokens that are remembered for one token of the answer.
const MAX_PER_STEP: usize = 32;

/// The most document tokens that are shown for one token of the answer.
const MAX_SHOWN: usize = 8;

/// Less attention than this share of the strongest in the answer is not shown.
const MIN_SHOWN: f32 = 0.1;

/// The most document tokens that are shown for one KV head.
const MAX_PER_HEAD: usize = 64;

/// Votes of a step in most models, in layers times query heads.
const USUAL_VOTES: usize = 2048;

/// Attention that each token of the answer paid to the tokens of the document: the sum, over layers and query heads, of
/// the probability of the most attended slot where that slot holds a document token.
pub struct Votes {
    /// Positions of the document.
    document: Range<usize>,
    /// Votes of the current step.
    current: Vec<Vote>,
    /// The finished steps, in order.
    steps: Vec<TokenVotes>,
    /// Votes of each document token, over all steps.
    totals: HashMap<u32, f32>,
    /// The most that a step attended to a token more than the steps before it did.
    most: f32,
    /// Votes of each compressed layer and each KV head for each document token, over all steps.
    heads: HashMap<(usize, usize), HashMap<u32, f32>>,
}

/// A vote of one query head: for a document token, with its probability.
struct Vote {
    token: u32,
    probability: f32,
    /// Layer among the compressed layers, and KV head; `None` of another layer.
    slot: Option<(usize, usize)>,
}

/// The most attended token of a query head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadPeak {
    /// Its position.
    pub position: Pos,
    /// Attention to it.
    pub probability: f32,
}

impl HeadPeak {
    /// Of the `probabilities` of one query head, whose row `i` has the position `position(i)`.
    pub(crate) fn of(probabilities: &[f32], position: impl Fn(usize) -> Pos) -> Self {
        let row = argmax(probabilities);
        Self {
            position: position(row),
            probability: probabilities[row],
        }
    }
}

/// What a KV head attended to during an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadAttention {
    /// Layer among the compressed layers, as in the map.
    pub layer: usize,
    /// KV head of the layer.
    pub head: usize,
    /// Document tokens with the sum of their votes, at most 64, most votes first.
    pub tokens: Vec<(u32, f32)>,
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

/// What a token of the answer attended to.
#[derive(Debug, Clone, PartialEq)]
pub struct Attended {
    /// Bytes of the answer before the token.
    pub said: usize,
    /// Document tokens, and how much more attention than from the other tokens they got, as a share of the most in the
    /// answer: above 0, at most 1, in descending order.
    pub tokens: Vec<(u32, f32)>,
}

impl Votes {
    /// No votes yet, for a document at these positions.
    pub fn new(document: Range<usize>) -> Self {
        Self {
            document,
            current: Vec::with_capacity(USUAL_VOTES),
            steps: Vec::new(),
            totals: HashMap::new(),
            most: 0.0,
            heads: HashMap::new(),
        }
    }

    /// The votes step by step.
    pub fn steps(&self) -> &[TokenVotes] {
        &self.steps
    }

    /// What each token of the answer attended to.
    pub fn attended(&self) -> Vec<Attended> {
        let attended = |step: &TokenVotes| Attended {
            said: step.said,
            tokens: self.shown(self.more(step)),
        };
        self.steps.iter().map(attended).collect()
    }

    /// The document tokens that a step attended to more than the other steps did on average, and by how much. Without
    /// the average every step would show the beginning of the document, which all heads attend to.
    fn more(&self, step: &TokenVotes) -> Vec<(u32, f32)> {
        let others = self.steps.len() - 1;
        if others == 0 {
            return Vec::new();
        }
        let more = |&(token, vote): &(u32, f32)| {
            (token, vote - (self.totals[&token] - vote) / others as f32)
        };
        let mut tokens: Vec<_> = step.votes.iter().map(more).collect();
        tokens.sort_by(|a, b| b.1.total_cmp(&a.1));
        tokens.truncate(MAX_SHOWN);
        tokens
    }

    /// As shares of the most so far.
    fn shown(&self, mut tokens: Vec<(u32, f32)>) -> Vec<(u32, f32)> {
        tokens.retain_mut(|token| {
            token.1 = (token.1 / self.most).min(1.0);
            token.1 >= MIN_SHOWN
        });
        tokens
    }

    /// What each KV head of the compressed layers attended to, by layer and head.
    pub fn by_head(&self) -> Vec<HeadAttention> {
        let head = |(&(layer, head), tokens): (&(usize, usize), &HashMap<u32, f32>)| {
            let mut tokens: Vec<(u32, f32)> = tokens.iter().map(|(&t, &v)| (t, v)).collect();
            tokens.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            tokens.truncate(MAX_PER_HEAD);
            HeadAttention {
                layer,
                head,
                tokens,
            }
        };
        let mut heads: Vec<_> = self.heads.iter().map(head).collect();
        heads.sort_by_key(|seen| (seen.layer, seen.head));
        heads
    }

    /// Counts the most attended row of a query head. `slot`: the layer among the compressed ones, and the KV head;
    /// `None` in other layers.
    pub(super) fn count(&mut self, slot: Option<(usize, usize)>, position: Pos, probability: f32) {
        let position = position.0 as usize;
        if self.document.contains(&position) {
            self.current.push(Vote {
                token: (position - self.document.start) as u32,
                probability,
                slot,
            });
        }
    }

    /// Counts what the prompt's last token attended to, which leads to the answer's first token. Not in
    /// [`Votes::by_head`]: it saw rows that were evicted afterwards.
    pub(super) fn count_last(&mut self, peaks: &[HeadPeak]) {
        for peak in peaks {
            self.count(None, peak.position, peak.probability);
        }
    }

    /// The votes since the last step led to `token`, which follows `said` bytes of the answer. Returns what it attended
    /// to, compared with the answer so far; as in [`Attended::tokens`].
    pub fn end_step(&mut self, said: usize, token: u32) -> Vec<(u32, f32)> {
        self.current.sort_unstable_by_key(|vote| vote.token);
        let mut votes: Vec<(u32, f32)> = Vec::new();
        for vote in self.current.drain(..) {
            let Vote {
                token,
                probability,
                slot,
            } = vote;
            if let Some(slot) = slot {
                let tokens = self.heads.entry(slot).or_default();
                *tokens.entry(token).or_default() += probability;
            }
            match votes.last_mut() {
                Some(vote) if vote.0 == token => vote.1 += probability,
                _ => votes.push((token, probability)),
            }
        }
        votes.sort_by(|a, b| b.1.total_cmp(&a.1));
        votes.truncate(MAX_PER_STEP);
        votes.shrink_to_fit();
        for &(token, vote) in &votes {
            *self.totals.entry(token).or_default() += vote;
        }
        self.steps.push(TokenVotes { said, token, votes });
        let more = self.more(&self.steps[self.steps.len() - 1]);
        let most = more.first().map_or(0.0, |token| token.1);
        self.most = self.most.max(most);
        self.shown(more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn votes_are_merged_per_step() {
        let mut votes = Votes::new(10..50);
        for (position, probability) in [(12, 0.25), (11, 0.5), (12, 0.5), (5, 1.0), (50, 1.0)] {
            votes.count(Some((0, 0)), Pos(position), probability);
        }
        votes.end_step(0, 7);
        votes.count(Some((0, 0)), Pos(11), 0.25);
        votes.end_step(3, 8);
        let said: Vec<_> = votes.steps().iter().map(|step| step.said).collect();
        assert_eq!(said, [0, 3]);
        assert_eq!(votes.steps()[0].votes, [(2, 0.75), (1, 0.5)]);
        assert_eq!(votes.steps()[1].votes, [(1, 0.25)]);
        for position in 10..50 {
            votes.count(Some((0, 0)), Pos(position), position as f32);
        }
        votes.end_step(4, 9);
        let last = &votes.steps()[2].votes;
        assert_eq!((last.len(), last[0]), (MAX_PER_STEP, (39, 49.0)));
    }

    #[test]
    fn what_the_last_token_of_the_prompt_saw_leads_to_the_first_token() {
        let mut votes = Votes::new(10..50);
        let peak = |position, probability| HeadPeak {
            position: Pos(position),
            probability,
        };
        votes.count_last(&[peak(12, 0.5), peak(3, 1.0), peak(12, 0.25)]);
        votes.end_step(0, 7);
        assert_eq!(votes.steps()[0].votes, [(2, 0.75)]);
        // It saw rows that are evicted.
        assert!(votes.by_head().is_empty());
    }

    #[test]
    fn votes_are_summed_by_head() {
        let mut votes = Votes::new(10..50);
        for (head, position, probability) in
            [((1, 0), 11, 0.25), ((0, 1), 12, 0.5), ((1, 0), 12, 0.5)]
        {
            votes.count(Some(head), Pos(position), probability);
        }
        votes.end_step(0, 7);
        votes.count(Some((1, 0)), Pos(11), 0.5);
        // Not of the document, and of a layer that is not compressed.
        votes.count(Some((1, 1)), Pos(9), 1.0);
        votes.count(None, Pos(12), 1.0);
        votes.end_step(3, 8);
        let head = |layer, head, tokens: &[(u32, f32)]| HeadAttention {
            layer,
            head,
            tokens: tokens.to_vec(),
        };
        let expected = [head(0, 1, &[(2, 0.5)]), head(1, 0, &[(1, 0.75), (2, 0.5)])];
        assert_eq!(votes.by_head(), expected);
    }

    #[test]
    fn what_every_token_attends_to_explains_none() {
        let mut votes = Votes::new(10..50);
        assert!(votes.attended().is_empty());
        let mut latest = Vec::new();
        // The first document token gets the same from all; the others from one each.
        for (said, position) in [(2, 20), (5, 30), (9, 40)] {
            votes.count(Some((0, 0)), Pos(10), 5.0);
            votes.count(Some((0, 0)), Pos(position), 2.0);
            if said == 9 {
                votes.count(Some((0, 0)), Pos(30), 1.0);
            }
            latest = votes.end_step(said, 7);
        }
        let said = |said, tokens: &[(u32, f32)]| Attended {
            said,
            tokens: tokens.to_vec(),
        };
        // Token 20: 2 - 1 / 2 more than in the other two steps, of at most 2; in the last one 1 - 2 / 2.
        let expected = [
            said(2, &[(10, 1.0)]),
            said(5, &[(20, 0.75)]),
            said(9, &[(30, 1.0)]),
        ];
        assert_eq!(votes.attended(), expected);
        assert_eq!(latest, [(30, 1.0)]);
    }
}
