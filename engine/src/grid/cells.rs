//! Maps of very long documents: adjacent tokens share a cell, which bounds the size of messages and of the displayed
//! map. A cell counts all holders of its tokens, so shares stay the same; only the spatial resolution is coarser.
//!
//! ```text
//! tokens      t0 t1 t2 | t3 t4 t5 | t6          kept by   2 0 1 | 0 0 0 | 2     of 2 KV heads
//! cells          c0    |    c1    | c2          counts      3   |   0   | 6     of 6 holders: the last is scaled up
//! ```

use super::MapGrid;

/// The most cells of a map. In a document with more tokens several tokens share a cell.
const MAX_CELLS: usize = 1 << 18;
/// The largest count, since a count is a byte: with more holders per cell, counts are scaled down.
const MAX_COUNT: usize = u8::MAX as usize;

impl MapGrid {
    /// An empty map with cells of `tokens_per_cell` tokens; `ends16` holds the end of each cell.
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

    /// An empty map for tokens that end at `ends16`, with at most 2^18 cells.
    pub fn bounded(layers: usize, kv_heads: usize, ends16: Vec<u32>) -> Self {
        Self::with_most_cells(layers, kv_heads, ends16, MAX_CELLS)
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

    /// Tokens of a cell; the last cell may have fewer. 1 except in very long documents.
    pub fn tokens_per_cell(&self) -> usize {
        self.tokens_per_cell
    }

    /// The count of a fully kept cell in one layer: `kv_heads` times its tokens, at most 255.
    pub fn holders_per_cell(&self) -> usize {
        (self.kv_heads * self.tokens_per_cell).min(MAX_COUNT)
    }

    /// Converts the counts of a layer from `[tokens]` to `[cells]`, for [`MapGrid::set_layer`]. A cell with any kept
    /// token counts at least 1.
    pub fn in_cells(&self, counts: Vec<u8>) -> Vec<u8> {
        if self.tokens_per_cell == 1 {
            return counts;
        }
        let most = self.holders_per_cell();
        let cell = |tokens: &[u8]| {
            let kept: usize = tokens.iter().map(|&count| usize::from(count)).sum();
            let holders = tokens.len() * self.kv_heads;
            if kept == 0 || holders == 0 {
                return 0;
            }
            let scaled = (kept * most + holders / 2) / holders;
            scaled.clamp(1, most) as u8
        };
        counts.chunks(self.tokens_per_cell).map(cell).collect()
    }
}
