//! A model's weights on a device and products with them: candle's kernels for quantised weights, `device/dense.cu` for
//! the others.

use candle_core::quantized::GgmlDType;
use kept_kernels::mapped::MappedMatrix;

use crate::driver::{Address, Geometry, InputFormat, Product};
use crate::{Buffer, Device, DeviceError, MemorySpace};

/// Bytes behind the last block that a decode step reads (`load_16_by_2` in `device/step_products.cu`).
const READ_BEHIND: usize = 4;
/// Alignment of a matrix in memory, as of an allocation.
const ALIGNED: usize = 256;

/// Type and shape of a matrix in blocks, as in a GGUF file.
#[derive(Clone, Copy)]
struct MatrixLayout {
    kind: GgmlDType,
    rows: usize,
    cols: usize,
}

impl MatrixLayout {
    /// # Errors
    /// [`DeviceError::Kind`] for a type that candle does not have.
    fn new(matrix: &MappedMatrix) -> Result<Self, DeviceError> {
        let kind = matrix.kind().candle().ok_or_else(|| DeviceError::Kind {
            kind: matrix.kind().name().to_owned(),
        })?;
        Ok(Self {
            kind,
            rows: matrix.rows(),
            cols: matrix.cols(),
        })
    }

    /// Bytes from one row to the next.
    fn row_bytes(self) -> usize {
        self.cols / self.kind.block_size() * self.kind.type_size()
    }

    /// Bytes of the blocks.
    fn bytes(self) -> usize {
        self.rows * self.cols / self.kind.block_size() * self.kind.type_size()
    }

    /// Bytes of padding that products read after the blocks.
    fn padding(self, device: &Device) -> usize {
        if is_dense(self.kind) {
            return 0;
        }
        // Products of a few inputs read rows in pairs, also the last row of an odd number.
        let row = self.rows % 2 * self.row_bytes();
        let padding = device.driver().products().padding(self.kind);
        padding.max(row).max(READ_BEHIND)
    }

    /// Bytes with padding, up to the next aligned matrix.
    fn padded_bytes(self, device: &Device) -> usize {
        (self.bytes() + self.padding(device)).next_multiple_of(ALIGNED)
    }
}

/// A weight matrix `[rows, cols]`, in blocks as in a GGUF file.
pub struct Weights {
    data: Buffer<u8>,
    layout: MatrixLayout,
}

impl Weights {
    /// Uploads a matrix given as `blocks`.
    ///
    /// # Errors
    /// [`DeviceError::Kind`] for a type that the device has no product for.
    ///
    /// # Panics
    /// When the number of bytes does not match the shape.
    pub fn new(
        device: &Device,
        kind: GgmlDType,
        rows: usize,
        cols: usize,
        blocks: &[u8],
    ) -> Result<Self, DeviceError> {
        let layout = MatrixLayout { kind, rows, cols };
        let data = device.alloc_uninit(layout.padded_bytes(device))?;
        Self::upload(device, layout, blocks, data)
    }

    /// Uploads `blocks` to `data`, which is padded.
    fn upload(
        device: &Device,
        layout: MatrixLayout,
        blocks: &[u8],
        mut data: Buffer<u8>,
    ) -> Result<Self, DeviceError> {
        let MatrixLayout { kind, rows, cols } = layout;
        if !is_dense(kind) && device.driver().products().wants(kind, 1).is_none() {
            return Err(DeviceError::Kind {
                kind: format!("{kind:?}"),
            });
        }
        let bytes = layout.bytes();
        assert_eq!(blocks.len(), bytes, "{kind:?} [{rows}, {cols}]");
        data.write(0, blocks)?;
        data.write(bytes, &vec![0; data.len() - bytes])?;
        Ok(Self { data, layout })
    }

    /// Copies matrices of a mapped file to one allocation in device memory or in pinned host memory. One allocation,
    /// because the driver allocates in units of megabytes and the rest of each unit is lost.
    ///
    /// # Errors
    /// As [`Weights::new`].
    pub fn of<const N: usize>(
        device: &Device,
        space: MemorySpace,
        matrices: [&MappedMatrix; N],
    ) -> Result<[Self; N], DeviceError> {
        let mut bytes = 0;
        for matrix in matrices {
            bytes += Self::bytes_of(device, matrix)? as usize;
        }
        let memory = device.alloc_uninit_in(space, bytes)?;
        let (mut at, mut all) = (0, Vec::with_capacity(N));
        for matrix in matrices {
            let layout = MatrixLayout::new(matrix)?;
            let bytes = layout.padded_bytes(device);
            let data = memory.share(at..at + bytes);
            all.push(Self::upload(device, layout, matrix.bytes(), data)?);
            at += bytes;
        }
        Ok(all.try_into().unwrap_or_else(|_| unreachable!("as many")))
    }

    /// Bytes of a matrix in [`Weights::of`], in either memory.
    ///
    /// # Errors
    /// [`DeviceError::Kind`] for a type that the device has no product for.
    pub fn bytes_of(device: &Device, matrix: &MappedMatrix) -> Result<u64, DeviceError> {
        Ok(MatrixLayout::new(matrix)?.padded_bytes(device) as u64)
    }

    /// Copies the matrix to `memory` from byte `at` on.
    ///
    /// # Errors
    /// Those of the device.
    ///
    /// # Panics
    /// When `memory` is too small.
    pub fn copied_to(&self, memory: &Buffer<u8>, at: usize) -> Result<Self, DeviceError> {
        let mut data = memory.share(at..at + self.data.len());
        data.copy_from(0, &self.data, 0..self.data.len())?;
        Ok(Self {
            data,
            layout: self.layout,
        })
    }

    /// Type of the weights.
    pub(crate) fn kind(&self) -> GgmlDType {
        self.layout.kind
    }

    pub(crate) fn data(&self) -> &Buffer<u8> {
        &self.data
    }

    /// Bytes from one row to the next.
    pub(crate) fn row_bytes(&self) -> usize {
        self.layout.row_bytes()
    }

    /// Rows: number of outputs of a product.
    pub fn rows(&self) -> usize {
        self.layout.rows
    }

    /// Columns: number of inputs of a product.
    pub fn cols(&self) -> usize {
        self.layout.cols
    }

    /// Bytes of memory, on the device or on the host.
    pub fn size(&self) -> u64 {
        self.data.len() as u64
    }

    /// Bytes of pinned host memory.
    pub fn host_bytes(&self) -> u64 {
        self.data.host_bytes()
    }
}

fn is_dense(kind: GgmlDType) -> bool {
    matches!(kind, GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16)
}

/// Quantised inputs and scratch memory of products. Inputs that several matrices share are quantised once.
pub struct ProductScratch {
    quantised: Buffer<u8>,
    workspace: Buffer<u8>,
    /// The inputs that are quantised now: address, rows, columns and format.
    holds: Option<(Address, usize, usize, InputFormat)>,
}

impl ProductScratch {
    /// For up to `inputs` rows of up to `cols` elements.
    pub fn new(device: &Device, inputs: usize, cols: usize) -> Result<Self, DeviceError> {
        let products = device.driver().products();
        let formats = [
            InputFormat::Q8_1,
            InputFormat::MmqD4,
            InputFormat::MmqDs4,
            InputFormat::MmqD2S6,
        ];
        let mmvq_inputs = inputs.min(crate::driver::MMVQ_MAX_BATCH_SIZE);
        let bytes = formats.iter().map(|&format| match format {
            InputFormat::Q8_1 => products.input_bytes(format, mmvq_inputs, cols),
            _ => products.input_bytes(format, inputs, cols),
        });
        Ok(Self {
            quantised: device.alloc_uninit(bytes.max().unwrap_or(0))?,
            workspace: device.alloc_uninit(products.workspace())?,
            holds: None,
        })
    }

    /// Discards the quantised inputs. Call this when the inputs have changed.
    pub fn forget(&mut self) {
        self.holds = None;
    }
}

/// Parameters of kernel `dense`; same layout as `Dense` in `device/dense.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct DenseParameters {
    weights: Address,
    x: Address,
    out: Address,
    rows: u32,
    cols: u32,
    inputs: u32,
    kind: u32,
}

impl Device {
    /// `out [inputs, rows] = x [inputs, cols] * weights^T`. Call [`ProductScratch::forget`] between products if the
    /// contents of `x` change.
    ///
    /// # Panics
    /// When shapes do not match.
    pub fn multiply(
        &self,
        weights: &Weights,
        x: &Buffer<f32>,
        inputs: usize,
        scratch: &mut ProductScratch,
        out: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        let MatrixLayout { kind, rows, cols } = weights.layout;
        assert!(
            x.len() >= inputs * cols && out.len() >= inputs * rows,
            "x is [inputs {inputs}, cols {cols}], out [inputs, rows {rows}]"
        );
        if inputs == 0 {
            return Ok(());
        }
        let products = self.driver().products();
        let dense = match kind {
            GgmlDType::F32 => Some(0),
            GgmlDType::F16 => Some(1),
            GgmlDType::BF16 => Some(2),
            _ => None,
        };
        if let Some(kind) = dense {
            let parameters = DenseParameters {
                weights: weights.data.address(),
                x: x.address(),
                out: out.address(),
                rows: rows as u32,
                cols: cols as u32,
                inputs: inputs as u32,
                kind,
            };
            let geometry = Geometry::new([rows.div_ceil(8), inputs.div_ceil(8), 1], 256, 0);
            // SAFETY: lengths were checked; `out` is borrowed mutably.
            return unsafe { self.launch("dense", geometry, &parameters) };
        }
        let format = products
            .wants(kind, inputs)
            .expect("asked when the weights came");
        let bytes = products.input_bytes(format, inputs, cols);
        assert!(
            bytes <= scratch.quantised.len(),
            "the scratch is for fewer inputs than {inputs} of {cols}"
        );
        let wanted = (x.address(), inputs, cols, format);
        // SAFETY: lengths were checked; everything that is written is borrowed mutably.
        unsafe {
            if scratch.holds != Some(wanted) {
                let quantised = scratch.quantised.address();
                products.quantise(format, x.address(), inputs, cols, quantised)?;
                scratch.holds = Some(wanted);
            }
            products.multiply(&Product {
                kind,
                weights: weights.data.address(),
                rows,
                cols,
                inputs: scratch.quantised.address(),
                count: inputs,
                out: out.address(),
                workspace: scratch.workspace.address(),
            })
        }
    }
}
