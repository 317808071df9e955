//! [`AttentionGrid`]: what the heads of an answer looked at.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::MapGrid;
use super::heads::{column_of, share};
use crate::HeadAttention;

/// For each KV head of each layer, the cells of the document that the answer's tokens attended to most.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttentionGrid {
    /// KV heads per layer.
    kv_heads: usize,
    /// `[layers * kv_heads]`: cells with their votes ([`crate::Votes::by_head`]) in thousandths.
    heads: Vec<Vec<(u32, u32)>>,
}

impl AttentionGrid {
    /// In the cells of `map`.
    pub fn new(map: &MapGrid, heads: &[HeadAttention]) -> Self {
        let kv_heads = map.kv_heads();
        let mut grid = vec![Vec::new(); map.layers() * kv_heads];
        for seen in heads.iter().filter(|seen| seen.head < kv_heads) {
            let Some(cells) = grid.get_mut(seen.layer * kv_heads + seen.head) else {
                continue;
            };
            for &(token, votes) in &seen.tokens {
                let cell = token / map.tokens_per_cell() as u32;
                let votes = (1000.0 * votes).round() as u32;
                match cells
                    .iter_mut()
                    .find(|known: &&mut (u32, u32)| known.0 == cell)
                {
                    Some(known) => known.1 += votes,
                    None => cells.push((cell, votes)),
                }
            }
        }
        Self {
            kv_heads,
            heads: grid,
        }
    }

    /// `[rows][columns]`: the share of a row's attention that went to the cells of each column, 0 to 255 for 0 to 100 %, as
    /// [`MapGrid::picture`]. `None` without any attention.
    pub fn picture(&self, cells: Range<usize>, columns: usize, by_head: bool) -> Option<Vec<u8>> {
        if self.heads.iter().all(Vec::is_empty) {
            return None;
        }
        let columns = columns.min(cells.len());
        let together = if by_head { 1 } else { self.kv_heads };
        let mut picture = Vec::with_capacity(self.heads.len() / together * columns);
        for heads in self.heads.chunks(together) {
            let mut row = vec![0; columns];
            let mut all = 0;
            for &(cell, votes) in heads.iter().flatten() {
                all += votes as usize;
                if cells.contains(&(cell as usize)) {
                    row[column_of(&cells, columns, cell as usize)] += votes as usize;
                }
            }
            picture.extend(row.into_iter().map(|votes| share(votes, all)));
        }
        Some(picture)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_row_are_of_its_own_attention() {
        let map = MapGrid::new(2, 2, (1..=10).collect());
        let head = |layer, head, tokens: &[(u32, f32)]| HeadAttention {
            layer,
            head,
            tokens: tokens.to_vec(),
        };
        let heads = [
            head(0, 0, &[(9, 0.75), (0, 0.25)]),
            head(1, 1, &[(4, 1.0)]),
            // Of a layer with more heads than the map.
            head(1, 2, &[(1, 1.0)]),
        ];
        let grid = AttentionGrid::new(&map, &heads);
        let by_head = grid.picture(0..10, 2, true).expect("known");
        assert_eq!(by_head, [64, 191, 0, 0, 0, 0, 255, 0]);
        assert_eq!(
            grid.picture(0..10, 2, false).expect("known"),
            [64, 191, 255, 0]
        );
        // A stretch shows its part.
        assert_eq!(
            grid.picture(8..10, 4, false).expect("known"),
            [0, 191, 0, 0]
        );
        assert_eq!(AttentionGrid::new(&map, &[]).picture(0..10, 2, true), None);
        assert_eq!(AttentionGrid::default().picture(0..10, 2, true), None);
    }

    #[test]
    fn tokens_of_a_cell_add_up() {
        let mut map = MapGrid::of_cells(1, 1, 4, vec![4, 8]);
        map.set_layer(0, &[1, 1]).expect("fits");
        let heads = [HeadAttention {
            layer: 0,
            head: 0,
            tokens: vec![(1, 0.5), (3, 0.25), (4, 0.25)],
        }];
        let grid = AttentionGrid::new(&map, &heads);
        assert_eq!(grid.picture(0..2, 2, false).expect("known"), [191, 64]);
    }
}
