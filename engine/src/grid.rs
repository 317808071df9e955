//! What a person sees of a retention map: per token of the document, in how many layer-head slots it is kept, while the layers
//! arrive one by one.
//!
//! Offsets are UTF-16 code units of the document's text, as a page counts. A token that ends inside a character has no width
//! of its own (see [`ends16`]); where text is summed up it counts with the token that completes the character, and the larger
//! count is taken, so a character is as kept as its most kept token. Shares are of the layers that have arrived, so every
//! figure is right at every moment.
//!
//! Not here: positions, the prompt's other tokens, files. [`crate::RetentionMap`] is the exact record.

mod packed;
mod sums;

use std::ops::Range;

pub use packed::GridBytesError;
pub use sums::TableRow;

/// Per layer and token of the document, how many kv heads keep the token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapGrid {
    kv_heads: usize,
    /// `[tokens]`: end of each token, ascending.
    ends16: Vec<u32>,
    /// `[layers][tokens]`: kv heads that keep the token; `None` until the layer arrives.
    planes: Vec<Option<Vec<u8>>>,
    /// `[tokens]`: sum of the planes.
    totals: Vec<u16>,
}

/// A layer that does not fit the map.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GridError {
    /// No such layer.
    #[error("layer {layer} of a map with {layers} layers")]
    NoSuchLayer {
        /// The layer.
        layer: usize,
        /// Layers of the map.
        layers: usize,
    },
    /// Counts for another number of tokens.
    #[error("counts for {counts} tokens in a map of {tokens}")]
    WrongLength {
        /// Counts given.
        counts: usize,
        /// Tokens of the map.
        tokens: usize,
    },
    /// More heads than there are.
    #[error("a token kept by {count} of {kv_heads} heads")]
    TooMany {
        /// The count.
        count: u8,
        /// Heads of the map.
        kv_heads: usize,
    },
}

/// One token as a person asks about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenSlots {
    /// First UTF-16 code unit.
    pub start16: u32,
    /// One past the last.
    pub end16: u32,
    /// Slots that keep it.
    pub kept: u32,
    /// Slots of the layers that have arrived.
    pub slots: u32,
    /// `[layers]`: kv heads that keep it; 0 for a layer that has not arrived.
    pub per_layer: Vec<u8>,
}

impl MapGrid {
    /// A map without any layer yet. `ends16` as [`ends16`] gives it.
    pub fn new(layers: usize, kv_heads: usize, ends16: Vec<u32>) -> Self {
        Self {
            kv_heads,
            totals: vec![0; ends16.len()],
            planes: vec![None; layers],
            ends16,
        }
    }

    /// Tokens of the document.
    pub fn tokens(&self) -> usize {
        self.ends16.len()
    }

    /// Layers of the model.
    pub fn layers(&self) -> usize {
        self.planes.len()
    }

    /// Key/value heads per layer.
    pub fn kv_heads(&self) -> usize {
        self.kv_heads
    }

    /// `[tokens]`: end of each token in UTF-16 code units, ascending.
    pub fn ends16(&self) -> &[u32] {
        &self.ends16
    }

    /// Sets or replaces a layer: `[tokens]` kv heads that keep each token.
    ///
    /// # Errors
    /// [`GridError`]; the map is then as it was.
    pub fn set_layer(&mut self, layer: usize, counts: &[u8]) -> Result<(), GridError> {
        let (layers, tokens) = (self.planes.len(), self.tokens());
        let Some(plane) = self.planes.get_mut(layer) else {
            return Err(GridError::NoSuchLayer { layer, layers });
        };
        if counts.len() != tokens {
            return Err(GridError::WrongLength {
                counts: counts.len(),
                tokens,
            });
        }
        if let Some(&count) = counts.iter().find(|&&c| usize::from(c) > self.kv_heads) {
            return Err(GridError::TooMany {
                count,
                kv_heads: self.kv_heads,
            });
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
        Ok(())
    }

    /// Layers that have arrived.
    pub fn layers_done(&self) -> usize {
        self.planes.iter().flatten().count()
    }

    /// Slots that a token can be kept in: of the layers that have arrived, or of one layer (none if it has not).
    pub fn slots(&self, layer: Option<usize>) -> u32 {
        let layers = match layer {
            None => self.layers_done(),
            Some(layer) => usize::from(self.layer(layer).is_some()),
        };
        (layers * self.kv_heads) as u32
    }

    /// `[tokens]`: slots that keep each token, in all layers or in one.
    pub fn counts(&self, layer: Option<usize>) -> Vec<u16> {
        match layer {
            None => self.totals.clone(),
            Some(layer) => match self.layer(layer) {
                Some(plane) => plane.iter().map(|&c| u16::from(c)).collect(),
                None => vec![0; self.tokens()],
            },
        }
    }

    /// The token number `token` of the document, if there is one.
    pub fn token(&self, token: usize) -> Option<TokenSlots> {
        let range = self.range16(token)?;
        Some(TokenSlots {
            start16: range.start,
            end16: range.end,
            kept: u32::from(self.totals[token]),
            slots: self.slots(None),
            per_layer: (0..self.planes.len())
                .map(|layer| self.layer(layer).map_or(0, |plane| plane[token]))
                .collect(),
        })
    }

    /// `[tokens]`: kv heads of one layer that keep each token, if the layer has arrived.
    pub fn layer(&self, layer: usize) -> Option<&[u8]> {
        self.planes.get(layer)?.as_deref()
    }

    fn range16(&self, token: usize) -> Option<Range<u32>> {
        let end = *self.ends16.get(token)?;
        let start = match token {
            0 => 0,
            _ => self.ends16[token - 1],
        };
        Some(start..end)
    }
}

/// The end of every token in UTF-16 code units of `text`, whose tokens are the byte ranges `spans`, tiling it. One pass.
///
/// A token that ends inside a character has the end of the token before it; the one that completes the character has the
/// character's end.
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
