//! Why a range of a file cannot be used as a matrix.

use crate::WeightType;

/// Why a range of a file cannot be used as a matrix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum MappedError {
    /// The matrix would end after the end of the file.
    #[error("a matrix at byte {start} needs {bytes} bytes, but the file has only {len}")]
    OutOfRange {
        start: usize,
        /// Bytes that the matrix needs; `usize::MAX` if the number overflows.
        bytes: usize,
        len: usize,
    },
    /// The start is not aligned for the type.
    #[error(
        "a matrix of type {kind} starts at byte {start}, which is no multiple of {align}; convert the file again"
    )]
    Unaligned {
        start: usize,
        align: usize,
        kind: WeightType,
    },
    /// A row is not a whole number of blocks.
    #[error("rows of {cols} numbers cannot be stored as {kind}, whose blocks hold {block}")]
    RaggedRow {
        cols: usize,
        block: usize,
        kind: WeightType,
    },
}
