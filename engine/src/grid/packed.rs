//! Compact serialisation of a map, with a version and a checksum. Parsing never panics, whatever the bytes are.
//!
//! ```text
//! "KMAP" 1 | layers kv_heads cells | end of each cell, delta-coded | per layer 0, or 1 and runs | checksum
//!                                    a run: holders that keep the cell, number of consecutive cells
//! "KMAP" 2 | layers kv_heads tokens_per_cell cells | the rest as above; only if a cell has several tokens
//! "KMAP" 3 | as 1, but a layer with known heads is 2 and runs of their masks (heads.rs)
//! ```
//!
//! Numbers are LEB128, except the checksum: FNV-1a over everything before it, 8 bytes little endian.

use super::MapGrid;

const MAGIC: &[u8; 4] = b"KMAP";
const VERSION: u8 = 1;
const VERSION_OF_CELLS: u8 = 2;
const VERSION_OF_HEADS: u8 = 3;
/// The most counts that a map may expand to; far above any document that a model reads.
const MAX_COUNTS: u64 = 1 << 30;

/// Errors of parsing a map.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GridBytesError {
    /// Not written by [`MapGrid::to_bytes`].
    #[error("these bytes are not a map")]
    NotAMap,
    /// Written by an unknown version.
    #[error("this map has version {0}, and {VERSION} to {VERSION_OF_HEADS} are understood")]
    Version(u8),
    /// Damaged: the checksum or a field is invalid.
    #[error("this map is damaged")]
    Damaged,
}

impl MapGrid {
    /// Serialises the map.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        let cells = (self.tokens_per_cell > 1).then_some(self.tokens_per_cell);
        let heads = self.masks.iter().any(Option::is_some);
        out.push(match cells {
            None if heads => VERSION_OF_HEADS,
            None => VERSION,
            Some(_) => VERSION_OF_CELLS,
        });
        let numbers = [self.layers(), self.kv_heads].into_iter();
        for number in numbers.chain(cells).chain([self.cells()]) {
            push_varint(&mut out, number as u64);
        }
        let mut before = 0;
        for &end in &self.ends16 {
            push_varint(&mut out, u64::from(end - before));
            before = end;
        }
        for (plane, masks) in self.planes.iter().zip(&self.masks) {
            match (plane, masks) {
                (None, _) => out.push(0),
                (Some(plane), None) => {
                    out.push(1);
                    push_runs(&mut out, plane, 1);
                }
                (Some(_), Some(masks)) => {
                    out.push(2);
                    push_runs(&mut out, masks, self.mask_bytes());
                }
            }
        }
        let sum = checksum(&out);
        out.extend(sum.to_le_bytes());
        out
    }

    /// Parses the output of [`MapGrid::to_bytes`].
    ///
    /// # Errors
    /// [`GridBytesError`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, GridBytesError> {
        let rest = bytes
            .strip_prefix(MAGIC.as_slice())
            .ok_or(GridBytesError::NotAMap)?;
        let version = match rest.first() {
            Some(&version @ (VERSION | VERSION_OF_CELLS | VERSION_OF_HEADS)) => version,
            Some(&other) => return Err(GridBytesError::Version(other)),
            None => return Err(GridBytesError::NotAMap),
        };
        let (body, sum) = bytes.split_last_chunk().ok_or(GridBytesError::Damaged)?;
        if u64::from_le_bytes(*sum) != checksum(body) {
            return Err(GridBytesError::Damaged);
        }
        let fields = body.get(MAGIC.len() + 1..).unwrap_or_default();
        Fields(fields)
            .read_map(version)
            .ok_or(GridBytesError::Damaged)
    }
}

fn push_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Runs of equal values of `bytes` bytes: the value, and how often it follows.
fn push_runs(out: &mut Vec<u8>, values: &[u8], bytes: usize) {
    let mut values = values.chunks_exact(bytes).peekable();
    while let Some(value) = values.next() {
        let mut many = 1;
        while values.next_if(|next| *next == value).is_some() {
            many += 1;
        }
        out.extend(value);
        push_varint(out, many);
    }
}

pub(super) fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The bytes that are not parsed yet. All methods return `None` for invalid bytes.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn read_byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn read_varint(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.read_byte()?;
            let part = u64::from(byte & 0x7f);
            if part << shift >> shift != part {
                return None;
            }
            number |= part << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// Runs of values of `bytes` bytes, `cells` in all.
    fn read_runs(&mut self, values: &mut Vec<u8>, bytes: usize, cells: usize) -> Option<()> {
        values.clear();
        let mut left = cells;
        while left > 0 {
            let (value, rest) = self.0.split_at_checked(bytes)?;
            self.0 = rest;
            let run = usize::try_from(self.read_varint()?).ok()?;
            if run == 0 || run > left {
                return None;
            }
            left -= run;
            for _ in 0..run {
                values.extend(value);
            }
        }
        Some(())
    }

    fn read_map(mut self, version: u8) -> Option<MapGrid> {
        let (layers, kv_heads) = (self.read_varint()?, self.read_varint()?);
        let tokens_per_cell = match version {
            VERSION_OF_CELLS => self.read_varint()?,
            _ => 1,
        };
        let cells = self.read_varint()?;
        // The product is computed later and must not overflow.
        if kv_heads.checked_mul(tokens_per_cell)? > MAX_COUNTS {
            return None;
        }
        // A cell and a layer take at least one byte each, so the remaining bytes bound both before any allocation.
        let left = self.0.len() as u64;
        if cells > left || layers > left || cells.checked_mul(layers)? > MAX_COUNTS {
            return None;
        }
        let (layers, cells) = (layers as usize, cells as usize);
        let mut ends16 = Vec::with_capacity(cells);
        let mut end = 0u32;
        for _ in 0..cells {
            end = end.checked_add(u32::try_from(self.read_varint()?).ok()?)?;
            ends16.push(end);
        }
        let (kv_heads, per_cell) = (kv_heads as usize, usize::try_from(tokens_per_cell).ok()?);
        let mut grid = MapGrid::of_cells(layers, kv_heads, per_cell, ends16);
        let bytes = grid.mask_bytes();
        if version == VERSION_OF_HEADS && (cells * layers).checked_mul(bytes)? as u64 > MAX_COUNTS {
            return None;
        }
        let mut plane = Vec::with_capacity(cells);
        for layer in 0..layers {
            match (self.read_byte()?, version) {
                (0, _) => {}
                (1, _) => {
                    self.read_runs(&mut plane, 1, cells)?;
                    grid.set_layer(layer, &plane).ok()?;
                }
                (2, VERSION_OF_HEADS) => {
                    self.read_runs(&mut plane, bytes, cells)?;
                    grid.set_heads(layer, &plane).ok()?;
                }
                _ => return None,
            }
        }
        self.0.is_empty().then_some(grid)
    }
}
