//! Products computed on the CPU.

use candle_core::quantized::GgmlDType;
use kept_kernels::WeightType;
use kept_kernels::mapped::{MappedFile, MappedMatrix};

use super::Emulated;
use crate::DeviceError;
use crate::candle_memory;
use crate::driver::{
    Address, Driver, InputFormat, MMVQ_MAX_BATCH_SIZE, PRODUCT_KINDS, Product, Products,
};

/// Products computed on the CPU. Inputs stay f32 until the product quantises them for its type of weights.
impl Products for Emulated {
    fn wants(&self, kind: GgmlDType, inputs: usize) -> Option<InputFormat> {
        PRODUCT_KINDS
            .contains(&kind)
            .then_some(if inputs <= MMVQ_MAX_BATCH_SIZE {
                InputFormat::Q8_1
            } else {
                InputFormat::MmqD4
            })
    }

    fn input_bytes(&self, format: InputFormat, count: usize, cols: usize) -> usize {
        let own = count * cols * size_of::<f32>();
        if self.reserves_like_candle {
            own.max(candle_memory::input_bytes(format, count, cols))
        } else {
            own
        }
    }

    fn padding(&self, kind: GgmlDType) -> usize {
        if self.reserves_like_candle {
            candle_memory::padding(kind)
        } else {
            0
        }
    }

    fn workspace(&self) -> usize {
        if self.reserves_like_candle {
            candle_memory::WORKSPACE
        } else {
            0
        }
    }

    unsafe fn quantise(
        &self,
        _form: InputFormat,
        x: Address,
        count: usize,
        cols: usize,
        out: Address,
    ) -> Result<(), DeviceError> {
        self.check_not_capturing("candle's products")?;
        // SAFETY: the caller's promise.
        unsafe { self.copy(out, x, count * cols * size_of::<f32>()) }
    }

    unsafe fn multiply(&self, product: &Product) -> Result<(), DeviceError> {
        let &Product {
            kind,
            rows,
            cols,
            count,
            ..
        } = product;
        self.check_not_capturing("candle's products")?;
        let bytes = rows * cols / kind.block_size() * kind.type_size();
        // SAFETY: the caller's promise; f32 are aligned, as every allocation is.
        let (weights, inputs, out) = unsafe {
            (
                std::slice::from_raw_parts(product.weights as *const u8, bytes),
                std::slice::from_raw_parts(product.inputs as *const f32, count * cols),
                std::slice::from_raw_parts_mut(product.out as *mut f32, count * rows),
            )
        };
        let failed = |reason: String| {
            let what = format!("a product with {kind:?}");
            DeviceError::failed(&self.properties.name, &what, reason)
        };
        let file = MappedFile::from_bytes(weights).map_err(|e| failed(e.to_string()))?;
        let kind = WeightType::of_candle(kind).expect("PRODUCT_KINDS are weights");
        let matrix = MappedMatrix::new(&file, 0, kind, rows, cols);
        matrix
            .map_err(|e| failed(e.to_string()))?
            .multiply(count, inputs, out);
        Ok(())
    }
}
