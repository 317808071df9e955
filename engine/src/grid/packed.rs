//! A map as bytes. Parsing never panics, whatever the bytes are.
//!
//! ```text
//! layers kv_heads tokens_per_cell cells | length of each cell | per layer 0; or 1 and [cells] counts;
//!                                                               or 2 and [cells] masks (heads.rs)
//! ```
//!
//! Numbers and lengths are u32, little endian.

use super::MapGrid;

impl MapGrid {
    /// Serialises the map.
    pub fn to_bytes(&self) -> Vec<u8> {
        let [layers, cells] = [self.layers(), self.cells()];
        let numbers = [layers, self.kv_heads, self.tokens_per_cell, cells];
        let mut out = Vec::new();
        out.extend(
            numbers
                .iter()
                .flat_map(|&number| (number as u32).to_le_bytes()),
        );
        let mut before = 0;
        for &end in &self.ends16 {
            out.extend((end - before).to_le_bytes());
            before = end;
        }
        for (plane, masks) in self.planes.iter().zip(&self.masks) {
            let (kind, values) = match (plane, masks) {
                (None, _) => (0, &[][..]),
                (Some(plane), None) => (1, &plane[..]),
                (Some(_), Some(masks)) => (2, &masks[..]),
            };
            out.push(kind);
            out.extend(values);
        }
        out
    }

    /// Parses the output of [`MapGrid::to_bytes`]; `None` for other bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = Fields(bytes);
        let [layers, kv_heads, tokens_per_cell, cells] = [
            rest.number()?,
            rest.number()?,
            rest.number()?,
            rest.number()?,
        ];
        // The product is computed later and must not overflow.
        kv_heads.checked_mul(tokens_per_cell)?;
        let mut end = 0u32;
        let ends16: Option<Vec<u32>> = (rest.take(cells.checked_mul(4)?)?.as_chunks().0.iter())
            .map(|&length| {
                end = end.checked_add(u32::from_le_bytes(length))?;
                Some(end)
            })
            .collect();
        // A layer takes at least one byte.
        if layers > rest.0.len() {
            return None;
        }
        let mut grid = MapGrid::of_cells(layers, kv_heads, tokens_per_cell, ends16?);
        for layer in 0..layers {
            match rest.take(1)? {
                [0] => {}
                [1] => grid.set_layer(layer, rest.take(cells)?).ok()?,
                [2] => {
                    let masks = rest.take(cells.checked_mul(grid.mask_bytes())?)?;
                    grid.set_heads(layer, masks).ok()?;
                }
                _ => return None,
            }
        }
        rest.0.is_empty().then_some(grid)
    }
}

/// The bytes that are not parsed yet.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// The next `bytes` bytes; `None` if there are fewer.
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<usize> {
        let bytes = self.take(4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    }
}
