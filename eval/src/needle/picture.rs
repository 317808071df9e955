//! The needle grid as a picture: a small heat map for every method and budget, lengths as columns, depths as rows.

use crate::fidelity::pictures::svg::{
    HAIR, HEAD, INK, MARGIN, MIDDLE, QUIET, START, Svg, TRACK, cividis, ink_on, width_for,
};

/// Results of one method at one budget.
#[derive(Debug, Clone, PartialEq)]
pub struct NeedleGrid {
    /// The method's label.
    pub method: String,
    /// The budget, as the user entered it; empty for the full cache.
    pub budget: String,
    /// `[depths][lengths]`: the results.
    pub cells: Vec<Vec<NeedleCell>>,
}

/// Results of one length and depth. Questions whose budget the method refused are not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NeedleCell {
    /// Questions answered right.
    pub right: u32,
    /// Questions asked.
    pub asked: u32,
}

impl NeedleCell {
    /// Share of right answers; `None` without questions.
    pub fn share(self) -> Option<f64> {
        (self.asked > 0).then(|| f64::from(self.right) / f64::from(self.asked))
    }

    /// The 95 % confidence interval of the share (Wilson), if questions are independent samples.
    pub fn interval(self) -> Option<(f64, f64)> {
        let share = self.share()?;
        let (n, z) = (f64::from(self.asked), 1.96f64);
        let middle = (share + z * z / (2.0 * n)) / (1.0 + z * z / n);
        let spread = (share * (1.0 - share) / n + z * z / (4.0 * n * n)).sqrt();
        let half = z * spread / (1.0 + z * z / n);
        Some(((middle - half).max(0.0), (middle + half).min(1.0)))
    }
}

impl NeedleGrid {
    /// The sum of all cells.
    pub fn whole(&self) -> NeedleCell {
        let cells = self.cells.iter().flatten();
        cells.fold(NeedleCell::default(), |sum, cell| NeedleCell {
            right: sum.right + cell.right,
            asked: sum.asked + cell.asked,
        })
    }

    /// Share of right answers over all cells; `None` without questions.
    pub fn mean(&self) -> Option<f64> {
        self.whole().share()
    }
}

const CELL: (f64, f64) = (38.0, 17.0);
const NAMES: f64 = 130.0;
const GAP: f64 = 26.0;

/// Draws the picture: methods as rows, budgets as columns. `title` names the measurement.
pub fn needle_picture(
    title: &str,
    grids: &[NeedleGrid],
    budgets: &[String],
    lengths: &[usize],
    depths: &[f64],
) -> String {
    let mut methods: Vec<&str> = Vec::new();
    for grid in grids {
        if !methods.contains(&grid.method.as_str()) {
            methods.push(&grid.method);
        }
    }
    let names = (width_for(methods.iter().copied()) + 20.0).max(NAMES);
    let (wide, high) = (lengths.len() as f64 * CELL.0, depths.len() as f64 * CELL.1);
    let width = 2.0 * MARGIN + names + budgets.len() as f64 * (wide + GAP) + 20.0;
    let height = HEAD + 2.0 * MARGIN + 24.0 + methods.len() as f64 * (high + GAP);
    let subtitle = "share of right answers in %; in every block depth from the beginning (top) to the end, length from left to right";
    let mut svg = Svg::new(width.max(700.0), height, title, subtitle);
    let (left, top) = (MARGIN + names, HEAD + MARGIN + 24.0);
    for (i, budget) in budgets.iter().enumerate() {
        let x = left + i as f64 * (wide + GAP);
        let text = format!("budget {budget}");
        svg.heading(x, top - 24.0, &text);
        for (l, length) in lengths.iter().enumerate() {
            let x = x + (l as f64 + 0.5) * CELL.0;
            svg.small(x, top - 7.0, QUIET, MIDDLE, &length.to_string());
        }
    }
    for (m, method) in methods.iter().enumerate() {
        let y = top + m as f64 * (high + GAP);
        svg.heading(MARGIN, y + 14.0, method);
        svg.rule(MARGIN, MARGIN + names - 20.0, y - 4.0 - GAP / 4.0, HAIR);
        for grid in grids.iter().filter(|grid| grid.method == *method) {
            // The full cache has no budget: it is drawn in the first column.
            let column = budgets.iter().position(|b| *b == grid.budget).unwrap_or(0);
            let x = left + column as f64 * (wide + GAP);
            for (d, row) in grid.cells.iter().enumerate() {
                for (l, cell) in row.iter().enumerate() {
                    let (x, y) = (x + l as f64 * CELL.0, y + d as f64 * CELL.1);
                    let says = format!("{} tokens, depth {:.0} %", lengths[l], 100.0 * depths[d]);
                    let Some(share) = cell.share() else {
                        svg.cell(x, y, CELL.0 - 1.0, CELL.1 - 1.0, TRACK, &says);
                        continue;
                    };
                    svg.cell(x, y, CELL.0 - 1.0, CELL.1 - 1.0, &cividis(share), &says);
                    let text = format!("{:.0}", 100.0 * share);
                    let (x, y) = (x + CELL.0 / 2.0, y + 12.0);
                    svg.small(x, y, ink_on(share), MIDDLE, &text);
                }
            }
            let mean = grid.whole().interval().zip(grid.mean());
            let mean = mean.map_or("refused".into(), |((low, high), mean)| {
                let [mean, low, high] = [mean, low, high].map(|share| 100.0 * share);
                format!("mean {mean:.0} % ({low:.0} to {high:.0})")
            });
            svg.small(x, y + high + 12.0, INK, START, &mean);
        }
    }
    svg.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wilson_interval_holds_the_share_and_narrows() {
        let of = |right, asked| NeedleCell { right, asked }.interval().expect("asked");
        // Wilson's interval of 8 in 10, from published tables.
        let (low, high) = of(8, 10);
        assert!((low - 0.490).abs() < 1e-3 && (high - 0.943).abs() < 1e-3);
        assert_eq!(of(0, 4).0, 0.0);
        assert!(of(4, 4).1 == 1.0 && of(4, 4).0 > 0.5);
        let (low_of_many, high_of_many) = of(80, 100);
        assert!(low_of_many > low && high_of_many < high);
        assert_eq!(NeedleCell::default().interval(), None);
    }
}
