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

mod error;
mod file;
mod row;

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use candle_core::quantized::GgmlType;
use half::{bf16, f16};

use crate::WeightType;
use crate::quantised::{self, Part, QuantisedRows};
use crate::threads::SharedMut;
use crate::{Stop, Stopped};
pub use error::MappedError;
pub use file::MappedFile;

#[cfg(target_endian = "big")]
compile_error!(
    "mapped weights are little-endian; a big-endian machine would have to swap every block"
);

/// Floating-point numbers that may be viewed in a mapped file.
///
/// # Safety
/// Every bit pattern is a valid value, and the type has no padding.
unsafe trait Plain: GgmlType {}

// SAFETY: numbers without padding.
unsafe impl Plain for f32 {}
// SAFETY: as above.
unsafe impl Plain for f16 {}
// SAFETY: as above.
unsafe impl Plain for bf16 {}

/// A weight matrix `[rows, cols]`, row-major, of any supported type, in a mapped file, which it keeps mapped.
pub struct MappedMatrix {
    file: Arc<MappedFile>,
    /// Offset of the first byte; if the numbers are floating point, their address is aligned.
    start: usize,
    /// Bytes of the matrix; `start + bytes <= file.len()`.
    bytes: usize,
    kind: WeightType,
    rows: usize,
    cols: usize,
}

impl std::fmt::Debug for MappedMatrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "MappedMatrix[{}, {}] {}",
            self.rows, self.cols, self.kind
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
        kind: WeightType,
        rows: usize,
        cols: usize,
    ) -> Result<Self, MappedError> {
        let (block_size, block_bytes) = kind.block();
        if !cols.is_multiple_of(block_size) {
            return Err(MappedError::RaggedRow {
                cols,
                block: block_size,
                kind,
            });
        }
        let bytes = rows
            .saturating_mul(cols / block_size)
            .saturating_mul(block_bytes);
        if start.checked_add(bytes).is_none_or(|end| end > file.len()) {
            return Err(MappedError::OutOfRange {
                start,
                bytes,
                len: file.len(),
            });
        }
        // Quantised blocks are read byte by byte; the size of a floating-point number is its alignment.
        let align = if kind.is_quantised() { 1 } else { block_bytes };
        if !(file.bytes().as_ptr() as usize + start).is_multiple_of(align) {
            return Err(MappedError::Unaligned { start, align, kind });
        }
        Ok(Self {
            file: Arc::clone(file),
            start,
            bytes,
            kind,
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

    /// Storage type.
    pub fn kind(&self) -> WeightType {
        self.kind
    }

    /// The blocks as they lie in the file.
    pub fn bytes(&self) -> &[u8] {
        &self.file.bytes()[self.start..][..self.bytes]
    }

    /// The numbers of a floating-point matrix.
    fn floats<T: Plain>(&self) -> &[T] {
        assert_eq!(
            self.bytes,
            self.rows * self.cols * size_of::<T>(),
            "{self:?}"
        );
        // SAFETY: `new` checked that the bytes lie inside the map and are aligned; the map lives as long as `self`;
        // any bytes are valid (`Plain`), and their number is asserted.
        unsafe {
            let first = self.bytes().as_ptr().cast::<T>();
            std::slice::from_raw_parts(first, self.rows * self.cols)
        }
    }

    /// Whether the numbers are integers with scales, which are multiplied with inputs rounded to bytes
    /// ([`multiply_together`]); otherwise they are floating point.
    pub fn is_quantised(&self) -> bool {
        self.kind.is_quantised()
    }

    /// `out[m, rows] = inputs[m, cols] * self^T`; if the matrix is floating point, efficient for small `m` only.
    /// Allocates nothing once the thread has processed inputs of this size.
    ///
    /// # Panics
    /// If a length does not match.
    pub fn multiply(&self, m: usize, inputs: &[f32], out: &mut [f32]) {
        assert_eq!(inputs.len(), m * self.cols, "inputs are [m, cols]");
        assert_eq!(out.len(), m * self.rows, "out is [m, rows]");
        match self.kind {
            WeightType::F32 => return row::multiply(m, self.floats::<f32>(), inputs, out),
            WeightType::F16 => return row::multiply(m, self.floats::<f16>(), inputs, out),
            WeightType::BF16 => return row::multiply(m, self.floats::<bf16>(), inputs, out),
            _ => {}
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

    /// The product with the transposed matrix: `out [cols] = input [rows] * matrix`, on this thread; allocates nothing.
    ///
    /// # Panics
    /// If a slice has the wrong length.
    pub fn multiply_transposed(&self, input: &[f32], out: &mut [f32]) {
        assert_eq!((input.len(), out.len()), (self.rows, self.cols));
        out.fill(0.0);
        match self.kind {
            WeightType::F32 => add_rows(self.floats::<f32>(), input, out, |x| *x),
            WeightType::F16 => add_rows(self.floats::<f16>(), input, out, |x| {
                quantised::half(x.to_bits())
            }),
            WeightType::BF16 => add_rows(self.floats::<bf16>(), input, out, |x| x.to_f32()),
            kind => {
                let add_rows = quantised::add_rows(kind).expect("all others are quantised");
                add_rows(self.bytes(), input, out);
            }
        }
    }

    /// Converts row `row` to f32, `out [cols]`; allocates nothing.
    ///
    /// # Panics
    /// If `row` is out of range or `out` has the wrong length.
    pub fn row_to_f32(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols, "out is [cols]");
        self.part_to_f32(row, 0, out);
    }

    /// Converts the numbers of row `row` from column `first` on to f32, as many as `out` has; allocates nothing.
    ///
    /// # Panics
    /// If the numbers are out of range or no whole blocks.
    pub fn part_to_f32(&self, row: usize, first: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        assert!(first + out.len() <= self.cols, "columns of {}", self.cols);
        let first = row * self.cols + first;
        let elements = first..first + out.len();
        match self.kind {
            WeightType::F32 => out.copy_from_slice(&self.floats::<f32>()[elements]),
            WeightType::F16 => f16::to_float(&self.floats::<f16>()[elements], out),
            WeightType::BF16 => bf16::to_float(&self.floats::<bf16>()[elements], out),
            kind => {
                let (block, bytes) = kind.block();
                assert!(elements.start.is_multiple_of(block), "whole blocks");
                let blocks = elements.start / block * bytes..elements.end / block * bytes;
                let dequantise = quantised::dequantise(kind).expect("all others are quantised");
                dequantise(&self.bytes()[blocks], out);
            }
        }
    }
}

/// `out [cols] += factors [rows] * matrix [rows, cols]`
fn add_rows<T>(matrix: &[T], factors: &[f32], out: &mut [f32], number: impl Fn(&T) -> f32) {
    for (row, factor) in matrix.chunks_exact(out.len()).zip(factors) {
        for (out, x) in out.iter_mut().zip(row) {
            *out += factor * number(x);
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
        let blocks = matrix.bytes();
        let row_bytes = blocks.len() / matrix.rows.max(1);
        Part {
            blocks: &blocks[rows.start * row_bytes..rows.end * row_bytes],
            kind: matrix.kind,
            rows: rows.len(),
            out: SharedMut::new(out),
            add,
        }
    }
}
