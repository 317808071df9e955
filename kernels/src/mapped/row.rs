//! One row times a matrix: the product of decoding, on our own pool.
//!
//! candle multiplies a row too, but on its pool, which waits for each of its threads; on a busy machine that is a time slice for
//! every product of every token. The arithmetic is candle's: its dot products of quantised blocks, four rows at a time.

use std::cell::RefCell;

use candle_core::quantized::k_quants::GgmlType;

use crate::threads::{SharedMut, for_each_range};

/// Multiplications below which waking the other threads costs more than it saves.
const WORTH_SHARING: usize = 1 << 15;

thread_local! {
    /// The row as the matrix's blocks want it. u64: aligned for every block type.
    static QUANTISED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// `out[rows] = matrix[rows, cols] * input[cols]`; the input is quantised as the matrix's type wants it. Allocates nothing once
/// its thread has seen a row as long.
pub(super) fn multiply<T: GgmlType>(matrix: &[T], input: &[f32], out: &mut [f32]) {
    let (rows, cols) = (out.len(), input.len());
    let row_blocks = cols / T::BLCK_SIZE;
    assert_eq!(matrix.len(), rows * row_blocks, "[rows, cols]");
    QUANTISED.with_borrow_mut(|scratch| {
        let bytes = row_blocks * size_of::<T::VecDotType>();
        let words = bytes.div_ceil(size_of::<u64>());
        if scratch.len() < words {
            scratch.resize(words, 0);
        }
        assert!(align_of::<T::VecDotType>() <= align_of::<u64>());
        // SAFETY: long enough and aligned (both just made sure), and candle's block types are plain numbers: any bytes are one.
        let quantised = unsafe {
            let start = scratch.as_mut_ptr().cast::<T::VecDotType>();
            std::slice::from_raw_parts_mut(start, row_blocks)
        };
        match T::DIRECT_COPY {
            true => T::VecDotType::direct_copy(input, quantised),
            false => T::VecDotType::from_float(input, quantised),
        }
        let quantised = &*quantised;
        let row = |row: usize| &matrix[row * row_blocks..][..row_blocks];
        let quads = rows / 4;
        let shared = SharedMut::new(&mut *out);
        let work = |range: std::ops::Range<usize>| {
            for first in range.map(|quad| quad * 4) {
                let (a, b, c, d) = T::vec_dot_4(
                    cols,
                    row(first),
                    row(first + 1),
                    row(first + 2),
                    row(first + 3),
                    quantised,
                );
                // SAFETY: every quad is handed out once.
                unsafe { shared.part(first..first + 4) }.copy_from_slice(&[a, b, c, d]);
            }
        };
        match rows * cols < WORTH_SHARING {
            true => work(0..quads),
            false => for_each_range(quads, work),
        }
        for (last, out) in out.iter_mut().enumerate().skip(quads * 4) {
            *out = T::vec_dot(cols, row(last), quantised);
        }
    });
}
