//! candle's products with quantised weights, which are llama.cpp's: MMVQ for few inputs, MMQ for many. Only
//! candle's launchers are called, with this crate's memory and stream.

use std::ffi::{CStr, c_char, c_void};

use candle_core::quantized::GgmlDType;
use candle_kernels::ffi;

use crate::DeviceError;
use crate::candle_memory::{self, PADDING, WORKSPACE};
use crate::driver::{
    Address, DeviceProperties, InputFormat, MMVQ_MAX_BATCH_SIZE, Product, Products,
};

type Mmvq = unsafe extern "C" fn(
    *const c_void,
    *const c_void,
    *mut c_void,
    i32,
    i32,
    i32,
    i32,
    i32,
    *mut c_void,
);
type Quantise = unsafe extern "C" fn(
    *const c_void,
    *const i32,
    *mut c_void,
    i32,
    i64,
    i64,
    i64,
    i64,
    i64,
    i64,
    i64,
    i64,
    *mut c_void,
);
type Mmq = unsafe extern "C" fn(
    *mut c_void,
    *const c_void,
    *const c_void,
    *mut c_void,
    i64,
    i64,
    i64,
    i64,
    i64,
    i32,
    i32,
    i64,
    i32,
    *mut c_void,
);

/// Launchers and input format for one type of weights.
struct Kind {
    mmvq: Mmvq,
    mmq: Mmq,
    format: InputFormat,
}

fn launchers(kind: GgmlDType) -> Option<Kind> {
    let (mmvq, mmq, format): (Mmvq, Mmq, InputFormat) = match kind {
        GgmlDType::Q4_0 => (
            ffi::launch_mmvq_gguf_q4_0_f32_plain,
            ffi::launch_mmq_gguf_q4_0,
            InputFormat::MmqDs4,
        ),
        GgmlDType::Q4_1 => (
            ffi::launch_mmvq_gguf_q4_1_f32_plain,
            ffi::launch_mmq_gguf_q4_1,
            InputFormat::MmqDs4,
        ),
        GgmlDType::Q5_0 => (
            ffi::launch_mmvq_gguf_q5_0_f32_plain,
            ffi::launch_mmq_gguf_q5_0,
            InputFormat::MmqD4,
        ),
        GgmlDType::Q5_1 => (
            ffi::launch_mmvq_gguf_q5_1_f32_plain,
            ffi::launch_mmq_gguf_q5_1,
            InputFormat::MmqDs4,
        ),
        GgmlDType::Q8_0 => (
            ffi::launch_mmvq_gguf_q8_0_f32_plain,
            ffi::launch_mmq_gguf_q8_0,
            InputFormat::MmqD4,
        ),
        GgmlDType::Q2K => (
            ffi::launch_mmvq_gguf_q2_k_f32_plain,
            ffi::launch_mmq_gguf_q2_k,
            InputFormat::MmqD2S6,
        ),
        GgmlDType::Q3K => (
            ffi::launch_mmvq_gguf_q3_k_f32_plain,
            ffi::launch_mmq_gguf_q3_k,
            InputFormat::MmqD4,
        ),
        GgmlDType::Q4K => (
            ffi::launch_mmvq_gguf_q4_k_f32_plain,
            ffi::launch_mmq_gguf_q4_k,
            InputFormat::MmqDs4,
        ),
        GgmlDType::Q5K => (
            ffi::launch_mmvq_gguf_q5_k_f32_plain,
            ffi::launch_mmq_gguf_q5_k,
            InputFormat::MmqDs4,
        ),
        GgmlDType::Q6K => (
            ffi::launch_mmvq_gguf_q6_k_f32_plain,
            ffi::launch_mmq_gguf_q6_k,
            InputFormat::MmqD4,
        ),
        _ => return None,
    };
    Some(Kind { mmvq, mmq, format })
}

/// The launchers, bound to one GPU and one stream.
pub(crate) struct Launchers {
    device: String,
    pub(crate) stream: *mut c_void,
    pub(crate) capability: u32,
    pub(crate) multiprocessors: u32,
    pub(crate) shared_bytes: u32,
}

impl Launchers {
    pub(crate) fn new(properties: &DeviceProperties, stream: *mut c_void) -> Self {
        Self {
            device: properties.name.clone(),
            stream,
            capability: properties.capability,
            multiprocessors: properties.multiprocessors,
            shared_bytes: properties.shared_bytes,
        }
    }

    /// The launchers return no status, so this reads the CUDA runtime's last error.
    fn check_launch(&self, what: &str) -> Result<(), DeviceError> {
        // SAFETY: takes no pointers; the runtime's error strings are static.
        let error = unsafe { cudaGetLastError() };
        if error == 0 {
            return Ok(());
        }
        // SAFETY: as above.
        let reason = unsafe { CStr::from_ptr(cudaGetErrorString(error)) };
        let reason = reason.to_string_lossy();
        Err(DeviceError::failed(&self.device, what, reason))
    }
}

// From the CUDA runtime that candle's launchers link to; it is linked statically (`scripts/cuda`).
unsafe extern "C" {
    /// The last error of this thread's launches, 0 for none. The call resets it.
    fn cudaGetLastError() -> i32;
    fn cudaGetErrorString(error: i32) -> *const c_char;
}

fn pointer(address: Address) -> *mut c_void {
    address as *mut c_void
}

impl Products for Launchers {
    fn wants(&self, weights: GgmlDType, inputs: usize) -> Option<InputFormat> {
        let kind = launchers(weights)?;
        Some(if inputs <= MMVQ_MAX_BATCH_SIZE {
            InputFormat::Q8_1
        } else {
            kind.format
        })
    }

    fn input_bytes(&self, format: InputFormat, count: usize, cols: usize) -> usize {
        candle_memory::input_bytes(format, count, cols)
    }

    fn padding(&self, kind: GgmlDType) -> usize {
        candle_memory::padding(kind)
    }

    fn workspace(&self) -> usize {
        WORKSPACE
    }

    unsafe fn quantise(
        &self,
        format: InputFormat,
        x: Address,
        count: usize,
        cols: usize,
        out: Address,
    ) -> Result<(), DeviceError> {
        let padded = cols.next_multiple_of(PADDING);
        let quantise: Quantise = match format {
            InputFormat::Q8_1 => {
                let (cols, padded, count) = (cols as i32, padded as i32, count as i32);
                // SAFETY: the caller's promise.
                unsafe {
                    ffi::launch_mmvq_gguf_quantize_q8_1_f32(
                        pointer(x),
                        pointer(out),
                        cols,
                        padded,
                        count,
                        self.stream,
                    );
                }
                return self.check_launch("rounding the inputs of a product");
            }
            InputFormat::MmqD4 => ffi::launch_mmq_quantize_q8_1_D4,
            InputFormat::MmqDs4 => ffi::launch_mmq_quantize_q8_1_DS4,
            InputFormat::MmqD2S6 => ffi::launch_mmq_quantize_q8_1_D2S6,
        };
        let (cols, padded, count) = (cols as i64, padded as i64, count as i64);
        // SAFETY: the caller's promise; one matrix, whose rows are `cols` elements apart.
        unsafe {
            quantise(
                pointer(x),
                std::ptr::null(),
                pointer(out),
                0,
                cols,
                cols,
                0,
                0,
                padded,
                count,
                1,
                1,
                self.stream,
            );
        }
        self.check_launch("rounding the inputs of a product")
    }

    unsafe fn multiply(&self, product: &Product) -> Result<(), DeviceError> {
        let &Product {
            rows, cols, count, ..
        } = product;
        let launch = launchers(product.kind).expect("asked before");
        let (weights, inputs) = (pointer(product.weights), pointer(product.inputs));
        if count <= MMVQ_MAX_BATCH_SIZE {
            let blocks = cols.next_multiple_of(PADDING) / 32;
            // SAFETY: the caller's promise.
            unsafe {
                (launch.mmvq)(
                    weights,
                    inputs,
                    pointer(product.out),
                    cols as i32,
                    rows as i32,
                    blocks as i32,
                    rows as i32,
                    count as i32,
                    self.stream,
                );
            }
            return self.check_launch("a product");
        }
        // SAFETY: the caller's promise.
        unsafe {
            (launch.mmq)(
                pointer(product.workspace),
                weights,
                inputs,
                pointer(product.out),
                cols as i64,
                rows as i64,
                count as i64,
                (cols / product.kind.block_size()) as i64,
                rows as i64,
                self.capability as i32 * 10,
                self.multiprocessors as i32,
                i64::from(self.shared_bytes),
                32,
                self.stream,
            );
        }
        self.check_launch("a product")
    }
}
