//! Pictures of the selections: recall by layer, distribution of kept rows, similarity of layers.

use super::svg::{
    ACCENT, END, HAIR, HEAD, INK, MARGIN, MIDDLE, QUIET, START, Svg, TRACK, cividis, ink_on,
};
use super::{Drawn, longest};
use crate::fidelity::Reference;

/// Minimum width of the labels of a run, and the part of it for the budget.
const NAMES: f64 = 190.0;
const BUDGET: f64 = 70.0;
const ROW: f64 = 26.0;
/// Height of a colour scale under a heat map.
const SCALE: f64 = 44.0;

/// Width of the labels of these runs.
fn label_width(runs: &[Drawn<'_>]) -> f64 {
    (longest(runs) + BUDGET).max(NAMES)
}

fn label(svg: &mut Svg, y: f64, names: f64, drawn: &Drawn<'_>) {
    svg.text(MARGIN, y, INK, START, drawn.method);
    svg.text(MARGIN + names - 14.0, y, QUIET, END, &drawn.budget);
}

/// Draws a colour scale from 0 to 100 %.
fn draw_scale(svg: &mut Svg, x: f64, y: f64) {
    const STEPS: usize = 40;
    for step in 0..STEPS {
        let share = step as f64 / (STEPS - 1) as f64;
        svg.cell(x + step as f64 * 4.0, y, 4.2, 8.0, &cividis(share), "");
    }
    for (share, text) in [(0.0, "0 %"), (0.5, "50 %"), (1.0, "100 %")] {
        let at = x + share * STEPS as f64 * 4.0;
        svg.small(at, y + 21.0, QUIET, MIDDLE, text);
    }
}

/// `recall.svg`: a heat map, runs as rows, layers as columns.
pub(super) fn recall(runs: &[Drawn<'_>]) -> String {
    let per_layer = |drawn: &Drawn<'_>| drawn.run.fidelity.attention_recall_per_layer.clone();
    let layers = runs.iter().map(|d| per_layer(d).len()).max().unwrap_or(0);
    let cell = (720.0 / layers.max(1) as f64).clamp(10.0, 72.0);
    let names = label_width(runs);
    let width = (2.0 * MARGIN + names + cell * layers as f64 + 60.0).max(560.0);
    let height = HEAD + MARGIN + 20.0 + runs.len() as f64 * ROW + SCALE + MARGIN;
    let mut svg = Svg::new(
        width,
        height,
        "Attention recall by layer",
        "share of the full cache's attention, along its answer, on rows that the method still holds",
    );
    let (left, top) = (MARGIN + names, HEAD + MARGIN + 8.0);
    let every = (30.0 / cell).ceil().max(1.0) as usize;
    for layer in (0..layers).step_by(every) {
        let x = left + (layer as f64 + 0.5) * cell;
        svg.small(x, top - 8.0, QUIET, MIDDLE, &layer.to_string());
    }
    svg.small(left - 14.0, top - 8.0, QUIET, END, "layer");
    for (i, drawn) in runs.iter().enumerate() {
        let y = top + i as f64 * ROW;
        label(&mut svg, y + 17.0, names, drawn);
        for (layer, share) in per_layer(drawn).into_iter().enumerate() {
            let x = left + layer as f64 * cell;
            let says = format!(
                "{} {}, layer {layer}: {:.1} %",
                drawn.method,
                drawn.budget,
                100.0 * share
            );
            svg.cell(x, y, cell - 1.0, ROW - 1.0, &cividis(share), &says);
            if cell >= 30.0 {
                let text = format!("{:.0}", 100.0 * share);
                svg.small(x + cell / 2.0, y + 16.5, ink_on(share), MIDDLE, &text);
            }
        }
    }
    draw_scale(&mut svg, left, top + runs.len() as f64 * ROW + 16.0);
    svg.finish()
}

/// `positions.svg`: a histogram for each run, the prompt from left to right, with its entropy.
pub(super) fn positions(reference: &Reference, runs: &[Drawn<'_>]) -> String {
    const HIGH: f64 = 40.0;
    const WIDE: f64 = 640.0;
    let names = label_width(runs);
    let width = 2.0 * MARGIN + names + WIDE + 110.0;
    let height = HEAD + 2.0 * MARGIN + runs.len() as f64 * (HIGH + 12.0) + 30.0;
    let mut svg = Svg::new(
        width,
        height,
        "Where in the prompt the kept rows lie",
        "share of all kept rows, layers and heads together, by position; entropy as a share of the evenest spread",
    );
    let (left, mut y) = (MARGIN + names, HEAD + MARGIN);
    svg.small(left + WIDE + 24.0, y - 8.0, QUIET, START, "entropy");
    for drawn in runs {
        let figures = &drawn.run.indices;
        let bins = &figures.position_histogram;
        let highest = bins.iter().fold(f64::MIN_POSITIVE, |a, &b| a.max(b));
        let step = WIDE / bins.len().max(1) as f64;
        label(&mut svg, y + HIGH - 12.0, names, drawn);
        svg.rect(left, y, WIDE, HIGH, TRACK);
        for (i, share) in bins.iter().enumerate() {
            let high = HIGH * share / highest;
            svg.rect(
                left + i as f64 * step,
                y + HIGH - high,
                step - 1.0,
                high,
                ACCENT,
            );
        }
        let even = HIGH / (bins.len().max(1) as f64 * highest);
        svg.rule(left, left + WIDE, y + HIGH - even, QUIET);
        let entropy =
            figures.position_entropy / figures.position_entropy_most.max(f64::MIN_POSITIVE);
        let text = format!("{:.1} %", 100.0 * entropy);
        svg.text(left + WIDE + 24.0, y + HIGH - 12.0, INK, START, &text);
        y += HIGH + 12.0;
    }
    let n = reference.prompt.len();
    for quarter in 0..=4 {
        let x = left + WIDE * f64::from(quarter) / 4.0;
        let position = n * quarter as usize / 4;
        svg.small(x, y + 6.0, QUIET, MIDDLE, &position.to_string());
    }
    svg.small(
        left,
        y + 24.0,
        QUIET,
        START,
        "position; the line is an even spread",
    );
    svg.finish()
}

/// `similarity.svg`: for each run a heat map of layers by layers.
pub(super) fn similarity(runs: &[Drawn<'_>]) -> String {
    const SIDE: f64 = 132.0;
    const GAP: f64 = 34.0;
    // The budget is printed at the right edge of the square.
    let wide = (longest(runs) + BUDGET / 2.0).max(SIDE);
    let across = runs.len().clamp(1, 5);
    let down = runs.len().div_ceil(across);
    let width = (2.0 * MARGIN + across as f64 * (wide + GAP)).max(620.0);
    let height = HEAD + MARGIN + down as f64 * (SIDE + 62.0) + SCALE + MARGIN / 2.0;
    let mut svg = Svg::new(
        width,
        height,
        "How alike the layers choose",
        "Jaccard similarity of the kept positions of any two layers; below: mean of adjacent layers",
    );
    for (i, drawn) in runs.iter().enumerate() {
        let x = MARGIN + (i % across) as f64 * (wide + GAP);
        let y = HEAD + MARGIN + (i / across) as f64 * (SIDE + 62.0) + 10.0;
        svg.heading(x, y - 8.0, drawn.method);
        svg.small(x + wide, y - 8.0, QUIET, END, &drawn.budget);
        let matrix = &drawn.run.indices.layer_similarity;
        let cell = SIDE / matrix.len().max(1) as f64;
        for (a, row) in matrix.iter().enumerate() {
            for (b, &share) in row.iter().enumerate() {
                let says = format!("layers {a} and {b}: {:.1} %", 100.0 * share);
                let (x, y) = (x + b as f64 * cell, y + a as f64 * cell);
                svg.cell(x, y, cell + 0.2, cell + 0.2, &cividis(share), &says);
            }
        }
        let mean = drawn.run.indices.jaccard;
        let text = mean.map_or("one layer".into(), |m| format!("{:.1} %", 100.0 * m));
        svg.text(x, y + SIDE + 18.0, INK, START, &text);
        svg.rule(x, x + SIDE, y + SIDE + 28.0, HAIR);
    }
    let y = HEAD + MARGIN + down as f64 * (SIDE + 62.0) + 8.0;
    draw_scale(&mut svg, MARGIN + 10.0, y);
    svg.finish()
}
