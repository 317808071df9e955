// Peak rate of a GPU's tensor cores, to compare prefill attention with. Only this benchmark uses the kernel.
//
//   operations  4096 a warp and round for each of its 8 products
#include "device.cuh"

struct MatrixRate {
    float* out;  // [blocks, threads]: keeps the compiler from removing the products
    uint32_t rounds;
};

// block: 4 warps, each with eight accumulators
KEPT_KERNEL(128, matrix_rate, MatrixRate) {
    const uint32_t one = pack_halves(1.0f, 1.0f);
    const uint32_t a[4] = {one, one, one, one}, b[2] = {one, one};
    float sums[8][4];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = (float)i;
    }
    for (uint32_t round = 0; round < p.rounds; ++round) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            mma_16816(sums[i], a, b);
        }
    }
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        sum += sums[i][0] + sums[i][1] + sums[i][2] + sums[i][3];
    }
    p.out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
