// Operations between the products of a decode step: norms, heads on their way to the cache, top-k of the logits. All
// values that differ between tokens are on the device, so that a whole step can be captured once and replayed.
//
//   operations  fewer than ten a number; a next token: k passes over the logits for top-k
//   bytes       every number read and written once
#include "inputs.cuh"
#include "store.cuh"

struct StepNorm {
    float* residual;      // [width]
    const float* added;   // [width] or null: pending output of the previous sublayer
    const float* post;    // [width] or null: weights of an RMSNorm of `added`
    const float* weight;  // [width]
    Inputs out;
    uint32_t width;
    float eps;
};

// Sum over a block, in all of its threads. `of_warps` is [32] and not shared with other uses.
__device__ __forceinline__ float sum_of_block(float x, float* of_warps) {
    const uint32_t lane = threadIdx.x % LANES;
    x = warp_sum(x);
    if (lane == 0) {
        of_warps[threadIdx.x / LANES] = x;
    }
    __syncthreads();
    return warp_sum(lane < blockDim.x / LANES ? of_warps[lane] : 0.0f);
}

// Numbers of a row that a thread of step_norm holds: rows of up to 16,384.
constexpr int HELD = 16;

// one block
KEPT_KERNEL(1024, step_norm, StepNorm) {
    KEPT_SHARED(memory);
    float* const of_warps = reinterpret_cast<float*>(memory);  // [2, 32]
    float x[HELD];
    // Every thread has all of its numbers requested before it needs the first.
#pragma unroll
    for (int n = 0; n < HELD; ++n) {
        const uint32_t i = n * blockDim.x + threadIdx.x;
        x[n] = i < p.width ? p.residual[i] : 0.0f;
    }
    if (p.added != nullptr) {
        float added[HELD], squares = 0.0f;
#pragma unroll
        for (int n = 0; n < HELD; ++n) {
            const uint32_t i = n * blockDim.x + threadIdx.x;
            added[n] = i < p.width ? p.added[i] : 0.0f;
            squares += added[n] * added[n];
        }
        const float factor = p.post != nullptr ? 1.0f / sqrtf(sum_of_block(squares, of_warps) / (float)p.width + p.eps) : 1.0f;
#pragma unroll
        for (int n = 0; n < HELD; ++n) {
            const uint32_t i = n * blockDim.x + threadIdx.x;
            if (i < p.width) {
                x[n] += p.post != nullptr ? added[n] * factor * p.post[i] : added[n];
                p.residual[i] = x[n];
            }
        }
    }
    float squares = 0.0f;
#pragma unroll
    for (int n = 0; n < HELD; ++n) {
        squares += x[n] * x[n];
    }
    const float factor = 1.0f / sqrtf(sum_of_block(squares, of_warps + LANES) / (float)p.width + p.eps);
#pragma unroll
    for (int n = 0; n < HELD; ++n) {
        const uint32_t i = n * blockDim.x + threadIdx.x, first = i / LANES * LANES;
        if (first < p.width) {
            put_inputs(p.out, first, i < p.width ? x[n] * factor * p.weight[i] : 0.0f, p.width);
        }
    }
}

// Quantises numbers that are in the row already.
struct StepInputs {
    Inputs of;
    uint32_t width;
};

// block: 8 times 32 numbers
KEPT_KERNEL(256, step_inputs, StepInputs) {
    const uint32_t first = blockIdx.x * blockDim.x + threadIdx.x / LANES * LANES, i = first + threadIdx.x % LANES;
    if (first < p.width) {
        put_inputs(p.of, first, i < p.width ? p.of.numbers[i] : 0.0f, p.width);
    }
}

// Prepares projected heads: queries for attention, keys and values for their slots of the cache.
struct StepHeads {
    const float* q;            // [q_heads, dim]
    const float* k;            // [kv_heads, dim]
    const float* v;            // [kv_heads, dim]
    const float* q_norm;       // [dim] or null
    const float* k_norm;       // [dim] or null
    const float* cos;          // [positions, rope_dim / 2] or null
    const float* sin;
    const uint32_t* position;  // [1]
    const uint32_t* ranks;     // [kv_heads] or null: keys are stored before RoPE, queries have their group's position
    const uint32_t* targets;   // [kv_heads]: rows of the cache, wide from `narrow` on
    half_t* queries;           // [q_heads, dim]
    half_t* copies;            // [2, kv_heads, dim] or null: the new key and value, for the host
    Stored keys, values;
    uint32_t q_heads, kv_heads, dim, rope_dim;
    uint32_t neighbours;       // pairs are (2 i, 2 i + 1) if set, otherwise (i, i + rope_dim / 2)
    uint32_t narrow, kind;     // of the cache, see store_row
    float eps;
};

// block: 4 heads, a warp each: query heads, then key heads, then value heads
KEPT_KERNEL(128, step_heads, StepHeads) {
    KEPT_SHARED(memory);
    const uint32_t warp = threadIdx.x / LANES, lane = threadIdx.x % LANES, which = blockIdx.x * 4 + warp;
    if (which >= p.q_heads + 2 * p.kv_heads) {
        return;
    }
    float* const x = reinterpret_cast<float*>(memory) + warp * p.dim;  // [dim]
    const bool is_query = which < p.q_heads, is_value = which >= p.q_heads + p.kv_heads;
    const uint32_t head = is_query ? which : is_value ? which - p.q_heads - p.kv_heads : which - p.q_heads;
    const float* const from = (is_query ? p.q : is_value ? p.v : p.k) + (size_t)head * p.dim;
    const float* const norm = is_query ? p.q_norm : is_value ? nullptr : p.k_norm;
    float squares = 0.0f;
    for (uint32_t i = lane; i < p.dim; i += LANES) {
        x[i] = from[i];
        squares += x[i] * x[i];
    }
    squares = warp_sum(squares);
    if (norm != nullptr) {
        const float factor = 1.0f / sqrtf(squares / (float)p.dim + p.eps);
        for (uint32_t i = lane; i < p.dim; i += LANES) {
            x[i] = x[i] * factor * norm[i];
        }
    }
    warp_barrier();
    if (p.cos != nullptr && (is_query || (!is_value && p.ranks == nullptr))) {
        const uint32_t columns = p.rope_dim / 2, position = p.ranks != nullptr ? p.ranks[head / (p.q_heads / p.kv_heads)] : *p.position;
        const size_t angles = (size_t)position * columns;
        for (uint32_t i = lane; i < columns; i += LANES) {
            const uint32_t first = p.neighbours ? 2 * i : i, second = p.neighbours ? 2 * i + 1 : i + columns;
            const float a = x[first], b = x[second], c = p.cos[angles + i], s = p.sin[angles + i];
            x[first] = a * c - b * s;
            x[second] = a * s + b * c;
        }
        warp_barrier();
    }
    // Round to halves, like the keys, values and queries of a prompt.
    for (uint32_t i = lane; i < p.dim; i += LANES) {
        x[i] = to_float(to_half(x[i]));
    }
    warp_barrier();
    if (!is_query) {
        if (p.copies != nullptr) {
            for (uint32_t i = lane; i < p.dim; i += LANES) {
                p.copies[(size_t)(which - p.q_heads) * p.dim + i] = to_half(x[i]);
            }
            warp_barrier();
        }
        store_row(is_value ? p.values : p.keys, p.kind, p.narrow, p.targets[head], x, p.dim, false, lane);
        return;
    }
    // Attention undoes the Hadamard rotation of keys that it rotates by RoPE.
    if (p.kind == 2 && p.ranks == nullptr) {
        hadamard(x, p.dim, lane);
    }
    for (uint32_t i = lane; i < p.dim; i += LANES) {
        p.queries[(size_t)head * p.dim + i] = to_half(x[i]);
    }
}

// The largest numbers in descending order, the lower index first on ties. NaN sorts before all numbers.
struct Largest {
    const float* x;       // [count]
    const uint32_t* ids;  // [count] or null: index to report for each number; null: its own
    uint32_t* values;     // [blocks, most]: bits of the numbers; minus infinity after the last one
    uint32_t* places;     // [blocks, most]
    uint32_t count, each, most;
};

// block: `each` of the numbers
KEPT_KERNEL(256, largest, Largest) {
    KEPT_SHARED(memory);
    float* const best_of = reinterpret_cast<float*>(memory);                         // [warps]
    uint32_t* const place_of = reinterpret_cast<uint32_t*>(best_of + blockDim.x / LANES);  // [warps]
    float* const left = reinterpret_cast<float*>(place_of + blockDim.x / LANES);          // [each]: not taken
    const uint32_t first = blockIdx.x * p.each, count = at_most(p.each, p.count - first), warps = blockDim.x / LANES;
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
        const float x = p.x[first + i];
        left[i] = x == x ? x : float_infinity();
    }
    // A thread reads only its own writes, and thread 0's removal of a number.
    for (uint32_t round = 0; round < p.most; ++round) {
        __syncthreads();
        float best = -float_infinity();
        uint32_t place = 0xFFFFFFFFu;
        for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
            if (left[i] > best) {
                best = left[i];
                place = i;
            }
        }
        for (int mask = 16; mask > 0; mask >>= 1) {
            const float other = shuffle_xor(best, mask);
            const uint32_t there = shuffle_xor(place, mask);
            if (other > best || (other == best && there < place)) {
                best = other;
                place = there;
            }
        }
        if (threadIdx.x % LANES == 0) {
            best_of[threadIdx.x / LANES] = best;
            place_of[threadIdx.x / LANES] = place;
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            for (uint32_t w = 1; w < warps; ++w) {
                if (best_of[w] > best || (best_of[w] == best && place_of[w] < place)) {
                    best = best_of[w];
                    place = place_of[w];
                }
            }
            const bool there = place != 0xFFFFFFFFu;
            const size_t out = (size_t)blockIdx.x * p.most + round;
            p.values[out] = bits_of_float(there ? p.x[first + place] : best);
            p.places[out] = !there ? place : p.ids != nullptr ? p.ids[first + place] : first + place;
            if (there) {
                left[place] = -float_infinity();
            }
        }
    }
}
