//! `overview.svg`: a table of all runs with a bar in every cell, followed by the answers.

use super::svg::{
    ACCENT, END, HAIR, HEAD, INK, MARGIN, OTHER, QUIET, START, Svg, TRACK, shortened,
};
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

/// A value with a grey bar.
fn neutral(text: String, filled: f64) -> Cell {
    Cell {
        text,
        filled: Some(filled),
        colour: "#9aa5b1",
    }
}

/// The table under construction, row by row.
struct Table {
    svg: Svg,
    /// Left edges of the first column with a bar, and of the answers.
    bars: f64,
    answers: f64,
    right: f64,
    /// Top of the current row.
    y: f64,
}

impl Table {
    /// A line above the row, and its method.
    fn heading(&mut self, method: &str) {
        self.svg.rule(MARGIN, self.right, self.y, HAIR);
        self.svg.heading(MARGIN, self.y + 16.0, method);
    }

    fn text(&mut self, x: f64, colour: &str, anchor: &str, text: &str) {
        self.svg.text(x, self.y + 16.0, colour, anchor, text);
    }

    /// The number of a column with a bar.
    fn number(&mut self, column: usize, colour: &str, text: &str) {
        let x = self.bars + column as f64 * COLUMN;
        self.text(x + BAR + 8.0, colour, START, text);
    }

    fn cell(&mut self, column: usize, cell: &Cell) {
        let (x, y) = (self.bars + column as f64 * COLUMN, self.y + 8.0);
        if let Some(filled) = cell.filled {
            self.svg.rect(x, y, BAR, 8.0, TRACK);
            self.svg.rect(x, y, BAR * filled.min(1.0), 8.0, cell.colour);
        }
        self.number(column, INK, &cell.text);
    }

    /// The answer, which ends the row.
    fn answer(&mut self, colour: &str, text: &str) {
        let text = shortened(text, ANSWER);
        self.text(self.answers, colour, START, &text);
        self.y += ROW;
    }
}

/// Draws the table.
pub(super) fn overview(reference: &Reference, runs: &[Drawn<'_>]) -> String {
    let mut table = header(reference, runs);
    table.heading("full cache");
    let cells = [
        megabytes(reference.report.kv_bytes),
        format!("{:.2} s", reference.report.first_token_seconds),
        format!("{:.1}", reference.report.decode_tokens_per_second),
    ];
    for (column, text) in (3..).zip(&cells) {
        table.number(column, QUIET, text);
    }
    table.answer(INK, &reference.report.answer);

    let most = |value: fn(&MethodRun) -> f64| {
        let all = runs.iter().map(|drawn| value(drawn.run));
        all.fold(f64::MIN_POSITIVE, f64::max)
    };
    let slowest = most(|run| run.first_token_seconds);
    let fastest = most(|run| run.decode_tokens_per_second);
    let mut last = "";
    for drawn in runs {
        let run = drawn.run;
        if drawn.method != last {
            table.heading(drawn.method);
            last = drawn.method;
        }
        table.text(table.bars - 18.0, INK, END, &drawn.budget);
        let fidelity = &run.fidelity;
        let cells = [
            divergence(fidelity.kl),
            share(fidelity.top1),
            share(fidelity.attention_recall),
            neutral(
                megabytes(run.kv_bytes),
                run.kv_bytes as f64 / reference.report.kv_bytes.max(1) as f64,
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
        for (column, cell) in cells.iter().enumerate() {
            table.cell(column, cell);
        }
        if run.same_answer {
            table.answer(QUIET, "the same");
        } else {
            table.answer(INK, &run.answer);
        }
    }
    table.svg.finish()
}

/// The empty table: the picture's title and the names of the columns.
fn header(reference: &Reference, runs: &[Drawn<'_>]) -> Table {
    let columns = [
        "KL to full (log)",
        "same top token",
        "attention recall",
        "cache",
        "first token",
        "tokens/s",
    ];
    let method = longest(runs).max(METHOD);
    let table = method + BUDGET + columns.len() as f64 * COLUMN;
    let width = 2.0 * MARGIN + table + ANSWER_WIDTH;
    let height = HEAD + 2.0 * MARGIN + 24.0 + (runs.len() + 1) as f64 * ROW;
    let subtitle = format!(
        "{} tokens read; next-token distributions along the full cache's answer of {} tokens",
        reference.prompt.len(),
        reference.answer_ids.len()
    );
    let mut svg = Svg::new(width, height, "Beside the full cache", &subtitle);
    let (bars, answers, y) = (MARGIN + method + BUDGET, MARGIN + table, HEAD + MARGIN);
    svg.small(MARGIN, y, QUIET, START, "method");
    svg.small(bars - 18.0, y, QUIET, END, "budget");
    for (i, column) in columns.iter().enumerate() {
        let x = bars + i as f64 * COLUMN;
        svg.small(x, y, QUIET, START, column);
    }
    svg.small(answers, y, QUIET, START, "answer");
    Table {
        svg,
        bars,
        answers,
        right: width - MARGIN,
        y: y + 10.0,
    }
}

fn megabytes(bytes: u64) -> String {
    match bytes as f64 / 1048576.0 {
        m if m < 1.0 => format!("{:.0} KiB", m * 1024.0),
        m if m < 1024.0 => format!("{m:.1} MiB"),
        m => format!("{:.2} GiB", m / 1024.0),
    }
}
