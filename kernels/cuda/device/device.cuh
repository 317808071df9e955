// The operations that kernels are written in. The same source is compiled for GPUs by nvcc, and for the CPU by any C++
// compiler with KEPT_EMULATED set (emulator/emulator.h implements these operations there). Kernels use nothing else of
// CUDA.
#pragma once

#if defined(KEPT_EMULATED)
#include "../emulator/emulator.h"
#else

#include <cstdint>
#include <cuda_fp16.h>

using half_t = __half;

__device__ __forceinline__ float to_float(half_t h) { return __half2float(h); }
__device__ __forceinline__ half_t to_half(float x) { return __float2half_rn(x); }

__device__ __forceinline__ uint32_t pack_halves(float low, float high) {
    const __half2 two = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&two);
}

__device__ __forceinline__ float low_half(uint32_t two) { return __low2float(*reinterpret_cast<__half2*>(&two)); }
__device__ __forceinline__ float high_half(uint32_t two) { return __high2float(*reinterpret_cast<__half2*>(&two)); }

// Four of the eight bytes of (high, low): byte i of the result is that whose number is in bits 4 i.. of `which`.
__device__ __forceinline__ uint32_t pick_bytes(uint32_t low, uint32_t high, uint32_t which) { return __byte_perm(low, high, which); }

// (two - offsets) * scale for two halves, each operation rounded to halves.
__device__ __forceinline__ uint32_t scale_halves(uint32_t two, uint32_t offsets, half_t scale) {
    const __half2 difference = __hsub2(*reinterpret_cast<const __half2*>(&two), *reinterpret_cast<const __half2*>(&offsets));
    const __half2 out = __hmul2(difference, __half2half2(scale));
    return *reinterpret_cast<const uint32_t*>(&out);
}

#define KEPT_SHARED(name) extern __shared__ __align__(16) unsigned char name[]

template <class T>
__device__ __forceinline__ T shuffle_xor(T mine, int mask) {
    return __shfl_xor_sync(0xFFFFFFFFu, mine, mask);
}

template <class T>
__device__ __forceinline__ T shuffle(T mine, int lane) {
    return __shfl_sync(0xFFFFFFFFu, mine, lane);
}

// d[16, 8] += a[16, 16] * b[16, 8]: products of halves, sums in f32; emulator.h shows the elements of each lane. Before
// sm_80 the hardware multiplies 8 columns of a at a time.
__device__ __forceinline__ void mma_16816(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]));
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[2]), "r"(a[3]), "r"(b[1]));
#endif
}

template <bool transposed>
__device__ __forceinline__ void load_matrices(uint32_t (&out)[4], const half_t* row) {
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(row);
    if (transposed) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                     : "r"(address)
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                     : "r"(address)
                     : "memory");
    }
}

// Begins to copy 16 bytes from global to shared memory, both aligned. Complete after `copies_wait`; visible to other
// threads after a barrier.
__device__ __forceinline__ void copy_16_begin(void* shared, const void* global) {
#if __CUDA_ARCH__ >= 800
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
#else
    *reinterpret_cast<uint4*>(shared) = *reinterpret_cast<const uint4*>(global);
#endif
}

__device__ __forceinline__ void copies_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most `left` of the committed groups are pending.
template <int left>
__device__ __forceinline__ void copies_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
#endif
}

struct alignas(16) Sixteen {
    uint32_t words[4];
};

__device__ __forceinline__ Sixteen load_16(const void* from) {
    const uint4 four = *reinterpret_cast<const uint4*>(from);
    return {{four.x, four.y, four.z, four.w}};
}
// As load_16, for weights: they are read once, and leave the L1 cache to what is read again.
__device__ __forceinline__ Sixteen load_16_once(const void* from) {
    Sixteen out;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(out.words[0]), "=r"(out.words[1]), "=r"(out.words[2]), "=r"(out.words[3]) : "l"(from));
    return out;
}
// The lower word of the pair (high, low) shifted right.
__device__ __forceinline__ uint32_t shift_right(uint32_t low, uint32_t high, uint32_t bits) { return __funnelshift_r(low, high, bits); }
__device__ __forceinline__ void store_16(void* to, Sixteen value) {
    *reinterpret_cast<uint4*>(to) = make_uint4(value.words[0], value.words[1], value.words[2], value.words[3]);
}

// Barrier of a warp: its lanes see each other's earlier writes.
__device__ __forceinline__ void warp_barrier() { __syncwarp(); }

// Atomic integer addition: the sum does not depend on the order.
__device__ __forceinline__ void add_whole(unsigned long long* to, unsigned long long x) { atomicAdd(to, x); }

// Atomic increment; returns the previous value.
__device__ __forceinline__ uint32_t count_up(uint32_t* counter) { return atomicAdd(counter, 1u); }

// Memory fence: other blocks see this thread's earlier writes before its later ones.
__device__ __forceinline__ void publish() { __threadfence(); }

// `sum` plus the dot product of four signed bytes.
__device__ __forceinline__ int dot_bytes(uint32_t a, uint32_t b, int sum) { return __dp4a((int)a, (int)b, sum); }

__device__ __forceinline__ float float_of_bits(uint32_t bits) { return __uint_as_float(bits); }
__device__ __forceinline__ uint32_t bits_of_float(float x) { return __float_as_uint(x); }
__device__ __forceinline__ float fast_exp(float x) { return __expf(x); }
// 2^x
__device__ __forceinline__ float fast_exp_of_2(float x) {
    float out;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
    return out;
}
// Whether it holds in any lane of the warp.
__device__ __forceinline__ bool in_any_lane(bool holds) { return __any_sync(0xFFFFFFFFu, holds); }
// A product rounded before any addition, as on the CPU. The compiler would otherwise fuse product and sum.
__device__ __forceinline__ float product(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float float_infinity() { return __int_as_float(0x7F800000); }
template <class T>
__device__ __forceinline__ T at_most(T a, T b) { return a < b ? a : b; }
template <class T>
__device__ __forceinline__ T at_least(T a, T b) { return a < b ? b : a; }

// Entry of a kernel, for blocks of at most `threads` threads. All parameters are in one struct.
#define KEPT_KERNEL(threads, name, Parameters) extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ Parameters p)
// As KEPT_KERNEL, with as many registers as allow `blocks` blocks on a multiprocessor: for kernels that spill at the
// compiler's own limit.
#define KEPT_KERNEL_OF(threads, blocks, name, Parameters) \
    extern "C" __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ Parameters p)

#endif

constexpr int LANES = 32;

__device__ __forceinline__ float warp_sum(float x) {
    for (int mask = 16; mask > 0; mask >>= 1) {
        x += shuffle_xor(x, mask);
    }
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
    for (int mask = 16; mask > 0; mask >>= 1) {
        x = at_least(x, shuffle_xor(x, mask));
    }
    return x;
}
