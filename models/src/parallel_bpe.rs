//! Parallel merging of a text's pieces. Merges never cross a cut, so the result does not depend on the number of
//! threads.

use kept_kernels::Stopped;

/// Minimum length of a text that is tokenized on several threads, in bytes.
const PARALLEL_BYTES: usize = 64 << 10;

/// Tokens of the pieces that end at `cuts`, in order. `merge` gets the start of a share of the pieces, and its cuts.
///
/// # Errors
/// [`Stopped`] if `merge` was stopped.
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
