//! Memory that candle's products need besides the weights. Compiled without candle too, so that the emulator can
//! reserve the same amounts.

use candle_core::quantized::GgmlDType;

use crate::driver::Inputs;

/// Input rows are padded to a multiple of this many elements: `MATRIX_ROW_PADDING` of candle and llama.cpp.
pub(crate) const PADDING: usize = 512;
/// Bytes of 32 inputs for few rows: two halves and 32 bytes of numbers.
const FEW_BLOCK: usize = 36;
/// Bytes of 128 inputs for many rows: four scales of four bytes and 128 bytes of numbers.
const MANY_BLOCK: usize = 144;
/// Blocks that a product of many rows may read after the end of its inputs.
const MANY_BEHIND: usize = 128;
/// Bytes of a product's partial tiles: 128 x 128 f32 for each of at most 256 multiprocessors.
pub(crate) const WORKSPACE: usize = 256 * 128 * 128 * 4;

/// Bytes of `count` quantised input rows of `cols` elements.
pub(crate) fn input_bytes(form: Inputs, count: usize, cols: usize) -> usize {
    let padded = cols.next_multiple_of(PADDING);
    match form {
        Inputs::Few => count * padded / 32 * FEW_BLOCK,
        _ => (count * padded / 128 + MANY_BEHIND) * MANY_BLOCK,
    }
}

/// Bytes of padding that must follow weights of `kind`.
pub(crate) fn padding(kind: GgmlDType) -> usize {
    PADDING / kind.block_size() * kind.type_size()
}
