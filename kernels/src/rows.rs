//! `RowStore`: the keys or the values of one layer, in f32, one run of rows per kv head.
//!
//! A row is a place in the cache; which position of the text it holds is the caller's business.
//! How many rows are valid is the caller's business too: the store knows capacities, not lengths.
//!
//! ```text
//! 2 kv heads, capacities [3, 2], head_dim 4          first_row(0) = 0, first_row(1) = 3
//!
//!   head 0 | row 0: a a a a | row 1: b b b b | row 2: c c c c
//!   head 1 | row 0: d d d d | row 1: e e e e |
//! ```

/// Keys or values of one layer, kv-head-major: head `h` holds `capacity(h)` rows of `head_dim` f32 in one allocation.
/// Heads may have different capacities (ragged).
#[derive(Clone, Debug)]
pub struct RowStore {
    /// Every row of every head, `[rows of all heads, head_dim]`.
    data: Vec<f32>,
    head_dim: usize,
    /// `first_rows[h]..first_rows[h + 1]` are the rows of head `h`, counted over all heads. `[kv_heads + 1]`
    first_rows: Vec<usize>,
}

impl RowStore {
    /// Zeroed rows: `capacities[h]` of them for kv head `h`.
    pub fn new(head_dim: usize, capacities: &[usize]) -> Self {
        assert!(head_dim > 0, "head_dim is 0");
        let mut first_rows = Vec::with_capacity(capacities.len() + 1);
        let mut rows = 0;
        first_rows.push(rows);
        for capacity in capacities {
            rows += capacity;
            first_rows.push(rows);
        }
        Self {
            data: vec![0.0; rows * head_dim],
            head_dim,
            first_rows,
        }
    }

    /// Zeroed rows, the same number for every kv head.
    pub fn uniform(kv_heads: usize, capacity: usize, head_dim: usize) -> Self {
        Self::new(head_dim, &vec![capacity; kv_heads])
    }

    /// All rows of all heads, `[rows of all heads, head_dim]`; for a uniform store `[kv_heads, capacity, head_dim]`.
    pub fn as_slice(&self) -> &[f32] {
        &self.data
    }

    /// Number of kv heads.
    pub fn kv_heads(&self) -> usize {
        self.first_rows.len() - 1
    }

    /// Elements of one row.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Rows that head `h` has room for.
    pub fn capacity(&self, h: usize) -> usize {
        self.first_rows[h + 1] - self.first_rows[h]
    }

    /// Number of rows of the heads before `h`: the offset of head `h` in arrays with one entry per row of capacity,
    /// such as [`Rotation::ranks`](crate::Rotation::ranks). `first_row(kv_heads)` is the length of such an array.
    pub fn first_row(&self, h: usize) -> usize {
        self.first_rows[h]
    }

    /// `[kv_heads + 1]`: [`RowStore::first_row`] of every head, and the length of such an array.
    pub fn first_rows(&self) -> &[usize] {
        &self.first_rows
    }

    /// All rows of head `h`, `[capacity, head_dim]`.
    pub fn head(&self, h: usize) -> &[f32] {
        &self.data[self.first_rows[h] * self.head_dim..self.first_rows[h + 1] * self.head_dim]
    }

    /// All rows of head `h`, `[capacity, head_dim]`.
    pub fn head_mut(&mut self, h: usize) -> &mut [f32] {
        &mut self.data[self.first_rows[h] * self.head_dim..self.first_rows[h + 1] * self.head_dim]
    }

    /// Row `r` of head `h`, `[head_dim]`.
    pub fn row(&self, h: usize, r: usize) -> &[f32] {
        &self.head(h)[r * self.head_dim..][..self.head_dim]
    }

    /// Row `r` of head `h`, `[head_dim]`.
    pub fn row_mut(&mut self, h: usize, r: usize) -> &mut [f32] {
        let head_dim = self.head_dim;
        &mut self.head_mut(h)[r * head_dim..][..head_dim]
    }

    /// Bytes of the rows, used or not.
    pub fn bytes(&self) -> usize {
        size_of_val(self.data.as_slice())
    }

    /// Writes a chunk as a projection produces it, `source [rows, kv_heads, head_dim]`, into rows
    /// `first_row..first_row + rows` of every head.
    pub fn copy_in(&mut self, first_row: usize, source: &[f32]) {
        let (kv_heads, head_dim) = (self.kv_heads(), self.head_dim);
        let width = kv_heads * head_dim;
        assert_eq!(
            source.len() % width,
            0,
            "source has {} elements, not a multiple of {kv_heads} kv heads x {head_dim}",
            source.len()
        );
        let rows = source.len() / width;
        for h in 0..kv_heads {
            let capacity = self.capacity(h);
            assert!(
                first_row + rows <= capacity,
                "rows {first_row}..{} do not fit head {h}, which holds {capacity}",
                first_row + rows
            );
            let target = &mut self.head_mut(h)[first_row * head_dim..][..rows * head_dim];
            for (row, target) in target.chunks_exact_mut(head_dim).enumerate() {
                target.copy_from_slice(&source[row * width + h * head_dim..][..head_dim]);
            }
        }
    }
}

/// Copies the rows `positions` of head `source_head` into rows `first_row..` of head `target_head`, in that order.
pub fn gather_rows(
    source: &RowStore,
    source_head: usize,
    positions: &[u32],
    target: &mut RowStore,
    target_head: usize,
    first_row: usize,
) {
    let head_dim = source.head_dim;
    assert_eq!(
        head_dim, target.head_dim,
        "rows of {head_dim} cannot be gathered into rows of {}",
        target.head_dim
    );
    let capacity = target.capacity(target_head);
    assert!(
        first_row + positions.len() <= capacity,
        "rows {first_row}..{} do not fit head {target_head}, which holds {capacity}",
        first_row + positions.len()
    );
    let source = source.head(source_head);
    let target = &mut target.head_mut(target_head)[first_row * head_dim..];
    for (target, &position) in target.chunks_exact_mut(head_dim).zip(positions) {
        target.copy_from_slice(&source[position as usize * head_dim..][..head_dim]);
    }
}
