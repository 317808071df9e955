//! Random numbers and devices of the tests.

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device as Cpu, Tensor};
use half::f16;
use kept_cuda::{Buffer, Device, LayerRows, Weights, emulated};
use kept_kernels::{HeadShape, RowStore};
use rand::{Rng, SeedableRng, rngs::StdRng};

/// Random numbers that are exact in both the device's halves and the reference's f32.
pub struct Numbers(StdRng);

impl Numbers {
    /// Mixed with the seed of `KEPT_SEED`, if set; the script that sets it prints it.
    pub fn new(seed: u64) -> Self {
        let fresh = std::env::var("KEPT_SEED").ok();
        let fresh = fresh.and_then(|fresh| fresh.parse::<u64>().ok());
        Self(StdRng::seed_from_u64(seed ^ fresh.unwrap_or(0) << 16))
    }

    /// Numbers between -1 and 1 that are exact as halves.
    pub fn rows(&mut self, count: usize) -> Vec<f32> {
        let number = |_| f16::from_f32(self.0.random_range(-1.0..1.0)).to_f32();
        (0..count).map(number).collect()
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.0.random_range(0..end)
    }
}

pub fn halves(numbers: &[f32]) -> Vec<f16> {
    numbers.iter().map(|x| f16::from_f32(*x)).collect()
}

/// Emulated devices with and without enough shared memory for two tiles; in a build for GPUs the GPU, if it can be
/// opened.
///
/// # Panics
/// Without a GPU, if the emulator is to be skipped.
pub fn devices() -> Vec<Device> {
    #[cfg(feature = "cuda")]
    let why = match kept_cuda::nvidia::open(0) {
        Ok(gpu) => return vec![gpu],
        Err(why) => why,
    };
    #[cfg(not(feature = "cuda"))]
    let why = "this build has no kernels for one";
    assert!(
        !gpu_only(),
        "no CUDA device ({why}), and KEPT_GPU_ONLY leaves out the emulator"
    );
    #[cfg(feature = "cuda")]
    eprintln!("skipped: no CUDA device ({why}); the kernels run in the emulator");
    [75, 90]
        .map(|capability| emulated::device(capability, 1 << 30))
        .into()
}

/// Whether tests skip the emulator: `scripts/test-gpu` sets this on a machine with a GPU.
pub fn gpu_only() -> bool {
    std::env::var_os("KEPT_GPU_ONLY").is_some()
}

/// Random rows `[kv_heads, capacity, head_dim]`, on the host and on the device.
pub fn layer(
    device: &Device,
    numbers: &mut Numbers,
    shape: &HeadShape,
    capacity: usize,
) -> (RowStore, LayerRows) {
    let mut host = RowStore::uniform(shape.kv_heads, capacity, shape.head_dim);
    for h in 0..shape.kv_heads {
        host.head_mut(h)
            .copy_from_slice(&numbers.rows(capacity * shape.head_dim));
    }
    let mut rows =
        LayerRows::new(device, shape.kv_heads, capacity, shape.head_dim).expect("memory");
    rows.data_mut()
        .write(0, &halves(host.as_slice()))
        .expect("written");
    (host, rows)
}

pub fn queries(device: &Device, numbers: &[f32]) -> Buffer<f16> {
    device.copy_of(&halves(numbers)).expect("memory")
}

/// `[positions, columns]` cosines and sines of random angles.
pub fn angles(numbers: &mut Numbers, positions: usize, columns: usize) -> (Vec<f32>, Vec<f32>) {
    let angles = numbers.rows(positions * columns);
    angles
        .iter()
        .map(|a| ((3.0 * a).cos(), (3.0 * a).sin()))
        .unzip()
}

/// The Hadamard transform of `x` in runs of its largest power-of-two divisor, by definition.
pub fn hadamard(x: &[f32]) -> Vec<f32> {
    let run = 1 << x.len().trailing_zeros();
    let row = |i: usize, x: &[f32]| -> f32 {
        let sign = |j: usize| {
            if (i & j).count_ones().is_multiple_of(2) {
                1.0f64
            } else {
                -1.0
            }
        };
        let sum: f64 = x
            .iter()
            .enumerate()
            .map(|(j, x)| sign(j) * f64::from(*x))
            .sum();
        (sum / (run as f64).sqrt()) as f32
    };
    x.chunks(run)
        .flat_map(|x| (0..run).map(move |i| row(i, x)))
        .collect()
}

/// Random weights `[rows, cols]` of a type on the device, and the numbers that their blocks stand for.
pub fn weights(
    device: &Device,
    numbers: &mut Numbers,
    kind: GgmlDType,
    rows: usize,
    cols: usize,
) -> (Weights, Vec<f32>) {
    let drawn =
        Tensor::from_vec(numbers.rows(rows * cols), (rows, cols), &Cpu::Cpu).expect("a tensor");
    let quantised = QTensor::quantize(&drawn, kind).expect("quantised");
    let exact = quantised.dequantize(&Cpu::Cpu).expect("numbers");
    let exact = exact.flatten_all().expect("flat");
    let blocks = quantised.data().expect("bytes");
    let weights = Weights::new(device, kind, rows, cols, &blocks).expect("memory");
    (weights, exact.to_vec1().expect("numbers"))
}

/// Tolerance of a product of `cols` inputs and weights between -1 and 1 whose inputs are rounded to bytes. An input is
/// off by up to half a 127th. Types with a minimum multiply it with numbers from 0 to 2, of which the minimum is taken
/// off: the error of a sum is 0.06 at 512 inputs, grows with the root of their number, and one in a billion is six times
/// as large.
pub fn rounded_inputs(cols: usize) -> f32 {
    0.36 * (cols as f32 / 512.0).sqrt()
}

/// Panics if a number differs from its expected value by more than `tolerance`, or is NaN.
pub fn close(found: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: as many numbers");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let near = (found - expected).abs() <= tolerance || found == expected;
        assert!(near, "{what}: number {i} is {found}, not {expected}");
    }
}

/// Heads of every supported size, with groups of one, a few, and more heads than a block takes.
pub fn shapes() -> Vec<HeadShape> {
    vec![
        HeadShape::new(4, 2, 64),
        HeadShape::new(2, 2, 80),
        HeadShape::new(3, 1, 96),
        HeadShape::new(8, 2, 128),
        HeadShape::new(2, 1, 256),
    ]
}
