//! A map as the page asks for it: one token with its page, and a table of pages or tenths.

use std::borrow::Cow;
use std::ops::Range;

use kept_engine::MapGrid;

use crate::contract::{LayerRow, TableRow, TokenSlots};
use crate::desk::OpenDocument;

/// Parts of a document without pages.
const PARTS: u64 = 10;

/// The token number `token`, if there is one.
pub fn token(map: &MapGrid, document: Option<&OpenDocument>, token: usize) -> Option<TokenSlots> {
    let slots = map.token(token)?;
    let start = slots.start16 as usize;
    Some(TokenSlots {
        start,
        end: slots.end16 as usize,
        kept: slots.kept,
        slots: slots.slots,
        per_layer: slots.per_layer,
        kv_heads: map.slots_per_cell(),
        tokens: map.tokens_per_cell(),
        page: document.and_then(|document| document.page_at(start)),
    })
}

/// A row for every page, or for every tenth of a document without pages; of all layers, or of one.
pub fn table(
    map: &MapGrid,
    document: Option<&OpenDocument>,
    layer: Option<usize>,
) -> Vec<TableRow> {
    let parts = parts(map, document);
    one_layer(map, layer)
        .table(&parts)
        .into_iter()
        .zip(&parts)
        .map(|(row, (_, range))| TableRow {
            name: row.name,
            start: range.start as usize,
            mean: row.mean,
            max: row.max,
        })
        .collect()
}

fn parts(map: &MapGrid, document: Option<&OpenDocument>) -> Vec<(String, Range<u32>)> {
    let unit = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
    match document {
        Some(document) if !document.pages.is_empty() => document
            .pages
            .iter()
            .map(|page| {
                let range = unit(page.start)..unit(page.end);
                (format!("page {}", page.number), range)
            })
            .collect(),
        _ => {
            let length = u64::from(map.ends16().last().copied().unwrap_or(0));
            let edge = |part: u64| (length * part / PARTS) as u32; // at most length, a u32
            (0..PARTS)
                .map(|part| {
                    let name = format!("{}-{} %", part * 10, (part + 1) * 10);
                    (name, edge(part)..edge(part + 1))
                })
                .filter(|(_, range)| !range.is_empty())
                .collect()
        }
    }
}

/// A row for every layer of the model. `windows` as in [`crate::contract::Turn::windows`]: empty where every layer was cut.
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

/// Mean share of a layer's slots over all tokens, once it has arrived.
fn mean(map: &MapGrid, layer: usize) -> Option<f32> {
    let plane = map.layer(layer)?;
    let slots = plane.len() * map.slots_per_cell();
    let kept: u64 = plane.iter().map(|&count| u64::from(count)).sum();
    Some((kept as f64 / slots.max(1) as f64) as f32)
}

/// The map with no layer but `layer`.
fn one_layer(map: &MapGrid, layer: Option<usize>) -> Cow<'_, MapGrid> {
    let Some(layer) = layer else {
        return Cow::Borrowed(map);
    };
    let (heads, per_cell) = (map.kv_heads(), map.tokens_per_cell());
    let mut one = MapGrid::of_cells(1, heads, per_cell, map.ends16().to_vec());
    if map.slots(Some(layer)) > 0 {
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
    fn an_empty_document_has_no_rows() {
        assert!(table(&MapGrid::new(1, 1, Vec::new()), None, None).is_empty());
        assert!(token(&map(), None, 20).is_none());
    }
}
