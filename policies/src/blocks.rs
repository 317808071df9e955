//! Contiguous blocks of tokens, for methods that keep chunks or blocks instead of single tokens.
//!
//! ```text
//! blocks(1..12, 4):   [1 2 3 4] [5 6 7 8] [9 10 11]       the last block may be short
//! ```

use std::ops::Range;

/// Cuts `span` into blocks of `size` from its start; the last one may be short.
pub(crate) fn blocks(span: Range<usize>, size: usize) -> Vec<Range<usize>> {
    let end = span.end;
    span.step_by(size)
        .map(|start| start..(start + size).min(end))
        .collect()
}

/// Mean score of each block, over its actual length.
pub(crate) fn means(scores: &[f32], blocks: &[Range<usize>]) -> Vec<f64> {
    let sums = sums(scores, blocks);
    (sums.into_iter().zip(blocks))
        .map(|(sum, block)| sum / block.len() as f64)
        .collect()
}

/// Sum of each block's scores, in f64, so that rounding does not separate blocks of equal score.
pub(crate) fn sums(scores: &[f32], blocks: &[Range<usize>]) -> Vec<f64> {
    blocks
        .iter()
        .map(|block| scores[block.clone()].iter().map(|&s| f64::from(s)).sum())
        .collect()
}

/// Indices by descending score; on equal scores the lower index first.
pub(crate) fn ranked(scores: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
    order
}
