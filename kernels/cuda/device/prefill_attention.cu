// Causal prefill attention of a chunk over all earlier keys and its own.
//
//   block       64 or 128 rows of one query head, 4 warps of 16 or 32; their key tiles pass through shared memory,
//               double-buffered
//   splits      for a chunk of few rows (a question) the keys are split among blocks, and `combine` joins the parts
//   operations  4 * rows * keys * DIM a query head, half of it masked if the chunk is the whole prompt
//   bytes       q_heads / 64 (128) rows times the keys and values of a head (from the L2 cache for all but the first)
//
// A warp of 32 rows uses each key and value that it reads from shared memory twice. Its outputs take so many registers
// that its queries stay in shared memory.
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

constexpr int WARPS = 4;

// The queries of a warp, M times 16 rows `apart` halves from each other; rows from `there` on are 0. In `shared`, or in
// registers.
template <int DIM, int M>
struct WarpQueries {
    SharedQueries<DIM> tiles[M];

    __device__ __forceinline__ WarpQueries(half_t* shared, const half_t* from, size_t apart, int there) {
        for (int i = threadIdx.x % LANES; i < M * ROWS_OF_WARP * DIM / 8; i += LANES) {
            const int row = i / (DIM / 8), piece = i % (DIM / 8);
            store_16(shared + row * STRIDE<DIM> + piece * 8, row < there ? load_16(from + row * apart + piece * 8) : Sixteen{{0, 0, 0, 0}});
        }
        warp_barrier();
#pragma unroll
        for (int m = 0; m < M; ++m) {
            tiles[m].rows = shared + m * ROWS_OF_WARP * STRIDE<DIM>;
        }
    }
};
template <int DIM>
struct WarpQueries<DIM, 1> {
    Queries<DIM> tiles[1];

    __device__ __forceinline__ WarpQueries(half_t*, const half_t* from, size_t apart, int there) : tiles{Queries<DIM>(from, apart, there)} {}
};

// M: tiles of 16 rows of a warp.
template <int DIM, int KEYS, int M>
__device__ __forceinline__ void prefill_attention(const PrefillAttention& p) {
    KEPT_SHARED(memory);
    constexpr int TILE = KEYS * STRIDE<DIM>, ROWS = M * ROWS_OF_WARP, ROWS_OF_BLOCK = WARPS * ROWS;
    half_t* const tiles = reinterpret_cast<half_t*>(memory);  // [stages, keys and values, KEYS, DIM + 8]

    const Lane own;
    const int warp = threadIdx.x / LANES, head = blockIdx.y, kv_head = head / (p.q_heads / p.kv_heads);
    // The last rows have the most keys, so they start first.
    const int first_row = (int)(gridDim.x - 1 - blockIdx.x) * ROWS_OF_BLOCK;
    const int row = first_row + warp * ROWS;
    const half_t* const keys = p.keys + (size_t)kv_head * p.capacity * DIM;
    const half_t* const values = p.values + (size_t)kv_head * p.capacity * DIM;

    // Key tiles that any row of the block attends to, and this block's share of them.
    const int end = (int)p.first + at_most(first_row + ROWS_OF_BLOCK, (int)p.rows);
    const int oldest = (int)p.first + first_row + 1 - (int)p.window;
    const int begin = p.window > 0 && oldest > 0 ? oldest / KEYS : 0;
    const int all = (end + KEYS - 1) / KEYS - begin;
    const int from = begin + (int)((long long)all * blockIdx.z / gridDim.z);
    const int to = begin + (int)((long long)all * (blockIdx.z + 1) / gridDim.z);

    half_t* const shared_queries = tiles + p.stages * 2 * TILE + warp * ROWS * STRIDE<DIM>;  // [ROWS, DIM + 8] if M > 1
    const WarpQueries<DIM, M> q(shared_queries, p.queries + ((size_t)row * p.q_heads + head) * DIM, (size_t)p.q_heads * DIM, (int)p.rows - row);
    float o[M][DIM / 8][4];
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int j = 0; j < DIM / 8; ++j) {
            o[m][j][0] = o[m][j][1] = o[m][j][2] = o[m][j][3] = 0.0f;
        }
    }
    Running running[M];

    auto stage_of = [&](int tile) { return tiles + (p.stages == 2 ? (tile - from) & 1 : 0) * 2 * TILE; };
    auto begin_tile = [&](int tile) {
        copy_tile_begin<DIM, KEYS>(stage_of(tile), keys, tile * KEYS, end);
        copy_tile_begin<DIM, KEYS>(stage_of(tile) + TILE, values, tile * KEYS, end);
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
        const half_t* const stage = stage_of(tile);
        float s[M][KEYS / 8][4];
        dot_tiles<DIM, KEYS, M>(s, q.tiles, stage);
        const int first_key = tile * KEYS, position = (int)p.first + row;
        // A key is masked for earlier rows, and for rows beyond its sliding window.
        const bool hides = first_key + KEYS - 1 > position || (p.window > 0 && first_key <= position + ROWS - 1 - (int)p.window);
#pragma unroll
        for (int m = 0; m < M; ++m) {
            p.scale.logits(s[m]);
            if (hides) {
#pragma unroll
                for (int j = 0; j < KEYS / 8; ++j) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const int at = position + m * ROWS_OF_WARP + own.g + 8 * (i >> 1), key = first_key + 8 * j + 2 * own.t + (i & 1);
                        if (key > at || (p.window > 0 && key + (int)p.window <= at)) {
                            s[m][j][i] = -float_infinity();
                        }
                    }
                }
            }
            float shrink[2];
            running[m].template take<KEYS>(s[m], shrink);
            // Most tiles have no new largest logit. Heads of 256 have no register left for the branch.
            if (DIM == 256 || in_any_lane(shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
                for (int j = 0; j < DIM / 8; ++j) {
                    o[m][j][0] *= shrink[0];
                    o[m][j][1] *= shrink[0];
                    o[m][j][2] *= shrink[1];
                    o[m][j][3] *= shrink[1];
                }
            }
        }
        add_tiles<DIM, KEYS, M>(o, s, stage + TILE);
        __syncthreads();
        if (p.stages == 1 && tile + 1 < to) {
            begin_tile(tile + 1);
        }
    }

    float* const out = p.out + (size_t)blockIdx.z * p.rows * p.q_heads * DIM;
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int own_row = row + m * ROWS_OF_WARP + own.g + 8 * r;
            const float sum = running[m].total(r);
            if (own_row >= (int)p.rows) {
                continue;
            }
            const float share = sum > 0.0f ? 1.0f / sum : 0.0f;
            float* const to_row = out + ((size_t)own_row * p.q_heads + head) * DIM;
#pragma unroll
            for (int j = 0; j < DIM / 8; ++j) {
                to_row[8 * j + 2 * own.t] = o[m][j][2 * r] * share;
                to_row[8 * j + 2 * own.t + 1] = o[m][j][2 * r + 1] * share;
            }
            if (p.log_sum_exp != nullptr && own.t == 0) {
                p.log_sum_exp[((size_t)blockIdx.z * p.q_heads + head) * p.rows + own_row] =
                    sum > 0.0f ? running[m].max[r] + logf(sum) : -float_infinity();
            }
        }
    }
}

KEPT_KERNEL(128, prefill_attention_64, PrefillAttention) { prefill_attention<64, 64, 1>(p); }
KEPT_KERNEL(128, prefill_attention_80, PrefillAttention) { prefill_attention<80, 64, 1>(p); }
KEPT_KERNEL(128, prefill_attention_96, PrefillAttention) { prefill_attention<96, 64, 1>(p); }
KEPT_KERNEL(128, prefill_attention_128, PrefillAttention) { prefill_attention<128, 64, 1>(p); }
KEPT_KERNEL(128, prefill_attention_256, PrefillAttention) { prefill_attention<256, 32, 1>(p); }
KEPT_KERNEL(128, prefill_attention_wide_64, PrefillAttention) { prefill_attention<64, 48, 2>(p); }
KEPT_KERNEL(128, prefill_attention_wide_80, PrefillAttention) { prefill_attention<80, 48, 2>(p); }
KEPT_KERNEL(128, prefill_attention_wide_96, PrefillAttention) { prefill_attention<96, 48, 2>(p); }
KEPT_KERNEL(128, prefill_attention_wide_128, PrefillAttention) { prefill_attention<128, 48, 2>(p); }
