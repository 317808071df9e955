// Scores of keys and sums over queries without attention: how far a key points away from the others (KeyDiff), and how
// much attention queries of known mean and covariance are expected to give it (Expected Attention). In f32, because an
// expected logit is exponentiated.
//
//   direction_sums   a block for a share of the keys, one element of the sum per thread
//   against          a warp for each key
//   bilinear_forms   64 keys a block; the matrix passes through shared memory, some of its rows at a time
//   gram             a block for a square of 32 x 32 products of one head; the queries' elements pass through shared
//                    memory, 64 rows at a time
//   operations       direction_sums, against: 4 * DIM a key; bilinear_forms: 2 * DIM^2 a key and query head; gram:
//                    DIM^2 a query, half of the square
//   bytes            2 * DIM a key, once each (direction_sums reads it twice, the second time from the L1 cache); gram:
//                    DIM / 32 times 2 * DIM a query, from the L2 cache for all but the first
#include "device.cuh"

struct Directions {
    const half_t* keys;  // [count, dim]: rows of one head
    const float* mean;   // against: [dim], a unit vector
    float* out;          // direction_sums: [shares, dim]; against: [count]
    uint32_t count, dim, each;  // each: keys of a share
};

// Sums of normalised keys. block: a share of the keys; threads: the elements of a key, in whole warps
KEPT_KERNEL(256, direction_sums, Directions) {
    KEPT_SHARED(memory);
    float* const of_warps = reinterpret_cast<float*>(memory);  // [warps]
    const uint32_t warp = threadIdx.x / LANES, warps = blockDim.x / LANES, i = threadIdx.x;
    const uint32_t first = blockIdx.x * p.each, end = at_most(first + p.each, p.count);
    float sum = 0.0f;
    for (uint32_t key = first; key < end; ++key) {
        const float x = i < p.dim ? to_float(p.keys[(size_t)key * p.dim + i]) : 0.0f;
        const float squares = warp_sum(x * x);
        if (threadIdx.x % LANES == 0) {
            of_warps[warp] = squares;
        }
        __syncthreads();
        float all = 0.0f;
        for (uint32_t w = 0; w < warps; ++w) {
            all += of_warps[w];
        }
        sum += x / at_least(sqrtf(all), 1e-12f);
        __syncthreads();
    }
    if (i < p.dim) {
        p.out[(size_t)blockIdx.x * p.dim + i] = sum;
    }
}

// Negative cosine of each key with a direction. block: 4 keys, a warp each
KEPT_KERNEL(128, cosine_to_direction, Directions) {
    const uint32_t key = blockIdx.x * 4 + threadIdx.x / LANES, lane = threadIdx.x % LANES;
    if (key >= p.count) {
        return;
    }
    float squares = 0.0f, dot = 0.0f;
    for (uint32_t i = lane; i < p.dim; i += LANES) {
        const float x = to_float(p.keys[(size_t)key * p.dim + i]);
        squares += x * x;
        dot += x * p.mean[i];
    }
    squares = warp_sum(squares);
    dot = warp_sum(dot);
    if (lane == 0) {
        p.out[key] = -dot / at_least(sqrtf(squares), 1e-12f);
    }
}

struct Forms {
    const half_t* keys;   // [count, dim]: rows of one head
    const float* linear;  // [dim]
    const float* matrix;  // [dim, dim], symmetric, or null
    float* out;           // [count]: linear . key + key^T matrix key
    uint32_t count, dim;
};

// Each group of 8 threads takes 4 keys, and each thread OWN rows of the matrix at a time. block: half as many keys as
// threads
template <uint32_t OWN>
__device__ __forceinline__ void bilinear_forms(const Forms& p) {
    KEPT_SHARED(memory);
    // One element of padding per row, so that a warp's concurrent reads start in different banks.
    const uint32_t stride = p.dim + 1, keys_of_block = blockDim.x / 2;
    float* const keys = reinterpret_cast<float*>(memory);  // [keys of the block, dim + 1]
    float* const lines = keys + keys_of_block * stride;    // [8 * OWN, dim + 1]
    const uint32_t first = blockIdx.x * keys_of_block, lane = threadIdx.x % 8, own = threadIdx.x / 8 * 4;
    for (uint32_t i = threadIdx.x; i < keys_of_block * p.dim; i += blockDim.x) {
        const uint32_t key = i / p.dim, column = i % p.dim;
        keys[key * stride + column] = first + key < p.count ? to_float(p.keys[(size_t)(first + key) * p.dim + column]) : 0.0f;
    }
    __syncthreads();
    const float* const mine = keys + own * stride;
    float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (uint32_t i = lane; i < p.dim; i += 8) {
        for (uint32_t k = 0; k < 4; ++k) {
            sums[k] += mine[k * stride + i] * p.linear[i];
        }
    }
    for (uint32_t line = 0; p.matrix != nullptr && line < p.dim; line += 8 * OWN) {
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < 8 * OWN * p.dim; i += blockDim.x) {
            const uint32_t of = i / p.dim, column = i % p.dim;
            lines[of * stride + column] = line + of < p.dim ? p.matrix[(size_t)(line + of) * p.dim + column] : 0.0f;
        }
        __syncthreads();
        float products[OWN][4] = {};
        for (uint32_t i = 0; i < p.dim; ++i) {
            float x[4];
#pragma unroll
            for (uint32_t k = 0; k < 4; ++k) {
                x[k] = mine[k * stride + i];
            }
#pragma unroll
            for (uint32_t of = 0; of < OWN; ++of) {
                const float m = lines[(lane + 8 * of) * stride + i];
#pragma unroll
                for (uint32_t k = 0; k < 4; ++k) {
                    products[of][k] += m * x[k];
                }
            }
        }
#pragma unroll
        for (uint32_t of = 0; of < OWN; ++of) {
            const uint32_t column = line + lane + 8 * of;
            for (uint32_t k = 0; k < 4 && column < p.dim; ++k) {
                sums[k] += products[of][k] * mine[k * stride + column];
            }
        }
    }
    for (uint32_t k = 0; k < 4; ++k) {
        float sum = sums[k];
        for (int mask = 1; mask < 8; mask *= 2) {
            sum += shuffle_xor(sum, mask);
        }
        if (lane == 0 && first + own + k < p.count) {
            p.out[first + own + k] = sum;
        }
    }
}

KEPT_KERNEL(128, bilinear_forms, Forms) { bilinear_forms<4>(p); }
// For heads of 256: shared memory holds half as many keys and matrix rows.
KEPT_KERNEL(64, bilinear_forms_wide, Forms) { bilinear_forms<2>(p); }

struct Gram {
    const half_t* queries;  // [rows, heads, dim]
    double* sums;           // [heads, dim]: added to
    double* products;       // [heads, dim, dim] or null: added to; lower triangle and diagonal
    uint32_t rows, heads, dim;
};

constexpr uint32_t SIDE = 32;
constexpr uint32_t ROWS_AT_ONCE = 64;

// Sums of queries, and of products of two of their elements. block: a square of products of one head, 128 threads, 4 x
// 2 products each; grid: (squares on and below the diagonal, heads), or only those on it without products
KEPT_KERNEL(128, gram, Gram) {
    KEPT_SHARED(memory);
    float* const down = reinterpret_cast<float*>(memory);          // [ROWS_AT_ONCE, SIDE + 1]
    float* const across = down + ROWS_AT_ONCE * (SIDE + 1);  // [ROWS_AT_ONCE, SIDE + 1]: other elements of the rows
    const uint32_t head = blockIdx.y;
    uint32_t line = blockIdx.x, column = blockIdx.x;
    if (p.products != nullptr) {
        for (line = 0; column > line; ++line) {
            column -= line + 1;
        }
    }
    const uint32_t i = threadIdx.x / 16 * 4, j = threadIdx.x % 16 * 2;
    float products[4][2] = {}, sum = 0.0f;
    for (uint32_t first = 0; first < p.rows; first += ROWS_AT_ONCE) {
        __syncthreads();
        for (uint32_t at = threadIdx.x; at < ROWS_AT_ONCE * SIDE; at += blockDim.x) {
            const uint32_t row = at / SIDE, number = at % SIDE, to = row * (SIDE + 1) + number;
            const half_t* const query = p.queries + ((size_t)(first + row) * p.heads + head) * p.dim;
            const bool there = first + row < p.rows;
            down[to] = there && line * SIDE + number < p.dim ? to_float(query[line * SIDE + number]) : 0.0f;
            across[to] = there && column * SIDE + number < p.dim ? to_float(query[column * SIDE + number]) : 0.0f;
        }
        __syncthreads();
        for (uint32_t row = 0; row < ROWS_AT_ONCE; ++row) {
            const float* const a = down + row * (SIDE + 1);
            const float* const b = across + row * (SIDE + 1);
            for (uint32_t m = 0; m < 4; ++m) {
                for (uint32_t n = 0; n < 2; ++n) {
                    products[m][n] += a[i + m] * b[j + n];
                }
            }
            sum += threadIdx.x < SIDE ? a[threadIdx.x] : 0.0f;
        }
    }
    if (line == column && threadIdx.x < SIDE && line * SIDE + threadIdx.x < p.dim) {
        p.sums[(size_t)head * p.dim + line * SIDE + threadIdx.x] += (double)sum;
    }
    for (uint32_t m = 0; m < 4 && p.products != nullptr; ++m) {
        for (uint32_t n = 0; n < 2; ++n) {
            const uint32_t y = line * SIDE + i + m, x = column * SIDE + j + n;
            if (y < p.dim && x <= y) {
                p.products[((size_t)head * p.dim + y) * p.dim + x] += (double)products[m][n];
            }
        }
    }
}
