// Products with weights that are not quantised: out = x * weights^T.
//
//   block       8 rows of the weights, a warp each, and 8 rows of the input, so that a weight is read once for eight of
//               them
//   operations  2 * inputs * the weights
//   bytes       the weights once for every 8 inputs: meant for small models or single tensors, not for speed
#include "device.cuh"

struct Dense {
    const void* weights;  // [rows, cols]
    const float* x;       // [inputs, cols]
    float* out;           // [inputs, rows]
    uint32_t rows, cols, inputs;
    uint32_t kind;        // 0 f32, 1 f16, 2 bf16
};

constexpr int AT_ONCE = 8;

__device__ __forceinline__ float weight(const Dense& p, size_t at) {
    if (p.kind == 0) {
        return reinterpret_cast<const float*>(p.weights)[at];
    }
    if (p.kind == 1) {
        return to_float(reinterpret_cast<const half_t*>(p.weights)[at]);
    }
    return float_of_bits((uint32_t)reinterpret_cast<const uint16_t*>(p.weights)[at] << 16);
}

KEPT_KERNEL(256, dense, Dense) {
    const uint32_t lane = threadIdx.x % LANES, row = blockIdx.x * 8 + threadIdx.x / LANES, first = blockIdx.y * AT_ONCE;
    if (row >= p.rows) {
        return;
    }
    const uint32_t inputs = at_most(p.inputs - first, (uint32_t)AT_ONCE);
    float sums[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
        sums[i] = 0.0f;
    }
    for (uint32_t column = lane; column < p.cols; column += LANES) {
        const float w = weight(p, (size_t)row * p.cols + column);
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            if (i < (int)inputs) {
                sums[i] += w * p.x[(size_t)(first + i) * p.cols + column];
            }
        }
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
        const float sum = warp_sum(sums[i]);
        if (lane == 0 && i < (int)inputs) {
            p.out[(size_t)(first + i) * p.rows + row] = sum;
        }
    }
}
