//! Heads side by side. The only file here that knows of threads: those of kept-kernels, which wait for whoever has work.
//!
//! What is made of a head depends on nothing that another makes, and stands where it would stand if one came after the other:
//! the number of threads changes no bit.

use kept_kernels::threads;

/// Numbers below which one thread is done sooner than others wake up.
const FEW: usize = 1 << 15;
/// Tokens of a part in [`par_chunks`]: what is added to stays in the nearest cache.
const PART: usize = 2048;

/// What `of(head, item)` makes of each item, in their order; on all threads, but where all of them together look at few numbers,
/// each at `numbers`.
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
    match items.len().saturating_mul(numbers) < FEW {
        true => (items.iter_mut().zip(&mut made).enumerate())
            .for_each(|(head, (item, made))| make(head, item, made)),
        false => threads::for_each_pair(&mut items, &mut made, make),
    }
    (made.into_iter())
        .map(|made| made.expect("every item is worked on once"))
        .collect()
}

/// `[n]` numbers that begin as 0, made part by part: `of(first, part)` for those from token `first` on, each of which looks at `rows`
/// numbers.
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
