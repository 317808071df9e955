//! Nearest neighbours of tokens and merged rows: the kernels' source against the CPU reference.

use crate::support::*;
use half::f16;
use kept_cuda::{
    CosineScratch, Device, HEAD_DIMS, HeadKeysValues, KeptRows, LayerRows, Mean, Merging,
    RopeTables, RowKind,
};
use kept_kernels::{HeadShape, Pairing, RowStore, mean_row, reference, row_norm};

const KV_HEADS: usize = 2;

/// `[positions, columns]` cosines and sines of random angles.
struct Rope {
    cos: Vec<f32>,
    sin: Vec<f32>,
    rope_dim: usize,
    pairing: Pairing,
}

impl Rope {
    fn random(numbers: &mut Numbers, positions: usize, rope_dim: usize, pairing: Pairing) -> Self {
        let (cos, sin) = angles(numbers, positions, rope_dim / 2);
        Self {
            cos,
            sin,
            rope_dim,
            pairing,
        }
    }

    /// Undoes RoPE in every row of `rows`; row == position.
    fn unrotate(&self, rows: &RowStore) -> RowStore {
        let (mut rows, columns) = (rows.clone(), self.rope_dim / 2);
        for head in 0..rows.kv_heads() {
            for position in 0..rows.capacity(head) {
                let own = position * columns..(position + 1) * columns;
                let back: Vec<f32> = self.sin[own.clone()].iter().map(|s| -s).collect();
                let (dim, row) = (rows.head_dim(), rows.row_mut(head, position));
                reference::rotate(row, 1, dim, &self.cos[own], &back, self.pairing);
            }
        }
        rows
    }
}

/// With and without RoPE to undo.
fn rope_variants(numbers: &mut Numbers, positions: usize, dim: usize) -> Vec<Option<Rope>> {
    let mut random = |rope_dim, pairing| Rope::random(numbers, positions, rope_dim, pairing);
    vec![
        None,
        Some(random(dim, Pairing::Halves)),
        Some(random(dim / 2, Pairing::Neighbours)),
    ]
}

/// Runs `with` the angles on the device.
fn with_angles<T>(
    device: &Device,
    rope: Option<&Rope>,
    with: impl FnOnce(Option<RopeTables<'_>>) -> T,
) -> T {
    let tables = rope
        .map(|rope| [&rope.cos, &rope.sin].map(|numbers| device.copy_of(numbers).expect("memory")));
    let angles = tables.as_ref().zip(rope);
    with(angles.map(|([cos, sin], rope)| RopeTables {
        cos,
        sin,
        rope_dim: rope.rope_dim,
        pairing: rope.pairing,
    }))
}

/// The nearest neighbour of every token, and its similarity, equal the exact ones up to rounding.
#[test]
fn nearest_by_cosine_matches_the_host() {
    for device in devices() {
        let mut numbers = Numbers::new(41);
        for dim in HEAD_DIMS {
            let shape = HeadShape::new(KV_HEADS, KV_HEADS, dim);
            for (n, tokens, others) in [(9, 1, 1), (90, 17, 40), (170, 64, 65), (300, 130, 150)] {
                let (host_keys, keys) = layer(&device, &mut numbers, &shape, n);
                let (host_values, values) = layer(&device, &mut numbers, &shape, n);
                let of_tokens: Vec<u32> = (0..tokens).map(|_| numbers.below(n) as u32).collect();
                let of_others: Vec<u32> = (0..others).map(|_| numbers.below(n) as u32).collect();
                for rope in rope_variants(&mut numbers, n, dim) {
                    let plain = rope.as_ref().map(|rope| rope.unrotate(&host_keys));
                    let plain = plain.as_ref().unwrap_or(&host_keys);
                    for head in 0..KV_HEADS {
                        let mut best = vec![(u32::MAX, f32::NAN); tokens];
                        with_angles(&device, rope.as_ref(), |unrotated| {
                            let of = HeadKeysValues {
                                keys: &keys,
                                values: &values,
                                head,
                                unrotated,
                            };
                            let mut scratch = CosineScratch::new(&device, n, dim).expect("memory");
                            device
                                .nearest_by_cosine(
                                    &of,
                                    &of_tokens,
                                    &of_others,
                                    &mut best,
                                    &mut scratch,
                                )
                                .expect("it runs");
                        });
                        let alike = |a: u32, b: u32| {
                            cosine(plain, head, a, b) * cosine(&host_values, head, a, b)
                        };
                        // Keys whose RoPE was undone are rounded to halves.
                        let tolerance = if rope.is_some() { 1e-3 } else { 1e-5 };
                        for (&token, &(found, product)) in of_tokens.iter().zip(&best) {
                            let all = of_others.iter().map(|&other| alike(token, other));
                            let most = all.fold(f64::NEG_INFINITY, f64::max);
                            let exact = alike(token, of_others[found as usize]);
                            assert!(
                                (exact - most).abs() < tolerance
                                    && (f64::from(product) - exact).abs() < tolerance,
                                "{dim} {n}, head {head}, token {token}: {found} by {product}, {exact} of {most}"
                            );
                        }
                    }
                }
            }
        }
    }
}

fn cosine(rows: &RowStore, head: usize, a: u32, b: u32) -> f64 {
    let (a, b) = (rows.row(head, a as usize), rows.row(head, b as usize));
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        let pairs = a.iter().zip(b);
        pairs.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn ties_take_the_first_and_zero_rows_have_cosine_0() {
    let (device, dim, n) = (devices()[0].clone(), 64, 200);
    let shape = HeadShape::new(1, 1, dim);
    let mut numbers = Numbers::new(42);
    let (_, mut rows) = layer(&device, &mut numbers, &shape, n);
    let row = halves(&numbers.rows(dim));
    rows.data_mut().write(0, &row.repeat(n)).expect("written");
    let nothing = vec![f16::ZERO; dim];
    rows.data_mut().write(dim, &nothing).expect("written");
    let of = HeadKeysValues {
        keys: &rows,
        values: &rows,
        head: 0,
        unrotated: None,
    };
    let others: Vec<u32> = (2..n as u32).collect();
    let (mut best, mut scratch) = (
        [(9, f32::NAN); 2],
        CosineScratch::new(&device, n, dim).expect("memory"),
    );
    device
        .nearest_by_cosine(&of, &[0, 1], &others, &mut best, &mut scratch)
        .expect("it runs");
    assert!(best[0].0 == 0 && (best[0].1 - 1.0).abs() < 1e-5, "{best:?}");
    assert_eq!(best[1], (0, 0.0));
}

/// Members of a class: rows and their weights.
type Members = Vec<(u32, f32)>;

/// The host's merged rows of `head`, `[classes, head_dim]`. A class of one has its member's row.
fn mean_rows(store: &RowStore, head: usize, classes: &[Members], unit: bool) -> Vec<f32> {
    let dim = store.head_dim();
    let mut rows = vec![0.0; classes.len() * dim];
    for (members, out) in classes.iter().zip(rows.chunks_exact_mut(dim)) {
        match members.as_slice() {
            [(row, _)] => out.copy_from_slice(store.row(head, *row as usize)),
            _ => {
                let members = members.iter().map(|&(row, w)| (row as usize, w));
                mean_row(store, head, members, unit, out);
            }
        }
    }
    rows
}

/// Weighted sums of the members' rows of `head`, `[classes, head_dim]`.
fn sum_rows(store: &RowStore, head: usize, classes: &[Members]) -> Vec<f32> {
    let dim = store.head_dim();
    let mut sums = vec![0.0; classes.len() * dim];
    for (members, sums) in classes.iter().zip(sums.chunks_exact_mut(dim)) {
        for &(row, weight) in members {
            let pairs = sums.iter_mut().zip(store.row(head, row as usize));
            pairs.for_each(|(sum, x)| *sum += weight * x);
        }
    }
    sums
}

/// Classes of one, a few and many members; the rows equal the host's merged rows.
#[test]
fn merged_rows_are_the_means_of_their_members() {
    for device in devices() {
        let mut numbers = Numbers::new(43);
        for dim in HEAD_DIMS {
            let shape = HeadShape::new(KV_HEADS, KV_HEADS, dim);
            let n = 60;
            let (host_keys, keys) = layer(&device, &mut numbers, &shape, n);
            let (host_values, values) = layer(&device, &mut numbers, &shape, n);
            let mut members = |count: usize| -> Members {
                let weights = numbers.rows(count);
                let member = |w: &f32| (numbers.below(n) as u32, w.abs() + 1e-4);
                weights.iter().map(member).collect()
            };
            let classes = [1, 2, 37, 1, 5, 3].map(&mut members);
            let all: usize = classes.iter().map(Vec::len).sum();
            for rope in rope_variants(&mut numbers, n, dim) {
                let plain = rope.as_ref().map(|rope| rope.unrotate(&host_keys));
                let plain = plain.as_ref().unwrap_or(&host_keys);
                for head in 0..KV_HEADS {
                    let mut merging = Merging::new(&device, 7, all + 3).expect("memory");
                    let members = classes.iter().map(|members| members.iter().copied());
                    merging.set(members).expect("written");
                    let mut target = KeptRows::new(&device, RowKind::F16, 8, dim).expect("memory");
                    let mut check = |source: &LayerRows, mean: Mean<'_>, expected: Vec<f32>| {
                        device
                            .merge(source.head(head), &mut merging, &mean, &mut target)
                            .expect("it runs");
                        let (found, what) = (numbers_of(&target), format!("{dim}, head {head}"));
                        close(&found[..expected.len()], &expected, 1.5e-3, &what);
                    };
                    with_angles(&device, rope.as_ref(), |angles| {
                        let expected = mean_rows(plain, head, &classes, true);
                        check(&keys, Mean::OfKeys(angles), expected);
                    });
                    let expected = mean_rows(&host_values, head, &classes, false);
                    check(&values, Mean::OfValues, expected);
                    let mut sums = device.alloc_uninit(classes.len() * dim).expect("memory");
                    device
                        .add_up(values.head(head), &merging, &mut sums)
                        .expect("it runs");
                    let expected = sum_rows(&host_values, head, &classes);
                    close(&sums.to_vec().expect("read"), &expected, 2e-5, "sums");
                    let mut norms = vec![f32::NAN; all];
                    merging.norms(&mut norms).expect("read");
                    let rows = classes.iter().flatten().map(|&(row, _)| row as usize);
                    let expected: Vec<f32> =
                        rows.map(|row| row_norm(host_keys.row(head, row))).collect();
                    close(&norms, &expected, 1e-5, "norms");
                }
            }
        }
    }
}

/// All rows, `[rows, head_dim]`.
fn numbers_of(rows: &KeptRows) -> Vec<f32> {
    let bytes = rows.elements().to_vec().expect("read");
    let halves = bytes.as_chunks::<2>().0.iter();
    halves.map(|b| f16::from_le_bytes(*b).to_f32()).collect()
}
