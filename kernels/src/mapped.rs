//! Weights used directly from the pages of a mapped file.
//!
//! A model file is mapped once, and its quantised blocks are multiplied in place. Nothing is copied, so the weights
//! cost no memory beyond the page cache, and multiplying one row allocates nothing once the thread has warmed up.
//!
//! This module knows no file format and no model. The parser of the file passes the start, type and size of each
//! matrix; this module checks everything that could make the view unsound.
//!
//! ```text
//! file bytes  ....|row 0: block block block|row 1: block block block|....
//!                 ^ start, aligned for the block      rows * cols / block elements in all
//! ```

mod blocks;
mod dequantise;
mod file;
mod row;

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use candle_core::quantized::GgmlDType;
use candle_core::quantized::k_quants::{
    BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1, BlockQ5K, BlockQ6K,
    BlockQ8_0,
};
use half::{bf16, f16};

use crate::quantised::{self, Part, QuantisedRows};
use crate::threads::SharedMut;
use crate::{Stop, Stopped};
pub use blocks::{MappedBlocks, MappedError, PlainBlock};
pub use file::MappedFile;

#[cfg(target_endian = "big")]
compile_error!(
    "mapped weights are little-endian; a big-endian machine would have to swap every block"
);

/// Operations of a typed matrix that [`MappedMatrix`] calls through a box.
trait Rows: Send + Sync {
    fn multiply(&self, m: usize, inputs: &[f32], out: &mut [f32]);
    fn row_to_f32(&self, row_blocks: usize, row: usize, out: &mut [f32]);
    fn bytes(&self) -> &[u8];
}

impl<T: PlainBlock> Rows for MappedBlocks<T> {
    fn multiply(&self, m: usize, inputs: &[f32], out: &mut [f32]) {
        row::multiply(m, self.as_slice(), inputs, out);
    }

    fn row_to_f32(&self, row_blocks: usize, row: usize, out: &mut [f32]) {
        T::to_float(&self.as_slice()[row * row_blocks..][..row_blocks], out);
    }

    fn bytes(&self) -> &[u8] {
        MappedBlocks::bytes(self)
    }
}

/// A weight matrix `[rows, cols]`, row-major, of any supported block type, in a mapped file.
pub struct MappedMatrix {
    blocks: Box<dyn Rows>,
    dtype: GgmlDType,
    rows: usize,
    cols: usize,
}

impl std::fmt::Debug for MappedMatrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "MappedMatrix[{}, {}] {:?}",
            self.rows, self.cols, self.dtype
        )
    }
}

impl MappedMatrix {
    /// The matrix of `rows` rows of `cols` numbers that starts at byte `start` of `file`.
    ///
    /// # Errors
    /// Every variant of [`MappedError`].
    pub fn new(
        file: &Arc<MappedFile>,
        start: usize,
        dtype: GgmlDType,
        rows: usize,
        cols: usize,
    ) -> Result<Self, MappedError> {
        fn boxed<T: PlainBlock>(
            file: &Arc<MappedFile>,
            start: usize,
            rows: usize,
            cols: usize,
        ) -> Result<Box<dyn Rows>, MappedError> {
            if !cols.is_multiple_of(T::BLCK_SIZE) {
                return Err(MappedError::RaggedRow {
                    cols,
                    block: T::BLCK_SIZE,
                    dtype: T::NAME,
                });
            }
            let out_of_range = MappedError::OutOfRange {
                start,
                bytes: usize::MAX,
                len: file.len(),
            };
            let blocks = rows.checked_mul(cols / T::BLCK_SIZE).ok_or(out_of_range)?;
            Ok(Box::new(MappedBlocks::<T>::new(
                Arc::clone(file),
                start,
                blocks,
            )?))
        }
        let blocks = match dtype {
            GgmlDType::F32 => boxed::<f32>(file, start, rows, cols)?,
            GgmlDType::F16 => boxed::<f16>(file, start, rows, cols)?,
            GgmlDType::BF16 => boxed::<bf16>(file, start, rows, cols)?,
            GgmlDType::Q4_0 => boxed::<BlockQ4_0>(file, start, rows, cols)?,
            GgmlDType::Q4_1 => boxed::<BlockQ4_1>(file, start, rows, cols)?,
            GgmlDType::Q5_0 => boxed::<BlockQ5_0>(file, start, rows, cols)?,
            GgmlDType::Q5_1 => boxed::<BlockQ5_1>(file, start, rows, cols)?,
            GgmlDType::Q8_0 => boxed::<BlockQ8_0>(file, start, rows, cols)?,
            GgmlDType::Q2K => boxed::<BlockQ2K>(file, start, rows, cols)?,
            GgmlDType::Q3K => boxed::<BlockQ3K>(file, start, rows, cols)?,
            GgmlDType::Q4K => boxed::<BlockQ4K>(file, start, rows, cols)?,
            GgmlDType::Q5K => boxed::<BlockQ5K>(file, start, rows, cols)?,
            GgmlDType::Q6K => boxed::<BlockQ6K>(file, start, rows, cols)?,
            other => {
                return Err(MappedError::UnsupportedType {
                    dtype: format!("{other:?}"),
                });
            }
        };
        Ok(Self {
            blocks,
            dtype,
            rows,
            cols,
        })
    }

    /// Rows of the matrix: outputs of a multiplication.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of the matrix: inputs of a multiplication.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Block type.
    pub fn dtype(&self) -> GgmlDType {
        self.dtype
    }

    /// Size in the file, in bytes.
    pub fn size_in_bytes(&self) -> usize {
        self.blocks.bytes().len()
    }

    /// The blocks as they lie in the file.
    pub fn bytes(&self) -> &[u8] {
        self.blocks.bytes()
    }

    /// Whether the numbers are integers with scales, which are multiplied with inputs rounded to bytes
    /// ([`multiply_together`]); otherwise they are floating point.
    pub fn is_quantised(&self) -> bool {
        quantised::is_quantised(self.dtype)
    }

    /// `out[m, rows] = inputs[m, cols] * self^T`; if the matrix is floating point, efficient for small `m` only.
    /// Allocates nothing once the thread has processed inputs of this size.
    ///
    /// # Panics
    /// If a length does not match.
    pub fn multiply(&self, m: usize, inputs: &[f32], out: &mut [f32]) {
        assert_eq!(inputs.len(), m * self.cols, "inputs are [m, cols]");
        assert_eq!(out.len(), m * self.rows, "out is [m, rows]");
        if !self.is_quantised() {
            return self.blocks.multiply(m, inputs, out);
        }
        thread_local! {
            static ROUNDED: RefCell<(QuantisedRows, Stop)> =
                RefCell::new((QuantisedRows::new(0), Stop::new()));
        }
        ROUNDED.with_borrow_mut(|(rounded, never)| {
            rounded.reserve(inputs.len());
            rounded.fill(inputs, self.cols);
            let product = Product {
                matrix: self,
                out,
                add: false,
            };
            multiply_together([product], rounded, never).expect("never stopped");
        });
    }

    /// Converts row `row` to f32, `out [cols]`; allocates nothing.
    ///
    /// # Panics
    /// If `row` is out of range or `out` has the wrong length.
    pub fn row_to_f32(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        assert_eq!(out.len(), self.cols, "out is [cols]");
        let row_bytes = self.size_in_bytes() / self.rows;
        let bytes = || &self.blocks.bytes()[row * row_bytes..][..row_bytes];
        match self.dtype {
            GgmlDType::Q2K => dequantise::row(bytes(), out, dequantise::q2_k),
            GgmlDType::Q3K => dequantise::row(bytes(), out, dequantise::q3_k),
            GgmlDType::Q4K => dequantise::row(bytes(), out, dequantise::q4_k),
            GgmlDType::Q5K => dequantise::row(bytes(), out, dequantise::q5_k),
            GgmlDType::Q6K => dequantise::row(bytes(), out, dequantise::q6_k),
            _ => self
                .blocks
                .row_to_f32(self.cols / self.dtype.block_size(), row, out),
        }
    }
}

/// A quantised matrix of a product, and its output.
pub struct Product<'a> {
    /// The matrix.
    pub matrix: &'a MappedMatrix,
    /// `[m, rows]`
    pub out: &'a mut [f32],
    /// Adds to `out` instead of replacing it.
    pub add: bool,
}

/// `out[m, rows] (+)= inputs[m, cols] * matrix^T` for several quantised matrices with the same inputs, in one parallel
/// loop over all threads. Allocates nothing once warm.
///
/// # Errors
/// [`Stopped`], within 10 ms of the request; the results are then incomplete.
///
/// # Panics
/// If a length does not match, or a matrix is floating point.
pub fn multiply_together<const N: usize>(
    products: [Product<'_>; N],
    inputs: &QuantisedRows,
    stop: &Stop,
) -> Result<(), Stopped> {
    let parts = products.map(|product| {
        let rows = 0..product.matrix.rows;
        product.part(rows, inputs)
    });
    quantised::multiply(&parts, inputs, stop)
}

/// [`multiply_together`] restricted to rows `rows` of every matrix; `out` is `[m, rows.len()]`.
///
/// # Errors
/// As [`multiply_together`].
///
/// # Panics
/// As [`multiply_together`], and if a matrix has fewer rows.
pub fn multiply_rows_together<const N: usize>(
    products: [Product<'_>; N],
    rows: Range<usize>,
    inputs: &QuantisedRows,
    stop: &Stop,
) -> Result<(), Stopped> {
    let parts = products.map(|product| product.part(rows.clone(), inputs));
    quantised::multiply(&parts, inputs, stop)
}

impl<'a> Product<'a> {
    /// This product restricted to `rows` of the matrix.
    fn part(self, rows: Range<usize>, inputs: &QuantisedRows) -> Part<'a> {
        let Product { matrix, out, add } = self;
        assert!(matrix.is_quantised(), "{matrix:?} takes f32 inputs");
        assert_eq!(matrix.cols, inputs.cols(), "inputs are [m, cols]");
        assert!(rows.end <= matrix.rows, "{matrix:?} has no rows {rows:?}");
        assert_eq!(out.len(), inputs.rows() * rows.len(), "out is [m, rows]");
        let blocks = matrix.blocks.bytes();
        let row_bytes = blocks.len() / matrix.rows.max(1);
        Part {
            blocks: &blocks[rows.start * row_bytes..rows.end * row_bytes],
            dtype: matrix.dtype,
            rows: rows.len(),
            out: SharedMut::new(out),
            add,
        }
    }
}
