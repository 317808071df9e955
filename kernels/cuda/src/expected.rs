//! What is asked of all keys and queries of a layer where no query looks at them: `device/expected.cu`, and `row_lengths` of `device/alike.cu`.

use std::ops::Range;

use half::f16;

use crate::alike::LengthsParameters;
use crate::driver::{Address, Geometry};
use crate::{Buffer, Device, DeviceError, LayerRows, supported};

/// Keys that one block adds up.
const KEYS_EACH: usize = 256;
/// A sum of fewer numbers is no direction.
const NO_LENGTH: f64 = 1e-12;
/// Numbers of the squares that sums of products are made of.
const SIDE: usize = 32;
/// Rows of queries that a block has at a time.
const ROWS_AT_ONCE: usize = 64;

/// `device/expected.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct DirectionsParameters {
    keys: Address,
    mean: Address,
    out: Address,
    count: u32,
    dim: u32,
    each: u32,
}

/// `device/expected.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct FormsParameters {
    keys: Address,
    linear: Address,
    matrix: Address,
    out: Address,
    count: u32,
    dim: u32,
}

/// `device/expected.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct GramParameters {
    queries: Address,
    sums: Address,
    products: Address,
    rows: u32,
    heads: u32,
    dim: u32,
}

/// All memory of [`Device::cosine_to_mean`], [`Device::bilinear_forms`] and [`Device::lengths`].
pub struct Asking {
    /// `[shares, head_dim]`: sums of directions.
    shares: Buffer<f32>,
    /// `[head_dim]`
    linear: Buffer<f32>,
    /// `[head_dim, head_dim]`
    matrix: Buffer<f32>,
    /// `[tokens]`: what comes out.
    out: Buffer<f32>,
    tokens: usize,
    head_dim: usize,
}

impl Asking {
    /// For heads of `head_dim` numbers in prompts of up to `tokens` tokens.
    pub fn new(device: &Device, tokens: usize, head_dim: usize) -> Result<Self, DeviceError> {
        Ok(Self {
            shares: device.alloc_uninit(tokens.div_ceil(KEYS_EACH) * head_dim)?,
            linear: device.alloc_uninit(head_dim)?,
            matrix: device.alloc_uninit(head_dim * head_dim)?,
            out: device.alloc_uninit(tokens)?,
            tokens,
            head_dim,
        })
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.shares.bytes() + self.linear.bytes() + self.matrix.bytes() + self.out.bytes()
    }

    /// Panics unless there is room for so many of these rows.
    fn check(&self, rows: &LayerRows, count: usize) -> Result<usize, DeviceError> {
        let (_, dim) = rows.heads();
        assert!(
            dim == self.head_dim && count <= self.tokens,
            "{count} rows of {dim} in room for {} of {}",
            self.tokens,
            self.head_dim
        );
        supported(dim)
    }
}

/// Sums over a layer's queries, each `[q_heads, head_dim]`, and over the products of two of its numbers.
pub struct QuerySums {
    /// `[q_heads, head_dim]`
    sums: Buffer<f64>,
    /// `[q_heads, head_dim, head_dim]`: on the diagonal and below.
    products: Option<Buffer<f64>>,
    q_heads: usize,
    head_dim: usize,
}

impl QuerySums {
    /// Of no queries.
    pub fn new(
        device: &Device,
        (q_heads, head_dim): (usize, usize),
        products: bool,
    ) -> Result<Self, DeviceError> {
        let numbers = q_heads * head_dim;
        Ok(Self {
            sums: device.zeros(numbers)?,
            products: products
                .then(|| device.zeros(numbers * head_dim))
                .transpose()?,
            q_heads,
            head_dim,
        })
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.sums.bytes() + self.products.as_ref().map_or(0, Buffer::bytes)
    }

    /// Whether there are sums of products.
    pub fn has_products(&self) -> bool {
        self.products.is_some()
    }

    /// Adds what there is to `sums [q_heads, head_dim]` and `products [q_heads, head_dim, head_dim]`, which is empty where there are none, and forgets
    /// it.
    ///
    /// # Panics
    /// When shapes do not fit.
    pub fn take(&mut self, sums: &mut [f64], products: &mut [f64]) -> Result<(), DeviceError> {
        let parts = [
            (Some(&mut self.sums), sums),
            (self.products.as_mut(), products),
        ];
        for (there, here) in parts {
            assert_eq!(
                there.as_ref().map_or(0, |b| b.len()),
                here.len(),
                "as many sums"
            );
            if let Some(there) = there {
                let found = there.to_vec()?;
                here.iter_mut().zip(found).for_each(|(sum, x)| *sum += x);
                there.clear()?;
            }
        }
        Ok(())
    }
}

impl Device {
    /// Adds the queries `rows` of `queries [.., q_heads, head_dim]` to `sums`.
    ///
    /// # Panics
    /// When there are not as many.
    pub fn add_queries(
        &self,
        queries: &Buffer<f16>,
        rows: Range<usize>,
        sums: &mut QuerySums,
    ) -> Result<(), DeviceError> {
        let width = sums.q_heads * sums.head_dim;
        let queries = queries.share(rows.start * width..rows.end * width);
        let parameters = GramParameters {
            queries: queries.address(),
            sums: sums.sums.address(),
            products: sums.products.as_ref().map_or(0, Buffer::address),
            rows: rows.len() as u32,
            heads: sums.q_heads as u32,
            dim: sums.head_dim as u32,
        };
        let sides = sums.head_dim.div_ceil(SIDE);
        let squares = match sums.has_products() {
            true => sides * (sides + 1) / 2,
            false => sides,
        };
        let geometry = Geometry {
            grid: [
                squares as u32,
                sums.q_heads as u32,
                u32::from(!rows.is_empty()),
            ],
            block: [128, 1, 1],
            shared_bytes: (2 * ROWS_AT_ONCE * (SIDE + 1) * size_of::<f32>()) as u32,
        };
        // SAFETY: lengths were checked; the sums are borrowed for writing.
        unsafe { self.launch("gram", geometry, &parameters) }
    }

    /// How far each of the first keys of a head points away from the others: minus its cosine with the mean direction of the first `document` keys,
    /// `scores [..]`.
    ///
    /// # Panics
    /// When there are no such keys.
    pub fn cosine_to_mean(
        &self,
        keys: &LayerRows,
        (head, document): (usize, usize),
        scores: &mut [f32],
        scratch: &mut Asking,
    ) -> Result<(), DeviceError> {
        let dim = scratch.check(keys, document.max(scores.len()))?;
        let rows = keys.part(head, 0..document);
        let parameters = DirectionsParameters {
            keys: rows.address(),
            mean: 0,
            out: scratch.shares.address(),
            count: document as u32,
            dim: dim as u32,
            each: KEYS_EACH as u32,
        };
        let (shares, threads) = (
            document.div_ceil(KEYS_EACH),
            (dim as u32).next_multiple_of(32),
        );
        let geometry = Geometry {
            grid: [shares as u32, 1, 1],
            block: [threads, 1, 1],
            shared_bytes: threads / 32 * size_of::<f32>() as u32,
        };
        // SAFETY: there is room for as many shares.
        unsafe { self.launch("direction_sums", geometry, &parameters) }?;
        let mut sums = vec![0.0f32; shares * dim];
        scratch.shares.read(0, &mut sums)?;
        let mut mean = vec![0.0f64; dim];
        for share in sums.chunks_exact(dim) {
            let pairs = mean.iter_mut().zip(share);
            pairs.for_each(|(sum, x)| *sum += f64::from(*x) / document as f64);
        }
        let length = mean
            .iter()
            .map(|x| x * x)
            .sum::<f64>()
            .sqrt()
            .max(NO_LENGTH);
        let mean: Vec<f32> = mean.iter().map(|x| (x / length) as f32).collect();
        scratch.linear.write(0, &mean)?;
        let rows = keys.part(head, 0..scores.len());
        let parameters = DirectionsParameters {
            keys: rows.address(),
            mean: scratch.linear.address(),
            out: scratch.out.address(),
            count: scores.len() as u32,
            ..parameters
        };
        // SAFETY: there is room for as many scores.
        unsafe { self.launch("against", warps(scores.len()), &parameters) }?;
        scratch.out.read(0, scores)
    }

    /// As [`kept_kernels::quadratic_forms`] of the keys `tokens` of a head: `linear . key + key^T matrix key`, `out [tokens]`.
    ///
    /// # Panics
    /// When shapes do not fit.
    pub fn bilinear_forms(
        &self,
        keys: &LayerRows,
        (head, tokens): (usize, Range<usize>),
        (linear, matrix): (&[f32], Option<&[f32]>),
        out: &mut [f32],
        scratch: &mut Asking,
    ) -> Result<(), DeviceError> {
        let dim = scratch.check(keys, tokens.len())?;
        assert!(
            out.len() == tokens.len() && linear.len() == dim,
            "out [tokens], linear [dim {dim}]"
        );
        assert!(
            matrix.is_none_or(|m| m.len() == dim * dim),
            "a matrix [dim {dim}, dim {dim}]"
        );
        scratch.linear.write(0, linear)?;
        if let Some(matrix) = matrix {
            scratch.matrix.write(0, matrix)?;
        }
        let rows = keys.part(head, tokens);
        let parameters = FormsParameters {
            keys: rows.address(),
            linear: scratch.linear.address(),
            matrix: matrix.map_or(0, |_| scratch.matrix.address()),
            out: scratch.out.address(),
            count: out.len() as u32,
            dim: dim as u32,
        };
        let (name, threads, lines) = match dim > 128 {
            true => ("forms_wide", 64, 16),
            false => ("forms", 128, 32),
        };
        let keys_of_block = threads / 2;
        let geometry = Geometry {
            grid: [out.len().div_ceil(keys_of_block) as u32, 1, 1],
            block: [threads as u32, 1, 1],
            shared_bytes: ((keys_of_block + lines) * (dim + 1) * size_of::<f32>()) as u32,
        };
        // SAFETY: lengths were checked, and there is room for what comes out.
        unsafe { self.launch(name, geometry, &parameters) }?;
        scratch.out.read(0, out)
    }

    /// How long the rows `which` of a head are, `lengths [which]`, never 0.
    ///
    /// # Panics
    /// When there are no such rows.
    pub fn lengths(
        &self,
        rows: &LayerRows,
        (head, which): (usize, Range<usize>),
        lengths: &mut [f32],
        scratch: &mut Asking,
    ) -> Result<(), DeviceError> {
        let dim = scratch.check(rows, which.len())?;
        assert_eq!(lengths.len(), which.len(), "a length for each row");
        let rows = rows.part(head, which);
        let parameters = LengthsParameters {
            rows: rows.address(),
            lengths: scratch.out.address(),
            count: lengths.len() as u32,
            dim: dim as u32,
        };
        // SAFETY: there is room for as many.
        unsafe { self.launch("row_lengths", warps(lengths.len()), &parameters) }?;
        scratch.out.read(0, lengths)
    }
}

/// A warp for each of `rows`, four in a block.
pub(crate) fn warps(rows: usize) -> Geometry {
    Geometry {
        grid: [rows.div_ceil(4) as u32, 1, 1],
        block: [128, 1, 1],
        shared_bytes: 0,
    }
}
