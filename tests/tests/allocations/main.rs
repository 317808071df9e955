//! What is allocated, counted by the allocator of this program. The count is of all threads, so there is one test, which checks one thing after
//! the other.

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
