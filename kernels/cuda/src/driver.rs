//! Where kernels run: a GPU behind NVIDIA's driver, or the emulator. Memory is a number there, and kernels have names;
//! what is safe to do with both is [`crate::Device`]'s business.

use candle_core::quantized::GgmlDType;

use crate::DeviceError;

/// What a device is and what it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Its name, for people.
    pub name: String,
    /// Compute capability times ten: 75 for Turing, 80 and 86 for Ampere, 89 for Ada, 90 for Hopper.
    pub capability: u32,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of shared memory that a block may ask for.
    pub shared_bytes: u32,
    /// Bytes of memory in all.
    pub memory: u64,
}

/// Blocks of a grid and threads of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads, whole warps of 32.
    pub block: [u32; 3],
    /// Bytes of shared memory of each block.
    pub shared_bytes: u32,
}

/// The most blocks of a grid in each direction: the same for every GPU that there are kernels for.
pub const MOST_BLOCKS: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];

impl Geometry {
    /// The blocks of the first direction in which the grid has more than a GPU takes.
    pub fn beyond_a_gpu(&self) -> Option<u32> {
        let each = self.grid.into_iter().zip(MOST_BLOCKS);
        each.into_iter()
            .find_map(|(blocks, most)| (blocks > most).then_some(blocks))
    }
}

/// Memory of a device, by address.
pub type Address = u64;

/// A device. Everything happens in the order it was asked for, but for copies of [`Driver::copy_async`] and
/// [`Driver::prefetch_copy`].
pub trait Driver: Send + Sync {
    /// What it is.
    fn facts(&self) -> &Facts;

    /// Bytes that nobody has taken.
    fn free_memory(&self) -> Result<u64, DeviceError>;

    /// Takes memory; what is in it is not said.
    fn allocate(&self, bytes: usize) -> Result<Address, DeviceError>;

    /// Gives memory back.
    ///
    /// # Safety
    /// `address` is from [`Driver::allocate`] with `bytes`, and is not used again.
    unsafe fn free(&self, address: Address, bytes: usize);

    /// Takes memory of the host's that the device reaches by its address, slowly: pinned, and none of the device's own.
    fn allocate_on_host(&self, bytes: usize) -> Result<Address, DeviceError>;

    /// Gives memory of the host's back.
    ///
    /// # Safety
    /// `address` is from [`Driver::allocate_on_host`] with `bytes`, and is not used again.
    unsafe fn free_on_host(&self, address: Address, bytes: usize);

    /// Copies from the program's own memory.
    ///
    /// # Safety
    /// `to..to + from.len()` was allocated.
    unsafe fn upload(&self, to: Address, from: &[u8]) -> Result<(), DeviceError>;

    /// Copies to the program's own memory, and waits for everything that was asked for before.
    ///
    /// # Safety
    /// `from..from + to.len()` was allocated.
    unsafe fn download(&self, to: &mut [u8], from: Address) -> Result<(), DeviceError>;

    /// Copies on the device, and between it and memory of [`Driver::allocate_on_host`].
    ///
    /// # Safety
    /// Both ranges were allocated and do not overlap.
    unsafe fn copy(&self, to: Address, from: Address, bytes: usize) -> Result<(), DeviceError>;

    /// Copies as [`Driver::copy`] does, beside what is asked for later: it begins after everything that was asked for before, copies of
    /// this kind in their order.
    ///
    /// # Safety
    /// As [`Driver::copy`]; until the copy has ended neither memory is given back.
    unsafe fn copy_async(
        &self,
        to: Address,
        from: Address,
        bytes: usize,
    ) -> Result<Box<dyn Copying>, DeviceError>;

    /// Copies of [`Driver::prefetch_copy`] that are asked for from here on begin after everything that was asked for so far.
    fn order_prefetches(&self) -> Result<(), DeviceError>;

    /// Copies as [`Driver::copy_async`] does, in an order of its own: after copies of this kind, and what [`Driver::order_prefetches`] said, but
    /// not after work that was asked for since.
    ///
    /// # Safety
    /// As [`Driver::copy_async`].
    unsafe fn prefetch_copy(
        &self,
        to: Address,
        from: Address,
        bytes: usize,
    ) -> Result<Box<dyn Copying>, DeviceError>;

    /// Memory of [`Driver::allocate_on_host`] as the program reaches it.
    fn reach(&self, address: Address) -> Result<*mut u8, DeviceError>;

    /// Sets bytes to 0.
    ///
    /// # Safety
    /// `address..address + bytes` was allocated.
    unsafe fn clear(&self, address: Address, bytes: usize) -> Result<(), DeviceError>;

    /// Runs the kernel `name` over a grid with its parameters, a struct of plain numbers laid out as the kernel's own.
    ///
    /// # Safety
    /// The struct is the kernel's, every address in it is valid for what the kernel does with it over this grid, and nobody else
    /// touches what it writes.
    unsafe fn launch(
        &self,
        name: &str,
        geometry: Geometry,
        parameters: &[u8],
    ) -> Result<(), DeviceError>;

    /// From here on launches are noted and not run, until [`Driver::end_recording`]; nothing else may be asked for.
    fn begin_recording(&self) -> Result<(), DeviceError>;

    /// What was noted, as one piece of work.
    fn end_recording(&self) -> Result<Box<dyn Recording>, DeviceError>;

    /// Products with quantised weights, where the device has them.
    fn products(&self) -> &dyn Products;

    /// Waits for everything that was asked for.
    fn wait(&self) -> Result<(), DeviceError>;
}

/// Launches that were noted. To be given back before the device.
pub trait Recording: Send {
    /// Runs them all, in their order.
    ///
    /// # Safety
    /// What was promised of each holds still.
    unsafe fn run(&self) -> Result<(), DeviceError>;
}

/// A copy beside other work. To be given back before the device.
pub trait Copying: Send {
    /// What is asked of the device from here on begins after the copy.
    fn before_the_rest(&self) -> Result<(), DeviceError>;

    /// Waits for the copy.
    fn wait(&self) -> Result<(), DeviceError>;
}

/// How inputs are quantised before they meet weights: what a kernel for some kind of weights reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Inputs {
    /// For up to [`FEW`] rows, whatever the weights.
    Few,
    /// For more, a scale for each block.
    Scales,
    /// For more, a scale and a sum for each block.
    Sums,
    /// For more, scales and parts of sums: Q2_K.
    PartSums,
}

/// One product: `out [inputs, rows] = inputs [inputs, cols] * weights [rows, cols]^T`.
#[derive(Debug, Clone, Copy)]
pub struct Product {
    /// The kind of the weights.
    pub kind: GgmlDType,
    /// The weights, and behind them room for as much as [`Products::behind`] says.
    pub weights: Address,
    /// Rows of the weights.
    pub rows: usize,
    /// Columns of the weights.
    pub cols: usize,
    /// Inputs as [`Products::quantise`] left them.
    pub inputs: Address,
    /// How many.
    pub count: usize,
    /// `[count, rows]` f32.
    pub out: Address,
    /// [`Products::workspace`] bytes.
    pub workspace: Address,
}

/// Products with quantised weights: not ours, but candle's.
pub trait Products {
    /// How `inputs` rows are to be quantised for weights of `kind`; `None` where there is no such product.
    fn wants(&self, kind: GgmlDType, inputs: usize) -> Option<Inputs>;

    /// Bytes of `count` quantised inputs of `cols` numbers.
    fn input_bytes(&self, form: Inputs, count: usize, cols: usize) -> usize;

    /// Bytes that must be there behind weights of `kind`.
    fn behind(&self, kind: GgmlDType) -> usize;

    /// Bytes that products of many rows need for themselves.
    fn workspace(&self) -> usize;

    /// Quantises `x [count, cols]` f32.
    ///
    /// # Safety
    /// `out` has [`Products::input_bytes`] bytes.
    unsafe fn quantise(
        &self,
        form: Inputs,
        x: Address,
        shape: (usize, usize),
        out: Address,
    ) -> Result<(), DeviceError>;

    /// Multiplies.
    ///
    /// # Safety
    /// Every address of the product is valid for its shape, and the inputs were quantised as [`Products::wants`] says.
    unsafe fn multiply(&self, product: &Product) -> Result<(), DeviceError>;
}

/// Rows up to which [`Inputs::Few`] are taken.
pub const FEW: usize = 8;

/// Quantised weights that there are products with.
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
