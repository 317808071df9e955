//! Parallel work over heads. The only file of this crate that uses threads, those of kept-kernels.
//!
//! The result of a head does not depend on other heads, and results are stored in the order of the heads, so the number
//! of threads does not change any bit.

use kept_kernels::threads;

/// Amount of numbers below which one thread is faster than waking up the others.
const FEW: usize = 1 << 15;
/// Tokens per part in [`par_chunks`]: a part of the output fits into the L1 cache.
const PART: usize = 2048;

/// Applies `of(head, item)` to every item and returns the results in order. Runs on all threads, or on the calling
/// thread if all items together read few numbers; each item reads `numbers`.
pub(crate) fn par_map<A: Send, B: Send>(
    items: impl IntoIterator<Item = A>,
    numbers: usize,
    of: impl Fn(usize, A) -> B + Sync,
) -> Vec<B> {
    let mut items: Vec<Option<A>> = items.into_iter().map(Some).collect();
    let mut made: Vec<Option<B>> = items.iter().map(|_| None).collect();
    let make = |head: usize, item: &mut Option<A>, made: &mut Option<B>| {
        *made = item.take().map(|item| of(head, item));
    };
    if items.len().saturating_mul(numbers) < FEW {
        (items.iter_mut().zip(&mut made).enumerate())
            .for_each(|(head, (item, made))| make(head, item, made))
    } else {
        threads::for_each_pair(&mut items, &mut made, make)
    }
    (made.into_iter())
        .map(|made| made.expect("every item is worked on once"))
        .collect()
}

/// `[n]` numbers, initialised to 0 and computed part by part: `of(first, part)` computes those from token `first` on,
/// each of which reads `rows` numbers.
pub(crate) fn par_chunks(n: usize, rows: usize, of: impl Fn(usize, &mut [f32]) + Sync) -> Vec<f32> {
    let mut all = vec![0.0; n];
    let parts = all.chunks_mut(PART);
    par_map(parts, PART * rows, |part, out| of(part * PART, out));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_stands_in_the_order_of_the_items() {
        for (items, numbers) in [(0, 1), (1, FEW), (9, 1), (9, FEW), (1000, 1000)] {
            let texts = (0..items).map(|item| item.to_string());
            let made = par_map(texts, numbers, |head, text| format!("{head} {text}"));
            let expected: Vec<String> = (0..items).map(|item| format!("{item} {item}")).collect();
            assert_eq!(made, expected);
        }
    }

    #[test]
    fn few_numbers_stay_on_the_calling_thread() {
        let me = std::thread::current().id();
        let there = par_map(0..7, FEW / 8, |_, _| std::thread::current().id());
        assert!(there.iter().all(|thread| *thread == me));
    }

    #[test]
    fn parts_are_all_tokens_once() {
        for n in [0, 1, PART - 1, PART, 5 * PART + 3] {
            let made = par_chunks(n, 16, |first, part| {
                (first..).zip(part).for_each(|(t, x)| *x += t as f32);
            });
            assert!((made.iter().enumerate()).all(|(t, x)| *x == t as f32));
            assert_eq!(made.len(), n);
        }
    }
}
