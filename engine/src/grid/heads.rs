//! Which KV heads keep each token, and the map as a picture: a row per layer or head, a column per stretch of tokens.
//! Known in maps with one token per cell.
//!
//! ```text
//! masks of a layer, [cells][bytes], bytes = kv_heads / 8 rounded up: bit h of a cell's mask is KV head h
//!     10 heads    cell 0: 0000_0101 0000_0010    kept by heads 0, 2 and 9
//! ```

use std::ops::Range;

use super::{GridError, MapGrid};
use crate::CompactLayer;

impl MapGrid {
    /// Bytes of the mask of a cell.
    pub(super) fn mask_bytes(&self) -> usize {
        self.kv_heads.div_ceil(8).max(1)
    }

    /// Whether the map can tell which heads keep a token.
    pub fn can_have_heads(&self) -> bool {
        self.tokens_per_cell == 1
    }

    /// Sets or replaces a layer by its masks, as the module describes them.
    ///
    /// # Errors
    /// [`GridError`]; the map is then unchanged.
    pub fn set_heads(&mut self, layer: usize, masks: &[u8]) -> Result<(), GridError> {
        let bytes = self.mask_bytes();
        if !self.can_have_heads() || masks.len() != self.cells() * bytes {
            return Err(GridError::wrong_length(masks.len() / bytes, self.cells()));
        }
        let count = |mask: &[u8]| -> u32 { mask.iter().map(|byte| byte.count_ones()).sum() };
        // Bits of heads that do not exist.
        let used = self.kv_heads % 8;
        let has_unused_bits = |mask: &&[u8]| used != 0 && mask[bytes - 1] >> used != 0;
        if let Some(mask) = masks.chunks_exact(bytes).find(has_unused_bits) {
            return Err(GridError::too_many(count(mask), self.kv_heads));
        }
        let counts: Vec<u8> = masks
            .chunks_exact(bytes)
            .map(|mask| count(mask).min(255) as u8)
            .collect();
        self.set_layer(layer, &counts)?;
        self.masks[layer] = Some(masks.to_vec());
        Ok(())
    }

    /// Sets or replaces a layer by the rows that it keeps. `positions`: of the map's tokens in the prompt, ascending.
    ///
    /// # Errors
    /// [`GridError`]; the map is then unchanged.
    pub fn set_kept(
        &mut self,
        layer: usize,
        kept: &CompactLayer,
        positions: &[Range<usize>],
    ) -> Result<(), GridError> {
        let first = positions.first().map_or(0, |range| range.start);
        let whole = first..positions.last().map_or(0, |range| range.end);
        // Of all positions in between; the others are left out.
        let own = |values: Vec<u8>, bytes: usize| -> Vec<u8> {
            let own = positions.iter();
            own.flat_map(|range| {
                &values[(range.start - first) * bytes..(range.end - first) * bytes]
            })
            .copied()
            .collect()
        };
        if self.can_have_heads() {
            self.set_heads(layer, &own(kept.masks(whole), self.mask_bytes()))
        } else {
            let counts = self.in_cells(own(kept.counts(whole), 1));
            self.set_layer(layer, &counts)
        }
    }

    /// A layer between programs: its masks, or the counts of cells of several tokens; empty if it has not arrived.
    pub fn layer_bytes(&self, layer: usize) -> &[u8] {
        let known = self.masks(layer).or_else(|| self.layer(layer));
        known.unwrap_or_default()
    }

    /// Number of [`MapGrid::layer_bytes`] of a layer that has arrived.
    pub fn layer_length(&self) -> usize {
        let heads = self.can_have_heads();
        self.cells() * if heads { self.mask_bytes() } else { 1 }
    }

    /// Sets or replaces a layer by its [`MapGrid::layer_bytes`].
    ///
    /// # Errors
    /// [`GridError`]; the map is then unchanged.
    pub fn set_layer_bytes(&mut self, layer: usize, bytes: &[u8]) -> Result<(), GridError> {
        if self.can_have_heads() {
            self.set_heads(layer, bytes)
        } else {
            self.set_layer(layer, bytes)
        }
    }

    /// The masks of a layer; `None` if they are not known.
    pub fn masks(&self, layer: usize) -> Option<&[u8]> {
        self.masks.get(layer)?.as_deref()
    }

    /// The KV heads of a layer that keep a cell, ascending; `None` if they are not known.
    pub fn heads_of(&self, layer: usize, cell: usize) -> Option<Vec<usize>> {
        let bytes = self.mask_bytes();
        let mask = self.masks(layer)?.get(cell * bytes..(cell + 1) * bytes)?;
        let kept = |head: &usize| (mask[head / 8] >> (head % 8)) & 1 == 1;
        Some((0..self.kv_heads).filter(kept).collect())
    }

    /// `[rows][columns]`: the mean share of holders that keep the cells of each column, 0 to 255 for 0 to 100 %; a
    /// nonzero share is at least 1. The columns divide `cells` evenly; a row is a layer, or with `by_head` a KV head,
    /// layer by layer. `None` with `by_head` if a layer that has arrived has no masks. Layers that have not arrived are
    /// 0.
    pub fn picture(&self, cells: Range<usize>, columns: usize, by_head: bool) -> Option<Vec<u8>> {
        let cells = cells.start.min(self.cells())..cells.end.min(self.cells());
        let columns = columns.min(cells.len());
        let rows = if by_head { self.kv_heads } else { 1 };
        let mut picture = vec![0; self.layers() * rows * columns];
        if picture.is_empty() {
            return Some(picture);
        }
        for (layer, rows) in picture.chunks_exact_mut(rows * columns).enumerate() {
            let Some(plane) = self.layer(layer) else {
                continue;
            };
            for (column, cells) in columns_of(&cells, columns).enumerate() {
                if by_head {
                    let kept = self.kept_by_head(layer, cells.clone())?;
                    for (head, kept) in kept.into_iter().enumerate() {
                        rows[head * columns + column] = share(kept, cells.len());
                    }
                } else {
                    let kept = plane[cells.clone()]
                        .iter()
                        .map(|&count| usize::from(count))
                        .sum();
                    rows[column] = share(kept, cells.len() * self.holders_per_cell());
                }
            }
        }
        Some(picture)
    }

    /// `[kv_heads]`: how many of the cells each head keeps.
    fn kept_by_head(&self, layer: usize, cells: Range<usize>) -> Option<Vec<usize>> {
        let bytes = self.mask_bytes();
        let masks = &self.masks(layer)?[cells.start * bytes..cells.end * bytes];
        let mut kept = vec![0; self.kv_heads];
        for mask in masks.chunks_exact(bytes) {
            for (byte, &bits) in mask.iter().enumerate() {
                let mut bits = bits;
                while bits != 0 {
                    kept[byte * 8 + bits.trailing_zeros() as usize] += 1;
                    bits &= bits - 1;
                }
            }
        }
        Some(kept)
    }
}

/// The column of `cells` that holds `cell`, as in [`columns_of`].
pub(super) fn column_of(cells: &Range<usize>, columns: usize, cell: usize) -> usize {
    ((cell - cells.start + 1) * columns - 1) / cells.len()
}

/// `cells` as `columns` ranges of equal length, up to one cell.
fn columns_of(cells: &Range<usize>, columns: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let (start, length) = (cells.start, cells.len());
    let edge = move |column: usize| start + length * column / columns;
    (0..columns).map(move |column| edge(column)..edge(column + 1))
}

/// `kept` of `holders`, 255 for all; any of them is at least 1.
pub(super) fn share(kept: usize, holders: usize) -> u8 {
    match (kept, holders) {
        (0, _) | (_, 0) => 0,
        (kept, holders) => ((kept * 255 + holders / 2) / holders).clamp(1, 255) as u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    /// A map with random masks, and `[layers][kv_heads][cells]`.
    fn drawn(random: &mut StdRng) -> (MapGrid, Vec<Vec<Vec<bool>>>) {
        let (layers, heads, cells) = (
            random.random_range(1..4),
            random.random_range(1..20usize),
            random.random_range(1..40usize),
        );
        let mut map = MapGrid::new(layers, heads, (1..=cells as u32).collect());
        let mut kept = vec![vec![vec![false; cells]; heads]; layers];
        for (layer, kept) in kept.iter_mut().enumerate() {
            let mut masks = vec![0u8; cells * heads.div_ceil(8)];
            for (head, cells) in kept.iter_mut().enumerate() {
                for (cell, kept) in cells.iter_mut().enumerate() {
                    *kept = random.random_bool(0.4);
                    masks[cell * heads.div_ceil(8) + head / 8] |= u8::from(*kept) << (head % 8);
                }
            }
            map.set_heads(layer, &masks).expect("fits");
        }
        (map, kept)
    }

    #[test]
    fn counts_are_those_of_the_heads_and_bytes_keep_them() {
        let mut random = StdRng::seed_from_u64(1);
        for _ in 0..100 {
            let (map, kept) = drawn(&mut random);
            for (layer, kept) in kept.iter().enumerate() {
                for cell in 0..map.cells() {
                    let heads: Vec<usize> =
                        (0..kept.len()).filter(|&head| kept[head][cell]).collect();
                    assert_eq!(usize::from(map.counts(Some(layer))[cell]), heads.len());
                    assert_eq!(map.heads_of(layer, cell), Some(heads));
                }
            }
            assert_eq!(MapGrid::from_bytes(&map.to_bytes()), Ok(map));
        }
    }

    #[test]
    fn the_picture_is_the_mean_of_each_column() {
        let mut random = StdRng::seed_from_u64(2);
        for _ in 0..200 {
            let (map, kept) = drawn(&mut random);
            let start = random.random_range(0..map.cells());
            let end = random.random_range(start..map.cells()) + 1;
            let columns = random.random_range(1..20usize);
            let real = columns.min(end - start);
            let by_head = map.picture(start..end, columns, true).expect("masks");
            let by_layer = map.picture(start..end, columns, false).expect("a picture");
            for column in 0..real {
                let cells = start + (end - start) * column / real
                    ..start + (end - start) * (column + 1) / real;
                for (layer, kept) in kept.iter().enumerate() {
                    let mut all = 0;
                    for (head, kept) in kept.iter().enumerate() {
                        let many = kept[cells.clone()].iter().filter(|&&kept| kept).count();
                        all += many;
                        let row = layer * map.kv_heads() + head;
                        assert_eq!(by_head[row * real + column], share(many, cells.len()));
                    }
                    let found = by_layer[layer * real + column];
                    assert_eq!(found, share(all, cells.len() * map.kv_heads()));
                }
            }
        }
    }

    #[test]
    fn heads_are_forgotten_with_their_counts() {
        let mut map = MapGrid::new(2, 3, vec![1, 2]);
        map.set_heads(0, &[0b101, 0]).expect("fits");
        assert_eq!(map.heads_of(0, 0), Some(vec![0, 2]));
        assert_eq!(
            map.picture(0..2, 2, true).map(|picture| picture.len()),
            Some(12)
        );
        map.set_layer(0, &[1, 1]).expect("fits");
        assert_eq!(
            (map.heads_of(0, 0), map.picture(0..2, 2, true)),
            (None, None)
        );
        assert_eq!(map.picture(0..2, 9, false), Some(vec![85, 85, 0, 0]));
        assert!(
            map.set_heads(0, &[0b1000, 0]).is_err(),
            "there is no fourth head"
        );
        assert!(map.set_heads(0, &[1]).is_err() && map.set_heads(2, &[1, 1]).is_err());
        let mut cells = MapGrid::of_cells(1, 3, 2, vec![1, 2]);
        assert!(
            cells.set_heads(0, &[1, 1]).is_err(),
            "a cell of several tokens"
        );
    }
}
