//! Statistics of the kept positions: similarity of the layers' selections (ChunkKV, table 3 and figure 2) and the
//! distribution of kept rows over the prompt (HBW-KV, figure 3).
//!
//! The quality of a selection is measured on the model's output (`divergence.rs`, `recall.rs`).

use serde::{Deserialize, Serialize};

use kept_engine::{LayerRetention, RetentionMap};

/// Number of equal parts of the prompt in the histogram of kept positions. HBW-KV's figure gives no number.
pub const BINS: usize = 32;

/// Figures of one selection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "typescript", derive(ts_rs::TS))]
pub struct IndexFigures {
    /// Mean Jaccard similarity of the kept positions of adjacent layers, over all pairs and KV heads; `None` with one
    /// layer. Every kept position counts, including sinks and observation window.
    pub jaccard: Option<f64>,
    /// The same for the first KV head only, as in ChunkKV's appendix B.2.1.
    pub jaccard_first_head: Option<f64>,
    /// `[layers][layers]`: Jaccard similarity of any two layers, mean over KV heads.
    pub layer_similarity: Vec<Vec<f64>>,
    /// `[bins]`: share of all kept rows (over all layers and heads) in each of up to [`BINS`] equal parts of the
    /// prompt. Sums to 1.
    pub position_histogram: Vec<f64>,
    /// Entropy of this histogram in nats; `ln(bins)` for an even distribution.
    pub position_entropy: f64,
    /// `ln(bins)`, the maximum.
    pub position_entropy_most: f64,
}

impl IndexFigures {
    /// Computes the figures from the retention map of a prompt.
    pub fn from_map(map: &RetentionMap) -> Self {
        let layers: Vec<Vec<Vec<u32>>> = map.compressed_layers().map(|l| sets(map, l)).collect();
        let alike = |a: usize, b: usize| {
            let heads = layers[a].iter().zip(&layers[b]);
            mean(heads.map(|(a, b)| jaccard(a, b))).unwrap_or(1.0)
        };
        let pairs = 1..layers.len();
        let histogram = position_histogram(layers.iter().flatten(), map.tokens);
        Self {
            jaccard: mean(pairs.clone().map(|l| alike(l - 1, l))),
            jaccard_first_head: mean(pairs.map(|l| jaccard(&layers[l - 1][0], &layers[l][0]))),
            layer_similarity: (0..layers.len())
                .map(|a| (0..layers.len()).map(|b| alike(a, b)).collect())
                .collect(),
            position_entropy: entropy(&histogram),
            position_entropy_most: (histogram.len().max(1) as f64).ln(),
            position_histogram: histogram,
        }
    }
}

/// Kept positions per KV head, ascending.
fn sets(map: &RetentionMap, layer: &LayerRetention) -> Vec<Vec<u32>> {
    match layer {
        LayerRetention::Everything => vec![(0..map.tokens as u32).collect(); map.kv_heads],
        LayerRetention::Kept(heads) => heads.clone(),
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0usize), |(sum, count), v| (sum + v, count + 1));
    (count > 0).then(|| sum / count as f64)
}

/// Size of the intersection divided by size of the union of two ascending lists; 1 for two empty lists.
pub fn jaccard(a: &[u32], b: &[u32]) -> f64 {
    let (mut i, mut j, mut both) = (0, 0, 0usize);
    while i < a.len() && j < b.len() {
        both += usize::from(a[i] == b[j]);
        let (left, right) = (a[i], b[j]);
        i += usize::from(left <= right);
        j += usize::from(right <= left);
    }
    let either = a.len() + b.len() - both;
    if either == 0 {
        1.0
    } else {
        both as f64 / either as f64
    }
}

/// Share of all positions in each of up to [`BINS`] equal parts of `0..tokens`: position p lies in part
/// `p * bins / tokens`.
pub fn position_histogram<'a>(
    lists: impl Iterator<Item = &'a Vec<u32>>,
    tokens: usize,
) -> Vec<f64> {
    let bins = BINS.min(tokens);
    let mut counts = vec![0u64; bins];
    for &position in lists.flatten() {
        counts[position as usize * bins / tokens] += 1;
    }
    let all = counts.iter().sum::<u64>().max(1) as f64;
    counts.iter().map(|&count| count as f64 / all).collect()
}

/// `-sum p ln p` in nats, of shares that sum to 1.
pub fn entropy(shares: &[f64]) -> f64 {
    let terms = shares.iter().filter(|&&p| p > 0.0).map(|&p| -p * p.ln());
    terms.sum::<f64>().max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jaccard_matches_hand_computation() {
        assert_eq!(jaccard(&[0, 1, 2, 3], &[2, 3, 4, 5]), 2.0 / 6.0);
        assert_eq!(jaccard(&[1, 5], &[1, 5]), 1.0);
        assert_eq!(jaccard(&[1], &[2]), 0.0);
        assert_eq!(jaccard(&[], &[2]), 0.0);
        assert_eq!(jaccard(&[], &[]), 1.0);
    }

    /// numpy: -(p * log(p)).sum() for p = [.5, .25, .25]
    #[test]
    fn entropy_matches_hand_computation() {
        assert!((entropy(&[0.5, 0.25, 0.25, 0.0]) - 1.0397207708399179).abs() < 1e-12);
        assert!((entropy(&[0.25; 4]) - 4f64.ln()).abs() < 1e-12);
        assert_eq!(entropy(&[1.0]), 0.0);
    }

    #[test]
    fn position_histogram_has_equal_bins() {
        let lists = [vec![0, 1, 63], vec![32]];
        let histogram = position_histogram(lists.iter(), 64);
        assert_eq!(histogram.len(), 32);
        assert_eq!(
            (histogram[0], histogram[16], histogram[31]),
            (0.5, 0.25, 0.25)
        );
        let few = [vec![0, 2]];
        assert_eq!(position_histogram(few.iter(), 3), [0.5, 0.0, 0.5]);
    }

    #[test]
    fn layer_similarity_compares_head_by_head() {
        let map = RetentionMap {
            tokens: 8,
            kv_heads: 2,
            layers: vec![
                LayerRetention::Kept(vec![vec![0, 1, 2, 3], vec![0, 7]]),
                LayerRetention::Kept(vec![vec![2, 3, 4, 5], vec![0, 7]]),
                LayerRetention::Everything,
            ],
            windows: vec![None; 3],
            merged: Vec::new(),
        };
        let figures = IndexFigures::from_map(&map);
        // Layers 0 and 1: (2/6 + 1) / 2. Layers 1 and 2: (4/8 + 2/8) / 2.
        let (first, second) = ((2.0 / 6.0 + 1.0) / 2.0, 0.375);
        assert_eq!(figures.jaccard, Some((first + second) / 2.0));
        assert_eq!(figures.jaccard_first_head, Some((2.0 / 6.0 + 0.5) / 2.0));
        assert_eq!(figures.layer_similarity[1][2], second);
        assert_eq!(figures.layer_similarity[2][2], 1.0);
        let one = RetentionMap {
            windows: vec![None],
            layers: map.layers[..1].to_vec(),
            ..map
        };
        assert_eq!(IndexFigures::from_map(&one).jaccard, None);
    }
}
