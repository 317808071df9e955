//! Parallel work over heads, on the threads that the caller provides.
//!
//! The result of a head does not depend on other heads, and results are stored in the order of the heads, so the number
//! of threads does not change any bit.

use std::sync::Mutex;

/// The threads of the caller.
pub trait Parallel: std::fmt::Debug + Sync {
    /// Calls `work(i)` once for every `i` in `0..count`, in any order and on any thread, and returns when all are done.
    fn for_each(&self, count: usize, work: &(dyn Fn(usize) + Sync));
}

/// The calling thread alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct Serial;

impl Parallel for Serial {
    fn for_each(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        (0..count).for_each(work);
    }
}

impl Default for &dyn Parallel {
    fn default() -> Self {
        &Serial
    }
}

/// Floats read by all items below which one thread is faster than waking up the others.
const MIN_PARALLEL_READS: usize = 1 << 15;
/// Tokens per part in [`par_chunks`]: a part of the output fits into the L1 cache.
const PART: usize = 2048;

/// Applies `f(head, item)` to every item and returns the results in order. Runs on all threads, or on the calling
/// thread if all items together read few floats. `reads_per_item`: floats that one item reads; decides whether to use
/// threads.
pub(crate) fn par_map<A: Send, B: Send>(
    threads: &dyn Parallel,
    items: impl IntoIterator<Item = A>,
    reads_per_item: usize,
    f: impl Fn(usize, A) -> B + Sync,
) -> Vec<B> {
    let items: Vec<A> = items.into_iter().collect();
    if items.len().saturating_mul(reads_per_item) < MIN_PARALLEL_READS {
        let items = items.into_iter().enumerate();
        return items.map(|(head, item)| f(head, item)).collect();
    }
    let count = items.len();
    let items: Vec<_> = items
        .into_iter()
        .map(|item| Mutex::new(Some(item)))
        .collect();
    let results: Vec<_> = (0..count).map(|_| Mutex::new(None)).collect();
    threads.for_each(count, &|head| {
        let item = lock(&items[head]).take();
        *lock(&results[head]) = item.map(|item| f(head, item));
    });
    let results = results.into_iter().map(|result| {
        let result = result
            .into_inner()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        result.expect("every item is worked on once")
    });
    results.collect()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// `[n]` numbers, initialised to 0 and computed part by part: `f(first, part)` computes those from token `first` on,
/// each of which reads `rows` numbers.
pub(crate) fn par_chunks(
    threads: &dyn Parallel,
    n: usize,
    rows: usize,
    f: impl Fn(usize, &mut [f32]) + Sync,
) -> Vec<f32> {
    let mut all = vec![0.0; n];
    let parts = all.chunks_mut(PART);
    par_map(threads, parts, PART * rows, |part, out| f(part * PART, out));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread per item, the last item first.
    #[derive(Debug)]
    struct Threads;

    impl Parallel for Threads {
        fn for_each(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
            std::thread::scope(|scope| {
                for item in (0..count).rev() {
                    scope.spawn(move || work(item));
                }
            });
        }
    }

    #[test]
    fn results_are_in_the_order_of_the_items() {
        for (items, numbers) in [
            (0, 1),
            (1, MIN_PARALLEL_READS),
            (9, 1),
            (9, MIN_PARALLEL_READS),
            (100, 1000),
        ] {
            let texts = (0..items).map(|item| item.to_string());
            let made = par_map(&Threads, texts, numbers, |head, text| {
                format!("{head} {text}")
            });
            let expected: Vec<String> = (0..items).map(|item| format!("{item} {item}")).collect();
            assert_eq!(made, expected);
        }
    }

    #[test]
    fn few_numbers_stay_on_the_calling_thread() {
        let me = std::thread::current().id();
        let used = par_map(&Threads, 0..7, MIN_PARALLEL_READS / 8, |_, _| {
            std::thread::current().id()
        });
        assert!(used.iter().all(|thread| *thread == me));
    }

    #[test]
    fn parts_are_all_tokens_once() {
        for n in [0, 1, PART - 1, PART, 5 * PART + 3] {
            let made = par_chunks(&Threads, n, 16, |first, part| {
                (first..).zip(part).for_each(|(t, x)| *x += t as f32);
            });
            assert!((made.iter().enumerate()).all(|(t, x)| *x == t as f32));
            assert_eq!(made.len(), n);
        }
    }
}
