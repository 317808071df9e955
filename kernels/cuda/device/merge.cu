// Merges tokens into shared rows of the compact KV cache (EMS, eq. 7): the weighted mean of their values, and of their
// keys' directions, whose RoPE is undone where positions are re-assigned. A class of one takes its token's row
// unchanged. Also weighted sums of the values of evicted tokens, which kept tokens receive (CaM, eq. 14).
//
//   operations  4 * DIM per member and side, 6 more per element whose RoPE is undone
//   warp        one class, member after member: with hundreds of members a launch takes several times as long as
//               reading its bytes. Callers with larger sums split them.
//   bytes       each member's row once (2 * DIM; the norm's second read comes from the L1 cache), each class's row once
#include "store.cuh"

struct Merge {
    const half_t* source;     // [heads, capacity, dim]
    const uint32_t* starts;   // [classes + 1]: first member of each class
    const uint32_t* members;  // [members]: source row of each member
    const float* weights;     // [members]
    float* lengths;           // [members]: norms of keys, which are averaged as directions; null: rows are values
    const float* cos;         // [positions, rope_dim / 2] or null
    const float* sin;
    void* numbers;            // [classes, dim], f16
    float* sums;              // [classes, dim] or null: write weighted sums instead of means, also for a class of one
    uint32_t head, classes, capacity, dim, rope_dim;
    uint32_t neighbours;
};

// block: 4 classes, a warp each
KEPT_KERNEL(128, merge, Merge) {
    KEPT_SHARED(memory);
    const uint32_t warp = threadIdx.x / LANES, lane = threadIdx.x % LANES, row = blockIdx.x * 4 + warp;
    float* const x = reinterpret_cast<float*>(memory) + warp * p.dim;  // [dim]: lane-private up to the barrier
    if (row >= p.classes) {
        return;
    }
    const uint32_t first = p.starts[row], end = p.starts[row + 1], columns = p.cos != nullptr ? p.rope_dim / 2 : 0;
    const bool alone = p.sums == nullptr && end - first == 1;
    for (uint32_t i = lane; i < p.dim; i += LANES) {
        x[i] = 0.0f;
    }
    warp_barrier();
    float total = 0.0f;
    for (uint32_t member = first; member < end; ++member) {
        const size_t position = p.members[member];
        const half_t* const from = p.source + ((size_t)p.head * p.capacity + position) * p.dim;
        float share = alone ? 1.0f : p.weights[member];
        total += share;
        if (p.lengths != nullptr) {
            float squares = 0.0f;
            for (uint32_t i = lane; i < p.dim; i += LANES) {
                squares += to_float(from[i]) * to_float(from[i]);
            }
            const float length = at_least(sqrtf(warp_sum(squares)), 1e-12f);
            if (lane == 0) {
                p.lengths[member] = length;
            }
            share = alone ? share : share / length;
        }
        for (uint32_t i = lane; i < columns; i += LANES) {
            const uint32_t one = p.neighbours ? 2 * i : i, two = p.neighbours ? 2 * i + 1 : i + columns;
            const float a = to_float(from[one]), b = to_float(from[two]);
            const float c = p.cos[position * columns + i], s = p.sin[position * columns + i];
            x[one] += share * (product(a, c) + product(b, s));
            x[two] += share * (product(b, c) - product(a, s));
        }
        for (uint32_t i = 2 * columns + lane; i < p.dim; i += LANES) {
            x[i] += share * to_float(from[i]);
        }
    }
    warp_barrier();
    if (p.sums != nullptr) {
        for (uint32_t i = lane; i < p.dim; i += LANES) {
            p.sums[(size_t)row * p.dim + i] = x[i];
        }
        return;
    }
    for (uint32_t i = lane; i < p.dim; i += LANES) {
        x[i] = x[i] / total;
    }
    warp_barrier();
    store_row({p.numbers, nullptr, nullptr}, 0, p.classes, row, x, p.dim, false, lane);
}
