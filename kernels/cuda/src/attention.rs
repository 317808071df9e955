//! Prefill attention of a chunk over all earlier keys and its own: `device/prefill_attention.cu`.

use half::f16;
use kept_kernels::{HeadShape, Scale};

use crate::driver::{Address, Geometry};
use crate::{Buffer, Device, DeviceError, LayerRows, ScaleParameters, supported, tile_row_bytes};

/// Rows of a block.
const ROWS_OF_BLOCK: usize = 64;
/// Rows of a block whose warps have twice as many rows, and keys of its tiles.
const WIDE: (usize, usize) = (128, 48);
/// Threads of a block.
const THREADS: usize = 128;
/// Target number of blocks per multiprocessor: two run at a time and two wait.
const BLOCKS_EACH: usize = 4;
/// Key tiles below which a split of the keys is not worth a block of its own.
const TILES_EACH: usize = 4;

/// Keys of a tile: fewer for wide heads, which are limited by shared memory and registers.
pub(crate) fn tile_keys(head_dim: usize) -> usize {
    if head_dim > 128 { 32 } else { 64 }
}

/// Bytes of shared memory that the system reserves for each block. The most that a block may request is this much less
/// than the multiprocessor has.
const RESERVED_SHARED_BYTES: usize = 1024;

/// Number of tiles of keys and values in shared memory, and their bytes. Two tiles, so that one is copied while the
/// other is used, if two blocks still fit on a multiprocessor. Otherwise two blocks with one tile hide more latency:
/// one block computes while the other copies.
pub(crate) fn stages(device: &Device, head_dim: usize) -> (u32, usize) {
    let one = 2 * tile_keys(head_dim) * tile_row_bytes(head_dim);
    let of_multiprocessor = device.properties().shared_bytes as usize + RESERVED_SHARED_BYTES;
    let fits = 2 * (2 * one + RESERVED_SHARED_BYTES) <= of_multiprocessor;
    if fits && device.properties().capability >= 80 {
        (2, 2 * one)
    } else {
        (1, one)
    }
}

/// Launch of prefill attention for `rows` rows: kernel, rows of a block, keys of a tile, tiles in shared memory and
/// their bytes.
struct Variant {
    kernel: String,
    rows: usize,
    keys: usize,
    stages: u32,
    shared_bytes: usize,
}

impl Variant {
    fn new(device: &Device, dim: usize, rows: usize) -> Self {
        let (wide_rows, wide_keys) = WIDE;
        let wide_bytes = (4 * wide_keys + wide_rows) * tile_row_bytes(dim);
        let of_multiprocessor = device.properties().shared_bytes as usize + RESERVED_SHARED_BYTES;
        let fits = 2 * (wide_bytes + RESERVED_SHARED_BYTES) <= of_multiprocessor;
        // Heads of 256 have no registers for twice as many rows.
        if rows > ROWS_OF_BLOCK && dim <= 128 && fits && device.properties().capability >= 80 {
            return Self {
                kernel: format!("prefill_attention_wide_{dim}"),
                rows: wide_rows,
                keys: wide_keys,
                stages: 2,
                shared_bytes: wide_bytes,
            };
        }
        let (stages, shared_bytes) = stages(device, dim);
        Self {
            kernel: format!("prefill_attention_{dim}"),
            rows: ROWS_OF_BLOCK,
            keys: tile_keys(dim),
            stages,
            shared_bytes,
        }
    }
}

/// Prefill attention of `rows` new rows.
pub struct PrefillAttention<'a> {
    /// Heads of the layer.
    pub shape: HeadShape,
    /// From dot products to logits.
    pub scale: Scale<'a>,
    /// Sliding window: number of keys that a row attends to, its own included; `None`: all keys up to its own.
    pub window: Option<usize>,
    /// `[rows, q_heads, head_dim]`, rotated.
    pub queries: &'a Buffer<f16>,
    /// Number of new rows.
    pub rows: usize,
    /// Position of the first new row.
    pub first: usize,
    /// Rotated keys of positions `0..first + rows`.
    pub keys: &'a LayerRows,
    /// Values of the same positions.
    pub values: &'a LayerRows,
}

/// Scratch for partial results of attention with split keys.
pub struct AttentionScratch {
    /// `[splits, rows, q_heads, head_dim]`
    pub(crate) parts: Buffer<f32>,
    /// `[splits, q_heads, rows]`
    pub(crate) sums: Buffer<f32>,
    shape: HeadShape,
    /// The most splits times rows.
    capacity: usize,
}

impl AttentionScratch {
    /// Allocates partial results for these heads: enough splits to keep the device busy with a few rows.
    pub fn new(device: &Device, shape: HeadShape) -> Result<Self, DeviceError> {
        let wanted = BLOCKS_EACH * device.properties().multiprocessors as usize;
        // With one tile of rows, a split is one block per query head.
        let capacity = wanted.div_ceil(shape.q_heads).max(2) * ROWS_OF_BLOCK;
        Ok(Self {
            parts: device.alloc_uninit(capacity * shape.q_heads * shape.head_dim)?,
            sums: device.alloc_uninit(capacity * shape.q_heads)?,
            shape,
            capacity,
        })
    }

    /// Number of splits of the keys that gives the device enough blocks, for `blocks` blocks without splits and `tiles`
    /// key tiles.
    pub(crate) fn splits(
        &self,
        device: &Device,
        blocks: usize,
        tiles: usize,
        rows: usize,
    ) -> usize {
        let wanted = (BLOCKS_EACH * device.properties().multiprocessors as usize).div_ceil(blocks);
        wanted
            .min(tiles / TILES_EACH)
            .min(self.capacity / rows)
            .max(1)
    }
}

/// Parameters of kernels `prefill_attention_*`; same layout as `PrefillAttention` in `device/prefill_attention.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct PrefillParameters {
    queries: Address,
    keys: Address,
    values: Address,
    out: Address,
    log_sum_exp: Address,
    rows: u32,
    first: u32,
    q_heads: u32,
    kv_heads: u32,
    capacity: u32,
    window: u32,
    stages: u32,
    scale: ScaleParameters,
}

/// Parameters of kernel `combine`, which combines the partial results of split keys; same layout as `Combine` in
/// `device/combine.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct CombineParameters {
    parts: Address,
    part_sums: Address,
    out: Address,
    log_sum_exp: Address,
    splits: u32,
    rows: u32,
    q_heads: u32,
    dim: u32,
}

impl Device {
    /// Writes `out [rows, q_heads, head_dim]`, and `log_sum_exp [q_heads, rows]` if given.
    ///
    /// # Panics
    /// When shapes do not match.
    pub fn prefill_attention(
        &self,
        task: &PrefillAttention<'_>,
        scratch: &mut AttentionScratch,
        out: &mut Buffer<f32>,
        log_sum_exp: Option<&mut Buffer<f32>>,
    ) -> Result<(), DeviceError> {
        let (shape, rows) = (&task.shape, task.rows);
        let dim = supported(shape.head_dim)?;
        let elements = rows * shape.q_heads * dim;
        assert!(
            task.queries.len() >= elements && out.len() >= elements,
            "queries and out are [rows {rows}, q_heads {}, head_dim {dim}]",
            shape.q_heads
        );
        assert_eq!(*shape, scratch.shape, "the scratch is for other heads");
        task.keys.check("keys", shape, task.first + rows);
        task.values.check("values", shape, task.first + rows);
        assert_eq!(task.keys.capacity(), task.values.capacity());
        if let Some(sums) = &log_sum_exp {
            assert!(
                sums.len() >= shape.q_heads * rows,
                "log_sum_exp is [q_heads, rows {rows}]"
            );
        }
        let variant = Variant::new(self, dim, rows);
        let row_tiles = rows.div_ceil(variant.rows);
        let key_tiles = (task.first + rows).div_ceil(variant.keys);
        let splits = scratch.splits(self, row_tiles * shape.q_heads, key_tiles, rows);
        let known = log_sum_exp.as_ref().map_or(0, |sums| sums.address());
        let parameters = PrefillParameters {
            queries: task.queries.address(),
            keys: task.keys.data.address(),
            values: task.values.data.address(),
            out: if splits > 1 {
                scratch.parts.address()
            } else {
                out.address()
            },
            log_sum_exp: if splits > 1 {
                scratch.sums.address()
            } else {
                known
            },
            rows: rows as u32,
            first: task.first as u32,
            q_heads: shape.q_heads as u32,
            kv_heads: shape.kv_heads as u32,
            capacity: task.keys.capacity() as u32,
            window: task.window.unwrap_or(0) as u32,
            stages: variant.stages,
            scale: task.scale.into(),
        };
        let geometry = Geometry::new(
            [row_tiles, shape.q_heads, splits],
            THREADS,
            variant.shared_bytes,
        );
        // SAFETY: the lengths that the kernel reads and writes were checked; `out`, the sums and the scratch are
        // borrowed mutably.
        unsafe { self.launch(&variant.kernel, geometry, &parameters)? };
        if splits > 1 {
            // SAFETY: as above; this many splits wrote the parts.
            unsafe { self.combine(scratch, out.address(), known, splits, rows)? };
        }
        Ok(())
    }

    /// Combines the scratch's parts `[splits, rows]`.
    ///
    /// # Safety
    /// `out` is 0 or has `[rows, q_heads, head_dim]` elements, `log_sum_exp` is 0 or has `[q_heads, rows]` elements,
    /// and the scratch holds these parts.
    pub(crate) unsafe fn combine(
        &self,
        scratch: &AttentionScratch,
        out: Address,
        log_sum_exp: Address,
        splits: usize,
        rows: usize,
    ) -> Result<(), DeviceError> {
        let shape = scratch.shape;
        let parameters = CombineParameters {
            parts: scratch.parts.address(),
            part_sums: scratch.sums.address(),
            out,
            log_sum_exp,
            splits: splits as u32,
            rows: rows as u32,
            q_heads: shape.q_heads as u32,
            dim: shape.head_dim as u32,
        };
        let geometry = Geometry::new(
            [rows, shape.q_heads, 1],
            shape.head_dim.next_multiple_of(32),
            0,
        );
        // SAFETY: the caller's promise.
        unsafe { self.launch("combine", geometry, &parameters) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulated;

    /// On every GPU with asynchronous copies to shared memory, two blocks fit on a multiprocessor, with two tiles each
    /// where possible.
    #[test]
    fn two_blocks_fit_on_a_multiprocessor() {
        for (capability, two) in [
            (75, &[][..]),
            (80, &[64, 80, 96, 128, 256]),
            (86, &[64, 80]),
            (89, &[64, 80]),
            (90, &[64, 80, 96, 128, 256]),
        ] {
            let device = emulated::device(capability, 1 << 20);
            for head_dim in crate::HEAD_DIMS {
                let (stages, bytes) = stages(&device, head_dim);
                let what = format!("sm_{capability}, heads of {head_dim}: {stages} of {bytes}");
                assert_eq!(stages == 2, two.contains(&head_dim), "{what}");
                let of_multiprocessor =
                    device.properties().shared_bytes as usize + RESERVED_SHARED_BYTES;
                let blocks = of_multiprocessor / (bytes + RESERVED_SHARED_BYTES);
                assert!(capability == 75 || blocks >= 2, "{what}");
            }
        }
    }
}
