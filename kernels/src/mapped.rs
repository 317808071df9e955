//! Weights used straight from the pages of a mapped file.
//!
//! What it is for: a model file is mapped once, and its quantised blocks are multiplied where they lie. Nothing is
//! copied, so the weights cost no memory beyond the page cache, and a multiplication of one row allocates nothing
//! once its thread has warmed up (candle keeps the quantised activations in thread-local scratch).
//!
//! What it is not: it knows no file format and no model. Whoever parsed the file says where a matrix starts, of what
//! type it is and how large it is; everything that could make the view unsound is checked here.
//!
//! ```text
//! file bytes  ....|row 0: block block block|row 1: block block block|....
//!                 ^ start, aligned for the block      rows * cols / block elements in all
//! ```

mod dequantise;
mod row;

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use candle_core::CpuStorage;
use candle_core::quantized::k_quants::{
    self, BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1, BlockQ5K,
    BlockQ6K, BlockQ8_0, GgmlType,
};
use candle_core::quantized::{GgmlDType, QStorage, QTensor, QuantizedType};
use half::{bf16, f16};

#[cfg(target_endian = "big")]
compile_error!(
    "mapped weights are little-endian; a big-endian machine would have to swap every block"
);

/// A file mapped read-only into memory.
///
/// The pages belong to the file: whoever shortens it while it is mapped makes the process die of SIGBUS, which is the
/// price of using weights without copying them. The window supervises the engine as a process of its own for such
/// deaths; nothing in Kept ever writes to a model file in place.
#[derive(Debug)]
pub struct MappedFile {
    map: memmap2::Mmap,
}

impl MappedFile {
    /// Map `path` read-only. An empty file is mapped too (as no bytes).
    ///
    /// # Errors
    /// What the operating system says about opening or mapping the file.
    pub fn open(path: &Path) -> io::Result<Arc<MappedFile>> {
        // Asked before opening: opening a named pipe waits for a writer.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "it is not a regular file",
            ));
        }
        let file = File::open(path)?;
        // SAFETY: the mapping is private and read-only, and every view of it below is of types for which any bit
        // pattern is a value. Another process that writes into the file changes numbers, not types; see the struct's
        // note about one that shortens it.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        Ok(Arc::new(MappedFile { map }))
    }

    /// `bytes` in memory of their own, as if they were a file: for looking at the first of a file without mapping it.
    ///
    /// # Errors
    /// What the operating system says when there is no memory.
    pub fn from_bytes(bytes: &[u8]) -> io::Result<Arc<MappedFile>> {
        let mut map = memmap2::MmapMut::map_anon(bytes.len())?;
        map.copy_from_slice(bytes);
        let map = map.make_read_only()?;
        Ok(Arc::new(MappedFile { map }))
    }

    /// All bytes of the file.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether the file has no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }
}

/// Why a stretch of a file cannot be used as a matrix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MappedError {
    /// The matrix would end behind the end of the file.
    #[error("a matrix at byte {start} needs {bytes} bytes, but the file has only {len}")]
    OutOfRange {
        /// First byte of the matrix.
        start: usize,
        /// Bytes the matrix needs; `usize::MAX` when the number itself overflows.
        bytes: usize,
        /// Length of the file in bytes.
        len: usize,
    },
    /// The blocks would start at an address their type cannot have.
    #[error(
        "a matrix of type {dtype} starts at byte {start}, which is no multiple of {align}; convert the file again"
    )]
    Unaligned {
        /// First byte of the matrix.
        start: usize,
        /// Alignment the type needs, in bytes.
        align: usize,
        /// Name of the block type.
        dtype: &'static str,
    },
    /// A row is not a whole number of blocks.
    #[error("rows of {cols} numbers cannot be stored as {dtype}, whose blocks hold {block}")]
    RaggedRow {
        /// Numbers in a row.
        cols: usize,
        /// Numbers in a block.
        block: usize,
        /// Name of the block type.
        dtype: &'static str,
    },
    /// No matrix multiplication for this type.
    #[error(
        "matrices of type {dtype} cannot be multiplied; supported: F32 F16 BF16 Q2_K Q3_K Q4_0 Q4_1 Q4_K Q5_0 Q5_1 Q5_K Q6_K Q8_0"
    )]
    UnsupportedType {
        /// Name of the block type.
        dtype: String,
    },
}

/// Block types that may be viewed in a mapped file.
///
/// # Safety
/// Every bit pattern of `size_of::<Self>()` bytes must be a value of the type, and it must have no padding.
pub unsafe trait PlainBlock: GgmlType + 'static {
    /// ggml's name of the type.
    const NAME: &'static str;
}

macro_rules! plain_blocks {
    ($($block:ty => $name:literal, $bytes:literal;)*) => {$(
        const _: () = assert!(size_of::<$block>() == $bytes);
        // SAFETY: made of u8, i8, f16 and f32 alone, and the size just asserted is the sum of the fields: no padding.
        unsafe impl PlainBlock for $block { const NAME: &'static str = $name; }
    )*};
}

plain_blocks! {
    f32 => "F32", 4;
    f16 => "F16", 2;
    bf16 => "BF16", 2;
    BlockQ4_0 => "Q4_0", 18;
    BlockQ4_1 => "Q4_1", 20;
    BlockQ5_0 => "Q5_0", 22;
    BlockQ5_1 => "Q5_1", 24;
    BlockQ8_0 => "Q8_0", 34;
    BlockQ2K => "Q2_K", 84;
    BlockQ3K => "Q3_K", 110;
    BlockQ4K => "Q4_K", 144;
    BlockQ5K => "Q5_K", 176;
    BlockQ6K => "Q6_K", 210;
}

/// Blocks of one type that lie in a mapped file; the file stays mapped as long as they are used.
pub struct MappedBlocks<T> {
    file: Arc<MappedFile>,
    /// First byte, a multiple of `align_of::<T>()` from an address that is one too.
    start: usize,
    /// Number of blocks; `start + blocks * size_of::<T>() <= file.len()`.
    blocks: usize,
    of: PhantomData<T>,
}

impl<T: PlainBlock> MappedBlocks<T> {
    /// View `blocks` blocks from byte `start` of `file`.
    ///
    /// # Errors
    /// [`MappedError::OutOfRange`] and [`MappedError::Unaligned`].
    pub fn new(file: Arc<MappedFile>, start: usize, blocks: usize) -> Result<Self, MappedError> {
        let bytes = blocks.saturating_mul(size_of::<T>());
        if start.checked_add(bytes).is_none_or(|end| end > file.len()) {
            return Err(MappedError::OutOfRange {
                start,
                bytes,
                len: file.len(),
            });
        }
        if !(file.bytes().as_ptr() as usize + start).is_multiple_of(align_of::<T>()) {
            return Err(MappedError::Unaligned {
                start,
                align: align_of::<T>(),
                dtype: T::NAME,
            });
        }
        Ok(Self {
            file,
            start,
            blocks,
            of: PhantomData,
        })
    }

    /// The blocks, row after row.
    pub fn as_slice(&self) -> &[T] {
        // SAFETY: `new` checked that the bytes lie inside the map and are aligned for T; the map lives as long as
        // `self.file`; PlainBlock says that any bytes are a value.
        unsafe {
            let first = self.file.bytes().as_ptr().add(self.start).cast::<T>();
            std::slice::from_raw_parts(first, self.blocks)
        }
    }
}

impl<T: PlainBlock> QuantizedType for MappedBlocks<T> {
    fn dtype(&self) -> GgmlDType {
        T::DTYPE
    }

    fn matmul_t(
        &self,
        mkn: (usize, usize, usize),
        lhs: &[f32],
        dst: &mut [f32],
    ) -> candle_core::Result<()> {
        k_quants::matmul(mkn, lhs, self.as_slice(), dst)
    }

    fn matmul_t_f16(
        &self,
        mkn: (usize, usize, usize),
        lhs: &[f16],
        dst: &mut [f16],
    ) -> candle_core::Result<()> {
        k_quants::matmul_f16(mkn, lhs, self.as_slice(), dst)
    }

    fn embedding(
        &self,
        ids: &[u32],
        rows: usize,
        hidden: usize,
    ) -> candle_core::Result<CpuStorage> {
        let row_blocks = hidden / T::BLCK_SIZE;
        if !hidden.is_multiple_of(T::BLCK_SIZE) || rows.checked_mul(row_blocks) != Some(self.blocks)
        {
            candle_core::bail!(
                "{} blocks are not {rows} rows of {hidden} numbers",
                self.blocks
            )
        }
        let mut out = vec![0f32; ids.len() * hidden];
        for (&id, out) in ids.iter().zip(out.chunks_exact_mut(hidden)) {
            let row = id as usize;
            if row >= rows {
                candle_core::bail!("row {row} is out of range for {rows} rows")
            }
            T::to_float(&self.as_slice()[row * row_blocks..][..row_blocks], out);
        }
        Ok(CpuStorage::F32(out))
    }

    fn dequantize(&self, elem_count: usize) -> candle_core::Result<CpuStorage> {
        if Some(elem_count) != self.blocks.checked_mul(T::BLCK_SIZE) {
            candle_core::bail!("{} blocks do not hold {elem_count} numbers", self.blocks)
        }
        let mut out = vec![0f32; elem_count];
        T::to_float(self.as_slice(), &mut out);
        Ok(CpuStorage::F32(out))
    }

    fn storage_size_in_bytes(&self) -> usize {
        self.blocks * size_of::<T>()
    }

    fn as_ptr(&self) -> *const u8 {
        self.as_slice().as_ptr().cast()
    }

    fn block_size(&self) -> usize {
        T::BLCK_SIZE
    }

    fn from_float(&mut self, _: &[f32]) {
        // Reached only through QTensor::quantize, which makes its own storage.
        unreachable!("mapped weights are read-only")
    }

    fn from_float_imatrix(&mut self, _: &[f32], _: &[f32], _: usize) {
        unreachable!("mapped weights are read-only")
    }

    fn size(&self) -> usize {
        self.storage_size_in_bytes()
    }
}

/// What [`MappedMatrix`] needs beyond candle's trait, kept apart so that it can be boxed.
trait Rows: QuantizedType {
    fn multiply(&self, m: usize, inputs: &[f32], out: &mut [f32]);
    fn row_to_f32(&self, row_blocks: usize, row: usize, out: &mut [f32]);
    fn slice(&self, blocks: Range<usize>) -> Box<dyn QuantizedType>;
    fn bytes(&self) -> &[u8];
}

impl<T: PlainBlock> Rows for MappedBlocks<T> {
    fn multiply(&self, m: usize, inputs: &[f32], out: &mut [f32]) {
        row::multiply(m, self.as_slice(), inputs, out);
    }

    fn row_to_f32(&self, row_blocks: usize, row: usize, out: &mut [f32]) {
        T::to_float(&self.as_slice()[row * row_blocks..][..row_blocks], out);
    }

    fn slice(&self, blocks: Range<usize>) -> Box<dyn QuantizedType> {
        assert!(blocks.start <= blocks.end && blocks.end <= self.blocks);
        Box::new(Self {
            file: Arc::clone(&self.file),
            start: self.start + blocks.start * size_of::<T>(),
            blocks: blocks.len(),
            of: PhantomData,
        })
    }

    fn bytes(&self) -> &[u8] {
        &self.file.bytes()[self.start..][..self.blocks * size_of::<T>()]
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
        (rows, cols): (usize, usize),
    ) -> Result<Self, MappedError> {
        fn boxed<T: PlainBlock>(
            file: &Arc<MappedFile>,
            start: usize,
            (rows, cols): (usize, usize),
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
        let shape = (rows, cols);
        let blocks = match dtype {
            GgmlDType::F32 => boxed::<f32>(file, start, shape)?,
            GgmlDType::F16 => boxed::<f16>(file, start, shape)?,
            GgmlDType::BF16 => boxed::<bf16>(file, start, shape)?,
            GgmlDType::Q4_0 => boxed::<BlockQ4_0>(file, start, shape)?,
            GgmlDType::Q4_1 => boxed::<BlockQ4_1>(file, start, shape)?,
            GgmlDType::Q5_0 => boxed::<BlockQ5_0>(file, start, shape)?,
            GgmlDType::Q5_1 => boxed::<BlockQ5_1>(file, start, shape)?,
            GgmlDType::Q8_0 => boxed::<BlockQ8_0>(file, start, shape)?,
            GgmlDType::Q2K => boxed::<BlockQ2K>(file, start, shape)?,
            GgmlDType::Q3K => boxed::<BlockQ3K>(file, start, shape)?,
            GgmlDType::Q4K => boxed::<BlockQ4K>(file, start, shape)?,
            GgmlDType::Q5K => boxed::<BlockQ5K>(file, start, shape)?,
            GgmlDType::Q6K => boxed::<BlockQ6K>(file, start, shape)?,
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
        self.blocks.storage_size_in_bytes()
    }

    /// `out[m, rows] = inputs[m, cols] * self^T`, for few rows: many go through [`Self::panel`]. Allocates nothing once warm.
    ///
    /// Quantised weights quantise the inputs too (Q8_0 or Q8_K blocks), as ggml does.
    ///
    /// # Panics
    /// When a length does not fit.
    pub fn multiply(&self, m: usize, inputs: &[f32], out: &mut [f32]) {
        assert_eq!(inputs.len(), m * self.cols, "inputs are [m, cols]");
        assert_eq!(out.len(), m * self.rows, "out is [m, rows]");
        self.blocks.multiply(m, inputs, out);
    }

    /// One row as f32, `out [cols]`; allocates nothing.
    ///
    /// # Panics
    /// When `row` or the length of `out` does not fit.
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

    /// Some rows as a tensor for candle's prefill tiles; it shares the mapped bytes until candle repacks it.
    ///
    /// Two cases that candle's x86 tiles leave to a path several times slower are handed over as a Q8_0 copy instead,
    /// exactly the same numbers: Q4_0 (`d * (q - 8)` is a Q8_0 number of the same `d`), and Q8_0 or Q4_0 rows that are
    /// no multiple of 256, which are filled up with zeros. The tensor then has more columns than the matrix, and the
    /// inputs are to be filled up with zeros too.
    ///
    /// # Panics
    /// When the rows are not in the matrix.
    pub fn panel(&self, rows: Range<usize>) -> QTensor {
        assert!(
            rows.start < rows.end && rows.end <= self.rows,
            "{rows:?} of {}",
            self.rows
        );
        let row_blocks = self.cols / self.dtype.block_size();
        let blocks = rows.start * row_blocks..rows.end * row_blocks;
        let cols = self.panel_cols();
        let ragged = cols != self.cols;
        let storage: Box<dyn QuantizedType> = match self.dtype {
            GgmlDType::Q4_0 if q8_0_tiles() => Box::new(as_q8_0::<18>(
                &self.blocks.bytes()[blocks.start * 18..blocks.end * 18],
                row_blocks,
                cols,
                widen_q4_0,
            )),
            GgmlDType::Q8_0 if ragged => Box::new(as_q8_0::<34>(
                &self.blocks.bytes()[blocks.start * 34..blocks.end * 34],
                row_blocks,
                cols,
                |block| *block,
            )),
            _ => self.blocks.slice(blocks),
        };
        QTensor::new(QStorage::Cpu(storage), (rows.len(), cols))
            .expect("rows of whole blocks, which is all that QTensor::new checks")
    }

    /// Columns of a [`Self::panel`]: those of the matrix, or the next multiple of 256.
    pub fn panel_cols(&self) -> usize {
        match self.dtype {
            GgmlDType::Q4_0 | GgmlDType::Q8_0 if q8_0_tiles() => {
                self.cols.next_multiple_of(k_quants::QK_K)
            }
            _ => self.cols,
        }
    }
}

/// Whether candle has Q8_0 tiles for this processor that need rows of whole super-blocks: x86 with 8-bit dot products
/// (its `repack_x86::select`). On ARM it tiles Q4_0 and any row length itself.
fn q8_0_tiles() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        (is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni"))
            || (is_x86_feature_detected!("avxvnni") && is_x86_feature_detected!("avx2"))
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Rows of `row_blocks` blocks of `N` bytes as Q8_0 rows of `cols` numbers, the rest of each row zero.
fn as_q8_0<const N: usize>(
    bytes: &[u8],
    row_blocks: usize,
    cols: usize,
    convert: impl Fn(&[u8; N]) -> [u8; 34],
) -> Vec<BlockQ8_0> {
    let wide_blocks = cols / BlockQ8_0::BLCK_SIZE;
    let (blocks, _) = bytes.as_chunks::<N>();
    let mut out = Vec::with_capacity(blocks.len() / row_blocks * wide_blocks);
    for row in blocks.chunks_exact(row_blocks) {
        for block in row {
            let wide = convert(block);
            // SAFETY: 34 bytes are the size of a BlockQ8_0, any bytes are one (PlainBlock), and the read is unaligned.
            out.push(unsafe { wide.as_ptr().cast::<BlockQ8_0>().read_unaligned() });
        }
        out.resize(out.len() + wide_blocks - row_blocks, BlockQ8_0::zeros());
    }
    out
}

/// A Q4_0 block (`f16 d`, 16 bytes: numbers 0..16 in the low nibbles, 16..32 in the high ones) as a Q8_0 block
/// (`f16 d`, 32 signed bytes). Exact.
fn widen_q4_0(block: &[u8; 18]) -> [u8; 34] {
    let mut wide = [0u8; 34];
    wide[..2].copy_from_slice(&block[..2]);
    for (i, q) in block[2..].iter().enumerate() {
        wide[2 + i] = (q & 15).wrapping_sub(8);
        wide[18 + i] = (q >> 4).wrapping_sub(8);
    }
    wide
}
