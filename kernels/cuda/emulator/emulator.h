// Runs the kernels' source on the CPU, to test their index arithmetic, barriers and warp-wide operations without a GPU.
// It does not model speed, caches or other interleavings of threads between barriers.
//
// Every thread of a block is a fibre. A fibre runs until it reaches a barrier of its block or a collective of its warp,
// and waits there for the other threads of the block or warp. A thread that never arrives is reported, and so is a
// thread that ends before a barrier at which others wait. Blocks run one after another. Shared memory is filled with
// NaN, so that reads of unwritten memory show up.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace emulator {

struct Index {
    unsigned x, y, z;
};

// Indices of a thread.
struct Place {
    Index thread, block, block_size, grid_size;
};

extern thread_local Place* place;
extern thread_local unsigned char* shared;

// Waits for all threads of the block.
void block_barrier();
// Shares `mine` with the warp and returns all lanes' values in `all` [32, bytes]. Waits for all 32 lanes.
void warp_exchange(const void* mine, size_t bytes, void* all);

// Runs `kernel(parameters)` once for every thread of the grid. Returns nullptr, or a description of the failure.
const char* run(void (*kernel)(const void*), const void* parameters, Index grid, Index block, size_t shared_bytes);

}  // namespace emulator

#define threadIdx (emulator::place->thread)
#define blockIdx (emulator::place->block)
#define blockDim (emulator::place->block_size)
#define gridDim (emulator::place->grid_size)

#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)

// Shared memory of a block.
#define KEPT_SHARED(name) unsigned char* const name = emulator::shared

inline void __syncthreads() { emulator::block_barrier(); }

// --- half precision, rounded to nearest even as in hardware ---

struct half_t {
    uint16_t bits;
};

inline float to_float(half_t h) {
    const uint32_t sign = (uint32_t)(h.bits & 0x8000u) << 16;
    uint32_t exponent = (h.bits >> 10) & 31u, mantissa = h.bits & 1023u;
    uint32_t bits;
    if (exponent == 31) {
        bits = sign | 0x7F800000u | (mantissa << 13);
    } else if (exponent != 0) {
        bits = sign | ((exponent + 112u) << 23) | (mantissa << 13);
    } else {
        const float value = std::ldexp((float)mantissa, -24);
        return sign ? -value : value;
    }
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}

inline half_t to_half(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return {(uint16_t)(sign | 0x7E00u)};
    if (magnitude >= 0x477FF000u) return {(uint16_t)(sign | 0x7C00u)};
    if (magnitude < 0x38800000u) {
        // Below the smallest normal number: multiples of 2^-24, rounded to nearest even.
        const float units = std::nearbyint(std::ldexp(std::fabs(x), 24));
        return {(uint16_t)(sign | (uint16_t)units)};
    }
    const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
    return {(uint16_t)(sign | (uint16_t)((rounded - 0x38000000u) >> 13))};
}

inline uint32_t pack_halves(float low, float high) {
    return (uint32_t)to_half(low).bits | ((uint32_t)to_half(high).bits << 16);
}

inline float low_half(uint32_t two) { return to_float({(uint16_t)two}); }
inline float high_half(uint32_t two) { return to_float({(uint16_t)(two >> 16)}); }

// --- warp-wide operations ---

template <class T>
inline T shuffle_xor(T mine, int mask) {
    T all[32];
    emulator::warp_exchange(&mine, sizeof(T), all);
    return all[(threadIdx.x & 31) ^ mask];
}

template <class T>
inline T shuffle(T mine, int lane) {
    T all[32];
    emulator::warp_exchange(&mine, sizeof(T), all);
    return all[lane];
}

// d[16, 8] += a[16, 16] * b[16, 8]: products of halves, sums in f32. Lane = 4 g + t holds
//   a[0] (g, 2t..)   a[1] (g + 8, 2t..)   a[2] (g, 2t + 8..)   a[3] (g + 8, 2t + 8..)
//   b[0] (2t.., g)   b[1] (2t + 8.., g)
//   d[0..2] (g, 2t..)   d[2..4] (g + 8, 2t..)
inline void mma_16816(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    struct Operands {
        uint32_t a[4], b[2];
    };
    Operands mine, all[32];
    std::memcpy(mine.a, a, sizeof(mine.a));
    std::memcpy(mine.b, b, sizeof(mine.b));
    emulator::warp_exchange(&mine, sizeof(mine), all);
    const int lane = (int)(threadIdx.x & 31), g = lane >> 2, t = lane & 3;
    auto element = [](uint32_t two, int odd) { return odd ? high_half(two) : low_half(two); };
    for (int i = 0; i < 4; ++i) {
        const int row = g + 8 * (i >> 1), column = 2 * t + (i & 1);
        float sum = 0;
        for (int k = 0; k < 16; ++k) {
            const Operands& of_a = all[(row & 7) * 4 + ((k & 7) >> 1)];
            const Operands& of_b = all[column * 4 + ((k & 7) >> 1)];
            sum += element(of_a.a[(row >> 3) + 2 * (k >> 3)], k & 1) * element(of_b.b[k >> 3], k & 1);
        }
        d[i] += sum;
    }
}

// Loads four 8 x 8 matrices of halves. Lanes 8 i..8 i + 8 pass the rows of matrix i (16 bytes each, aligned). Lane 4 g
// + t receives (g, 2t..) of each matrix, or with `transposed` (2t.., g).
template <bool transposed>
inline void load_matrices(uint32_t (&out)[4], const half_t* row) {
    if ((uintptr_t)row % 16 != 0) {
        __builtin_trap();
    }
    const half_t* rows[32];
    emulator::warp_exchange(&row, sizeof(row), rows);
    const int lane = (int)(threadIdx.x & 31), g = lane >> 2, t = lane & 3;
    for (int i = 0; i < 4; ++i) {
        const half_t* const* of = rows + 8 * i;
        const half_t low = transposed ? of[2 * t][g] : of[g][2 * t];
        const half_t high = transposed ? of[2 * t + 1][g] : of[g][2 * t + 1];
        out[i] = (uint32_t)low.bits | ((uint32_t)high.bits << 16);
    }
}

// --- asynchronous copies of the hardware, which are synchronous here ---

inline void copy_16_begin(void* shared, const void* global) {
    if ((uintptr_t)shared % 16 != 0 || (uintptr_t)global % 16 != 0) {
        __builtin_trap();
    }
    std::memcpy(shared, global, 16);
}
inline void copies_commit() {}
template <int left>
inline void copies_wait() {}

struct alignas(16) Sixteen {
    uint32_t words[4];
};

inline Sixteen load_16(const void* from) {
    if ((uintptr_t)from % 16 != 0) {
        __builtin_trap();
    }
    Sixteen out;
    std::memcpy(&out, from, 16);
    return out;
}
inline Sixteen load_16_once(const void* from) { return load_16(from); }
inline uint32_t pick_bytes(uint32_t low, uint32_t high, uint32_t which) {
    const uint64_t bytes = (uint64_t)high << 32 | low;
    uint32_t out = 0;
    for (int i = 0; i < 4; ++i) {
        out |= (uint32_t)(bytes >> 8 * (which >> 4 * i & 7u) & 255u) << 8 * i;
    }
    return out;
}
inline uint32_t scale_halves(uint32_t two, uint32_t offsets, half_t scale) {
    auto scaled = [&](float x, float offset) { return to_float(to_half(x - offset)) * to_float(scale); };
    return pack_halves(scaled(low_half(two), low_half(offsets)), scaled(high_half(two), high_half(offsets)));
}
inline uint32_t shift_right(uint32_t low, uint32_t high, uint32_t bits) { return (uint32_t)(((uint64_t)high << 32 | low) >> bits); }
inline void store_16(void* to, Sixteen value) {
    if ((uintptr_t)to % 16 != 0) {
        __builtin_trap();
    }
    std::memcpy(to, &value, 16);
}

inline void warp_barrier() {
    char nothing = 0, all[32];
    emulator::warp_exchange(&nothing, 1, all);
}

inline void add_whole(unsigned long long* to, unsigned long long x) { *to += x; }

inline uint32_t count_up(uint32_t* counter) { return (*counter)++; }
inline void publish() {}

inline int dot_bytes(uint32_t a, uint32_t b, int sum) {
    for (int i = 0; i < 4; ++i) {
        sum += (int)(int8_t)(a >> 8 * i) * (int)(int8_t)(b >> 8 * i);
    }
    return sum;
}

inline uint32_t bits_of_float(float x) {
    uint32_t out;
    std::memcpy(&out, &x, 4);
    return out;
}
inline float float_of_bits(uint32_t bits) {
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}
inline float fast_exp(float x) { return std::exp(x); }
inline float fast_exp_of_2(float x) { return std::exp2(x); }
inline bool in_any_lane(bool holds) {
    bool all[32];
    emulator::warp_exchange(&holds, sizeof(holds), all);
    return std::find(all, all + 32, true) != all + 32;
}
inline float product(float a, float b) { return a * b; }
inline float float_infinity() { return INFINITY; }
template <class T>
inline T at_most(T a, T b) { return a < b ? a : b; }
template <class T>
inline T at_least(T a, T b) { return a < b ? b : a; }

// Entry of a kernel: a __global__ function on the GPU; in the emulator a function that `run` calls for every thread.
#define KEPT_KERNEL(threads, name, Parameters)                                                            \
    static void name##_body(const Parameters& p);                                                         \
    static void name##_entry(const void* p) { name##_body(*(const Parameters*)p); }                       \
    extern "C" const char* emulated_##name(const void* p, size_t bytes, const unsigned* g,                \
                                           const unsigned* b, size_t shared_bytes) {                      \
        if (bytes != sizeof(Parameters)) return "the parameters are of another size than the kernel's";   \
        if (b[0] * b[1] * b[2] > threads) return "a block has more threads than the kernel is built for"; \
        return emulator::run(name##_entry, p, {g[0], g[1], g[2]}, {b[0], b[1], b[2]}, shared_bytes);      \
    }                                                                                                     \
    static void name##_body([[maybe_unused]] const Parameters& p)
#define KEPT_KERNEL_OF(threads, blocks, name, Parameters) KEPT_KERNEL(threads, name, Parameters)
