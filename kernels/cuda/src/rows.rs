//! [`LayerRows`]: full keys or values of one layer during prefill, in f16, with the rows of each KV head together.

use std::ops::Range;

use half::f16;
use half::slice::HalfFloatSliceExt;
use kept_kernels::PackedRows;

use crate::driver::{Address, Geometry};
use crate::{Buffer, Device, DeviceError, Readback};

/// Keys or values of one layer, `[kv_heads, capacity, head_dim]`; row == position.
pub struct LayerRows {
    pub(crate) data: Buffer<f16>,
    kv_heads: usize,
    capacity: usize,
    head_dim: usize,
}

/// The rows of one KV head of a layer, `[capacity, head_dim]`.
#[derive(Clone, Copy)]
pub struct HeadRows<'a> {
    pub(crate) layer: &'a LayerRows,
    pub(crate) head: usize,
}

impl HeadRows<'_> {
    /// A range of rows.
    ///
    /// # Panics
    /// When the head does not exist, or the range exceeds the capacity.
    pub(crate) fn part(&self, rows: Range<usize>) -> Buffer<f16> {
        self.layer.part(self.head, rows)
    }

    /// Elements of a row.
    pub(crate) fn head_dim(&self) -> usize {
        self.layer.head_dim
    }
}

/// Parameters of kernel `unpack_rows`; same layout as `Unpack` in `device/packed.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct UnpackParameters {
    packed: Address,
    out: Address,
    rows: u32,
    dim: u32,
    row_bytes: u32,
}

/// Parameters of kernel `pack_rows`; same layout as `Pack` in `device/packed.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct PackParameters {
    rows: Address,
    packed: Address,
    heads: u32,
    capacity: u32,
    dim: u32,
    first: u32,
    count: u32,
    row_bytes: u32,
}

impl Device {
    /// Unpacks `packed [count, row_bytes]` to the rows of `head` from `first` on.
    ///
    /// # Panics
    /// When they exceed the capacity, or are not a whole number of rows.
    pub fn unpack(
        &self,
        rows: &mut LayerRows,
        head: usize,
        first: usize,
        kind: PackedRows,
        packed: &Buffer<u8>,
    ) -> Result<(), DeviceError> {
        let row_bytes = kind.row_bytes(rows.head_dim);
        let count = packed.len() / row_bytes;
        assert!(
            packed.len().is_multiple_of(row_bytes),
            "{} bytes of {kind:?}",
            packed.len()
        );
        let target = rows.part(head, first..first + count);
        if kind == PackedRows::F16 {
            if count == 0 {
                return Ok(());
            }
            let (to, from) = (target.address(), packed.address());
            // SAFETY: as many bytes in both buffers, which differ; any bits are valid halves.
            return unsafe { self.driver().copy(to, from, packed.len()) };
        }
        let dim = rows.head_dim;
        let parameters = UnpackParameters {
            packed: packed.address(),
            out: target.address(),
            rows: count as u32,
            dim: dim as u32,
            row_bytes: row_bytes as u32,
        };
        let geometry = Geometry::new([(count * dim).div_ceil(256), 1, 1], 256, 0);
        // SAFETY: lengths were checked; `rows` is borrowed mutably.
        unsafe { self.launch("unpack_rows", geometry, &parameters) }
    }

    /// Packs the rows `which` of every head to the start of `packed [kv_heads, count, row_bytes]`.
    ///
    /// # Panics
    /// When a row does not exist, or `packed` is too small.
    pub fn pack(
        &self,
        rows: &LayerRows,
        which: Range<usize>,
        kind: PackedRows,
        packed: &mut Buffer<u8>,
    ) -> Result<(), DeviceError> {
        let (count, row_bytes) = (which.len(), kind.row_bytes(rows.head_dim));
        let bytes = count * row_bytes;
        assert!(
            rows.kv_heads * bytes <= packed.len() && which.end <= rows.capacity,
            "rows {which:?} of {} in {} bytes",
            rows.capacity,
            packed.len()
        );
        if kind == PackedRows::F16 {
            for head in 0..rows.kv_heads {
                let from = rows.part(head, which.clone());
                let to = packed.share(head * bytes..(head + 1) * bytes);
                if count > 0 {
                    // SAFETY: as many bytes in both buffers, which differ.
                    unsafe { self.driver().copy(to.address(), from.address(), bytes) }?;
                }
            }
            return Ok(());
        }
        let parameters = PackParameters {
            rows: rows.data.address(),
            packed: packed.address(),
            heads: rows.kv_heads as u32,
            capacity: rows.capacity as u32,
            dim: rows.head_dim as u32,
            first: which.start as u32,
            count: count as u32,
            row_bytes: row_bytes as u32,
        };
        let geometry = Geometry::warp_per_row(rows.kv_heads * count, 0);
        // SAFETY: lengths were checked; `packed` is borrowed mutably.
        unsafe { self.launch("pack_rows", geometry, &parameters) }
    }
}

impl LayerRows {
    /// Allocates `capacity` rows for every head.
    pub fn new(
        device: &Device,
        kv_heads: usize,
        capacity: usize,
        head_dim: usize,
    ) -> Result<Self, DeviceError> {
        Ok(Self {
            data: device.alloc_uninit(kv_heads * capacity * head_dim)?,
            kv_heads,
            capacity,
            head_dim,
        })
    }

    /// Row capacity of each head.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Number of KV heads, and elements of a head.
    pub(crate) fn heads(&self) -> (usize, usize) {
        (self.kv_heads, self.head_dim)
    }

    /// The rows of one KV head.
    pub fn head(&self, head: usize) -> HeadRows<'_> {
        HeadRows { layer: self, head }
    }

    /// All rows, `[kv_heads, capacity, head_dim]`.
    pub fn data(&self) -> &Buffer<f16> {
        &self.data
    }

    /// All rows, `[kv_heads, capacity, head_dim]`.
    pub fn data_mut(&mut self) -> &mut Buffer<f16> {
        &mut self.data
    }

    /// A range of rows of one head.
    ///
    /// # Panics
    /// When the range exceeds the capacity.
    pub(crate) fn part(&self, head: usize, rows: Range<usize>) -> Buffer<f16> {
        assert!(
            head < self.kv_heads && rows.end <= self.capacity,
            "rows {rows:?} of head {head}, of {} heads with room for {}",
            self.kv_heads,
            self.capacity
        );
        let first = head * self.capacity;
        self.data
            .share((first + rows.start) * self.head_dim..(first + rows.end) * self.head_dim)
    }

    /// Uploads `rows [count, head_dim]` to one head from `first` on.
    ///
    /// # Panics
    /// When they exceed the capacity.
    pub fn write_head(
        &mut self,
        head: usize,
        first: usize,
        rows: &[f32],
    ) -> Result<(), DeviceError> {
        assert!(
            first * self.head_dim + rows.len() <= self.capacity * self.head_dim
                && head < self.kv_heads,
            "{} elements from row {first} on for head {head} of {}",
            rows.len(),
            self.kv_heads
        );
        let mut halves = vec![f16::ZERO; rows.len()];
        halves.as_mut_slice().convert_from_f32_slice(rows);
        let at = (head * self.capacity + first) * self.head_dim;
        self.data.write(at, &halves)
    }

    /// Downloads the first rows of one head to `rows [count, head_dim]`.
    ///
    /// # Panics
    /// When the head has fewer rows.
    pub fn download_head(
        &self,
        head: usize,
        readback: &mut Readback<f16>,
        rows: &mut [f32],
    ) -> Result<(), DeviceError> {
        assert!(
            rows.len() <= self.capacity * self.head_dim && head < self.kv_heads,
            "{} elements of head {head} of {}",
            rows.len(),
            self.kv_heads
        );
        let first = head * self.capacity * self.head_dim;
        let range = first..first + rows.len();
        let mut rest = rows;
        readback.pieces(&self.data, range, |piece| {
            let (own, others) = std::mem::take(&mut rest).split_at_mut(piece.len());
            piece.convert_to_f32_slice(own);
            rest = others;
        })
    }

    /// Panics unless the heads match `shape` and the capacity is at least `rows`.
    pub(crate) fn check(&self, name: &str, shape: &kept_kernels::HeadShape, rows: usize) {
        assert_eq!(
            (self.kv_heads, self.head_dim),
            (shape.kv_heads, shape.head_dim),
            "{name} hold other (kv_heads, head_dim)"
        );
        assert!(
            rows <= self.capacity,
            "{name}: {rows} rows asked of heads that hold {}",
            self.capacity
        );
    }
}
