//! An allocator that counts, so that programs can say how often a loop allocates, and tests how much something holds. Adds two
//! relaxed additions to the system's. Memory that the system refuses ends the program with a sentence and the code 1, not with a
//! signal; where a refusal can be handled, [`may_be_refused`] hears of it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How the sentence begins by which a program ends that the system refuses memory.
pub const REFUSED: &str = "the system refuses";

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static HELD: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static HANDLED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `ask`, in which allocations of this thread may be refused: whoever makes them hears of it (`Vec::try_reserve` and the like).
pub fn may_be_refused<T>(ask: impl FnOnce() -> T) -> T {
    let before = HANDLED.replace(true);
    let asked = ask();
    HANDLED.set(before);
    asked
}

/// What the system gave; without memory the end of the program, unless somebody handles that.
fn granted(place: *mut u8, bytes: usize) -> *mut u8 {
    if place.is_null() && !HANDLED.try_with(Cell::get).unwrap_or(false) {
        // Nothing here may allocate: standard error has no buffer of its own.
        let _ = writeln!(
            std::io::stderr(),
            "error: {REFUSED} {bytes} more bytes of memory; close other programs, or set a smaller --budget or --memory"
        );
        std::process::exit(1);
    }
    place
}

/// The system's allocator, counting. A program opts in with `#[global_allocator]`.
pub struct CountingAllocator;

/// Allocations and reallocations so far, by all threads; always 0 in programs that did not opt in.
pub fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// [`allocations`], as soon as nobody has allocated for a twentieth of a second: threads that were just started, of a test harness
/// or for a signal, allocate when the system first lets them run. Waits ten seconds at most.
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

/// Bytes that are allocated now and were not given back, by all threads; always 0 in programs that did not opt in.
pub fn allocated_bytes() -> usize {
    HELD.load(Ordering::Relaxed)
}

fn taken(bytes: usize) {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    HELD.fetch_add(bytes, Ordering::Relaxed);
}

fn given_back(bytes: usize) {
    HELD.fetch_sub(bytes, Ordering::Relaxed);
}

// SAFETY: every call is passed on to the system's allocator unchanged; what it refuses is refused, or the program ends.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        granted(unsafe { System.alloc(layout) }, layout.size())
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: as above.
        granted(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }
    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        taken(size);
        given_back(layout.size());
        // SAFETY: as above.
        granted(unsafe { System.realloc(place, layout, size) }, size)
    }
    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        given_back(layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }
}
