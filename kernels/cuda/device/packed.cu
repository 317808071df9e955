// Vault rows in q8_0, in the file's format (a scale before every 32 numbers): unpacked into a layer, and packed from
// one.
//
//   operations  a product per number; packing also a comparison
//   bytes       each block of 32 once packed (34) and once unpacked (64)
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

struct Pack {
    const half_t* rows;  // [heads, capacity, dim]
    uint8_t* packed;     // [heads, count, row_bytes]
    uint32_t heads, capacity, dim;
    uint32_t first, count;
    uint32_t row_bytes;
};

// Rounds as kept-kernels does (packed.rs).
// block: 4 rows, a warp each
KEPT_KERNEL(128, pack_rows, Pack) {
    const uint32_t warp = threadIdx.x / LANES, lane = threadIdx.x % LANES, row = blockIdx.x * 4 + warp;
    if (row >= p.heads * p.count) {
        return;
    }
    const uint32_t head = row / p.count;
    const half_t* const from = p.rows + ((size_t)head * p.capacity + p.first + row % p.count) * p.dim;
    uint8_t* const to = p.packed + (size_t)row * p.row_bytes;
    for (uint32_t block = 0; block < (p.dim + 31) / 32; ++block) {
        const uint32_t i = block * 32 + lane;
        const float mine = i < p.dim ? to_float(from[i]) : 0.0f;
        const float scale = warp_max(mine < 0.0f ? -mine : mine) / 127.0f;
        const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
        to[block * 34 + 2 + lane] = (uint8_t)(int8_t)roundf(mine * inverse);
        if (lane == 0) {
            *reinterpret_cast<half_t*>(to + block * 34) = to_half(scale);
        }
    }
}
