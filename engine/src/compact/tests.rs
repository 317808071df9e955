//! Slots, positions and ranks of kept rows.

use kept_kernels::CacheType;
use kept_policies::{Retention, ValueMerge};

use super::*;

fn layer(positions: Positions) -> CompactLayer {
    let mut keys = RowStore::uniform(1, 4, 2);
    for row in 0..4 {
        keys.row_mut(0, row).fill(row as f32);
    }
    let keep = Retention::Keep(vec![vec![Pos(0), Pos(2), Pos(3)]]);
    Gather::new(&keys, &keys, 4, &keep, &[6], positions).layer(&mut Vec::new())
}

#[test]
fn gathers_rows_with_their_positions() {
    let layer = layer(Positions::Original);
    assert_eq!(layer.rows, [3]);
    assert_eq!(layer.positions[..3], [Pos(0), Pos(2), Pos(3)]);
    assert_eq!(layer.keys.row(0, 1), [2.0, 2.0]);
    assert!(layer.ranks.is_empty());
}

#[test]
fn heads_may_hold_different_numbers_of_rows() {
    let mut keys = RowStore::uniform(2, 4, 2);
    for (head, row) in [(0, 0), (0, 3), (1, 1), (1, 2), (1, 3)] {
        keys.row_mut(head, row).fill((10 * head + row) as f32);
    }
    let keep = Retention::Keep(vec![vec![Pos(3)], vec![Pos(1), Pos(2), Pos(3)]]);
    let mut layer =
        Gather::new(&keys, &keys, 4, &keep, &[2, 4], Positions::Reassigned).layer(&mut Vec::new());
    assert_eq!(layer.rows, [1, 3]);
    assert_eq!(layer.live_bytes(), 4 * 2 * 2 * 4, "four rows, not six");
    assert_eq!(layer.allocated_bytes(), 6 * (2 * 2 * 4 + 2 * 4));
    layer.append(&[7.0; 4], &[7.0; 4], Pos(4));
    layer.evict(&[None, Some(Row(0))]);
    assert_eq!(layer.kept(0), [Pos(3), Pos(4)]);
    assert_eq!(layer.kept(1), [Pos(2), Pos(3), Pos(4)]);
    assert_eq!(layer.keys.row(0, 0), [3.0, 3.0]);
    assert_eq!(layer.keys.row(1, 2), [13.0, 13.0]);
    assert_eq!(layer.ranks, [0, 1, 0, 0, 1, 2], "head after head");
    assert_eq!(layer.counts(0..5), [0, 0, 1, 2, 2]);
}

#[test]
fn append_fills_the_hole_with_the_last_rank() {
    let mut layer = layer(Positions::Reassigned);
    layer.append(&[4.0; 2], &[4.0; 2], Pos(4));
    layer.evict(&[Some(Row(1))]);
    assert_eq!(layer.live_rows(0), 3);
    layer.append(&[5.0; 2], &[5.0; 2], Pos(5));
    assert_eq!(layer.rows, [4]);
    assert_eq!(layer.positions[..4], [Pos(0), Pos(5), Pos(3), Pos(4)]);
    assert_eq!(layer.ranks[..4], [0, 3, 1, 2]);
    assert_eq!(layer.keys.row(0, 1), [5.0, 5.0]);
}

#[test]
fn evict_many_moves_slots_together_in_order() {
    let mut layer = layer(Positions::Reassigned);
    layer.append(&[4.0; 2], &[4.0; 2], Pos(4));
    layer.evict_many(&[false, true, false, true, true, true]);
    assert_eq!(layer.rows, [2]);
    assert_eq!(layer.positions[..2], [Pos(2), Pos(4)]);
    assert_eq!(layer.ranks[..2], [0, 1]);
    assert_eq!(layer.keys.row(0, 1), [4.0, 4.0]);
    layer.append(&[5.0; 2], &[5.0; 2], Pos(5));
    assert_eq!(layer.kept(0), [Pos(2), Pos(4), Pos(5)]);
    assert_eq!(layer.values.row(0, 2), [5.0, 5.0]);
}

#[test]
fn evicted_values_are_added_to_kept_rows() {
    let mut values = RowStore::uniform(1, 4, 2);
    for row in 0..4 {
        values.row_mut(0, row).fill(row as f32);
    }
    values.row_mut(0, 1).copy_from_slice(&[8.0, 4.0]);
    let merge = ValueMerge {
        head: 0,
        from: Pos(1),
        first: 1,
        count: 2,
        weight: 0.25,
    };
    let keep = Retention::Keep(vec![vec![Pos(0), Pos(2), Pos(3)]]);
    let gather = |storage| {
        let gather = Gather {
            storage,
            value_merges: &[merge],
            ..Gather::new(&values, &values, 4, &keep, &[6], Positions::Original)
        };
        gather.layer(&mut Vec::new())
    };
    let mut layer = gather(RowStorage::F32);
    assert_eq!(layer.values.row(0, 0), [0.0, 0.0]);
    assert_eq!(layer.values.row(0, 1), [4.0, 3.0]);
    assert_eq!(layer.values.row(0, 2), [5.0, 4.0]);
    let mut halves = gather(RowStorage {
        kind: CacheType::F16,
        ..RowStorage::F32
    });
    let mut row = [0.0; 2];
    halves.values.read(0, 2, &mut row);
    assert_eq!(row, [5.0, 4.0]);
    let merge = DecodeValueMerge {
        head: 0,
        from: Row(1),
        to: Row(2),
        weight: 0.5,
    };
    layer.merge_values(&[merge]);
    assert_eq!(layer.values.row(0, 2), [7.0, 5.5]);
    assert_eq!(layer.keys.row(0, 2), [3.0, 3.0], "keys stay");
    halves.merge_values(&[merge]);
    halves.values.read(0, 2, &mut row);
    assert_eq!(row, [7.0, 5.5]);
}

#[test]
fn a_ring_holds_the_last_positions() {
    let mut keys = RowStore::uniform(1, 6, 2);
    for row in 0..6 {
        keys.row_mut(0, row).fill(row as f32);
    }
    // A window of three with two tokens: one more fits, then the oldest rows are replaced.
    let ring = |tokens, window, max_new_tokens| {
        let ring = RingGather {
            keys: &keys,
            values: &keys,
            tokens,
            window,
            max_new_tokens,
            cache: CacheType::F32,
        };
        ring.layer(&mut Vec::new())
    };
    let mut layer = ring(2, 3, 9);
    assert_eq!((layer.window(), layer.live_rows(0)), (Some(3), 2));
    let mut held = Vec::new();
    for position in 2..9u32 {
        layer.append(&[position as f32; 2], &[0.0; 2], Pos(position));
        held.push(layer.kept(0).iter().map(|p| p.0).collect::<Vec<_>>());
        for (slot, p) in layer.positions_of(0).iter().enumerate() {
            assert_eq!(layer.keys.row(0, slot)[0], p.0 as f32);
        }
    }
    assert_eq!(held[0], [0, 1, 2]);
    assert_eq!(held[1], [1, 2, 3]);
    assert_eq!(held[6], [6, 7, 8]);
    assert_eq!(layer.allocated_bytes(), 3 * (2 * 2 * 4 + 4));
    let layer = ring(6, 4, 0);
    assert_eq!(layer.kept(0), [Pos(2), Pos(3), Pos(4), Pos(5)]);
}

#[test]
fn counts_exclude_evicted_and_unrequested_positions() {
    let mut layer = layer(Positions::Original);
    assert_eq!(layer.counts(0..4), [1, 0, 1, 1]);
    assert_eq!(layer.counts(2..3), [1]);
    layer.append(&[4.0; 2], &[4.0; 2], Pos(4));
    layer.evict(&[Some(Row(1))]);
    assert_eq!(layer.counts(0..4), [1, 0, 0, 1]);
}

const DIM: usize = 32;

/// `[DIM]`: the exact row of a position.
fn exact_row(position: usize) -> Vec<f32> {
    (0..DIM)
        .map(|i| ((position * DIM + i) as f32 * 0.7).sin())
        .collect()
}

/// The positions `kept` of `tokens` exact rows in a 4-bit cache of a method that evicts, with one free slot.
fn replaced_q4_layer(tokens: usize, kept: &[Pos]) -> CompactLayer {
    let mut rows = RowStore::uniform(1, tokens, DIM);
    for position in 0..tokens {
        rows.row_mut(0, position)
            .copy_from_slice(&exact_row(position));
    }
    let retention = Retention::Keep(vec![kept.to_vec()]);
    let capacities = [kept.len() + 1];
    let gather = Gather {
        storage: RowStorage {
            kind: CacheType::Q4_0,
            replaces_rows: true,
        },
        ..Gather::new(
            &rows,
            &rows,
            tokens,
            &retention,
            &capacities,
            Positions::Reassigned,
        )
    };
    gather.layer(&mut Vec::new())
}

/// The live keys and their positions. Checks that each is close to the exact row, and that only old rows behind
/// the first four tokens are narrow.
fn checked_keys(layer: &CompactLayer, step: usize) -> Vec<(Pos, Vec<f32>)> {
    let newest = layer.positions_of(0).iter().map(|p| p.0).max();
    let checked = layer.live_slots(0).map(|slot| {
        let position = layer.positions[slot];
        let exact = exact_row(position.0 as usize);
        let mut stored = vec![0.0; DIM];
        layer.keys.read(0, slot, &mut stored);
        let apart = exact.iter().zip(&stored).map(|(x, y)| (x - y).abs());
        let most = apart.fold(0.0, f32::max);
        let narrow = layer.keys.is_narrow(0, slot);
        let age = newest.map(|n| n - position.0);
        assert!(
            most < if narrow { 0.5 } else { 1e-3 },
            "{position:?}: {most}"
        );
        assert!(
            !narrow || position.0 >= 4 && age > Some(50),
            "step {step}: {position:?} {age:?}"
        );
        (position, stored)
    });
    checked.collect()
}

/// Checks that rows of `before` that were rounded did not change again.
fn check_rounded_once(before: &[(Pos, Vec<f32>)], now: &[(Pos, Vec<f32>)], step: usize) {
    for (position, earlier) in before {
        if let Some((_, held)) = now.iter().find(|(p, _)| p == position) {
            let exact = exact_row(position.0 as usize);
            let differs = |x: &[f32]| x.iter().zip(&exact).any(|(x, y)| (x - y).abs() > 1e-3);
            assert!(
                !differs(earlier) || held == earlier,
                "step {step}: {position:?}"
            );
        }
    }
}

/// A 4-bit cache of a method that evicts: the first four tokens and the newest are stored as f16, every row
/// keeps its slot, and each row is rounded once, when it is no longer among the newest.
#[test]
fn replaced_rows_are_quantised_once_when_old() {
    const TOKENS: usize = 100;
    let kept: Vec<Pos> = (0..TOKENS as u32).filter(|p| p % 7 != 3).map(Pos).collect();
    let mut layer = replaced_q4_layer(TOKENS, &kept);
    let held = kept.len();
    assert_eq!(
        layer.positions[..held],
        kept,
        "slots are in the order of positions"
    );
    let wide = layer.keys.f16_slots(0).count();
    let bytes = layer.keys.bytes();
    let mut before: Vec<(Pos, Vec<f32>)> = Vec::new();
    for step in 0..120usize {
        let now = checked_keys(&layer, step);
        check_rounded_once(&before, &now, step);
        before = now;
        // Evicts a row in the middle every step, and many at once in between.
        let position = TOKENS + step;
        if step == 60 {
            let keep: Vec<bool> = (0..held + 1).map(|slot| slot % 3 != 1).collect();
            layer.evict_many(&keep);
        } else if layer.live_rows(0) == held {
            let slots: Vec<usize> = layer.live_slots(0).collect();
            layer.evict(&[Some(Row(slots[(step * 5 + 20) % slots.len()] as u32))]);
        }
        let row = exact_row(position);
        layer.append(&row, &row, Pos(position as u32));
        assert_eq!(layer.keys.f16_slots(0).count(), wide);
        assert_eq!(layer.keys.bytes(), bytes);
    }
    let narrow = (0..layer.rows[0])
        .filter(|&slot| layer.keys.is_narrow(0, slot))
        .count();
    assert!(narrow > 0, "rows were replaced until old ones are narrow");
}

/// A layer without rows has the same slots and positions as a layer with rows, and lists the row of each
/// slot.
#[test]
fn slot_table_matches_a_layer_with_rows() {
    const TOKENS: usize = 150;
    let mut rows = RowStore::uniform(2, TOKENS, DIM);
    for (head, position) in (0..2).flat_map(|head| (0..TOKENS).map(move |p| (head, p))) {
        rows.row_mut(head, position)
            .fill((TOKENS * head + position) as f32);
    }
    let some =
        |step: u32| -> Vec<Pos> { (0..TOKENS as u32 / step).map(|i| Pos(i * step)).collect() };
    for kind in [CacheType::F16, CacheType::Q8_0, CacheType::Q4_0] {
        let storage = RowStorage {
            kind,
            ..RowStorage::F32
        };
        for retention in [
            Retention::Everything,
            Retention::Keep(vec![some(1), some(2)]),
        ] {
            let capacities = [TOKENS + 3; 2];
            let positions = Positions::Original;
            let gather = Gather {
                storage,
                ..Gather::new(&rows, &rows, TOKENS, &retention, &capacities, positions)
            };
            let whole = gather.layer(&mut Vec::new());
            let mut slots = Vec::new();
            let slot_table = gather.slot_table(&mut slots);
            assert_eq!(slot_table.positions, whole.positions, "{kind}");
            assert_eq!(slot_table.rows, whole.rows, "{kind}");
            assert_eq!(slot_table.live_bytes(), whole.live_bytes(), "{kind}");
            assert_eq!(
                slot_table.allocated_bytes(),
                whole.allocated_bytes(),
                "{kind}"
            );
            assert_eq!(whole.bytes_elsewhere(), 0, "{kind}");
            let rows_and_positions =
                slot_table.bytes_elsewhere() + 4 * slot_table.positions.len() as u64;
            assert_eq!(rows_and_positions, slot_table.allocated_bytes(), "{kind}");
            let mut row = [0.0; DIM];
            for (head, slots) in slots.iter().enumerate() {
                assert_eq!(slots.len(), whole.rows[head], "{kind}");
                for (slot, &from) in slots.iter().enumerate() {
                    assert_eq!(whole.positions_of(head)[slot], Pos(from), "{kind}");
                    assert_eq!(
                        slot_table.keys.physical_row(head, slot),
                        whole.keys.physical_row(head, slot),
                        "{kind}"
                    );
                    whole.keys.read(head, slot, &mut row);
                    let expected = (TOKENS * head) as f32 + from as f32;
                    assert!(
                        (row[0] - expected).abs() < 0.05 * expected.max(1.0),
                        "{kind}"
                    );
                }
            }
        }
    }
}
