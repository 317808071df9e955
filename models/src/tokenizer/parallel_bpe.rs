//! Parallel merging of a text's pieces. Merges never cross a cut, so the result does not depend on the number of
//! threads.

use std::ops::Range;

use kept_kernels::Stopped;

/// Minimum length of a text that is tokenized on several threads, in bytes.
const PARALLEL_BYTES: usize = 64 << 10;

/// Adjacent pieces of a text. No merge crosses a cut between them.
#[derive(Clone, Copy)]
pub(crate) struct Pieces<'a> {
    /// Byte offset of the first piece.
    start: usize,
    /// End of each piece, where the next begins.
    cuts: &'a [usize],
}

impl Pieces<'_> {
    /// Byte range of each piece.
    pub(crate) fn ranges(self) -> impl Iterator<Item = Range<usize>> {
        let mut start = self.start;
        let range = move |&end: &usize| std::mem::replace(&mut start, end)..end;
        self.cuts.iter().map(range)
    }
}

/// Tokens of the pieces that end at `cuts`, in order. `merge` gets a share of the pieces.
///
/// # Errors
/// [`Stopped`] if `merge` was stopped.
pub(crate) fn merge_pieces<T: Send>(
    bytes: usize,
    cuts: &[usize],
    merge: impl Fn(Pieces<'_>) -> Result<Vec<T>, Stopped> + Sync,
) -> Result<Vec<T>, Stopped> {
    if bytes < PARALLEL_BYTES {
        return merge(Pieces { start: 0, cuts });
    }
    let share = cuts.len().div_ceil(kept_kernels::threads::count()).max(1);
    let merge = &merge;
    std::thread::scope(|scope| {
        let mut start = 0;
        let workers: Vec<_> = cuts
            .chunks(share)
            .map(|cuts| {
                let pieces = Pieces { start, cuts };
                start = cuts.last().copied().unwrap_or(start);
                scope.spawn(move || merge(pieces))
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
