//! Blocks of one type in a mapped file, with all checks that make the view sound.

use std::marker::PhantomData;
use std::sync::Arc;

use candle_core::quantized::k_quants::{
    BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1, BlockQ5K, BlockQ6K,
    BlockQ8_0, GgmlType,
};
use half::{bf16, f16};

use super::MappedFile;

/// Why a range of a file cannot be used as a matrix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MappedError {
    /// The matrix would end after the end of the file.
    #[error("a matrix at byte {start} needs {bytes} bytes, but the file has only {len}")]
    OutOfRange {
        /// First byte of the matrix.
        start: usize,
        /// Bytes that the matrix needs; `usize::MAX` if the number overflows.
        bytes: usize,
        /// Length of the file in bytes.
        len: usize,
    },
    /// The start is not aligned for the block type.
    #[error(
        "a matrix of type {dtype} starts at byte {start}, which is no multiple of {align}; convert the file again"
    )]
    Unaligned {
        /// First byte of the matrix.
        start: usize,
        /// Alignment that the type needs, in bytes.
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
    /// This type has no matrix multiplication.
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
/// Every bit pattern of `size_of::<Self>()` bytes must be a valid value of the type, and the type must have no padding.
pub unsafe trait PlainBlock: GgmlType + 'static {
    /// ggml's name of the type.
    const NAME: &'static str;
}

macro_rules! plain_blocks {
    ($($block:ty => $name:literal, $bytes:literal;)*) => {$(
        const _: () = assert!(size_of::<$block>() == $bytes);
        // SAFETY: the fields are u8, i8, f16 and f32 only, and the asserted size is the sum of the fields, so there is
        // no padding.
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

/// Blocks of one type in a mapped file; keeps the file mapped.
pub struct MappedBlocks<T> {
    file: Arc<MappedFile>,
    /// Offset of the first byte; a multiple of `align_of::<T>()`, as is the address of the map.
    start: usize,
    /// Number of blocks; `start + blocks * size_of::<T>() <= file.len()`.
    blocks: usize,
    of: PhantomData<T>,
}

impl<T: PlainBlock> MappedBlocks<T> {
    /// Views `blocks` blocks from byte `start` of `file`.
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
        // SAFETY: `new` checked that the bytes lie inside the map and are aligned for T; `self.file` keeps the map
        // alive; PlainBlock guarantees that any bytes are a valid value.
        unsafe {
            let first = self.file.bytes().as_ptr().add(self.start).cast::<T>();
            std::slice::from_raw_parts(first, self.blocks)
        }
    }
}

impl<T: PlainBlock> MappedBlocks<T> {
    /// The bytes of the blocks, as in the file.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.file.bytes()[self.start..][..self.blocks * size_of::<T>()]
    }
}
