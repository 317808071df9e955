//! A document as runs of equal share, for display: terminal, exported page and app window draw the same runs.

use std::ops::Range;

use crate::{Prompt, RetentionMap};

/// A range of the document whose tokens have the same share.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Bytes of the document's text, on character boundaries.
    pub range: Range<usize>,
    /// Share of layer-head slots that keep the range, 0 to 1.
    pub share: f32,
}

/// Divides the document's `text` into runs that tile it. A character made of several tokens gets the largest of their
/// shares.
///
/// ```text
/// text    T h e   c o d e   i s   4 7
/// tokens  [The][ code][ is][ ][4][7]        shares 0  .5  .5  0  1  1
/// runs    [The][ code is     ][ ][47]
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
    let mut runs: Vec<Run> = Vec::new();
    for (span, share) in tokens {
        let (start, mut end) = (span.start, span.end);
        while end < text.len() && !text.is_char_boundary(end) {
            end += 1;
        }
        let covered = runs.last().map_or(0, |run| run.range.end);
        if start < covered {
            // This token continues a character that the previous run already covers.
            if let Some(last) = runs.last_mut() {
                split_last_character(text, last, share)
                    .into_iter()
                    .for_each(|run| runs.push(run));
            }
        }
        let start = start.max(covered);
        if start < end {
            push(&mut runs, start..end, share);
        }
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

/// If `share` is larger than the share of `run`, splits the last character of `run` off as a run with this share.
fn split_last_character(text: &str, run: &mut Run, share: f32) -> Option<Run> {
    if share <= run.share {
        return None;
    }
    let last = text[run.range.clone()].char_indices().next_back()?.0 + run.range.start;
    if last == run.range.start {
        run.share = share;
        return None;
    }
    let range = last..run.range.end;
    run.range.end = last;
    Some(Run { range, share })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Earlier;
    use kept_models::TokenizedText;
    use kept_policies::{Pos, Retention};

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
        let mut map = RetentionMap::new(n, 1);
        map.push(&Retention::Keep(vec![
            kept.iter().map(|&k| Pos(k + 1)).collect(),
        ]));
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
    fn character_of_several_tokens_is_not_split() {
        // "é" is bytes 1..3; its two bytes are two tokens, of which the second is kept.
        assert_eq!(
            painted("aéb", &[1, 2, 3, 4], &[2]),
            [run(0..1, 0.0), run(1..3, 1.0), run(3..4, 0.0)]
        );
        assert_eq!(
            painted("aéb", &[1, 2, 3, 4], &[1]),
            [run(0..1, 0.0), run(1..3, 1.0), run(3..4, 0.0)]
        );
        assert_eq!(
            painted("aé", &[2, 3], &[1]),
            [run(0..1, 0.0), run(1..3, 1.0)]
        );
    }
}
