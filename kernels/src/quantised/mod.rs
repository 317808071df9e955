//! Products with quantised weights, on our own pool: inputs are rounded to bytes once, several matrices are multiplied with them in one
//! go, and the weights are read where they lie in the file.
//!
//! - `format.rs`: each block format, taken apart in plain loops: the specification.
//! - `rows.rs`: [`QuantisedRows`], the inputs.
//! - `dot.rs`: few inputs (answering): every row of the matrix against each of them.
//! - `tile.rs`, `ints.rs`: many inputs (reading): 32 rows of the matrix taken apart once for all of them.
//!
//! ```text
//! out [m, rows] (+)= inputs [m, cols] * matrix [rows, cols]^T
//! ```
//!
//! The arithmetic: products of bytes are summed in whole numbers over the 16 or 32 that share a scale, and these sums in f32. What
//! is not here: weights in floating point, which candle multiplies.

mod dot;
mod format;
mod ints;
mod rows;
#[cfg(test)]
mod tests;
mod tile;

use std::ops::Range;

use candle_core::quantized::GgmlDType;

use crate::panel::with_scratch;
use crate::stop::{Stop, Stopped};
use crate::threads::{SharedMut, for_each_range};
use dot::{Dots, ROWS};
use ints::{ByteLevel, byte_level};
pub use rows::QuantisedRows;
use tile::Products;

/// Inputs from which a tile pays.
const MANY: usize = 4;
/// Rows that a thread takes at once when there are few inputs.
const ROWS_AT_ONCE: usize = 16;
/// Rows of a tile at the widest level; narrower levels take several in turn.
const TILE_ROWS: usize = 32;
/// Products below which other threads are left alone.
const WORTH_SHARING: usize = 1 << 15;

/// Whether matrices of this type are multiplied here.
pub(crate) fn is_quantised(dtype: GgmlDType) -> bool {
    kernel(dtype).is_some()
}

/// One matrix of a product and where its results go.
pub(crate) struct Part<'a> {
    /// The matrix's blocks, row after row.
    pub(crate) blocks: &'a [u8],
    pub(crate) dtype: GgmlDType,
    pub(crate) rows: usize,
    /// `[m, rows]`
    pub(crate) out: SharedMut<'a, f32>,
    /// Added to what is in `out` instead of replacing it.
    pub(crate) add: bool,
}

/// Some rows of one matrix, multiplied with all inputs.
///
/// # Safety
/// The level's instructions exist, and nobody else touches these rows' results.
type Kernel = unsafe fn(ByteLevel, &Part<'_>, Range<usize>, &QuantisedRows);

fn kernel(dtype: GgmlDType) -> Option<Kernel> {
    Some(match dtype {
        GgmlDType::Q4_0 => rows_of::<format::Q4_0>,
        GgmlDType::Q4_1 => rows_of::<format::Q4_1>,
        GgmlDType::Q5_0 => rows_of::<format::Q5_0>,
        GgmlDType::Q5_1 => rows_of::<format::Q5_1>,
        GgmlDType::Q8_0 => rows_of::<format::Q8_0>,
        GgmlDType::Q2K => rows_of::<format::Q2K>,
        GgmlDType::Q3K => rows_of::<format::Q3K>,
        GgmlDType::Q4K => rows_of::<format::Q4K>,
        GgmlDType::Q5K => rows_of::<format::Q5K>,
        GgmlDType::Q6K => rows_of::<format::Q6K>,
        _ => return None,
    })
}

/// All parts with the same inputs, shared out to all threads in one go. Allocates nothing once warm.
///
/// # Errors
/// [`Stopped`], and then results are half-written.
pub(crate) fn multiply(
    parts: &[Part<'_>],
    inputs: &QuantisedRows,
    stop: &Stop,
) -> Result<(), Stopped> {
    let level = byte_level();
    let step = match inputs.rows() < MANY {
        true => ROWS_AT_ONCE,
        false => TILE_ROWS,
    };
    let items: usize = parts.iter().map(|part| part.rows.div_ceil(step)).sum();
    let rows: usize = parts.iter().map(|part| part.rows).sum();
    let work = |range: Range<usize>| {
        for mut item in range {
            if stop.is_requested() {
                return;
            }
            for part in parts {
                let of_part = part.rows.div_ceil(step);
                if item < of_part {
                    let kernel = kernel(part.dtype).expect("only such matrices become parts");
                    let rows = item * step..part.rows.min((item + 1) * step);
                    // SAFETY: the level was detected; every item is handed out once, and its rows are its own.
                    unsafe { kernel(level, part, rows, inputs) };
                    break;
                }
                item -= of_part;
            }
        }
    };
    match rows * inputs.cols() * inputs.rows() < WORTH_SHARING {
        true => work(0..items),
        false => for_each_range(items, work),
    }
    stop.check()
}

/// # Safety
/// As [`Kernel`].
unsafe fn rows_of<F: Dots>(
    level: ByteLevel,
    part: &Part<'_>,
    rows: Range<usize>,
    inputs: &QuantisedRows,
) {
    if inputs.rows() >= MANY {
        let out = Products {
            // SAFETY: rows are inside of the part.
            start: unsafe { part.out.start().add(rows.start) },
            stride: part.rows,
            add: part.add,
        };
        with_scratch(tile::scratch(inputs.cols()), |scratch| {
            // SAFETY: the caller's promise.
            unsafe { tile::multiply::<F>(level, part.blocks, rows, inputs, out, scratch) };
        });
        return;
    }
    let row_bytes = inputs.cols() / F::NUMBERS * F::BYTES;
    for first in rows.clone().step_by(ROWS) {
        // Behind the last row it is taken again, and its results are dropped.
        let four = std::array::from_fn(|i| {
            let row = (first + i).min(rows.end - 1);
            &part.blocks[row * row_bytes..(row + 1) * row_bytes]
        });
        let count = ROWS.min(rows.end - first);
        for m in 0..inputs.rows() {
            // SAFETY: the caller's promise.
            let (found, out) = unsafe {
                let at = m * part.rows + first;
                (
                    F::dots(level, four, inputs.row(m)),
                    part.out.part(at..at + count),
                )
            };
            for (out, found) in out.iter_mut().zip(found) {
                match part.add {
                    true => *out += found,
                    false => *out = found,
                }
            }
        }
    }
}
