//! A map as bytes, for a store: small, with a version and a checksum. Reading never panics, whatever the bytes are.
//!
//! ```text
//! "KMAP" 1 | layers kv_heads tokens | end of each token, as the step from the one before | per layer 0, or 1 and runs | sum
//!                                                          a run: heads that keep, how many tokens in a row
//! ```
//!
//! Numbers are LEB128 but for the sum, FNV-1a over everything before it, 8 bytes little endian.

use super::MapGrid;

const MAGIC: &[u8; 4] = b"KMAP";
const VERSION: u8 = 1;
/// Counts that a map may unfold to. No document that a model reads comes near.
const MOST_COUNTS: u64 = 1 << 30;

/// Bytes that are no map.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GridBytesError {
    /// Not written by [`MapGrid::to_bytes`].
    #[error("these bytes are not a map")]
    NotAMap,
    /// Written by another version.
    #[error("this map has version {0}, and {VERSION} is understood")]
    Version(u8),
    /// Damaged.
    #[error("this map is damaged")]
    Damaged,
}

impl MapGrid {
    /// The map as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.push(VERSION);
        for number in [self.layers(), self.kv_heads, self.tokens()] {
            put(&mut out, number as u64);
        }
        let mut before = 0;
        for &end in &self.ends16 {
            put(&mut out, u64::from(end - before));
            before = end;
        }
        for plane in &self.planes {
            out.push(u8::from(plane.is_some()));
            let Some(plane) = plane else { continue };
            for run in plane.chunk_by(|a, b| a == b) {
                out.push(run[0]);
                put(&mut out, run.len() as u64);
            }
        }
        let sum = checksum(&out);
        out.extend(sum.to_le_bytes());
        out
    }

    /// The map that [`MapGrid::to_bytes`] wrote.
    ///
    /// # Errors
    /// [`GridBytesError`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, GridBytesError> {
        let rest = bytes
            .strip_prefix(MAGIC.as_slice())
            .ok_or(GridBytesError::NotAMap)?;
        match rest.first() {
            Some(&VERSION) => {}
            Some(&other) => return Err(GridBytesError::Version(other)),
            None => return Err(GridBytesError::NotAMap),
        }
        let (body, sum) = bytes.split_last_chunk().ok_or(GridBytesError::Damaged)?;
        if u64::from_le_bytes(*sum) != checksum(body) {
            return Err(GridBytesError::Damaged);
        }
        let fields = body.get(MAGIC.len() + 1..).unwrap_or_default();
        Fields(fields).map().ok_or(GridBytesError::Damaged)
    }
}

fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

pub(super) fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// What is still to be read. Everything gives `None` where the bytes do not fit.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
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

    fn map(mut self) -> Option<MapGrid> {
        let (layers, kv_heads, tokens) = (self.number()?, self.number()?, self.number()?);
        // A token and a layer take at least a byte each, so the bytes bound both before anything is allocated.
        let left = self.0.len() as u64;
        if tokens > left || layers > left || tokens.checked_mul(layers)? > MOST_COUNTS {
            return None;
        }
        let (layers, tokens) = (layers as usize, tokens as usize);
        let mut ends16 = Vec::with_capacity(tokens);
        let mut end = 0u32;
        for _ in 0..tokens {
            end = end.checked_add(u32::try_from(self.number()?).ok()?)?;
            ends16.push(end);
        }
        let mut grid = MapGrid::new(layers, usize::try_from(kv_heads).ok()?, ends16);
        let mut plane = Vec::with_capacity(tokens);
        for layer in 0..layers {
            match self.byte()? {
                0 => continue,
                1 => {}
                _ => return None,
            }
            plane.clear();
            while plane.len() < tokens {
                let count = self.byte()?;
                let run = usize::try_from(self.number()?).ok()?;
                if run == 0 || run > tokens - plane.len() {
                    return None;
                }
                plane.resize(plane.len() + run, count);
            }
            grid.set_layer(layer, &plane).ok()?;
        }
        self.0.is_empty().then_some(grid)
    }
}
