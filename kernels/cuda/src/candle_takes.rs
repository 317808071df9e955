//! What candle's products take of a GPU besides weights: known also where they are not, so that the emulator can take as much.

use candle_core::quantized::GgmlDType;

use crate::driver::Inputs;

/// What a row of inputs is filled up to, in numbers: `MATRIX_ROW_PADDING` of candle and llama.cpp.
pub(crate) const PADDING: usize = 512;
/// Bytes of 32 inputs for few rows: two halves and the numbers.
const FEW_BLOCK: usize = 36;
/// Bytes of 128 inputs for many rows: four scales of four bytes and the numbers.
const MANY_BLOCK: usize = 144;
/// Blocks that a product of many rows may read behind its inputs.
const MANY_BEHIND: usize = 128;
/// Bytes of a product's partial tiles: 128 x 128 numbers for each of at most 256 multiprocessors.
pub(crate) const WORKSPACE: usize = 256 * 128 * 128 * 4;

/// Bytes of `count` quantised inputs of `cols` numbers.
pub(crate) fn input_bytes(form: Inputs, count: usize, cols: usize) -> usize {
    let padded = cols.next_multiple_of(PADDING);
    match form {
        Inputs::Few => count * padded / 32 * FEW_BLOCK,
        _ => (count * padded / 128 + MANY_BEHIND) * MANY_BLOCK,
    }
}

/// Bytes that must be there behind weights of `kind`.
pub(crate) fn behind(kind: GgmlDType) -> usize {
    PADDING / kind.block_size() * kind.type_size()
}
