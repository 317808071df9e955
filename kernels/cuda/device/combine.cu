// Combines the parts of prefill attention with split keys.
//
//   operations  2 * parts * DIM a row and query head
//   bytes       the parts once
#include "device.cuh"

// Joins the parts of the splits, weighted by their log-sum-exp.
struct Combine {
    const float* parts;      // [splits, rows, q_heads, dim], each normalised by its own sum
    const float* part_sums;  // [splits, q_heads, rows]: log-sum-exp; minus infinity if a part has no visible key
    float* out;              // [rows, q_heads, dim], or null for the sums only
    float* log_sum_exp;      // [q_heads, rows] or null
    uint32_t splits, rows, q_heads, dim;
};

// block: one row of one query head
KEPT_KERNEL(256, combine, Combine) {
    const uint32_t row = blockIdx.x, head = blockIdx.y;
    const float* const sums = p.part_sums + (size_t)head * p.rows + row;
    const size_t stride = (size_t)p.q_heads * p.rows;
    float largest = -float_infinity();
    for (uint32_t s = 0; s < p.splits; ++s) {
        largest = at_least(largest, sums[s * stride]);
    }
    // A row without any visible key gives 0.
    const float base = largest == -float_infinity() ? 0.0f : largest;
    float total = 0.0f;
    for (uint32_t s = 0; s < p.splits; ++s) {
        total += fast_exp(sums[s * stride] - base);
    }
    const float share = total > 0.0f ? 1.0f / total : 0.0f;
    if (p.out != nullptr) {
        for (uint32_t i = threadIdx.x; i < p.dim; i += blockDim.x) {
            float sum = 0.0f;
            for (uint32_t s = 0; s < p.splits; ++s) {
                const float* const part = p.parts + (((size_t)s * p.rows + row) * p.q_heads + head) * p.dim;
                sum += fast_exp(sums[s * stride] - base) * part[i];
            }
            p.out[((size_t)row * p.q_heads + head) * p.dim + i] = sum * share;
        }
    }
    if (p.log_sum_exp != nullptr && threadIdx.x == 0) {
        p.log_sum_exp[(size_t)head * p.rows + row] = total > 0.0f ? base + logf(total) : -float_infinity();
    }
}
