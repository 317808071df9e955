//! [`LayerRows`]: the keys or the values of one layer while a prompt is read, in f16, one run of rows per kv head.

use half::f16;
use half::slice::HalfFloatSliceExt;
use kept_kernels::PackedRows;

use crate::driver::{Address, Geometry};
use crate::{Buffer, Device, DeviceError};

/// Keys or values of one layer, `[kv_heads, capacity, head_dim]`; row == position.
pub struct LayerRows {
    pub(crate) data: Buffer<f16>,
    kv_heads: usize,
    capacity: usize,
    head_dim: usize,
}

/// `device/unpack.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct UnpackParameters {
    packed: Address,
    out: Address,
    rows: u32,
    dim: u32,
    row_bytes: u32,
}

impl Device {
    /// Replaces rows of one head of `rows` from `first` on by packed ones, `bytes [count, row_bytes]`, which pass through `room`.
    ///
    /// # Panics
    /// When they do not fit there or in `room`, or are no whole rows.
    pub fn write_packed(
        &self,
        rows: &mut LayerRows,
        (head, first): (usize, usize),
        (kind, bytes): (PackedRows, &[u8]),
        room: &mut Buffer<u8>,
    ) -> Result<(), DeviceError> {
        let (capacity, dim) = (rows.capacity, rows.head_dim);
        let row_bytes = kind.row_bytes(dim);
        let count = bytes.len() / row_bytes;
        assert!(
            bytes.len().is_multiple_of(row_bytes)
                && first + count <= capacity
                && head < rows.kv_heads,
            "{} bytes of {kind:?} from row {first} on for head {head} of {}",
            bytes.len(),
            rows.kv_heads
        );
        let at = (head * capacity + first) * dim;
        if kind == PackedRows::F16 {
            return rows.data.write_bytes(at, bytes);
        }
        room.write(0, bytes)?;
        let target = rows.data.share(at..at + count * dim);
        let parameters = UnpackParameters {
            packed: room.address(),
            out: target.address(),
            rows: count as u32,
            dim: dim as u32,
            row_bytes: row_bytes as u32,
        };
        let geometry = Geometry {
            grid: [(count * dim).div_ceil(256) as u32, 1, 1],
            block: [256, 1, 1],
            shared_bytes: 0,
        };
        // SAFETY: lengths were checked; `rows` is borrowed for writing.
        unsafe { self.launch("unpack_rows", geometry, &parameters) }
    }
}

impl LayerRows {
    /// Room for `capacity` rows in every head.
    pub fn new(
        device: &Device,
        kv_heads: usize,
        capacity: usize,
        head_dim: usize,
    ) -> Result<Self, DeviceError> {
        Ok(Self {
            data: device.room(kv_heads * capacity * head_dim)?,
            kv_heads,
            capacity,
            head_dim,
        })
    }

    /// Bytes of the rows, used or not.
    pub fn bytes(&self) -> u64 {
        self.data.bytes()
    }

    /// Rows that each head has room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Heads, and numbers of each.
    pub(crate) fn heads(&self) -> (usize, usize) {
        (self.kv_heads, self.head_dim)
    }

    /// The numbers, `[kv_heads, capacity, head_dim]`.
    pub fn data(&self) -> &Buffer<f16> {
        &self.data
    }

    /// The numbers, `[kv_heads, capacity, head_dim]`.
    pub fn data_mut(&mut self) -> &mut Buffer<f16> {
        &mut self.data
    }

    /// Replaces rows of one head from `first` on: `rows [count, head_dim]`.
    ///
    /// # Panics
    /// When they do not fit.
    pub fn write_head(
        &mut self,
        head: usize,
        first: usize,
        rows: &[f32],
    ) -> Result<(), DeviceError> {
        assert!(
            first * self.head_dim + rows.len() <= self.capacity * self.head_dim
                && head < self.kv_heads,
            "{} numbers from row {first} on for head {head} of {}",
            rows.len(),
            self.kv_heads
        );
        let mut halves = vec![f16::ZERO; rows.len()];
        halves.as_mut_slice().convert_from_f32_slice(rows);
        let at = (head * self.capacity + first) * self.head_dim;
        self.data.write(at, &halves)
    }

    /// Copies the first rows of one head to the host: `rows [count, head_dim]`.
    ///
    /// # Panics
    /// When there are not as many.
    pub fn read_head(&self, head: usize, rows: &mut [f32]) -> Result<(), DeviceError> {
        assert!(
            rows.len() <= self.capacity * self.head_dim && head < self.kv_heads,
            "{} numbers of head {head} of {}",
            rows.len(),
            self.kv_heads
        );
        let mut halves = vec![f16::ZERO; rows.len()];
        self.data
            .read(head * self.capacity * self.head_dim, &mut halves)?;
        halves.as_slice().convert_to_f32_slice(rows);
        Ok(())
    }

    /// Panics unless these are rows of such heads with room for `rows` of them.
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
