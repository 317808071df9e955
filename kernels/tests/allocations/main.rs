//! Attention allocates nothing, counted by this program's allocator. The counter covers all threads, so there is a
//! single test, which runs its checks one after the other.

mod classes;
mod decode;
#[path = "../kernels/support.rs"]
#[allow(dead_code, reason = "shared with the other tests")]
mod support;

use kept_kernels::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn attention_allocates_nothing() {
    decode::decode_attention_allocates_nothing();
    classes::attention_over_classes_allocates_nothing();
}
