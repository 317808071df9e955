//! Every format, level and code path, against f64 sums over candle's dequantisation of the same blocks.

use candle_core::quantized::GgmlDType;
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

fn compare<T: GgmlType>(dtype: GgmlDType) {
    let mut drawn = Drawn(7);
    let block = T::BLCK_SIZE;
    for (rows, blocks) in [(1, 1), (3, 2), (4, 3), (33, 1), (37, 5), (64, 2)] {
        let cols = blocks * block;
        let (bytes, weights) = matrix::<T>(rows, cols, &mut drawn);
        for m in [1, 2, 3, 4, 5, 7, 9] {
            let inputs: Vec<f32> = (0..m * cols).map(|_| 3.0 * drawn.number()).collect();
            for level in SimdLevel::available() {
                level.with(|| {
                    check(
                        (dtype, rows, cols),
                        &bytes,
                        &weights,
                        &inputs,
                        &format!("{dtype:?} {rows}x{cols}, {m} inputs, {level:?}"),
                    );
                });
            }
        }
    }
}

fn check(
    (dtype, rows, cols): (GgmlDType, usize, usize),
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
            dtype,
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
    compare::<BlockQ4_0>(GgmlDType::Q4_0);
    compare::<BlockQ4_1>(GgmlDType::Q4_1);
    compare::<BlockQ5_0>(GgmlDType::Q5_0);
    compare::<BlockQ5_1>(GgmlDType::Q5_1);
    compare::<BlockQ8_0>(GgmlDType::Q8_0);
}

#[test]
fn blocks_of_256_are_multiplied_as_they_read() {
    compare::<BlockQ2K>(GgmlDType::Q2K);
    compare::<BlockQ3K>(GgmlDType::Q3K);
    compare::<BlockQ4K>(GgmlDType::Q4K);
    compare::<BlockQ5K>(GgmlDType::Q5K);
    compare::<BlockQ6K>(GgmlDType::Q6K);
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
            (&first, GgmlDType::Q8_0, 40, &mut a),
            (&second, GgmlDType::Q5_0, 7, &mut b),
        ]
        .map(|(blocks, dtype, rows, out)| Part {
            blocks,
            dtype,
            rows,
            out: SharedMut::new(out),
            add: false,
        });
        multiply(&parts, &quantised, &Stop::default()).unwrap();
        let alone = [(&first, GgmlDType::Q8_0, 40), (&second, GgmlDType::Q5_0, 7)].map(
            |(blocks, dtype, rows)| {
                let mut out = vec![0.0; m * rows];
                let part = Part {
                    blocks,
                    dtype,
                    rows,
                    out: SharedMut::new(&mut out),
                    add: false,
                };
                multiply(&[part], &quantised, &Stop::default()).unwrap();
                out
            },
        );
        assert_eq!([a, b], alone);
    }
}
