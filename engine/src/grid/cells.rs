//! Maps of very long documents: neighbouring tokens share a cell, so that neither a pipe nor a page has to carry every token of
//! every layer. A cell counts all slots of its tokens, so shares stay what they are; only places become coarser.
//!
//! ```text
//! tokens      t0 t1 t2 | t3 t4 t5 | t6          kept by   2 0 1 | 0 0 0 | 2     of 2 kv heads
//! cells          c0    |    c1    | c2          counts      3   |   0   | 6     of 6 slots: the last one is scaled up
//! ```

use super::MapGrid;

/// Most cells of a map. A document with more tokens has several in each.
const MOST_CELLS: usize = 1 << 18;
/// A count is a byte: cells with more slots count in steps of several.
const MOST_COUNT: usize = u8::MAX as usize;

impl MapGrid {
    /// A map without any layer yet, with cells of `tokens_per_cell` tokens; `ends16` has the end of each cell.
    pub fn of_cells(
        layers: usize,
        kv_heads: usize,
        tokens_per_cell: usize,
        ends16: Vec<u32>,
    ) -> Self {
        Self {
            tokens_per_cell: tokens_per_cell.max(1),
            ..Self::new(layers, kv_heads, ends16)
        }
    }

    /// A map without any layer yet, of tokens that end at `ends16`, in as many cells as can be carried.
    pub fn bounded(layers: usize, kv_heads: usize, ends16: Vec<u32>) -> Self {
        Self::with_most_cells(layers, kv_heads, ends16, MOST_CELLS)
    }

    pub(super) fn with_most_cells(
        layers: usize,
        kv_heads: usize,
        ends16: Vec<u32>,
        most: usize,
    ) -> Self {
        let tokens_per_cell = ends16.len().div_ceil(most);
        if tokens_per_cell <= 1 {
            return Self::new(layers, kv_heads, ends16);
        }
        let cells = ends16.chunks(tokens_per_cell);
        let ends = cells.map(|cell| cell[cell.len() - 1]).collect();
        Self::of_cells(layers, kv_heads, tokens_per_cell, ends)
    }

    /// Tokens that a cell stands for; the last one may have fewer. 1 but for very long documents.
    pub fn tokens_per_cell(&self) -> usize {
        self.tokens_per_cell
    }

    /// Slots of a cell in one layer, as counts go: `kv_heads` for every token of it, and at most 255.
    pub fn slots_per_cell(&self) -> usize {
        (self.kv_heads * self.tokens_per_cell).min(MOST_COUNT)
    }

    /// `[cells]` from `[tokens]`: what a layer keeps, as [`MapGrid::set_layer`] takes it. What is kept at all stays at least 1.
    pub fn in_cells(&self, counts: Vec<u8>) -> Vec<u8> {
        if self.tokens_per_cell == 1 {
            return counts;
        }
        let most = self.slots_per_cell();
        let cell = |tokens: &[u8]| {
            let kept: usize = tokens.iter().map(|&count| usize::from(count)).sum();
            let slots = tokens.len() * self.kv_heads;
            if kept == 0 || slots == 0 {
                return 0;
            }
            let scaled = (kept * most + slots / 2) / slots;
            scaled.clamp(1, most) as u8
        };
        counts.chunks(self.tokens_per_cell).map(cell).collect()
    }
}
