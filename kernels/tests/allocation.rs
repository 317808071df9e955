//! Decode attention allocates nothing: alone in its binary, because it counts what every thread allocates.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use kept_kernels::{DecodeAttention, DecodeScratch, Pairing, Rotation, decode_attention};
use support::{Random, shape};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes every call on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn decode_attention_allocates_nothing() {
    let mut random = Random::fresh();
    let (shape, rows) = (shape(2, 4, 64), [2000, 700]);
    let query = random.normal(shape.q_heads * 64);
    let (keys, values) = (random.store(&rows, 64), random.store(&rows, 64));
    let (cos, sin) = random.angles(10, 32);
    let ranks = vec![3; 2700];
    let rotation = Rotation {
        cos: &cos,
        sin: &sin,
        rope_dim: 64,
        pairing: Pairing::Halves,
        ranks: &ranks,
    };
    let mut scratch = DecodeScratch::new(shape, 2000, 2);
    let mut out = vec![0.0; query.len()];
    let mut run = |rotation, rows: [usize; 2]| {
        let task = DecodeAttention {
            shape,
            scale: 0.2.into(),
            query: &query,
            keys: &keys,
            values: &values,
            rows: &rows,
            rotation,
        };
        decode_attention(&task, &mut scratch, &mut out);
    };
    run(None, rows); // starts the pool
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for step in 0..20 {
        run(None, rows);
        run(Some(rotation), [1 + step, 700]);
    }
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0);
}
