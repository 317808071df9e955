// Products of 16 query rows with a tile of keys or values on tensor cores, for all attention kernels.
//
// A warp holds 16 rows. Tiles are in shared memory as [rows, DIM + 8] halves: the padding of 16 bytes places the eight
// rows that `load_matrices` reads at once in different banks, for every head size.
//
//   query fragment    a[4]             lane 4 g + t: rows g and g + 8, see mma_16816
//   scores            s[KEYS / 8][4]   s[j][0..2] row g, keys 8 j + 2 t..; s[j][2..4] row g + 8
//   output            o[DIM / 8][4]    the same with elements instead of keys
#pragma once

#include "device.cuh"

constexpr int ROWS_OF_WARP = 16;

template <int DIM>
constexpr int STRIDE = DIM + 8;

// Position of a thread in its warp: row g and column pair t of its fragment elements.
struct Lane {
    int lane, g, t;
    __device__ __forceinline__ Lane() : lane(threadIdx.x & 31), g(lane >> 2), t(lane & 3) {}
};

// Begins to copy rows first..first + KEYS of `rows` ([.., DIM]) to `tile`; rows from `end` on become 0.
template <int DIM, int KEYS>
__device__ __forceinline__ void copy_tile_begin(half_t* tile, const half_t* rows, int first, int end) {
    constexpr int PIECES = DIM / 8;
    if (DIM <= 128 && first + KEYS <= end) {
#pragma unroll 4
        for (int i = threadIdx.x; i < KEYS * PIECES; i += blockDim.x) {
            const int row = i / PIECES, piece = i % PIECES;
            copy_16_begin(tile + row * STRIDE<DIM> + piece * 8, rows + (size_t)first * DIM + i * 8);
        }
        return;
    }
    for (int i = threadIdx.x; i < KEYS * PIECES; i += blockDim.x) {
        const int row = i / PIECES, piece = i % PIECES;
        half_t* to = tile + row * STRIDE<DIM> + piece * 8;
        if (first + row < end) {
            copy_16_begin(to, rows + (size_t)(first + row) * DIM + piece * 8);
        } else {
            store_16(to, Sixteen{{0, 0, 0, 0}});
        }
    }
}

// 16 rows in global memory, `stride` halves apart; rows from `count` on are 0. Their fragment stays in registers,
// except for heads of 256 on Turing, where the output needs them: in that case, and in the emulator, it is read again
// for every tile.
template <int DIM>
struct Queries {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    static constexpr bool HELD = true;
#else
    static constexpr bool HELD = DIM < 256;
#endif
    const half_t* rows;
    size_t stride;
    int count;
    uint32_t held[HELD ? DIM / 16 : 1][4];

    __device__ __forceinline__ Queries(const half_t* from, size_t step, int there) : rows(from), stride(step), count(there) {
        if constexpr (HELD) {
#pragma unroll
            for (int k = 0; k < DIM / 16; ++k) {
                read(held[k], k);
            }
        }
    }

    __device__ __forceinline__ void read(uint32_t (&a)[4], int k) const {
        const Lane own;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = own.g + 8 * (i & 1), column = 16 * k + 8 * (i >> 1) + 2 * own.t;
            a[i] = row < count ? *reinterpret_cast<const uint32_t*>(rows + row * stride + column) : 0u;
        }
    }

    // Columns 16 k.. of the rows.
    __device__ __forceinline__ void columns(uint32_t (&a)[4], int k) const {
        if constexpr (HELD) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                a[i] = held[k][i];
            }
        } else {
            read(a, k);
        }
    }
};

// 16 rows in shared memory, as [16, DIM + 8].
template <int DIM>
struct SharedQueries {
    const half_t* rows;

    __device__ __forceinline__ void columns(uint32_t (&a)[4], int k) const {
        const Lane own;
        const int matrix = own.lane >> 3, row = own.lane & 7;
        load_matrices<false>(a, rows + ((matrix & 1) * 8 + row) * STRIDE<DIM> + k * 16 + (matrix >> 1) * 8);
    }
};

// s = q * keys^T for M times 16 rows and a tile of KEYS keys, which are read once for all of them.
template <int DIM, int KEYS, int M, class Q>
__device__ __forceinline__ void dot_tiles(float (&s)[M][KEYS / 8][4], const Q (&q)[M], const half_t* keys) {
    const Lane own;
    const int matrix = own.lane >> 3, row = own.lane & 7;
    const half_t* from = keys + ((matrix >> 1) * 8 + row) * STRIDE<DIM> + (matrix & 1) * 8;
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
        for (int j = 0; j < KEYS / 8; ++j) {
            s[m][j][0] = s[m][j][1] = s[m][j][2] = s[m][j][3] = 0.0f;
        }
    }
#pragma unroll
    for (int k = 0; k < DIM / 16; ++k) {
        uint32_t a[M][4];
#pragma unroll
        for (int m = 0; m < M; ++m) {
            q[m].columns(a[m], k);
        }
#pragma unroll
        for (int j = 0; j < KEYS / 8; j += 2) {
            uint32_t b[4];
            load_matrices<false>(b, from + j * 8 * STRIDE<DIM> + k * 16);
            const uint32_t low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
#pragma unroll
            for (int m = 0; m < M; ++m) {
                mma_16816(s[m][j], a[m], low);
                mma_16816(s[m][j + 1], a[m], high);
            }
        }
    }
}

template <int DIM, int KEYS>
__device__ __forceinline__ void dot_tile(float (&s)[KEYS / 8][4], const Queries<DIM>& q, const half_t* keys) {
    dot_tiles<DIM, KEYS, 1>(reinterpret_cast<float(&)[1][KEYS / 8][4]>(s), reinterpret_cast<const Queries<DIM>(&)[1]>(q), keys);
}

// o += p * values for M times 16 rows and a tile of KEYS values; p are probabilities before division by their sum.
template <int DIM, int KEYS, int M>
__device__ __forceinline__ void add_tiles(float (&o)[M][DIM / 8][4], const float (&p)[M][KEYS / 8][4], const half_t* values) {
    const Lane own;
    const int matrix = own.lane >> 3, row = own.lane & 7;
    const half_t* from = values + ((matrix & 1) * 8 + row) * STRIDE<DIM> + (matrix >> 1) * 8;
#pragma unroll
    for (int k = 0; k < KEYS / 16; ++k) {
        uint32_t a[M][4];
#pragma unroll
        for (int m = 0; m < M; ++m) {
            a[m][0] = pack_halves(p[m][2 * k][0], p[m][2 * k][1]);
            a[m][1] = pack_halves(p[m][2 * k][2], p[m][2 * k][3]);
            a[m][2] = pack_halves(p[m][2 * k + 1][0], p[m][2 * k + 1][1]);
            a[m][3] = pack_halves(p[m][2 * k + 1][2], p[m][2 * k + 1][3]);
        }
#pragma unroll
        for (int j = 0; j < DIM / 8; j += 2) {
            uint32_t b[4];
            load_matrices<true>(b, from + k * 16 * STRIDE<DIM> + j * 8);
            const uint32_t low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
#pragma unroll
            for (int m = 0; m < M; ++m) {
                mma_16816(o[m][j], a[m], low);
                mma_16816(o[m][j + 1], a[m], high);
            }
        }
    }
}

template <int DIM, int KEYS>
__device__ __forceinline__ void add_tile(float (&o)[DIM / 8][4], const float (&p)[KEYS / 8][4], const half_t* values) {
    add_tiles<DIM, KEYS, 1>(reinterpret_cast<float(&)[1][DIM / 8][4]>(o), reinterpret_cast<const float(&)[1][KEYS / 8][4]>(p), values);
}

// From a dot product to the logit of the softmax; a cap of 0 means no cap.
struct Scale {
    float factor, cap;

    __device__ __forceinline__ float logit(float dot) const {
        const float logit = dot * factor;
        return cap > 0.0f ? cap * tanhf(logit / cap) : logit;
    }

    // The same for N times 4 dot products, with one branch for all of them.
    template <int N>
    __device__ __forceinline__ void logits(float (&s)[N][4]) const {
#pragma unroll
        for (int j = 0; j < N; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                s[j][i] *= factor;
            }
        }
        if (cap > 0.0f) {
#pragma unroll
            for (int j = 0; j < N; ++j) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    s[j][i] = cap * tanhf(s[j][i] / cap);
                }
            }
        }
    }
};

// Maximum and sum over the four lanes of a row.
__device__ __forceinline__ float row_max(float x) {
    x = at_least(x, shuffle_xor(x, 1));
    return at_least(x, shuffle_xor(x, 2));
}
__device__ __forceinline__ float row_sum(float x) {
    x += shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
}

constexpr float LOG2_E = 1.44269504f;

// Online softmax of rows g and g + 8, tile after tile.
struct Running {
    // Largest logit so far, and this lane's part of the sum of exp(logit - largest).
    float max[2], sum[2];

    __device__ __forceinline__ Running() : max{-float_infinity(), -float_infinity()}, sum{0.0f, 0.0f} {}

    // Replaces the tile's logits by exp(logit - largest). `shrink` is the factor on all earlier sums, for each of the
    // two rows.
    template <int KEYS>
    __device__ __forceinline__ void take(float (&s)[KEYS / 8][4], float (&shrink)[2]) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float largest = max[r];
#pragma unroll
            for (int j = 0; j < KEYS / 8; ++j) {
                largest = at_least(largest, at_least(s[j][2 * r], s[j][2 * r + 1]));
            }
            largest = row_max(largest);
            // The row has attended to no key yet.
            const float base = largest == -float_infinity() ? 0.0f : largest, base_of_2 = base * LOG2_E;
            shrink[r] = fast_exp(max[r] - base);
            max[r] = largest;
            float added = 0.0f;
#pragma unroll
            for (int j = 0; j < KEYS / 8; ++j) {
#pragma unroll
                for (int i = 2 * r; i < 2 * r + 2; ++i) {
                    s[j][i] = fast_exp_of_2(s[j][i] * LOG2_E - base_of_2);
                    added += s[j][i];
                }
            }
            sum[r] = sum[r] * shrink[r] + added;
        }
    }

    // Sum over the whole row, in all of its lanes.
    __device__ __forceinline__ float total(int r) const { return row_sum(sum[r]); }
};
