// Rows on their way into the compact cache: gathered by position, turned back to before RoPE where positions are re-assigned, rotated by
// Hadamard's matrix where they are to have 4 bits, and stored in their kind, rounded as kept-kernels rounds them (cache_type.rs).
//
//   bytes  each kept row read once (2 * DIM) and written once
#include "device.cuh"

// Adding it leaves no room for a fraction.
#define ROUNDER 12582912.0f

struct Keep {
    const half_t* source;       // [heads, capacity, dim]
    const uint32_t* positions;  // [slots]: the source's row of each slot, with `heads` runs one after another
    const uint32_t* targets;    // [slots] or null: the row that each becomes, from `narrow` on those of `wide`; null: that of its number
    const uint32_t* heads;      // [slots] or null: whose row it is; null: the first head's
    const float* cos;           // [positions, rope_dim / 2] or null
    const float* sin;
    void* numbers;              // [narrow, bytes of a row]
    half_t* scales;             // [narrow, scales of a row]
    half_t* wide;               // [.., dim]: rows that stay f16 beside those of q8_0 and q4_0
    uint32_t slots, capacity, dim, rope_dim;
    uint32_t neighbours;
    uint32_t narrow;            // rows of `numbers`
    uint32_t turned;            // the source is rotated by Hadamard's matrix already
    uint32_t kind;              // 0 f16, 1 q8_0, 2 q4_0
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

// block: 4 slots, a warp each
KEPT_KERNEL(128, keep, Keep) {
    KEPT_SHARED(memory);
    const uint32_t warp = threadIdx.x / LANES, lane = threadIdx.x % LANES, slot = blockIdx.x * 4 + warp;
    float* const x = reinterpret_cast<float*>(memory) + warp * p.dim;  // [dim]
    if (slot >= p.slots) {
        return;
    }
    const size_t position = p.positions[slot], target = p.targets != nullptr ? p.targets[slot] : slot;
    const size_t head = p.heads != nullptr ? p.heads[slot] : 0;
    const half_t* const row = p.source + (head * p.capacity + position) * p.dim;
    for (uint32_t i = lane; i < p.dim; i += LANES) {
        x[i] = to_float(row[i]);
    }
    warp_barrier();
    if (p.cos != nullptr) {
        const uint32_t columns = p.rope_dim / 2;
        for (uint32_t i = lane; i < columns; i += LANES) {
            const uint32_t first = p.neighbours ? 2 * i : i, second = p.neighbours ? 2 * i + 1 : i + columns;
            const float a = x[first], b = x[second], c = p.cos[position * columns + i], s = p.sin[position * columns + i];
            x[first] = a * c + b * s;
            x[second] = b * c - a * s;
        }
        warp_barrier();
    }
    if (p.kind == 2 && !p.turned) {
        hadamard(x, p.dim, lane);
    }
    if (p.kind == 0 || target >= p.narrow) {
        half_t* const out = p.kind == 0 ? reinterpret_cast<half_t*>(p.numbers) + target * p.dim : p.wide + (target - p.narrow) * p.dim;
        for (uint32_t i = lane; i < p.dim; i += LANES) {
            out[i] = to_half(x[i]);
        }
        return;
    }
    // 32 numbers share a scale; a last run that is not full is as long as it is.
    const uint32_t scales = (p.dim + 31) / 32;
    for (uint32_t block = 0; block < scales; ++block) {
        const uint32_t i = block * 32 + lane;
        const float mine = i < p.dim ? x[i] : 0.0f, length = mine < 0.0f ? -mine : mine, most = warp_max(length);
        float scale;
        if (p.kind == 1) {
            scale = most / 127.0f;
            const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
            if (i < p.dim) {
                reinterpret_cast<int8_t*>(p.numbers)[target * p.dim + i] = (int8_t)roundf(mine * inverse);
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
                const float step = at_least(-8.0f, at_most(7.0f, (mine * inverse + ROUNDER) - ROUNDER));
                const float apart = mine - step * tried, square = apart * apart;
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
            if (i < p.dim && lane % 2 == 0) {
                reinterpret_cast<uint8_t*>(p.numbers)[target * (p.dim / 2) + i / 2] = (uint8_t)(rounded | next << 4);
            }
        }
        if (lane == 0) {
            p.scales[target * scales + block] = to_half(scale);
        }
    }
}

// Queries before, and attention after, rows that Hadamard's matrix has rotated.
struct Turn {
    half_t* halves;  // [rows, dim] or null
    float* numbers;  // [rows, dim] or null
    uint32_t rows, dim;
};

// block: 4 rows, a warp each
KEPT_KERNEL(128, hadamard_rows, Turn) {
    KEPT_SHARED(memory);
    const uint32_t warp = threadIdx.x / LANES, lane = threadIdx.x % LANES, row = blockIdx.x * 4 + warp;
    float* const x = reinterpret_cast<float*>(memory) + warp * p.dim;  // [dim]
    if (row >= p.rows) {
        return;
    }
    for (uint32_t i = lane; i < p.dim; i += LANES) {
        const size_t at = (size_t)row * p.dim + i;
        x[i] = p.halves != nullptr ? to_float(p.halves[at]) : p.numbers[at];
    }
    warp_barrier();
    hadamard(x, p.dim, lane);
    for (uint32_t i = lane; i < p.dim; i += LANES) {
        const size_t at = (size_t)row * p.dim + i;
        if (p.halves != nullptr) {
            p.halves[at] = to_half(x[i]);
        } else {
            p.numbers[at] = x[i];
        }
    }
}
