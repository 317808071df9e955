//! Figures over ranges of text: shares of a range, the table of pages.

use std::ops::Range;

use super::MapGrid;

/// One row of a table: how much of a part of the document is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct TableRow {
    /// Name of the part.
    pub name: String,
    /// Mean share of slots over the part's text, 0 to 1.
    pub mean: f32,
    /// The largest share in the part.
    pub max: f32,
}

/// A range of text whose characters have the same count: one cell together with the zero-width cells before it.
struct Piece {
    range: Range<u64>,
    /// Slots that keep the piece.
    kept: u32,
}

impl MapGrid {
    /// Mean share of slots over the text in `range16`, and the largest share in it, 0 to 1.
    pub fn share_of(&self, range16: Range<u32>) -> (f32, f32) {
        let slots = self.slots(None);
        let range = u64::from(range16.start)..u64::from(range16.end);
        if slots == 0 || range.is_empty() {
            return (0.0, 0.0);
        }
        let first = self.ends16.partition_point(|&end| end <= range16.start);
        let (mut sum, mut most) = (0u64, 0);
        for piece in self
            .pieces(first)
            .take_while(|piece| piece.range.start < range.end)
        {
            let overlap = piece.range.end.min(range.end) - piece.range.start.max(range.start);
            sum += overlap * u64::from(piece.kept);
            most = most.max(piece.kept);
        }
        let mean = sum as f64 / ((range.end - range.start) as f64 * f64::from(slots));
        (
            mean as f32,
            (f64::from(most) / f64::from(slots)).min(1.0) as f32,
        )
    }

    /// [`MapGrid::share_of`] for named parts of the document.
    pub fn table(&self, parts: &[(String, Range<u32>)]) -> Vec<TableRow> {
        parts
            .iter()
            .map(|(name, range)| {
                let (mean, max) = self.share_of(range.clone());
                TableRow {
                    name: name.clone(),
                    mean,
                    max,
                }
            })
            .collect()
    }

    /// The pieces, starting with the piece that ends with cell `first`; `first` must have nonzero width if it exists.
    fn pieces(&self, first: usize) -> impl Iterator<Item = Piece> + '_ {
        let width = |cell: usize| self.range16(cell).is_some_and(|range| !range.is_empty());
        let mut cell = first;
        while cell > 0 && !width(cell - 1) {
            cell -= 1;
        }
        std::iter::from_fn(move || {
            let mut kept = 0;
            loop {
                let range = self.range16(cell)?;
                kept = kept.max(u32::from(self.totals[cell]));
                cell += 1;
                if !range.is_empty() {
                    return Some(Piece {
                        range: u64::from(range.start)..u64::from(range.end),
                        kept,
                    });
                }
            }
        })
    }
}
