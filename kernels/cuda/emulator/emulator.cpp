// See emulator.h.

#include "emulator.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace emulator {

thread_local Place* place = nullptr;
thread_local unsigned char* shared = nullptr;

namespace {

constexpr size_t STACK = 256 << 10;
constexpr size_t LARGEST_EXCHANGE = 64;
constexpr unsigned LANES = 32;

enum class State { Ready, AtBlock, AtWarp, Ended };

#if defined(__x86_64__)
// Saves the callee-saved registers and, last, the stack pointer; then resumes the other fibre.
extern "C" void kept_switch_fibre(void** save, void* to);
asm(R"(
.text
.globl kept_switch_fibre
.type kept_switch_fibre, @function
kept_switch_fibre:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size kept_switch_fibre, .-kept_switch_fibre
)");
using Context = void*;
#else
using Context = ucontext_t;
#endif

struct Fibre {
    Place place;
    State state;
    Context context;
    std::unique_ptr<unsigned char[]> stack;
};

// Exchange buffers of a warp. Two, because a lane may write for the next exchange while another still reads the last
// one.
struct Warp {
    unsigned char given[2][LANES][LARGEST_EXCHANGE];
    size_t bytes;
    unsigned exchanges[LANES];
};

// The running block.
struct Block {
    void (*kernel)(const void*);
    const void* parameters;
    unsigned threads;
    // At least `threads`: fibres keep their stacks from launch to launch.
    std::vector<Fibre> fibres;
    std::vector<Warp> warps;
    Context scheduler;
    unsigned current;
};

thread_local Block block;

void to_scheduler() {
    Fibre& own = block.fibres[block.current];
#if defined(__x86_64__)
    kept_switch_fibre(&own.context, block.scheduler);
#else
    swapcontext(&own.context, &block.scheduler);
#endif
}

void to_fibre(unsigned index) {
    block.current = index;
    Fibre& fibre = block.fibres[index];
    place = &fibre.place;
#if defined(__x86_64__)
    kept_switch_fibre(&block.scheduler, fibre.context);
#else
    swapcontext(&block.scheduler, &fibre.context);
#endif
}

void fibre_main() {
    block.kernel(block.parameters);
    block.fibres[block.current].state = State::Ended;
    to_scheduler();
    std::abort();  // an ended fibre is never resumed
}

void prepare(Fibre& fibre) {
    if (!fibre.stack) {
        fibre.stack.reset(new unsigned char[STACK]);  // not filled with zeros
    }
    fibre.state = State::Ready;
#if defined(__x86_64__)
    // Initial stack as if fibre_main's caller had called the switch: six registers below a return address, and the
    // alignment of a call.
    uintptr_t top = ((uintptr_t)fibre.stack.get() + STACK) & ~(uintptr_t)15;
    void** frame = (void**)(top - 16);
    frame[0] = (void*)fibre_main;
    frame[1] = nullptr;
    for (int i = 1; i <= 6; ++i) {
        frame[-i] = nullptr;
    }
    fibre.context = frame - 6;
#else
    getcontext(&fibre.context);
    fibre.context.uc_stack.ss_sp = fibre.stack.get();
    fibre.context.uc_stack.ss_size = STACK;
    fibre.context.uc_link = nullptr;
    makecontext(&fibre.context, fibre_main, 0);
#endif
}

const char* run_block() {
    const unsigned threads = block.threads;
    for (unsigned i = 0; i < threads; ++i) {
        prepare(block.fibres[i]);
    }
    for (Warp& warp : block.warps) {
        std::memset(warp.exchanges, 0, sizeof(warp.exchanges));
    }
    for (;;) {
        bool moved = false;
        for (unsigned i = 0; i < threads; ++i) {
            if (block.fibres[i].state == State::Ready) {
                to_fibre(i);
                moved = true;
            }
        }
        unsigned at_block = 0, ended = 0;
        for (unsigned first = 0; first < threads; first += LANES) {
            unsigned at_warp = 0;
            for (unsigned i = first; i < first + LANES; ++i) {
                at_warp += block.fibres[i].state == State::AtWarp;
                at_block += block.fibres[i].state == State::AtBlock;
                ended += block.fibres[i].state == State::Ended;
            }
            if (at_warp == LANES) {
                for (unsigned i = first; i < first + LANES; ++i) {
                    block.fibres[i].state = State::Ready;
                }
                moved = true;
            }
        }
        if (ended == threads) {
            return nullptr;
        }
        if (at_block == threads) {
            for (unsigned i = 0; i < threads; ++i) {
                block.fibres[i].state = State::Ready;
            }
            continue;
        }
        if (!moved) {
            return "threads wait for each other: not all of a block reached its barrier, or not all of a warp its exchange";
        }
    }
}

}  // namespace

void block_barrier() {
    block.fibres[block.current].state = State::AtBlock;
    to_scheduler();
}

void warp_exchange(const void* mine, size_t bytes, void* all) {
    if (bytes > LARGEST_EXCHANGE) {
        std::abort();
    }
    const unsigned lane = block.current % LANES;
    Warp& warp = block.warps[block.current / LANES];
    auto& given = warp.given[warp.exchanges[lane]++ % 2];
    std::memcpy(given[lane], mine, bytes);
    block.fibres[block.current].state = State::AtWarp;
    to_scheduler();
    for (unsigned i = 0; i < LANES; ++i) {
        std::memcpy((unsigned char*)all + i * bytes, given[i], bytes);
    }
}

const char* run(void (*kernel)(const void*), const void* parameters, Index grid, Index size, size_t shared_bytes) {
    const size_t threads = (size_t)size.x * size.y * size.z;
    if (threads == 0 || threads > 1024 || threads % LANES != 0) {
        return "a block has between 32 and 1024 threads, in whole warps";
    }
    block.kernel = kernel;
    block.parameters = parameters;
    block.threads = (unsigned)threads;
    if (block.fibres.size() < threads) {
        block.fibres.resize(threads);
    }
    block.warps.resize(threads / LANES);
    std::vector<uint32_t> memory(shared_bytes / 4 + 8);
    shared = (unsigned char*)(((uintptr_t)memory.data() + 15) & ~(uintptr_t)15);
    for (unsigned z = 0; z < grid.z; ++z) {
        for (unsigned y = 0; y < grid.y; ++y) {
            for (unsigned x = 0; x < grid.x; ++x) {
                for (uint32_t& word : memory) {
                    word = 0x7FFF7FFFu;  // NaN, as f32 and as two halves
                }
                for (unsigned i = 0; i < threads; ++i) {
                    const Index thread = {i % size.x, i / size.x % size.y, i / size.x / size.y};
                    block.fibres[i].place = {thread, {x, y, z}, size, grid};
                }
                if (const char* wrong = run_block()) {
                    return wrong;
                }
                const unsigned char* end = shared + shared_bytes;
                for (size_t i = 0; i + 4 <= sizeof(uint32_t) * 4 && end + i + 4 <= (unsigned char*)(memory.data() + memory.size()); i += 4) {
                    uint32_t word;
                    std::memcpy(&word, end + i, 4);
                    if (word != 0x7FFF7FFFu) {
                        return "a thread wrote behind the block's shared memory";
                    }
                }
            }
        }
    }
    return nullptr;
}

}  // namespace emulator
