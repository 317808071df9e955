//! A thread pool for one piece of work at a time that never waits for a thread that has not started.
//!
//! It serves the many short products of decoding. Work is a number of items; each active thread takes the next few
//! items until none are left. The caller takes part, and closes the work when the items run out: a worker that the
//! operating system has not scheduled yet finds the work closed and parks again. So on a busy machine the caller does
//! all items alone, at the speed of one thread, where a barrier would wait a time slice for each worker that lost its
//! core.
//!
//! ```text
//! state   generation (32 bits) | closed (1 bit) | active workers (31 bits)
//!
//! caller  writes the job, state = (g + 1 | open | 0) ... takes items ... sets closed ... waits for active == 0
//! worker  sees a new generation, open: active + 1 by compare-and-swap, takes items, active - 1
//! worker  sees closed: too late, nothing to do
//! ```
//!
//! Nothing is allocated after the threads have started. The pool is not a scheduler: it serves one caller at a time,
//! other callers wait, and nested work runs on the thread that submits it.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::hint::spin_loop;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::Thread;

/// Polls of the state before a worker parks: about a tenth of a millisecond, longer than the pause between two products
/// during decode.
const SPINS_BEFORE_PARK: u32 = 2_000;
/// Polls of the state before the caller, waiting for active workers, yields its core.
const SPINS_BEFORE_YIELD: u32 = 1_000;
/// Chunks of items per thread: few enough to keep the overhead low, enough for a late thread to take a smaller share.
const CHUNKS_PER_THREAD: usize = 8;

const CLOSED: u64 = 1 << 31;
const INSIDE: u64 = CLOSED - 1;

/// The current work, as the caller submitted it.
struct Job {
    /// Calls the closure at `data` with a range of items.
    run: unsafe fn(*const (), Range<usize>),
    data: *const (),
    items: usize,
    /// Items of a chunk.
    chunk: usize,
}

/// A value on its own cache line, because threads write it constantly.
#[repr(align(64))]
struct CacheAligned<T>(T);

struct Shared {
    /// See the diagram at the top.
    state: CacheAligned<AtomicU64>,
    /// The first item that no thread has taken.
    next: CacheAligned<AtomicUsize>,
    /// Written by the caller while the state is closed and no worker is active; read by active workers.
    job: UnsafeCell<Job>,
    /// `[workers]`: whether each worker is parked, or about to park.
    parked: Vec<CacheAligned<AtomicBool>>,
    /// `[workers]`; set once all threads have started.
    threads: OnceLock<Vec<Thread>>,
    /// Workers that have reached their wait loop: starting a thread allocates, waiting does not.
    begun: AtomicUsize,
    /// Payload of a worker's panic.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is the only field that is not Sync by itself. Only the caller that holds `Pool::caller` writes it,
// while the state is closed and the active count is 0. Only active workers and that caller read it: a worker becomes
// active by an acquiring compare-and-swap on the state that the caller released after writing, and the caller acquires
// `active == 0` before it writes again.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is used only while `Pool::for_each_range` borrows the closure behind it.
unsafe impl Send for Shared {}

/// Threads that wait for work.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    /// Held by the current caller.
    caller: Mutex<()>,
}

thread_local! {
    /// Whether this thread is running items of a pool; nested work then runs inline.
    static AT_WORK: Cell<bool> = const { Cell::new(false) };
}

/// Calls the closure of type `F` at address `data`.
///
/// # Safety
/// `data` must point to a live `F`.
unsafe fn call<F: Fn(Range<usize>)>(data: *const (), items: Range<usize>) {
    // SAFETY: guaranteed by the caller.
    unsafe { (*data.cast::<F>())(items) }
}

impl Pool {
    /// A pool of `threads` threads, including the calling thread.
    pub(crate) fn new(threads: usize) -> Self {
        let workers = threads.saturating_sub(1);
        let nothing = Job {
            run: call::<fn(Range<usize>)>,
            data: std::ptr::null(),
            items: 0,
            chunk: 1,
        };
        let shared = Arc::new(Shared {
            state: CacheAligned(AtomicU64::new(CLOSED)),
            next: CacheAligned(AtomicUsize::new(0)),
            job: UnsafeCell::new(nothing),
            parked: (0..workers)
                .map(|_| CacheAligned(AtomicBool::new(false)))
                .collect(),
            threads: OnceLock::new(),
            begun: AtomicUsize::new(0),
            panic: Mutex::new(None),
        });
        let started = (0..workers).map_while(|index| {
            let shared = Arc::clone(&shared);
            let name = format!("kept-{}", index + 1);
            // If the system refuses to start a thread, the pool is smaller.
            let spawned = std::thread::Builder::new()
                .name(name)
                .spawn(move || shared.work(index));
            Some(spawned.ok()?.thread().clone())
        });
        let started: Vec<Thread> = started.collect();
        while shared.begun.load(Ordering::Acquire) < started.len() {
            std::thread::yield_now();
        }
        shared
            .threads
            .set(started)
            .unwrap_or_else(|_| unreachable!("only this function sets it"));
        Self {
            shared,
            caller: Mutex::new(()),
        }
    }

    /// Number of threads that compute, including the calling thread.
    pub(crate) fn threads(&self) -> usize {
        self.shared.threads.get().map_or(0, Vec::len) + 1
    }

    /// Runs `work` over `0..items` in ranges that threads take in ascending order; returns when all are done.
    ///
    /// # Panics
    /// If `work` panics on any thread, with the same payload.
    pub(crate) fn for_each_range<F: Fn(Range<usize>) + Sync>(&self, items: usize, work: F) {
        let threads = self.shared.threads.get().map_or(&[][..], Vec::as_slice);
        if items == 0 {
            return;
        }
        if items == 1 || threads.is_empty() || AT_WORK.get() {
            return work(0..items);
        }
        let _caller = self.caller.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        // SAFETY: this thread is the only caller, and `finish` below left the previous work closed without active
        // workers.
        unsafe {
            *shared.job.get() = Job {
                run: call::<F>,
                data: (&raw const work).cast(),
                items,
                chunk: items.div_ceil((threads.len() + 1) * CHUNKS_PER_THREAD),
            };
        }
        shared.next.0.store(0, Ordering::Relaxed);
        let state = shared.state.0.load(Ordering::Relaxed);
        let opened = ((state >> 32).wrapping_add(1) & u64::from(u32::MAX)) << 32;
        // Sequentially consistent with the load of `parked` below, and with the store and load of a worker before it
        // parks: either the caller sees `parked`, or the worker sees the new state.
        shared.state.0.store(opened, Ordering::SeqCst);
        for (parked, thread) in shared.parked.iter().zip(threads).take(items - 1) {
            if parked.0.load(Ordering::SeqCst) {
                thread.unpark();
            }
        }
        let mine = catch_unwind(AssertUnwindSafe(|| shared.take_items()));
        // All items are taken, or `work` panicked. Close the work so that no worker joins, and wait for active workers:
        // `work` and its borrows end with this call.
        if mine.is_err() {
            shared.next.0.store(items, Ordering::Relaxed);
        }
        shared.finish();
        // Also if this thread panicked: the next work begins without a panic.
        let theirs = shared
            .panic
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(payload) = mine.err().or(theirs) {
            resume_unwind(payload);
        }
    }
}

impl Shared {
    /// Takes items until none are left. Only for active workers and the caller.
    fn take_items(&self) {
        // SAFETY: this thread is an active worker or the caller, so no thread is writing the job.
        let job = unsafe { &*self.job.get() };
        AT_WORK.set(true);
        let done = AtWork;
        loop {
            let first = self.next.0.fetch_add(job.chunk, Ordering::Relaxed);
            if first >= job.items {
                break;
            }
            let items = first..(first + job.chunk).min(job.items);
            // SAFETY: the closure lives until the caller has seen all workers leave.
            unsafe { (job.run)(job.data, items) };
        }
        drop(done);
    }

    /// Closes the work and waits until no worker is active.
    fn finish(&self) {
        let mut state = self.state.0.fetch_or(CLOSED, Ordering::Acquire);
        let mut looks = 0;
        while state & INSIDE != 0 {
            looks += 1;
            match looks < SPINS_BEFORE_YIELD {
                true => spin_loop(),
                // The active worker may be waiting for this core.
                false => std::thread::yield_now(),
            }
            state = self.state.0.load(Ordering::Acquire);
        }
    }

    /// The main loop of a worker; never returns.
    fn work(&self, index: usize) {
        self.begun.fetch_add(1, Ordering::Release);
        let mut last = 0;
        let mut looks = 0;
        loop {
            let state = self.state.0.load(Ordering::SeqCst);
            let generation = state >> 32;
            if generation == last || state & CLOSED != 0 {
                looks += 1;
                if looks < SPINS_BEFORE_PARK {
                    spin_loop();
                } else {
                    self.park(index, last);
                    looks = 0;
                }
                continue;
            }
            let went_inside = self.state.0.compare_exchange(
                state,
                state + 1,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            if went_inside.is_err() {
                continue;
            }
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| self.take_items())) {
                let mut place = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
                place.get_or_insert(payload);
            }
            self.state.0.fetch_sub(1, Ordering::Release);
            last = generation;
            looks = 0;
        }
    }

    /// Parks until the caller submits work; a spurious wake-up is harmless.
    fn park(&self, index: usize, last: u64) {
        self.parked[index].0.store(true, Ordering::SeqCst);
        let state = self.state.0.load(Ordering::SeqCst);
        if state >> 32 == last || state & CLOSED != 0 {
            std::thread::park();
        }
        self.parked[index].0.store(false, Ordering::SeqCst);
    }
}

/// Clears [`AT_WORK`] when dropped, also if work panics.
struct AtWork;

impl Drop for AtWork {
    fn drop(&mut self) {
        AT_WORK.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs items on the pool and counts how often each item ran.
    fn counts(pool: &Pool, items: usize) -> Vec<usize> {
        let counts: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
        pool.for_each_range(items, |range| {
            for item in range {
                counts[item].fetch_add(1, Ordering::Relaxed);
            }
        });
        counts.into_iter().map(AtomicUsize::into_inner).collect()
    }

    #[test]
    fn every_item_is_done_once_whatever_the_number_of_threads() {
        for threads in [1, 2, 3, 8, 17] {
            let pool = Pool::new(threads);
            assert_eq!(pool.threads(), threads);
            for items in [0, 1, 2, 3, 7, 8, 64, 65, 1000] {
                assert!(
                    counts(&pool, items).iter().all(|&count| count == 1),
                    "{items}"
                );
            }
        }
    }

    #[test]
    fn work_follows_work_without_mixing_them_up() {
        let pool = Pool::new(4);
        // Each round writes into its own vector, which is dropped afterwards; a late worker still running the previous
        // round would write into freed memory or leave a hole in the counts.
        for round in 0..20_000 {
            let items = 1 + round % 37;
            assert_eq!(counts(&pool, items), vec![1; items], "round {round}");
        }
    }

    #[test]
    fn sleeping_workers_wake_up() {
        let pool = Pool::new(3);
        for _ in 0..20 {
            std::thread::sleep(std::time::Duration::from_millis(3));
            let inside = AtomicUsize::new(0);
            let begun = std::time::Instant::now();
            pool.for_each_range(3, |_| {
                inside.fetch_add(1, Ordering::SeqCst);
                // The first thread waits for a second one, which even a busy machine must schedule within a minute.
                while inside.load(Ordering::SeqCst) < 2 {
                    assert!(begun.elapsed().as_secs() < 60, "nobody woke up");
                    std::thread::yield_now();
                }
            });
        }
    }

    #[test]
    fn work_inside_work_runs_on_its_own_thread() {
        let pool = Pool::new(3);
        let sum = AtomicUsize::new(0);
        pool.for_each_range(10, |outer| {
            for o in outer {
                pool.for_each_range(5, |inner| {
                    inner.for_each(|i| {
                        sum.fetch_add(o * i, Ordering::Relaxed);
                    });
                });
            }
        });
        assert_eq!(sum.into_inner(), 45 * 10);
    }

    #[test]
    fn several_callers_take_turns() {
        let pool = Pool::new(3);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for items in 1..300 {
                        assert_eq!(counts(&pool, items), vec![1; items]);
                    }
                });
            }
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(4);
        for bad in 0..50 {
            let failed = catch_unwind(AssertUnwindSafe(|| {
                pool.for_each_range(50, |range| {
                    assert!(!range.contains(&bad), "item {bad}");
                });
            }));
            assert!(failed.is_err());
            assert_eq!(counts(&pool, 9), vec![1; 9]);
        }
    }
    #[test]
    fn panics_on_two_threads_end_one_call_only() {
        let pool = Pool::new(4);
        let inside = AtomicUsize::new(0);
        let failed = catch_unwind(AssertUnwindSafe(|| {
            pool.for_each_range(50, |_| {
                inside.fetch_add(1, Ordering::SeqCst);
                while inside.load(Ordering::SeqCst) < 2 {
                    std::thread::yield_now();
                }
                panic!("both");
            });
        }));
        assert!(failed.is_err());
        assert_eq!(counts(&pool, 9), vec![1; 9]);
    }
}
