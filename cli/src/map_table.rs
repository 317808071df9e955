//! How much of each part of a document a method keeps: page by page, or tenth by tenth, and turn by turn.

use std::ops::Range;

use kept_engine::Answer;
use kept_engine::documents::{Document, Page};

/// One line of the table: a page, or a tenth of a document without pages.
pub struct TableRow {
    /// `page 3`, `slide 3`, the part's share of the document, `20-30 %`, or `turn 1`.
    pub name: String,
    /// Mean share over the part's tokens, 0 to 1.
    pub mean: f32,
    /// Largest share in the part.
    pub max: f32,
}

/// Mean and largest share per page, or per tenth of the text.
pub fn table_rows(document: &Document, answer: &Answer) -> Vec<TableRow> {
    const PARTS: usize = 10;
    let length = document.text.len();
    if length == 0 {
        return Vec::new();
    }
    let of_page = |page: &Page| {
        let noun = document.page_noun_at(page.range.start);
        match document.part_of(page.range.start) {
            Some(part) => format!("{}, {noun} {}", part.document.name, page.number),
            None => format!("{noun} {}", page.number),
        }
    };
    let pages = document.pages.iter();
    let mut pages: Vec<_> = pages.map(|p| (of_page(p), p.range.clone())).collect();
    // Of several documents, each one without pages is one part.
    let without = document
        .parts
        .iter()
        .filter(|part| part.document.pages.is_empty());
    pages.extend(without.map(|part| (part.document.name.clone(), part.range.clone())));
    pages.sort_by_key(|(_, range)| range.start);
    let parts: Vec<(String, Range<usize>)> = if pages.is_empty() {
        (0..PARTS)
            .map(|i| {
                let range = length * i / PARTS..length * (i + 1) / PARTS;
                (
                    format!("{}-{} %", i * 100 / PARTS, (i + 1) * 100 / PARTS),
                    range,
                )
            })
            .collect()
    } else {
        pages
    };
    let (spans, shares) = (answer.prompt.spans(), answer.map.shares());
    let shares = &shares[answer.prompt.document.clone()];
    parts
        .into_iter()
        .map(|(name, part)| {
            let first = spans.partition_point(|span| span.end as usize <= part.start);
            let end = spans.partition_point(|span| (span.start as usize) < part.end);
            let shares = &shares[first..end.max(first)];
            let sum: f64 = shares.iter().copied().map(f64::from).sum();
            TableRow {
                name,
                mean: (sum / shares.len().max(1) as f64) as f32,
                max: shares.iter().copied().fold(0.0, f32::max),
            }
        })
        .collect()
}

/// Mean and largest share of each earlier turn that the model saw: of its question and answer.
pub fn turn_rows(answer: &Answer) -> Vec<TableRow> {
    let (prompt, shares) = (&answer.prompt, answer.map.shares());
    let said = prompt.earlier.positions.chunks(2).enumerate();
    said.map(|(turn, said)| TableRow {
        name: format!("turn {}", prompt.turns_left_out + turn + 1),
        mean: (prompt.earlier.mean_share(Some(turn), &shares)).unwrap_or_default(),
        max: (said.iter().cloned().flatten()).fold(0.0, |most, at| shares[at].max(most)),
    })
    .collect()
}

/// The table, with a bar per row.
pub fn table(document: &Document, answer: &Answer) -> String {
    let mut rows = table_rows(document, answer);
    rows.extend(turn_rows(answer));
    let width = rows.iter().map(|r| r.name.len()).max().unwrap_or(0).max(4);
    let mut out = format!("{:width$}  kept: mean   most\n", "part");
    for row in rows {
        let filled = (row.mean * 20.0).round() as usize;
        out += &format!(
            "{:>width$}       {:>4.0} %  {:>3.0} %  {}\n",
            row.name,
            row.mean * 100.0,
            row.max * 100.0,
            "█".repeat(filled)
        );
    }
    out
}
