// Products of one row with a model's weights, in blocks as in a GGUF file: for a decode step, up to three matrices with
// the same input.
//
//   block       8 rows of the weights, a warp each; step_gated: 32 rows of both matrices, whose products are activated,
//               multiplied and quantised for the next product in the same launch; step_added: 32 rows, a warp each,
//               added to the residual stream and quantised for the next product
//   bytes       the weights once; the input's bytes (1.4 a number) for every row, from the caches
//   operations  2 * rows * cols, four to an instruction
//
// Each type of weights has its own kernels: with the registers of the most demanding type, half as many warps could
// hide memory latency. A launch with matrices of several types (in some layers values have more bits than queries and
// keys) uses the generic kernels.
#include "inputs.cuh"

// [rows, cols], and the outputs of its products.
struct Matrix {
    const uint8_t* blocks;
    const float* bias;  // [rows] or null
    float* out;         // [rows]
    unsigned long long row_bytes;
    uint32_t rows, kind;
};

// --- products of a piece of a weight row with its inputs ---
//
// PIECE is how many numbers of a type a lane multiplies at once, and `piece` is the index of such a piece in the row.
// AHEAD is how many pieces a lane requests before it needs the first: with the warps that the registers allow, some
// 30 KB are in flight per multiprocessor (4.8 TB/s times 0.8 us are 29 KB for each of 132).
// kernels/src/quantised/format.rs draws the formats.

__device__ __forceinline__ float half_at(const uint8_t* at) { return to_float(*reinterpret_cast<const half_t*>(at)); }

// 16 bytes, aligned to two: five words, shifted. Reads up to four bytes before or after them, which lie in the same
// block or in the padding behind the last one.
__device__ __forceinline__ Sixteen load_16_by_2(const uint8_t* from) {
    const size_t over = reinterpret_cast<size_t>(from) & 2;
    const uint32_t* const words = reinterpret_cast<const uint32_t*>(from - over);
    Sixteen out;
    uint32_t word = words[0];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t next = words[i + 1];
        out.words[i] = shift_right(word, next, (uint32_t)over * 8);
        word = next;
    }
    return out;
}

__device__ __forceinline__ uint32_t load_4_by_2(const uint8_t* from) {
    const uint16_t* const two = reinterpret_cast<const uint16_t*>(from);
    return (uint32_t)two[0] | (uint32_t)two[1] << 16;
}

// Dot product of 16 bytes with 16 inputs.
__device__ __forceinline__ int dot_16(const Sixteen& a, const int8_t* inputs) {
    const Sixteen b = load_16(inputs);
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        sum = dot_bytes(a.words[i], b.words[i], sum);
    }
    return sum;
}

// Bits from `shift` on of each byte, masked.
__device__ __forceinline__ Sixteen bits(const Sixteen& from, int shift, uint32_t mask) {
    Sixteen out;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        out.words[i] = from.words[i] >> shift & mask;
    }
    return out;
}

__device__ __forceinline__ Sixteen with(const Sixteen& low, const Sixteen& high, int shift) {
    Sixteen out;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        out.words[i] = low.words[i] | high.words[i] << shift;
    }
    return out;
}

constexpr uint32_t NIBBLES = 0x0F0F0F0Fu, PAIRS = 0x03030303u, BITS = 0x01010101u;

// The fifth bits of 16 numbers, each in its own byte.
__device__ __forceinline__ Sixteen spread(uint32_t sixteen_bits) {
    Sixteen out;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        out.words[i] = ((sixteen_bits >> 4 * i & 15u) * 0x00204081u) & BITS;
    }
    return out;
}

// Types with blocks of 32: number i in the low half of byte i, number 16 + i in the high half.
template <int BYTES, int AT, bool MINIMUM, bool FIFTH>
struct Legacy {
    static constexpr int PIECE = 32, AHEAD = 2;
    static __device__ __forceinline__ float times(const uint8_t* row, int piece, const Inputs& in) {
        const uint8_t* const block = row + (size_t)piece * BYTES;
        const Sixteen numbers = load_16_by_2(block + AT);
        Sixteen low = bits(numbers, 0, NIBBLES), high = bits(numbers, 4, NIBBLES);
        if constexpr (FIFTH) {
            const uint32_t fifth = load_4_by_2(block + AT - 4);
            low = with(low, spread(fifth), 4);
            high = with(high, spread(fifth >> 16), 4);
        }
        const int8_t* const inputs = in.bytes + (size_t)piece * 32;
        const float products = in.scales[piece] * (float)(dot_16(low, inputs) + dot_16(high, inputs + 16));
        const float sum = in.sums[2 * piece] + in.sums[2 * piece + 1], scale = half_at(block);
        return MINIMUM ? scale * products + half_at(block + 2) * sum : scale * (products - (FIFTH ? 16.0f : 8.0f) * sum);
    }
};
using Q4_0 = Legacy<18, 2, false, false>;
using Q4_1 = Legacy<20, 4, true, false>;
using Q5_0 = Legacy<22, 6, false, true>;
using Q5_1 = Legacy<24, 8, true, true>;

struct Q8_0 {
    static constexpr int PIECE = 16, AHEAD = 4;
    static __device__ __forceinline__ float times(const uint8_t* row, int piece, const Inputs& in) {
        const uint8_t* const block = row + (size_t)(piece / 2) * 34;
        const int products = dot_16(load_16_by_2(block + 2 + piece % 2 * 16), in.bytes + (size_t)piece * 16);
        return half_at(block) * in.scales[piece / 2] * (float)products;
    }
};

// Types with blocks of 256. Dot product of 16 numbers with the inputs from `first` on, with the inputs' scale but not
// the weights'.
__device__ __forceinline__ float scaled(const Sixteen& numbers, const Inputs& in, size_t first) {
    return in.scales[first / 32] * (float)dot_16(numbers, in.bytes + first);
}

struct Q2K {
    static constexpr int PIECE = 64, AHEAD = 2;
    static __device__ __forceinline__ float times(const uint8_t* row, int piece, const Inputs& in) {
        const uint8_t* const block = row + (size_t)(piece / 4) * 84;
        const int half = piece / 2 % 2, part = piece % 2;
        const Sixteen numbers = load_16_by_2(block + 16 + half * 32 + part * 16);
        const size_t first = (size_t)(piece / 4) * 256 + half * 128 + part * 16;
        float products = 0.0f, least = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int scale = block[half * 8 + 2 * j + part];
            products += (float)(scale & 15) * scaled(bits(numbers, 2 * j, PAIRS), in, first + 32 * j);
            least += (float)(scale >> 4) * in.sums[(first + 32 * j) / 16];
        }
        return half_at(block + 80) * products - half_at(block + 82) * least;
    }
};

struct Q3K {
    static constexpr int PIECE = 64, AHEAD = 2;
    static __device__ __forceinline__ float times(const uint8_t* row, int piece, const Inputs& in) {
        const uint8_t* const block = row + (size_t)(piece / 4) * 110;
        const int half = piece / 2 % 2, part = piece % 2;
        const Sixteen numbers = load_16_by_2(block + 32 + half * 32 + part * 16), third = load_16_by_2(block + part * 16);
        const size_t first = (size_t)(piece / 4) * 256 + half * 128 + part * 16;
        const uint8_t* const scales = block + 96;
        float products = 0.0f;
// Two at a time: the registers of a block of 32 warps allow no more.
#pragma unroll 2
        for (int j = 0; j < 4; ++j) {
            const int which = half * 8 + 2 * j + part;
            const int low = which < 8 ? scales[which] & 15 : scales[which - 8] >> 4, high = scales[8 + which % 4] >> 2 * (which / 4) & 3;
            const Sixteen numbers_of = with(bits(numbers, 2 * j, PAIRS), bits(third, half * 4 + j, BITS), 2);
            const float of_part = scaled(numbers_of, in, first + 32 * j) - 4.0f * in.sums[(first + 32 * j) / 16];
            products += (float)((low | high << 4) - 32) * of_part;
        }
        return half_at(block + 108) * products;
    }
};

// 4 bits, or 5 with the fifth bits stored before: 32 numbers in the low halves of 32 bytes, the next 32 in the high
// halves.
template <int BYTES, bool FIFTH>
struct Fours {
    static constexpr int PIECE = 32, AHEAD = FIFTH ? 1 : 2;
    static __device__ __forceinline__ float times(const uint8_t* row, int piece, const Inputs& in) {
        const uint8_t* const block = row + (size_t)(piece / 8) * BYTES;
        const int part = piece % 8, chunk = part / 2;
        const Sixteen numbers = load_16_once(block + (FIFTH ? 48 : 16) + part * 16);
        // Two halves, then the scales and minima of eight times 32 numbers, six bits each: those of the first four in
        // the low six bits of bytes 0..4 and 4..8, those of the others in the halves of bytes 8..12 and the upper two
        // bits of bytes 0..8. Two pairs are needed here.
        const Sixteen head = load_16_once(block);
        const int shift = chunk % 2 * 16;
        const uint32_t first_scales = head.words[1] >> shift, first_minima = head.words[2] >> shift, others = head.words[3] >> shift;
        const uint32_t scales = chunk < 2 ? first_scales & 0x3F3Fu : (others & 0x0F0Fu) | (first_scales >> 2 & 0x3030u);
        const uint32_t minima = chunk < 2 ? first_minima & 0x3F3Fu : (others >> 4 & 0x0F0Fu) | (first_minima >> 2 & 0x3030u);
        Sixteen low = bits(numbers, 0, NIBBLES), high = bits(numbers, 4, NIBBLES);
        if constexpr (FIFTH) {
            const Sixteen fifth = load_16_once(block + 16 + part % 2 * 16);
            low = with(low, bits(fifth, 2 * chunk, BITS), 4);
            high = with(high, bits(fifth, 2 * chunk + 1, BITS), 4);
        }
        const size_t first = (size_t)(piece / 8) * 256 + chunk * 64 + part % 2 * 16;
        const float products = (float)(scales & 255u) * scaled(low, in, first) + (float)(scales >> 8 & 255u) * scaled(high, in, first + 32);
        const float least = (float)(minima & 255u) * in.sums[first / 16] + (float)(minima >> 8 & 255u) * in.sums[first / 16 + 2];
        return low_half(head.words[0]) * products - high_half(head.words[0]) * least;
    }
};
using Q4K = Fours<144, false>;
using Q5K = Fours<176, true>;

struct Q6K {
    static constexpr int PIECE = 32, AHEAD = 2;
    static __device__ __forceinline__ float times(const uint8_t* row, int piece, const Inputs& in) {
        const uint8_t* const block = row + (size_t)(piece / 8) * 210;
        const int half = piece / 4 % 2, quarter = piece % 4, part = quarter % 2, group = quarter / 2;
        const Sixteen numbers = load_16_by_2(block + half * 64 + quarter * 16), upper = load_16_by_2(block + 128 + half * 32 + part * 16);
        const Sixteen low = with(bits(numbers, 0, NIBBLES), bits(upper, 2 * group, PAIRS), 4);
        const Sixteen high = with(bits(numbers, 4, NIBBLES), bits(upper, 2 * group + 4, PAIRS), 4);
        const size_t first = (size_t)(piece / 8) * 256 + half * 128 + group * 32 + part * 16;
        const int8_t* const scales = reinterpret_cast<const int8_t*>(block + 192) + half * 8 + group * 2 + part;
        const float of_low = scaled(low, in, first) - 32.0f * in.sums[first / 16];
        const float of_high = scaled(high, in, first + 64) - 32.0f * in.sums[first / 16 + 4];
        return half_at(block + 208) * ((float)scales[0] * of_low + (float)scales[4] * of_high);
    }
};

// Weights that are not quantised are multiplied with the f32 input. One number at a time, for rows of any length.
struct Single {
    static constexpr int PIECE = 1;
    static __device__ __forceinline__ float times(const uint8_t* row, int i, const Inputs& in) {
        return reinterpret_cast<const float*>(row)[i] * in.numbers[i];
    }
};
struct Half {
    static constexpr int PIECE = 1;
    static __device__ __forceinline__ float times(const uint8_t* row, int i, const Inputs& in) {
        return to_float(reinterpret_cast<const half_t*>(row)[i]) * in.numbers[i];
    }
};
struct Brain {
    static constexpr int PIECE = 1;
    static __device__ __forceinline__ float times(const uint8_t* row, int i, const Inputs& in) {
        return float_of_bits((uint32_t)reinterpret_cast<const uint16_t*>(row)[i] << 16) * in.numbers[i];
    }
};

// 16 bytes at a time, for rows that are a multiple of 16 bytes.
struct Singles {
    static constexpr int PIECE = 4, AHEAD = 2;
    using Few = Single;
    static __device__ __forceinline__ float times(const uint8_t* row, int piece, const Inputs& in) {
        const Sixteen four = load_16(row + (size_t)piece * 16), inputs = load_16(in.numbers + (size_t)piece * 4);
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            sum += float_of_bits(four.words[i]) * float_of_bits(inputs.words[i]);
        }
        return sum;
    }
};

template <bool BRAINS, class One>
struct Shorts {
    static constexpr int PIECE = 8, AHEAD = 2;
    using Few = One;
    static __device__ __forceinline__ float times(const uint8_t* row, int piece, const Inputs& in) {
        const Sixteen eight = load_16(row + (size_t)piece * 16);
        float sum = 0.0f;
#pragma unroll
        for (int part = 0; part < 2; ++part) {
            const Sixteen inputs = load_16(in.numbers + (size_t)piece * 8 + part * 4);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint32_t two = eight.words[2 * part + i];
                const float low = BRAINS ? float_of_bits(two << 16) : low_half(two);
                const float high = BRAINS ? float_of_bits(two & 0xFFFF0000u) : high_half(two);
                sum += low * float_of_bits(inputs.words[2 * i]) + high * float_of_bits(inputs.words[2 * i + 1]);
            }
        }
        return sum;
    }
};
using Halves = Shorts<false, Half>;
using Brains = Shorts<true, Brain>;

// Product of a row with the input, in all lanes of the warp.
template <class Kind, int AHEAD>
__device__ __forceinline__ float times_row(const uint8_t* row, const Inputs& in, uint32_t cols) {
    const int pieces = (int)cols / Kind::PIECE;
    float sum = 0.0f;
#pragma unroll AHEAD
    for (int i = threadIdx.x % LANES; i < pieces; i += LANES) {
        sum += Kind::times(row, i, in);
    }
    return warp_sum(sum);
}

// Products of two rows, piece by piece: requests both at once.
template <class Kind, int AHEAD>
__device__ __forceinline__ void times_rows(const uint8_t* one, const uint8_t* other, const Inputs& in, uint32_t cols, float& a, float& b) {
    const int pieces = (int)cols / Kind::PIECE;
    a = b = 0.0f;
#pragma unroll AHEAD
    for (int i = threadIdx.x % LANES; i < pieces; i += LANES) {
        a += Kind::times(one, i, in);
        b += Kind::times(other, i, in);
    }
    a = warp_sum(a);
    b = warp_sum(b);
}

// As times_row, for types whose rows may end within a piece and are then unaligned.
template <class Kind>
__device__ __forceinline__ float times_any_row(const uint8_t* row, const Inputs& in, uint32_t cols) {
    return cols % Kind::PIECE == 0 ? times_row<Kind, Kind::AHEAD>(row, in, cols) : times_row<typename Kind::Few, 4>(row, in, cols);
}

// Kernel variants: one type, or any type by its number.
template <class Kind>
struct Only {
    static __device__ __forceinline__ float times(const Matrix& matrix, uint32_t row, const Inputs& in, uint32_t cols) {
        return times_row<Kind, Kind::AHEAD>(matrix.blocks + row * matrix.row_bytes, in, cols);
    }
    static __device__ __forceinline__ void times_both(const Matrix& one, const Matrix& other, uint32_t row, const Inputs& in, uint32_t cols, float& a,
                                                      float& b) {
        times_rows<Kind, (Kind::AHEAD + 1) / 2>(one.blocks + row * one.row_bytes, other.blocks + row * other.row_bytes, in, cols, a, b);
    }
};
template <class Kind>
struct OnlyFloats {
    static __device__ __forceinline__ float times(const Matrix& matrix, uint32_t row, const Inputs& in, uint32_t cols) {
        return times_any_row<Kind>(matrix.blocks + row * matrix.row_bytes, in, cols);
    }
    static __device__ __forceinline__ void times_both(const Matrix& one, const Matrix& other, uint32_t row, const Inputs& in, uint32_t cols, float& a,
                                                      float& b) {
        a = times(one, row, in, cols);
        b = times(other, row, in, cols);
    }
};
struct Any {
    static __device__ __forceinline__ float times(const Matrix& matrix, uint32_t row, const Inputs& in, uint32_t cols) {
        const uint8_t* const own = matrix.blocks + row * matrix.row_bytes;
        switch (matrix.kind) {
            case 0: return times_row<Single, 2>(own, in, cols);
            case 1: return times_row<Half, 2>(own, in, cols);
            case 2: return times_row<Brain, 2>(own, in, cols);
            case 3: return times_row<Q4_0, 2>(own, in, cols);
            case 4: return times_row<Q4_1, 2>(own, in, cols);
            case 5: return times_row<Q5_0, 2>(own, in, cols);
            case 6: return times_row<Q5_1, 2>(own, in, cols);
            case 7: return times_row<Q8_0, 2>(own, in, cols);
            case 8: return times_row<Q2K, 2>(own, in, cols);
            case 9: return times_row<Q3K, 2>(own, in, cols);
            case 10: return times_row<Q4K, 2>(own, in, cols);
            case 11: return times_row<Q5K, 2>(own, in, cols);
            default: return times_row<Q6K, 2>(own, in, cols);
        }
    }
    static __device__ __forceinline__ void times_both(const Matrix& one, const Matrix& other, uint32_t row, const Inputs& in, uint32_t cols, float& a,
                                                      float& b) {
        a = times(one, row, in, cols);
        b = times(other, row, in, cols);
    }
};

struct StepProducts {
    Matrix matrices[3];  // absent matrices have 0 rows
    Inputs in;
    uint32_t cols;
    uint32_t added;      // nonzero: products are added to `out`
    float cap;           // above 0: cap * tanh(x / cap)
};

// block: 8 rows of all matrices
template <class Kind>
__device__ __forceinline__ void step_products_of(const StepProducts& p) {
    uint32_t row = blockIdx.x * 8 + threadIdx.x / LANES;
    int which = 0;
    while (which < 2 && row >= p.matrices[which].rows) {
        row -= p.matrices[which].rows;
        ++which;
    }
    const Matrix& matrix = p.matrices[which];
    if (row >= matrix.rows) {
        return;
    }
    float x = Kind::times(matrix, row, p.in, p.cols) * norm_factor(p.in, p.cols);
    if (threadIdx.x % LANES == 0) {
        x += matrix.bias != nullptr ? matrix.bias[row] : 0.0f;
        x = p.cap > 0.0f ? p.cap * tanhf(x / p.cap) : x;
        matrix.out[row] = p.added ? matrix.out[row] + x : x;
    }
}

struct StepGated {
    Matrix gate, up;  // `out` of both is unused
    Inputs in, out;
    uint32_t cols;
    uint32_t gelu;    // 1: GELU (tanh), 0: SiLU
};

// block: 32 rows
template <class Kind>
__device__ __forceinline__ void step_gated_of(const StepGated& p) {
    KEPT_SHARED(memory);
    float* const gates = reinterpret_cast<float*>(memory);  // [32]
    float* const ups = gates + LANES;                       // [32]
    const uint32_t first = blockIdx.x * LANES;
    for (uint32_t i = threadIdx.x / LANES; i < LANES; i += blockDim.x / LANES) {
        float gate = 0.0f, up = 0.0f;
        if (first + i < p.gate.rows) {
            Kind::times_both(p.gate, p.up, first + i, p.in, p.cols, gate, up);
        }
        if (threadIdx.x % LANES == 0) {
            gates[i] = gate;
            ups[i] = up;
        }
    }
    __syncthreads();
    if (threadIdx.x < LANES) {
        const float factor = norm_factor(p.in, p.cols), gate = gates[threadIdx.x] * factor, up = ups[threadIdx.x] * factor;
        const float x = p.gelu ? 0.5f * gate * (1.0f + tanhf(0.7978845608f * (gate + 0.044715f * gate * gate * gate)))
                               : gate / (1.0f + fast_exp(-gate));
        put_inputs(p.out, first, x * up, p.gate.rows);
    }
}

struct StepAdded {
    Matrix matrix;        // `out` is the residual stream
    const float* weight;  // [rows]: of the RMSNorm before the next product
    float* squares;       // [rows / 32]
    Inputs in, out;       // the factor of the norm is left to the readers of `out`
    uint32_t cols;
};

// block: 32 rows
template <class Kind>
__device__ __forceinline__ void step_added_of(const StepAdded& p) {
    KEPT_SHARED(memory);
    float* const rows = reinterpret_cast<float*>(memory);  // [32]
    const uint32_t first = blockIdx.x * LANES, row = first + threadIdx.x / LANES;
    if (row < p.matrix.rows) {
        const float x = Kind::times(p.matrix, row, p.in, p.cols) * norm_factor(p.in, p.cols);
        if (threadIdx.x % LANES == 0) {
            const float sum = p.matrix.out[row] + x + (p.matrix.bias != nullptr ? p.matrix.bias[row] : 0.0f);
            p.matrix.out[row] = sum;
            rows[row - first] = sum;
        }
    }
    __syncthreads();
    if (threadIdx.x < LANES) {
        const uint32_t i = first + threadIdx.x;
        const float x = i < p.matrix.rows ? rows[threadIdx.x] : 0.0f, squares = warp_sum(x * x);
        if (threadIdx.x == 0) {
            p.squares[blockIdx.x] = squares;
        }
        put_inputs(p.out, first, i < p.matrix.rows ? x * p.weight[i] : 0.0f, p.matrix.rows);
    }
}

// Registers for four blocks per multiprocessor, so that the blocks of a matrix of 4,096 rows run at once on a GPU of 128
// multiprocessors. Where that would spill some: for fewer.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define PRODUCT_BLOCKS 2
#define FEWER_BLOCKS 1
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define PRODUCT_BLOCKS 3
#define FEWER_BLOCKS 1
#else
#define PRODUCT_BLOCKS 4
#define FEWER_BLOCKS 3
#endif

KEPT_KERNEL_OF(256, FEWER_BLOCKS, step_products, StepProducts) { step_products_of<Any>(p); }
KEPT_KERNEL_OF(256, FEWER_BLOCKS, step_gated, StepGated) { step_gated_of<Any>(p); }

#define KEPT_STEP(kind, Kind, BLOCKS)                                                                     \
    KEPT_KERNEL_OF(256, BLOCKS, step_products_##kind, StepProducts) { step_products_of<Kind>(p); } \
    KEPT_KERNEL_OF(256, BLOCKS, step_gated_##kind, StepGated) { step_gated_of<Kind>(p); }

KEPT_STEP(f32, OnlyFloats<Singles>, PRODUCT_BLOCKS)
KEPT_STEP(f16, OnlyFloats<Halves>, PRODUCT_BLOCKS)
KEPT_STEP(bf16, OnlyFloats<Brains>, PRODUCT_BLOCKS)
KEPT_STEP(q4_0, Only<Q4_0>, PRODUCT_BLOCKS)
KEPT_STEP(q4_1, Only<Q4_1>, PRODUCT_BLOCKS)
KEPT_STEP(q5_0, Only<Q5_0>, PRODUCT_BLOCKS)
KEPT_STEP(q5_1, Only<Q5_1>, PRODUCT_BLOCKS)
KEPT_STEP(q8_0, Only<Q8_0>, PRODUCT_BLOCKS)
KEPT_STEP(q2_k, Only<Q2K>, FEWER_BLOCKS)
KEPT_STEP(q3_k, Only<Q3K>, FEWER_BLOCKS)
KEPT_STEP(q4_k, Only<Q4K>, PRODUCT_BLOCKS)
KEPT_STEP(q5_k, Only<Q5K>, PRODUCT_BLOCKS)
KEPT_STEP(q6_k, Only<Q6K>, PRODUCT_BLOCKS)

// 32 warps: 64 registers a thread.
#define KEPT_ADDED(kind, Kind) KEPT_KERNEL(1024, step_added_##kind, StepAdded) { step_added_of<Kind>(p); }

KEPT_ADDED(f32, OnlyFloats<Singles>)
KEPT_ADDED(f16, OnlyFloats<Halves>)
KEPT_ADDED(bf16, OnlyFloats<Brains>)
KEPT_ADDED(q4_0, Only<Q4_0>)
KEPT_ADDED(q4_1, Only<Q4_1>)
KEPT_ADDED(q5_0, Only<Q5_0>)
KEPT_ADDED(q5_1, Only<Q5_1>)
KEPT_ADDED(q8_0, Only<Q8_0>)
KEPT_ADDED(q2_k, Only<Q2K>)
KEPT_ADDED(q3_k, Only<Q3K>)
KEPT_ADDED(q4_k, Only<Q4K>)
KEPT_ADDED(q5_k, Only<Q5K>)
KEPT_ADDED(q6_k, Only<Q6K>)
