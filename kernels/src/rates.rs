//! Measured speed of this machine: memory bandwidth, and the matrix products from which prefill time is estimated.

use std::hint::black_box;
use std::io;
use std::time::{Duration, Instant};

use crate::mapped::{MappedFile, MappedMatrix, Product, multiply_together};
use crate::threads::{SharedMut, count, for_each};
use crate::{QuantisedRows, Stop, WeightType};

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

/// Rows and columns of the matrix of [`product_rate`]: a projection of a model of some billion parameters.
const MATRIX: [usize; 2] = [4096, 2048];
/// Tokens that it is multiplied with.
const TOKENS: usize = 512;
/// No run of [`product_rate`] begins after this time.
const MAX_MEASURE_TIME: Duration = Duration::from_millis(500);

/// Multiply-adds per second of a prefill's products over all threads, with weights in Q4_K: the fastest of a few runs.
/// Takes half a second, on a slow machine one run.
///
/// # Errors
/// If the system refuses the memory, 5 MB.
pub fn product_rate() -> io::Result<f64> {
    let [rows, cols] = MATRIX;
    let (block_size, bytes) = WeightType::Q4K.block();
    let file = MappedFile::from_bytes(&vec![0x11; rows * cols / block_size * bytes])?;
    let matrix = MappedMatrix::new(&file, 0, WeightType::Q4K, rows, cols)
        .map_err(|error| io::Error::other(error.to_string()))?;
    let mut inputs = QuantisedRows::new(TOKENS * cols);
    let ramp: Vec<f32> = (0..TOKENS * cols)
        .map(|i| (i % 251) as f32 - 125.0)
        .collect();
    inputs.fill(&ramp, cols);
    let mut out = vec![0.0; TOKENS * rows];
    let started = Instant::now();
    let mut fastest = f64::INFINITY;
    for _ in 0..=RUNS {
        let began = Instant::now();
        let product = Product {
            matrix: &matrix,
            out: &mut out,
            add: false,
        };
        multiply_together([product], &inputs, &Stop::new())
            .map_err(|_| io::Error::other("stopped"))?;
        fastest = fastest.min(began.elapsed().as_secs_f64());
        if started.elapsed() > MAX_MEASURE_TIME {
            break;
        }
    }
    black_box(&out);
    Ok((TOKENS * rows * cols) as f64 / fastest)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_the_products_takes_a_part_of_the_measurement() {
        let started = Instant::now();
        let rate = product_rate().expect("memory");
        assert!(rate.is_finite() && rate > 1e6, "{rate}");
        // One run may begin just before the limit, and takes as long as the rate says.
        let run = (TOKENS * MATRIX[0] * MATRIX[1]) as f64 / rate;
        assert!(run < started.elapsed().as_secs_f64(), "{run}");
    }
}
