//! Nearest neighbours of tokens and merged rows: the kernels' source against the CPU reference.

use crate::support::*;
use half::f16;
use kept_cuda::{Angles, Compared, Comparing, Device, HEAD_DIMS, KeptRows, Mean, Merging, RowKind};
use kept_kernels::{HeadShape, Pairing, RowStore, mean_row, reference, row_length};

const KV_HEADS: usize = 2;

/// `[positions, columns]` cosines and sines of random angles.
struct Turned {
    cos: Vec<f32>,
    sin: Vec<f32>,
    rope_dim: usize,
    pairing: Pairing,
}

impl Turned {
    fn drawn(numbers: &mut Numbers, positions: usize, rope_dim: usize, pairing: Pairing) -> Self {
        let angles = numbers.rows(positions * rope_dim / 2);
        let of = |f: fn(f32) -> f32| angles.iter().map(|a| f(3.0 * a)).collect();
        Self {
            cos: of(f32::cos),
            sin: of(f32::sin),
            rope_dim,
            pairing,
        }
    }

    /// Undoes RoPE in every row of `rows`; row == position.
    fn back(&self, rows: &RowStore) -> RowStore {
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
fn ways(numbers: &mut Numbers, positions: usize, dim: usize) -> Vec<Option<Turned>> {
    let mut drawn = |rope_dim, pairing| Turned::drawn(numbers, positions, rope_dim, pairing);
    vec![
        None,
        Some(drawn(dim, Pairing::Halves)),
        Some(drawn(dim / 2, Pairing::Neighbours)),
    ]
}

/// Runs `with` the angles on the device.
fn on<T>(
    device: &Device,
    turned: Option<&Turned>,
    with: impl FnOnce(Option<Angles<'_>>) -> T,
) -> T {
    let there = turned.map(|turned| {
        [&turned.cos, &turned.sin].map(|numbers| device.copy_of(numbers).expect("memory"))
    });
    let angles = there.as_ref().zip(turned);
    with(angles.map(|([cos, sin], turned)| Angles {
        cos,
        sin,
        rope_dim: turned.rope_dim,
        pairing: turned.pairing,
    }))
}

/// The nearest neighbour of every token, and its similarity, equal the exact ones up to rounding.
#[test]
fn the_most_alike_is_found_for_every_head_size_and_number_of_tokens() {
    for device in devices() {
        let mut numbers = Numbers::new(41);
        for dim in HEAD_DIMS {
            let shape = HeadShape {
                q_heads: KV_HEADS,
                kv_heads: KV_HEADS,
                head_dim: dim,
            };
            for (n, tokens, others) in [(9, 1, 1), (90, 17, 40), (170, 64, 65), (300, 130, 150)] {
                let (host_keys, keys) = layer(&device, &mut numbers, &shape, n);
                let (host_values, values) = layer(&device, &mut numbers, &shape, n);
                let of_tokens: Vec<u32> = (0..tokens).map(|_| numbers.below(n) as u32).collect();
                let of_others: Vec<u32> = (0..others).map(|_| numbers.below(n) as u32).collect();
                for turned in ways(&mut numbers, n, dim) {
                    let plain = turned.as_ref().map(|turned| turned.back(&host_keys));
                    let plain = plain.as_ref().unwrap_or(&host_keys);
                    for head in 0..KV_HEADS {
                        let mut best = vec![(u32::MAX, f32::NAN); tokens];
                        on(&device, turned.as_ref(), |unrotated| {
                            let of = Compared {
                                keys: &keys,
                                values: &values,
                                head,
                                unrotated,
                            };
                            let mut scratch = Comparing::new(&device, n, dim).expect("memory");
                            device
                                .nearest_by_cosine(
                                    &of,
                                    (&of_tokens, &of_others),
                                    &mut best,
                                    &mut scratch,
                                )
                                .expect("it runs");
                        });
                        let alike = |a: u32, b: u32| {
                            cosine(plain, head, a, b) * cosine(&host_values, head, a, b)
                        };
                        // Keys whose RoPE was undone are rounded to halves.
                        let tolerance = if turned.is_some() { 1e-3 } else { 1e-5 };
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
fn of_equal_ones_the_first_counts_and_a_row_without_length_is_like_nothing() {
    let (device, dim, n) = (devices()[0].clone(), 64, 200);
    let shape = HeadShape {
        q_heads: 1,
        kv_heads: 1,
        head_dim: dim,
    };
    let mut numbers = Numbers::new(42);
    let (_, mut rows) = layer(&device, &mut numbers, &shape, n);
    let row = halves(&numbers.rows(dim));
    rows.data_mut().write(0, &row.repeat(n)).expect("written");
    let nothing = vec![f16::ZERO; dim];
    rows.data_mut().write(dim, &nothing).expect("written");
    let of = Compared {
        keys: &rows,
        values: &rows,
        head: 0,
        unrotated: None,
    };
    let others: Vec<u32> = (2..n as u32).collect();
    let (mut best, mut scratch) = (
        [(9, f32::NAN); 2],
        Comparing::new(&device, n, dim).expect("memory"),
    );
    device
        .nearest_by_cosine(&of, (&[0, 1], &others), &mut best, &mut scratch)
        .expect("it runs");
    assert!(best[0].0 == 0 && (best[0].1 - 1.0).abs() < 1e-5, "{best:?}");
    assert_eq!(best[1], (0, 0.0));
}

/// Classes of one, a few and many members; the rows equal the host's merged rows.
#[test]
fn classes_are_the_mean_of_their_members() {
    for device in devices() {
        let mut numbers = Numbers::new(43);
        for dim in HEAD_DIMS {
            let shape = HeadShape {
                q_heads: KV_HEADS,
                kv_heads: KV_HEADS,
                head_dim: dim,
            };
            let n = 60;
            let (host_keys, keys) = layer(&device, &mut numbers, &shape, n);
            let (host_values, values) = layer(&device, &mut numbers, &shape, n);
            let mut members = |count: usize| -> Vec<(u32, f32)> {
                let weights = numbers.rows(count);
                let member = |w: &f32| (numbers.below(n) as u32, w.abs() + 1e-4);
                weights.iter().map(member).collect()
            };
            let classes = [1, 2, 37, 1, 5, 3].map(&mut members);
            let all: usize = classes.iter().map(Vec::len).sum();
            for turned in ways(&mut numbers, n, dim) {
                let plain = turned.as_ref().map(|turned| turned.back(&host_keys));
                let plain = plain.as_ref().unwrap_or(&host_keys);
                for head in 0..KV_HEADS {
                    let mut merging = Merging::new(&device, 7, all + 3).expect("memory");
                    let members = classes.iter().map(|members| members.iter().copied());
                    merging.set(members).expect("written");
                    let mut target = KeptRows::new(&device, RowKind::F16, 8, dim).expect("memory");
                    let mut check = |mean: Mean<'_>, store: &RowStore, unit: bool| {
                        let source = if unit { &keys } else { &values };
                        device
                            .merge((source, head), &mut merging, &mean, &mut target)
                            .expect("it runs");
                        let found = numbers_of(&target);
                        for (class, members) in classes.iter().enumerate() {
                            let mut expected = vec![0.0; dim];
                            match members.as_slice() {
                                [(row, _)] => {
                                    expected.copy_from_slice(store.row(head, *row as usize));
                                }
                                _ => mean_row(
                                    store,
                                    head,
                                    members.iter().map(|&(row, w)| (row as usize, w)),
                                    unit,
                                    &mut expected,
                                ),
                            }
                            close(
                                &found[class * dim..][..dim],
                                &expected,
                                1.5e-3,
                                &format!("{dim}, head {head}, class {class}, keys {unit}"),
                            );
                        }
                    };
                    on(&device, turned.as_ref(), |angles| {
                        check(Mean::OfKeys(angles), plain, true);
                    });
                    check(Mean::OfValues, &host_values, false);
                    let mut sums = device.alloc_uninit(classes.len() * dim).expect("memory");
                    device
                        .add_up((&values, head), &merging, &mut sums)
                        .expect("it runs");
                    let found: Vec<f32> = sums.to_vec().expect("read");
                    for (members, found) in classes.iter().zip(found.chunks_exact(dim)) {
                        let mut expected = vec![0.0; dim];
                        for &(row, weight) in members {
                            let row = host_values.row(head, row as usize);
                            let pairs = expected.iter_mut().zip(row);
                            pairs.for_each(|(sum, x)| *sum += weight * x);
                        }
                        close(found, &expected, 2e-5, "sums");
                    }
                    let mut lengths = vec![f32::NAN; all];
                    merging.lengths(&mut lengths).expect("read");
                    let rows = classes.iter().flatten().map(|&(row, _)| row as usize);
                    let expected: Vec<f32> = rows
                        .map(|row| row_length(host_keys.row(head, row)))
                        .collect();
                    close(&lengths, &expected, 1e-5, "lengths");
                }
            }
        }
    }
}

/// All rows, `[rows, head_dim]`.
fn numbers_of(rows: &KeptRows) -> Vec<f32> {
    let bytes = rows.numbers().to_vec().expect("read");
    let halves = bytes.as_chunks::<2>().0.iter();
    halves.map(|b| f16::from_le_bytes(*b).to_f32()).collect()
}
