//! Merging the pieces of a text on as many threads as are worth it: merges never cross a cut, so the result is the same.

use kept_kernels::Stopped;

/// Texts from this length on are tokenised on several threads.
const PARALLEL_BYTES: usize = 64 << 10;

/// The tokens of pieces that end at `cuts`, in order. `merge` is given where a share of them begins, and its cuts.
///
/// # Errors
/// When `merge` was stopped.
pub(crate) fn merge_pieces<T: Send>(
    bytes: usize,
    cuts: &[usize],
    merge: impl Fn(usize, &[usize]) -> Result<Vec<T>, Stopped> + Sync,
) -> Result<Vec<T>, Stopped> {
    if bytes < PARALLEL_BYTES {
        return merge(0, cuts);
    }
    let share = cuts.len().div_ceil(kept_kernels::threads::count()).max(1);
    let merge = &merge;
    std::thread::scope(|scope| {
        let mut start = 0;
        let workers: Vec<_> = cuts
            .chunks(share)
            .map(|cuts| {
                let end = cuts.last().copied().unwrap_or(start);
                let from = std::mem::replace(&mut start, end);
                scope.spawn(move || merge(from, cuts))
            })
            .collect();
        let mut ids = Vec::with_capacity(bytes / 3);
        for worker in workers {
            match worker.join() {
                Ok(part) => ids.extend(part?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(ids)
    })
}
