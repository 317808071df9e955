//! Views of a map for the page: one token with its page, a table of pages or tenths, the earlier turns.

use std::borrow::Cow;
use std::ops::Range;

use kept_engine::{Earlier, MapGrid};

use crate::contract::{EarlierTurn, EarlierTurns, LayerRow, PageRange, TableRow, TokenSlots};
use crate::offsets::utf16_offsets;
use crate::state::{EarlierMap, OpenDocument};

/// Number of parts of a document without pages.
const PARTS: u64 = 10;

/// The token with index `token`, if it exists.
pub fn token(map: &MapGrid, document: Option<&OpenDocument>, token: usize) -> Option<TokenSlots> {
    let range = map.range16(token)?;
    let start = range.start as usize;
    let in_layer = |layer| map.layer(layer).map_or(0, |holders| holders[token]);
    let heads = |layer| map.heads_of(layer, token).unwrap_or_default();
    let known = (0..map.layers()).any(|layer| map.masks(layer).is_some());
    Some(TokenSlots {
        heads: if known {
            (0..map.layers()).map(heads).collect()
        } else {
            Vec::new()
        },
        start,
        end: range.end as usize,
        kept: u32::from(map.counts(None)[token]),
        slots: map.holders(None),
        per_layer: (0..map.layers()).map(in_layer).collect(),
        kv_heads: map.holders_per_cell(),
        tokens: map.tokens_per_cell(),
        page: document.and_then(|document| document.page_at(start)),
        document: document
            .and_then(|document| document.part_at(start))
            .map(|part| part.name.clone()),
    })
}

/// A row per page, or per tenth of a document without pages; over all layers, or over one.
pub fn table(
    map: &MapGrid,
    document: Option<&OpenDocument>,
    layer: Option<usize>,
) -> Vec<TableRow> {
    let shown = one_layer(map, layer);
    let row = |(name, range): (String, Range<u32>)| {
        let start = range.start as usize;
        let (mean, max) = shown.share_of(range);
        TableRow {
            name,
            start,
            mean,
            max,
        }
    };
    parts(map, document).into_iter().map(row).collect()
}

fn parts(map: &MapGrid, document: Option<&OpenDocument>) -> Vec<(String, Range<u32>)> {
    // The map of an earlier question does not cover a document that was added later.
    let length = map.ends16().last().copied().unwrap_or(0);
    let unit = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
    let noun = document.map_or("page", |document| &document.facts.page_noun);
    let pages = document.map_or(&[][..], |document| &document.facts.pages);
    let parts = document.map_or(&[][..], |document| &document.facts.documents);
    if parts.is_empty() {
        return pages_or_tenths(pages, 0..length, "", noun);
    }
    parts
        .iter()
        .filter(|part| unit(part.start) < length)
        .flat_map(|part| {
            let own: Vec<PageRange> = pages
                .iter()
                .filter(|page| page.start >= part.start && page.end <= part.end)
                .copied()
                .collect();
            let whole = unit(part.start)..unit(part.end).min(length);
            pages_or_tenths(&own, whole, &format!("{}, ", part.name), noun)
        })
        .collect()
}

/// The pages, or tenths of `whole` if there are none; each name is prefixed with `before`. `noun`: what pages are
/// called.
fn pages_or_tenths(
    pages: &[PageRange],
    whole: Range<u32>,
    before: &str,
    noun: &str,
) -> Vec<(String, Range<u32>)> {
    let unit = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
    if !pages.is_empty() {
        let page = |page: &PageRange| {
            let range = unit(page.start)..unit(page.end);
            (format!("{before}{noun} {}", page.number), range)
        };
        return pages.iter().map(page).collect();
    }
    let length = u64::from(whole.end.saturating_sub(whole.start));
    let edge = |part: u64| whole.start + (length * part / PARTS) as u32; // at most the end, a u32
    (0..PARTS)
        .map(|part| {
            let name = format!("{before}{}-{} %", part * 10, (part + 1) * 10);
            (name, edge(part)..edge(part + 1))
        })
        .filter(|(_, range)| !range.is_empty())
        .collect()
}

/// A row per layer of the model. `windows` is as in [`crate::contract::Turn::windows`]: empty if the method compressed
/// every layer.
pub fn layers(map: &MapGrid, windows: &[Option<usize>]) -> Vec<LayerRow> {
    let all = vec![None; map.layers()];
    let windows = if windows.is_empty() { &all } else { windows };
    let mut cut = 0;
    let row = |(index, &window): (usize, &Option<usize>)| {
        let layer = window.is_none().then(|| {
            cut += 1;
            cut - 1
        });
        LayerRow {
            number: index + 1,
            layer,
            window,
            mean: layer.and_then(|layer| mean(map, layer)),
        }
    };
    windows.iter().enumerate().map(row).collect()
}

/// The earlier turns; over all layers, or in one.
pub fn earlier(map: &EarlierMap, layer: Option<usize>) -> EarlierTurns {
    let Earlier { text, turns, .. } = Earlier::of(&map.texts.turns);
    let bytes: Vec<usize> = (turns.iter().flatten())
        .flat_map(|range| [range.start, range.end])
        .collect();
    let grid = one_layer(&map.grid, layer);
    let unit = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
    let units = utf16_offsets(&text, &bytes);
    let turns = units.as_chunks::<4>().0.iter().enumerate();
    EarlierTurns {
        turns: turns
            .map(|(index, &[from, asked, said, to])| EarlierTurn {
                number: map.texts.left_out + index + 1,
                question: [from, asked],
                answer: [said, to],
                kept: grid.share_of(unit(from)..unit(to)).0,
            })
            .collect(),
        text,
        ends: grid.ends16().to_vec(),
        counts: grid.counts(None),
        slots: grid.holders(None),
    }
}

/// Mean share of a layer's slots over all tokens; `None` until the layer has arrived.
fn mean(map: &MapGrid, layer: usize) -> Option<f32> {
    let plane = map.layer(layer)?;
    let slots = plane.len() * map.holders_per_cell();
    let kept: u64 = plane.iter().map(|&count| u64::from(count)).sum();
    Some((kept as f64 / slots.max(1) as f64) as f32)
}

/// The map reduced to `layer`, if given.
fn one_layer(map: &MapGrid, layer: Option<usize>) -> Cow<'_, MapGrid> {
    let Some(layer) = layer else {
        return Cow::Borrowed(map);
    };
    let (heads, per_cell) = (map.kv_heads(), map.tokens_per_cell());
    let mut one = MapGrid::of_cells(1, heads, per_cell, map.ends16().to_vec());
    if map.holders(Some(layer)) > 0 {
        let counts: Vec<u8> = map
            .counts(Some(layer))
            .into_iter()
            .map(|count| u8::try_from(count).unwrap_or(u8::MAX))
            .collect();
        if let Err(error) = one.set_layer(0, &counts) {
            tracing::error!(%error, layer, "a layer does not fit its own map");
        }
    }
    Cow::Owned(one)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kept_engine::documents::{Document, Page, Part};

    fn map() -> MapGrid {
        let ends = (1..=20).map(|token| token * 5).collect();
        let mut map = MapGrid::new(2, 2, ends);
        let mut first = vec![0; 20];
        first[3] = 2;
        map.set_layer(0, &first).expect("fits");
        map.set_layer(1, &[1; 20]).expect("fits");
        map
    }

    #[test]
    fn tenths_of_a_document_without_pages() {
        let rows = table(&map(), None, None);
        assert_eq!(rows.len(), 10);
        assert_eq!((rows[1].name.as_str(), rows[1].start), ("10-20 %", 10));
        assert_eq!(rows[1].max, 0.75);
        assert_eq!(rows[0].mean, 0.25);
    }

    #[test]
    fn of_several_documents_each_row_says_whose_it_is() {
        let info = crate::state::plain_text(String::new(), "");
        let part = |name: &str, start, end| Part {
            document: Document {
                name: name.to_owned(),
                ..info.clone()
            },
            range: start..end,
        };
        let info = Document {
            parts: vec![
                part("a.txt", 0, 50),
                part("b.pdf", 60, 90),
                part("late.txt", 110, 120),
            ],
            pages: vec![Page {
                number: 1,
                range: 60..90,
            }],
            ..info.clone()
        };
        let text: std::sync::Arc<str> = "x".repeat(120).into();
        let document = OpenDocument::new(1, info, text, false);
        let rows = table(&map(), Some(&document), None);
        let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!((names[0], names[9]), ("a.txt, 0-10 %", "a.txt, 90-100 %"));
        assert_eq!(
            names[10..],
            ["b.pdf, page 1"],
            "what came later is not in it"
        );
        let word = token(&map(), Some(&document), 12).expect("a token");
        assert_eq!(
            (word.document.as_deref(), word.page),
            (Some("b.pdf"), Some(1))
        );
        let between = token(&map(), Some(&document), 10).expect("a token");
        assert_eq!(between.document, None);
    }

    #[test]
    fn one_layer_alone() {
        let first = table(&map(), None, Some(0));
        assert_eq!((first[0].max, first[1].max), (0.0, 1.0));
        let second = table(&map(), None, Some(1));
        assert!(second.iter().all(|row| row.mean == 0.5 && row.max == 0.5));
        assert!(
            table(&map(), None, Some(9))
                .iter()
                .all(|row| row.max == 0.0)
        );
    }

    #[test]
    fn layers_that_are_not_cut_are_shown_as_what_they_hold() {
        let rows = layers(&map(), &[Some(512), None, Some(512), None]);
        let shown: Vec<_> = rows.iter().map(|r| (r.number, r.layer, r.window)).collect();
        assert_eq!(
            shown,
            [
                (1, None, Some(512)),
                (2, Some(0), None),
                (3, None, Some(512)),
                (4, Some(1), None)
            ]
        );
        assert_eq!((rows[0].mean, rows[1].mean), (None, Some(0.05)));
        assert_eq!(rows[3].mean, Some(0.5));
        let rows = layers(&map(), &[]);
        assert_eq!(rows.len(), 2, "every layer is cut");
        let empty = MapGrid::new(3, 2, vec![5]);
        assert!(layers(&empty, &[]).iter().all(|row| row.mean.is_none()));
    }

    #[test]
    fn earlier_turns_have_their_places_and_shares() {
        use crate::state::EarlierTexts;
        let said = |question: &str, answer: &str| kept_engine::Turn {
            question: question.to_owned(),
            answer: answer.to_owned(),
        };
        // "Wié?" and "Da 😀." with an empty line between, "Ja?" and "No".
        let mut grid = MapGrid::new(2, 2, vec![4, 8, 12, 17, 21]);
        grid.set_layer(0, &[2, 2, 2, 0, 1]).expect("fits");
        grid.set_layer(1, &[2, 2, 2, 0, 0]).expect("fits");
        let map = EarlierMap {
            texts: EarlierTexts {
                turns: vec![said("Wi\u{e9}?", "Da \u{1f600}."), said("Ja?", "No")],
                left_out: 3,
            },
            grid,
        };
        let whole = earlier(&map, None);
        assert_eq!(whole.text, "Wi\u{e9}?\n\nDa \u{1f600}.\n\nJa?\n\nNo");
        let turn = |number, question, answer, kept| EarlierTurn {
            number,
            question,
            answer,
            kept,
        };
        assert_eq!(
            whole.turns,
            [
                turn(4, [0, 4], [6, 12], 1.0),
                turn(5, [14, 17], [19, 21], 0.125)
            ]
        );
        assert_eq!((whole.slots, &*whole.counts), (4, &[4, 4, 4, 0, 1][..]));
        let second = earlier(&map, Some(1));
        assert_eq!((second.slots, second.turns[1].kept), (2, 0.0));
    }

    #[test]
    fn an_empty_document_has_no_rows() {
        assert!(table(&MapGrid::new(1, 1, Vec::new()), None, None).is_empty());
        assert!(token(&map(), None, 20).is_none());
    }
}
