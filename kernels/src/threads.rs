//! The number of threads, and parallel loops over them.
//!
//! All kernels run on the one pool of `pool.rs`. candle, which multiplies tiles during prefill, has its own pool, which
//! waits for all of its threads. So candle is configured to use one thread, and its products run in parallel on our
//! pool ([`for_each`]).

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::pool::Pool;

/// Environment variables that set candle's number of threads; the first valid one wins.
const VARIABLES: [&str; 2] = ["CANDLE_NUM_THREADS", "RAYON_NUM_THREADS"];

/// Sets the number of compute threads; `None` keeps an earlier setting, or else selects the default. Call it first in
/// `main`.
///
/// The default is the value of `CANDLE_NUM_THREADS` or `RAYON_NUM_THREADS`, else the available parallelism, which
/// respects container limits and CPU masks. candle itself gets one thread. A later call only takes effect if the pool
/// has not started yet.
pub fn configure(threads: Option<usize>) {
    let threads = thread_count(threads);
    CONFIGURED.store(threads, Ordering::Relaxed);
    for name in VARIABLES {
        // SAFETY: called at program start, before any other thread exists that could read the environment.
        unsafe { std::env::set_var(name, "1") };
    }
}

/// The number set by [`configure`]; 0 before.
static CONFIGURED: AtomicUsize = AtomicUsize::new(0);

/// `threads`, else the configured number, else the environment's, else the available parallelism.
fn thread_count(threads: Option<usize>) -> usize {
    let decided = || Some(CONFIGURED.load(Ordering::Relaxed)).filter(|&threads| threads > 0);
    let environment = || (VARIABLES.iter()).find_map(|name| std::env::var(name).ok()?.parse().ok());
    threads
        .or_else(decided)
        .or_else(environment)
        .filter(|threads| (1..=1024).contains(threads))
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()))
}

fn pool() -> &'static Pool {
    static POOL: OnceLock<Pool> = OnceLock::new();
    POOL.get_or_init(|| Pool::new(thread_count(None)))
}

/// Number of threads that compute, including the calling thread.
pub fn count() -> usize {
    pool().threads()
}

/// Runs `work` over `0..items` in ranges that idle threads take in ascending order; returns when all are done. Put the
/// longest items first. Allocates nothing; runs inline when called from inside the pool.
pub(crate) fn for_each_range(items: usize, work: impl Fn(Range<usize>) + Sync) {
    pool().for_each_range(items, work);
}

/// Runs `work(0)`, `work(1)`, ... up to `items`, on all threads; for items that are each long enough to schedule
/// separately. `work` must not wait for another item.
pub fn for_each(items: usize, work: impl Fn(usize) + Sync) {
    pool().for_each_range(items, |range| range.for_each(&work));
}

/// Runs `work` on each pair of elements of `one` and `other`, on all threads.
///
/// # Panics
/// If the lengths differ.
pub fn for_each_pair<A: Send, B: Send>(
    one: &mut [A],
    other: &mut [B],
    work: impl Fn(usize, &mut A, &mut B) + Sync,
) {
    assert_eq!(one.len(), other.len(), "pairs");
    let (items, one, other) = (one.len(), SharedMut::new(one), SharedMut::new(other));
    for_each(items, |item| {
        let at = item..item + 1;
        // SAFETY: each item runs exactly once.
        let (one, other) = unsafe { (one.part(at.clone()), other.part(at)) };
        work(item, &mut one[0], &mut other[0]);
    });
}

/// A mutable slice that several threads write at the same time, each its own part.
///
/// Rust cannot prove that strided parts are disjoint, so the caller of [`SharedMut::part`] guarantees it.
pub(crate) struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    owner: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: parts are disjoint (the contract of `part`), so sharing the handle shares no element.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            owner: std::marker::PhantomData,
        }
    }

    /// The first element, for strided access; the contract of [`SharedMut::part`] applies to all elements accessed
    /// through it.
    pub(crate) fn start(&self) -> *mut T {
        self.start
    }

    /// The elements `range`.
    ///
    /// # Safety
    /// `range` must not overlap any other part that is alive at the same time, on any thread.
    #[expect(clippy::mut_from_ref, reason = "the purpose of the type; see Safety")]
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "part {range:?} of a slice of {}",
            self.len
        );
        // SAFETY: in bounds (asserted) of a slice borrowed mutably for 'a; the caller guarantees disjointness.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_is_worked_on_once() {
        for items in [0, 1, 7, 1000] {
            let mut one: Vec<usize> = (0..items).collect();
            let mut other = vec![0; items];
            for_each_pair(&mut one, &mut other, |at, one, other| {
                assert_eq!(*one, at);
                *one += 1;
                *other += 2 * at + 1;
            });
            assert!((one.iter().enumerate()).all(|(at, one)| *one == at + 1));
            assert!((other.iter().enumerate()).all(|(at, other)| *other == 2 * at + 1));
        }
    }

    #[test]
    #[should_panic(expected = "pairs")]
    fn pairs_are_as_many_on_both_sides() {
        for_each_pair(&mut [0; 2], &mut [0; 3], |_, _, _| ());
    }
}
