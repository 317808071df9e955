//! Weights of a file: matrices used in place, vectors copied out, and f32 copies of floating-point matrices.
//!
//! Quantised matrices are multiplied from the file's pages, with one row or many (`kept_kernels::mapped`). F16, BF16
//! and F32 matrices are multiplied in place with few rows; for many rows they are copied as f32 for candle, one layer
//! at a time, and freed with the layer's pass.
//!
//! A large copy is split into panels of rows, so that threads can copy and multiply them in parallel (candle has one
//! thread, see `kept_kernels::threads`) and a stop request is answered in bounded time.
//!
//! ```text
//! out [m, rows]      = inputs [m, cols] * matrix [rows, cols]^T
//!     panel 0 | panel 1 | ...             panel 0: rows 0..2048
//!                                         panel 1: rows 2048..4096
//! ```

use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use candle_core::{Device, Tensor};
use kept_kernels::mapped::{MappedError, MappedMatrix};
use kept_kernels::{Stop, Stopped, threads};

use crate::ModelError;
use crate::gguf::{Gguf, TensorInfo};

/// Input rows per multiplication with a copy.
pub(crate) const BLOCK_ROWS: usize = 128;
/// Elements in a panel: with [`BLOCK_ROWS`] rows about 2 GFLOP, 15 to 60 ms of work between checks of the stop flag.
const PANEL_ELEMENTS: usize = 8 << 20;
/// Minimum number of elements of a matrix that is split into panels.
const MIN_SPLIT_ELEMENTS: usize = 1 << 16;
/// Number of rows below which a copy costs more than it saves.
pub(crate) const FEW_ROWS: usize = 8;
/// Rows that candle multiplies together.
const TILE_ROWS: usize = 16;

fn tensor<'a>(gguf: &'a Gguf, name: &str, shape: &[usize]) -> Result<&'a TensorInfo, ModelError> {
    let Some(tensor) = gguf.tensor(name) else {
        return Err(ModelError::MissingTensor {
            name: name.to_owned(),
        });
    };
    if tensor.shape != shape {
        return Err(ModelError::WrongShape {
            name: name.to_owned(),
            found: tensor.shape.clone(),
            expected: shape.to_vec(),
        });
    }
    Ok(tensor)
}

fn mapped(
    gguf: &Gguf,
    tensor: &TensorInfo,
    rows: usize,
    cols: usize,
) -> Result<MappedMatrix, ModelError> {
    let Some(kind) = tensor.kind.weights() else {
        return Err(ModelError::UnsupportedType {
            tensor: tensor.name.clone(),
            name: tensor.kind.name(),
        });
    };
    MappedMatrix::new(gguf.file_of(tensor), tensor.start, kind, rows, cols).map_err(|source| {
        ModelError::Unusable {
            name: tensor.name.clone(),
            source,
        }
    })
}

/// Whether every number of a tensor is finite. A tensor that cannot be read has no such number.
pub(crate) fn is_finite(gguf: &Gguf, tensor: &TensorInfo) -> bool {
    let Some((cols, rows)) = tensor.shape.split_last() else {
        return true;
    };
    let Ok(matrix) = mapped(gguf, tensor, rows.iter().product(), *cols) else {
        return true;
    };
    let mut row = vec![0.0; *cols];
    (0..matrix.rows()).all(|index| {
        matrix.row_to_f32(index, &mut row);
        row.iter().all(|number| number.is_finite())
    })
}

/// A weight matrix `[rows, cols]`, used in place in the mapped file.
pub(crate) fn matrix(
    gguf: &Gguf,
    name: &str,
    rows: usize,
    cols: usize,
) -> Result<MappedMatrix, ModelError> {
    mapped(gguf, tensor(gguf, name, &[rows, cols])?, rows, cols)
}

/// Consecutive matrices `[rows, cols]` that the file stores as one tensor of shape `shape`.
pub(crate) fn parts(
    gguf: &Gguf,
    name: &str,
    shape: &[usize],
    rows: impl IntoIterator<Item = usize>,
    cols: usize,
) -> Result<Vec<MappedMatrix>, ModelError> {
    let all = tensor(gguf, name, shape)?;
    // Rows are whole blocks (checked by the reader), so every part starts at a block.
    let row_bytes = all.bytes / (shape.iter().product::<usize>() / cols);
    let mut start = all.start;
    let part = |rows: usize| {
        let part = TensorInfo {
            start,
            ..all.clone()
        };
        start += rows * row_bytes;
        mapped(gguf, &part, rows, cols)
    };
    rows.into_iter().map(part).collect()
}

/// Consecutive matrices `[rows[i], cols]` that the file stores as one tensor, `[sum of rows, cols]`.
pub(crate) fn stacked<const N: usize>(
    gguf: &Gguf,
    name: &str,
    rows: [usize; N],
    cols: usize,
) -> Result<[MappedMatrix; N], ModelError> {
    let parts = parts(gguf, name, &[rows.iter().sum(), cols], rows, cols)?;
    Ok(parts.try_into().expect("as many parts as were asked for"))
}

/// A matrix `[rows, cols]` whose rows are read in parts of `part` elements.
///
/// # Errors
/// [`ModelError::Unusable`] if the parts are not whole blocks, and those of [`matrix`].
pub(crate) fn parted_matrix(
    gguf: &Gguf,
    name: &str,
    rows: usize,
    cols: usize,
    part: usize,
) -> Result<MappedMatrix, ModelError> {
    let matrix = matrix(gguf, name, rows, cols)?;
    let block = matrix.kind().block().0;
    if part.is_multiple_of(block) {
        return Ok(matrix);
    }
    let source = MappedError::RaggedRow {
        cols: part,
        block,
        kind: matrix.kind(),
    };
    Err(ModelError::Unusable {
        name: name.to_owned(),
        source,
    })
}

/// `count` times the matrices `[rows[i], cols]` that the file stores as one tensor, `[count, sum of rows, cols]`.
pub(crate) fn expert_matrices<const N: usize>(
    gguf: &Gguf,
    name: &str,
    count: usize,
    rows: [usize; N],
    cols: usize,
) -> Result<[Vec<MappedMatrix>; N], ModelError> {
    let shape = [count, rows.iter().sum(), cols];
    let mut expert_matrices = [const { Vec::new() }; N];
    let all = std::iter::repeat_n(rows, count).flatten();
    let all = parts(gguf, name, &shape, all, cols)?;
    for (i, matrix) in all.into_iter().enumerate() {
        expert_matrices[i % N].push(matrix);
    }
    Ok(expert_matrices)
}

/// A vector of `len` elements, copied as f32; `None` if the file does not have it.
pub(crate) fn optional_vector(
    gguf: &Gguf,
    name: &str,
    len: usize,
) -> Result<Option<Vec<f32>>, ModelError> {
    let there = gguf.tensor(name).is_some();
    there.then(|| vector(gguf, name, len)).transpose()
}

/// A vector of `len` elements, copied as f32.
pub(crate) fn vector(gguf: &Gguf, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
    vector_of(gguf, name, &[len])
}

/// All elements of a tensor of shape `shape`, copied as f32.
pub(crate) fn vector_of(gguf: &Gguf, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
    let len = shape.iter().product();
    let row = mapped(gguf, tensor(gguf, name, shape)?, 1, len)?;
    let mut out = vec![0.0; len];
    row.row_to_f32(0, &mut out);
    Ok(out)
}

/// A floating-point matrix prepared for multiplication with many rows: f32 copies for candle.
pub(crate) struct Floats<'a> {
    pub(crate) matrix: &'a MappedMatrix,
    /// Rows of a panel; the last may have fewer.
    panel_rows: usize,
    /// `[cols, rows of the panel]`, copied when first multiplied. Empty for quantised matrices, and if the rows are so
    /// few that the mapped matrix is used.
    panels: Vec<OnceLock<Tensor>>,
}

impl<'a> Floats<'a> {
    /// Panels of `matrix` for calls of up to `max_rows` rows.
    pub(crate) fn new(matrix: &'a MappedMatrix, max_rows: usize) -> Floats<'a> {
        let panel_rows = panel_rows(matrix);
        let panels = if max_rows < FEW_ROWS || matrix.is_quantised() {
            0
        } else {
            matrix.rows().div_ceil(panel_rows)
        };
        Floats {
            matrix,
            panel_rows,
            panels: (0..panels).map(|_| OnceLock::new()).collect(),
        }
    }

    /// No copies: the matrix is multiplied in place.
    pub(crate) fn mapped(matrix: &'a MappedMatrix) -> Floats<'a> {
        Floats {
            matrix,
            panel_rows: matrix.rows(),
            panels: Vec::new(),
        }
    }

    /// `out[m, rows] = inputs[m, cols] * matrix^T`.
    ///
    /// # Errors
    /// [`Stopped`] if `stop` was requested; `out` is then partly written.
    pub(crate) fn multiply(
        &self,
        inputs: &[f32],
        out: &mut [f32],
        stop: &Stop,
    ) -> Result<(), Stopped> {
        let (rows, cols) = (self.matrix.rows(), self.matrix.cols());
        let blocks = inputs.chunks(BLOCK_ROWS * cols);
        for (inputs, out) in blocks.zip(out.chunks_mut(BLOCK_ROWS * rows)) {
            stop.check()?;
            let m = inputs.len() / cols;
            if self.panels.is_empty() {
                self.matrix.multiply(m, inputs, out);
                continue;
            }
            let product = |p: usize| {
                let first = p * self.panel_rows;
                let last = rows.min(first + self.panel_rows);
                let panel = self.panels[p].get_or_init(|| panel(self.matrix, first..last));
                let product = Tensor::from_slice(inputs, (m, cols), &Device::Cpu)
                    .and_then(|inputs| inputs.matmul(panel)?.flatten_all()?.to_vec1());
                product.expect("shapes were checked when the model was opened")
            };
            let products = par_panels(self.panels.len(), product, stop)?;
            for (p, product) in products.iter().enumerate() {
                scatter(product, m, p * self.panel_rows, rows, out);
            }
        }
        Ok(())
    }
}

/// Some rows of a matrix, transposed: `[cols, rows]`, a view.
fn panel(matrix: &MappedMatrix, rows: Range<usize>) -> Tensor {
    let cols = matrix.cols();
    let mut elements = vec![0.0; rows.len() * cols];
    for (row, out) in rows.clone().zip(elements.chunks_exact_mut(cols)) {
        matrix.row_to_f32(row, out);
    }
    Tensor::from_vec(elements, (rows.len(), cols), &Device::Cpu)
        .and_then(|panel| panel.t())
        .expect("as many elements as rows and columns")
}

/// Computes `product(0..panels)` in parallel, each panel on one thread. A panel is copied on first use and multiplied
/// by candle.
fn par_panels(
    panels: usize,
    product: impl Fn(usize) -> Vec<f32> + Sync,
    stop: &Stop,
) -> Result<Vec<Vec<f32>>, Stopped> {
    let products: Vec<Mutex<Vec<f32>>> = (0..panels).map(|_| Mutex::default()).collect();
    threads::for_each(panels, |p| {
        if !stop.is_requested() {
            *products[p].lock().unwrap_or_else(PoisonError::into_inner) = product(p);
        }
    });
    stop.check()?;
    let inner = |product: Mutex<_>| product.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(products.into_iter().map(inner).collect())
}

/// Copies `product [m, n]` into columns `first..first + n` of `out [m, cols]`.
fn scatter(product: &[f32], m: usize, first: usize, cols: usize, out: &mut [f32]) {
    let n = product.len() / m;
    for (from, to) in product.chunks_exact(n).zip(out.chunks_exact_mut(cols)) {
        to[first..first + n].copy_from_slice(from);
    }
}

fn panel_rows(matrix: &MappedMatrix) -> usize {
    if matrix.rows() * matrix.cols() < MIN_SPLIT_ELEMENTS {
        return matrix.rows();
    }
    // At least one panel per thread, so that all threads copy.
    let share = matrix.rows().div_ceil(kept_kernels::threads::count());
    let most = PANEL_ELEMENTS / matrix.cols() / TILE_ROWS * TILE_ROWS;
    most.clamp(TILE_ROWS, share.next_multiple_of(TILE_ROWS))
}

/// Bytes of a matrix's copies as [`Floats`].
pub(crate) fn copied_bytes(matrix: &MappedMatrix) -> u64 {
    if matrix.is_quantised() {
        0
    } else {
        (matrix.rows() * matrix.cols() * size_of::<f32>()) as u64
    }
}

/// A matrix that may have two uses (tied embeddings).
pub(crate) type SharedMatrix = Arc<MappedMatrix>;
