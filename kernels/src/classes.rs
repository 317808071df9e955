//! Attention of one new token over classes: rows of keys and values that several tokens share. Nothing is expanded.
//!
//! ```text
//! dots    [classes]   query . direction of each class                          one product per class
//! logits  [entries]   dots[class of entry] * length of the entry's own key     looked up in the table
//! p       [entries]   softmax
//! mass    [classes]   sum of p over the class's entries
//! out                 mass * values                                            one row of values per class
//! ```
//!
//! Keys stored before RoPE are turned to each entry's rank as they are read: then there is one product per entry, and still one
//! row of values per class. A row that no entry reads has no mass: it takes no part.

use crate::decode::UNPACKED;
use crate::elementwise::{rotate_row, soft_cap_lanes};
use crate::heads::{Logits, add_heads, dot_heads};
use crate::simd::{Lanes, by_level, simd_level};
use crate::span::{softmax_row, unpack_row};
use crate::threads::{SharedMut, for_each_range};
use crate::{CacheType, HeadShape, Pairing, RowStore, Scale};

/// Multiplications below which waking the other threads costs more than it saves.
const WORTH_SHARING: usize = 1 << 16;

/// Angles by rank, for classes whose keys are stored before RoPE. An entry's rank is its index in the table.
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

/// Attention of one query row over the entries of each kv head.
#[derive(Clone, Copy, Debug)]
pub struct ClassAttention<'a> {
    /// Heads of the layer.
    pub shape: HeadShape,
    /// From dot products to logits.
    pub scale: Scale,
    /// `[q_heads, head_dim]`, rotated.
    pub query: &'a [f32],
    /// Directions of the classes' keys, at any length that `lengths` makes up for.
    pub keys: &'a RowStore,
    /// Values of the classes.
    pub values: &'a RowStore,
    /// Rows in use per kv head, at least 1. `[kv_heads]`
    pub rows: &'a [usize],
    /// The look-up tables: the class of each entry. `[kv_heads, capacity]`
    pub classes: &'a [u32],
    /// Factor on the class's key of each entry. `[kv_heads, capacity]`
    pub lengths: &'a [f32],
    /// Valid entries per kv head, at least 1. `[kv_heads]`
    pub entries: &'a [usize],
    /// Row stride of the tables.
    pub capacity: usize,
    /// `Some`: the stored keys are raw.
    pub rotation: Option<RankRotation<'a>>,
}

impl ClassAttention<'_> {
    /// The table of kv head `h`: classes and lengths.
    pub(crate) fn table(&self, h: usize) -> (&[u32], &[f32]) {
        let part = h * self.capacity..h * self.capacity + self.entries[h];
        (&self.classes[part.clone()], &self.lengths[part])
    }

    /// Checked here, because a panic inside the pool would leave candle's pool unusable.
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

/// All memory of [`class_attention`], made once before the first token and shared by all layers.
#[derive(Clone, Debug)]
pub struct ClassScratch {
    shape: HeadShape,
    max_rows: usize,
    max_entries: usize,
    /// First logits, then probabilities. `[q_heads, max_entries]`
    probabilities: Vec<f32>,
    /// First dot products, then mass. `[q_heads, max_rows]`
    classes: Vec<f32>,
    /// Keys turned to their rank. `[kv_heads, UNPACKED, head_dim]`
    rows: Vec<f32>,
}

impl ClassScratch {
    /// Room for `max_rows` classes and `max_entries` entries in every kv head.
    pub fn new(shape: HeadShape, max_rows: usize, max_entries: usize) -> Self {
        Self {
            shape,
            max_rows,
            max_entries,
            probabilities: vec![0.0; shape.q_heads * max_entries],
            classes: vec![0.0; shape.q_heads * max_rows],
            rows: vec![0.0; shape.kv_heads * UNPACKED * shape.head_dim],
        }
    }

    /// `[q_heads, stride]`: probability of each entry in the last call; what lies beyond a head's entries is left over.
    pub fn probabilities(&self) -> &[f32] {
        &self.probabilities
    }

    /// Row stride of [`ClassScratch::probabilities`].
    pub fn stride(&self) -> usize {
        self.max_entries
    }

    /// Bytes held, for the memory ledger.
    pub fn bytes(&self) -> usize {
        let floats = self.probabilities.len() + self.classes.len() + self.rows.len();
        floats * size_of::<f32>()
    }
}

/// Scratch and output of one kv head.
struct Part<'a> {
    /// `[group, max_entries]`
    probabilities: &'a mut [f32],
    /// `[group, max_rows]`
    classes: &'a mut [f32],
    /// `[UNPACKED, head_dim]`
    rows: &'a mut [f32],
    /// `[group, head_dim]`
    out: &'a mut [f32],
}

/// Writes `out [q_heads, head_dim]`, and the probabilities into `scratch`. Allocates nothing.
pub fn class_attention(task: &ClassAttention<'_>, scratch: &mut ClassScratch, out: &mut [f32]) {
    task.check(scratch, out);
    let (shape, level) = (task.shape, simd_level());
    let (group, dim) = (shape.group(), shape.head_dim);
    let (entries, rows) = (group * scratch.max_entries, group * scratch.max_rows);
    let probabilities = SharedMut::new(&mut scratch.probabilities);
    let classes = SharedMut::new(&mut scratch.classes);
    let unpacked = SharedMut::new(&mut scratch.rows);
    let out = SharedMut::new(out);
    let head = |h: usize| {
        // SAFETY: each kv head has its own parts; the level was detected.
        unsafe {
            let mut part = Part {
                probabilities: probabilities.part(h * entries..(h + 1) * entries),
                classes: classes.part(h * rows..(h + 1) * rows),
                rows: unpacked.part(h * UNPACKED * dim..(h + 1) * UNPACKED * dim),
                out: out.part(h * group * dim..(h + 1) * group * dim),
            };
            attend(level, task, h, &mut part);
        }
    };
    let work = task.rows.iter().sum::<usize>() * group * dim;
    if work > WORTH_SHARING {
        for_each_range(shape.kv_heads, |range| range.for_each(head));
    } else {
        (0..shape.kv_heads).for_each(head);
    }
}

by_level! {
    /// # Safety
    /// The level's instructions exist.
    unsafe fn attend(task: &ClassAttention<'_>, h: usize, part: &mut Part<'_>) = attend_lanes;
}

#[inline(always)]
unsafe fn attend_lanes<V: Lanes>(task: &ClassAttention<'_>, h: usize, part: &mut Part<'_>) {
    let (group, dim) = (task.shape.group(), task.shape.head_dim);
    let (table, lengths) = task.table(h);
    let rows = task.rows[h];
    let queries = &task.query[h * group * dim..][..group * dim];
    let entry_stride = part.probabilities.len() / group;
    let class_stride = part.classes.len() / group;
    let shape = (group, dim, task.scale.factor);
    // SAFETY: pointers to the head's rows, as many results as are written; lengths were checked, and that rows are f32 or f16.
    unsafe {
        match &task.rotation {
            None => {
                let mut row = 0;
                while row < rows {
                    let run = task.keys.run(h, row..rows);
                    let dots = Logits {
                        start: part.classes.as_mut_ptr().add(row),
                        stride: class_stride,
                    };
                    dot_heads(V::LEVEL, run.kind, shape, run.starts(), queries, dots);
                    row += run.rows;
                }
                for g in 0..group {
                    let dots = &part.classes[g * class_stride..][..rows];
                    let logits = &mut part.probabilities[g * entry_stride..][..table.len()];
                    for ((logit, class), length) in logits.iter_mut().zip(table).zip(lengths) {
                        *logit = dots[*class as usize] * length;
                    }
                }
            }
            Some(rotation) => {
                let columns = rotation.rope_dim / 2;
                for first in (0..table.len()).step_by(UNPACKED) {
                    let count = UNPACKED.min(table.len() - first);
                    for (i, target) in part.rows.chunks_exact_mut(dim).take(count).enumerate() {
                        let rank = first + i;
                        unpack_row::<V>(task.keys, h, table[rank] as usize, target);
                        let angles = rank * columns..(rank + 1) * columns;
                        let (cos, sin) = (&rotation.cos[angles.clone()], &rotation.sin[angles]);
                        rotate_row(target, cos, sin, rotation.pairing);
                    }
                    let keys: [*const u8; UNPACKED] =
                        std::array::from_fn(|i| part.rows[i * dim..].as_ptr().cast());
                    let logits = Logits {
                        start: part.probabilities.as_mut_ptr().add(first),
                        stride: entry_stride,
                    };
                    dot_heads(
                        V::LEVEL,
                        CacheType::F32,
                        shape,
                        &keys[..count],
                        queries,
                        logits,
                    );
                }
                for row in part.probabilities.chunks_exact_mut(entry_stride) {
                    row.iter_mut().zip(lengths).for_each(|(l, k)| *l *= k);
                }
            }
        }
        for g in 0..group {
            let row = &mut part.probabilities[g * entry_stride..][..table.len()];
            if let Some(cap) = task.scale.cap {
                soft_cap_lanes::<V>(row, cap);
            }
            let (_, sum) = softmax_row::<V>(row);
            let mass = &mut part.classes[g * class_stride..][..rows];
            mass.fill(0.0);
            for (p, class) in row.iter_mut().zip(table) {
                *p /= sum;
                mass[*class as usize] += *p;
            }
        }
        part.out.fill(0.0);
        let mut row = 0;
        while row < rows {
            let run = task.values.run(h, row..rows);
            let mass = Logits {
                start: part.classes.as_mut_ptr().add(row),
                stride: class_stride,
            };
            add_heads(
                V::LEVEL,
                run.kind,
                (group, dim),
                run.starts(),
                mass,
                part.out,
            );
            row += run.rows;
        }
    }
}

/// Writes the weighted mean of some rows of `source`'s head `head` to `target`, each row brought to length 1 first if `unit`.
/// `members` are (row, weight), weights above 0. Sums in f64.
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
        let length = if unit { row_length(row) } else { 1.0 };
        total += f64::from(weight);
        for (sum, x) in sums.iter_mut().zip(row) {
            *sum += f64::from(weight) * f64::from(*x) / f64::from(length);
        }
    }
    for (target, sum) in target.iter_mut().zip(sums) {
        *target = (sum / total) as f32;
    }
}

/// Length of a row, never 0.
pub fn row_length(row: &[f32]) -> f32 {
    let squares: f64 = row.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    squares.sqrt().max(1e-12) as f32
}
