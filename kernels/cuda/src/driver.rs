//! The driver interface: NVIDIA's driver or the emulator. At this level memory is an address and a kernel is a name;
//! [`crate::Device`] makes their use safe.

use candle_core::quantized::GgmlDType;

use crate::DeviceError;

/// Properties and limits of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceProperties {
    /// Name, to show to users.
    pub name: String,
    /// Compute capability times ten: 75 for Turing, 80 and 86 for Ampere, 89 for Ada, 90 for Hopper.
    pub capability: u32,
    /// Number of multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of shared memory that a block may request.
    pub shared_bytes: u32,
    /// Total bytes of device memory.
    pub memory: u64,
}

/// Blocks of a grid and threads of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads, whole warps of 32.
    pub block: [u32; 3],
    /// Bytes of shared memory per block.
    pub shared_bytes: u32,
}

/// The most blocks of a grid in each dimension: the same for every GPU that the kernels are compiled for.
pub const MAX_GRID_SIZE: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];

impl Geometry {
    pub(crate) fn new(blocks: [usize; 3], threads: usize, shared_bytes: usize) -> Self {
        Self {
            grid: blocks.map(|blocks| blocks as u32),
            block: [threads as u32, 1, 1],
            shared_bytes: shared_bytes as u32,
        }
    }

    /// One warp per row with shared memory for `elements` f32, four warps per block.
    pub(crate) fn warp_per_row(rows: usize, elements: usize) -> Self {
        Self::new(
            [rows.div_ceil(4), 1, 1],
            128,
            4 * elements * size_of::<f32>(),
        )
    }

    /// The number of blocks in the first dimension that exceeds [`MAX_GRID_SIZE`], if any.
    pub fn beyond_a_gpu(&self) -> Option<u32> {
        let each = self.grid.into_iter().zip(MAX_GRID_SIZE);
        each.into_iter()
            .find_map(|(blocks, most)| (blocks > most).then_some(blocks))
    }
}

/// Address of device memory or of pinned host memory.
pub type Address = u64;

/// A device. Operations take effect in call order, except copies of [`Driver::copy_async`].
pub trait Driver: Send + Sync {
    /// Name, compute capability and limits of the device.
    fn properties(&self) -> &DeviceProperties;

    /// Bytes of device memory that are free.
    fn free_memory(&self) -> Result<u64, DeviceError>;

    /// Allocates uninitialised device memory.
    fn allocate(&self, bytes: usize) -> Result<Address, DeviceError>;

    /// Frees device memory.
    ///
    /// # Safety
    /// `address` is from [`Driver::allocate`] with `bytes`, and is not used again.
    unsafe fn free(&self, address: Address, bytes: usize);

    /// Allocates pinned host memory, which the device accesses through the bus. It takes no device memory.
    fn allocate_on_host(&self, bytes: usize) -> Result<Address, DeviceError>;

    /// Frees pinned host memory.
    ///
    /// # Safety
    /// `address` is from [`Driver::allocate_on_host`] with `bytes`, and is not used again.
    unsafe fn free_on_host(&self, address: Address, bytes: usize);

    /// Uploads from ordinary host memory.
    ///
    /// # Safety
    /// `to..to + from.len()` was allocated.
    unsafe fn upload(&self, to: Address, from: &[u8]) -> Result<(), DeviceError>;

    /// Downloads to ordinary host memory, after all work submitted so far.
    ///
    /// # Safety
    /// `from..from + to.len()` was allocated.
    unsafe fn download(&self, to: &mut [u8], from: Address) -> Result<(), DeviceError>;

    /// Copies on the device, or between the device and memory of [`Driver::allocate_on_host`].
    ///
    /// # Safety
    /// Both ranges were allocated and do not overlap.
    unsafe fn copy(&self, to: Address, from: Address, bytes: usize) -> Result<(), DeviceError>;

    /// Copies as [`Driver::copy`] does, concurrently with later work. The copy begins after all work submitted before
    /// it; asynchronous copies run in their own order.
    ///
    /// # Safety
    /// As [`Driver::copy`]; neither allocation is freed before the copy has ended.
    unsafe fn copy_async(
        &self,
        to: Address,
        from: Address,
        bytes: usize,
    ) -> Result<Box<dyn Copying>, DeviceError>;

    /// Host pointer to memory of [`Driver::allocate_on_host`].
    fn host_pointer(&self, address: Address) -> Result<*mut u8, DeviceError>;

    /// Sets bytes to 0.
    ///
    /// # Safety
    /// `address..address + bytes` was allocated.
    unsafe fn clear(&self, address: Address, bytes: usize) -> Result<(), DeviceError>;

    /// Runs the kernel `name` over a grid. `parameters` are the bytes of a plain struct in the layout of the kernel's
    /// parameter struct.
    ///
    /// # Safety
    /// The struct is the kernel's, every address in it is valid for what the kernel does with it over this grid, and
    /// nothing else accesses the memory that it writes.
    unsafe fn launch(
        &self,
        name: &str,
        geometry: Geometry,
        parameters: &[u8],
    ) -> Result<(), DeviceError>;

    /// Begins a capture: launches are recorded instead of run until [`Driver::end_capture`]. No other operation is
    /// allowed in between.
    fn begin_capture(&self) -> Result<(), DeviceError>;

    /// Ends the capture and returns the recorded launches as one graph.
    fn end_capture(&self) -> Result<Box<dyn Capture>, DeviceError>;

    /// Products with quantised weights.
    fn products(&self) -> &dyn Products;

    /// Waits for all work submitted so far.
    fn wait(&self) -> Result<(), DeviceError>;
}

/// Captured launches (a CUDA graph). Drop it before the device.
pub trait Capture: Send {
    /// Replays all launches in order.
    ///
    /// # Safety
    /// The safety conditions of every captured launch still hold.
    unsafe fn run(&self) -> Result<(), DeviceError>;
}

/// An asynchronous copy. Drop it before the device.
pub trait Copying: Send {
    /// Later work on the device begins after this copy.
    fn order_before_later_work(&self) -> Result<(), DeviceError>;

    /// Waits until the copy has ended.
    fn wait(&self) -> Result<(), DeviceError>;
}

/// Quantised format of product inputs, as the kernel for a type of weights reads them; the names are llama.cpp's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InputFormat {
    /// `block_q8_1`, for MMVQ: up to [`MMVQ_MAX_BATCH_SIZE`] rows and any type of weights.
    Q8_1,
    /// `block_q8_1_mmq` in layout D4, for MMQ: one scale per 32 elements.
    MmqD4,
    /// `block_q8_1_mmq` in layout DS4, for MMQ: one scale and one sum per 32 elements.
    MmqDs4,
    /// `block_q8_1_mmq` in layout D2S6, for MMQ: scales and partial sums (Q2_K).
    MmqD2S6,
}

/// One product: `out [inputs, rows] = inputs [inputs, cols] * weights [rows, cols]^T`.
#[derive(Debug, Clone, Copy)]
pub struct Product {
    /// Type of the weights.
    pub kind: GgmlDType,
    /// The weights, followed by at least [`Products::padding`] bytes of padding.
    pub weights: Address,
    /// Rows of the weights.
    pub rows: usize,
    /// Columns of the weights.
    pub cols: usize,
    /// Inputs quantised by [`Products::quantise`].
    pub inputs: Address,
    /// Number of input rows.
    pub count: usize,
    /// `[count, rows]` f32.
    pub out: Address,
    /// Scratch memory of [`Products::workspace`] bytes.
    pub workspace: Address,
}

/// Products with quantised weights, implemented by candle's kernels.
pub trait Products {
    /// The format in which `inputs` rows must be quantised for weights of `kind`; `None` if the device has no product
    /// for `kind`.
    fn wants(&self, kind: GgmlDType, inputs: usize) -> Option<InputFormat>;

    /// Bytes of `count` quantised input rows of `cols` elements.
    fn input_bytes(&self, format: InputFormat, count: usize, cols: usize) -> usize;

    /// Bytes of padding that must follow weights of `kind`.
    fn padding(&self, kind: GgmlDType) -> usize;

    /// Bytes of scratch memory of a product of many rows.
    fn workspace(&self) -> usize;

    /// Quantises `x [count, cols]` (f32).
    ///
    /// # Safety
    /// `out` has [`Products::input_bytes`] bytes.
    unsafe fn quantise(
        &self,
        format: InputFormat,
        x: Address,
        count: usize,
        cols: usize,
        out: Address,
    ) -> Result<(), DeviceError>;

    /// Computes the product.
    ///
    /// # Safety
    /// Every address of the product is valid for its shape, and the inputs are in the format of [`Products::wants`].
    unsafe fn multiply(&self, product: &Product) -> Result<(), DeviceError>;
}

/// The most input rows of MMVQ ([`InputFormat::Q8_1`]), as in llama.cpp.
pub const MMVQ_MAX_BATCH_SIZE: usize = 8;

/// Types of quantised weights that the device can multiply.
pub const PRODUCT_KINDS: [GgmlDType; 10] = [
    GgmlDType::Q4_0,
    GgmlDType::Q4_1,
    GgmlDType::Q5_0,
    GgmlDType::Q5_1,
    GgmlDType::Q8_0,
    GgmlDType::Q2K,
    GgmlDType::Q3K,
    GgmlDType::Q4K,
    GgmlDType::Q5K,
    GgmlDType::Q6K,
];
