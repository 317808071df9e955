//! Shares of a range of text. A range counts by tokens, as the whole map does: its share is the mean over the tokens in
//! it. `shareIn` of the app's page computes the same; `shares.json` there has cases for both.

use std::ops::Range;

use super::MapGrid;

impl MapGrid {
    /// Mean share of holders over the tokens with text in `range16`, and the largest share of one, 0 to 1. In very long
    /// documents over cells.
    pub fn share_of(&self, range16: Range<u32>) -> (f32, f32) {
        let holders = self.holders(None);
        let counts = &self.totals[self.cells_in(range16)];
        if holders == 0 || counts.is_empty() {
            return (0.0, 0.0);
        }
        let sum: u64 = counts.iter().map(|&count| u64::from(count)).sum();
        let most = counts.iter().max().copied().unwrap_or(0);
        let share = |sum: f64, holders: f64| (sum / holders).min(1.0) as f32;
        let holders = f64::from(holders);
        (
            share(sum as f64, counts.len() as f64 * holders),
            share(f64::from(most), holders),
        )
    }

    /// The cells with text in `range16`. Zero-width cells belong to the character that the next cell completes.
    fn cells_in(&self, range16: Range<u32>) -> Range<usize> {
        if range16.is_empty() {
            return 0..0;
        }
        let mut first = self.ends16.partition_point(|&end| end <= range16.start);
        let end = self.ends16.partition_point(|&end| end < range16.end) + 1;
        let end = end.min(self.cells());
        let is_empty = |cell: usize| self.range16(cell).is_some_and(|range| range.is_empty());
        while first > 0 && first < end && is_empty(first - 1) {
            first -= 1;
        }
        first..end
    }
}
