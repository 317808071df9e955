//! A map as the page asks for it: one token with its page, and a table of pages or tenths.

use std::borrow::Cow;
use std::ops::Range;

use kept_engine::MapGrid;

use crate::contract::{TableRow, TokenSlots};
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
        kv_heads: map.kv_heads(),
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

/// The map with no layer but `layer`.
fn one_layer(map: &MapGrid, layer: Option<usize>) -> Cow<'_, MapGrid> {
    let Some(layer) = layer else {
        return Cow::Borrowed(map);
    };
    let mut one = MapGrid::new(1, map.kv_heads(), map.ends16().to_vec());
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
    fn an_empty_document_has_no_rows() {
        assert!(table(&MapGrid::new(1, 1, Vec::new()), None, None).is_empty());
        assert!(token(&map(), None, 20).is_none());
    }
}
