// The input row of products with weights: as f32 for floating-point weights, and as bytes with a scale for every 32 of
// them for quantised weights.
#pragma once

#include "device.cuh"

struct Inputs {
    float* numbers;        // [width]
    int8_t* bytes;         // [width]
    float* scales;         // [width / 32]
    float* sums;           // [width / 16]: sums of 16 bytes each, times their scale
    const float* squares;  // [runs] or null: sums whose total gives the RMSNorm's factor, which the numbers still lack
    uint32_t runs;
    float eps;
};

// What products of these inputs are multiplied with: the factor of their RMSNorm, in all lanes of the warp. An RMSNorm
// divides a row by one number, so that it can be applied to the products.
__device__ __forceinline__ float norm_factor(const Inputs& in, uint32_t width) {
    if (in.squares == nullptr) {
        return 1.0f;
    }
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x % LANES; i < in.runs; i += LANES) {
        sum += in.squares[i];
    }
    return 1.0f / sqrtf(warp_sum(sum) / (float)width + in.eps);
}

// Writes the warp's 32 numbers at `first`, one per lane, except those from `width` on.
__device__ __forceinline__ void put_inputs(const Inputs& to, size_t first, float mine, size_t width) {
    const int lane = threadIdx.x % LANES;
    const size_t at = first + lane;
    const float most = warp_max(mine < 0.0f ? -mine : mine), scale = most / 127.0f;
    const float rounded = roundf(scale > 0.0f ? mine / scale : 0.0f);
    float sum = rounded;
#pragma unroll
    for (int mask = 8; mask > 0; mask >>= 1) {
        sum += shuffle_xor(sum, mask);
    }
    if (at < width) {
        to.numbers[at] = mine;
        to.bytes[at] = (int8_t)rounded;
        if (lane % 16 == 0) {
            to.sums[at / 16] = scale * sum;
        }
        if (lane == 0) {
            to.scales[at / 32] = scale;
        }
    }
}
