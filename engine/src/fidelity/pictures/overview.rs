//! `overview.svg`: a table of all runs with a bar in every cell, followed by the answers.

use super::svg::{ACCENT, Anchor, HAIR, HEAD, INK, MARGIN, OTHER, QUIET, Svg, TRACK, shortened};
use super::{Drawn, longest};
use crate::fidelity::{MethodRun, Reference};

/// Height of a row.
const ROW: f64 = 24.0;
/// Width of a bar, and of a column that holds a bar and its number.
const BAR: f64 = 64.0;
const COLUMN: f64 = 132.0;
/// Minimum widths of the method and budget columns.
const METHOD: f64 = 150.0;
const BUDGET: f64 = 70.0;
/// Characters of an answer that are shown, and their width.
const ANSWER: usize = 46;
const ANSWER_WIDTH: f64 = 310.0;

/// A number in a cell and the filled share of its bar.
struct Cell {
    text: String,
    filled: Option<f64>,
    colour: &'static str,
}

fn share(value: Option<f64>) -> Cell {
    Cell {
        text: value.map_or("–".into(), |v| format!("{:.1} %", 100.0 * v)),
        filled: value,
        colour: ACCENT,
    }
}

/// Divergence spans orders of magnitude: the bar is empty at 0.0001 nats and full at 10.
fn divergence(kl: Option<f64>) -> Cell {
    Cell {
        text: kl.map_or("–".into(), |kl| format!("{kl:.4}")),
        filled: kl.map(|kl| ((kl.max(1e-4).log10() + 4.0) / 5.0).min(1.0)),
        colour: OTHER,
    }
}

/// Draws the table.
pub(super) fn overview(reference: &Reference, runs: &[Drawn<'_>]) -> String {
    let most = |value: fn(&MethodRun) -> f64| {
        let all = runs.iter().map(|drawn| value(drawn.run));
        all.fold(f64::MIN_POSITIVE, f64::max)
    };
    let slowest = most(|run| run.first_token_seconds);
    let fastest = most(|run| run.decode_tokens_per_second);
    let heads = [
        "KL to full (log)",
        "same top token",
        "attention recall",
        "cache",
        "first token",
        "tokens/s",
    ];
    let method = longest(runs).max(METHOD);
    let table = method + BUDGET + heads.len() as f64 * COLUMN;
    let width = 2.0 * MARGIN + table + ANSWER_WIDTH;
    let height = HEAD + 2.0 * MARGIN + 24.0 + (runs.len() + 1) as f64 * ROW;
    let subtitle = format!(
        "{} tokens read; next-token distributions along the full cache's answer of {} tokens",
        reference.prompt.len(),
        reference.answer_ids.len()
    );
    let mut svg = Svg::new(width, height, "Beside the full cache", &subtitle);
    let top = HEAD + MARGIN;
    svg.small(MARGIN, top, QUIET, Anchor::Start, "method");
    svg.small(
        MARGIN + method + BUDGET - 18.0,
        top,
        QUIET,
        Anchor::End,
        "budget",
    );
    for (i, head) in heads.iter().enumerate() {
        let x = MARGIN + method + BUDGET + i as f64 * COLUMN;
        svg.small(x, top, QUIET, Anchor::Start, head);
    }
    svg.small(MARGIN + table, top, QUIET, Anchor::Start, "answer");

    let mut y = top + 10.0;
    let right = width - MARGIN;
    let answer = |svg: &mut Svg, y: f64, text: &str, colour: &str| {
        let text = shortened(text, ANSWER);
        svg.text(MARGIN + table, y + 16.0, colour, Anchor::Start, &text);
    };
    svg.line((MARGIN, y), (right, y), HAIR);
    svg.heading(MARGIN, y + 16.0, Anchor::Start, "full cache");
    let cells = [
        None,
        None,
        None,
        Some(megabytes(reference.kv_bytes)),
        Some(format!("{:.2} s", reference.first_token_seconds)),
        Some(format!("{:.1}", reference.decode_tokens_per_second)),
    ];
    for (i, text) in cells.into_iter().enumerate() {
        let x = MARGIN + method + BUDGET + i as f64 * COLUMN;
        if let Some(text) = text {
            svg.text(x + BAR + 8.0, y + 16.0, QUIET, Anchor::Start, &text);
        }
    }
    answer(&mut svg, y, &reference.answer, INK);
    y += ROW;
    let mut last = "";
    for drawn in runs {
        let run = drawn.run;
        if drawn.method != last {
            svg.line((MARGIN, y), (right, y), HAIR);
            svg.heading(MARGIN, y + 16.0, Anchor::Start, drawn.method);
            last = drawn.method;
        }
        let at = MARGIN + method + BUDGET - 18.0;
        svg.text(at, y + 16.0, INK, Anchor::End, &drawn.budget);
        let fidelity = &run.fidelity;
        let neutral = |text: String, filled: f64| Cell {
            text,
            filled: Some(filled),
            colour: "#9aa5b1",
        };
        let cells = [
            divergence(fidelity.kl),
            share(fidelity.top1),
            share(fidelity.attention_recall),
            neutral(
                megabytes(run.kv_bytes),
                run.kv_bytes as f64 / reference.kv_bytes.max(1) as f64,
            ),
            neutral(
                format!("{:.2} s", run.first_token_seconds),
                run.first_token_seconds / slowest,
            ),
            neutral(
                format!("{:.1}", run.decode_tokens_per_second),
                run.decode_tokens_per_second / fastest,
            ),
        ];
        for (i, cell) in cells.iter().enumerate() {
            let x = MARGIN + method + BUDGET + i as f64 * COLUMN;
            if let Some(filled) = cell.filled {
                svg.rect(x, y + 8.0, BAR, 8.0, TRACK);
                svg.rect(x, y + 8.0, BAR * filled.min(1.0), 8.0, cell.colour);
            }
            svg.text(x + BAR + 8.0, y + 16.0, INK, Anchor::Start, &cell.text);
        }
        if run.same_answer {
            answer(&mut svg, y, "the same", QUIET)
        } else {
            answer(&mut svg, y, &run.answer, INK)
        }
        y += ROW;
    }
    svg.finish()
}

fn megabytes(bytes: u64) -> String {
    match bytes as f64 / 1048576.0 {
        m if m < 1.0 => format!("{:.0} KiB", m * 1024.0),
        m if m < 1024.0 => format!("{m:.1} MiB"),
        m => format!("{:.2} GiB", m / 1024.0),
    }
}
