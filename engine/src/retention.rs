//! The retention map: which tokens of the prompt each layer and KV head kept. Plain numbers, for heat maps and files.
//!
//! The map includes sliding-window layers with the positions in their windows, but counts per token leave these
//! layers out: no method compresses them, and they would only lower the contrast.

use kept_policies::Pos;

use crate::compact::CompactLayer;

/// The kept tokens of one layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LayerRetention {
    /// Every token in every head.
    Everything,
    /// Kept positions per KV head, ascending.
    Kept(Vec<Vec<u32>>),
}

/// The kept tokens of all layers, for a prompt of `tokens` tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RetentionMap {
    /// Prompt tokens.
    pub tokens: usize,
    /// KV heads per layer.
    pub kv_heads: usize,
    /// One entry per layer of the model.
    pub layers: Vec<LayerRetention>,
    /// `[layers]`: window of a sliding-window layer, which no method compresses; `None` for global layers.
    pub windows: Vec<Option<usize>>,
    /// `[layers][kv_heads]`: merged tokens, as `[position, position of the class's centre]`. `layers` lists the
    /// centre only.
    pub merged: Vec<Vec<Vec<[u32; 2]>>>,
}

impl RetentionMap {
    pub(crate) fn new(tokens: usize, kv_heads: usize) -> Self {
        Self {
            tokens,
            kv_heads,
            layers: Vec::new(),
            windows: Vec::new(),
            merged: Vec::new(),
        }
    }

    /// Adds a sliding-window layer, which keeps the last `window` positions.
    pub(crate) fn push_window(&mut self, window: usize) {
        let last = (self.tokens.saturating_sub(window) as u32..self.tokens as u32).collect();
        self.layers
            .push(LayerRetention::Kept(vec![last; self.kv_heads]));
        self.merged.push(vec![Vec::new(); self.kv_heads]);
        self.windows.push(Some(window));
    }

    /// Adds a compressed layer, from its current rows.
    pub(crate) fn push_kept(&mut self, kept: &CompactLayer) {
        let heads = 0..self.kv_heads;
        let whole = !kept.is_shared() && heads.clone().all(|h| kept.live_rows(h) == self.tokens);
        let shared = |head: usize| {
            let others = kept.entries(head).into_iter().filter(|(p, c)| p != c);
            others.map(|(p, centre)| [p.0, centre.0]).collect()
        };
        self.windows.push(None);
        self.merged.push(heads.clone().map(shared).collect());
        self.layers.push(if whole {
            LayerRetention::Everything
        } else {
            let positions = |head| kept.kept(head).into_iter().map(|Pos(p)| p).collect();
            LayerRetention::Kept(heads.map(positions).collect())
        });
    }

    /// Rows per KV head of each layer (rounded mean if heads differ).
    pub fn rows_per_layer(&self) -> Vec<usize> {
        self.layers
            .iter()
            .map(|layer| match layer {
                LayerRetention::Everything => self.tokens,
                LayerRetention::Kept(heads) => {
                    let rows: usize = heads.iter().map(Vec::len).sum();
                    (rows + heads.len() / 2) / heads.len().max(1)
                }
            })
            .collect()
    }

    /// The compressed layers: all but the sliding-window layers.
    pub fn compressed_layers(&self) -> impl Iterator<Item = &LayerRetention> {
        let layers = self.layers.iter().zip(&self.windows);
        layers.filter(|(_, w)| w.is_none()).map(|(layer, _)| layer)
    }

    /// Rows per KV head of each compressed layer.
    pub fn compressed_rows(&self) -> Vec<usize> {
        let rows = self.rows_per_layer().into_iter().zip(&self.windows);
        rows.filter(|(_, w)| w.is_none()).map(|(r, _)| r).collect()
    }

    /// The mean of [`RetentionMap::compressed_rows`].
    pub fn mean_rows(&self) -> f64 {
        let rows = self.compressed_rows();
        rows.iter().sum::<usize>() as f64 / rows.len().max(1) as f64
    }

    /// Number of holders, the KV heads of all [`RetentionMap::compressed_layers`]: as many can keep a token.
    pub fn holders(&self) -> usize {
        self.compressed_layers().count() * self.kv_heads
    }

    /// `[tokens]`: the number of [`RetentionMap::holders`] that keep each token, in a row of its own or merged.
    pub fn counts(&self) -> Vec<u32> {
        let mut counts = vec![0u32; self.tokens];
        for layer in self.compressed_layers() {
            match layer {
                LayerRetention::Everything => {
                    counts.iter_mut().for_each(|c| *c += self.kv_heads as u32)
                }
                LayerRetention::Kept(heads) => {
                    for &position in heads.iter().flatten() {
                        counts[position as usize] += 1;
                    }
                }
            }
        }
        for [position, _] in self.merged.iter().flatten().flatten() {
            counts[*position as usize] += 1;
        }
        counts
    }

    /// `[tokens]`: share of the [`RetentionMap::holders`] that keep each token, 0 to 1.
    pub fn shares(&self) -> Vec<f32> {
        let holders = self.holders().max(1) as f32;
        self.counts().iter().map(|&c| c as f32 / holders).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compact::Gather;
    use kept_kernels::RowStore;
    use kept_policies::{ClassTable, Entry, MergedHead, Positions, Retention};

    /// A layer that keeps `retention` of `tokens` tokens in two KV heads.
    fn layer(tokens: usize, retention: &Retention) -> CompactLayer {
        let rows = RowStore::uniform(2, tokens, 1);
        let capacities = [tokens; 2];
        Gather::new(
            &rows,
            &rows,
            tokens,
            retention,
            &capacities,
            Positions::Original,
        )
        .layer(&mut Vec::new())
    }

    #[test]
    fn counts_every_layer_and_head() {
        let mut map = RetentionMap::new(3, 2);
        map.push_kept(&layer(3, &Retention::Everything));
        let kept = Retention::Keep(vec![vec![Pos(0)], vec![Pos(0), Pos(2)]]);
        map.push_kept(&layer(3, &kept));
        assert_eq!(map.counts(), [4, 2, 3]);
        assert_eq!(map.shares(), [1.0, 0.5, 0.75]);
        assert_eq!(map.rows_per_layer(), [3, 2]);
    }

    #[test]
    fn sliding_window_layers_are_shown_but_not_counted() {
        let mut map = RetentionMap::new(3, 2);
        map.push_window(2);
        let kept = Retention::Keep(vec![vec![Pos(0)], vec![Pos(0), Pos(2)]]);
        map.push_kept(&layer(3, &kept));
        assert_eq!(map.windows, [Some(2), None]);
        assert_eq!(map.layers[0], LayerRetention::Kept(vec![vec![1, 2]; 2]));
        assert_eq!((map.holders(), map.counts()), (2, vec![2, 0, 1]));
        assert_eq!(map.shares(), [1.0, 0.0, 0.5]);
        assert_eq!(map.rows_per_layer(), [2, 2]);
        map.push_window(1);
        assert_eq!(map.mean_rows(), 2.0);
    }

    #[test]
    fn merged_token_counts_as_held() {
        let entry = |pos, class| Entry {
            pos: Pos(pos),
            class,
            weight: 1.0,
        };
        let mut map = RetentionMap::new(4, 2);
        let head = MergedHead {
            centres: vec![Pos(0), Pos(3)],
            entries: vec![entry(0, 0), entry(1, 0), entry(3, 1)],
        };
        let merged = Retention::Merge(vec![head.clone(), head]);
        let table = ClassTable {
            entries: 4,
            elements: 0,
        };
        let norm = |_: usize, _: usize, _: Pos| 1.0;
        map.push_kept(&layer(4, &merged).with_norms(norm, &merged, table));
        assert_eq!(map.counts(), [2, 2, 0, 2]);
        assert_eq!(map.rows_per_layer(), [2], "rows are what is stored");
        assert_eq!(map.merged, [[[[1, 0]], [[1, 0]]]]);
    }
}
