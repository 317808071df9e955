//! Decode attention against the reference, at every SIMD level of the machine.

use crate::support::{GROUPS, HEAD_DIMS, Random, assert_close, shape, sinks};
use kept_kernels::{
    CacheType, DecodeAttention, DecodeScratch, Pairing, Rotation, RowStore, Scale, SimdLevel,
    decode_attention, reference,
};

fn check(task: &DecodeAttention<'_>, what: &str) {
    let shape = task.shape;
    let mut expected = vec![f32::NAN; task.query.len()];
    let mut expected_rows = vec![Vec::new(); shape.q_heads];
    reference::decode_attention(task, &mut expected, &mut expected_rows);
    let max_rows = task.rows.iter().max().unwrap() + 5;
    let mut scratch = DecodeScratch::new(shape, max_rows, 2);
    for level in SimdLevel::available() {
        let mut out = vec![f32::NAN; task.query.len()];
        level.with(|| decode_attention(task, &mut scratch, &mut out));
        assert_close(&out, &expected, 1e-5, &format!("{level:?} {what}"));
        for (h, expected) in expected_rows.iter().enumerate() {
            assert_close(
                scratch.probabilities(h),
                expected,
                1e-5,
                &format!("{level:?} head {h} {what}"),
            );
        }
    }
}

#[test]
fn equals_the_reference_over_a_grid_of_shapes() {
    let mut random = Random::fresh();
    for group in GROUPS {
        for head_dim in HEAD_DIMS.into_iter().chain([20]) {
            for rows in [[1, 3], [127, 4], [128, 129], [300, 63], [1025, 64]] {
                let shape = shape(2, group, head_dim);
                let query = random.normal(shape.q_heads * head_dim);
                let keys = random.store(&[rows[0] + 2, rows[1]], head_dim);
                let values = random.store(&[rows[0], rows[1] + 1], head_dim);
                for (cap, sunk) in [(None, false), (Some(1.5), false), (None, true)] {
                    let factor = 1.7 / (head_dim as f32).sqrt();
                    let task = DecodeAttention {
                        shape,
                        scale: Scale {
                            factor,
                            cap,
                            sinks: sunk.then(|| sinks(shape)),
                        },
                        query: &query,
                        keys: &keys,
                        values: &values,
                        rows: &rows,
                        rotation: None,
                    };
                    check(
                        &task,
                        &format!("{shape:?} rows {rows:?} cap {cap:?} sinks {sunk}"),
                    );
                }
            }
        }
    }
}

/// With more rows than 64 splits of minimum size hold, splits grow.
#[test]
fn equals_the_reference_when_spans_grow() {
    let mut random = Random::fresh();
    let (shape, rows) = (shape(1, 2, 32), [9000]);
    let (query, keys, values) = (
        random.normal(64),
        random.store(&rows, 32),
        random.store(&rows, 32),
    );
    let task = DecodeAttention {
        shape,
        scale: 0.3.into(),
        query: &query,
        keys: &keys,
        values: &values,
        rows: &rows,
        rotation: None,
    };
    check(&task, "9000 rows");
}

#[test]
fn raw_keys_are_rotated_as_they_are_read() {
    let mut random = Random::fresh();
    for (head_dim, rope_dim) in [(32, 32), (64, 64), (80, 32), (128, 128)] {
        for pairing in [Pairing::Neighbours, Pairing::Halves] {
            let shape = shape(2, 4, head_dim);
            let rows = [37, 200];
            let (cos, sin) = random.angles(300, rope_dim / 2);
            let ranks: Vec<u32> = (0..rows[0] + rows[1])
                .map(|_| random.below(300) as u32)
                .collect();
            let query = random.normal(shape.q_heads * head_dim);
            let (keys, values) = (random.store(&rows, head_dim), random.store(&rows, head_dim));
            let task = DecodeAttention {
                shape,
                scale: 0.2.into(),
                query: &query,
                keys: &keys,
                values: &values,
                rows: &rows,
                rotation: Some(Rotation {
                    cos: &cos,
                    sin: &sin,
                    rope_dim,
                    pairing,
                    ranks: &ranks,
                }),
            };
            check(&task, &format!("{pairing:?} {rope_dim} of {head_dim}"));
        }
    }
}

#[test]
fn storage_order_does_not_matter() {
    let mut random = Random::fresh();
    let (shape, rows) = (shape(1, 4, 64), 500);
    let query = random.normal(shape.q_heads * 64);
    let (keys, values) = (random.store(&[rows], 64), random.store(&[rows], 64));
    let order = random.permutation(rows);
    let shuffled = |store: &RowStore| {
        let mut target = RowStore::uniform(1, rows, 64);
        let row = |&row: &u32| &store.head(0)[row as usize * 64..][..64];
        let rows: Vec<f32> = order.iter().flat_map(row).copied().collect();
        target.copy_in(0, &rows);
        target
    };
    let run = |keys: &RowStore, values: &RowStore| {
        let mut scratch = DecodeScratch::new(shape, rows, 2);
        let mut out = vec![f32::NAN; query.len()];
        let task = DecodeAttention {
            shape,
            scale: 0.2.into(),
            query: &query,
            keys,
            values,
            rows: &[rows],
            rotation: None,
        };
        decode_attention(&task, &mut scratch, &mut out);
        (out, scratch.probabilities(3).to_vec())
    };
    let (out, probabilities) = run(&keys, &values);
    let (shuffled_out, shuffled_probabilities) = run(&shuffled(&keys), &shuffled(&values));
    assert_close(&shuffled_out, &out, 1e-5, "out");
    let reordered: Vec<f32> = order
        .iter()
        .map(|&row| probabilities[row as usize])
        .collect();
    assert_close(&shuffled_probabilities, &reordered, 1e-6, "probabilities");
}

/// The same rows, stored as `kind`.
fn stored(kind: CacheType, rows: &RowStore, narrow: &[usize], replaced: bool) -> RowStore {
    let capacities: Vec<usize> = (0..rows.kv_heads()).map(|h| rows.capacity(h)).collect();
    let mut store = RowStore::stored(kind, rows.head_dim(), &capacities, narrow, replaced);
    for (h, &capacity) in capacities.iter().enumerate() {
        (0..capacity).for_each(|r| store.write(h, r, rows.row(h, r)));
    }
    store
}

/// Rows of every type, some narrow and some wide, keys and values alike; also with swapped rows, and with keys that
/// are rotated as they are read.
#[test]
fn packed_rows_are_attended_to_as_they_read() {
    let mut random = Random::fresh();
    for kind in CacheType::ALL {
        for (group, head_dim) in [(1, 64), (4, 128), (7, 80), (3, 20), (2, 96)] {
            let shape = shape(2, group, head_dim);
            let rows = [300, 41];
            let narrow = [260, 41];
            let query = random.normal(shape.q_heads * head_dim);
            let plain = (random.store(&rows, head_dim), random.store(&rows, head_dim));
            for replaced in [false, true] {
                let mut keys = stored(kind, &plain.0, &narrow, replaced);
                let mut values = stored(kind, &plain.1, &narrow, replaced);
                if replaced && kind.is_quantised() {
                    for (wide, narrow) in [(280, 3), (299, 17), (3, 100)] {
                        keys.quantise_and_swap(0, wide, narrow);
                        values.quantise_and_swap(0, wide, narrow);
                    }
                }
                let mut task = DecodeAttention {
                    shape,
                    scale: 0.2.into(),
                    query: &query,
                    keys: &keys,
                    values: &values,
                    rows: &rows,
                    rotation: None,
                };
                check(&task, &format!("{kind} {shape:?} {replaced}"));
                let (cos, sin) = random.angles(400, head_dim / 2);
                let ranks: Vec<u32> = (0..341).map(|_| random.below(400) as u32).collect();
                task.rotation = Some(Rotation {
                    cos: &cos,
                    sin: &sin,
                    rope_dim: head_dim,
                    pairing: Pairing::Halves,
                    ranks: &ranks,
                });
                check(&task, &format!("{kind} {shape:?} {replaced}, rotated"));
            }
        }
    }
}

/// A slot whose wide row is quantised is rounded once and keeps its index, and no other slot changes.
#[test]
fn rows_trade_places_and_keep_their_numbers() {
    let mut random = Random::fresh();
    for kind in [CacheType::Q8_0, CacheType::Q4_0] {
        let (head_dim, capacities, narrow) = (64, [9, 12], [5, 8]);
        let plain = random.store(&capacities, head_dim);
        let mut store = stored(kind, &plain, &narrow, true);
        let read = |store: &RowStore, h, r| {
            let mut row = vec![0.0; head_dim];
            store.read(h, r, &mut row);
            row
        };
        let relative_error = |a: &[f32], b: &[f32]| {
            let square = |x: f32| x * x;
            let difference: f32 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
            (difference / b.iter().map(|&b| square(b)).sum::<f32>()).sqrt()
        };
        let before: Vec<Vec<f32>> = (0..12).map(|r| read(&store, 1, r)).collect();
        assert!(store.is_narrow(1, 2) && !store.is_narrow(1, 10));
        store.quantise_and_swap(1, 10, 2);
        assert!(!store.is_narrow(1, 2) && store.is_narrow(1, 10));
        let new = random.normal(head_dim);
        store.write(1, 2, &new);
        for (r, before) in before.iter().enumerate() {
            let (found, expected) = (read(&store, 1, r), plain.row(1, r));
            match r {
                2 => assert!(relative_error(&found, &new) < 1e-3, "{kind}"),
                10 => {
                    let error = relative_error(&found, expected);
                    assert!((1e-3..0.2).contains(&error), "{kind}: {error}");
                }
                _ => assert_eq!(&found, before, "{kind} row {r}"),
            }
        }
        // Compaction: row indices change, contents do not.
        let held = read(&store, 1, 11);
        store.move_row(1, 11, 2);
        assert_eq!(read(&store, 1, 2), held);
        assert_eq!(
            read(&store, 0, 3),
            read(&stored(kind, &plain, &narrow, true), 0, 3)
        );
    }
}
