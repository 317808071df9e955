//! Scores of keys and sums over queries that need no attention pass: `device/expected.cu`, and `row_lengths` of
//! `device/alike.cu`.

use std::ops::Range;

use half::f16;

use crate::driver::{Address, Geometry};
use crate::nearest_by_cosine::NormsParameters;
use crate::{Buffer, Device, DeviceError, HeadRows, supported};

/// Keys summed by one block.
const KEYS_EACH: usize = 256;
/// A mean of a smaller norm has no direction.
const MIN_NORM: f64 = 1e-12;
/// Edge of the square tiles in which sums of products are computed.
const SIDE: usize = 32;
/// Query rows that a block loads at a time.
const ROWS_PER_TILE: usize = 64;

/// Parameters of kernels `direction_sums` and `cosine_to_direction`; same layout as `Directions` in
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

/// Parameters of kernels `bilinear_forms` and `bilinear_forms_wide`; same layout as `Forms` in `device/expected.cu`.
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

/// Parameters of kernel `gram`; same layout as `Gram` in `device/expected.cu`.
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

/// Scratch of [`Device::cosine_to_mean`], [`Device::bilinear_forms`] and [`Device::norms`].
pub struct RowScoreScratch {
    /// `[shares, head_dim]`: partial sums of key directions.
    shares: Buffer<f32>,
    /// `[head_dim]`
    linear: Buffer<f32>,
    /// `[head_dim, head_dim]`
    matrix: Buffer<f32>,
    /// `[tokens]`: results.
    out: Buffer<f32>,
    tokens: usize,
    head_dim: usize,
}

impl RowScoreScratch {
    /// For heads of `head_dim` elements in prompts of up to `tokens` tokens.
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

    /// Head size of `rows`. Panics unless the scratch fits `count` of them.
    fn check(&self, rows: HeadRows<'_>, count: usize) -> Result<usize, DeviceError> {
        let dim = rows.head_dim();
        assert!(
            dim == self.head_dim && count <= self.tokens,
            "{count} rows of {dim} in room for {} of {}",
            self.tokens,
            self.head_dim
        );
        supported(dim)
    }
}

/// Sums over a layer's queries, `[q_heads, head_dim]`, and over products of two elements of a query.
pub struct QuerySums {
    /// `[q_heads, head_dim]`
    sums: Buffer<f64>,
    /// `[q_heads, head_dim, head_dim]`: lower triangle and diagonal.
    products: Option<Buffer<f64>>,
    q_heads: usize,
    head_dim: usize,
}

impl QuerySums {
    /// Sums of no queries; `products`: also sums of products.
    pub fn new(
        device: &Device,
        q_heads: usize,
        head_dim: usize,
        products: bool,
    ) -> Result<Self, DeviceError> {
        let elements = q_heads * head_dim;
        Ok(Self {
            sums: device.zeros(elements)?,
            products: products
                .then(|| device.zeros(elements * head_dim))
                .transpose()?,
            q_heads,
            head_dim,
        })
    }

    /// Whether this includes sums of products.
    pub fn has_products(&self) -> bool {
        self.products.is_some()
    }

    /// Adds the device's sums to `sums [q_heads, head_dim]` and `products [q_heads, head_dim, head_dim]` (empty without
    /// products), and resets them to 0.
    ///
    /// # Panics
    /// When shapes do not match.
    pub fn take(&mut self, sums: &mut [f64], products: &mut [f64]) -> Result<(), DeviceError> {
        let parts = [
            (Some(&mut self.sums), sums),
            (self.products.as_mut(), products),
        ];
        for (added, total) in parts {
            assert_eq!(
                added.as_ref().map_or(0, |b| b.len()),
                total.len(),
                "as many sums"
            );
            if let Some(added) = added {
                let elements = added.to_vec()?;
                total
                    .iter_mut()
                    .zip(elements)
                    .for_each(|(sum, x)| *sum += x);
                added.clear()?;
            }
        }
        Ok(())
    }
}

impl Device {
    /// Adds the queries `rows` of `queries [.., q_heads, head_dim]` to `sums`.
    ///
    /// # Panics
    /// When `queries` has fewer rows.
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
        let squares = if sums.has_products() {
            sides * (sides + 1) / 2
        } else {
            sides
        };
        let geometry = Geometry::new(
            [squares, sums.q_heads, usize::from(!rows.is_empty())],
            128,
            2 * ROWS_PER_TILE * (SIDE + 1) * size_of::<f32>(),
        );
        // SAFETY: lengths were checked; the sums are borrowed mutably.
        unsafe { self.launch("gram", geometry, &parameters) }
    }

    /// Negative cosine between each of the first `keys` and the mean direction of the first `document` keys: `scores
    /// [..]`. A high score marks a key unlike the others.
    ///
    /// # Panics
    /// When the head has fewer keys.
    pub fn cosine_to_mean(
        &self,
        keys: HeadRows<'_>,
        document: usize,
        scores: &mut [f32],
        scratch: &mut RowScoreScratch,
    ) -> Result<(), DeviceError> {
        let dim = scratch.check(keys, document.max(scores.len()))?;
        let rows = keys.part(0..document);
        let parameters = DirectionsParameters {
            keys: rows.address(),
            mean: 0,
            out: scratch.shares.address(),
            count: document as u32,
            dim: dim as u32,
            each: KEYS_EACH as u32,
        };
        let (shares, threads) = (document.div_ceil(KEYS_EACH), dim.next_multiple_of(32));
        let geometry = Geometry::new([shares, 1, 1], threads, threads / 32 * size_of::<f32>());
        // SAFETY: the scratch holds this many shares.
        unsafe { self.launch("direction_sums", geometry, &parameters) }?;
        let mut sums = vec![0.0f32; shares * dim];
        scratch.shares.read(0, &mut sums)?;
        let mut mean = vec![0.0f64; dim];
        for share in sums.chunks_exact(dim) {
            let pairs = mean.iter_mut().zip(share);
            pairs.for_each(|(sum, x)| *sum += f64::from(*x) / document as f64);
        }
        let norm = mean.iter().map(|x| x * x).sum::<f64>().sqrt().max(MIN_NORM);
        let mean: Vec<f32> = mean.iter().map(|x| (x / norm) as f32).collect();
        scratch.linear.write(0, &mean)?;
        let rows = keys.part(0..scores.len());
        let parameters = DirectionsParameters {
            keys: rows.address(),
            mean: scratch.linear.address(),
            out: scratch.out.address(),
            count: scores.len() as u32,
            ..parameters
        };
        // SAFETY: the scratch holds this many scores.
        unsafe {
            self.launch(
                "cosine_to_direction",
                Geometry::warp_per_row(scores.len(), 0),
                &parameters,
            )
        }?;
        scratch.out.read(0, scores)
    }

    /// As [`kept_kernels::quadratic_forms`], for `tokens` of `keys`: `linear . key + key^T matrix key`, `out [tokens]`.
    ///
    /// # Panics
    /// When shapes do not match.
    pub fn bilinear_forms(
        &self,
        keys: HeadRows<'_>,
        tokens: Range<usize>,
        linear: &[f32],
        matrix: Option<&[f32]>,
        out: &mut [f32],
        scratch: &mut RowScoreScratch,
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
        let rows = keys.part(tokens);
        let parameters = FormsParameters {
            keys: rows.address(),
            linear: scratch.linear.address(),
            matrix: matrix.map_or(0, |_| scratch.matrix.address()),
            out: scratch.out.address(),
            count: out.len() as u32,
            dim: dim as u32,
        };
        let (name, threads, lines) = if dim > 128 {
            ("bilinear_forms_wide", 64, 16)
        } else {
            ("bilinear_forms", 128, 32)
        };
        let keys_of_block = threads / 2;
        let geometry = Geometry::new(
            [out.len().div_ceil(keys_of_block), 1, 1],
            threads,
            (keys_of_block + lines) * (dim + 1) * size_of::<f32>(),
        );
        // SAFETY: lengths were checked, and the scratch holds this many results.
        unsafe { self.launch(name, geometry, &parameters) }?;
        scratch.out.read(0, out)
    }

    /// L2 norms of `rows` at `which`, `norms [which]`; never 0.
    ///
    /// # Panics
    /// When a row does not exist.
    pub fn norms(
        &self,
        rows: HeadRows<'_>,
        which: Range<usize>,
        norms: &mut [f32],
        scratch: &mut RowScoreScratch,
    ) -> Result<(), DeviceError> {
        let dim = scratch.check(rows, which.len())?;
        assert_eq!(norms.len(), which.len(), "a norm for each row");
        let rows = rows.part(which);
        let parameters = NormsParameters {
            rows: rows.address(),
            lengths: scratch.out.address(),
            count: norms.len() as u32,
            dim: dim as u32,
        };
        // SAFETY: the scratch holds this many norms.
        unsafe {
            self.launch(
                "row_lengths",
                Geometry::warp_per_row(norms.len(), 0),
                &parameters,
            )
        }?;
        scratch.out.read(0, norms)
    }
}
