//! A pool of threads that share one piece of work and never wait for a thread that has not begun.
//!
//! What it is for: the many short products of decoding. Work is a number of items; whoever is awake takes the next few of them
//! until none are left. The caller takes part, and when the items run out it closes the work: a worker that the system has not
//! scheduled yet finds it closed and goes back to sleep. So on a busy machine the caller does all of it alone, at the speed of
//! one thread, where a barrier would wait a time slice for each worker that lost its core.
//!
//! ```text
//! state   generation (32 bits) | closed (1 bit) | workers inside (31 bits)
//!
//! caller  writes the job, state = (g + 1 | open | 0) ... takes items ... sets closed ... waits for inside == 0
//! worker  sees a new generation, open: inside + 1 by compare-and-swap, takes items, inside - 1
//! worker  sees closed: too late, nothing to do
//! ```
//!
//! Nothing is allocated after the threads have started. What it is not: a scheduler. One caller at a time has the pool; others
//! wait for it, and work inside work runs on its own thread.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::hint::spin_loop;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::Thread;

/// Looks at the state before a worker parks: about a tenth of a millisecond, longer than decoding pauses between two products.
const SPINS_BEFORE_PARK: u32 = 2_000;
/// Looks at the state before the caller, who waits for workers that have begun, lets others have its core.
const SPINS_BEFORE_YIELD: u32 = 1_000;
/// Grabs per thread that the items are split into: few enough to be cheap, enough for a late thread to do less.
const GRABS: usize = 8;

const CLOSED: u64 = 1 << 31;
const INSIDE: u64 = CLOSED - 1;

/// The work that all threads do, as the caller put it there.
struct Job {
    /// Calls the closure behind `data` with a range of items.
    run: unsafe fn(*const (), Range<usize>),
    data: *const (),
    items: usize,
    /// Items taken at once.
    grab: usize,
}

/// A number on a cache line of its own: threads write it all the time.
#[repr(align(64))]
struct Alone<T>(T);

struct Shared {
    /// See the drawing at the top.
    state: Alone<AtomicU64>,
    /// The first item that nobody has taken.
    next: Alone<AtomicUsize>,
    /// Written by the caller while the state is closed and nobody is inside; read by whoever went inside.
    job: UnsafeCell<Job>,
    /// `[workers]`: whether each one sleeps, or is about to.
    parked: Vec<Alone<AtomicBool>>,
    /// `[workers]`, once all have started.
    threads: OnceLock<Vec<Thread>>,
    /// Workers that have come to where they wait for work: starting a thread allocates, waiting does not.
    begun: AtomicUsize,
    /// What a worker panicked with.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is the only field that is not Sync by itself. It is written only by the caller that holds `Pool::caller`, while the
// state is closed and `inside` is 0, and read only by threads that went inside: they did so by an acquiring compare-and-swap on
// the state that the caller released after writing, and the caller acquires `inside == 0` before it writes again.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is used only while the closure behind it is borrowed by `Pool::for_each_range`.
unsafe impl Send for Shared {}

/// Threads that wait for work.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    /// Whoever holds it is the one caller.
    caller: Mutex<()>,
}

thread_local! {
    /// Whether this thread is at work for a pool: then its own work runs right here.
    static AT_WORK: Cell<bool> = const { Cell::new(false) };
}

/// Calls a closure by its address.
///
/// # Safety
/// `data` must point to a live `F`.
unsafe fn call<F: Fn(Range<usize>)>(data: *const (), items: Range<usize>) {
    // SAFETY: the caller's promise.
    unsafe { (*data.cast::<F>())(items) }
}

impl Pool {
    /// A pool of `threads` threads, the calling one included.
    pub(crate) fn new(threads: usize) -> Self {
        let workers = threads.saturating_sub(1);
        let nothing = Job {
            run: call::<fn(Range<usize>)>,
            data: std::ptr::null(),
            items: 0,
            grab: 1,
        };
        let shared = Arc::new(Shared {
            state: Alone(AtomicU64::new(CLOSED)),
            next: Alone(AtomicUsize::new(0)),
            job: UnsafeCell::new(nothing),
            parked: (0..workers)
                .map(|_| Alone(AtomicBool::new(false)))
                .collect(),
            threads: OnceLock::new(),
            begun: AtomicUsize::new(0),
            panic: Mutex::new(None),
        });
        let started = (0..workers).map_while(|index| {
            let shared = Arc::clone(&shared);
            let name = format!("kept-{}", index + 1);
            // A system that gives no more threads gives a smaller pool.
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

    /// Threads that compute, the calling one included.
    pub(crate) fn threads(&self) -> usize {
        self.shared.threads.get().map_or(0, Vec::len) + 1
    }

    /// Runs `work` over `0..items` in ranges that threads take in ascending order; returns when all are done.
    ///
    /// # Panics
    /// With what `work` panicked with, on whatever thread.
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
        // SAFETY: this is the one caller, and the last work was left closed and empty (see `finish` below).
        unsafe {
            *shared.job.get() = Job {
                run: call::<F>,
                data: (&raw const work).cast(),
                items,
                grab: items.div_ceil((threads.len() + 1) * GRABS),
            };
        }
        shared.next.0.store(0, Ordering::Relaxed);
        let state = shared.state.0.load(Ordering::Relaxed);
        let opened = ((state >> 32).wrapping_add(1) & u64::from(u32::MAX)) << 32;
        // Sequentially consistent with the load of `parked` below and with what a worker does before it parks: one of the two
        // sees the other.
        shared.state.0.store(opened, Ordering::SeqCst);
        for (parked, thread) in shared.parked.iter().zip(threads).take(items - 1) {
            if parked.0.load(Ordering::SeqCst) {
                thread.unpark();
            }
        }
        let mine = catch_unwind(AssertUnwindSafe(|| shared.take_items()));
        // The items are all taken (or the work failed): nobody else comes in, and whoever is inside is waited for, as `work` and
        // what it borrows end with this call.
        if mine.is_err() {
            shared.next.0.store(items, Ordering::Relaxed);
        }
        shared.finish();
        if let Err(payload) = mine {
            resume_unwind(payload);
        }
        let theirs = shared
            .panic
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(payload) = theirs {
            resume_unwind(payload);
        }
    }
}

impl Shared {
    /// Takes items until there are none. Only for threads that are inside, and for the caller.
    fn take_items(&self) {
        // SAFETY: this thread is inside or is the caller, so the job is not being written.
        let job = unsafe { &*self.job.get() };
        AT_WORK.set(true);
        let done = AtWork;
        loop {
            let first = self.next.0.fetch_add(job.grab, Ordering::Relaxed);
            if first >= job.items {
                break;
            }
            let items = first..(first + job.grab).min(job.items);
            // SAFETY: the closure lives until the caller has seen everybody leave.
            unsafe { (job.run)(job.data, items) };
        }
        drop(done);
    }

    /// Closes the work and waits until nobody is inside.
    fn finish(&self) {
        let mut state = self.state.0.fetch_or(CLOSED, Ordering::Acquire);
        let mut looks = 0;
        while state & INSIDE != 0 {
            looks += 1;
            match looks < SPINS_BEFORE_YIELD {
                true => spin_loop(),
                // The one inside may be waiting for this very core.
                false => std::thread::yield_now(),
            }
            state = self.state.0.load(Ordering::Acquire);
        }
    }

    /// What a worker does, for ever.
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

    /// Sleeps until somebody opens work; a wake-up for nothing is fine.
    fn park(&self, index: usize, last: u64) {
        self.parked[index].0.store(true, Ordering::SeqCst);
        let state = self.state.0.load(Ordering::SeqCst);
        if state >> 32 == last || state & CLOSED != 0 {
            std::thread::park();
        }
        self.parked[index].0.store(false, Ordering::SeqCst);
    }
}

/// Takes the mark of a thread at work away, also when work panics.
struct AtWork;

impl Drop for AtWork {
    fn drop(&mut self) {
        AT_WORK.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts how often each item was done.
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
        // Each round writes into a vector of its own that is gone afterwards; a late worker that still ran the round before
        // would write into freed memory or leave a hole here.
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
                // Whoever comes first waits for a second one, which the busiest machine must wake within the minute.
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
}
