//! What tokenizers hold in memory, by the sizes of their lists and tables: for whoever adds up memory before it is taken.

/// How many bytes an allocation of so many really takes.
pub(crate) type Rounded = fn(usize) -> usize;

/// As common allocators do: a header, steps of 16 bytes, 32 at least.
pub(crate) fn allocated(bytes: usize) -> usize {
    match bytes {
        0 => 0,
        bytes => (bytes + 8).next_multiple_of(16).max(32),
    }
}

/// Bytes of a hash table of `entries` entries of `entry` bytes: a power of two of buckets, at most seven eighths full, a byte beside
/// each.
pub(crate) fn table(entries: usize, entry: usize) -> usize {
    match entries {
        0 => 0,
        entries => (entries * 8).div_ceil(7).next_power_of_two() * (entry + 1) + 16,
    }
}
