//! Threads: how many, and who has them.
//!
//! Everything runs on the one pool of `pool.rs`. candle, whose tiles multiply while reading, has a pool too, which waits for all of
//! its threads; it is told to have one thread, and its products run side by side on ours ([`for_each`]).

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::pool::Pool;

/// Where candle looks for its number of threads; the first one that is set counts.
const VARIABLES: [&str; 2] = ["CANDLE_NUM_THREADS", "RAYON_NUM_THREADS"];

/// Decides how many threads compute, `None` for all that the machine offers. Call it first thing in `main`.
///
/// A number that the user put into `CANDLE_NUM_THREADS` or `RAYON_NUM_THREADS` wins over `None`; otherwise it is the available
/// parallelism, which respects container limits and CPU masks. candle itself gets one thread. A later call changes nothing but
/// what a pool that has not started yet will have.
pub fn configure(threads: Option<usize>) {
    let threads = wanted(threads);
    WANTED.store(threads, Ordering::Relaxed);
    for name in VARIABLES {
        // SAFETY: called at program start, before any other thread exists that could read the environment.
        unsafe { std::env::set_var(name, "1") };
    }
}

/// What [`configure`] decided; 0 before.
static WANTED: AtomicUsize = AtomicUsize::new(0);

/// `threads`, or what was decided before, or what the environment says, or what the machine offers.
fn wanted(threads: Option<usize>) -> usize {
    let decided = || Some(WANTED.load(Ordering::Relaxed)).filter(|&threads| threads > 0);
    let environment = || (VARIABLES.iter()).find_map(|name| std::env::var(name).ok()?.parse().ok());
    threads
        .or_else(decided)
        .or_else(environment)
        .filter(|threads| (1..=1024).contains(threads))
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()))
}

fn pool() -> &'static Pool {
    static POOL: OnceLock<Pool> = OnceLock::new();
    POOL.get_or_init(|| Pool::new(wanted(None)))
}

/// Threads that compute, the calling one included.
pub fn count() -> usize {
    pool().threads()
}

/// Runs `work` over `0..items` in ranges that idle threads take in ascending order; returns when all are done.
/// Put the longest items first. Allocates nothing; runs inline when called from inside the pool.
pub(crate) fn for_each_range(items: usize, work: impl Fn(Range<usize>) + Sync) {
    pool().for_each_range(items, work);
}

/// Runs `work(0)`, `work(1)`, ... up to `items`, on all threads; for work that is worth handing over one by one. What it calls
/// must not wait for another item.
pub fn for_each(items: usize, work: impl Fn(usize) + Sync) {
    pool().for_each_range(items, |range| range.for_each(&work));
}

/// Runs `work` on each pair of `one` and `other`, on all threads.
///
/// # Panics
/// When one is longer than the other.
pub fn for_each_pair<A: Send, B: Send>(
    one: &mut [A],
    other: &mut [B],
    work: impl Fn(usize, &mut A, &mut B) + Sync,
) {
    assert_eq!(one.len(), other.len(), "pairs");
    let (items, one, other) = (one.len(), SharedMut::new(one), SharedMut::new(other));
    for_each(items, |item| {
        let at = item..item + 1;
        // SAFETY: every item is run once.
        let (one, other) = unsafe { (one.part(at.clone()), other.part(at)) };
        work(item, &mut one[0], &mut other[0]);
    });
}

/// A mutable slice that several threads write at the same time, each its own part.
///
/// Rust cannot see that strided parts are disjoint, so the caller promises it at each [`SharedMut::part`].
pub(crate) struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    owner: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: parts handed out are disjoint (the contract of `part`), so sharing the handle shares no element.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            owner: std::marker::PhantomData,
        }
    }

    /// The first element, for strided access; the contract of [`SharedMut::part`] applies to what is reached from it.
    pub(crate) fn start(&self) -> *mut T {
        self.start
    }

    /// The elements `range`.
    ///
    /// # Safety
    /// No other part that is alive at the same time, on any thread, may overlap `range`.
    #[expect(clippy::mut_from_ref, reason = "the point of the type; see Safety")]
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "part {range:?} of a slice of {}",
            self.len
        );
        // SAFETY: in bounds (asserted) of a slice borrowed mutably for 'a; disjointness is the caller's promise.
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
