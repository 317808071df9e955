//! Memory that candle's products need besides the weights. Compiled without candle too, so that the emulator can
//! reserve the same amounts.

use candle_core::quantized::GgmlDType;

use crate::driver::InputFormat;

/// Input rows are padded to a multiple of this many elements: `MATRIX_ROW_PADDING` of candle and llama.cpp.
pub(crate) const PADDING: usize = 512;
/// Bytes of llama.cpp's `block_q8_1`, 32 inputs of MMVQ: two halves and 32 signed bytes.
const BLOCK_Q8_1_BYTES: usize = 36;
/// Bytes of llama.cpp's `block_q8_1_mmq`, 128 inputs of MMQ: four scales of four bytes and 128 signed bytes.
const BLOCK_Q8_1_MMQ_BYTES: usize = 144;
/// Blocks that MMQ may read after the end of its inputs.
const MMQ_PADDING_BLOCKS: usize = 128;
/// Bytes of a product's partial tiles: 128 x 128 f32 for each of at most 256 multiprocessors.
pub(crate) const WORKSPACE: usize = 256 * 128 * 128 * 4;

/// Bytes of `count` quantised input rows of `cols` elements.
pub(crate) fn input_bytes(format: InputFormat, count: usize, cols: usize) -> usize {
    let padded = cols.next_multiple_of(PADDING);
    match format {
        InputFormat::Q8_1 => count * padded / 32 * BLOCK_Q8_1_BYTES,
        _ => (count * padded / 128 + MMQ_PADDING_BLOCKS) * BLOCK_Q8_1_MMQ_BYTES,
    }
}

/// Bytes of padding that must follow weights of `kind`.
pub(crate) fn padding(kind: GgmlDType) -> usize {
    PADDING / kind.block_size() * kind.type_size()
}
