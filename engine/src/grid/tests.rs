//! The map compared with a naive implementation, on random maps; characters of several tokens; invalid bytes.

use super::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// A random map, and for each token the range of the character that it completes or begins, or of its text, with the
/// kept holders of all layers.
fn drawn(random: &mut StdRng) -> (MapGrid, Vec<(Range<u32>, u32)>) {
    let layers = random.random_range(1..4);
    let kv_heads = random.random_range(1..5);
    let tokens = random.random_range(0..30);
    let mut end = 0;
    let mut ends16 = Vec::new();
    for token in 0..tokens {
        // The last token completes its character.
        let least = u32::from(token + 1 == tokens);
        end += random.random_range(least..4);
        ends16.push(end);
    }
    let mut grid = MapGrid::new(layers, kv_heads, ends16.clone());
    let mut planes = vec![vec![0u8; tokens]; layers];
    for (layer, plane) in planes.iter_mut().enumerate() {
        if random.random_bool(0.8) {
            // Twice: the second call replaces the layer.
            for _ in 0..2 {
                plane.fill_with(|| {
                    if random.random_bool(0.3) {
                        random.random_range(0..=kv_heads as u8)
                    } else {
                        0
                    }
                });
                grid.set_layer(layer, plane).unwrap();
            }
        }
    }
    let mut start = 0;
    let of_token = |token: usize| {
        let kept = planes.iter().map(|plane| u32::from(plane[token])).sum();
        let end = (ends16[token..].iter().copied().find(|&end| end > start)).unwrap_or(start);
        let range = start..end;
        start = ends16[token];
        (range, kept)
    };
    (grid, (0..tokens).map(of_token).collect())
}

#[test]
fn shares_match_a_plain_computation() {
    let mut random = StdRng::seed_from_u64(3);
    for _ in 0..400 {
        let (grid, tokens) = drawn(&mut random);
        let length = tokens.last().map_or(0, |(range, _)| range.end);
        let holders = f64::from(grid.holders(None).max(1));
        let start = random.random_range(0..=length);
        let end = random.random_range(start..=length);
        let inside = |range: &Range<u32>| range.start < end && start < range.end && start < end;
        let kept = tokens.iter().filter(|(range, _)| inside(range));
        let kept: Vec<u32> = kept.map(|&(_, kept)| kept).collect();
        let mean = f64::from(kept.iter().sum::<u32>()) / kept.len().max(1) as f64 / holders;
        let max = f64::from(kept.iter().copied().max().unwrap_or(0)) / holders;
        let found = grid.share_of(start..end);
        assert!((f64::from(found.0) - mean).abs() < 1e-6, "{found:?} {mean}");
        assert!((f64::from(found.1) - max).abs() < 1e-6, "{found:?} {max}");
    }
}

/// The same cases as for the app's page.
#[test]
fn shares_are_those_of_the_page() {
    #[derive(serde::Deserialize)]
    struct Case {
        ends: Vec<u32>,
        counts: Vec<u8>,
        heads: usize,
        /// From, to, mean, largest count.
        ranges: Vec<(u32, u32, f32, u8)>,
    }
    let cases = include_str!("../../../ui/test/shares.json");
    let cases: Vec<Case> = serde_json::from_str(cases).expect("cases");
    for case in cases {
        let mut grid = MapGrid::new(1, case.heads, case.ends);
        grid.set_layer(0, &case.counts).expect("fits");
        for (from, to, mean, most) in case.ranges {
            let most = f32::from(most) / case.heads as f32;
            assert_eq!(grid.share_of(from..to), (mean, most), "{from}..{to}");
        }
    }
}

#[test]
fn counts_sum_the_layers_received_so_far() {
    let mut grid = MapGrid::new(3, 2, vec![1, 2, 5]);
    assert_eq!((grid.layers_done(), grid.holders(None)), (0, 0));
    assert_eq!(grid.share_of(0..5), (0.0, 0.0));
    grid.set_layer(1, &[2, 0, 1]).unwrap();
    assert_eq!((grid.layers_done(), grid.holders(None)), (1, 2));
    assert_eq!(
        grid.share_of(0..1),
        (1.0, 1.0),
        "of the layers that are there"
    );
    grid.set_layer(2, &[0, 0, 2]).unwrap();
    assert_eq!(grid.counts(None), [2, 0, 3]);
    assert_eq!(grid.counts(Some(1)), [2, 0, 1]);
    assert_eq!(grid.counts(Some(0)), [0, 0, 0]);
    assert_eq!((grid.holders(Some(1)), grid.holders(Some(0))), (2, 0));
    assert_eq!((grid.range16(2), grid.range16(3)), (Some(2..5), None));
    assert_eq!(grid.layer(0), None);
    assert_eq!(grid.layer(2), Some(&[0, 0, 2][..]));
}

#[test]
fn invalid_layer_is_refused_without_change() {
    let mut grid = MapGrid::new(1, 2, vec![1, 2]);
    grid.set_layer(0, &[1, 2]).unwrap();
    let before = grid.clone();
    assert!(grid.set_layer(1, &[0, 0]).is_err());
    assert!(grid.set_layer(0, &[0]).is_err());
    assert!(grid.set_layer(0, &[0, 3]).is_err());
    assert_eq!(grid, before);
}

#[test]
fn ends16_counts_utf16_units_at_split_characters() {
    let spans = |ends: &[u32]| -> Vec<Range<u32>> {
        let mut start = 0;
        ends.iter()
            .map(|&end| std::mem::replace(&mut start, end)..end)
            .collect()
    };
    assert_eq!(ends16("aé😀b", &spans(&[1, 3, 5, 7, 8])), [1, 2, 2, 4, 5]);
    assert_eq!(
        ends16("é", &spans(&[1, 2])),
        [0, 1],
        "the first token too may be a part"
    );
    assert_eq!(
        ends16("a😀b", &spans(&[3, 6])),
        [1, 4],
        "a part after a whole character"
    );
    assert!(ends16("", &[]).is_empty());
    // Both tokens of a character count.
    let mut grid = MapGrid::new(1, 1, vec![1, 2, 2, 4, 5]);
    grid.set_layer(0, &[0, 0, 1, 0, 0]).unwrap();
    assert_eq!(grid.share_of(2..4), (0.5, 1.0));
    assert_eq!(grid.share_of(3..4), (0.5, 1.0));
    assert_eq!(grid.share_of(0..2), (0.0, 0.0));
}

#[test]
fn an_empty_document_has_an_empty_map() {
    let mut grid = MapGrid::new(2, 2, Vec::new());
    grid.set_layer(0, &[]).unwrap();
    assert_eq!(grid.share_of(0..9), (0.0, 0.0));
    assert_eq!(MapGrid::from_bytes(&grid.to_bytes()), Ok(grid));
}

#[test]
fn map_round_trips_through_bytes() {
    let mut random = StdRng::seed_from_u64(5);
    for _ in 0..200 {
        let (grid, _) = drawn(&mut random);
        assert_eq!(MapGrid::from_bytes(&grid.to_bytes()), Ok(grid));
    }
}

#[test]
fn from_bytes_refuses_invalid_bytes() {
    let mut random = StdRng::seed_from_u64(7);
    let (grid, _) = (0..)
        .map(|_| drawn(&mut random))
        .find(|(grid, _)| grid.cells() > 9 && grid.layers_done() > 1)
        .unwrap();
    let bytes = grid.to_bytes();
    for end in 0..bytes.len() {
        assert!(MapGrid::from_bytes(&bytes[..end]).is_err(), "cut at {end}");
    }
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        assert!(MapGrid::from_bytes(&changed).is_err(), "changed at {at}");
    }
    assert_eq!(MapGrid::from_bytes(b""), Err(GridBytesError::NotAMap));
    assert_eq!(
        MapGrid::from_bytes(b"KMAP\x09"),
        Err(GridBytesError::Version(9))
    );
    // A correct checksum over random fields: no panic, no huge allocation.
    for _ in 0..2000 {
        let mut drawn = b"KMAP".to_vec();
        drawn.push(random.random_range(1..3));
        drawn.extend((0..random.random_range(0..40)).map(|_| random.random::<u8>()));
        let sum = packed::checksum(&drawn);
        drawn.extend(sum.to_le_bytes());
        let _ = MapGrid::from_bytes(&drawn);
    }
}

#[test]
fn cells_of_several_tokens_keep_shares() {
    let mut random = StdRng::seed_from_u64(11);
    for round in 0..300 {
        let kv_heads = random.random_range(1..9);
        let tokens = random.random_range(1..400usize);
        let most = random.random_range(1..60);
        let ends: Vec<u32> = (1..=tokens as u32).map(|token| token * 3).collect();
        let mut fine = MapGrid::new(2, kv_heads, ends.clone());
        let mut coarse = MapGrid::with_most_cells(2, kv_heads, ends, most);
        assert!(coarse.cells() <= most, "{} of {most}", coarse.cells());
        for layer in 0..2 {
            let counts: Vec<u8> = (0..tokens)
                .map(|_| {
                    if random.random_bool(0.2) {
                        random.random_range(0..=kv_heads as u8)
                    } else {
                        0
                    }
                })
                .collect();
            let cells = coarse.in_cells(counts.clone());
            fine.set_layer(layer, &counts).unwrap();
            coarse.set_layer(layer, &cells).unwrap();
        }
        let whole = |grid: &MapGrid| grid.share_of(0..3 * tokens as u32);
        let (exact, found) = (whole(&fine), whole(&coarse));
        // Exact while a cell counts every holder; otherwise at most half a step of 255 per cell and layer, where any
        // kept token counts at least one step.
        let steps = coarse.tokens_per_cell() * kv_heads > 255;
        let allowed = if steps {
            1.0 / 255.0
        } else {
            0.5 / coarse.holders_per_cell() as f32
        };
        // A last cell with fewer tokens weighs as much as the others.
        let whole_cells = tokens.is_multiple_of(coarse.tokens_per_cell());
        let allowed = if whole_cells {
            allowed
        } else {
            allowed + 1.0 / coarse.cells() as f32
        };
        assert!(
            (exact.0 - found.0).abs() <= allowed + 1e-6,
            "round {round}: {exact:?} {found:?}"
        );
        assert_eq!(exact.0 > 0.0, found.0 > 0.0, "what is kept is seen");
        if whole_cells && !steps {
            assert!((exact.0 - found.0).abs() < 1e-6, "{exact:?} {found:?}");
        }
        assert_eq!(MapGrid::from_bytes(&coarse.to_bytes()), Ok(coarse));
    }
}

#[test]
fn bounded_map_shows_one_of_ten_million_tokens() {
    let tokens = 10_000_000u32;
    let mut grid = MapGrid::bounded(32, 8, (1..=tokens).map(|token| token * 4).collect());
    assert!(grid.cells() <= 1 << 18);
    let mut counts = vec![0u8; tokens as usize];
    counts[7_654_321] = 1;
    let cells = grid.in_cells(counts);
    assert_eq!(cells.len(), grid.cells());
    assert_eq!(cells.iter().filter(|&&count| count > 0).count(), 1);
    for layer in 0..32 {
        grid.set_layer(layer, &cells).unwrap();
    }
    let seen: Vec<u16> = grid
        .counts(None)
        .into_iter()
        .filter(|&count| count > 0)
        .collect();
    assert_eq!(seen.len(), 1);
    // The size of a stored map.
    assert!(grid.to_bytes().len() < 1 << 20, "{}", grid.to_bytes().len());
}
