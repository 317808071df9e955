//! A few rows times a floating-point matrix, on Kept's thread pool, for decode. Quantised matrices are multiplied by
//! `quantised/`.
//!
//! candle multiplies such rows too, but its pool waits for each of its threads; on a busy machine this costs a time
//! slice for every product of every token. The arithmetic is candle's: its dot products, four rows of the matrix at a
//! time.

use std::cell::RefCell;

use candle_core::quantized::k_quants::GgmlType;

use crate::threads::{SharedMut, for_each_range};

/// Multiplications below which waking the other threads costs more than it saves.
const WORTH_SHARING: usize = 1 << 15;

thread_local! {
    /// The inputs, converted to the matrix's dot-product type. u64 is aligned for every block type.
    static QUANTISED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// `out[m, rows] = inputs[m, cols] * matrix[rows, cols]^T`; the inputs are converted to the dot-product type of the
/// matrix. Allocates nothing once the thread has processed inputs of this size.
pub(super) fn multiply<T: GgmlType>(m: usize, matrix: &[T], inputs: &[f32], out: &mut [f32]) {
    if m == 0 {
        return;
    }
    let (rows, cols) = (out.len() / m, inputs.len() / m);
    let row_blocks = cols / T::BLCK_SIZE;
    assert_eq!(matrix.len(), rows * row_blocks, "[rows, cols]");
    QUANTISED.with_borrow_mut(|scratch| {
        let bytes = m * row_blocks * size_of::<T::VecDotType>();
        let words = bytes.div_ceil(size_of::<u64>());
        if scratch.len() < words {
            scratch.resize(words, 0);
        }
        assert!(align_of::<T::VecDotType>() <= align_of::<u64>());
        // SAFETY: long enough and aligned (both ensured above), and candle's block types are plain numbers: any bytes
        // are a valid value.
        let quantised = unsafe {
            let start = scratch.as_mut_ptr().cast::<T::VecDotType>();
            std::slice::from_raw_parts_mut(start, m * row_blocks)
        };
        let blocks = quantised.chunks_exact_mut(row_blocks.max(1));
        for (input, blocks) in inputs.chunks_exact(cols.max(1)).zip(blocks) {
            if T::DIRECT_COPY {
                T::VecDotType::direct_copy(input, blocks)
            } else {
                T::VecDotType::from_float(input, blocks)
            }
        }
        let input = |i: usize| &quantised[i * row_blocks..][..row_blocks];
        let row = |row: usize| &matrix[row * row_blocks..][..row_blocks];
        let quads = rows / 4;
        let shared = SharedMut::new(&mut *out);
        let work = |range: std::ops::Range<usize>| {
            for first in range.map(|quad| quad * 4) {
                let [a, b, c, d] = [0, 1, 2, 3].map(|i| row(first + i));
                for i in 0..m {
                    let (a, b, c, d) = T::vec_dot_4(cols, a, b, c, d, input(i));
                    let at = i * rows + first;
                    // SAFETY: each quad runs exactly once, and these are its elements in the output of input i.
                    unsafe { shared.part(at..at + 4) }.copy_from_slice(&[a, b, c, d]);
                }
            }
        };
        if m * rows * cols < WORTH_SHARING {
            work(0..quads)
        } else {
            for_each_range(quads, work)
        }
        for (i, out) in out.chunks_exact_mut(rows.max(1)).enumerate() {
            for (last, out) in out.iter_mut().enumerate().skip(quads * 4) {
                *out = T::vec_dot(cols, row(last), input(i));
            }
        }
    });
}
