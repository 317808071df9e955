//! Row-wise operations and kept rows: the kernels' source against the CPU reference.

use crate::support::*;
use half::f16;
use kept_cuda::{
    Activation, GatherIndices, HEAD_DIMS, Heads, Indices, KeptRows, RmsNorm, RopeTables, RowKind,
    RowPositions,
};
use kept_kernels::{CacheType, HeadShape, Pairing, RowStore, reference};

const PAIRINGS: [Pairing; 2] = [Pairing::Halves, Pairing::Neighbours];

#[test]
fn rms_norm_writes_and_adds() {
    let (device, mut numbers) = (devices()[0].clone(), Numbers::new(1));
    for (rows, width) in [(1, 32), (3, 100), (2, 1000)] {
        let (x, weight, residual) = (
            numbers.rows(rows * width),
            numbers.rows(width),
            numbers.rows(rows * width),
        );
        let mut expected = vec![0.0; x.len()];
        reference::rms_norm(&x, &weight, 1e-5, &mut expected);
        let [x, weight] = [&x, &weight].map(|n| device.copy_of(n).expect("memory"));
        let mut out = device.alloc_uninit(x.len()).expect("memory");
        let mut sum = device.copy_of(&residual).expect("memory");
        let norm = RmsNorm {
            weight: &weight,
            eps: 1e-5,
        };
        device
            .rms_norm(&x, norm, rows, Some(&mut out), Some(&mut sum))
            .expect("it runs");
        close(&out.to_vec().expect("read"), &expected, 1e-5, "norm");
        let added: Vec<f32> = residual.iter().zip(&expected).map(|(a, b)| a + b).collect();
        close(&sum.to_vec().expect("read"), &added, 1e-5, "added");
    }
}

#[test]
fn heads_get_bias_norm_and_rope_in_both_layouts() {
    let (device, mut numbers) = (devices()[0].clone(), Numbers::new(2));
    let (rows, heads, first) = (3, 6, 4);
    for dim in HEAD_DIMS {
        for (pairing, rope_dim) in PAIRINGS.into_iter().flat_map(|p| [(p, dim), (p, dim / 2)]) {
            let (x, bias, norm) = (
                numbers.rows(rows * heads * dim),
                numbers.rows(heads * dim),
                numbers.rows(dim),
            );
            let (cos, sin) = angles(&mut numbers, 20, rope_dim / 2);
            let mut expected: Vec<f32> = x
                .iter()
                .enumerate()
                .map(|(i, x)| x + bias[i % (heads * dim)])
                .collect();
            let biased = expected.clone();
            reference::rms_norm(&biased, &norm, 1e-6, &mut expected);
            let columns = rope_dim / 2;
            let own = first * columns..(first + rows) * columns;
            reference::rotate(
                &mut expected,
                heads,
                dim,
                &cos[own.clone()],
                &sin[own],
                pairing,
            );

            let copy = |n: &[f32]| device.copy_of(n).expect("memory");
            let (x, bias, norm, cos, sin) =
                (copy(&x), copy(&bias), copy(&norm), copy(&cos), copy(&sin));
            let at = Indices::new(&device, &[4u32, 5, 6]).expect("memory");
            for positions in [RowPositions::From(first), RowPositions::At(&at)] {
                let task = Heads {
                    projected: &x,
                    rows,
                    heads,
                    dim,
                    bias: Some(&bias),
                    norm: Some(RmsNorm {
                        weight: &norm,
                        eps: 1e-6,
                    }),
                    angles: Some(RopeTables {
                        cos: &cos,
                        sin: &sin,
                        rope_dim,
                        pairing,
                    }),
                    positions,
                };
                let mut out = device.alloc_uninit(rows * heads * dim).expect("memory");
                device
                    .norm_and_rotate_queries(&task, &mut out)
                    .expect("it runs");
                let found: Vec<f32> = out
                    .to_vec()
                    .expect("read")
                    .iter()
                    .map(|x: &f16| x.to_f32())
                    .collect();
                close(&found, &expected, 4e-3, "queries");
                let mut layer = kept_cuda::LayerRows::new(&device, heads, 9, dim).expect("memory");
                layer.data_mut().clear().expect("zeros");
                device
                    .norm_and_rotate_rows(&task, 5, &mut layer)
                    .expect("it runs");
                let found = layer.data().to_vec().expect("read");
                for (i, expected) in expected.iter().enumerate() {
                    let (row, head, column) = (i / heads / dim, i / dim % heads, i % dim);
                    let found = found[(head * 9 + 5 + row) * dim + column].to_f32();
                    close(&[found], &[*expected], 4e-3, "rows");
                }
            }
        }
    }
}

#[test]
fn activations_and_sums_match_the_reference() {
    let (device, mut numbers) = (devices()[0].clone(), Numbers::new(4));
    let (rows, width) = (2, 300);
    let both = numbers.rows(2 * rows * width);
    let both: Vec<f32> = both.iter().map(|x| 6.0 * x).collect();
    let (gates, ups) = both.split_at(rows * width);
    for activation in [Activation::Silu, Activation::Gelu] {
        let mut expected = gates.to_vec();
        match activation {
            Activation::Silu => reference::silu_mul(&mut expected, ups),
            Activation::Gelu => reference::gelu_mul(&mut expected, ups),
        }
        let mut gate = device.copy_of(gates).expect("memory");
        let up = device.copy_of(ups).expect("memory");
        device
            .activate(activation, &mut gate, &up, rows, width)
            .expect("it runs");
        close(&gate.to_vec().expect("read"), &expected, 1e-4, "activated");
    }
    let (mut expected, mut x) = (both.clone(), device.copy_of(&both).expect("memory"));
    let y = device.copy_of(&both).expect("memory");
    device.add(&mut x, &y, 700).expect("it runs");
    expected
        .iter_mut()
        .zip(&both)
        .take(700)
        .for_each(|(a, b)| *a += b);
    close(&x.to_vec().expect("read"), &expected, 1e-5, "added");
}

/// Rows on the device equal those of a host store at the same physical rows, except for rounding differences from
/// another order of additions.
#[track_caller]
fn same_rows(found: &KeptRows, expected: &KeptRows, what: &str) {
    let bytes = |rows: &KeptRows| rows.elements().to_vec().expect("read");
    let (numbers, wanted) = (bytes(found), bytes(expected));
    let other = numbers.iter().zip(&wanted).filter(|(a, b)| a != b).count();
    assert!(
        other * 100 <= wanted.len(),
        "{what}: {other} of {} bytes are others",
        wanted.len()
    );
    let floats = |halves: &[f16]| halves.iter().map(|x| x.to_f32()).collect::<Vec<f32>>();
    for of in [KeptRows::scales, KeptRows::wide] {
        let [found, expected] = [found, expected].map(|rows| of(rows).to_vec().expect("read"));
        close(&floats(&found), &floats(&expected), 2e-3, what);
    }
}

#[test]
fn kept_rows_match_the_host_store_for_every_type() {
    for device in devices() {
        let mut numbers = Numbers::new(6);
        for dim in HEAD_DIMS {
            let shape = HeadShape::new(2, 2, dim);
            let (host, source) = layer(&device, &mut numbers, &shape, 40);
            let (cos, sin) = angles(&mut numbers, 40, dim / 2);
            let positions = [3u32, 9, 31, 0, 39, 12, 13];
            let heads = [0u32, 0, 0, 1, 1, 1, 1];
            let targets = [6u32, 0, 1, 2, 3, 4, 5];
            let copy = |n: &[u32]| Indices::new(&device, n).expect("memory");
            let (at, of, to) = (copy(&positions), copy(&heads), copy(&targets));
            let tables = [&cos, &sin].map(|n| device.copy_of(n).expect("memory"));
            for (kind, unrotated, moved) in [
                (CacheType::F16, false, true),
                (CacheType::F16, true, false),
                (CacheType::Q8_0, true, true),
                (CacheType::Q8_0, false, false),
                (CacheType::Q4_0, false, true),
                (CacheType::Q4_0, true, false),
            ] {
                // In a quantised cache the last rows stay wide.
                let narrow = if kind == CacheType::F16 { 7 } else { 4 };
                let mut expected = RowStore::stored(kind, dim, &[7], &[narrow], false);
                for i in 0..7 {
                    let mut row = host.row(heads[i] as usize, positions[i] as usize).to_vec();
                    if unrotated {
                        let own =
                            positions[i] as usize * dim / 2..(positions[i] as usize + 1) * dim / 2;
                        let back: Vec<f32> = sin[own.clone()].iter().map(|s| -s).collect();
                        reference::rotate(&mut row, 1, dim, &cos[own], &back, Pairing::Halves);
                    }
                    let target = if moved { targets[i] as usize } else { i };
                    expected.write(0, target, &row);
                }
                let row_kind = RowKind::of(kind).expect("a kind that a device has");
                let rows = || {
                    KeptRows::with_wide(&device, row_kind, narrow, 7 - narrow, dim).expect("memory")
                };
                let (mut kept, mut wanted) = (rows(), rows());
                let all: Vec<(usize, usize)> = (0..7).map(|i| (i, i)).collect();
                wanted.write(&expected, 0, &all).expect("written");
                let unrotated = unrotated.then_some(RopeTables {
                    cos: &tables[0],
                    sin: &tables[1],
                    rope_dim: dim,
                    pairing: Pairing::Halves,
                });
                let which = GatherIndices {
                    positions: &at,
                    heads: &of,
                    targets: moved.then_some(&to),
                    slots: 7,
                };
                device
                    .gather_rows(&source, &which, unrotated, &mut kept)
                    .expect("it runs");
                same_rows(&kept, &wanted, &format!("{kind} of {dim}, moved {moved}"));
            }
        }
    }
}

/// A row that moves from f16 to quantised is rounded as in the host's stores.
#[test]
fn wide_rows_are_quantised_as_on_the_host() {
    let (device, mut numbers) = (devices()[0].clone(), Numbers::new(11));
    for dim in [64, 80, 96, 128, 256] {
        for kind in [CacheType::Q8_0, CacheType::Q4_0] {
            let mut store = RowStore::stored(kind, dim, &[9], &[5], true);
            for row in 0..9 {
                store.write(0, row, &numbers.rows(dim));
            }
            let row_kind = RowKind::of(kind).expect("a kind that a device has");
            let all: Vec<(usize, usize)> = (0..9).map(|i| (i, i)).collect();
            let rows = || KeptRows::with_wide(&device, row_kind, 5, 4, dim).expect("memory");
            let (mut found, mut expected) = (rows(), rows());
            found.write(&store, 0, &all).expect("written");
            // Physical rows 6 and 8 replace 1 and 4.
            store.quantise_and_swap(0, 6, 1);
            store.quantise_and_swap(0, 8, 4);
            let mut all: Vec<(usize, usize)> = (0..9)
                .map(|row| (store.physical_row(0, row), row))
                .collect();
            all.sort_unstable();
            expected.write(&store, 0, &all).expect("written");
            let copy = |n: &[u32]| Indices::new(&device, n).expect("memory");
            let (from, to) = (copy(&[1, 3, 0]), copy(&[1, 4, 2]));
            device.narrow(&mut found, &from, &to, 2).expect("it runs");
            same_rows(&found, &expected, &format!("{kind} of {dim}"));
        }
    }
}

#[test]
fn a_bias_is_added_to_every_row() {
    let (device, mut numbers) = (devices()[0].clone(), Numbers::new(31));
    let (x, bias) = (numbers.rows(5 * 300), numbers.rows(300));
    let mut rows = device.copy_of(&x).expect("memory");
    let added = device.copy_of(&bias).expect("memory");
    device.add_to_rows(&mut rows, &added, 4).expect("it runs");
    let expected: Vec<f32> = (x.iter().enumerate())
        .map(|(i, x)| if i < 4 * 300 { x + bias[i % 300] } else { *x })
        .collect();
    close(&rows.to_vec().expect("read"), &expected, 1e-6, "added");
}

/// Parts of a buffer share its memory: a write through one is visible through the other.
#[test]
fn shared_buffers_see_each_others_writes() {
    let device = devices()[0].clone();
    let mut all = device.copy_of(&[1u32, 2, 3, 4, 5]).expect("memory");
    let mut part = all.share(1..4);
    part.write(1, &[30]).expect("written");
    assert_eq!(all.to_vec().expect("read"), [1, 2, 30, 4, 5]);
    all.write(1, &[20]).expect("written");
    drop(all);
    assert_eq!(part.to_vec().expect("read"), [20, 30, 4]);
}
