// Causal prefill attention of a chunk over all earlier keys and its own.
//
//   block       64 rows of one query head, 4 warps of 16; their key tiles pass through shared memory, double-buffered
//   splits      for a chunk of few rows (a question) the keys are split among blocks, and `combine` joins the parts
//   operations  4 * rows * keys * DIM a query head, half of it masked if the chunk is the whole prompt
//   bytes       q_heads / 64 rows times the keys and values of a head (from the L2 cache for all but the first)
#include "tiles.cuh"

struct PrefillAttention {
    const half_t* queries;  // [rows, q_heads, DIM], rotated
    const half_t* keys;     // [kv_heads, capacity, DIM], rotated; row == position
    const half_t* values;   // [kv_heads, capacity, DIM]
    float* out;             // [rows, q_heads, DIM]; with splits [splits, rows, q_heads, DIM], each divided by its own sum
    float* log_sum_exp;     // [q_heads, rows] or null; with splits [splits, q_heads, rows], never null
    uint32_t rows, first;   // first: position of row 0
    uint32_t q_heads, kv_heads, capacity;
    uint32_t window;        // sliding window: keys that a row attends to, its own included; 0: all up to its own
    uint32_t stages;        // tiles in shared memory: 2, or 1 if two do not fit
    Scale scale;
};

constexpr int ROWS_OF_BLOCK = 64;

template <int DIM, int KEYS>
__device__ __forceinline__ void prefill_attention(const PrefillAttention& p) {
    KEPT_SHARED(memory);
    constexpr int TILE = KEYS * STRIDE<DIM>;
    half_t* const tiles = reinterpret_cast<half_t*>(memory);  // [stages, keys and values, KEYS, DIM + 8]

    const Lane own;
    const int warp = threadIdx.x / LANES, head = blockIdx.y, kv_head = head / (p.q_heads / p.kv_heads);
    // The last rows have the most keys, so they start first.
    const int first_row = (int)(gridDim.x - 1 - blockIdx.x) * ROWS_OF_BLOCK;
    const int row = first_row + warp * ROWS_OF_WARP;
    const half_t* const keys = p.keys + (size_t)kv_head * p.capacity * DIM;
    const half_t* const values = p.values + (size_t)kv_head * p.capacity * DIM;

    // Key tiles that any row of the block attends to, and this block's share of them.
    const int end = (int)p.first + at_most(first_row + ROWS_OF_BLOCK, (int)p.rows);
    const int oldest = (int)p.first + first_row + 1 - (int)p.window;
    const int begin = p.window > 0 && oldest > 0 ? oldest / KEYS : 0;
    const int all = (end + KEYS - 1) / KEYS - begin;
    const int from = begin + (int)((long long)all * blockIdx.z / gridDim.z);
    const int to = begin + (int)((long long)all * (blockIdx.z + 1) / gridDim.z);

    const Queries<DIM> q(p.queries + ((size_t)row * p.q_heads + head) * DIM, (size_t)p.q_heads * DIM, (int)p.rows - row);
    float o[DIM / 8][4];
#pragma unroll
    for (int j = 0; j < DIM / 8; ++j) {
        o[j][0] = o[j][1] = o[j][2] = o[j][3] = 0.0f;
    }
    Running running;

    auto begin_tile = [&](int tile) {
        half_t* const stage = tiles + (tile - from) % p.stages * 2 * TILE;
        copy_tile_begin<DIM, KEYS>(stage, keys, tile * KEYS, end);
        copy_tile_begin<DIM, KEYS>(stage + TILE, values, tile * KEYS, end);
        copies_commit();
    };
    if (from < to) {
        begin_tile(from);
    }
    for (int tile = from; tile < to; ++tile) {
        if (p.stages == 2 && tile + 1 < to) {
            begin_tile(tile + 1);
            copies_wait<1>();
        } else {
            copies_wait<0>();
        }
        __syncthreads();
        const half_t* const stage = tiles + (tile - from) % p.stages * 2 * TILE;
        float s[KEYS / 8][4];
        dot_tile<DIM, KEYS>(s, q, stage);
        const int first_key = tile * KEYS, position = (int)p.first + row;
        // A key is masked for earlier rows, and for rows beyond its sliding window.
        const bool hides = first_key + KEYS - 1 > position || (p.window > 0 && first_key <= position + ROWS_OF_WARP - 1 - (int)p.window);
#pragma unroll
        for (int j = 0; j < KEYS / 8; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int at = position + own.g + 8 * (i >> 1), key = first_key + 8 * j + 2 * own.t + (i & 1);
                const bool hidden = hides && (key > at || (p.window > 0 && key + (int)p.window <= at));
                s[j][i] = hidden ? -float_infinity() : p.scale.logit(s[j][i]);
            }
        }
        float shrink[2];
        running.take<KEYS>(s, shrink);
#pragma unroll
        for (int j = 0; j < DIM / 8; ++j) {
            o[j][0] *= shrink[0];
            o[j][1] *= shrink[0];
            o[j][2] *= shrink[1];
            o[j][3] *= shrink[1];
        }
        add_tile<DIM, KEYS>(o, s, stage + TILE);
        __syncthreads();
        if (p.stages == 1 && tile + 1 < to) {
            begin_tile(tile + 1);
        }
    }

    float* const out = p.out + (size_t)blockIdx.z * p.rows * p.q_heads * DIM;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int own_row = row + own.g + 8 * r;
        const float sum = running.total(r);
        if (own_row >= (int)p.rows) {
            continue;
        }
        const float share = sum > 0.0f ? 1.0f / sum : 0.0f;
        float* const to_row = out + ((size_t)own_row * p.q_heads + head) * DIM;
#pragma unroll
        for (int j = 0; j < DIM / 8; ++j) {
            to_row[8 * j + 2 * own.t] = o[j][2 * r] * share;
            to_row[8 * j + 2 * own.t + 1] = o[j][2 * r + 1] * share;
        }
        if (p.log_sum_exp != nullptr && own.t == 0) {
            p.log_sum_exp[((size_t)blockIdx.z * p.q_heads + head) * p.rows + own_row] =
                sum > 0.0f ? running.max[r] + logf(sum) : -float_infinity();
        }
    }
}

KEPT_KERNEL(128, prefill_attention_64, PrefillAttention) { prefill_attention<64, 64>(p); }
KEPT_KERNEL(128, prefill_attention_80, PrefillAttention) { prefill_attention<80, 64>(p); }
KEPT_KERNEL(128, prefill_attention_96, PrefillAttention) { prefill_attention<96, 64>(p); }
KEPT_KERNEL(128, prefill_attention_128, PrefillAttention) { prefill_attention<128, 64>(p); }
KEPT_KERNEL(128, prefill_attention_256, PrefillAttention) { prefill_attention<256, 32>(p); }
