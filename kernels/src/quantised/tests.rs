//! Every format, level and code path, against f64 sums over the numbers of the same blocks: candle's dequantisation, or,
//! for formats that candle does not have, Kept's own, which `tests/tests/models/weight_types.rs` compares.

use candle_core::quantized::k_quants::{
    BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1, BlockQ5K, BlockQ6K,
    BlockQ8_0, GgmlType,
};

use super::*;
use crate::SimdLevel;

/// A pseudo-random number generator.
struct Drawn(u64);

impl Drawn {
    fn bits(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    fn number(&mut self) -> f32 {
        self.bits() as f32 / (1u32 << 30) as f32 - 1.0
    }
}

/// `rows` rows of `cols` random numbers: their blocks, and candle's dequantisation of the blocks.
fn matrix<T: GgmlType>(rows: usize, cols: usize, drawn: &mut Drawn) -> (Vec<u8>, Vec<f32>) {
    let numbers: Vec<f32> = (0..rows * cols).map(|_| drawn.number()).collect();
    let mut blocks = vec![T::zeros(); rows * cols / T::BLCK_SIZE];
    T::from_float(&numbers, &mut blocks);
    let mut read = vec![0.0; rows * cols];
    T::to_float(&blocks, &mut read);
    // SAFETY: blocks are plain numbers without padding (PlainBlock).
    let bytes = unsafe {
        std::slice::from_raw_parts(blocks.as_ptr().cast::<u8>(), size_of_val(blocks.as_slice()))
    };
    (bytes.to_vec(), read)
}

/// As [`matrix`], of random bytes that give numbers below 100, read by [`dequantise`].
fn random(kind: WeightType, rows: usize, cols: usize, drawn: &mut Drawn) -> (Vec<u8>, Vec<f32>) {
    let (numbers, size) = kind.block();
    let dequantise = dequantise(kind).unwrap();
    let (mut bytes, mut read) = (Vec::new(), Vec::new());
    while read.len() < rows * cols {
        let block: Vec<u8> = (0..size).map(|_| drawn.bits() as u8).collect();
        let mut out = vec![0.0; numbers];
        dequantise(&block, &mut out);
        if out.iter().all(|x| x.abs() < 100.0) {
            bytes.extend(block);
            read.extend(out);
        }
    }
    (bytes, read)
}

fn compare<T: GgmlType>(kind: WeightType) {
    assert_eq!(kind.block(), (T::BLCK_SIZE, size_of::<T>()));
    compare_with(kind, matrix::<T>);
}

fn compare_with(kind: WeightType, made: impl Fn(usize, usize, &mut Drawn) -> (Vec<u8>, Vec<f32>)) {
    let mut drawn = Drawn(7);
    let (block, _) = kind.block();
    for (rows, blocks) in [(1, 1), (3, 2), (4, 3), (33, 1), (37, 5), (64, 2)] {
        let cols = blocks * block;
        let (bytes, weights) = made(rows, cols, &mut drawn);
        for m in [1, 2, 3, 4, 5, 7, 9] {
            let inputs: Vec<f32> = (0..m * cols).map(|_| 3.0 * drawn.number()).collect();
            for level in SimdLevel::available() {
                level.with(|| {
                    check(
                        (kind, rows, cols),
                        &bytes,
                        &weights,
                        &inputs,
                        &format!("{kind} {rows}x{cols}, {m} inputs, {level:?}"),
                    );
                });
            }
        }
    }
}

fn check(
    (kind, rows, cols): (WeightType, usize, usize),
    bytes: &[u8],
    weights: &[f32],
    inputs: &[f32],
    what: &str,
) {
    let m = inputs.len() / cols;
    let mut quantised = QuantisedRows::new(inputs.len());
    quantised.fill(inputs, cols);
    for add in [false, true] {
        let mut out = vec![0.5f32; m * rows];
        let part = Part {
            blocks: bytes,
            kind,
            rows,
            out: SharedMut::new(&mut out),
            add,
        };
        multiply(&[part], &quantised, &Stop::default()).unwrap();
        for (i, out) in out.chunks_exact(rows).enumerate() {
            let input = quantised.rounded(i);
            for (row, found) in weights.chunks_exact(cols).zip(out) {
                let products = row.iter().zip(&input).map(|(w, x)| f64::from(*w) * x);
                let (mut sum, mut size) = (0.0, 0.0);
                for product in products {
                    sum += product;
                    size += product.abs();
                }
                let expected = sum + if add { 0.5 } else { 0.0 };
                let error = (f64::from(*found) - expected).abs();
                assert!(
                    error <= 1e-5 * size + 1e-6,
                    "{what}: {found} for {expected}"
                );
            }
        }
    }
}

#[test]
fn blocks_of_32_are_multiplied_as_they_read() {
    compare::<BlockQ4_0>(WeightType::Q4_0);
    compare::<BlockQ4_1>(WeightType::Q4_1);
    compare::<BlockQ5_0>(WeightType::Q5_0);
    compare::<BlockQ5_1>(WeightType::Q5_1);
    compare::<BlockQ8_0>(WeightType::Q8_0);
}

#[test]
fn blocks_of_256_are_multiplied_as_they_read() {
    compare::<BlockQ2K>(WeightType::Q2K);
    compare::<BlockQ3K>(WeightType::Q3K);
    compare::<BlockQ4K>(WeightType::Q4K);
    compare::<BlockQ5K>(WeightType::Q5K);
    compare::<BlockQ6K>(WeightType::Q6K);
}

#[test]
fn blocks_that_index_lists_are_multiplied_as_they_read() {
    let lists = WeightType::ALL
        .iter()
        .filter(|kind| kind.candle().is_none());
    for &kind in lists {
        compare_with(kind, |rows, cols, drawn| random(kind, rows, cols, drawn));
    }
}

#[test]
fn inputs_are_rounded_to_half_a_step_of_their_scale() {
    let mut drawn = Drawn(1);
    let inputs: Vec<f32> = (0..3 * 96)
        .map(|i| drawn.number() * (1 << (i % 5)) as f32)
        .collect();
    for level in SimdLevel::available() {
        level.with(|| {
            let mut quantised = QuantisedRows::new(inputs.len());
            quantised.fill(&inputs, 96);
            for (i, row) in inputs.chunks_exact(96).enumerate() {
                let rounded = quantised.rounded(i);
                for (block, rounded) in row.chunks_exact(32).zip(rounded.chunks_exact(32)) {
                    let most = block.iter().fold(0.0f32, |a, x| a.max(x.abs()));
                    for (x, y) in block.iter().zip(rounded) {
                        let error = (f64::from(*x) - y).abs();
                        assert!(
                            error <= f64::from(most) / 127.0 * 0.501,
                            "{level:?}: {x} {y}"
                        );
                    }
                }
            }
        });
    }
}

#[test]
fn zeros_and_the_smallest_numbers_give_zeros() {
    let mut quantised = QuantisedRows::new(64);
    let mut inputs = [0.0; 64];
    inputs[40] = 1e-40;
    quantised.fill(&inputs, 64);
    assert_eq!(quantised.rounded(0), vec![0.0; 64]);
}

#[test]
fn rows_that_are_filled_by_columns_are_those_filled_at_once() {
    let mut drawn = Drawn(11);
    let (rows, cols) = (19, 224);
    let inputs: Vec<f32> = (0..rows * cols).map(|_| drawn.number()).collect();
    let (mut once, mut parts) = (
        QuantisedRows::new(rows * cols),
        QuantisedRows::new(rows * cols),
    );
    once.fill(&inputs, cols);
    for columns in [96..224, 0..32, 32..96] {
        let part = inputs
            .chunks_exact(cols)
            .flat_map(|row| &row[columns.clone()]);
        let part: Vec<f32> = part.copied().collect();
        parts.fill_columns(&part, cols, columns);
    }
    for row in 0..rows {
        let (once, parts) = (once.row(row), parts.row(row));
        assert_eq!((once.bytes, once.scales), (parts.bytes, parts.scales));
        assert_eq!((once.sums, once.byte_sums), (parts.sums, parts.byte_sums));
    }
}

#[test]
fn several_matrices_share_their_inputs() {
    let mut drawn = Drawn(5);
    let (first, _) = matrix::<BlockQ8_0>(40, 64, &mut drawn);
    let (second, _) = matrix::<BlockQ5_0>(7, 64, &mut drawn);
    for m in [1, 6] {
        let inputs: Vec<f32> = (0..m * 64).map(|_| drawn.number()).collect();
        let mut quantised = QuantisedRows::new(inputs.len());
        quantised.fill(&inputs, 64);
        let (mut a, mut b) = (vec![0.0; m * 40], vec![0.0; m * 7]);
        let parts = [
            (&first, WeightType::Q8_0, 40, &mut a),
            (&second, WeightType::Q5_0, 7, &mut b),
        ]
        .map(|(blocks, kind, rows, out)| Part {
            blocks,
            kind,
            rows,
            out: SharedMut::new(out),
            add: false,
        });
        multiply(&parts, &quantised, &Stop::default()).unwrap();
        let alone = [
            (&first, WeightType::Q8_0, 40),
            (&second, WeightType::Q5_0, 7),
        ]
        .map(|(blocks, kind, rows)| {
            let mut out = vec![0.0; m * rows];
            let part = Part {
                blocks,
                kind,
                rows,
                out: SharedMut::new(&mut out),
                add: false,
            };
            multiply(&[part], &quantised, &Stop::default()).unwrap();
            out
        });
        assert_eq!([a, b], alone);
    }
}

#[test]
fn every_half_is_converted() {
    for bits in 0..=u16::MAX {
        let expected = half::f16::from_bits(bits).to_f32();
        let found = format::half(bits);
        assert!(
            found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(),
            "{bits:#x}: {found}, not {expected}"
        );
    }
}

#[test]
fn rows_are_added_as_they_read() {
    let mut drawn = Drawn(5);
    let (rows, blocks) = (5, 2);
    for &kind in WeightType::ALL.iter().filter(|kind| kind.is_quantised()) {
        let cols = blocks * kind.block().0;
        let (bytes, weights) = random(kind, rows, cols, &mut drawn);
        let factors: Vec<f32> = (0..rows).map(|_| drawn.number()).collect();
        for level in SimdLevel::available() {
            let mut out = vec![0.5; cols];
            level.with(|| add_rows(kind).unwrap()(&bytes, &factors, &mut out));
            for (column, found) in out.iter().enumerate() {
                let products =
                    (0..rows).map(|row| f64::from(factors[row] * weights[row * cols + column]));
                let error = (f64::from(*found) - 0.5 - products.sum::<f64>()).abs();
                assert!(error < 1e-3, "{kind} {level:?}: {error}");
            }
        }
    }
}
