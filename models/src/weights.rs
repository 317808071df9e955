//! Weights in the two forms that computing needs: mapped blocks for one row, and candle's tiles for many.
//!
//! Decode multiplies one row with the blocks where they lie in the file: no memory, no allocation. Prefill multiplies
//! many rows, for which candle repacks weights into tiles (`candle_core::quantized::repack_x86`) on first use; tiles
//! are as large as the weights, so they are made for one layer at a time and dropped with it.
//!
//! A large matrix is cut into panels of rows: threads repack and multiply them side by side (candle has one thread, see
//! `kept_kernels::threads`), and it bounds the time until a request to stop is answered.
//!
//! ```text
//! out [m, rows]      = inputs [m, cols] * matrix [rows, cols]^T
//!     panel 0 | panel 1 | ...             panel 0: rows 0..2048
//!                                         panel 1: rows 2048..4096
//! ```

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{CpuStorage, CustomOp1, Device, Layout, Tensor};
use kept_kernels::mapped::MappedMatrix;
use kept_kernels::{Stop, Stopped, threads};

use crate::ModelError;
use crate::gguf::{Gguf, TensorInfo};

/// Rows of inputs that are multiplied in one go.
pub(crate) const BLOCK_ROWS: usize = 128;
/// Numbers in a panel: with [`BLOCK_ROWS`] rows about 2 GFLOP, 15 to 60 ms of work between looks at the stop flag.
const PANEL_NUMBERS: usize = 8 << 20;
/// Numbers from which a matrix is worth several panels.
const SHARED_NUMBERS: usize = 1 << 16;
/// Rows below which repacking costs more than the tiles save.
const FEW_ROWS: usize = 8;
/// Output columns that candle's tiles come in.
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
    shape: (usize, usize),
) -> Result<MappedMatrix, ModelError> {
    let Some(dtype) = tensor.kind.candle() else {
        return Err(ModelError::UnsupportedType {
            tensor: tensor.name.clone(),
            name: tensor.kind.name(),
        });
    };
    MappedMatrix::new(gguf.file_of(tensor), tensor.start, dtype, shape).map_err(|source| {
        ModelError::Unusable {
            name: tensor.name.clone(),
            source,
        }
    })
}

/// A weight matrix `[rows, cols]` where it lies in the file.
pub(crate) fn matrix(
    gguf: &Gguf,
    name: &str,
    (rows, cols): (usize, usize),
) -> Result<MappedMatrix, ModelError> {
    mapped(gguf, tensor(gguf, name, &[rows, cols])?, (rows, cols))
}

/// Consecutive matrices `[rows[i], cols]` that a file holds as one, `[sum of rows, cols]`.
pub(crate) fn stacked<const N: usize>(
    gguf: &Gguf,
    name: &str,
    rows: [usize; N],
    cols: usize,
) -> Result<[MappedMatrix; N], ModelError> {
    let all = rows.iter().sum();
    let tensor = tensor(gguf, name, &[all, cols])?;
    // Rows are whole blocks (the reader has checked), so every part starts at a block.
    let row_bytes = tensor.bytes / all;
    let mut start = tensor.start;
    let mut parts = Vec::with_capacity(N);
    for rows in rows {
        let part = TensorInfo {
            start,
            ..tensor.clone()
        };
        parts.push(mapped(gguf, &part, (rows, cols))?);
        start += rows * row_bytes;
    }
    match parts.try_into() {
        Ok(parts) => Ok(parts),
        Err(_) => unreachable!("as many parts as were asked for"),
    }
}

/// A vector of `len` numbers, copied out as f32, where the file has it.
pub(crate) fn optional_vector(
    gguf: &Gguf,
    name: &str,
    len: usize,
) -> Result<Option<Vec<f32>>, ModelError> {
    let there = gguf.tensor(name).is_some();
    there.then(|| vector(gguf, name, len)).transpose()
}

/// A vector of `len` numbers, copied out as f32.
pub(crate) fn vector(gguf: &Gguf, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
    let row = mapped(gguf, tensor(gguf, name, &[len])?, (1, len))?;
    let mut out = vec![0.0; len];
    row.row_to_f32(0, &mut out);
    Ok(out)
}

/// Inputs of a multiplication, kept in the storage that candle takes, `[rows, cols]`.
pub(crate) struct Inputs {
    storage: CpuStorage,
    cols: usize,
}

impl Inputs {
    pub(crate) fn new(rows: usize, cols: usize) -> Inputs {
        Inputs {
            storage: CpuStorage::F32(vec![0.0; rows * cols]),
            cols,
        }
    }

    /// The first `rows` rows.
    pub(crate) fn rows(&self, rows: usize) -> &[f32] {
        match &self.storage {
            CpuStorage::F32(numbers) => &numbers[..rows * self.cols],
            _ => unreachable!("made as F32 above"),
        }
    }

    /// The first `rows` rows, to be written.
    pub(crate) fn rows_mut(&mut self, rows: usize) -> &mut [f32] {
        match &mut self.storage {
            CpuStorage::F32(numbers) => &mut numbers[..rows * self.cols],
            _ => unreachable!("made as F32 above"),
        }
    }
}

impl Inputs {
    /// Copy rows of `cols` numbers in, leaving the zeros behind each row.
    fn fill(&mut self, rows: &[f32], cols: usize) {
        let to = self.cols;
        let m = rows.len() / cols;
        for (from, to) in rows
            .chunks_exact(cols)
            .zip(self.rows_mut(m).chunks_exact_mut(to))
        {
            to[..cols].copy_from_slice(from);
        }
    }
}

/// A matrix made ready to be multiplied with many rows.
pub(crate) struct Tiles<'a> {
    matrix: &'a MappedMatrix,
    /// Rows of a panel; the last may have fewer.
    panel_rows: usize,
    /// Made when first multiplied. Empty when so few rows come that the mapped blocks are used.
    panels: Vec<OnceLock<Panel>>,
    /// Inputs filled up with zeros, when the panels have more columns than the matrix.
    padded: Option<Inputs>,
}

enum Panel {
    Quantised(QTensor),
    /// `[cols, rows of the panel]`, a transposed view of f32 copies: candle multiplies float types only as f32.
    Float(Tensor),
}

impl<'a> Tiles<'a> {
    /// Panels of `matrix` for calls of up to `max_rows` rows.
    pub(crate) fn new(matrix: &'a MappedMatrix, max_rows: usize) -> Tiles<'a> {
        let panel_rows = panel_rows(matrix);
        let panels = match max_rows < FEW_ROWS {
            true => 0,
            false => matrix.rows().div_ceil(panel_rows),
        };
        let padded = (panels > 0 && matrix.panel_cols() != matrix.cols())
            .then(|| Inputs::new(max_rows.min(BLOCK_ROWS), matrix.panel_cols()));
        Tiles {
            matrix,
            panel_rows,
            panels: (0..panels).map(|_| OnceLock::new()).collect(),
            padded,
        }
    }

    /// No panels: the blocks are multiplied where they lie.
    pub(crate) fn mapped(matrix: &'a MappedMatrix) -> Tiles<'a> {
        Tiles {
            matrix,
            panel_rows: matrix.rows(),
            panels: Vec::new(),
            padded: None,
        }
    }

    /// `out[m, rows] = inputs[m, cols] * matrix^T` for at most [`BLOCK_ROWS`] rows.
    ///
    /// # Errors
    /// [`Stopped`], and then `out` is half-written.
    pub(crate) fn multiply(
        &mut self,
        m: usize,
        inputs: &Inputs,
        out: &mut [f32],
        stop: &Stop,
    ) -> Result<(), Stopped> {
        stop.check()?;
        if self.panels.is_empty() {
            self.matrix.multiply(m, inputs.rows(m), out);
            return Ok(());
        }
        let inputs = match &mut self.padded {
            Some(padded) => {
                padded.fill(inputs.rows(m), inputs.cols);
                padded
            }
            None => inputs,
        };
        let (panels, rows) = (&self.panels, self.panel_rows);
        let product = |p: usize| {
            let last = self.matrix.rows().min((p + 1) * rows);
            panels[p]
                .get_or_init(|| Panel::new(self.matrix.panel(p * rows..last)))
                .multiply(m, inputs)
        };
        let products = side_by_side(panels.len(), product, stop)?;
        for (p, product) in products.iter().enumerate() {
            scatter(product, m, p * rows, self.matrix.rows(), out);
        }
        Ok(())
    }
}

impl Panel {
    fn new(panel: QTensor) -> Panel {
        const FINE: &str = "a panel is a matrix of a type that candle converts";
        match panel.dtype() {
            GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16 => Panel::Float(
                panel
                    .dequantize(&Device::Cpu)
                    .and_then(|t| t.t())
                    .expect(FINE),
            ),
            _ => Panel::Quantised(panel),
        }
    }

    /// `[m, rows of the panel]`
    fn multiply(&self, m: usize, inputs: &Inputs) -> Vec<f32> {
        const FINE: &str = "shapes were checked when the model was opened";
        match self {
            Panel::Quantised(panel) => {
                let layout = Layout::contiguous((m, inputs.cols));
                match panel.cpu_fwd(&inputs.storage, &layout).expect(FINE) {
                    (CpuStorage::F32(product), _) => product,
                    _ => unreachable!("f32 inputs give f32 products"),
                }
            }
            Panel::Float(panel) => {
                let product = Tensor::from_slice(inputs.rows(m), (m, inputs.cols), &Device::Cpu)
                    .and_then(|inputs| inputs.matmul(panel)?.flatten_all()?.to_vec1());
                product.expect(FINE)
            }
        }
    }
}

/// `product(0..panels)`, each on one thread: candle repacks a panel when it is first used, and multiplies.
fn side_by_side(
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

/// Copy `product [m, n]` into columns `first..first + n` of `out [m, cols]`.
fn scatter(product: &[f32], m: usize, first: usize, cols: usize, out: &mut [f32]) {
    let n = product.len() / m;
    for (from, to) in product.chunks_exact(n).zip(out.chunks_exact_mut(cols)) {
        to[first..first + n].copy_from_slice(from);
    }
}

fn panel_rows(matrix: &MappedMatrix) -> usize {
    if matrix.rows() * matrix.cols() < SHARED_NUMBERS {
        return matrix.rows();
    }
    // At least a panel for each thread, so that all of them repack.
    let share = matrix.rows().div_ceil(kept_kernels::threads::count());
    let most = PANEL_NUMBERS / matrix.cols() / TILE_ROWS * TILE_ROWS;
    most.clamp(TILE_ROWS, share.next_multiple_of(TILE_ROWS))
}

/// About how many bytes a matrix takes as tiles (see candle's `TileQ4K`, `TileQ6K`, `TileQ8_0`).
pub(crate) fn tiles_bytes(matrix: &MappedMatrix) -> u64 {
    let numbers = (matrix.rows() * matrix.panel_cols()) as u64;
    match matrix.dtype() {
        GgmlDType::Q8_0 if matrix.panel_cols() == matrix.cols() => numbers * 17 / 16,
        GgmlDType::Q4K => numbers * 3 / 4,
        GgmlDType::Q6K => numbers * 5 / 4,
        // A copy as Q8_0 and its tiles.
        GgmlDType::Q4_0 | GgmlDType::Q8_0 => numbers * 17 / 8,
        GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16 => numbers * 4,
        // No tiles: the mapped blocks are used.
        _ => 0,
    }
}

/// Keeps `Arc` out of signatures where a matrix serves twice (tied embeddings).
pub(crate) type SharedMatrix = Arc<MappedMatrix>;
