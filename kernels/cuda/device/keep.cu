// Copies rows into the compact KV cache: gathers them by position, undoes RoPE where positions are re-assigned, applies
// the Hadamard rotation for q4_0, and stores them in the cache's type (store.cuh).
//
//   operations  3 per element whose RoPE is undone, log2(DIM) per Hadamard-rotated element
//   bytes       each kept row read once (2 * DIM) and written once
#include "store.cuh"

struct Keep {
    const half_t* source;       // [heads, capacity, dim]
    const uint32_t* positions;  // [slots]: source row of each slot, with `heads` runs one after another
    const uint32_t* targets;    // [slots] or null: target row, in `wide` from `narrow` on; null: row == slot
    const uint32_t* heads;      // [slots] or null: head of each source row; null: the first head
    const float* cos;           // [positions, rope_dim / 2] or null
    const float* sin;
    void* numbers;              // [narrow, bytes of a row]
    half_t* scales;             // [narrow, scales of a row]
    half_t* wide;               // [.., dim]: f16 rows of a q8_0 or q4_0 cache
    uint32_t slots, capacity, dim, rope_dim;
    uint32_t neighbours;
    uint32_t narrow;            // number of rows in `numbers`
    uint32_t turned;            // nonzero: source rows are Hadamard-rotated already
    uint32_t kind;              // 0 f16, 1 q8_0, 2 q4_0
};

// block: 4 slots, a warp each
KEPT_KERNEL(128, keep, Keep) {
    KEPT_SHARED(memory);
    const uint32_t warp = threadIdx.x / LANES, lane = threadIdx.x % LANES, slot = blockIdx.x * 4 + warp;
    float* const x = reinterpret_cast<float*>(memory) + warp * p.dim;  // [dim]
    if (slot >= p.slots) {
        return;
    }
    const size_t position = p.positions[slot], target = p.targets != nullptr ? p.targets[slot] : slot;
    const size_t head = p.heads != nullptr ? p.heads[slot] : 0;
    const half_t* const row = p.source + (head * p.capacity + position) * p.dim;
    for (uint32_t i = lane; i < p.dim; i += LANES) {
        x[i] = to_float(row[i]);
    }
    warp_barrier();
    if (p.cos != nullptr) {
        const uint32_t columns = p.rope_dim / 2;
        for (uint32_t i = lane; i < columns; i += LANES) {
            const uint32_t first = p.neighbours ? 2 * i : i, second = p.neighbours ? 2 * i + 1 : i + columns;
            const float a = x[first], b = x[second], c = p.cos[position * columns + i], s = p.sin[position * columns + i];
            x[first] = product(a, c) + product(b, s);
            x[second] = product(b, c) - product(a, s);
        }
        warp_barrier();
    }
    store_row({p.numbers, p.scales, p.wide}, p.kind, p.narrow, target, x, p.dim, p.turned != 0, lane);
}
