//! Attention recall: the share of the full cache's attention that falls on rows which a method still holds.
//!
//! Measured along the full cache's answer: at each of its first [`super::observer::WATCHED`] tokens, the token's
//! query in the full cache distributes a probability of 1 over all positions up to its own. The probability on
//! positions that the method holds at this step, the token itself included, is recalled. Mean over the query heads of
//! a layer and over the tokens. 1 means that the method has lost no row that received attention. A token that shares
//! a row with others (merge) counts as held; KL divergence measures how well the merged row represents its key and
//! value.
//!
//! ```text
//! full attention   .5  .0  .3  .1  .1        held: 0, 3, 4       recall .5 + .1 + .1 = .7
//! position          0   1   2   3   4
//! ```

use kept_policies::Pos;

use kept_engine::{CompactCache, CompactLayer};

/// Accumulates recall, layer by layer, over the tokens of an answer.
pub(crate) struct RecallSums {
    /// `[layers]`: sums over tokens, for the compressed layers.
    layers: Vec<f64>,
    tokens: usize,
}

impl RecallSums {
    /// Empty sums.
    pub(crate) fn new(layers: usize) -> Self {
        Self {
            layers: vec![0.0; layers],
            tokens: 0,
        }
    }

    /// Adds one token. `attention[layer]` is `[kv_heads, tokens so far]` of the full cache, the token's own position
    /// last; `cache` is the method's, before the token is decoded.
    pub(crate) fn add(&mut self, attention: &[Vec<f32>], cache: &CompactCache) {
        let layers = self.layers.iter_mut().zip(cache.compressed_layers());
        for ((sum, cached), full) in layers.zip(attention) {
            let heads = cached.kv_heads();
            let rows = full.chunks_exact(full.len() / heads).enumerate();
            let recalled: f64 = rows
                .map(|(h, row)| recalled(row, &held_positions(cached, h)))
                .sum();
            *sum += recalled / heads as f64;
        }
        self.tokens += 1;
    }

    /// `[layers]`: the means, or `None` without tokens.
    pub(crate) fn means(&self) -> Option<Vec<f64>> {
        let mean = |sum: &f64| sum / self.tokens as f64;
        (self.tokens > 0).then(|| self.layers.iter().map(mean).collect())
    }
}

/// Positions that take part in attention in one KV head, in a row of their own or merged.
fn held_positions(layer: &CompactLayer, head: usize) -> Vec<Pos> {
    let entries = layer.entries(head).into_iter();
    entries.map(|(position, _)| position).collect()
}

/// Probability on the `held` positions and on the last one, the token's own.
fn recalled(row: &[f32], held: &[Pos]) -> f64 {
    let own = row.len() - 1;
    let earlier = held.iter().map(|p| p.0 as usize).filter(|&p| p < own);
    let sum: f64 = earlier.map(|p| f64::from(row[p])).sum();
    // Rounding of f32 probabilities can bring the sum slightly above 1.
    (sum + f64::from(row[own])).min(1.0)
}

#[cfg(test)]
mod tests {
    use kept_engine::backend::Gather;
    use kept_kernels::RowStore;
    use kept_policies::{ClassTable, Entry, MergedHead, Positions, Retention};

    use super::*;

    #[test]
    fn recall_counts_merged_tokens() {
        let keys = RowStore::uniform(1, 4, 2);
        let entry = |pos, class| Entry {
            pos: Pos(pos),
            class,
            weight: 1.0,
        };
        let merged = Retention::Merge(vec![MergedHead {
            centres: vec![Pos(0), Pos(3)],
            entries: vec![entry(0, 0), entry(2, 0), entry(3, 1)],
        }]);
        let table = ClassTable {
            entries: 4,
            elements: 0,
        };
        let layer = Gather::new(&keys, &keys, 4, &merged, &[3], Positions::Original)
            .layer(&mut Vec::new())
            .with_table(&keys, &merged, table);
        assert_eq!(layer.kept(0), [Pos(0), Pos(3)]);
        assert_eq!(held_positions(&layer, 0), [Pos(0), Pos(2), Pos(3)]);
        let row = [0.5, 0.125, 0.25, 0.0625, 0.0625];
        assert_eq!(recalled(&row, &held_positions(&layer, 0)), 0.875);
    }

    #[test]
    fn recall_sums_held_positions_and_the_own_token() {
        let row = [0.5, 0.0, 0.25, 0.125, 0.125];
        assert_eq!(recalled(&row, &[Pos(0), Pos(3)]), 0.75);
        assert_eq!(recalled(&row, &[]), 0.125);
        let all: Vec<Pos> = (0..4).map(Pos).collect();
        assert_eq!(recalled(&row, &all), 1.0);
    }
}
