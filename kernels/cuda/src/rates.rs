//! [`Rates`]: peak rates of a GPU, measured on it. The benchmark reports its figures as shares of these.

use std::time::Instant;

use half::f16;
use kept_kernels::{HeadShape, Scale};

use crate::driver::{Address, Geometry};
use crate::{
    AttentionScratch, Buffer, Device, DeviceError, LayerRows, PrefillAttention, UploadStaging,
};

/// Copies per time measurement.
const COPIES: usize = 8;
/// Measurements of each rate; the median counts.
const RUNS: usize = 7;
/// Multiplications and additions of a warp in a round of `device/rates.cu`: eight products of 16 x 8 x 16.
const OPERATIONS_OF_ROUND: u64 = 8 * 2 * 16 * 8 * 16;
/// Blocks per multiprocessor: enough warps to keep all of its tensor cores busy.
const BLOCKS_EACH: u32 = 8;
/// Warps of a block of `device/rates.cu`.
const WARPS: u64 = 4;

/// Amount of work of each measurement.
#[derive(Debug, Clone, Copy)]
pub struct RatesOf {
    /// Bytes of a copy.
    pub copied: usize,
    /// Rounds of products on the tensor cores.
    pub rounds: u32,
    /// Heads of the measured attention.
    pub shape: HeadShape,
    /// Positions before the attending rows.
    pub before: usize,
    /// Attending rows.
    pub rows: usize,
}

impl RatesOf {
    /// Enough work to measure a GPU, in a second or two: copies of a quarter of a GiB, and the last chunk of 32K tokens
    /// in a layer of an 8B model.
    pub const GPU: Self = Self {
        copied: 256 << 20,
        rounds: 1 << 14,
        shape: HeadShape::new(32, 8, 128),
        before: 30_720,
        rows: 2_048,
    };
}

/// Peak rates of a GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Bytes per second of copies on the GPU, reads and writes counted.
    pub copy: f64,
    /// Bytes per second of copies from pinned host memory to the GPU.
    pub to_gpu: f64,
    /// Operations per second of tensor cores on halves, with sums in f32.
    pub matrix: f64,
    /// Operations per second of prefill attention.
    pub attention: f64,
}

/// Parameters of kernel `matrix_rate`; same layout as `MatrixRate` in `device/rates.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct MatrixRateParameters {
    out: Address,
    rounds: u32,
}

impl Device {
    /// Measures the rates.
    ///
    /// # Errors
    /// [`DeviceError`] when memory runs out or the device fails.
    pub fn rates(&self, of: &RatesOf) -> Result<Rates, DeviceError> {
        let from: Buffer<u8> = self.zeros(of.copied)?;
        let mut to: Buffer<u8> = self.zeros(of.copied)?;
        // Several copies in a row, so that the host's launch and wait times are a small part.
        let copy =
            self.seconds(|| (0..COPIES).try_for_each(|_| to.copy_from(0, &from, 0..of.copied)))?;
        drop((from, to));
        let to_gpu = self.upload_seconds(of.copied)?;

        let blocks = BLOCKS_EACH * self.properties().multiprocessors;
        let out: Buffer<f32> = self.alloc_uninit((blocks * 128) as usize)?;
        let parameters = MatrixRateParameters {
            out: out.address(),
            rounds: of.rounds,
        };
        let geometry = Geometry::new([blocks as usize, 1, 1], 128, 0);
        let matrix = self.seconds(|| {
            // SAFETY: `out` has an element for each thread.
            unsafe { self.launch("matrix_rate", geometry, &parameters) }
        })?;
        let multiplied = u64::from(blocks) * WARPS * u64::from(of.rounds) * OPERATIONS_OF_ROUND;

        let attention = self.attention_seconds(of)?;
        // Row i attends to all keys before it and to its own.
        let seen: u64 = (1..=of.rows as u64).map(|i| of.before as u64 + i).sum();
        let attended = 4 * (of.shape.q_heads * of.shape.head_dim) as u64 * seen;
        Ok(Rates {
            copy: 2.0 * (COPIES * of.copied) as f64 / copy,
            to_gpu: of.copied as f64 / to_gpu,
            matrix: multiplied as f64 / matrix,
            attention: attended as f64 / attention,
        })
    }

    fn upload_seconds(&self, bytes: usize) -> Result<f64, DeviceError> {
        let mut staging = UploadStaging::new(self, bytes)?;
        for half in 1..=2 {
            staging.space()?.fill(half);
            staging.send(bytes)?;
        }
        self.seconds(|| {
            staging.space()?;
            staging.send(bytes).map(drop)
        })
    }

    fn attention_seconds(&self, of: &RatesOf) -> Result<f64, DeviceError> {
        let RatesOf { shape, rows, .. } = *of;
        let elements = rows * shape.q_heads * shape.head_dim;
        let layer = || -> Result<LayerRows, DeviceError> {
            let rows = of.before + rows;
            let mut layer = LayerRows::new(self, shape.kv_heads, rows, shape.head_dim)?;
            layer.data_mut().clear()?;
            Ok(layer)
        };
        let (keys, values) = (layer()?, layer()?);
        let queries: Buffer<f16> = self.zeros(elements)?;
        let mut out = self.alloc_uninit(elements)?;
        let mut scratch = AttentionScratch::new(self, shape)?;
        let task = PrefillAttention {
            shape,
            scale: Scale::from(1.0),
            window: None,
            queries: &queries,
            rows,
            first: of.before,
            keys: &keys,
            values: &values,
        };
        self.seconds(|| self.prefill_attention(&task, &mut scratch, &mut out, None))
    }

    /// Median run time in seconds, after one warm-up run.
    ///
    /// # Errors
    /// Those of `run` and of the device.
    pub fn seconds(
        &self,
        mut run: impl FnMut() -> Result<(), DeviceError>,
    ) -> Result<f64, DeviceError> {
        run()?;
        self.wait()?;
        let mut seconds = [0.0; RUNS];
        for seconds in &mut seconds {
            let started = Instant::now();
            run()?;
            self.wait()?;
            *seconds = started.elapsed().as_secs_f64();
        }
        seconds.sort_by(f64::total_cmp);
        Ok(seconds[RUNS / 2])
    }
}
