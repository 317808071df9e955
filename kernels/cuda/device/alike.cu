// Finds each token's nearest neighbour among given tokens. EMS compares thousands of tokens with its class centres, and
// replaces each class of similar tokens by their mean (merge.cu). Rows are multiplied as stored, in halves, and the
// products divided by the rows' norms, so that only sums are rounded.
//
//   row_lengths        a warp for each row
//   nearest_by_cosine  64 tokens a block, 4 warps of 16; tiles of the others' keys and values pass through shared
//                      memory
//   operations         4 * tokens * others * DIM
//   bytes              tokens / 64 times the others' keys and values (from the L2 cache for all but the first)
#include "tiles.cuh"

struct Lengths {
    const half_t* rows;  // [count, dim]
    float* lengths;      // [count]: norms, never 0, so that a zero row has cosine 0 with every row
    uint32_t count, dim;
};

// block: 4 rows, a warp each
KEPT_KERNEL(128, row_lengths, Lengths) {
    const uint32_t row = blockIdx.x * 4 + threadIdx.x / LANES, lane = threadIdx.x % LANES;
    if (row >= p.count) {
        return;
    }
    float squares = 0.0f;
    for (uint32_t i = lane; i < p.dim; i += LANES) {
        const float x = to_float(p.rows[(size_t)row * p.dim + i]);
        squares += x * x;
    }
    squares = warp_sum(squares);
    if (lane == 0) {
        p.lengths[row] = at_least(sqrtf(squares), 1e-12f);
    }
}

// Gathered rows of one head, and their norms.
struct Sides {
    const half_t* keys;          // [.., DIM]
    const half_t* values;        // [.., DIM]
    const float* key_lengths;    // [..]
    const float* value_lengths;  // [..]
};

struct MostAlike {
    Sides of, others;
    uint32_t* best;   // [tokens]: index of each token's nearest neighbour among the others, the first on ties
    float* products;  // [tokens]: cosine of the keys times cosine of the values
    uint32_t tokens, count;  // count: number of the others
};

constexpr int ROWS_OF_BLOCK = 64;

template <int DIM, int KEYS>
__device__ __forceinline__ void nearest_by_cosine(const MostAlike& p) {
    KEPT_SHARED(memory);
    constexpr int TILE = KEYS * STRIDE<DIM>;
    half_t* const tile_keys = reinterpret_cast<half_t*>(memory);             // [KEYS, DIM + 8]
    half_t* const tile_values = tile_keys + TILE;                            // [KEYS, DIM + 8]
    float* const shares = reinterpret_cast<float*>(tile_values + TILE);  // [2, KEYS]: 1 / norm of keys and of values
    const Lane own;
    const int row = (int)blockIdx.x * ROWS_OF_BLOCK + (int)threadIdx.x / LANES * ROWS_OF_WARP, there = (int)p.tokens - row;
    const Queries<DIM> keys(p.of.keys + (size_t)row * DIM, DIM, there), values(p.of.values + (size_t)row * DIM, DIM, there);
    float most[2] = {-float_infinity(), -float_infinity()};
    uint32_t best[2] = {0, 0};
    for (int first = 0; first < (int)p.count; first += KEYS) {
        copy_tile_begin<DIM, KEYS>(tile_keys, p.others.keys, first, (int)p.count);
        copy_tile_begin<DIM, KEYS>(tile_values, p.others.values, first, (int)p.count);
        copies_commit();
        for (int i = threadIdx.x; i < 2 * KEYS; i += blockDim.x) {
            const float* const lengths = i < KEYS ? p.others.key_lengths : p.others.value_lengths;
            const int other = first + i % KEYS;
            shares[i] = other < (int)p.count ? 1.0f / lengths[other] : 0.0f;
        }
        copies_wait<0>();
        __syncthreads();
        float k[KEYS / 8][4], v[KEYS / 8][4];
        dot_tile<DIM, KEYS>(k, keys, tile_keys);
        dot_tile<DIM, KEYS>(v, values, tile_values);
#pragma unroll
        for (int j = 0; j < KEYS / 8; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int at = 8 * j + 2 * own.t + (i & 1), r = i >> 1;
                const float alike = (k[j][i] * shares[at]) * (v[j][i] * shares[KEYS + at]);
                // This lane's columns come in ascending order, so that the first of equal ones stays.
                if (first + at < (int)p.count && alike > most[r]) {
                    most[r] = alike;
                    best[r] = (uint32_t)(first + at);
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        for (int mask = 1; mask < 4; mask *= 2) {
            const float other = shuffle_xor(most[r], mask);
            const uint32_t its = shuffle_xor(best[r], mask);
            if (other > most[r] || (other == most[r] && its < best[r])) {
                most[r] = other;
                best[r] = its;
            }
        }
        const int token = row + own.g + 8 * r;
        if (token < (int)p.tokens && own.t == 0) {
            p.best[token] = best[r];
            p.products[token] = most[r] / p.of.key_lengths[token] / p.of.value_lengths[token];
        }
    }
}

KEPT_KERNEL(128, nearest_by_cosine_64, MostAlike) { nearest_by_cosine<64, 64>(p); }
KEPT_KERNEL(128, nearest_by_cosine_80, MostAlike) { nearest_by_cosine<80, 64>(p); }
KEPT_KERNEL(128, nearest_by_cosine_96, MostAlike) { nearest_by_cosine<96, 64>(p); }
KEPT_KERNEL(128, nearest_by_cosine_128, MostAlike) { nearest_by_cosine<128, 64>(p); }
KEPT_KERNEL(128, nearest_by_cosine_256, MostAlike) { nearest_by_cosine<256, 32>(p); }
