//! Counts allocations with this program's global allocator. The count covers all threads, so a single test runs all
//! checks in sequence.

mod decode;
mod methods;

use kept_engine::kernels::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn allocations_are_those_that_were_counted_before() {
    decode::an_answer_allocates_nothing_whatever_the_type_of_its_rows();
    methods::a_method_holds_what_it_says();
}
