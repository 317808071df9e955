//! The retention map as displayed: for each token of the document, the number of holders that keep it, while
//! layers arrive one by one. A holder is one KV head of one layer.
//!
//! Offsets are UTF-16 code units of the document's text, as in JavaScript. A token that ends inside a character has
//! zero width (see [`ends16`]) and belongs to the character that the next one completes. Every share is a mean over
//! tokens (`sums.rs`). Shares refer to the layers that have arrived, so every figure is correct at any time.
//!
//! In very long documents several tokens share a cell (`cells.rs`); in all others a cell is a token.
//!
//! The earlier turns of a conversation have a map of their own ([`crate::Earlier`]). All other positions are in no map:
//! [`crate::RetentionMap`] is the exact record.

mod attention;
mod cells;
mod heads;
mod lift;
mod packed;
mod sums;

use std::ops::Range;

pub use attention::AttentionGrid;
pub use lift::{LEVELS, NEUTRAL_QUESTIONS};
pub use packed::GridBytesError;

/// For each layer and cell of the document, the number of holders that keep the cell: for a cell of one token, the KV
/// heads that keep the token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapGrid {
    kv_heads: usize,
    tokens_per_cell: usize,
    /// `[cells]`: end of each cell, ascending.
    ends16: Vec<u32>,
    /// `[layers][cells]`: holders that keep the cell; `None` until the layer arrives.
    planes: Vec<Option<Vec<u8>>>,
    /// `[layers][cells]`: which heads keep the cell, as in `heads.rs`; `None` where that is not known.
    masks: Vec<Option<Vec<u8>>>,
    /// `[cells]`: sum over the layers.
    totals: Vec<u16>,
}

/// A layer that does not fit the map, in words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GridError(String);

impl GridError {
    /// The number of `counts` differs from the number of `cells`.
    pub fn wrong_length(counts: usize, cells: usize) -> Self {
        Self(format!("counts for {counts} cells in a map of {cells}"))
    }

    /// A cell's `count` exceeds its `holders`.
    fn too_many(count: u32, holders: usize) -> Self {
        Self(format!("a cell kept by {count} of {holders} slots"))
    }
}

impl MapGrid {
    /// An empty map with one cell per token. `ends16`: see the function [`ends16()`].
    pub fn new(layers: usize, kv_heads: usize, ends16: Vec<u32>) -> Self {
        Self {
            kv_heads,
            tokens_per_cell: 1,
            totals: vec![0; ends16.len()],
            planes: vec![None; layers],
            masks: vec![None; layers],
            ends16,
        }
    }

    /// Number of cells: the document's tokens, or fewer in very long documents.
    pub fn cells(&self) -> usize {
        self.ends16.len()
    }

    /// Layers of the map.
    pub fn layers(&self) -> usize {
        self.planes.len()
    }

    /// KV heads per layer.
    pub fn kv_heads(&self) -> usize {
        self.kv_heads
    }

    /// `[cells]`: end of each cell in UTF-16 code units, ascending.
    pub fn ends16(&self) -> &[u32] {
        &self.ends16
    }

    /// Sets or replaces a layer. `counts` is `[cells]`: holders that keep each cell ([`MapGrid::in_cells`]); which
    /// heads these are is not known ([`MapGrid::set_heads`]).
    ///
    /// # Errors
    /// [`GridError`]; the map is then unchanged.
    pub fn set_layer(&mut self, layer: usize, counts: &[u8]) -> Result<(), GridError> {
        let (layers, cells) = (self.planes.len(), self.cells());
        let holders = self.holders_per_cell();
        let Some(plane) = self.planes.get_mut(layer) else {
            let why = format!("layer {layer} of a map with {layers} layers");
            return Err(GridError(why));
        };
        if counts.len() != cells {
            return Err(GridError::wrong_length(counts.len(), cells));
        }
        if let Some(&count) = counts.iter().find(|&&c| usize::from(c) > holders) {
            return Err(GridError::too_many(count.into(), holders));
        }
        if let Some(before) = plane {
            for (total, &count) in self.totals.iter_mut().zip(before.iter()) {
                *total = total.saturating_sub(u16::from(count));
            }
        }
        for (total, &count) in self.totals.iter_mut().zip(counts) {
            *total = total.saturating_add(u16::from(count));
        }
        *plane = Some(counts.to_vec());
        self.masks[layer] = None;
        Ok(())
    }

    /// Layers that have arrived.
    pub fn layers_done(&self) -> usize {
        self.planes.iter().flatten().count()
    }

    /// The number of holders that can keep a cell: over all layers that have arrived, or in one layer (0 if it has not
    /// arrived).
    pub fn holders(&self, layer: Option<usize>) -> u32 {
        let layers = match layer {
            None => self.layers_done(),
            Some(layer) => usize::from(self.layer(layer).is_some()),
        };
        (layers * self.holders_per_cell()) as u32
    }

    /// `[cells]`: holders that keep each cell, in all layers or in one.
    pub fn counts(&self, layer: Option<usize>) -> Vec<u16> {
        match layer {
            None => self.totals.clone(),
            Some(layer) => match self.layer(layer) {
                Some(plane) => plane.iter().map(|&c| u16::from(c)).collect(),
                None => vec![0; self.cells()],
            },
        }
    }

    /// `[cells]`: holders of one layer that keep each cell; `None` if the layer has not arrived.
    pub fn layer(&self, layer: usize) -> Option<&[u8]> {
        self.planes.get(layer)?.as_deref()
    }

    /// The UTF-16 code units of the cell with index `cell`, or `None` if out of range.
    pub fn range16(&self, cell: usize) -> Option<Range<u32>> {
        let end = *self.ends16.get(cell)?;
        let start = match cell {
            0 => 0,
            _ => self.ends16[cell - 1],
        };
        Some(start..end)
    }
}

/// The end of every token in UTF-16 code units of `text`. The byte ranges `spans` of the tokens tile the text. One
/// pass.
///
/// A token that ends inside a character gets the end of the token before it; the token that completes the character
/// gets the character's end.
///
/// ```text
/// text     a  é(2 bytes)  😀(4 bytes)  b         tokens  [a] [é] [😀 1..2] [😀 3..4] [b]
/// UTF-16   1  1           2           1         ends     1   2   2         4         5
/// ```
pub fn ends16(text: &str, spans: &[Range<u32>]) -> Vec<u32> {
    let (mut byte, mut unit) = (0usize, 0u32);
    let mut characters = text.chars();
    let mut next = characters.next();
    spans
        .iter()
        .map(|span| {
            while let Some(c) = next
                && byte + c.len_utf8() <= span.end as usize
            {
                byte += c.len_utf8();
                unit += c.len_utf16() as u32;
                next = characters.next();
            }
            unit
        })
        .collect()
}

#[cfg(test)]
mod tests;
