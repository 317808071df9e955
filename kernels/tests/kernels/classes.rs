//! Class attention against the reference, which expands every entry, at every SIMD level; and merged rows against a
//! computation by hand.

use crate::support::{GROUPS, HEAD_DIMS, Random, assert_close, shape, sinks};
use kept_kernels::{
    CacheType, ClassAttention, ClassScratch, DecodeAttention, DecodeScratch, Pairing, RankRotation,
    RowStore, Scale, SimdLevel, class_attention, decode_attention, mean_row, reference, row_norm,
};

fn check(task: &ClassAttention<'_>, what: &str) {
    let shape = task.shape;
    let mut expected = vec![f32::NAN; task.query.len()];
    let mut expected_rows = vec![Vec::new(); shape.q_heads];
    reference::class_attention(task, &mut expected, &mut expected_rows);
    let max_rows = task.rows.iter().max().unwrap() + 3;
    let mut scratch = ClassScratch::new(shape, max_rows, task.capacity);
    for level in SimdLevel::available() {
        let mut out = vec![f32::NAN; task.query.len()];
        level.with(|| class_attention(task, &mut scratch, &mut out));
        assert_close(&out, &expected, 1e-5, &format!("{level:?} {what}"));
        for (h, expected) in expected_rows.iter().enumerate() {
            let found = &scratch.probabilities()[h * scratch.stride()..][..expected.len()];
            assert_close(found, expected, 1e-5, &format!("{level:?} head {h} {what}"));
        }
    }
}

#[test]
fn equals_the_expanded_entries_over_a_grid_of_shapes() {
    let mut random = Random::fresh();
    for group in GROUPS {
        for dim in HEAD_DIMS.into_iter().chain([20]) {
            for (rows, entries) in [
                ([1, 3], [1, 9]),
                ([5, 64], [20, 64]),
                ([130, 17], [500, 40]),
            ] {
                let shape = shape(2, group, dim);
                let query = random.normal(shape.q_heads * dim);
                let (keys, values) = (random.store(&rows, dim), random.store(&rows, dim));
                let halves = |rows: &RowStore| {
                    let capacities = [rows.capacity(0), rows.capacity(1)];
                    let mut store =
                        RowStore::stored(CacheType::F16, dim, &capacities, &[0, 0], false);
                    for (h, &capacity) in capacities.iter().enumerate() {
                        (0..capacity).for_each(|r| store.write(h, r, rows.row(h, r)));
                    }
                    store
                };
                let halves = (halves(&keys), halves(&values));
                let capacity = entries[0].max(entries[1]) + 2;
                let mut classes = vec![u32::MAX; 2 * capacity];
                for h in 0..2 {
                    for class in &mut classes[h * capacity..][..entries[h]] {
                        *class = random.below(rows[h]) as u32;
                    }
                }
                let norms = random.normal(2 * capacity);
                let (cos, sin) = random.angles(capacity, dim / 2 - 2);
                let turned = RankRotation {
                    cos: &cos,
                    sin: &sin,
                    rope_dim: dim - 4,
                    pairing: [Pairing::Halves, Pairing::Neighbours][group % 2],
                };
                for rotation in [None, Some(turned)] {
                    let mut task = ClassAttention {
                        shape,
                        scale: Scale {
                            factor: 1.3 / (dim as f32).sqrt(),
                            cap: (dim % 3 == 1).then_some(1.2),
                            sinks: (group % 2 == 1).then(|| sinks(shape)),
                        },
                        query: &query,
                        keys: &keys,
                        values: &values,
                        rows: &rows,
                        classes: &classes,
                        norms: &norms,
                        entries: &entries,
                        capacity,
                        rotation,
                    };
                    check(&task, &format!("{shape:?} {rows:?} {entries:?}"));
                    (task.keys, task.values) = (&halves.0, &halves.1);
                    check(&task, &format!("f16 {shape:?} {rows:?} {entries:?}"));
                }
            }
        }
    }
}

/// With one class per entry and all norms 1, class attention equals decode attention.
#[test]
fn one_class_per_entry_is_plain_attention() {
    let mut random = Random::fresh();
    let (shape, rows) = (shape(2, 7, 64), [90, 90]);
    let query = random.normal(shape.q_heads * 64);
    let (keys, values) = (random.store(&rows, 64), random.store(&rows, 64));
    let mut plain = vec![f32::NAN; query.len()];
    let task = DecodeAttention {
        shape,
        scale: 0.2.into(),
        query: &query,
        keys: &keys,
        values: &values,
        rows: &rows,
        rotation: None,
    };
    decode_attention(&task, &mut DecodeScratch::new(shape, 90, 2), &mut plain);
    let classes: Vec<u32> = (0..2).flat_map(|_| 0..90).collect();
    let task = ClassAttention {
        shape,
        scale: 0.2.into(),
        query: &query,
        keys: &keys,
        values: &values,
        rows: &rows,
        classes: &classes,
        norms: &[1.0; 180],
        entries: &rows,
        capacity: 90,
        rotation: None,
    };
    let mut out = vec![f32::NAN; query.len()];
    class_attention(&task, &mut ClassScratch::new(shape, 90, 90), &mut out);
    assert_close(&out, &plain, 1e-5, "one class per entry");
}

#[test]
fn merged_rows_are_weighted_means_of_directions() {
    let mut store = RowStore::uniform(1, 2, 2);
    store.row_mut(0, 0).copy_from_slice(&[3.0, 4.0]);
    store.row_mut(0, 1).copy_from_slice(&[0.0, 2.0]);
    assert_eq!(row_norm(store.row(0, 0)), 5.0);
    let mut merged = [0.0; 2];
    mean_row(
        &store,
        0,
        [(0, 1.0), (1, 3.0)].into_iter(),
        true,
        &mut merged,
    );
    assert_close(&merged, &[0.15, 0.95], 1e-6, "directions");
    mean_row(
        &store,
        0,
        [(0, 1.0), (1, 3.0)].into_iter(),
        false,
        &mut merged,
    );
    assert_close(&merged, &[0.75, 2.5], 1e-6, "rows");
}
