//! An allocator that counts: programs report how often a loop allocates, tests how much memory a value holds. It adds
//! two relaxed atomic additions to each call of the system's allocator. If the system refuses memory, the program exits
//! with a message and the code [`OUT_OF_MEMORY`] instead of a signal; inside [`may_be_refused`] the refusal is returned
//! to the code that allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Exit code of a program whose allocator was refused memory.
pub const OUT_OF_MEMORY: i32 = 72;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static HELD: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static HANDLED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `ask`; while it runs, refused allocations of this thread are returned to the caller (`Vec::try_reserve` and the
/// like) instead of ending the program.
pub fn may_be_refused<T>(ask: impl FnOnce() -> T) -> T {
    let before = HANDLED.replace(true);
    let asked = ask();
    HANDLED.set(before);
    asked
}

/// Returns the pages of freed allocations to the system, where its allocator (glibc's) keeps them.
pub fn return_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn malloc_trim(kept: usize) -> i32;
        }
        // SAFETY: the function of glibc touches no allocation in use, and may be called from any thread.
        unsafe {
            malloc_trim(0);
        }
    }
}

/// Returns the system's result; exits the program if it is null, unless inside [`may_be_refused`].
fn check_granted(place: *mut u8, bytes: usize) -> *mut u8 {
    if place.is_null() && !HANDLED.try_with(Cell::get).unwrap_or(false) {
        // Must not allocate: standard error is unbuffered.
        let _ = writeln!(
            std::io::stderr(),
            "error: the system refuses {bytes} more bytes of memory; close other programs, or set a smaller budget or a memory limit"
        );
        std::process::exit(OUT_OF_MEMORY);
    }
    place
}

/// The system's allocator with counters. A program opts in with `#[global_allocator]`.
pub struct CountingAllocator;

/// Allocations and reallocations so far, over all threads; always 0 in programs that did not opt in.
pub fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// [`allocations`], once no thread has allocated for 50 ms: a thread that was just started (by a test harness, or for a
/// signal) allocates when the system first schedules it. Waits at most ten seconds.
pub fn settled_allocations() -> u64 {
    let begun = Instant::now();
    loop {
        let before = allocations();
        std::thread::sleep(Duration::from_millis(50));
        if allocations() == before || begun.elapsed().as_secs() >= 10 {
            return allocations();
        }
    }
}

/// Bytes currently allocated, over all threads; always 0 in programs that did not opt in.
pub fn allocated_bytes() -> usize {
    HELD.load(Ordering::Relaxed)
}

fn count_allocated(bytes: usize) {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    HELD.fetch_add(bytes, Ordering::Relaxed);
}

fn count_freed(bytes: usize) {
    HELD.fetch_sub(bytes, Ordering::Relaxed);
}

// SAFETY: every call is forwarded unchanged to the system's allocator; a null result is returned, or the program exits.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_allocated(layout.size());
        // SAFETY: the caller upholds the contract of `alloc`.
        check_granted(unsafe { System.alloc(layout) }, layout.size())
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count_allocated(layout.size());
        // SAFETY: as above.
        check_granted(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }
    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count_allocated(size);
        count_freed(layout.size());
        // SAFETY: as above.
        check_granted(unsafe { System.realloc(place, layout, size) }, size)
    }
    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count_freed(layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }
}
