//! Threads: how many, and the one pool that all kernels and candle's own matrix products share.
//!
//! The pool is candle's persistent barrier pool; this file owns no thread of its own. A second pool would fight the
//! first for the same cores, and starting threads per call would allocate.

use std::ops::Range;

/// Decides how many threads compute, `None` for all that the machine offers. Call it first thing in `main`.
///
/// Candle reads the number from the environment when its pool is first used, and defaults to physical cores; we default
/// to the available parallelism, which also respects container limits and CPU masks. A number that the user already
/// put into `CANDLE_NUM_THREADS` or `RAYON_NUM_THREADS` wins over `None`.
pub fn configure(threads: Option<usize>) {
    let asked = threads.or_else(|| {
        ["CANDLE_NUM_THREADS", "RAYON_NUM_THREADS"]
            .iter()
            .find_map(|name| std::env::var(name).ok()?.parse().ok())
    });
    let threads = asked
        .filter(|threads| (1..=1024).contains(threads))
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()));
    for name in ["CANDLE_NUM_THREADS", "RAYON_NUM_THREADS"] {
        // SAFETY: called at program start, before any other thread exists that could read the environment.
        unsafe { std::env::set_var(name, threads.to_string()) };
    }
}

/// Threads that compute, the calling one included.
pub fn count() -> usize {
    candle_core::utils::barrier_pool().n_workers() + 1
}

/// Runs `work` over `0..items` in ranges that idle threads take in ascending order; returns when all are done.
/// Put the longest items first. Allocates nothing; runs inline when called from inside the pool.
pub(crate) fn for_each_range(items: usize, work: impl Fn(Range<usize>) + Sync) {
    candle_core::utils::barrier_pool().execute_chunked(items, work);
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
