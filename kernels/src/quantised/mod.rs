//! Products with quantised weights, on Kept's thread pool: inputs are rounded to bytes once, several matrices are
//! multiplied with them in one parallel loop, and the weights are read directly from the mapped file.
//!
//! - `format.rs`, `lists.rs`: each block format, unpacked in plain loops: the specification.
//! - `rows.rs`: [`QuantisedRows`], the inputs.
//! - `dot.rs`: few inputs (decode): every row of the matrix with each input.
//! - `tile.rs`, `ints.rs`: many inputs (prefill): 32 rows of the matrix are unpacked once for all inputs.
//!
//! ```text
//! out [m, rows] (+)= inputs [m, cols] * matrix [rows, cols]^T
//! ```
//!
//! Byte products are summed as integers over the 16 or 32 numbers that share a scale, and these sums are added in f32.
//! candle multiplies weights in floating point, except for the few rows of decode (`mapped/row.rs`).

mod dot;
mod format;
mod ints;
mod lists;
mod rows;
#[cfg(test)]
mod tests;
mod tile;

use std::ops::Range;

use crate::panel::with_scratch;
use crate::stop::{Stop, Stopped};
use crate::threads::{SharedMut, for_each_range};
use crate::weight_type::WeightType;
use dot::{Dots, ROWS};
pub(crate) use format::half;
use format::{Q1_0, Q2_0, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
use ints::{ByteLevel, byte_level};
use lists::{Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Iq4Nl, Iq4Xs, Mxfp4, Tq1_0, Tq2_0};
pub use rows::QuantisedRows;
use tile::Products;

/// Number of inputs from which a tile pays off.
const MANY: usize = 4;
/// Rows of the matrix per work item, with few inputs.
const ROWS_PER_ITEM: usize = 16;
/// Rows of a tile at the widest level; narrower levels process several tiles in turn.
const TILE_ROWS: usize = 32;
/// Multiplications below which waking the other threads costs more than it saves.
const WORTH_SHARING: usize = 1 << 15;

/// One matrix of a product, and its output.
pub(crate) struct Part<'a> {
    /// The matrix's blocks, row after row.
    pub(crate) blocks: &'a [u8],
    pub(crate) kind: WeightType,
    pub(crate) rows: usize,
    /// `[m, rows]`
    pub(crate) out: SharedMut<'a, f32>,
    /// Adds to `out` instead of replacing it.
    pub(crate) add: bool,
}

/// Multiplies some rows of one matrix with all inputs.
///
/// # Safety
/// The CPU supports the level's instructions, and no other thread accesses the results of these rows.
type Kernel = unsafe fn(ByteLevel, &Part<'_>, Range<usize>, &QuantisedRows);

/// `$function` for the format of `$kind`; returns `None` if the type is floating point.
macro_rules! with_format {
    ($kind:expr, $function:ident) => {
        with_format!($kind, $function:
            Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q1_0 Q2_0 Q2K Q3K Q4K Q5K Q6K
            Iq1S Iq1M Iq2Xxs Iq2Xs Iq2S Iq3Xxs Iq3S Iq4Nl Iq4Xs Tq1_0 Tq2_0 Mxfp4)
    };
    ($kind:expr, $function:ident: $($format:ident)*) => {
        Some(match $kind {
            WeightType::F32 | WeightType::F16 | WeightType::BF16 => return None,
            $(WeightType::$format => $function::<$format>,)*
        })
    };
}

fn kernel(kind: WeightType) -> Option<Kernel> {
    with_format!(kind, multiply_rows)
}

/// Dequantises a row of whole blocks of `kind`: `row` to `out [numbers]`. Allocates nothing.
pub(crate) type Dequantise = fn(row: &[u8], out: &mut [f32]);

/// The dequantisation of `kind`; `None` if the type is floating point.
pub(crate) fn dequantise(kind: WeightType) -> Option<Dequantise> {
    use format::dequantise;
    with_format!(kind, dequantise)
}

/// Adds rows of whole blocks of `kind`, each times its factor: `out [cols] += factors [rows] * blocks [rows, cols]`. Allocates
/// nothing.
pub(crate) type AddRows = fn(blocks: &[u8], factors: &[f32], out: &mut [f32]);

/// The sum of rows of `kind`; `None` if the type is floating point.
pub(crate) fn add_rows(kind: WeightType) -> Option<AddRows> {
    use format::add_rows;
    with_format!(kind, add_rows)
}

/// Multiplies all parts with the same inputs, in one parallel loop over all threads. Allocates nothing once warm.
///
/// # Errors
/// [`Stopped`], after [`Stop::request`]; the results are then incomplete.
pub(crate) fn multiply(
    parts: &[Part<'_>],
    inputs: &QuantisedRows,
    stop: &Stop,
) -> Result<(), Stopped> {
    let level = byte_level();
    let step = if inputs.rows() < MANY {
        ROWS_PER_ITEM
    } else {
        TILE_ROWS
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
                    let kernel = kernel(part.kind).expect("only such matrices become parts");
                    let rows = item * step..part.rows.min((item + 1) * step);
                    // SAFETY: the level was detected; each item runs exactly once and writes only its own rows.
                    unsafe { kernel(level, part, rows, inputs) };
                    break;
                }
                item -= of_part;
            }
        }
    };
    if rows * inputs.cols() * inputs.rows() < WORTH_SHARING {
        work(0..items)
    } else {
        for_each_range(items, work)
    }
    stop.check()
}

/// # Safety
/// As [`Kernel`].
unsafe fn multiply_rows<F: Dots>(
    level: ByteLevel,
    part: &Part<'_>,
    rows: Range<usize>,
    inputs: &QuantisedRows,
) {
    if inputs.rows() >= MANY {
        let out = Products {
            // SAFETY: `rows` is within the part.
            start: unsafe { part.out.start().add(rows.start) },
            stride: part.rows,
            add: part.add,
        };
        with_scratch(tile::scratch(inputs.cols()), |scratch| {
            // SAFETY: guaranteed by the caller.
            unsafe { tile::multiply::<F>(level, part.blocks, rows, inputs, out, scratch) };
        });
        return;
    }
    let row_bytes = inputs.cols() / F::BLOCK_SIZE * F::BYTES;
    for first in rows.clone().step_by(ROWS) {
        // Past the end the last row is repeated; the extra results are discarded.
        let four = std::array::from_fn(|i| {
            let row = (first + i).min(rows.end - 1);
            &part.blocks[row * row_bytes..(row + 1) * row_bytes]
        });
        let count = ROWS.min(rows.end - first);
        for m in 0..inputs.rows() {
            // SAFETY: guaranteed by the caller.
            let (found, out) = unsafe {
                let at = m * part.rows + first;
                (
                    F::dots(level, four, inputs.row(m)),
                    part.out.part(at..at + count),
                )
            };
            for (out, found) in out.iter_mut().zip(found) {
                if part.add {
                    *out += found
                } else {
                    *out = found
                }
            }
        }
    }
}
