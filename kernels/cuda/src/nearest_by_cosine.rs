//! Finds each token's nearest neighbour among given tokens: `device/alike.cu`.

use crate::attention::tile_keys;
use crate::driver::{Address, Geometry};
use crate::{
    Buffer, Device, DeviceError, GatherIndices, Indices, KeptRows, LayerRows, RopeTables, RowKind,
    supported, tile_row_bytes,
};

/// Rows of a block.
const ROWS_OF_BLOCK: usize = 64;
/// Threads of a block.
const THREADS: usize = 128;
/// The most tokens, and the most other tokens, of one comparison.
const ROWS_PER_LAUNCH: usize = 4096;

/// Gathered rows of one head.
struct Gathered {
    /// Keys and values: `[rows_per_launch, head_dim]` each.
    rows: [KeptRows; 2],
    /// `[rows_per_launch]`: L2 norms of the rows.
    norms: [Buffer<f32>; 2],
    /// `[rows_per_launch]`: positions of the rows.
    which: Indices,
}

/// Parameters of kernel `row_lengths`; same layout as `Lengths` in `device/alike.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct NormsParameters {
    pub(crate) rows: Address,
    pub(crate) lengths: Address,
    pub(crate) count: u32,
    pub(crate) dim: u32,
}

/// A part of kernels' parameters; same layout as `Sides` in `device/alike.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Sides {
    keys: Address,
    values: Address,
    key_lengths: Address,
    value_lengths: Address,
}

/// Parameters of kernels `nearest_by_cosine_*`; same layout as `MostAlike` in `device/alike.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct NearestByCosineParameters {
    of: Sides,
    others: Sides,
    best: Address,
    products: Address,
    tokens: u32,
    count: u32,
}

/// The keys and values of one head that are compared.
pub struct HeadKeysValues<'a> {
    /// Keys of all tokens.
    pub keys: &'a LayerRows,
    /// Values of all tokens.
    pub values: &'a LayerRows,
    /// The KV head.
    pub head: usize,
    /// If set, RoPE with these angles is undone before keys are compared.
    pub unrotated: Option<RopeTables<'a>>,
}

/// Scratch of [`Device::nearest_by_cosine`], for any number of tokens.
pub struct CosineScratch {
    tokens: Gathered,
    others: Gathered,
    /// `[rows_per_launch]`: the KV head, repeated.
    heads: Indices,
    /// `[rows_per_launch]`
    best: Buffer<u32>,
    /// `[rows_per_launch]`
    products: Buffer<f32>,
    rows_per_launch: usize,
}

impl Gathered {
    fn new(device: &Device, rows_per_launch: usize, dim: usize) -> Result<Self, DeviceError> {
        let rows = || KeptRows::new(device, RowKind::F16, rows_per_launch, dim);
        Ok(Self {
            rows: [rows()?, rows()?],
            norms: [
                device.alloc_uninit(rows_per_launch)?,
                device.alloc_uninit(rows_per_launch)?,
            ],
            which: Indices::zeros(device, rows_per_launch)?,
        })
    }

    fn sides(&self) -> Sides {
        let [keys, values] = &self.rows;
        let [of_keys, of_values] = &self.norms;
        Sides {
            keys: keys.elements().address(),
            values: values.elements().address(),
            key_lengths: of_keys.address(),
            value_lengths: of_values.address(),
        }
    }

    /// Gathers the rows `which` and their norms.
    fn gather(
        &mut self,
        device: &Device,
        of: &HeadKeysValues<'_>,
        heads: &Indices,
        which: &[u32],
    ) -> Result<(), DeviceError> {
        self.which.write(0, which)?;
        let indices = GatherIndices {
            positions: &self.which,
            heads,
            targets: None,
            slots: which.len(),
        };
        let sides = [(of.keys, of.unrotated), (of.values, None)];
        for (side, (source, unrotated)) in sides.into_iter().enumerate() {
            let rows = &mut self.rows[side];
            device.gather_rows(source, &indices, unrotated, rows)?;
            let parameters = NormsParameters {
                rows: rows.elements().address(),
                lengths: self.norms[side].address(),
                count: which.len() as u32,
                dim: rows.head_dim() as u32,
            };
            // SAFETY: both buffers fit this many rows; the norms are borrowed mutably.
            unsafe {
                device.launch(
                    "row_lengths",
                    Geometry::warp_per_row(which.len(), 0),
                    &parameters,
                )
            }?;
        }
        Ok(())
    }
}

impl CosineScratch {
    /// For heads of `head_dim` elements in prompts of `tokens` tokens.
    pub fn new(device: &Device, tokens: usize, head_dim: usize) -> Result<Self, DeviceError> {
        Self::with_rows_per_launch(device, tokens.clamp(1, ROWS_PER_LAUNCH), head_dim)
    }

    fn with_rows_per_launch(
        device: &Device,
        rows_per_launch: usize,
        head_dim: usize,
    ) -> Result<Self, DeviceError> {
        let gathered = || Gathered::new(device, rows_per_launch, head_dim);
        Ok(Self {
            tokens: gathered()?,
            others: gathered()?,
            heads: Indices::zeros(device, rows_per_launch)?,
            best: device.alloc_uninit(rows_per_launch)?,
            products: device.alloc_uninit(rows_per_launch)?,
            rows_per_launch,
        })
    }
}

impl Device {
    /// For each of `tokens`, finds the one of `others` with the largest product of key cosine and value cosine, as
    /// [`kept_kernels::nearest_by_cosine`]: `best [tokens]` receives its index among `others` and the product; the
    /// first index on ties.
    ///
    /// # Panics
    /// When shapes do not match, a token has no row, or `others` is empty.
    pub fn nearest_by_cosine(
        &self,
        of: &HeadKeysValues<'_>,
        tokens: &[u32],
        others: &[u32],
        best: &mut [(u32, f32)],
        scratch: &mut CosineScratch,
    ) -> Result<(), DeviceError> {
        assert_eq!(best.len(), tokens.len(), "a best for each token");
        assert!(!others.is_empty(), "`others` is empty");
        let (_, dim) = of.keys.heads();
        let dim = supported(dim)?;
        let rows_per_launch = scratch.rows_per_launch;
        scratch
            .heads
            .write(0, &vec![of.head as u32; rows_per_launch])?;
        let (mut found, mut products) = (vec![0; rows_per_launch], vec![0.0; rows_per_launch]);
        for (number, some) in others.chunks(rows_per_launch).enumerate() {
            scratch.others.gather(self, of, &scratch.heads, some)?;
            let pieces = tokens
                .chunks(rows_per_launch)
                .zip(best.chunks_mut(rows_per_launch));
            for (tokens, best) in pieces {
                scratch.tokens.gather(self, of, &scratch.heads, tokens)?;
                self.compare(scratch, tokens.len(), some.len(), dim)?;
                scratch.best.read(0, &mut found[..tokens.len()])?;
                scratch.products.read(0, &mut products[..tokens.len()])?;
                let pairs = found.iter().zip(&products);
                for (best, (&other, &product)) in best.iter_mut().zip(pairs) {
                    if number == 0 || product > best.1 {
                        *best = ((number * rows_per_launch) as u32 + other, product);
                    }
                }
            }
        }
        Ok(())
    }

    /// Compares the gathered rows.
    fn compare(
        &self,
        scratch: &mut CosineScratch,
        tokens: usize,
        others: usize,
        dim: usize,
    ) -> Result<(), DeviceError> {
        let parameters = NearestByCosineParameters {
            of: scratch.tokens.sides(),
            others: scratch.others.sides(),
            best: scratch.best.address(),
            products: scratch.products.address(),
            tokens: tokens as u32,
            count: others as u32,
        };
        let keys = tile_keys(dim);
        let geometry = Geometry::new(
            [tokens.div_ceil(ROWS_OF_BLOCK), 1, 1],
            THREADS,
            2 * keys * (tile_row_bytes(dim) + size_of::<f32>()),
        );
        // SAFETY: the scratch fits this many gathered rows; the results are borrowed mutably.
        unsafe { self.launch(&format!("nearest_by_cosine_{dim}"), geometry, &parameters) }
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;
    use crate::emulated;

    /// A comparison in several pieces gives the same product and the first index on ties.
    #[test]
    fn comparing_in_pieces_changes_nothing() {
        let device = emulated::device(86, 1 << 26);
        let (kv_heads, n, dim) = (2, 90, 64);
        let number = |i: usize| f16::from_f32(((i * 7919) % 1013) as f32 / 500.0 - 1.0);
        let mut numbers: Vec<f16> = (0..kv_heads * n * dim).map(number).collect();
        // Tokens 40 and 70 of the second head equal token 3.
        for twin in [40, 70] {
            numbers.copy_within((n + 3) * dim..(n + 4) * dim, (n + twin) * dim);
        }
        let rows = || {
            let mut rows = LayerRows::new(&device, kv_heads, n, dim).expect("memory");
            rows.data_mut().write(0, &numbers).expect("written");
            rows
        };
        let (keys, values) = (rows(), rows());
        let of = HeadKeysValues {
            keys: &keys,
            values: &values,
            head: 1,
            unrotated: None,
        };
        let (tokens, others): (Vec<u32>, Vec<u32>) = ((0..30).collect(), (30..90).collect());
        let found = |rows_per_launch: usize| {
            let mut scratch =
                CosineScratch::with_rows_per_launch(&device, rows_per_launch, dim).expect("memory");
            let mut best = vec![(9, f32::NAN); tokens.len()];
            device
                .nearest_by_cosine(&of, &tokens, &others, &mut best, &mut scratch)
                .expect("it runs");
            best
        };
        let whole = found(64);
        assert_eq!(whole[3].0, 10, "the first of its twins");
        assert!((whole[3].1 - 1.0).abs() < 1e-5, "{:?}", whole[3]);
        for rows_per_launch in [7, 25, 45] {
            assert_eq!(found(rows_per_launch), whole, "{rows_per_launch} at a time");
        }
    }
}
