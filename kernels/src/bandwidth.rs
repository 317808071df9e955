//! Memory bandwidth of this machine: the yardstick for everything that streams weights or rows.

use std::hint::black_box;
use std::time::Instant;

use crate::threads::{SharedMut, count, for_each};

/// Size of a buffer in bytes: far larger than any cache.
const BYTES: usize = 256 << 20;
/// Runs; the fastest counts, because other load on the machine can only slow a run down.
const RUNS: usize = 7;
/// Work items per thread.
const PARTS: usize = 8;

/// Memory bandwidth in bytes per second, over all threads.
#[derive(Clone, Copy, Debug)]
pub struct Bandwidth {
    /// Copying a buffer; bytes read and bytes written both count.
    pub copy: f64,
    /// Reading a buffer once.
    pub read: f64,
}

/// Measures [`Bandwidth`]; needs half a GiB of memory and a few tenths of a second.
pub fn bandwidth() -> Bandwidth {
    let from: Vec<u64> = (0..(BYTES / size_of::<u64>()) as u64).collect();
    let mut to = vec![1u64; from.len()];
    let parts = count() * PARTS;
    let part = from.len().div_ceil(parts);
    let range = |i: usize| (i * part).min(from.len())..((i + 1) * part).min(from.len());
    let shared = SharedMut::new(&mut to);
    let copy = fastest(|| {
        for_each(parts, |i| {
            // SAFETY: the ranges of different items are disjoint.
            unsafe { shared.part(range(i)) }.copy_from_slice(&from[range(i)]);
        });
    });
    let read = fastest(|| {
        for_each(parts, |i| {
            let mut sums = [0u64; 32];
            for block in from[range(i)].chunks_exact(32) {
                sums.iter_mut()
                    .zip(block)
                    .for_each(|(sum, x)| *sum = sum.wrapping_add(*x));
            }
            black_box(sums);
        });
    });
    Bandwidth {
        copy: 2.0 * BYTES as f64 / copy,
        read: BYTES as f64 / read,
    }
}

/// Seconds of the fastest run.
fn fastest(run: impl Fn()) -> f64 {
    let times = (0..RUNS).map(|_| {
        let started = Instant::now();
        run();
        started.elapsed().as_secs_f64()
    });
    times.fold(f64::INFINITY, f64::min)
}
