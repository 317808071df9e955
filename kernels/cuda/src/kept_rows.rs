//! [`KeptRows`]: keys or values of a compact KV cache on a device, in one of the types of a [`RowStore`].
//!
//! ```text
//! f16          elements [rows, head_dim] halves
//! q8_0, q4_0   elements [narrow, head_dim] bytes or nibbles, scales [narrow, head_dim / 32], and f16 rows
//!              [wide, head_dim] halves. Row i is narrow row i below `narrow`, and wide row i - narrow otherwise.
//! ```

use half::f16;
use kept_kernels::{CacheType, RowStore};

use crate::driver::Address;
use crate::{Buffer, Device, DeviceError};

/// Elements that share a scale in q8_0 and q4_0.
const BLOCK: usize = 32;

/// Storage type of a kept row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RowKind {
    /// 16 bits per element.
    F16,
    /// 8 bits per element, and a 16-bit scale for every 32.
    Q8_0,
    /// 4 bits per element, and a 16-bit scale for every 32; rows are Hadamard-rotated.
    Q4_0,
}

impl RowKind {
    /// The row kind of a host cache type; `None` for a type that the kernels, which compute in f16, do not have.
    pub fn of(cache: CacheType) -> Option<Self> {
        match cache {
            CacheType::F32 => None,
            CacheType::F16 => Some(Self::F16),
            CacheType::Q8_0 => Some(Self::Q8_0),
            CacheType::Q4_0 => Some(Self::Q4_0),
        }
    }

    fn cache(self) -> CacheType {
        match self {
            Self::F16 => CacheType::F16,
            Self::Q8_0 => CacheType::Q8_0,
            Self::Q4_0 => CacheType::Q4_0,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        self.cache().name()
    }

    /// Number of the kind in kernels: `store_row` of `device/store.cuh`.
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::F16 => 0,
            Self::Q8_0 => 1,
            Self::Q4_0 => 2,
        }
    }

    /// Bytes of a row without its scales.
    pub fn element_bytes(self, head_dim: usize) -> usize {
        match self {
            RowKind::F16 => 2 * head_dim,
            RowKind::Q8_0 => head_dim,
            RowKind::Q4_0 => head_dim / 2,
        }
    }

    /// Number of scales of a row.
    pub fn scales(self, head_dim: usize) -> usize {
        match self {
            RowKind::F16 => 0,
            RowKind::Q8_0 | RowKind::Q4_0 => head_dim.div_ceil(BLOCK),
        }
    }

    /// Splits a host row into elements and scales. The host stores each scale before its block, and the first half of a
    /// q4_0 block in the low nibbles; on the device neighbouring elements share a byte.
    fn split_row(self, row: &[u8], head_dim: usize, elements: &mut Vec<u8>, scales: &mut Vec<f16>) {
        if self == Self::F16 {
            return elements.extend_from_slice(row);
        }
        let blocks = row.chunks_exact(row.len() / self.scales(head_dim));
        for (block, first) in blocks.zip((0..head_dim).step_by(BLOCK)) {
            let count = BLOCK.min(head_dim - first);
            scales.push(f16::from_le_bytes([block[0], block[1]]));
            let body = &block[2..];
            if self == Self::Q8_0 {
                elements.extend_from_slice(&body[..count]);
                continue;
            }
            let nibble = |i: usize| {
                if i < BLOCK / 2 {
                    body[i] & 15
                } else {
                    body[i - BLOCK / 2] >> 4
                }
            };
            elements.extend(
                (0..count)
                    .step_by(2)
                    .map(|i| nibble(i) | nibble(i + 1) << 4),
            );
        }
    }
}

/// Keys or values of a compact KV cache: the rows of all heads. A clone is a second handle to them.
#[derive(Clone)]
pub struct KeptRows {
    pub(crate) kind: RowKind,
    /// `[narrow, element_bytes]`
    elements: Buffer<u8>,
    /// `[narrow, scales]`
    scales: Buffer<f16>,
    /// `[wide, head_dim]`
    wide: Buffer<f16>,
    /// Rows in `elements`.
    pub(crate) narrow: usize,
    head_dim: usize,
}

/// A part of kernels' parameters; same layout as `Rows` in `device/decode_attention.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RowsParameters {
    pub(crate) data: Address,
    pub(crate) scales: Address,
    pub(crate) wide: Address,
}

impl KeptRows {
    /// Allocates `rows` rows, none of them wide.
    pub fn new(
        device: &Device,
        kind: RowKind,
        rows: usize,
        head_dim: usize,
    ) -> Result<Self, DeviceError> {
        Self::with_wide(device, kind, rows, 0, head_dim)
    }

    /// Allocates `narrow` rows of `kind` and `wide` rows of f16.
    pub fn with_wide(
        device: &Device,
        kind: RowKind,
        narrow: usize,
        wide: usize,
        head_dim: usize,
    ) -> Result<Self, DeviceError> {
        Ok(Self {
            kind,
            elements: device.alloc_uninit(narrow * kind.element_bytes(head_dim))?,
            scales: device.alloc_uninit(narrow * kind.scales(head_dim))?,
            wide: device.alloc_uninit(wide * head_dim)?,
            narrow,
            head_dim,
        })
    }

    /// Elements of a row.
    pub(crate) fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Number of f16 rows in a quantised cache.
    pub(crate) fn wide_rows(&self) -> usize {
        self.wide.len() / self.head_dim
    }

    /// Number of rows, wide ones included.
    pub(crate) fn rows(&self) -> usize {
        self.narrow + self.wide_rows()
    }

    /// The narrow rows without scales, `[narrow, element_bytes]`.
    pub fn elements(&self) -> &Buffer<u8> {
        &self.elements
    }

    /// The scales, `[narrow, scales]`.
    pub fn scales(&self) -> &Buffer<f16> {
        &self.scales
    }

    /// The wide (f16) rows, `[wide, head_dim]`.
    pub fn wide(&self) -> &Buffer<f16> {
        &self.wide
    }

    /// Replaces rows by rows of a host store. `which` are pairs (row of this buffer, row of `head` in the store),
    /// ascending.
    ///
    /// # Panics
    /// When the store has another type, or a row is wide in one and narrow in the other.
    pub fn write(
        &mut self,
        store: &RowStore,
        head: usize,
        which: &[(usize, usize)],
    ) -> Result<(), DeviceError> {
        let (kind, dim) = (self.kind, self.head_dim);
        assert_eq!(store.cache_type(), kind.cache(), "rows of another type");
        let runs = which.chunk_by(|a, b| a.0 + 1 == b.0 && b.0 != self.narrow);
        for run in runs {
            let first = run[0].0;
            let own = if first < self.narrow {
                kind
            } else {
                RowKind::F16
            };
            let (mut elements, mut scales) = (Vec::new(), Vec::new());
            for &(_, row) in run {
                let (stored, bytes) = store.packed_row(head, row).expect("a packed store");
                assert_eq!(stored, own.cache(), "a row of its own kind");
                own.split_row(bytes, dim, &mut elements, &mut scales);
            }
            match first.checked_sub(self.narrow) {
                None => {
                    self.elements
                        .write(first * kind.element_bytes(dim), &elements)?;
                    self.scales.write(first * kind.scales(dim), &scales)?;
                }
                Some(wide) => {
                    let halves = elements.as_chunks::<2>().0.iter();
                    let halves: Vec<f16> = halves.map(|b| f16::from_le_bytes(*b)).collect();
                    self.wide.write(wide * dim, &halves)?;
                }
            }
        }
        Ok(())
    }

    /// Sets all rows to 0.
    #[cfg(test)]
    pub(crate) fn clear(&mut self) {
        self.elements.clear().expect("cleared");
        self.scales.clear().expect("cleared");
        self.wide.clear().expect("cleared");
    }

    pub(crate) fn parameters(&self) -> RowsParameters {
        RowsParameters {
            data: self.elements.address(),
            scales: self.scales.address(),
            wide: self.wide.address(),
        }
    }
}
