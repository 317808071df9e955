//! A chunk of the prompt over everything before and in it: `device/prefill_attention.cu`.

use half::f16;
use kept_kernels::{HeadShape, Scale};

use crate::driver::{Address, Geometry};
use crate::{Buffer, Device, DeviceError, LayerRows, ScaleParameters, supported, tile_row_bytes};

/// Rows that a block takes.
const ROWS_OF_BLOCK: usize = 64;
/// Threads of a block.
const THREADS: u32 = 128;
/// Blocks wanted for each multiprocessor: two run at a time, and as many wait.
const BLOCKS_EACH: usize = 4;
/// Key tiles below which a share of the keys is not worth a block of its own.
const TILES_EACH: usize = 4;

/// Keys of a tile: fewer where heads are so wide that shared memory and registers would not hold more.
pub(crate) fn tile_keys(head_dim: usize) -> usize {
    if head_dim > 128 { 32 } else { 64 }
}

/// What a multiprocessor's shared memory loses to each block beside what the block asks for; so the most that one may ask for is all but this.
const LOST_TO_BLOCK: u32 = 1024;

/// How many tiles of keys and values stand in shared memory, and the bytes of it: two, so that one is copied while the other is used, where
/// a multiprocessor then still holds two blocks. Where it would hold one, two blocks of one tile hide more: the other one's warps compute
/// while a tile is copied.
pub(crate) fn stages(device: &Device, head_dim: usize) -> (u32, u32) {
    let one = (2 * tile_keys(head_dim) * tile_row_bytes(head_dim)) as u32;
    let of_multiprocessor = device.facts().shared_bytes + LOST_TO_BLOCK;
    let fits = 2 * (2 * one + LOST_TO_BLOCK) <= of_multiprocessor;
    match fits && device.facts().capability >= 80 {
        true => (2, 2 * one),
        false => (1, one),
    }
}

/// Attention of `rows` new rows.
pub struct PrefillAttention<'a> {
    /// Heads of the layer.
    pub shape: HeadShape,
    /// From dot products to logits.
    pub scale: Scale,
    /// Keys that a row sees, its own included; `None`: all before it.
    pub window: Option<usize>,
    /// `[rows, q_heads, head_dim]`, rotated.
    pub queries: &'a Buffer<f16>,
    /// Rows.
    pub rows: usize,
    /// Position of the first one.
    pub first: usize,
    /// Rotated keys of positions `0..first + rows`.
    pub keys: &'a LayerRows,
    /// Their values.
    pub values: &'a LayerRows,
}

/// Parts of attention that was split over its keys.
pub struct AttentionScratch {
    /// `[splits, rows, q_heads, head_dim]`
    pub(crate) parts: Buffer<f32>,
    /// `[splits, q_heads, rows]`
    pub(crate) sums: Buffer<f32>,
    shape: HeadShape,
    /// Splits times rows that there is room for.
    capacity: usize,
}

impl AttentionScratch {
    /// Room for parts of attention over these heads: as many as keep the device busy with a few rows.
    pub fn new(device: &Device, shape: HeadShape) -> Result<Self, DeviceError> {
        let wanted = BLOCKS_EACH * device.facts().multiprocessors as usize;
        // With one tile of rows a split is one block for each query head.
        let capacity = wanted.div_ceil(shape.q_heads).max(2) * ROWS_OF_BLOCK;
        Ok(Self {
            parts: device.alloc_uninit(capacity * shape.q_heads * shape.head_dim)?,
            sums: device.alloc_uninit(capacity * shape.q_heads)?,
            shape,
            capacity,
        })
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.parts.bytes() + self.sums.bytes()
    }

    /// Into how many shares the keys of `blocks` blocks, `tiles` tiles of them, are split so that the device has enough to do.
    pub(crate) fn splits(
        &self,
        device: &Device,
        blocks: usize,
        tiles: usize,
        rows: usize,
    ) -> usize {
        let wanted = (BLOCKS_EACH * device.facts().multiprocessors as usize).div_ceil(blocks);
        wanted
            .min(tiles / TILES_EACH)
            .min(self.capacity / rows)
            .max(1)
    }
}

/// `device/prefill_attention.cu`.
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

/// `device/combine.cu`: what joins the parts of attention whose keys were split, here and in `decode.rs`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CombineParameters {
    pub(crate) parts: Address,
    pub(crate) part_sums: Address,
    pub(crate) out: Address,
    pub(crate) log_sum_exp: Address,
    pub(crate) splits: u32,
    pub(crate) rows: u32,
    pub(crate) q_heads: u32,
    pub(crate) dim: u32,
}

impl Device {
    /// Writes `out [rows, q_heads, head_dim]`, and `log_sum_exp [q_heads, rows]` if it is asked for.
    ///
    /// # Panics
    /// When shapes do not fit.
    pub fn prefill_attention(
        &self,
        task: &PrefillAttention<'_>,
        scratch: &mut AttentionScratch,
        out: &mut Buffer<f32>,
        log_sum_exp: Option<&mut Buffer<f32>>,
    ) -> Result<(), DeviceError> {
        let (shape, rows) = (&task.shape, task.rows);
        let dim = supported(shape.head_dim)?;
        let numbers = rows * shape.q_heads * dim;
        assert!(
            task.queries.len() >= numbers && out.len() >= numbers,
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
        let row_tiles = rows.div_ceil(ROWS_OF_BLOCK);
        let key_tiles = (task.first + rows).div_ceil(tile_keys(dim));
        let splits = scratch.splits(self, row_tiles * shape.q_heads, key_tiles, rows);
        let (stages, shared_bytes) = stages(self, dim);
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
            stages,
            scale: task.scale.into(),
        };
        let geometry = Geometry {
            grid: [row_tiles as u32, shape.q_heads as u32, splits as u32],
            block: [THREADS, 1, 1],
            shared_bytes,
        };
        // SAFETY: every buffer has the length that the kernel reads and writes, which was checked; `out`, the sums and the scratch are
        // borrowed for writing.
        unsafe { self.launch(&format!("prefill_attention_{dim}"), geometry, &parameters)? };
        if splits > 1 {
            // SAFETY: as above; the parts were written by as many splits.
            unsafe { self.combine(scratch, out.address(), known, (splits, rows))? };
        }
        Ok(())
    }

    /// Adds up the first parts of the scratch: `(splits, rows)` of them.
    ///
    /// # Safety
    /// `out` is 0 or has room for `[rows, q_heads, head_dim]`, `log_sum_exp` is 0 or has room for `[q_heads, rows]`, and there are as
    /// many parts.
    pub(crate) unsafe fn combine(
        &self,
        scratch: &AttentionScratch,
        out: Address,
        log_sum_exp: Address,
        (splits, rows): (usize, usize),
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
        let geometry = Geometry {
            grid: [rows as u32, shape.q_heads as u32, 1],
            block: [(shape.head_dim as u32).next_multiple_of(32), 1, 1],
            shared_bytes: 0,
        };
        // SAFETY: the caller's promise.
        unsafe { self.launch("combine", geometry, &parameters) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulated;

    /// On every GPU that copies beside computing a multiprocessor holds two blocks, and two tiles of each where it can.
    #[test]
    fn two_blocks_share_a_multiprocessor() {
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
                let blocks =
                    (device.facts().shared_bytes + LOST_TO_BLOCK) / (bytes + LOST_TO_BLOCK);
                assert!(capability == 75 || blocks >= 2, "{what}");
            }
        }
    }
}
