//! Decode attention of one new token over kept rows: the kernel's source against the CPU reference.

use crate::support::*;
use kept_cuda::{
    Angles, DecodeAttention, DecodeScratch, Device, Indices, KeptRows, Ranks, RowKind,
};
use kept_kernels::{CacheType, HeadShape, Pairing, Rotation, RowStore, reference};

/// Layout of the rows in a test.
#[derive(Clone, Copy, PartialEq)]
enum Lie {
    /// Slot i is row i.
    Plain,
    /// Some rows are wide, and the slots are permuted.
    Mixed,
}

/// Rows of `capacities`: packed by a host store, dequantised, and on the device, with the row of each slot if the
/// layout is mixed.
fn kept(
    device: &Device,
    numbers: &mut Numbers,
    shape: &HeadShape,
    capacities: &[usize],
    (kind, lie): (CacheType, Lie),
) -> (RowStore, KeptRows, Option<Indices>) {
    let dim = shape.head_dim;
    let narrow: Vec<usize> = capacities
        .iter()
        .map(|capacity| match lie {
            Lie::Plain => *capacity,
            Lie::Mixed => capacity - capacity / 3,
        })
        .collect();
    let mixed = lie == Lie::Mixed;
    let mut packed = RowStore::stored(kind, dim, capacities, &narrow, mixed);
    let mut here = RowStore::new(dim, capacities);
    let kind = RowKind::of(kind).expect("a kind that a device has");
    let (all, few): (usize, usize) = (capacities.iter().sum(), narrow.iter().sum());
    let capacity = if mixed { (few, all - few) } else { (all, 0) };
    let mut there = KeptRows::with_wide(device, kind, capacity, dim).expect("memory");
    let (mut first, mut first_wide, mut places) = (0, few, Vec::new());
    for (head, &capacity) in capacities.iter().enumerate() {
        if mixed {
            let order: Vec<usize> = (0..capacity).map(|i| (i + 2) % capacity).collect();
            packed.arrange(head, &order);
        }
        for row in 0..capacity {
            packed.write(head, row, &numbers.rows(dim));
            packed.read(head, row, here.row_mut(head, row));
        }
        let row_of = |slot: usize| match packed.place(head, slot).checked_sub(narrow[head]) {
            Some(wide) if mixed => first_wide + wide,
            _ => first + packed.place(head, slot),
        };
        places.extend((0..capacity).map(|slot| row_of(slot) as u32));
        let mut which: Vec<(usize, usize)> = (0..capacity).map(|s| (row_of(s), s)).collect();
        which.sort_unstable();
        there.write(&packed, head, &which).expect("written");
        first += if mixed { narrow[head] } else { capacity };
        first_wide += capacity - narrow[head];
    }
    let places = mixed.then(|| Indices::new(device, &places).expect("memory"));
    (here, there, places)
}

fn check(
    shape: HeadShape,
    (kind, lie): (CacheType, Lie),
    rows: &[usize],
    pairing: Option<Pairing>,
) {
    // q4_0 rows and their queries are Hadamard-rotated; if the kernel applies RoPE to the keys, it unrotates them
    // first.
    let turned = kind == CacheType::Q4_0;
    for device in devices() {
        let mut numbers = Numbers::new(rows[0] as u64);
        let capacities: Vec<usize> = rows.iter().enumerate().map(|(h, r)| r + 3 * h).collect();
        let stored = (kind, lie);
        let (keys, keys_there, places) = kept(&device, &mut numbers, &shape, &capacities, stored);
        let (values, values_there, _) = kept(&device, &mut numbers, &shape, &capacities, stored);
        let slots: usize = capacities.iter().sum();
        let query = numbers.rows(shape.q_heads * shape.head_dim);
        let rope_dim = shape.head_dim / 4 * 2;
        let positions = 50;
        let angles: Vec<f32> = numbers
            .rows(positions * rope_dim / 2)
            .iter()
            .map(|x| x * 3.0)
            .collect();
        let (cos, sin): (Vec<f32>, Vec<f32>) = angles.iter().map(|a| (a.cos(), a.sin())).unzip();
        let ranks: Vec<u32> = (0..slots)
            .map(|_| numbers.below(positions) as u32)
            .collect();
        let rotation = pairing.map(|pairing| Rotation {
            cos: &cos,
            sin: &sin,
            rope_dim,
            pairing,
            ranks: &ranks,
        });
        let mut expected = vec![0.0; query.len()];
        let mut expected_probabilities = vec![Vec::new(); shape.q_heads];
        let task = kept_kernels::DecodeAttention {
            shape,
            scale: 0.3.into(),
            query: &query,
            keys: &keys,
            values: &values,
            rows,
            rotation,
        };
        reference::decode_attention(&task, &mut expected, &mut expected_probabilities);

        let first_rows: Vec<u32> = (0..shape.kv_heads)
            .map(|h| keys.first_row(h) as u32)
            .collect();
        let as_u32: Vec<u32> = rows.iter().map(|r| *r as u32).collect();
        let copy = |numbers: &[u32]| device.copy_of(numbers).expect("memory");
        let (first_rows, rows_there, ranks) = (copy(&first_rows), copy(&as_u32), copy(&ranks));
        let [cos, sin] = [cos, sin].map(|t| device.copy_of(&t).expect("memory"));
        let (heads, dim) = (shape.q_heads, shape.head_dim);
        let mut queries = queries(&device, &query);
        if turned && pairing.is_none() {
            device
                .hadamard_halves(&mut queries, heads, dim)
                .expect("it runs");
        }
        let max_rows = *rows.iter().max().expect("heads") + 5;
        for wanted in [true, false] {
            let mut scratch = DecodeScratch::new(&device, shape, max_rows, wanted).expect("memory");
            let mut out = device.alloc_uninit(query.len()).expect("memory");
            let task = DecodeAttention {
                shape,
                scale: 0.3.into(),
                queries: &queries,
                keys: &keys_there,
                values: &values_there,
                first_rows: &first_rows,
                rows: &rows_there,
                places: places.as_ref(),
                ranks: pairing.map(|pairing| Ranks {
                    ranks: &ranks,
                    angles: Angles {
                        cos: &cos,
                        sin: &sin,
                        rope_dim,
                        pairing,
                    },
                }),
            };
            // SAFETY: rows lie within the slots, and ranks within the angle tables.
            unsafe { device.decode_attention(&task, &mut scratch, &mut out) }.expect("it runs");
            if turned {
                device
                    .hadamard_numbers(&mut out, heads, dim)
                    .expect("it runs");
            }
            let what = format!("{shape:?} {kind:?} {rows:?} {pairing:?}");
            close(&out.to_vec().expect("read"), &expected, 3e-3, &what);
            if wanted {
                let found = scratch.probabilities().to_vec().expect("read");
                for (h, expected) in expected_probabilities.iter().enumerate() {
                    let found = &found[h * scratch.stride()..][..expected.len()];
                    close(found, expected, 1e-3, &what);
                }
            }
        }
    }
}

const KINDS: [CacheType; 3] = [CacheType::F16, CacheType::Q8_0, CacheType::Q4_0];

#[test]
fn every_kind_and_head_size_gives_what_the_specification_gives() {
    for kind in KINDS {
        for shape in shapes() {
            for first in [1, 15, 64, 333] {
                let rows: Vec<usize> = (0..shape.kv_heads).map(|h| first + 40 * h).collect();
                check(shape, (kind, Lie::Plain), &rows, None);
            }
        }
    }
}

#[test]
fn rows_that_stay_wide_lie_anywhere_among_the_others() {
    for kind in [CacheType::Q8_0, CacheType::Q4_0] {
        for (i, shape) in shapes().into_iter().enumerate() {
            let rows: Vec<usize> = (0..shape.kv_heads).map(|h| 100 - 37 * h).collect();
            let pairing = [None, Some(Pairing::Halves)][i % 2];
            check(shape, (kind, Lie::Mixed), &rows, pairing);
        }
    }
}

#[test]
fn keys_that_stand_at_their_ranks_are_turned_to_them() {
    for pairing in [Pairing::Halves, Pairing::Neighbours] {
        for shape in shapes() {
            let rows: Vec<usize> = (0..shape.kv_heads).map(|h| 70 - 30 * h).collect();
            for kind in KINDS {
                check(shape, (kind, Lie::Plain), &rows, Some(pairing));
            }
        }
    }
}

#[test]
fn groups_larger_than_a_block_takes_and_many_splits() {
    let shape = HeadShape {
        q_heads: 40,
        kv_heads: 2,
        head_dim: 64,
    };
    check(shape, (CacheType::F16, Lie::Plain), &[700, 30], None);
    let shape = HeadShape {
        q_heads: 1,
        kv_heads: 1,
        head_dim: 64,
    };
    check(shape, (CacheType::F16, Lie::Plain), &[3000], None);
}
