// Storage of a row of a compact KV cache in the cache's type, rounded as in kept-kernels (cache_type.rs).
#pragma once

#include "device.cuh"

// 1.5 * 2^23: adding and subtracting it rounds to an integer.
#define ROUNDER 12582912.0f

// Rows of one type; a q8_0 or q4_0 cache also has f16 rows.
struct Stored {
    void* numbers;    // [narrow, bytes of a row]
    half_t* scales;   // [narrow, scales of a row]
    half_t* wide;     // [.., dim]
};

// Hadamard transform in runs of 2^k elements, the longest that divide `dim`, scaled to preserve norms. Executed by one
// warp, which owns `x`.
__device__ __forceinline__ void hadamard(float* x, uint32_t dim, uint32_t lane) {
    const uint32_t run = dim & (~dim + 1u);
    for (uint32_t half = 1; half < run; half *= 2) {
        for (uint32_t i = lane; i < dim / 2; i += LANES) {
            const uint32_t first = i / half * 2 * half + i % half;
            const float a = x[first], b = x[first + half];
            x[first] = a + b;
            x[first + half] = a - b;
        }
        warp_barrier();
    }
    const float scale = 1.0f / sqrtf((float)run);
    for (uint32_t i = lane; i < dim; i += LANES) {
        x[i] *= scale;
    }
    warp_barrier();
}

// Stores `x`, which the warp owns and which is modified, as row `target`; rows from `narrow` on are wide. Types: 0 f16,
// 1 q8_0, 2 q4_0. q4_0 rows are Hadamard-rotated first, unless `turned`.
__device__ __forceinline__ void store_row(const Stored& to, uint32_t kind, uint32_t narrow, size_t target, float* x, uint32_t dim, bool turned,
                                          uint32_t lane) {
    if (kind == 2 && !turned) {
        hadamard(x, dim, lane);
    }
    if (kind == 0 || target >= narrow) {
        half_t* const out = kind == 0 ? reinterpret_cast<half_t*>(to.numbers) + target * dim : to.wide + (target - narrow) * dim;
        for (uint32_t i = lane; i < dim; i += LANES) {
            out[i] = to_half(x[i]);
        }
        return;
    }
    // 32 elements share a scale; the last block may be shorter.
    const uint32_t scales = (dim + 31) / 32;
    for (uint32_t block = 0; block < scales; ++block) {
        const uint32_t i = block * 32 + lane;
        const float mine = i < dim ? x[i] : 0.0f, length = mine < 0.0f ? -mine : mine, most = warp_max(length);
        float scale;
        if (kind == 1) {
            scale = most / 127.0f;
            const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
            if (i < dim) {
                reinterpret_cast<int8_t*>(to.numbers)[target * dim + i] = (int8_t)roundf(mine * inverse);
            }
        } else {
            // Tries five scales and takes the one with the least squared error, which is summed in four parts as in
            // kept-kernels. The largest element in magnitude maps to 7 to 9 steps from 0, on the side that has 8.
            const float furthest = warp_max(mine == most ? 1.0f : 0.0f) > 0.0f ? -most : most;
            const float reaches[5] = {8.0f, 7.0f, 7.5f, 8.5f, 9.0f};
            float least = 3.0e38f, best = 0.0f;
            scale = 0.0f;
            for (int which = 0; which < 5; ++which) {
                // The scale rounded to a half, as it is stored.
                const float tried = to_float(to_half(furthest / reaches[which]));
                const float inverse = tried != 0.0f ? 1.0f / tried : 0.0f;
                const float step = at_least(-8.0f, at_most(7.0f, (product(mine, inverse) + ROUNDER) - ROUNDER));
                const float difference = mine - product(step, tried), square = product(difference, difference);
                float strand = 0.0f;
                for (uint32_t first = 0; first < LANES; first += 4) {
                    strand += shuffle(square, first + lane % 4);
                }
                const float error = shuffle(strand, 0) + shuffle(strand, 1) + shuffle(strand, 2) + shuffle(strand, 3);
                if (error < least) {
                    least = error;
                    best = step;
                    scale = tried;
                }
            }
            const int rounded = (int)best + 8;
            const int next = shuffle_xor(rounded, 1);
            if (i < dim && lane % 2 == 0) {
                reinterpret_cast<uint8_t*>(to.numbers)[target * (dim / 2) + i / 2] = (uint8_t)(rounded | next << 4);
            }
        }
        if (lane == 0) {
            to.scales[target * scales + block] = to_half(scale);
        }
    }
}
