//! Class tables: what merged tokens share, and what merging frees.

use super::*;
use crate::compact::Gather;
use kept_policies::{ClassMerge, Entry, MergedHead, Positions};

fn layer() -> CompactLayer {
    let mut keys = RowStore::uniform(1, 4, 2);
    for (row, key) in [[3.0, 4.0], [0.0, 2.0], [1.0, 0.0], [6.0, 8.0]]
        .iter()
        .enumerate()
    {
        keys.row_mut(0, row).copy_from_slice(key);
    }
    let entry = |pos, class, weight| Entry {
        pos: Pos(pos),
        class,
        weight,
    };
    let kept = Retention::Merge(vec![MergedHead {
        centres: vec![Pos(0), Pos(2), Pos(3)],
        entries: vec![
            entry(0, 0, 1.0),
            entry(1, 0, 3.0),
            entry(2, 1, 1.0),
            entry(3, 2, 1.0),
        ],
    }]);
    let table = ClassTable {
        entries: 6,
        elements: 3,
    };
    Gather::new(&keys, &keys, 4, &kept, &[4], Positions::Original)
        .layer(&mut Vec::new())
        .with_table(&keys, &kept, table)
}

#[test]
fn class_members_share_a_direction_and_keep_their_length() {
    let layer = layer();
    assert!(layer.is_shared());
    assert_eq!(layer.kept(0), [Pos(0), Pos(2), Pos(3)]);
    assert_eq!(layer.entries(0)[1], (Pos(1), Pos(0)));
    let close = |found: &[f32], expected: [f32; 2]| {
        assert!(
            found
                .iter()
                .zip(expected)
                .all(|(a, b)| (a - b).abs() < 1e-6),
            "{found:?}"
        );
    };
    let rows = layer.expanded(0);
    close(&rows[0].0, [5.0 * 0.15, 5.0 * 0.95]);
    close(&rows[1].0, [2.0 * 0.15, 2.0 * 0.95]);
    close(&rows[1].1, [0.75, 2.5]);
    close(&rows[3].0, [6.0, 8.0]);
    assert_eq!(layer.counts(0..4), [1, 1, 1, 1], "a merged token is held");
    assert_eq!(layer.live_bytes(), 3 * 2 * 2 * 4);
    assert_eq!(layer.table_bytes(), 6 * (3 * 4 + 3 * 4) + 4);
}

#[test]
fn a_merged_class_frees_its_row_for_the_next_token() {
    let (mut layer, mut lost) = (layer(), Vec::new());
    let merge = ClassMerge {
        row: Row(1),
        weight: 1.0,
        removed_weight: 3.0,
    };
    layer.apply(
        0,
        &ClassChange {
            removed_class: Some(Row(2)),
            merged_into: Some(merge),
            removed_entry: Some(1),
        },
        &mut |position| lost.push(position),
    );
    assert_eq!(lost, [Pos(1)], "merged tokens are still held");
    assert_eq!(
        layer.entries(0),
        [(Pos(0), Pos(0)), (Pos(2), Pos(2)), (Pos(3), Pos(2))]
    );
    let rows = layer.expanded(0);
    // (1, 0) and 3 x (0.6, 0.8): (0.7, 0.6); the lengths are 1 and 10.
    assert!((rows[1].0[0] - 0.7).abs() < 1e-6 && (rows[2].0[1] - 6.0).abs() < 1e-5);
    layer.append(&[9.0, 0.0], &[9.0, 0.0], Pos(4));
    assert_eq!(layer.rows, [3]);
    assert_eq!(layer.entries(0)[3], (Pos(4), Pos(4)));
    assert_eq!(layer.expanded(0)[3].0, [9.0, 0.0]);
    layer.apply(
        0,
        &ClassChange {
            removed_class: Some(Row(1)),
            ..ClassChange::default()
        },
        &mut |position| lost.push(position),
    );
    assert_eq!(lost, [Pos(1), Pos(2), Pos(3)]);
    assert_eq!(layer.entries(0), [(Pos(0), Pos(0)), (Pos(4), Pos(4))]);
    assert_eq!(layer.kept(0), [Pos(0), Pos(4)]);
}
