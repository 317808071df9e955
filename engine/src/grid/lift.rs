//! What a question changes in a map: the kept holders minus those that are kept for every question (the baseline).

use super::MapGrid;
use super::heads::share;

/// Questions that ask for nothing in particular. What a method keeps for all of them is kept for every question (the
/// baseline).
pub const NEUTRAL_QUESTIONS: [&str; 3] = [
    "What is this document about?",
    "Who wrote this, and why?",
    "How does the text end?",
];

/// Budgets for which a document is shown with less memory, in percent of the prompt.
pub const LEVELS: [u8; 13] = [2, 4, 6, 8, 10, 15, 20, 25, 30, 40, 50, 60, 75];

impl MapGrid {
    /// `[cells]`: share of the holders that keep each cell, 0 to 255 for 0 to 100 %. A nonzero share is at least 1.
    pub fn shares(&self) -> Vec<u8> {
        let holders = self.holders(None) as usize;
        let share = |&count: &u16| share(usize::from(count), holders);
        self.totals.iter().map(share).collect()
    }

    fn has_shape_of(&self, other: &Self) -> bool {
        self.layers() == other.layers()
            && self.kv_heads() == other.kv_heads()
            && self.tokens_per_cell() == other.tokens_per_cell()
            && self.ends16() == other.ends16()
    }

    /// The rounded mean of several maps of one document, model and method; `None` if there is none, or their shapes
    /// differ.
    pub fn mean_of(maps: &[Self]) -> Option<Self> {
        let (first, others) = maps.split_first()?;
        if !others.iter().all(|map| map.has_shape_of(first)) {
            return None;
        }
        let mut mean = first.clone();
        mean.masks.fill(None);
        for layer in 0..first.layers() {
            let planes: Option<Vec<&[u8]>> = maps.iter().map(|map| map.layer(layer)).collect();
            let planes = planes?;
            let of_cell = |cell: usize| {
                let sum: usize = planes.iter().map(|plane| usize::from(plane[cell])).sum();
                ((2 * sum + planes.len()) / (2 * planes.len())) as u8
            };
            let counts: Vec<u8> = (0..first.cells()).map(of_cell).collect();
            mean.set_layer(layer, &counts).ok()?;
        }
        Some(mean)
    }

    /// What is kept because of the question: the holders of each cell, minus those that `neutral` ([`Self::mean_of`]
    /// the
    /// [`NEUTRAL_QUESTIONS`]) keeps; over all layers the difference of the sums. `None` if the shapes differ.
    pub fn lift(&self, neutral: &Self) -> Option<Self> {
        if !self.has_shape_of(neutral) {
            return None;
        }
        let mut lift = self.clone();
        lift.masks.fill(None);
        for (plane, neutral) in lift.planes.iter_mut().zip(&neutral.planes) {
            if let (Some(plane), Some(neutral)) = (plane, neutral) {
                for (count, other) in plane.iter_mut().zip(neutral) {
                    *count = count.saturating_sub(*other);
                }
            }
        }
        for (total, other) in lift.totals.iter_mut().zip(&neutral.totals) {
            *total = total.saturating_sub(*other);
        }
        Some(lift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(layers: [[u8; 3]; 2]) -> MapGrid {
        let mut map = MapGrid::new(2, 4, vec![2, 5, 9]);
        for (layer, counts) in layers.iter().enumerate() {
            map.set_layer(layer, counts).expect("fits");
        }
        map
    }

    #[test]
    fn the_mean_is_rounded_and_lift_is_the_difference_of_sums() {
        let neutral = [map([[4, 0, 1], [0, 0, 4]]), map([[4, 1, 2], [1, 0, 4]])];
        let mean = MapGrid::mean_of(&neutral).expect("one shape");
        assert_eq!(mean, map([[4, 1, 2], [1, 0, 4]]), "halves are rounded up");
        let lift = map([[4, 4, 0], [0, 3, 4]]).lift(&mean).expect("one shape");
        assert_eq!(lift.counts(Some(0)), [0, 3, 0]);
        assert_eq!(lift.counts(Some(1)), [0, 3, 0]);
        assert_eq!(lift.counts(None), [0, 6, 0]);
        assert_eq!(lift.holders(None), 8);
        let same = mean.lift(&mean).expect("one shape");
        assert!(same.counts(None).iter().all(|&count| count == 0));
    }

    #[test]
    fn maps_of_other_shapes_have_no_lift() {
        let one = map([[1, 1, 1], [1, 1, 1]]);
        let other = MapGrid::new(2, 4, vec![2, 5]);
        assert_eq!(one.lift(&other), None);
        assert_eq!(MapGrid::mean_of(&[one.clone(), other]), None);
        assert_eq!(MapGrid::mean_of(&[]), None);
        let incomplete = MapGrid::new(2, 4, vec![2, 5, 9]);
        assert_eq!(MapGrid::mean_of(&[one, incomplete]), None);
    }
}
