// Scores: the attention probability that each key receives from the given rows. Two passes over the keys, as in
// kept-kernels' window.rs. The first computes each row's log-sum-exp (also an output of prefill_attention), the second
// sums exp(logit - log_sum_exp) by column. No buffer has size rows x keys, and no sum depends on the order of blocks.
//
//   operations  2 * rows * keys * DIM per query head and pass
//   bytes       first pass: the keys once for every 64 rows; second pass: the keys once per query head (from the L2
//               cache for all but the first of a group), the queries once for every 64 keys
#include "tiles.cuh"

struct Scores {
    const half_t* queries;       // [rows, q_heads, DIM], rotated
    const half_t* keys;          // [kv_heads, capacity, DIM], rotated; row == position
    const float* log_sum_exp;    // second pass: [q_heads, rows]
    const float* row_weights;    // [rows] or null
    float* sums;                 // first pass: [splits, q_heads, rows]; second: [q_heads, stride]
    unsigned long long* marks;   // [kv_heads, keys, words] for mark_below_average
    uint32_t rows, first;        // first: position of row 0
    uint32_t q_heads, kv_heads, capacity;
    uint32_t limit;              // no row attends to keys from here on
    uint32_t end;                // number of keys
    uint32_t stride;             // second pass: distance between the sums of two heads
    uint32_t add;                // second pass: add the result to `sums` instead of replacing them
    uint32_t words;              // for mark_below_average
    float row_weight;            // weight of every row without row_weights
    Scale scale;
};

constexpr int KEYS = 64;
constexpr int ROWS_OF_BLOCK = 64;
constexpr int WARPS = 4;

// Number of keys that the row at `position` attends to.
__device__ __forceinline__ int visible(const Scores& p, int position) { return at_most(position + 1, (int)p.limit); }

// First pass. block: 64 rows of one query head over a share of the keys.
template <int DIM>
__device__ __forceinline__ void row_sums(const Scores& p) {
    KEPT_SHARED(memory);
    half_t* const tile_keys = reinterpret_cast<half_t*>(memory);  // [KEYS, DIM + 8]
    const Lane own;
    const int head = blockIdx.y, kv_head = head / (p.q_heads / p.kv_heads);
    const int first_row = blockIdx.x * ROWS_OF_BLOCK, row = first_row + threadIdx.x / LANES * ROWS_OF_WARP;
    const half_t* const keys = p.keys + (size_t)kv_head * p.capacity * DIM;
    const int end = visible(p, (int)p.first + at_most(first_row + ROWS_OF_BLOCK, (int)p.rows) - 1);
    const int all = (end + KEYS - 1) / KEYS;
    const int from = (int)((long long)all * blockIdx.z / gridDim.z), to = (int)((long long)all * (blockIdx.z + 1) / gridDim.z);

    const Queries<DIM> q(p.queries + ((size_t)row * p.q_heads + head) * DIM, (size_t)p.q_heads * DIM, (int)p.rows - row);
    Running running;
    for (int tile = from; tile < to; ++tile) {
        copy_tile_begin<DIM, KEYS>(tile_keys, keys, tile * KEYS, end);
        copies_commit();
        copies_wait<0>();
        __syncthreads();
        float s[KEYS / 8][4];
        dot_tile<DIM, KEYS>(s, q, tile_keys);
#pragma unroll
        for (int j = 0; j < KEYS / 8; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int position = (int)p.first + row + own.g + 8 * (i >> 1), key = tile * KEYS + 8 * j + 2 * own.t + (i & 1);
                s[j][i] = key < visible(p, position) ? p.scale.logit(s[j][i]) : -float_infinity();
            }
        }
        float shrink[2];
        running.take<KEYS>(s, shrink);
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int own_row = row + own.g + 8 * r;
        const float sum = running.total(r);
        if (own_row < (int)p.rows && own.t == 0) {
            p.sums[((size_t)blockIdx.z * p.q_heads + head) * p.rows + own_row] = sum > 0.0f ? running.max[r] + logf(sum) : -float_infinity();
        }
    }
}

// Probabilities of a tile of keys for this warp's 16 rows of `head`; 0 where a row does not attend to a key.
template <int DIM>
__device__ __forceinline__ void tile_probabilities(float (&s)[KEYS / 8][4], const Scores& p, const half_t* tile_keys, int head, int row, int first_key) {
    const Lane own;
    const Queries<DIM> q(p.queries + ((size_t)row * p.q_heads + head) * DIM, (size_t)p.q_heads * DIM, (int)p.rows - row);
    dot_tile<DIM, KEYS>(s, q, tile_keys);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int own_row = row + own.g + 8 * r;
        const bool there = own_row < (int)p.rows;
        const float sum = there ? p.log_sum_exp[(size_t)head * p.rows + own_row] : 0.0f;
        const int sees = there ? visible(p, (int)p.first + own_row) : 0;
#pragma unroll
        for (int j = 0; j < KEYS / 8; ++j) {
#pragma unroll
            for (int i = 2 * r; i < 2 * r + 2; ++i) {
                const int key = first_key + 8 * j + 2 * own.t + (i & 1);
                s[j][i] = key < sees ? fast_exp(p.scale.logit(s[j][i]) - sum) : 0.0f;
            }
        }
    }
}

// Second pass. block: 64 keys of one query head; loops over the rows that attend to them, 64 at a time.
template <int DIM>
__device__ __forceinline__ void column_sums(const Scores& p) {
    KEPT_SHARED(memory);
    half_t* const tile_keys = reinterpret_cast<half_t*>(memory);            // [KEYS, DIM + 8]
    float* const of_warps = reinterpret_cast<float*>(tile_keys + KEYS * STRIDE<DIM>);  // [WARPS, KEYS]
    const Lane own;
    const int warp = threadIdx.x / LANES, head = blockIdx.y, kv_head = head / (p.q_heads / p.kv_heads);
    const int first_key = (int)blockIdx.x * KEYS;
    copy_tile_begin<DIM, KEYS>(tile_keys, p.keys + (size_t)kv_head * p.capacity * DIM, first_key, at_most((int)p.end, (int)p.limit));
    copies_commit();
    copies_wait<0>();
    __syncthreads();

    // This lane's part of its columns: columns 2 t and 2 t + 1 of n-tile j.
    float sums[KEYS / 8][2];
#pragma unroll
    for (int j = 0; j < KEYS / 8; ++j) {
        sums[j][0] = sums[j][1] = 0.0f;
    }
    // Rows before the first key do not attend to it.
    const int hidden = at_least(first_key - (int)p.first, 0) / ROWS_OF_BLOCK * ROWS_OF_BLOCK;
    for (int first_row = hidden; first_row < (int)p.rows; first_row += ROWS_OF_BLOCK) {
        const int row = first_row + warp * ROWS_OF_WARP;
        float s[KEYS / 8][4];
        tile_probabilities<DIM>(s, p, tile_keys, head, row, first_key);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int own_row = row + own.g + 8 * r;
            float weight = p.row_weight;
            if (p.row_weights != nullptr) {
                weight = own_row < (int)p.rows ? p.row_weights[own_row] : 0.0f;
            }
#pragma unroll
            for (int j = 0; j < KEYS / 8; ++j) {
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    sums[j][c] += weight * s[j][2 * r + c];
                }
            }
        }
    }
    // Reduce over the eight lanes with the same columns, then over the warps.
#pragma unroll
    for (int j = 0; j < KEYS / 8; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            float x = sums[j][c];
            for (int mask = 4; mask < LANES; mask *= 2) {
                x += shuffle_xor(x, mask);
            }
            if (own.g == 0) {
                of_warps[warp * KEYS + 8 * j + 2 * own.t + c] = x;
            }
        }
    }
    __syncthreads();
    const int key = first_key + (int)threadIdx.x;
    if (threadIdx.x < KEYS && key < (int)p.end) {
        float x = of_warps[threadIdx.x];
        for (int w = 1; w < WARPS; ++w) {
            x += of_warps[w * KEYS + threadIdx.x];
        }
        float* const out = p.sums + (size_t)head * p.stride + key;
        *out = p.add ? *out + x : x;
    }
}

// Marks the rows that give a key less than the average probability of the keys they attend to, after averaging the
// heads of a group. block: 64 keys of one KV head and 64 rows, which are one word of each key's marks.
template <int DIM>
__device__ __forceinline__ void mark_below_average(const Scores& p) {
    KEPT_SHARED(memory);
    half_t* const tile_keys = reinterpret_cast<half_t*>(memory);                            // [KEYS, DIM + 8]
    float* const means = reinterpret_cast<float*>(tile_keys + KEYS * STRIDE<DIM>);  // [ROWS_OF_BLOCK, KEYS]
    const Lane own;
    const int kv_head = blockIdx.y, group = (int)(p.q_heads / p.kv_heads);
    const int first_key = (int)blockIdx.x * KEYS, first_row = (int)blockIdx.z * ROWS_OF_BLOCK;
    const int local_row = (int)threadIdx.x / LANES * ROWS_OF_WARP;
    copy_tile_begin<DIM, KEYS>(tile_keys, p.keys + (size_t)kv_head * p.capacity * DIM, first_key, (int)p.end);
    copies_commit();
    copies_wait<0>();
    __syncthreads();
    float mean[KEYS / 8][4];
#pragma unroll
    for (int j = 0; j < KEYS / 8; ++j) {
        mean[j][0] = mean[j][1] = mean[j][2] = mean[j][3] = 0.0f;
    }
    for (int g = 0; g < group; ++g) {
        float s[KEYS / 8][4];
        tile_probabilities<DIM>(s, p, tile_keys, kv_head * group + g, first_row + local_row, first_key);
#pragma unroll
        for (int j = 0; j < KEYS / 8; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                mean[j][i] += s[j][i] / (float)group;
            }
        }
    }
#pragma unroll
    for (int j = 0; j < KEYS / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            means[(local_row + own.g + 8 * (i >> 1)) * KEYS + 8 * j + 2 * own.t + (i & 1)] = mean[j][i];
        }
    }
    __syncthreads();
    const int key = first_key + (int)threadIdx.x;
    if (threadIdx.x < KEYS && key < (int)p.end) {
        unsigned long long word = 0;
        for (int r = 0; r < at_most(ROWS_OF_BLOCK, (int)p.rows - first_row); ++r) {
            const int sees = visible(p, (int)p.first + first_row + r);
            if (key < sees && means[r * KEYS + threadIdx.x] * (float)sees < 1.0f) {
                word |= 1ull << r;
            }
        }
        p.marks[((size_t)kv_head * p.end + key) * p.words + blockIdx.z] = word;
    }
}

#define KEPT_SCORES(DIM)                                                                    \
    KEPT_KERNEL_OF(128, 4, row_sums_##DIM, Scores) { row_sums<DIM>(p); }                    \
    KEPT_KERNEL(128, column_sums_##DIM, Scores) { column_sums<DIM>(p); }                    \
    KEPT_KERNEL(128, mark_below_average_##DIM, Scores) { mark_below_average<DIM>(p); }

KEPT_SCORES(64)
KEPT_SCORES(80)
KEPT_SCORES(96)
KEPT_SCORES(128)
KEPT_SCORES(256)
