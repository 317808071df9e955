// Rows of a vault on their way into a layer: q8_0 as the file has it, with the scale of every 32 numbers before them.
//
//   bytes  each block read once (34) and written once (64)
#include "device.cuh"

struct Unpack {
    const uint8_t* packed;  // [rows, row_bytes]
    half_t* out;            // [rows, dim]
    uint32_t rows, dim;
    uint32_t row_bytes;
};

// block: 256 numbers
KEPT_KERNEL(256, unpack_rows, Unpack) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (size_t)p.rows * p.dim) {
        return;
    }
    const uint32_t column = (uint32_t)(i % p.dim);
    const uint8_t* const block = p.packed + i / p.dim * p.row_bytes + column / 32 * 34;
    const float scale = to_float(*reinterpret_cast<const half_t*>(block));
    p.out[i] = to_half(scale * (float)(int8_t)block[2 + column % 32]);
}
