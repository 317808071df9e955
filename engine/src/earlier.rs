//! The earlier turns of a prompt as one text, so that a [`MapGrid`] covers them as it covers the document.
//!
//! ```text
//! text      QUESTION 0 \n\n ANSWER 0 \n\n QUESTION 1 \n\n ANSWER 1
//! spans     [    ][    ][       ][  ][ ...          they tile the text: an empty line belongs to the token behind it
//! prompt    ... template QUESTION 0 template ANSWER 0 template ...        the template's tokens are no part of it
//! ```

use std::ops::Range;

use kept_models::TokenizedText;

use crate::{MapGrid, Run, Turn, ends16, paint};

/// Between two texts.
const BETWEEN: &str = "\n\n";

/// The earlier turns that a prompt contains; empty without any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Earlier {
    /// All questions and answers.
    pub text: String,
    /// Byte range of each turn in `text`, oldest first: its question and its answer.
    pub turns: Vec<[Range<usize>; 2]>,
    /// Positions of the questions and answers in the prompt, in the order of `text`.
    pub positions: Vec<Range<usize>>,
    /// `[tokens]`: byte range of each of their tokens in `text`.
    pub(crate) spans: Vec<Range<u32>>,
}

impl Earlier {
    /// The texts of `turns`, without their tokens.
    pub fn of(turns: &[Turn]) -> Self {
        let mut earlier = Self::default();
        for turn in turns {
            let [question, answer] = [&turn.question, &turn.answer].map(|said| {
                if !earlier.text.is_empty() {
                    earlier.text += BETWEEN;
                }
                let start = earlier.text.len();
                earlier.text += said.trim();
                start..earlier.text.len()
            });
            earlier.turns.push([question, answer]);
        }
        earlier
    }

    /// Adds the tokens of the next question or answer, which begin at `position` of the prompt.
    pub(crate) fn push(&mut self, position: usize, tokens: &TokenizedText) {
        let index = self.positions.len();
        let start = self.turns[index / 2][index % 2].start as u32;
        let mut at = self.spans.last().map_or(0, |span| span.end);
        for span in &tokens.spans {
            let end = start + span.end;
            self.spans.push(std::mem::replace(&mut at, end)..end);
        }
        self.positions.push(position..position + tokens.ids.len());
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.spans.len()
    }

    /// Position in the prompt and byte range in `text` of each token.
    pub fn spans(&self) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
        let positions = self.positions.iter().cloned().flatten();
        let bytes = |span: &Range<u32>| span.start as usize..span.end as usize;
        positions.zip(self.spans.iter().map(bytes))
    }

    /// An empty map of the tokens, to be filled with [`MapGrid::set_kept`].
    pub fn grid(&self, layers: usize, kv_heads: usize) -> MapGrid {
        MapGrid::bounded(layers, kv_heads, ends16(&self.text, &self.spans))
    }

    /// `text` as runs of equal share. `shares`: of the prompt's tokens.
    pub fn runs(&self, shares: &[f32]) -> Vec<Run> {
        let own = self
            .spans()
            .map(|(position, span)| (span, shares[position]));
        paint::runs_of(&self.text, own)
    }

    /// Mean of the prompt's `shares` over all tokens, or those of one turn; `None` without tokens.
    pub fn mean_share(&self, turn: Option<usize>, shares: &[f32]) -> Option<f32> {
        let parts = turn.map_or(0..self.positions.len(), |turn| 2 * turn..2 * turn + 2);
        let tokens = self.positions[parts].iter().cloned().flatten();
        let (sum, many) = tokens.fold((0.0f64, 0usize), |(sum, many), position| {
            (sum + f64::from(shares[position]), many + 1)
        });
        (many > 0).then(|| (sum / many as f64) as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(question: &str, answer: &str) -> Turn {
        Turn {
            question: question.to_owned(),
            answer: answer.to_owned(),
        }
    }

    fn tokens(ends: &[u32]) -> TokenizedText {
        let mut start = 0;
        TokenizedText {
            ids: vec![0; ends.len()],
            spans: (ends.iter())
                .map(|&end| std::mem::replace(&mut start, end)..end)
                .collect(),
        }
    }

    #[test]
    fn the_tokens_tile_the_text_of_all_turns() {
        let mut earlier = Earlier::of(&[turn(" Why? ", "É so."), turn("And?", "")]);
        assert_eq!(earlier.text, "Why?\n\nÉ so.\n\nAnd?\n\n");
        assert_eq!(earlier.turns, [[0..4, 6..12], [14..18, 20..20]]);
        earlier.push(5, &tokens(&[3, 4]));
        // The second token ends within É.
        earlier.push(9, &tokens(&[1, 2, 6]));
        earlier.push(14, &tokens(&[4]));
        earlier.push(17, &tokens(&[]));
        let spans: Vec<_> = earlier.spans().collect();
        let expected = [
            (5, 0..3),
            (6, 3..4),
            (9, 4..7),
            (10, 7..8),
            (11, 8..12),
            (14, 12..18),
        ];
        assert_eq!(spans, expected);
        assert_eq!(earlier.grid(1, 2).ends16(), [3, 4, 6, 7, 11, 17]);
        let mut shares = vec![0.0; 20];
        (shares[5], shares[6], shares[10], shares[14]) = (1.0, 1.0, 0.5, 1.0);
        let runs = earlier.runs(&shares);
        let found: Vec<_> = runs
            .iter()
            .map(|run| (run.range.clone(), run.share))
            .collect();
        let expected = [
            (0..4, 1.0),
            (4..6, 0.0),
            (6..8, 0.5),
            (8..12, 0.0),
            (12..18, 1.0),
            // No token has the end.
            (18..20, 0.0),
        ];
        assert_eq!(found, expected, "a character has its largest share");
        assert_eq!(earlier.mean_share(Some(0), &shares), Some(0.5));
        assert_eq!(earlier.mean_share(None, &shares), Some(3.5 / 6.0));
        assert_eq!(Earlier::of(&[]).mean_share(None, &shares), None);
    }
}
