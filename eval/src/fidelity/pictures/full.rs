//! Pictures of the full cache: sparsity and redundancy of its heads, and the change of its signal along the text.

use super::svg::{ACCENT, END, HAIR, HEAD, INK, MARGIN, MIDDLE, OTHER, QUIET, START, Svg};
use crate::fidelity::heads::{HeadFigures, SCORE_SHARE, SIMILAR};
use crate::fidelity::wavelet::WaveletFigures;

/// Size of a plot, and the width of its axis.
const WIDE: f64 = 760.0;
const HIGH: f64 = 260.0;
const AXIS: f64 = 64.0;

/// `heads.svg`: two bars for every KV head, layer by layer.
pub(super) fn heads(layers: &[Vec<HeadFigures>]) -> String {
    let heads: usize = layers.iter().map(Vec::len).sum();
    let slots = (heads + layers.len()).max(1) as f64;
    // Ten heads need no wide page; a thousand need a wider one.
    let step = (WIDE / slots).clamp(3.0, 46.0);
    let wide = step * slots;
    let width = (2.0 * MARGIN + AXIS + wide).max(640.0);
    let subtitle = format!(
        "of the full cache: share of tokens beyond those that hold {:.0} % of the score, share with a likeness of {SIMILAR} or more before them",
        100.0 * SCORE_SHARE
    );
    let height = HEAD + HIGH + 3.0 * MARGIN + 30.0;
    let mut svg = Svg::new(
        width,
        height,
        "Sparsity and redundancy of every head",
        &subtitle,
    );
    let (left, top) = (MARGIN + AXIS, HEAD + MARGIN);
    percent_axis(&mut svg, left, top, wide);
    let mut x = left + step / 2.0;
    for (layer, figures) in layers.iter().enumerate() {
        let begin = x;
        for figures in figures {
            let bar = (step * 0.42).max(1.0);
            for (i, (share, colour)) in [(figures.sparsity, ACCENT), (figures.redundancy, OTHER)]
                .into_iter()
                .enumerate()
            {
                let high = HIGH * share;
                let at = x + i as f64 * bar;
                svg.rect(at, top + HIGH - high, bar - 0.5, high, colour);
            }
            x += step;
        }
        let every = (44.0 / (step * figures.len().max(1) as f64)).ceil() as usize;
        if layer % every.max(1) == 0 {
            let text = if layer == 0 {
                "layer 0".to_owned()
            } else {
                layer.to_string()
            };
            svg.small(
                (begin + x) / 2.0 - step * 0.08,
                top + HIGH + 18.0,
                QUIET,
                MIDDLE,
                &text,
            );
        }
        x += step;
    }
    let y = top + HIGH + 42.0;
    for (x, colour, text) in [
        (left, ACCENT, "sparsity"),
        (left + 110.0, OTHER, "redundancy"),
    ] {
        svg.rect(x, y - 9.0, 10.0, 10.0, colour);
        svg.text(x + 16.0, y, INK, START, text);
    }
    svg.finish()
}

fn percent_axis(svg: &mut Svg, left: f64, top: f64, wide: f64) {
    for quarter in 0..=4 {
        let y = top + HIGH * (1.0 - f64::from(quarter) / 4.0);
        svg.rule(left, left + wide, y, HAIR);
        let text = format!("{} %", 25 * quarter);
        svg.small(left - 10.0, y + 4.0, QUIET, END, &text);
    }
}

/// `wavelet.svg`: one curve per level over the positions, on a logarithmic scale.
pub(super) fn wavelet(figures: &WaveletFigures) -> String {
    const COLOURS: [&str; 5] = ["#c8623f", "#d89a3a", "#5f9e6e", "#2f6fb3", "#5b4a9b"];
    let width = 2.0 * MARGIN + AXIS + WIDE + 150.0;
    let height = HEAD + HIGH + 3.0 * MARGIN + 24.0;
    let subtitle = "mean magnitude of attention times value that is left of each scale alone, along the text (Haar, last query)";
    let mut svg = Svg::new(width, height, "What changes from token to token", subtitle);
    let (left, top) = (MARGIN + AXIS, HEAD + MARGIN);
    let seen = || {
        figures
            .levels
            .iter()
            .flatten()
            .copied()
            .filter(|m| *m > 0.0)
    };
    let highest = seen().fold(f64::MIN_POSITIVE, f64::max).log10().ceil();
    let lowest = seen().fold(f64::MAX, f64::min).log10().floor();
    let lowest = lowest.max(highest - 6.0).min(highest - 1.0);
    let height_of = |magnitude: f64| {
        let log = magnitude
            .max(f64::MIN_POSITIVE)
            .log10()
            .clamp(lowest, highest);
        top + HIGH * (highest - log) / (highest - lowest)
    };
    for power in lowest as i32..=highest as i32 {
        let y = height_of(10f64.powi(power));
        svg.rule(left, left + WIDE, y, HAIR);
        svg.small(left - 10.0, y + 4.0, QUIET, END, &format!("1e{power}"));
    }
    let points = figures.levels.first().map_or(0, Vec::len).max(1);
    let x_of = |point: f64| left + WIDE * point / points as f64;
    // Labels at the ends of the curves, moved apart where they would overlap.
    let mut labels: Vec<(f64, usize)> = Vec::new();
    for (level, magnitudes) in figures.levels.iter().enumerate() {
        let curve: Vec<(f64, f64)> = magnitudes
            .iter()
            .enumerate()
            .map(|(i, m)| (x_of(i as f64 + 0.5), height_of(*m)))
            .collect();
        svg.curve(&curve, COLOURS[level % COLOURS.len()]);
        labels.push((curve.last().map_or(top, |p| p.1), level));
    }
    labels.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut lowest_free = f64::MIN;
    for (y, level) in labels {
        let y = y.max(lowest_free);
        lowest_free = y + 15.0;
        let text = format!("level {}: {} tokens", level + 1, 2 << level);
        let colour = COLOURS[level % COLOURS.len()];
        svg.text(left + WIDE + 12.0, y + 4.0, colour, START, &text);
    }
    let end = figures.tokens - figures.first;
    for quarter in 0..=4 {
        let point = points as f64 * f64::from(quarter) / 4.0;
        let position = figures.first as f64 + point * figures.positions_per_point as f64;
        let x = x_of(point);
        let text = (position as usize).min(end).to_string();
        svg.small(x, top + HIGH + 18.0, QUIET, MIDDLE, &text);
    }
    let words = match figures.first {
        0 => "position".to_owned(),
        margin => format!("position; the first {margin} and the last are left out"),
    };
    svg.small(left, top + HIGH + 38.0, QUIET, START, &words);
    svg.finish()
}
