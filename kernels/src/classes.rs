//! Attention of one new token over EMS classes: rows of keys and values that several tokens share. Classes are not
//! expanded.
//!
//! ```text
//! dots    [classes]   query . direction of each class                          one product per class
//! logits  [entries]   dots[class of entry] * norm of the entry's own key       looked up in the table
//! p       [entries]   softmax
//! mass    [classes]   sum of p over the class's entries
//! out                 mass * values                                            one row of values per class
//! ```
//!
//! An entry is one token; the table maps it to its class. Keys stored before RoPE are rotated to each entry's rank as
//! they are read; this takes one product per entry, but still one row of values per class. A row without entries has no
//! mass and does not contribute.

mod pieces;

use crate::kv_split::UNPACKED;
use crate::simd::simd_level;
use crate::threads::{SharedMut, for_each_range};
use crate::{HeadShape, Pairing, RowStore, Scale};
use pieces::{Buffers, Piece, attend, shares};

/// Multiplications below which waking the other threads costs more than it saves.
const WORTH_SHARING: usize = 1 << 16;

/// RoPE angles by rank, for classes whose keys are stored before RoPE. The rank of an entry is its index in the table.
#[derive(Clone, Copy, Debug)]
pub struct RankRotation<'a> {
    /// `[ranks, rope_dim / 2]`
    pub cos: &'a [f32],
    /// `[ranks, rope_dim / 2]`
    pub sin: &'a [f32],
    /// Leading elements of a row that are rotated, at most `head_dim`.
    pub rope_dim: usize,
    /// Which elements form a pair.
    pub pairing: Pairing,
}

/// Attention of one query row over the entries of each KV head.
#[derive(Clone, Copy, Debug)]
pub struct ClassAttention<'a> {
    /// Heads of the layer.
    pub shape: HeadShape,
    /// Converts dot products to logits.
    pub scale: Scale<'a>,
    /// `[q_heads, head_dim]`, rotated.
    pub query: &'a [f32],
    /// Class keys (directions), of any norm; `norms` restores the norm of each entry's key.
    pub keys: &'a RowStore,
    /// Values of the classes.
    pub values: &'a RowStore,
    /// Rows in use per KV head, at least 1. `[kv_heads]`
    pub rows: &'a [usize],
    /// Class of each entry. `[kv_heads, capacity]`
    pub classes: &'a [u32],
    /// Factor on the class key, per entry. `[kv_heads, capacity]`
    pub norms: &'a [f32],
    /// Valid entries per KV head, at least 1. `[kv_heads]`
    pub entries: &'a [usize],
    /// Row stride of `classes` and `norms`.
    pub capacity: usize,
    /// `Some` if the stored keys are not rotated.
    pub rotation: Option<RankRotation<'a>>,
}

impl ClassAttention<'_> {
    /// Classes and norms of the entries of KV head `h`.
    pub(crate) fn table(&self, h: usize) -> (&[u32], &[f32]) {
        let part = h * self.capacity..h * self.capacity + self.entries[h];
        (&self.classes[part.clone()], &self.norms[part])
    }

    /// Panics on wrong shapes, before the pool starts: a panic inside the pool would leave candle's pool unusable.
    fn check(&self, scratch: &ClassScratch, out: &[f32]) {
        let shape = &self.shape;
        assert_eq!(
            *shape, scratch.shape,
            "the scratch was made for other heads"
        );
        assert_eq!(self.rows.len(), shape.kv_heads, "rows must be [kv_heads]");
        assert_eq!(
            self.entries.len(),
            shape.kv_heads,
            "entries must be [kv_heads]"
        );
        shape.check_rows("query", self.query, 1);
        shape.check_rows("out", out, 1);
        shape.check_store("keys", self.keys, |h| self.rows[h]);
        shape.check_store("values", self.values, |h| self.rows[h]);
        let stored = (self.keys.cache_type(), self.values.cache_type());
        assert!(
            stored.0 == stored.1 && !stored.0.is_quantised(),
            "classes are stored as f32 or f16, and these as {} and {}",
            stored.0,
            stored.1
        );
        for h in 0..shape.kv_heads {
            let (rows, entries) = (self.rows[h], self.entries[h]);
            assert!(
                0 < rows && rows <= scratch.max_rows,
                "kv head {h} has {rows} classes, the scratch was made for 1..={}",
                scratch.max_rows
            );
            assert!(
                0 < entries && entries <= scratch.max_entries.min(self.capacity),
                "kv head {h} has {entries} entries, the scratch was made for 1..={}",
                scratch.max_entries
            );
            let highest = self.table(h).0.iter().fold(0, |a, &b| a.max(b)) as usize;
            assert!(
                highest < rows,
                "kv head {h} reads class {highest} of {rows}"
            );
        }
        if let Some(rotation) = &self.rotation {
            let (rope_dim, head_dim) = (rotation.rope_dim, shape.head_dim);
            assert!(
                rope_dim > 0 && rope_dim.is_multiple_of(2) && rope_dim <= head_dim,
                "rope_dim {rope_dim} for head_dim {head_dim}"
            );
            let most = self.entries.iter().max().copied().unwrap_or(0);
            let ranks = rotation.cos.len().min(rotation.sin.len()) / (rope_dim / 2);
            assert!(
                most <= ranks,
                "{most} entries, the angle tables hold {ranks} ranks"
            );
        }
    }
}

/// Scratch buffers of [`class_attention`], allocated once before the first token and shared by all layers.
#[derive(Clone, Debug)]
pub struct ClassScratch {
    shape: HeadShape,
    max_rows: usize,
    max_entries: usize,
    /// Logits, then probabilities. `[q_heads, max_entries]`
    probabilities: Vec<f32>,
    /// Dot products, then mass. `[q_heads, max_rows]`
    classes: Vec<f32>,
    /// Keys rotated to their rank. `[kv_heads, shares, UNPACKED, head_dim]`
    rows: Vec<f32>,
    /// Partial sum of each share of the values. `[kv_heads, shares, group, head_dim]`
    sums: Vec<f32>,
}

impl ClassScratch {
    /// Allocates scratch for up to `max_rows` classes and `max_entries` entries per KV head.
    pub fn new(shape: HeadShape, max_rows: usize, max_entries: usize) -> Self {
        let shares = |rows: usize| shape.kv_heads * shares(rows);
        Self {
            shape,
            max_rows,
            max_entries,
            probabilities: vec![0.0; shape.q_heads * max_entries],
            classes: vec![0.0; shape.q_heads * max_rows],
            rows: vec![0.0; shares(max_entries) * UNPACKED * shape.head_dim],
            sums: vec![0.0; shares(max_rows) * shape.group() * shape.head_dim],
        }
    }

    /// `[q_heads, stride]`: probability of each entry in the last call; elements past a head's entries are stale.
    pub fn probabilities(&self) -> &[f32] {
        &self.probabilities
    }

    /// Row stride of [`ClassScratch::probabilities`].
    pub fn stride(&self) -> usize {
        self.max_entries
    }

    /// Size in bytes, for the memory ledger.
    pub fn bytes(&self) -> usize {
        let floats =
            self.probabilities.len() + self.classes.len() + self.rows.len() + self.sums.len();
        floats * size_of::<f32>()
    }
}

/// Writes `out [q_heads, head_dim]`, and the probabilities into `scratch`. Allocates nothing.
///
/// # Panics
/// If a shape does not match.
pub fn class_attention(task: &ClassAttention<'_>, scratch: &mut ClassScratch, out: &mut [f32]) {
    task.check(scratch, out);
    let (shape, level) = (task.shape, simd_level());
    let buffers = Buffers {
        max_entries: scratch.max_entries,
        max_rows: scratch.max_rows,
        probabilities: SharedMut::new(&mut scratch.probabilities),
        classes: SharedMut::new(&mut scratch.classes),
        rows: SharedMut::new(&mut scratch.rows),
        sums: SharedMut::new(&mut scratch.sums),
        out: SharedMut::new(out),
    };
    let most = |rows: &[usize]| shares(rows.iter().copied().max().unwrap_or(0));
    let of_values = most(task.rows);
    let of_keys = match task.rotation {
        Some(_) => most(task.entries),
        None => of_values,
    };
    let work = task.rows.iter().sum::<usize>() * shape.group() * shape.head_dim;
    let run = |items: usize, piece: &(dyn Fn(usize) -> Piece + Sync)| {
        // SAFETY: the level was detected, and pieces of the same kind write disjoint memory.
        let one = |item: usize| unsafe { attend(level, task, piece(item), &buffers) };
        if work > WORTH_SHARING {
            for_each_range(items, |range| range.for_each(one))
        } else {
            (0..items).for_each(one)
        }
    };
    let of_head = |item: usize, shares: usize| (item / shares, item % shares);
    run(shape.kv_heads * of_keys, &|item| {
        let (head, share) = of_head(item, of_keys);
        Piece::Dots { head, share }
    });
    run(shape.q_heads, &|q_head| Piece::Softmax { q_head });
    run(shape.kv_heads * of_values, &|item| {
        let (head, share) = of_head(item, of_values);
        Piece::WeightedSum { head, share }
    });
    run(shape.q_heads, &|q_head| Piece::Combine { q_head });
}

/// Writes the weighted mean of rows of `source`'s head `head` to `target`; with `unit`, each row is first scaled to
/// norm 1. `members` are (row, weight) with weights above 0. Sums in f64.
pub fn mean_row(
    source: &RowStore,
    head: usize,
    members: impl Iterator<Item = (usize, f32)>,
    unit: bool,
    target: &mut [f32],
) {
    let mut sums = vec![0.0f64; target.len()];
    let mut total = 0.0;
    for (row, weight) in members {
        let row = source.row(head, row);
        let norm = if unit { row_norm(row) } else { 1.0 };
        total += f64::from(weight);
        for (sum, x) in sums.iter_mut().zip(row) {
            *sum += f64::from(weight) * f64::from(*x) / f64::from(norm);
        }
    }
    for (target, sum) in target.iter_mut().zip(sums) {
        *target = (sum / total) as f32;
    }
}

/// L2 norm of a row, at least 1e-12.
pub fn row_norm(row: &[f32]) -> f32 {
    let squares: f64 = row.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    squares.sqrt().max(1e-12) as f32
}
