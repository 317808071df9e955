//! Inputs of a product with quantised weights: rows rounded to signed bytes, once for all matrices.
//!
//! ```text
//! number = scale of its 32 * byte          -127..=127; the largest magnitude of 32 numbers becomes 127
//! ```

use std::ops::Range;

use crate::simd::{Lanes, by_level, simd_level};
use crate::threads::{SharedMut, for_each_range};

/// Numbers that share a scale.
pub(super) const BLOCK: usize = 32;
/// Numbers per stored sum.
pub(super) const SUM: usize = 16;
/// Numbers below which waking the other threads costs more than it saves.
const WORTH_SHARING: usize = 1 << 16;
/// Rows per work item.
const ROWS_PER_ITEM: usize = 8;

/// A reusable buffer of rounded rows, up to `capacity` elements in all.
pub struct QuantisedRows {
    /// `[rows, cols]`
    bytes: Vec<i8>,
    /// `[rows, cols / 32]`
    scales: Vec<f32>,
    /// `[rows, cols / 32]`: scale times the sum of the bytes, for weights with minima.
    sums: Vec<f32>,
    /// `[rows, cols / 16]`: sums of the bytes, for weights with an offset.
    byte_sums: Vec<i32>,
    rows: usize,
    cols: usize,
}

/// One row of a [`QuantisedRows`].
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) bytes: &'a [i8],
    pub(super) scales: &'a [f32],
    pub(super) sums: &'a [f32],
    pub(super) byte_sums: &'a [i32],
}

impl QuantisedRows {
    /// Allocates a capacity of `elements` elements.
    pub fn new(elements: usize) -> Self {
        Self {
            bytes: vec![0; elements],
            scales: vec![0.0; elements.div_ceil(BLOCK)],
            sums: vec![0.0; elements.div_ceil(BLOCK)],
            byte_sums: vec![0; elements.div_ceil(SUM)],
            rows: 0,
            cols: 0,
        }
    }

    /// Grows the capacity to at least `elements` elements; growing discards the contents.
    pub fn reserve(&mut self, elements: usize) {
        if self.bytes.len() < elements {
            *self = Self::new(elements);
        }
    }

    /// Bytes of a buffer with a capacity of `elements` elements.
    pub fn bytes_for(elements: usize) -> u64 {
        (elements + 2 * 4 * elements.div_ceil(BLOCK) + 4 * elements.div_ceil(SUM)) as u64
    }

    /// Number of rows in the buffer.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Numbers per row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Rounds `inputs [rows, cols]`; `cols` is a multiple of 32. Allocates nothing.
    ///
    /// # Panics
    /// If the capacity is too small, or `inputs` is not whole rows of whole blocks.
    pub fn fill(&mut self, inputs: &[f32], cols: usize) {
        self.fill_columns(inputs, cols, 0..cols);
    }

    /// Rounds `inputs [rows, columns.len()]` into the columns `columns` of rows of `cols` elements. The other columns
    /// are unchanged if the row count is unchanged. Allocates nothing.
    ///
    /// # Panics
    /// If the capacity is too small, or `inputs` is not whole rows of whole blocks.
    pub fn fill_columns(&mut self, inputs: &[f32], cols: usize, columns: Range<usize>) {
        let width = columns.len();
        assert!(
            width > 0
                && [cols, columns.start, width]
                    .iter()
                    .all(|n| n.is_multiple_of(BLOCK))
                && inputs.len().is_multiple_of(width),
            "{} elements are not rows of {columns:?} of {cols}, or these not whole blocks of {BLOCK}",
            inputs.len()
        );
        let rows = inputs.len() / width;
        assert!(
            columns.end <= cols && rows * cols <= self.bytes.len(),
            "{rows} rows of {columns:?} of {cols} elements, and room for {}",
            self.bytes.len()
        );
        (self.rows, self.cols) = (rows, cols);
        let level = simd_level();
        let (bytes, scales) = (
            SharedMut::new(&mut self.bytes),
            SharedMut::new(&mut self.scales),
        );
        let (sums, byte_sums) = (
            SharedMut::new(&mut self.sums),
            SharedMut::new(&mut self.byte_sums),
        );
        let work = |items: Range<usize>| {
            for row in items.start * ROWS_PER_ITEM..rows.min(items.end * ROWS_PER_ITEM) {
                let part = row * cols + columns.start..row * cols + columns.end;
                let blocks = part.start / BLOCK..part.end / BLOCK;
                let sixteens = part.start / SUM..part.end / SUM;
                // SAFETY: the level was detected; the parts of different rows are disjoint, because they are whole
                // blocks.
                unsafe {
                    quantise(
                        level,
                        &inputs[row * width..(row + 1) * width],
                        bytes.part(part),
                        scales.part(blocks.clone()),
                        sums.part(blocks),
                        byte_sums.part(sixteens),
                    );
                }
            }
        };
        let items = self.rows.div_ceil(ROWS_PER_ITEM);
        if inputs.len() < WORTH_SHARING {
            work(0..items)
        } else {
            for_each_range(items, work)
        }
    }

    pub(super) fn row(&self, row: usize) -> Row<'_> {
        let cols = self.cols;
        Row {
            bytes: &self.bytes[row * cols..][..cols],
            scales: &self.scales[row * cols / BLOCK..][..cols / BLOCK],
            sums: &self.sums[row * cols / BLOCK..][..cols / BLOCK],
            byte_sums: &self.byte_sums[row * cols / SUM..][..cols / SUM],
        }
    }

    /// The rounded elements of row `row`.
    #[cfg(test)]
    pub(super) fn rounded(&self, row: usize) -> Vec<f64> {
        let row = self.row(row);
        let number = |(i, byte): (usize, &i8)| f64::from(*byte) * f64::from(row.scales[i / BLOCK]);
        row.bytes.iter().enumerate().map(number).collect()
    }
}

by_level! {
    /// # Safety
    /// The CPU supports the level's instructions.
    unsafe fn quantise(inputs: &[f32], bytes: &mut [i8], scales: &mut [f32], sums: &mut [f32], byte_sums: &mut [i32]) = quantise_lanes;
}

/// Plain loops over arrays of fixed length, which the compiler vectorises with the level's instructions.
#[inline(always)]
unsafe fn quantise_lanes<V: Lanes>(
    inputs: &[f32],
    bytes: &mut [i8],
    scales: &mut [f32],
    sums: &mut [f32],
    byte_sums: &mut [i32],
) {
    // 1.5 * 2^23: adding it leaves the nearest integer in the low bits.
    const ROUNDER: f32 = 12_582_912.0;
    let blocks = inputs.as_chunks::<BLOCK>().0.iter();
    let blocks = blocks.zip(bytes.as_chunks_mut::<BLOCK>().0);
    for (block, (inputs, bytes)) in blocks.enumerate() {
        // Bits of magnitudes are in the order of the magnitudes, infinity and NaN behind all others.
        let mut most = [0i32; SUM];
        for x in inputs.as_chunks::<SUM>().0 {
            for (most, x) in most.iter_mut().zip(x) {
                *most = (*most).max(x.abs().to_bits() as i32);
            }
        }
        let largest = most.iter().fold(0, |a, &b| a.max(b));
        let largest = f32::from_bits(largest as u32);
        // Bytes cannot hold what is not finite: the scale makes every product with it NaN.
        let scale = match largest < f32::INFINITY {
            true => largest / 127.0,
            false => f32::NAN,
        };
        // Below 1e-30 the inverse could be infinite: treat the block as zeros.
        let inverse = if largest > 1e-30 {
            127.0 / largest
        } else {
            0.0
        };
        let mut total = 0i32;
        for (half, x) in inputs.as_chunks::<SUM>().0.iter().enumerate() {
            let mut whole = [0i32; SUM];
            for (whole, x) in whole.iter_mut().zip(x) {
                let rounded = (x * inverse + ROUNDER).to_bits() as i32;
                *whole = rounded.wrapping_sub(ROUNDER.to_bits() as i32);
            }
            for (byte, whole) in bytes[half * SUM..].iter_mut().zip(whole) {
                *byte = whole as i8;
            }
            let sum = whole.iter().fold(0i32, |a, &b| a.wrapping_add(b));
            byte_sums[2 * block + half] = sum;
            total = sum.wrapping_add(total);
        }
        scales[block] = scale;
        sums[block] = scale * total as f32;
    }
}
