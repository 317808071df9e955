// Row-wise operations of a layer, between the products with weights: norms, preparation of heads (bias, norm, RoPE),
// activations, sums.
//
//   operations  fewer than ten a number, and an exponential a number of an activation
//   bytes       every number read and written once; memory-bound
#include "device.cuh"

// out = x / sqrt(mean(x^2) + eps) * weight; with `residual` the result is added to it, and `out` may be null.
struct RmsNorm {
    const float* x;       // [rows, width]
    const float* weight;  // [width]
    float* out;           // [rows, width] or null
    float* residual;      // [rows, width] or null
    uint32_t rows, width;
    float eps;
};

// block: one row
KEPT_KERNEL(256, rms_norm, RmsNorm) {
    KEPT_SHARED(memory);
    float* const of_warps = reinterpret_cast<float*>(memory);  // [warps]
    const float* const x = p.x + (size_t)blockIdx.x * p.width;
    float squares = 0.0f;
    for (uint32_t i = threadIdx.x; i < p.width; i += blockDim.x) {
        squares += x[i] * x[i];
    }
    squares = warp_sum(squares);
    if (threadIdx.x % LANES == 0) {
        of_warps[threadIdx.x / LANES] = squares;
    }
    __syncthreads();
    float total = 0.0f;
    for (uint32_t w = 0; w < blockDim.x / LANES; ++w) {
        total += of_warps[w];
    }
    const float factor = 1.0f / sqrtf(total / (float)p.width + p.eps);
    for (uint32_t i = threadIdx.x; i < p.width; i += blockDim.x) {
        const float normed = x[i] * factor * p.weight[i];
        const size_t at = (size_t)blockIdx.x * p.width + i;
        if (p.out != nullptr) {
            p.out[at] = normed;
        }
        if (p.residual != nullptr) {
            p.residual[at] += normed;
        }
    }
}

// Prepares projected heads: bias, norm of each head, RoPE, and conversion to halves.
struct Heads {
    const float* x;             // [rows, heads, dim]
    const float* bias;          // [heads * dim] or null
    const float* norm;          // [dim] or null
    const float* cos;           // [positions, rope_dim / 2] or null: no RoPE
    const float* sin;           // [positions, rope_dim / 2]
    const uint32_t* positions;  // [rows] or null: first + row
    half_t* out;                // row r of head h at h * head_stride + (first_row + r) * row_stride
    unsigned long long head_stride, row_stride, first_row;
    uint32_t rows, heads, dim;
    uint32_t first;             // position of row 0 without `positions`
    uint32_t rope_dim;
    uint32_t neighbours;        // pairs are (2 i, 2 i + 1) if set, otherwise (i, i + rope_dim / 2)
    float eps;
};

// block: 4 heads, a warp each; grid: (rows, heads / 4)
KEPT_KERNEL(128, heads, Heads) {
    KEPT_SHARED(memory);
    const uint32_t row = blockIdx.x, warp = threadIdx.x / LANES, head = blockIdx.y * 4 + warp, lane = threadIdx.x % LANES;
    float* const own = reinterpret_cast<float*>(memory) + warp * p.dim;  // [dim]
    const bool there = head < p.heads;
    float squares = 0.0f;
    for (uint32_t i = lane; i < p.dim && there; i += LANES) {
        float x = p.x[((size_t)row * p.heads + head) * p.dim + i];
        if (p.bias != nullptr) {
            x += p.bias[head * p.dim + i];
        }
        own[i] = x;
        squares += x * x;
    }
    squares = warp_sum(squares);
    __syncthreads();
    if (!there) {
        return;
    }
    const float factor = p.norm != nullptr ? 1.0f / sqrtf(squares / (float)p.dim + p.eps) : 1.0f;
    half_t* const out = p.out + head * p.head_stride + (p.first_row + row) * p.row_stride;
    auto normed = [&](uint32_t i) { return p.norm != nullptr ? own[i] * factor * p.norm[i] : own[i]; };
    const uint32_t columns = p.cos != nullptr ? p.rope_dim / 2 : 0;
    const size_t position = p.positions != nullptr ? p.positions[row] : p.first + row;
    for (uint32_t i = lane; i < columns; i += LANES) {
        const uint32_t first = p.neighbours ? 2 * i : i, second = p.neighbours ? 2 * i + 1 : i + columns;
        const float a = normed(first), b = normed(second);
        const float c = p.cos[position * columns + i], s = p.sin[position * columns + i];
        out[first] = to_half(a * c - b * s);
        out[second] = to_half(a * s + b * c);
    }
    for (uint32_t i = 2 * columns + lane; i < p.dim; i += LANES) {
        out[i] = to_half(normed(i));
    }
}

// gate = activation(gate) * up
struct Activate {
    float* gate;      // [rows, width]
    const float* up;  // [rows, width]
    uint32_t rows, width;
    uint32_t gelu;    // 1: GELU (tanh), 0: SiLU
};

// block: 256 numbers of a row; grid: (width / 256, rows)
KEPT_KERNEL(256, activate, Activate) {
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.width) {
        return;
    }
    const size_t element = (size_t)blockIdx.y * p.width + i;
    float* const gate = p.gate + element;
    const float x = *gate;
    const float activated = p.gelu ? 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x))) : x / (1.0f + fast_exp(-x));
    *gate = activated * p.up[element];
}

// x += y, where y repeats with its period
struct Sum {
    float* x;        // [count]
    const float* y;  // [period]
    unsigned long long count, period;
};

KEPT_KERNEL(256, sum, Sum) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.count) {
        p.x[i] += p.y[i % p.period];
    }
}
