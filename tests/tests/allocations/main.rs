//! Counts allocations with this program's global allocator. The count covers all threads, so a single test runs all
//! checks in sequence.

mod decode;
mod methods;

use kept_engine::kernels::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn decode_allocates_nothing_and_methods_what_they_declare() {
    decode::decode_allocates_nothing_with_any_cache_type();
    decode::decode_of_latent_attention_allocates_nothing();
    methods::methods_hold_the_bytes_they_declare();
}
