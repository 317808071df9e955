//! A document as runs of equal share, for display: terminal, exported page and app window draw the same runs.

use std::ops::Range;

use unicode_segmentation::UnicodeSegmentation;

use crate::{Prompt, RetentionMap};

/// A range of the document whose words have the same share.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Bytes of the document's text, on character boundaries.
    pub range: Range<usize>,
    /// Share of layer-head slots that keep the range, 0 to 1.
    pub share: f32,
}

/// Divides the document's `text` into runs that tile it. A word has the share of its strongest token, as in the app.
///
/// ```text
/// text    T h e   c o d e   i s   4 7
/// tokens  [The][ co][de][ is][ ][4][7]      shares 0  .5  .8  0  1  1  0
/// runs    [The][ ][code][ is][ 47]
/// ```
pub fn runs(text: &str, prompt: &Prompt, map: &RetentionMap) -> Vec<Run> {
    let shares = map.shares();
    let document = &shares[prompt.document.clone()];
    let bytes = |span: &Range<u32>| span.start as usize..span.end as usize;
    let spans = prompt.spans().iter().map(bytes);
    runs_of(text, spans.zip(document.iter().copied()))
}

/// [`runs`] of any text: `tokens` are the byte ranges that tile it, with their shares.
pub(crate) fn runs_of(text: &str, tokens: impl Iterator<Item = (Range<usize>, f32)>) -> Vec<Run> {
    let mut tokens = tokens.peekable();
    let mut runs: Vec<Run> = Vec::new();
    for (start, piece) in text.split_word_bound_indices() {
        let end = start + piece.len();
        let mut share = 0.0f32;
        while let Some((span, of_token)) = tokens.peek()
            && span.start < end
        {
            share = share.max(*of_token);
            if span.end > end {
                // It goes on in the next piece.
                break;
            }
            tokens.next();
        }
        push(&mut runs, start..end, share);
    }
    runs
}

fn push(runs: &mut Vec<Run>, range: Range<usize>, share: f32) {
    match runs.last_mut() {
        Some(last) if last.share == share && last.range.end == range.start => {
            last.range.end = range.end
        }
        _ => runs.push(Run { range, share }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Earlier;
    use crate::LayerRetention;
    use kept_models::TokenizedText;

    fn painted(text: &str, ends: &[u32], kept: &[u32]) -> Vec<Run> {
        let mut start = 0;
        let spans: Vec<Range<u32>> = ends
            .iter()
            .map(|&end| std::mem::replace(&mut start, end)..end)
            .collect();
        let n = ends.len() + 2;
        let prompt = Prompt {
            ids: vec![0; n],
            document: 1..n - 1,
            question: n - 1..n,
            turns: Vec::new(),
            earlier: Earlier::default(),
            turns_left_out: 0,
            text: Arc::new(TokenizedText {
                ids: vec![0; n - 2],
                spans,
            }),
        };
        let kept = kept.iter().map(|&k| k + 1).collect();
        let map = RetentionMap {
            layers: vec![LayerRetention::Kept(vec![kept])],
            windows: vec![None],
            merged: vec![vec![Vec::new()]],
            ..RetentionMap::new(n, 1)
        };
        runs(text, &prompt, &map)
    }

    fn run(range: Range<usize>, share: f32) -> Run {
        Run { range, share }
    }

    #[test]
    fn equal_neighbours_form_one_run() {
        assert_eq!(
            painted("The code", &[3, 5, 8], &[1, 2]),
            [run(0..3, 0.0), run(3..8, 1.0)]
        );
    }

    #[test]
    fn a_word_is_as_strong_as_its_strongest_token() {
        assert_eq!(
            painted("The code.", &[3, 6, 8, 9], &[2]),
            [run(0..4, 0.0), run(4..8, 1.0), run(8..9, 0.0)]
        );
        // The two bytes of a character are two tokens.
        for kept in [1, 2] {
            assert_eq!(
                painted("a \u{e9} b", &[2, 3, 4, 6], &[kept]),
                [run(0..2, 0.0), run(2..4, 1.0), run(4..6, 0.0)]
            );
        }
    }

    #[test]
    fn text_without_spaces_stays_as_its_tokens_are() {
        assert_eq!(
            painted("\u{4eca}\u{65e5}\u{306f}", &[3, 6, 9], &[1]),
            [run(0..3, 0.0), run(3..6, 1.0), run(6..9, 0.0)]
        );
    }
}
