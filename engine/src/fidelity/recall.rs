//! Attention recall: the share of the full cache's attention that falls on rows which a method still holds.
//!
//! Taken along the full cache's answer: at each of its tokens (the first [`super::observer::WATCHED`]) the token's query, in the full
//! cache, spreads a probability of 1 over everything before it; what lies on positions that the method holds at that moment,
//! the token itself included, is recalled. Mean over the query heads of a layer and over the tokens. 1 means that the
//! method has lost nothing that was looked at.
//!
//! ```text
//! full attention   .5  .0  .3  .1  .1        held: 0, 3, 4       recall .5 + .1 + .1 = .7
//! position          0   1   2   3   4
//! ```

use kept_policies::Pos;

use crate::CompactCache;

/// Adds up recall, layer by layer, over the tokens of an answer.
pub(crate) struct RecallSums {
    /// `[layers]`: sums over tokens, of the layers that a method cuts.
    layers: Vec<f64>,
    tokens: usize,
}

impl RecallSums {
    /// Nothing yet.
    pub(crate) fn new(layers: usize) -> Self {
        Self {
            layers: vec![0.0; layers],
            tokens: 0,
        }
    }

    /// One token: `attention[layer]` is `[kv_heads, tokens so far]` of the full cache, the token's own position last; `cache` is
    /// the method's, as it is before the token runs.
    pub(crate) fn add(&mut self, attention: &[Vec<f32>], cache: &CompactCache) {
        let layers = self.layers.iter_mut().zip(cache.cut_layers());
        for ((sum, cached), full) in layers.zip(attention) {
            let heads = cached.kv_heads();
            let rows = full.chunks_exact(full.len() / heads).enumerate();
            let recalled: f64 = rows.map(|(h, row)| recalled(row, &cached.kept(h))).sum();
            *sum += recalled / heads as f64;
        }
        self.tokens += 1;
    }

    /// `[layers]`: the means, or `None` without a token.
    pub(crate) fn means(&self) -> Option<Vec<f64>> {
        let mean = |sum: &f64| sum / self.tokens as f64;
        (self.tokens > 0).then(|| self.layers.iter().map(mean).collect())
    }
}

/// What lies on the `held` positions and on the last one, which is the token's own.
fn recalled(row: &[f32], held: &[Pos]) -> f64 {
    let own = row.len() - 1;
    let earlier = held.iter().map(|p| p.0 as usize).filter(|&p| p < own);
    let sum: f64 = earlier.map(|p| f64::from(row[p])).sum();
    // Rounding of f32 probabilities may add up to a hair above 1.
    (sum + f64::from(row[own])).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_and_the_token_itself() {
        let row = [0.5, 0.0, 0.25, 0.125, 0.125];
        assert_eq!(recalled(&row, &[Pos(0), Pos(3)]), 0.75);
        assert_eq!(recalled(&row, &[]), 0.125);
        let all: Vec<Pos> = (0..4).map(Pos).collect();
        assert_eq!(recalled(&row, &all), 1.0);
    }
}
