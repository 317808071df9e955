//! Memory sizes of lists and hash tables, for estimating a tokenizer's memory.

/// Bytes that common allocators use for an allocation: a header, rounded up to 16 bytes, at least 32.
pub(crate) fn allocated(bytes: usize) -> usize {
    match bytes {
        0 => 0,
        bytes => (bytes + 8).next_multiple_of(16).max(32),
    }
}

/// Bytes of a hash table of `entries` entries of `entry` bytes: a power of two of buckets, at most seven eighths full,
/// plus one control byte per bucket.
pub(crate) fn table(entries: usize, entry: usize) -> usize {
    match entries {
        0 => 0,
        entries => (entries * 8).div_ceil(7).next_power_of_two() * (entry + 1) + 16,
    }
}
