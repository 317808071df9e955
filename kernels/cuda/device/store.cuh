// How a row of a compact cache is stored, in its kind, rounded as kept-kernels rounds it (cache_type.rs).
#pragma once

#include "device.cuh"

// Adding it leaves no room for a fraction.
#define ROUNDER 12582912.0f

// Rows of one kind, and beside those of q8_0 and q4_0 rows that stay f16.
struct Stored {
    void* numbers;    // [narrow, bytes of a row]
    half_t* scales;   // [narrow, scales of a row]
    half_t* wide;     // [.., dim]
};

// Hadamard's matrix over runs of 2^k numbers, the longest that divide `dim`, scaled to keep lengths. One warp; `x` is its own.
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

// Stores `x`, which is the warp's own and is changed, as row `target`: from `narrow` on one of the wide rows. Kinds: 0 f16, 1 q8_0, 2 q4_0, which
// are rotated by Hadamard's matrix, unless the row is `turned` already.
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
    // 32 numbers share a scale; a last run that is not full is as long as it is.
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
            // Of five scales the one with the least squared error, which is summed up in four strands as kept-kernels does. The number
            // that is furthest from 0 comes to lie 7 to 9 steps away, on the side that has 8.
            const float furthest = warp_max(mine == most ? 1.0f : 0.0f) > 0.0f ? -most : most;
            const float reaches[5] = {8.0f, 7.0f, 7.5f, 8.5f, 9.0f};
            float least = 3.0e38f, best = 0.0f;
            scale = 0.0f;
            for (int which = 0; which < 5; ++which) {
                // The scale as it will be read.
                const float tried = to_float(to_half(furthest / reaches[which]));
                const float inverse = tried != 0.0f ? 1.0f / tried : 0.0f;
                const float step = at_least(-8.0f, at_most(7.0f, (product(mine, inverse) + ROUNDER) - ROUNDER));
                const float cosine_to_mean = mine - product(step, tried), square = product(cosine_to_mean, cosine_to_mean);
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
