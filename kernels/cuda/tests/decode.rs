//! One new token over kept rows, the kernel's own source against the specification.

mod support;

use half::f16;
use kept_cuda::{Angles, DecodeAttention, DecodeScratch, Device, KeptRows, Ranks, RowKind};
use kept_kernels::{HeadShape, Pairing, Rotation, RowStore, reference};
use support::*;

/// Rows of `capacities`, as the device holds them in `kind` and as numbers that these stand for.
fn kept(
    device: &Device,
    numbers: &mut Numbers,
    shape: &HeadShape,
    capacities: &[usize],
    kind: RowKind,
) -> (RowStore, KeptRows) {
    let (dim, slots) = (shape.head_dim, capacities.iter().sum());
    let mut here = RowStore::new(dim, capacities);
    let mut there = KeptRows::new(device, kind, slots, dim).expect("room");
    let (mut bytes, mut scales, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..slots {
        if kind == RowKind::F16 {
            let row = numbers.rows(dim);
            bytes.extend(halves(&row).iter().flat_map(|x| x.to_le_bytes()));
            values.extend(row);
            continue;
        }
        let range = if kind == RowKind::Q8_0 { 256 } else { 16 };
        let row: Vec<i32> = (0..dim)
            .map(|_| numbers.below(range) as i32 - range as i32 / 2)
            .collect();
        let own: Vec<f16> = (0..kind.scales(dim))
            .map(|_| f16::from_f32((numbers.below(90) + 10) as f32 / 50.0 / range as f32))
            .collect();
        values.extend(
            row.iter()
                .enumerate()
                .map(|(i, x)| *x as f32 * own[i / 32].to_f32()),
        );
        match kind {
            RowKind::Q8_0 => bytes.extend(row.iter().map(|x| *x as i8 as u8)),
            _ => bytes.extend(
                row.chunks(2)
                    .map(|two| (two[0] + 8) as u8 | ((two[1] + 8) as u8) << 4),
            ),
        }
        scales.extend(own);
    }
    let mut rest = values.as_slice();
    for (h, capacity) in capacities.iter().enumerate() {
        let (own, after) = rest.split_at(capacity * dim);
        here.head_mut(h).copy_from_slice(own);
        rest = after;
    }
    there.numbers_mut().write(0, &bytes).expect("written");
    there.scales_mut().write(0, &scales).expect("written");
    (here, there)
}

fn check(shape: HeadShape, kind: RowKind, rows: &[usize], pairing: Option<Pairing>) {
    for device in devices() {
        let mut numbers = Numbers::new(rows[0] as u64);
        let capacities: Vec<usize> = rows.iter().enumerate().map(|(h, r)| r + 3 * h).collect();
        let (keys, keys_there) = kept(&device, &mut numbers, &shape, &capacities, kind);
        let (values, values_there) = kept(&device, &mut numbers, &shape, &capacities, kind);
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
        let copy = |numbers: &[u32]| device.copy_of(numbers).expect("room");
        let (first_rows, rows_there, ranks) = (copy(&first_rows), copy(&as_u32), copy(&ranks));
        let [cos, sin] = [cos, sin].map(|t| device.copy_of(&t).expect("room"));
        let queries = queries(&device, &query);
        let max_rows = *rows.iter().max().expect("heads") + 5;
        for wanted in [true, false] {
            let mut scratch = DecodeScratch::new(&device, shape, max_rows, wanted).expect("room");
            let mut out = device.room(query.len()).expect("room");
            let task = DecodeAttention {
                shape,
                scale: 0.3.into(),
                queries: &queries,
                keys: &keys_there,
                values: &values_there,
                first_rows: &first_rows,
                rows: &rows_there,
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
            // SAFETY: rows lie within the slots and ranks within the angles.
            unsafe { device.decode_attention(&task, &mut scratch, &mut out) }.expect("it runs");
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

#[test]
fn every_kind_and_head_size_gives_what_the_specification_gives() {
    for kind in [RowKind::F16, RowKind::Q8_0, RowKind::Q4_0] {
        for shape in shapes() {
            for first in [1, 15, 64, 333] {
                let rows: Vec<usize> = (0..shape.kv_heads).map(|h| first + 40 * h).collect();
                check(shape, kind, &rows, None);
            }
        }
    }
}

#[test]
fn keys_that_stand_at_their_ranks_are_turned_to_them() {
    for pairing in [Pairing::Halves, Pairing::Neighbours] {
        for (shape, kind) in shapes()
            .into_iter()
            .zip([RowKind::F16, RowKind::Q8_0].into_iter().cycle())
        {
            let rows: Vec<usize> = (0..shape.kv_heads).map(|h| 70 - 30 * h).collect();
            check(shape, kind, &rows, Some(pairing));
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
    check(shape, RowKind::F16, &[700, 30], None);
    let shape = HeadShape {
        q_heads: 1,
        kv_heads: 1,
        head_dim: 64,
    };
    check(shape, RowKind::F16, &[3000], None);
}
