//! Key scores and query sums that need no attention pass: the kernels' source against the CPU reference.

use crate::support::*;
use kept_cuda::{HEAD_DIMS, QuerySums, RowScoreScratch};
use kept_kernels::{HeadShape, RowStore, row_norm};

const KV_HEADS: usize = 2;

fn shape(head_dim: usize) -> HeadShape {
    HeadShape::new(2 * KV_HEADS, KV_HEADS, head_dim)
}

/// Elements of one row of a store, in f64.
fn row(rows: &RowStore, head: usize, at: usize) -> impl Iterator<Item = f64> + Clone + '_ {
    rows.row(head, at).iter().map(|x| f64::from(*x))
}

fn dot(a: impl Iterator<Item = f64>, b: impl Iterator<Item = f64>) -> f64 {
    a.zip(b).map(|(a, b)| a * b).sum()
}

/// Documents shorter and longer than a block's share of keys; scores of fewer and of more keys than the document has.
#[test]
fn cosine_to_mean_matches_the_definition() {
    for device in devices() {
        let mut numbers = Numbers::new(51);
        for dim in HEAD_DIMS {
            for (n, document, scored) in [(3, 1, 1), (300, 256, 300), (600, 600, 555)] {
                let (host, keys) = layer(&device, &mut numbers, &shape(dim), n);
                let mut scratch = RowScoreScratch::new(&device, n, dim).expect("memory");
                for head in 0..KV_HEADS {
                    let mut found = vec![f32::NAN; scored];
                    device
                        .cosine_to_mean(keys.head(head), document, &mut found, &mut scratch)
                        .expect("it runs");
                    let norm = |at: usize| dot(row(&host, head, at), row(&host, head, at)).sqrt();
                    let mut mean = vec![0.0f64; dim];
                    for at in 0..document {
                        let pairs = mean.iter_mut().zip(row(&host, head, at));
                        pairs.for_each(|(m, x)| *m += x / norm(at));
                    }
                    let mean_norm = dot(mean.iter().copied(), mean.iter().copied()).sqrt();
                    let score = |at: usize| {
                        let dot = dot(row(&host, head, at), mean.iter().copied());
                        (-dot / norm(at) / mean_norm) as f32
                    };
                    let expected: Vec<f32> = (0..scored).map(score).collect();
                    close(
                        &found,
                        &expected,
                        2e-6,
                        &format!("{dim} {n} {document}, head {head}"),
                    );
                }
            }
        }
    }
}

#[test]
fn bilinear_forms_match_the_definition() {
    for device in devices() {
        let mut numbers = Numbers::new(52);
        for dim in HEAD_DIMS {
            for (n, tokens) in [(2, 0..1), (150, 20..149), (130, 0..128)] {
                let (host, keys) = layer(&device, &mut numbers, &shape(dim), n);
                let linear = numbers.rows(dim);
                let half = numbers.rows(dim * dim);
                let at = |i: usize, j: usize| (half[i * dim + j] + half[j * dim + i]) / 8.0;
                let matrix: Vec<f32> = (0..dim * dim).map(|i| at(i / dim, i % dim)).collect();
                let mut scratch = RowScoreScratch::new(&device, n, dim).expect("memory");
                for head in 0..KV_HEADS {
                    for matrix in [None, Some(matrix.as_slice())] {
                        let mut found = vec![f32::NAN; tokens.len()];
                        device
                            .bilinear_forms(
                                keys.head(head),
                                tokens.clone(),
                                &linear,
                                matrix,
                                &mut found,
                                &mut scratch,
                            )
                            .expect("it runs");
                        for (at, found) in tokens.clone().zip(found) {
                            let x: Vec<f64> = row(&host, head, at).collect();
                            let terms = x.iter().zip(&linear).map(|(x, a)| x * f64::from(*a));
                            let mut expected: f64 = terms.clone().sum();
                            // The rounding error grows with the magnitude of the terms.
                            let mut size = 1.0 + terms.map(f64::abs).sum::<f64>();
                            for (i, m) in matrix.into_iter().flatten().enumerate() {
                                let term = f64::from(*m) * x[i / dim] * x[i % dim];
                                expected += term;
                                size += term.abs();
                            }
                            assert!(
                                (f64::from(found) - expected).abs() < 1e-6 * size,
                                "{dim}, head {head}, key {at}: {found}, {expected} of {size}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn row_norms_match_the_host() {
    let (device, mut numbers) = (devices()[0].clone(), Numbers::new(53));
    for dim in HEAD_DIMS {
        let (host, rows) = layer(&device, &mut numbers, &shape(dim), 70);
        let mut scratch = RowScoreScratch::new(&device, 70, dim).expect("memory");
        for head in 0..KV_HEADS {
            let mut found = vec![f32::NAN; 59];
            device
                .norms(rows.head(head), 7..66, &mut found, &mut scratch)
                .expect("it runs");
            let expected: Vec<f32> = (7..66).map(|at| row_norm(host.row(head, at))).collect();
            close(&found, &expected, 1e-5, &format!("{dim}, head {head}"));
        }
    }
}

/// Several chunks, also with a part of a chunk's rows; then the sums are added to existing host sums, and the next
/// layer starts from zero.
#[test]
fn query_sums_accumulate_and_reset() {
    for device in devices() {
        let mut numbers = Numbers::new(54);
        for dim in HEAD_DIMS {
            let (heads, rows) = (3, 90);
            let width = heads * dim;
            for covariance in [false, true] {
                let mut query_sums =
                    QuerySums::new(&device, heads, dim, covariance).expect("memory");
                for _layer in 0..2 {
                    let square = if covariance { width * dim } else { 0 };
                    let (mut sums, mut products) = (vec![0.5f64; width], vec![0.25; square]);
                    let (mut expected, mut crossed) = (sums.clone(), products.clone());
                    for part in [0..rows, 17..rows, 5..5] {
                        let chunk = numbers.rows(rows * width);
                        let queries = queries(&device, &chunk);
                        device
                            .add_queries(&queries, part.clone(), &mut query_sums)
                            .expect("it runs");
                        for query in chunk.chunks_exact(width).skip(part.start).take(part.len()) {
                            for (at, x) in query.iter().enumerate() {
                                expected[at] += f64::from(*x);
                            }
                            for (at, sum) in crossed.iter_mut().enumerate() {
                                let (head, i, j) = (at / dim / dim, at / dim % dim, at % dim);
                                if j <= i {
                                    let of = |i: usize| f64::from(query[head * dim + i]);
                                    *sum += of(i) * of(j);
                                }
                            }
                        }
                    }
                    query_sums.take(&mut sums, &mut products).expect("read");
                    let what = format!("{dim}, products {covariance}");
                    for (found, expected) in [(&sums, &expected), (&products, &crossed)] {
                        for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
                            assert!(
                                (found - expected).abs() < 2e-4,
                                "{what}: {at} is {found}, not {expected}"
                            );
                        }
                    }
                }
            }
        }
    }
}
