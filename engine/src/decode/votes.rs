//! [`Votes`]: attention of an answer to the tokens of the document.

use std::ops::Range;

use kept_policies::Pos;

/// Attention that the answer paid to each token of the document: the sum, over steps, layers and query heads, of the
/// probability of the most attended slot where that slot holds a document token.
pub struct Votes {
    /// Positions of the document.
    document: Range<usize>,
    /// `[document tokens]`
    per_token: Vec<f32>,
}

impl Votes {
    /// No votes yet, for a document at these positions.
    pub fn new(document: Range<usize>) -> Self {
        Self {
            per_token: vec![0.0; document.len()],
            document,
        }
    }

    /// `[document tokens]`: votes so far.
    pub fn per_token(&self) -> &[f32] {
        &self.per_token
    }

    pub(super) fn count(&mut self, position: Pos, probability: f32) {
        let position = position.0 as usize;
        if self.document.contains(&position) {
            self.per_token[position - self.document.start] += probability;
        }
    }
}
