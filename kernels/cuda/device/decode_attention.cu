// Decode attention of one new token over the rows of a compact KV cache, in a step that is captured once and replayed.
// Heads may have different numbers of rows, in any order.
//
//   block       a split of one KV head's rows; up to 16 query heads of its group fill a tensor-core tile, so that every
//               key and value is read once for all of them. Each warp takes 16 rows of a tile and has its own softmax.
//   splits      all splits of all heads run at once. Their number is fixed. Their lengths follow from `rows`, which is
//               on the device, so that a captured graph can be replayed while the cache grows. The last block of a group
//               of heads combines the parts of all its blocks, and quantises the output for the next product.
//   bytes       rows * 2 * (bytes of a row) per KV head, once; with `places` 4 more per row; with `ranks` also each
//               key's angles
//   operations  4 * q_heads * rows * DIM
#include "inputs.cuh"
#include "store.cuh"
#include "tiles.cuh"

// Rows of keys or values: f16 `data`; or q8_0 and q4_0 `data` with a scale for every 32 elements, and `wide` rows in
// f16. In a q4_0 cache all rows are Hadamard-rotated, wide ones too.
struct Rows {
    const void* data;
    const half_t* scales;
    const half_t* wide;
};

struct DecodeAttention {
    const half_t* queries;       // [q_heads, DIM]
    Rows keys, values;           // [slots, DIM]
    const uint32_t* first_rows;  // [kv_heads]: first slot of each head
    const uint32_t* rows;        // [kv_heads]: filled slots of each head
    const uint32_t* places;      // [slots] or null: row of each slot, in `wide` from `narrow` on; null: row == slot
    const uint32_t* ranks;       // [slots] or null: ranks of keys that are stored before RoPE
    const float* cos;            // [ranks, rope_dim / 2]
    const float* sin;            // [ranks, rope_dim / 2]
    float* parts;                // [splits, q_heads, DIM]
    float* part_sums;            // [splits, q_heads]
    float* logits;               // [q_heads, stride] or null, for `probabilities`
    float* log_sum_exp;          // [q_heads], with `logits`
    uint32_t q_heads, kv_heads;
    uint32_t narrow;             // number of rows in `data`
    uint32_t stride;
    uint32_t rope_dim;
    uint32_t neighbours;         // pairs are (2 i, 2 i + 1) if set, otherwise (i, i + rope_dim / 2)
    uint32_t stages;             // tiles in shared memory: 2, or 1 if two do not fit
    Scale scale;
    uint32_t* arrived;           // [kv_heads, blocks of a group]: finished blocks, 0 between launches
    float* part_best;            // [splits, q_heads, 2]: largest logit of each part, and its slot as bits
    float* best;                 // [q_heads, 2]: largest probability, and its slot as a number
    Inputs out;                  // [q_heads, DIM]; not quantised unless DIM is a multiple of 32
};

// Two bytes per element, copied unchanged.
struct F16 {
    static constexpr bool TURNED = false;
};

// Eight elements as stored, and their scale: `words` of a wide row are four, those of a q8_0 row two, of a q4_0 row one.
struct Packed {
    Sixteen words;
    half_t scale;
};

// Integers become halves by their bits: 0x6400 + i is the half 1024 + i, and every step up to the product with the scale
// is exact.

// Blocks of 32 signed bytes with a scale.
struct Q8 {
    static constexpr bool TURNED = false;
    template <int DIM>
    static __device__ __forceinline__ void load(Packed& out, const Rows& rows, size_t row, int piece) {
        const uint32_t* const words = reinterpret_cast<const uint32_t*>(reinterpret_cast<const int8_t*>(rows.data) + row * DIM + piece * 8);
        out.words.words[0] = words[0];
        out.words.words[1] = words[1];
        out.scale = rows.scales[row * ((DIM + 31) / 32) + piece / 4];
    }
    static __device__ __forceinline__ Sixteen unpack(const Packed& packed) {
        Sixteen out;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            // Signed bytes plus 128.
            const uint32_t bytes = packed.words.words[i / 2] ^ 0x80808080u;
            out.words[i] = scale_halves(pick_bytes(bytes, 0x64646464u, i % 2 == 0 ? 0x4140u : 0x4342u), 0x64806480u, packed.scale);
        }
        return out;
    }
};

// Blocks of 32 elements of 4 bits, offset by 8, with a scale; element 2 i is in the low half of byte i.
struct Q4 {
    static constexpr bool TURNED = true;
    template <int DIM>
    static __device__ __forceinline__ void load(Packed& out, const Rows& rows, size_t row, int piece) {
        out.words.words[0] = reinterpret_cast<const uint32_t*>(reinterpret_cast<const uint8_t*>(rows.data) + row * (DIM / 2))[piece];
        out.scale = rows.scales[row * ((DIM + 31) / 32) + piece / 4];
    }
    static __device__ __forceinline__ Sixteen unpack(const Packed& packed) {
        Sixteen out;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint32_t byte = packed.words.words[0] >> 8 * i;
            out.words[i] = scale_halves((byte & 15u) | (byte & 0xF0u) << 12 | 0x64006400u, 0x64086408u, packed.scale);
        }
        return out;
    }
};

// How many pieces a thread requests before it needs the first. Heads of 256, Turing and Blackwell have no registers for
// more than one.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 800 || __CUDA_ARCH__ >= 1000)
constexpr int PIECES_AHEAD = 1;
#else
constexpr int PIECES_AHEAD = 4;
#endif

// Begins to fill `tile` with rows first..first + KEYS of a head whose slots begin at `slot`; rows from `end` on become
// 0.
template <int DIM, int KEYS, class Kind>
struct Fill {
    static __device__ __forceinline__ void begin(half_t* tile, const Rows& rows, const DecodeAttention& p, size_t slot, int first, int end) {
        constexpr int PIECES = DIM / 8, THREADS = KEYS / 16 * LANES, AHEAD = DIM < 256 ? PIECES_AHEAD : 1;
        constexpr uint32_t NOWHERE = 0xFFFFFFFFu;
        if constexpr (AHEAD == 1) {
#pragma unroll 1
            for (int i = threadIdx.x; i < KEYS * PIECES; i += THREADS) {
                const int row = i / PIECES, piece = i % PIECES;
                Sixteen numbers = {{0, 0, 0, 0}};
                if (first + row < end) {
                    const uint32_t own = (uint32_t)slot + first + row, place = p.places != nullptr ? p.places[own] : own;
                    if (place < p.narrow) {
                        Packed packed;
                        Kind::template load<DIM>(packed, rows, place, piece);
                        numbers = Kind::unpack(packed);
                    } else {
                        numbers = load_16(rows.wide + (size_t)(place - p.narrow) * DIM + piece * 8);
                    }
                }
                store_16(tile + row * STRIDE<DIM> + piece * 8, numbers);
            }
            return;
        }
        for (int begin = threadIdx.x; begin < KEYS * PIECES; begin += AHEAD * THREADS) {
            uint32_t places[AHEAD];
            Packed packed[AHEAD];
#pragma unroll
            for (int n = 0; n < AHEAD; ++n) {
                const int i = begin + n * THREADS, row = first + i / PIECES;
                const uint32_t own = (uint32_t)slot + row;
                places[n] = i >= KEYS * PIECES || row >= end ? NOWHERE : p.places != nullptr ? p.places[own] : own;
            }
#pragma unroll
            for (int n = 0; n < AHEAD; ++n) {
                const int piece = (begin + n * THREADS) % PIECES;
                if (places[n] < p.narrow) {
                    Kind::template load<DIM>(packed[n], rows, places[n], piece);
                } else if (places[n] != NOWHERE) {
                    packed[n].words = load_16(rows.wide + (size_t)(places[n] - p.narrow) * DIM + piece * 8);
                }
            }
#pragma unroll
            for (int n = 0; n < AHEAD; ++n) {
                const int i = begin + n * THREADS, row = i / PIECES, piece = i % PIECES;
                if (i < KEYS * PIECES) {
                    const Sixteen numbers = places[n] < p.narrow    ? Kind::unpack(packed[n])
                                            : places[n] != NOWHERE ? packed[n].words
                                                                   : Sixteen{{0, 0, 0, 0}};
                    store_16(tile + row * STRIDE<DIM> + piece * 8, numbers);
                }
            }
        }
    }
};

template <int DIM, int KEYS>
struct Fill<DIM, KEYS, F16> {
    static __device__ __forceinline__ void begin(half_t* tile, const Rows& rows, const DecodeAttention&, size_t slot, int first, int end) {
        copy_tile_begin<DIM, KEYS>(tile, reinterpret_cast<const half_t*>(rows.data) + slot * DIM, first, end);
    }
};

// Undoes the Hadamard rotation of a tile's rows, a warp each. The transform is its own inverse, in runs of 2^k
// elements, the longest that divide DIM.
template <int DIM, int KEYS>
__device__ __forceinline__ void unturn_tile(half_t* tile) {
    constexpr int PARTS = (DIM + LANES - 1) / LANES, RUN = DIM & -DIM;
    const int lane = threadIdx.x % LANES;
    const float scale = 1.0f / sqrtf((float)RUN);
    for (int row = threadIdx.x / LANES; row < KEYS; row += blockDim.x / LANES) {
        half_t* const key = tile + row * STRIDE<DIM>;
        float x[PARTS];  // element part * LANES + lane of the row
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            x[part] = part * LANES + lane < DIM ? to_float(key[part * LANES + lane]) : 0.0f;
        }
#pragma unroll
        for (int half = 1; half < LANES && half < RUN; half *= 2) {
#pragma unroll
            for (int part = 0; part < PARTS; ++part) {
                const float other = shuffle_xor(x[part], half);
                x[part] = lane & half ? other - x[part] : x[part] + other;
            }
        }
#pragma unroll
        for (int half = 1; half < RUN / LANES; half *= 2) {
#pragma unroll
            for (int part = 0; part < PARTS; ++part) {
                if ((part & half) == 0) {
                    const float a = x[part], b = x[part + half];
                    x[part] = a + b;
                    x[part + half] = a - b;
                }
            }
        }
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            if (part * LANES + lane < DIM) {
                key[part * LANES + lane] = to_half(x[part] * scale);
            }
        }
    }
}

// Applies RoPE to the keys of a tile by their ranks, in shared memory.
template <int DIM, int KEYS>
__device__ __forceinline__ void turn_tile(half_t* tile, const DecodeAttention& p, size_t slot, int first, int end) {
    const int columns = (int)p.rope_dim / 2;
    for (int i = threadIdx.x; i < KEYS * columns; i += blockDim.x) {
        const int row = i / columns, column = i % columns;
        if (first + row >= end) {
            continue;
        }
        half_t* const key = tile + row * STRIDE<DIM>;
        half_t* const x = key + (p.neighbours ? 2 * column : column);
        half_t* const y = key + (p.neighbours ? 2 * column + 1 : column + columns);
        const size_t angle = (size_t)p.ranks[slot + first + row] * columns + column;
        const float a = to_float(*x), b = to_float(*y), c = p.cos[angle], s = p.sin[angle];
        *x = to_half(a * c - b * s);
        *y = to_half(a * s + b * c);
    }
}

// Maximum of this lane's best logit and that of the lane `mask` away; the lower key on ties.
__device__ __forceinline__ void first_best(float& best, uint32_t& key, int mask) {
    const float other = shuffle_xor(best, mask);
    const uint32_t there = shuffle_xor(key, mask);
    if (other > best || (other == best && there < key)) {
        best = other;
        key = there;
    }
}

// Executed by the last block of a group of heads: combines the parts of all its blocks, weighted by their log-sum-exp,
// and quantises the result for the next product.
template <int DIM, bool TURNED>
__device__ __forceinline__ void add_up(const DecodeAttention& p, unsigned char* memory, int first_head, int heads) {
    const int splits = (int)gridDim.x, lane = threadIdx.x % LANES;
    // Reuses the shared memory: [16, DIM] sums, [16, splits] shares of the parts, and whether this block is the last.
    float* const sums = reinterpret_cast<float*>(memory);
    float* const shares = sums + ROWS_OF_WARP * DIM;
    uint32_t* const last = reinterpret_cast<uint32_t*>(shares + ROWS_OF_WARP * splits);
    publish();
    __syncthreads();
    uint32_t* const arrived = p.arrived + blockIdx.y * gridDim.z + blockIdx.z;
    if (threadIdx.x == 0) {
        *last = count_up(arrived) == gridDim.x - 1 ? 1u : 0u;
        // From here on, this block sees what other blocks wrote before they counted.
        publish();
    }
    __syncthreads();
    if (*last == 0) {
        return;
    }
    if (threadIdx.x == 0) {
        *arrived = 0;
    }
    // A warp for each head, a lane for each split.
    for (int head = threadIdx.x / LANES; head < heads; head += blockDim.x / LANES) {
        float* const own = shares + head * splits;
        float base = -float_infinity(), best = -float_infinity(), total = 0.0f;
        uint32_t slot = 0xFFFFFFFFu;
        for (int s = lane; s < splits; s += LANES) {
            const size_t part = (size_t)s * p.q_heads + first_head + head;
            own[s] = p.part_sums[part];
            base = at_least(base, own[s]);
            const float largest = p.part_best[2 * part];
            const uint32_t there = bits_of_float(p.part_best[2 * part + 1]);
            if (largest > best || (largest == best && there < slot)) {
                best = largest;
                slot = there;
            }
        }
        base = warp_max(base);
        for (int s = lane; s < splits; s += LANES) {
            own[s] = fast_exp(own[s] - base);
            total += own[s];
        }
        total = warp_sum(total);
        for (int s = lane; s < splits; s += LANES) {
            own[s] /= total;
        }
        for (int mask = 16; mask > 0; mask >>= 1) {
            first_best(best, slot, mask);
        }
        if (lane == 0) {
            const float log_sum_exp = base + logf(total);
            if (p.logits != nullptr) {
                p.log_sum_exp[first_head + head] = log_sum_exp;
            }
            p.best[2 * (first_head + head)] = fast_exp(best - log_sum_exp);
            p.best[2 * (first_head + head) + 1] = (float)slot;
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < heads * DIM; i += blockDim.x) {
        const float* const part = p.parts + (size_t)first_head * DIM + i;
        const float* const own = shares + i / DIM * splits;
        float sum = 0.0f;
#pragma unroll 8
        for (int s = 0; s < splits; ++s) {
            sum += own[s] * part[(size_t)s * p.q_heads * DIM];
        }
        sums[i] = sum;
    }
    __syncthreads();
    if constexpr (TURNED) {
        for (int head = threadIdx.x / LANES; head < heads; head += blockDim.x / LANES) {
            hadamard(sums + head * DIM, DIM, lane);
        }
        __syncthreads();
    }
    for (int first = threadIdx.x / LANES * LANES; first < heads * DIM; first += blockDim.x) {
        const size_t at = (size_t)first_head * DIM + first;
        if constexpr (DIM % LANES == 0) {
            put_inputs(p.out, at, sums[first + lane], (size_t)p.q_heads * DIM);
        } else if (first + lane < heads * DIM) {
            p.out.numbers[at + lane] = sums[first + lane];
        }
    }
}

template <int DIM, int KEYS, class Kind>
__device__ __forceinline__ void decode_attention(const DecodeAttention& p) {
    constexpr int WARPS = KEYS / 16, TILE = KEYS * STRIDE<DIM>;
    KEPT_SHARED(memory);
    half_t* const tiles = reinterpret_cast<half_t*>(memory);  // [stages, keys and values, KEYS, DIM + 8]

    const Lane own;
    const int warp = threadIdx.x / LANES, kv_head = blockIdx.y, group = (int)(p.q_heads / p.kv_heads);
    const int first_head = kv_head * group + (int)blockIdx.z * ROWS_OF_WARP;
    const int heads = at_most(group - (int)blockIdx.z * ROWS_OF_WARP, ROWS_OF_WARP);
    const size_t slot = p.first_rows[kv_head];
    const int end = (int)p.rows[kv_head], all = (end + KEYS - 1) / KEYS;
    const int from = (int)((long long)all * blockIdx.x / gridDim.x), to = (int)((long long)all * (blockIdx.x + 1) / gridDim.x);

    const Queries<DIM> q(p.queries + (size_t)first_head * DIM, DIM, heads);
    float o[DIM / 8][4];
#pragma unroll
    for (int j = 0; j < DIM / 8; ++j) {
        o[j][0] = o[j][1] = o[j][2] = o[j][3] = 0.0f;
    }
    Running running;
    float best[2] = {-float_infinity(), -float_infinity()};
    uint32_t best_key[2] = {0xFFFFFFFFu, 0xFFFFFFFFu};

    auto begin_tile = [&](int tile) {
        half_t* const stage = tiles + (tile - from) % p.stages * 2 * TILE;
        Fill<DIM, KEYS, Kind>::begin(stage, p.keys, p, slot, tile * KEYS, end);
        Fill<DIM, KEYS, Kind>::begin(stage + TILE, p.values, p, slot, tile * KEYS, end);
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
        half_t* const stage = tiles + (tile - from) % p.stages * 2 * TILE;
        if (p.ranks != nullptr) {
            if constexpr (Kind::TURNED) {
                unturn_tile<DIM, KEYS>(stage);
                __syncthreads();
            }
            turn_tile<DIM, KEYS>(stage, p, slot, tile * KEYS, end);
            __syncthreads();
        }
        const int first_key = tile * KEYS + warp * 16;
        float s[2][4];
        dot_tile<DIM, 16>(s, q, stage + warp * 16 * STRIDE<DIM>);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int head = own.g + 8 * (i >> 1), key = first_key + 8 * j + 2 * own.t + (i & 1);
                s[j][i] = key < end ? p.scale.logit(s[j][i]) : -float_infinity();
                if (p.logits != nullptr && key < end && head < heads) {
                    p.logits[(size_t)(first_head + head) * p.stride + key] = s[j][i];
                }
                // Keys come in ascending order, so that the first of equal ones stays.
                if (s[j][i] > best[i >> 1]) {
                    best[i >> 1] = s[j][i];
                    best_key[i >> 1] = (uint32_t)key;
                }
            }
        }
        float shrink[2];
        running.take<16>(s, shrink);
#pragma unroll
        for (int j = 0; j < DIM / 8; ++j) {
            o[j][0] *= shrink[0];
            o[j][1] *= shrink[0];
            o[j][2] *= shrink[1];
            o[j][3] *= shrink[1];
        }
        add_tile<DIM, 16>(o, s, stage + TILE + warp * 16 * STRIDE<DIM>);
        __syncthreads();
        if (p.stages == 1 && tile + 1 < to) {
            begin_tile(tile + 1);
        }
    }

    // The warps' parts, in the memory of the tiles: [WARPS, 16, DIM] sums, [WARPS, 16] largest logits, sums of weights,
    // and slots of the largest logits.
    float* const sums = reinterpret_cast<float*>(memory);
    float* const largest = sums + WARPS * ROWS_OF_WARP * DIM;
    float* const weights = largest + WARPS * ROWS_OF_WARP;
    uint32_t* const slots = reinterpret_cast<uint32_t*>(weights + WARPS * ROWS_OF_WARP);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int head = own.g + 8 * r;
        const float total = running.total(r);
        first_best(best[r], best_key[r], 1);
        first_best(best[r], best_key[r], 2);
        if (own.t == 0) {
            largest[warp * ROWS_OF_WARP + head] = running.max[r];
            weights[warp * ROWS_OF_WARP + head] = total;
            slots[warp * ROWS_OF_WARP + head] = best_key[r];
        }
#pragma unroll
        for (int j = 0; j < DIM / 8; ++j) {
            float* const at = sums + (warp * ROWS_OF_WARP + head) * DIM + 8 * j + 2 * own.t;
            at[0] = o[j][2 * r];
            at[1] = o[j][2 * r + 1];
        }
    }
    __syncthreads();
    const size_t split = blockIdx.x;
    for (int i = threadIdx.x; i < heads * DIM; i += blockDim.x) {
        const int head = i / DIM, column = i % DIM;
        float base = -float_infinity();
        for (int w = 0; w < WARPS; ++w) {
            base = at_least(base, largest[w * ROWS_OF_WARP + head]);
        }
        const bool empty = base == -float_infinity();
        float sum = 0.0f, total = 0.0f;
        for (int w = 0; w < WARPS && !empty; ++w) {
            const float worth = fast_exp(largest[w * ROWS_OF_WARP + head] - base);
            sum += worth * sums[(w * ROWS_OF_WARP + head) * DIM + column];
            total += worth * weights[w * ROWS_OF_WARP + head];
        }
        p.parts[(split * p.q_heads + first_head + head) * DIM + column] = empty ? 0.0f : sum / total;
        if (column == 0) {
            p.part_sums[split * p.q_heads + first_head + head] = empty ? -float_infinity() : base + logf(total);
            uint32_t slot = 0xFFFFFFFFu;
            for (int w = 0; w < WARPS; ++w) {
                const int at = w * ROWS_OF_WARP + head;
                slot = largest[at] == base ? at_most(slot, slots[at]) : slot;
            }
            float* const part = p.part_best + (split * p.q_heads + first_head + head) * 2;
            part[0] = base;
            part[1] = float_of_bits(slot);
        }
    }
    add_up<DIM, Kind::TURNED>(p, memory, first_head, heads);
}

// Turns logits into probabilities, for methods that need them.
struct Probabilities {
    float* logits;             // [q_heads, stride]
    const float* log_sum_exp;  // [q_heads]
    const uint32_t* rows;      // [kv_heads]
    uint32_t q_heads, kv_heads, stride;
};

// block: 256 rows of one query head
KEPT_KERNEL(256, probabilities, Probabilities) {
    const uint32_t head = blockIdx.y, row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < p.rows[head / (p.q_heads / p.kv_heads)]) {
        float* const logit = p.logits + (size_t)head * p.stride + row;
        *logit = fast_exp(*logit - p.log_sum_exp[head]);
    }
}

#define KEPT_DECODE(DIM, KEYS, BLOCKS)                                                                                   \
    KEPT_KERNEL_OF(128, BLOCKS, decode_attention_f16_##DIM, DecodeAttention) { decode_attention<DIM, KEYS, F16>(p); }    \
    KEPT_KERNEL_OF(128, BLOCKS, decode_attention_q8_0_##DIM, DecodeAttention) { decode_attention<DIM, KEYS, Q8>(p); }    \
    KEPT_KERNEL_OF(128, BLOCKS, decode_attention_q4_0_##DIM, DecodeAttention) { decode_attention<DIM, KEYS, Q4>(p); }

KEPT_DECODE(64, 64, 4)
KEPT_DECODE(80, 64, 3)
KEPT_DECODE(96, 64, 3)
KEPT_DECODE(128, 64, 3)
KEPT_DECODE(256, 32, 2)
