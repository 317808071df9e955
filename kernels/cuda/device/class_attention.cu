// Decode attention of one new token over classes: rows of keys and values that several tokens share. Rows are not
// expanded: an entry's logit is its class's dot product times the norm of the entry's own key, and the weight of a
// class's value is the sum of its entries' probabilities.
//
//   logits      a warp for each entry and KV head: reads the class's key once for all heads of the group
//   mass        one block a query head; adds probabilities as integer multiples of 2^-40, so that the result does not
//               depend on the order
//   values      a block for each query head and split of the classes
//   operations  2 * (entries + classes) * DIM a query head, an exponential an entry
//   bytes       entries * 2 * DIM + classes * 2 * DIM a KV head; the values once more for every further head of the
//               group, from the L2 cache
#include "device.cuh"

struct ClassAttention {
    const half_t* queries;       // [q_heads, dim]
    const half_t* keys;          // [slots, dim]: directions of the classes' keys
    const half_t* values;        // [slots, dim]
    const uint32_t* first_rows;  // [kv_heads]: first slot of each head
    const uint32_t* rows;        // [kv_heads]: classes of each head
    const uint32_t* classes;     // [kv_heads, capacity]: class of each entry
    const float* lengths;        // [kv_heads, capacity]: each entry's factor on its class's key
    const uint32_t* entries;     // [kv_heads]
    const float* cos;            // [ranks, rope_dim / 2] or null; the rank of an entry is its index
    const float* sin;
    float* logits;               // [q_heads, stride]: logits, then probabilities
    unsigned long long* mass;    // [q_heads, max_rows]
    float* parts;                // [splits, q_heads, dim]
    float* out;                  // [q_heads, dim]
    float* best;                 // [q_heads, 2]: largest probability, and its entry as a number
    uint32_t q_heads, kv_heads, dim, capacity, stride, max_rows, rope_dim, neighbours, splits;
    float factor, cap;
};

// block: 4 entries of one KV head, a warp each
KEPT_KERNEL(128, class_logits, ClassAttention) {
    const uint32_t lane = threadIdx.x % LANES, kv_head = blockIdx.y, group = p.q_heads / p.kv_heads;
    const uint32_t entry = blockIdx.x * 4 + threadIdx.x / LANES;
    if (entry >= p.entries[kv_head]) {
        return;
    }
    const size_t at = (size_t)kv_head * p.capacity + entry;
    const half_t* const key = p.keys + ((size_t)p.first_rows[kv_head] + p.classes[at]) * p.dim;
    const uint32_t columns = p.cos != nullptr ? p.rope_dim / 2 : 0;
    for (uint32_t g = 0; g < group; ++g) {
        const uint32_t head = kv_head * group + g;
        const half_t* const query = p.queries + (size_t)head * p.dim;
        float dot = 0.0f;
        for (uint32_t i = lane; i < columns; i += LANES) {
            const uint32_t first = p.neighbours ? 2 * i : i, second = p.neighbours ? 2 * i + 1 : i + columns;
            const float a = to_float(key[first]), b = to_float(key[second]);
            const float c = p.cos[(size_t)entry * columns + i], s = p.sin[(size_t)entry * columns + i];
            dot += (a * c - b * s) * to_float(query[first]) + (a * s + b * c) * to_float(query[second]);
        }
        for (uint32_t i = 2 * columns + lane; i < p.dim; i += LANES) {
            dot += to_float(key[i]) * to_float(query[i]);
        }
        dot = warp_sum(dot);
        if (lane == 0) {
            const float logit = dot * p.factor * p.lengths[at];
            p.logits[(size_t)head * p.stride + entry] = p.cap > 0.0f ? p.cap * tanhf(logit / p.cap) : logit;
        }
    }
}

// block: one query head
KEPT_KERNEL(256, class_mass, ClassAttention) {
    KEPT_SHARED(memory);
    float* const of_warps = reinterpret_cast<float*>(memory);  // [2, warps]
    uint32_t* const entry_of = reinterpret_cast<uint32_t*>(of_warps + 2 * blockDim.x / LANES);  // [warps]
    const uint32_t head = blockIdx.x, kv_head = head / (p.q_heads / p.kv_heads), entries = p.entries[kv_head];
    const uint32_t warp = threadIdx.x / LANES, warps = blockDim.x / LANES;
    float* const logits = p.logits + (size_t)head * p.stride;
    unsigned long long* const mass = p.mass + (size_t)head * p.max_rows;
    for (uint32_t i = threadIdx.x; i < p.rows[kv_head]; i += blockDim.x) {
        mass[i] = 0;
    }
    float largest = -float_infinity();
    for (uint32_t i = threadIdx.x; i < entries; i += blockDim.x) {
        largest = at_least(largest, logits[i]);
    }
    largest = warp_max(largest);
    if (threadIdx.x % LANES == 0) {
        of_warps[warp] = largest;
    }
    __syncthreads();
    for (uint32_t w = 0; w < warps; ++w) {
        largest = at_least(largest, of_warps[w]);
    }
    float sum = 0.0f;
    // The first entry with the largest logit.
    uint32_t entry = 0xFFFFFFFFu;
    for (uint32_t i = threadIdx.x; i < entries; i += blockDim.x) {
        entry = logits[i] == largest ? at_most(entry, i) : entry;
        logits[i] = fast_exp(logits[i] - largest);
        sum += logits[i];
    }
    sum = warp_sum(sum);
    for (int mask = 16; mask > 0; mask >>= 1) {
        entry = at_most(entry, shuffle_xor(entry, mask));
    }
    if (threadIdx.x % LANES == 0) {
        of_warps[warps + warp] = sum;
        entry_of[warp] = entry;
    }
    __syncthreads();
    float total = 0.0f;
    for (uint32_t w = 0; w < warps; ++w) {
        total += of_warps[warps + w];
        entry = at_most(entry, entry_of[w]);
    }
    if (threadIdx.x == 0) {
        p.best[2 * head] = 1.0f / total;
        p.best[2 * head + 1] = (float)entry;
    }
    for (uint32_t i = threadIdx.x; i < entries; i += blockDim.x) {
        const float probability = logits[i] / total;
        logits[i] = probability;
        add_whole(mass + p.classes[(size_t)kv_head * p.capacity + i], (unsigned long long)(probability * 1099511627776.0f));
    }
}

// block: a split of the classes of one query head; grid: (splits, q_heads)
KEPT_KERNEL(256, class_values, ClassAttention) {
    const uint32_t head = blockIdx.y, kv_head = head / (p.q_heads / p.kv_heads), rows = p.rows[kv_head];
    const uint32_t from = (uint32_t)((unsigned long long)rows * blockIdx.x / gridDim.x);
    const uint32_t to = (uint32_t)((unsigned long long)rows * (blockIdx.x + 1) / gridDim.x);
    const unsigned long long* const mass = p.mass + (size_t)head * p.max_rows;
    const half_t* const values = p.values + (size_t)p.first_rows[kv_head] * p.dim;
    for (uint32_t i = threadIdx.x; i < p.dim; i += blockDim.x) {
        float sum = 0.0f;
        for (uint32_t row = from; row < to; ++row) {
            sum += (float)mass[row] * (1.0f / 1099511627776.0f) * to_float(values[(size_t)row * p.dim + i]);
        }
        p.parts[((size_t)blockIdx.x * p.q_heads + head) * p.dim + i] = sum;
    }
}

// block: one query head
KEPT_KERNEL(256, class_sum, ClassAttention) {
    const uint32_t head = blockIdx.x;
    for (uint32_t i = threadIdx.x; i < p.dim; i += blockDim.x) {
        float sum = 0.0f;
        for (uint32_t s = 0; s < p.splits; ++s) {
            sum += p.parts[((size_t)s * p.q_heads + head) * p.dim + i];
        }
        p.out[(size_t)head * p.dim + i] = sum;
    }
}
