//! Slots, positions and ranks of kept rows.

use super::*;

fn layer(positions: Positions) -> CompactLayer {
    let mut keys = RowStore::uniform(1, 4, 2);
    for row in 0..4 {
        keys.row_mut(0, row).fill(row as f32);
    }
    let keep = Retention::Keep(vec![vec![Pos(0), Pos(2), Pos(3)]]);
    CompactLayer::gather(&keys, &keys, 4, &keep, &[6], positions)
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
    let mut layer = CompactLayer::gather(&keys, &keys, 4, &keep, &[2, 4], Positions::Reassigned);
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
fn a_new_token_takes_the_hole_and_the_last_rank() {
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
fn swept_slots_close_up_in_their_order() {
    let mut layer = layer(Positions::Reassigned);
    layer.append(&[4.0; 2], &[4.0; 2], Pos(4));
    layer.sweep(&[false, true, false, true, true, true]);
    assert_eq!(layer.rows, [2]);
    assert_eq!(layer.positions[..2], [Pos(2), Pos(4)]);
    assert_eq!(layer.ranks[..2], [0, 1]);
    assert_eq!(layer.keys.row(0, 1), [4.0, 4.0]);
    layer.append(&[5.0; 2], &[5.0; 2], Pos(5));
    assert_eq!(layer.kept(0), [Pos(2), Pos(4), Pos(5)]);
    assert_eq!(layer.values.row(0, 2), [5.0, 5.0]);
}

#[test]
fn evicted_values_are_left_to_kept_ones() {
    let mut values = RowStore::uniform(1, 4, 2);
    values.row_mut(0, 1).copy_from_slice(&[8.0, 4.0]);
    let mut layer = layer(Positions::Original);
    let spread = Spread {
        head: 0,
        from: Pos(1),
        first: 1,
        count: 2,
        weight: 0.25,
    };
    layer.spread(&values, &[spread]);
    assert_eq!(layer.values.row(0, 0), [0.0, 0.0]);
    assert_eq!(layer.values.row(0, 1), [4.0, 3.0]);
    assert_eq!(layer.values.row(0, 2), [5.0, 4.0]);
    let spill = Spill {
        head: 0,
        from: Row(1),
        to: Row(2),
        weight: 0.5,
    };
    layer.spill(&[spill]);
    assert_eq!(layer.values.row(0, 2), [7.0, 5.5]);
    assert_eq!(layer.keys.row(0, 2), [3.0, 3.0], "keys stay");
}

#[test]
fn a_ring_holds_the_last_positions() {
    let mut keys = RowStore::uniform(1, 6, 2);
    for row in 0..6 {
        keys.row_mut(0, row).fill(row as f32);
    }
    // Three of two tokens: the window has room for one more, then the oldest go.
    let mut layer = CompactLayer::ring(&keys, &keys, 2, 3, 9);
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
    let layer = CompactLayer::ring(&keys, &keys, 6, 4, 0);
    assert_eq!(layer.kept(0), [Pos(2), Pos(3), Pos(4), Pos(5)]);
}

#[test]
fn counts_leave_out_what_was_evicted_and_what_was_not_asked_for() {
    let mut layer = layer(Positions::Original);
    assert_eq!(layer.counts(0..4), [1, 0, 1, 1]);
    assert_eq!(layer.counts(2..3), [1]);
    layer.append(&[4.0; 2], &[4.0; 2], Pos(4));
    layer.evict(&[Some(Row(1))]);
    assert_eq!(layer.counts(0..4), [1, 0, 0, 1]);
}
