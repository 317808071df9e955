//! Matrices that a file stores transposed, one for each head: the factor of keys in files for absorbed attention.
//!
//! ```text
//! out of head h [rows, outputs] = inputs [rows, n] * matrix h [n, outputs]
//! ```
//!
//! Few rows are multiplied in place. For many, the matrices are copied as f32 for candle,
//! one layer at a time, like floating-point weights (`weights.rs`).

use std::sync::OnceLock;

use candle_core::{Device, Tensor};
use kept_kernels::mapped::MappedMatrix;
use kept_kernels::{Stop, Stopped, threads};

use crate::weights::{BLOCK_ROWS, FEW_ROWS};

/// The matrices of all heads, prepared for a number of rows.
pub(crate) struct Transposed<'a> {
    /// `[heads]` of `[n, outputs]`
    matrices: &'a [MappedMatrix],
    /// `[heads]` of `[n, outputs]`, copied when first multiplied. Empty for few rows.
    copies: Vec<OnceLock<Tensor>>,
}

/// The output of one head, `[rows, outputs]`.
pub(crate) struct HeadRows(pub(crate) Vec<f32>);

impl HeadRows {
    pub(crate) fn new(rows: usize, outputs: usize) -> Self {
        Self(vec![0.0; rows * outputs])
    }

    /// Bytes of a head's.
    pub(crate) fn bytes(rows: usize, outputs: usize) -> u64 {
        (rows * outputs * size_of::<f32>() + size_of::<Self>()) as u64
    }
}

impl<'a> Transposed<'a> {
    /// With copies for up to `copied_rows` rows, unless they are few.
    pub(crate) fn new(matrices: &'a [MappedMatrix], copied_rows: usize) -> Self {
        let copies = match copied_rows < FEW_ROWS {
            true => 0,
            false => matrices.len(),
        };
        Self {
            matrices,
            copies: (0..copies).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Bytes of the copies.
    pub(crate) fn copied_bytes(matrices: &[MappedMatrix]) -> u64 {
        let elements = matrices.iter().map(|m| m.rows() * m.cols());
        (elements.sum::<usize>() * size_of::<f32>()) as u64
    }

    /// Writes `heads[h]` for the rows of `inputs [rows, n]`. Without copies, allocates nothing.
    ///
    /// # Errors
    /// [`Stopped`]; the outputs are then partly written.
    pub(crate) fn multiply(
        &self,
        inputs: &[f32],
        heads: &mut [HeadRows],
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let n = self.matrices[0].rows();
        let mut units = vec![(); heads.len()];
        for (block, inputs) in inputs.chunks(BLOCK_ROWS * n).enumerate() {
            stop.check()?;
            let first = block * BLOCK_ROWS;
            let copied = self.copied(inputs, n);
            threads::for_each_pair(heads, &mut units, |head, own, ()| {
                if stop.is_requested() {
                    return;
                }
                let matrix = &self.matrices[head];
                let outputs = matrix.cols();
                let rows = inputs.len() / n;
                let out = &mut own.0[first * outputs..][..rows * outputs];
                match &copied {
                    Some(inputs) => out.copy_from_slice(&self.product(head, inputs)),
                    None => {
                        let rows = inputs.chunks_exact(n).zip(out.chunks_exact_mut(outputs));
                        rows.for_each(|(input, out)| matrix.multiply_transposed(input, out));
                    }
                }
            });
        }
        stop.check()
    }

    /// `inputs [rows, n]` for candle, if there are copies.
    fn copied(&self, inputs: &[f32], n: usize) -> Option<Tensor> {
        let shape = (inputs.len() / n, n);
        let tensor = || Tensor::from_slice(inputs, shape, &Device::Cpu).expect(SHAPES);
        (!self.copies.is_empty()).then(tensor)
    }

    /// `inputs [rows, n]` times the copy of a head, `[rows, outputs]`.
    fn product(&self, head: usize, inputs: &Tensor) -> Vec<f32> {
        let copy = self.copies[head].get_or_init(|| copy(&self.matrices[head]));
        let product = inputs.matmul(copy);
        product
            .and_then(|product| product.flatten_all()?.to_vec1())
            .expect(SHAPES)
    }
}

/// Why candle does not fail.
const SHAPES: &str = "shapes were checked when the model was opened";

/// `matrix [n, outputs]` as f32.
fn copy(matrix: &MappedMatrix) -> Tensor {
    let shape = (matrix.rows(), matrix.cols());
    let mut elements = vec![0.0; shape.0 * shape.1];
    for (row, out) in elements.chunks_exact_mut(shape.1).enumerate() {
        matrix.row_to_f32(row, out);
    }
    Tensor::from_vec(elements, shape, &Device::Cpu).expect(SHAPES)
}

#[cfg(test)]
mod tests {
    use kept_kernels::WeightType;
    use kept_kernels::mapped::MappedFile;

    use super::*;

    /// In place and through candle, in one block of rows and in several.
    #[test]
    fn products_are_those_of_plain_loops() {
        let (heads, n, outputs) = (2, 5, 3);
        let number = |i: usize| (i * 37 % 19) as f32 / 8.0 - 1.0;
        let numbers: Vec<f32> = (0..heads * n * outputs).map(number).collect();
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        let file = MappedFile::from_bytes(&bytes).unwrap();
        let matrix = |head: usize| {
            let start = head * n * outputs * size_of::<f32>();
            MappedMatrix::new(&file, start, WeightType::F32, n, outputs).unwrap()
        };
        let matrices: Vec<MappedMatrix> = (0..heads).map(matrix).collect();
        for rows in [1, 7, FEW_ROWS, 2 * BLOCK_ROWS + 9] {
            let inputs: Vec<f32> = (0..rows * n).map(|i| number(3 * i + 1)).collect();
            for copied in [rows, 0] {
                let transposed = Transposed::new(&matrices, copied);
                let mut found: Vec<_> = (0..heads).map(|_| HeadRows::new(rows, outputs)).collect();
                transposed
                    .multiply(&inputs, &mut found, &Stop::new())
                    .unwrap();
                for (at, found) in found.iter().enumerate() {
                    for (row, out) in found.0.chunks(outputs).enumerate() {
                        for (column, out) in out.iter().enumerate() {
                            let terms = (0..n).map(|i| {
                                let weight = numbers[(at * n + i) * outputs + column];
                                inputs[row * n + i] * weight
                            });
                            assert!((out - terms.sum::<f32>()).abs() < 1e-5, "{rows} rows");
                        }
                    }
                }
            }
        }
    }
}
