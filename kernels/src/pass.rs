//! One pass of query rows over keys: computes logits tile by tile, then reduces them as the [`Pass`] requires: softmax
//! sums per row, scores per key, probabilities, or marks. The public functions are in `window.rs` and `measure.rs`.

use std::ops::Range;

use crate::elementwise::soft_cap_lanes;
use crate::panel::{
    ProductShape, Running, Strided, TILE, UNSEEN, add_probabilities, join_heads, pack_lane,
    product, raise_to_probabilities, softmax_tile, split, to_probabilities,
};
use crate::simd::{Lanes, WIDEST, by_level};
use crate::threads::SharedMut;
use crate::{HeadShape, Stop, WindowScores};

/// Window rows that pass over the keys together; [`Pass::Mark`] stores them in one word.
pub(crate) const ROWS: usize = 64;

/// Window rows `first..first + rows` of the heads of one group.
pub(crate) struct Rows {
    kv_head: usize,
    first: usize,
    rows: usize,
}

impl Rows {
    pub(crate) fn new(task: &WindowScores<'_>, kv_head: usize, first: usize) -> Self {
        Self {
            kv_head,
            first,
            rows: ROWS.min(task.rows() - first),
        }
    }

    /// Scratch size in f32, sufficient at every SIMD level.
    pub(crate) fn scratch(&self, shape: &HeadShape) -> usize {
        let lanes = self.rows.next_multiple_of(WIDEST);
        let tiles = (2 * TILE + 1) * lanes + TILE * shape.head_dim;
        (shape.head_dim + 4) * lanes * shape.group() + tiles
    }

    fn last_row(&self) -> usize {
        self.first + self.rows - 1
    }
}

pub(crate) enum Pass<'a> {
    /// Writes the largest logit and the sum of `exp(logit - largest)` of each row over the visited keys; their span is
    /// number `first key / span`. `[spans, q_heads, w]` each.
    Measure {
        span: usize,
        max: SharedMut<'a, f32>,
        sum: SharedMut<'a, f32>,
    },
    /// Adds the weighted probabilities of the rows to `out [q_heads, stride]`; `log_sum_exp` is `[q_heads, w]`, and
    /// `row_weight` applies if the task has no weights. With `among`, only these keys are visited, and every row must
    /// see all of them: key and column i are then key `among[i]`.
    Add {
        among: Option<&'a [u32]>,
        log_sum_exp: &'a [f32],
        row_weight: f32,
        stride: usize,
        out: SharedMut<'a, f32>,
    },
    /// Raises `out [q_heads, columns]` to the largest probability over the rows; `log_sum_exp` is `[q_heads, w]`.
    Raise {
        log_sum_exp: &'a [f32],
        columns: Range<usize>,
        out: SharedMut<'a, f32>,
    },
    /// Writes the probability of every visible key for every row to `out [w, q_heads, stride]`; `log_sum_exp` is
    /// `[q_heads, w]`.
    Each {
        log_sum_exp: &'a [f32],
        stride: usize,
        out: SharedMut<'a, f32>,
    },
    /// Writes word `row / 64` of `bits [kv_heads, tokens, words]`: a bit for each row in which the sum of the group's
    /// probabilities is below `group / number of keys visible to the row`.
    Mark {
        log_sum_exp: &'a [f32],
        words: usize,
        bits: SharedMut<'a, u64>,
    },
}

impl<'a> Pass<'a> {
    /// The visited keys, if not all.
    fn among(&self) -> Option<&'a [u32]> {
        match self {
            Pass::Add { among, .. } => *among,
            _ => None,
        }
    }
}

by_level! {
    /// Passes the rows over the keys `columns`.
    ///
    /// # Safety
    /// The CPU supports the level's instructions, and no other thread writes the outputs of these rows, heads and
    /// columns.
    pub(crate) unsafe fn visit_span(
        task: &WindowScores<'_>, rows: &Rows, columns: Range<usize>, pass: &Pass<'_>, stop: &Stop, scratch: &mut [f32],
    ) = visit_span_lanes;
}

#[inline(always)]
unsafe fn visit_span_lanes<V: Lanes>(
    task: &WindowScores<'_>,
    rows: &Rows,
    columns: Range<usize>,
    pass: &Pass<'_>,
    stop: &Stop,
    scratch: &mut [f32],
) {
    let mut buffers = Buffers::new::<V>(scratch, rows, &task.shape);
    load_rows::<V>(task, rows, pass, &mut buffers);
    let among = pass.among();
    let end = match among {
        Some(_) => columns.end,
        None => columns.end.min(task.last_key(rows.last_row()) + 1),
    };
    for first in (columns.start..end).step_by(TILE) {
        if stop.is_requested() {
            return;
        }
        let count = TILE.min(end - first);
        let tile = Tile {
            first,
            count,
            causal: among.is_none() && task.last_key(rows.first) < first + count - 1,
        };
        // SAFETY: guaranteed by the caller.
        unsafe { visit_tile::<V>(task, rows, pass, &tile, &mut buffers) };
    }
    // SAFETY: guaranteed by the caller.
    unsafe { write_measures(task, rows, pass, columns.start, &buffers) };
}

/// Parts of the scratch. Row `r` of head `g` is lane `g * lanes + r`; the lanes of a head are cut into panels.
struct Buffers<'s> {
    /// Lanes of a head: its rows, padded to whole vectors.
    lanes: usize,
    /// Panels `[head_dim][width]`, scaled; the panel from lane `start` on starts at `head_dim * start`.
    queries: &'s mut [f32],
    /// `[TILE][width]`, one panel.
    logits: &'s mut [f32],
    /// `[lanes]`: the last visible key of each row, counted from the first key of the tile.
    visible: &'s mut [f32],
    /// `[group * lanes]`, as `share` and `keep`. They hold (max, sum, keep) for `Measure`; (log-sum-exp, row weight,
    /// -) for `Add`; (log-sum-exp, -, -) for `Raise` and `Each`; (log-sum-exp, average, -) for `Mark`, with the average
    /// in the lanes of the first head only.
    level: &'s mut [f32],
    share: &'s mut [f32],
    keep: &'s mut [f32],
    /// Probabilities summed over the heads, for `Mark`: panels `[TILE][width]`; the panel from lane `start` on starts
    /// at `TILE * start`.
    together: &'s mut [f32],
    /// `[TILE, head_dim]`: the keys of a tile, if only some keys are visited.
    gathered: &'s mut [f32],
}

impl<'s> Buffers<'s> {
    #[inline(always)]
    fn new<V: Lanes>(scratch: &'s mut [f32], rows: &Rows, shape: &HeadShape) -> Self {
        let lanes = rows.rows.next_multiple_of(V::N);
        let all = lanes * shape.group();
        let sizes = [
            shape.head_dim * all,
            TILE * lanes.min(V::ACROSS * V::N),
            lanes,
            all,
            all,
            all,
            TILE * lanes,
            TILE * shape.head_dim,
        ];
        let [
            queries,
            logits,
            visible,
            level,
            share,
            keep,
            together,
            gathered,
        ] = split(scratch, sizes);
        Self {
            lanes,
            queries,
            logits,
            visible,
            level,
            share,
            keep,
            together,
            gathered,
        }
    }

    /// Width of the panel whose first lane is `start`.
    #[inline(always)]
    fn width<V: Lanes>(&self, start: usize) -> usize {
        (V::ACROSS * V::N).min(self.lanes - start % self.lanes)
    }
}

/// Packs the queries into panels, and initialises `level` and `share`.
#[inline(always)]
fn load_rows<V: Lanes>(
    task: &WindowScores<'_>,
    rows: &Rows,
    pass: &Pass<'_>,
    buffers: &mut Buffers<'_>,
) {
    let HeadShape {
        q_heads, head_dim, ..
    } = task.shape;
    let (group, window) = (task.shape.group(), task.rows());
    let (lanes, panel) = (buffers.lanes, V::ACROSS * V::N);
    buffers.queries.fill(0.0); // lanes past the last row must be finite
    buffers.level.fill(match pass {
        Pass::Measure { .. } => UNSEEN,
        Pass::Add { .. } | Pass::Mark { .. } | Pass::Each { .. } => 0.0,
        Pass::Raise { .. } => f32::INFINITY,
    });
    buffers.share.fill(0.0);
    for (g, r) in (0..group).flat_map(|g| (0..rows.rows).map(move |r| (g, r))) {
        let (h, row, lane) = (rows.kv_head * group + g, rows.first + r, g * lanes + r);
        let query = &task.queries[(row * q_heads + h) * head_dim..][..head_dim];
        let start = g * lanes + r / panel * panel;
        let width = buffers.width::<V>(start);
        let to = buffers.queries[head_dim * start..].as_mut_ptr();
        // SAFETY: the panel `[head_dim][width]` starts at element `head_dim * start` of `queries`.
        unsafe { pack_lane(query, task.scale.factor, to, width, lane - start) };
        match pass {
            Pass::Measure { .. } => {}
            Pass::Add {
                log_sum_exp,
                row_weight,
                ..
            } => {
                buffers.level[lane] = log_sum_exp[h * window + row];
                buffers.share[lane] = task.row_weights.map_or(*row_weight, |weights| weights[row]);
            }
            Pass::Raise { log_sum_exp, .. } | Pass::Each { log_sum_exp, .. } => {
                buffers.level[lane] = log_sum_exp[h * window + row]
            }
            Pass::Mark { log_sum_exp, .. } => {
                buffers.level[lane] = log_sum_exp[h * window + row];
                // Lanes past the last row keep average 0; no probability is below 0, so their bits stay clear.
                buffers.share[r] = group as f32 / (task.last_key(row) + 1) as f32;
            }
        }
    }
}

/// Visited keys `first..first + count`.
struct Tile {
    first: usize,
    count: usize,
    /// Whether some row does not see all of them.
    causal: bool,
}

/// Computes and reduces the logits of a tile, panel by panel.
///
/// # Safety
/// As [`visit_span`].
#[inline(always)]
unsafe fn visit_tile<V: Lanes>(
    task: &WindowScores<'_>,
    rows: &Rows,
    pass: &Pass<'_>,
    tile: &Tile,
    buffers: &mut Buffers<'_>,
) {
    let head_dim = task.shape.head_dim;
    let (lanes, panel) = (buffers.lanes, V::ACROSS * V::N);
    for (r, visible) in buffers.visible.iter_mut().enumerate() {
        // Negative if the whole tile lies after the row; exact in f32 below 2^24.
        *visible = task.last_key((rows.first + r).min(rows.last_row())) as f32 - tile.first as f32;
    }
    let keys = tile_keys(task, rows, pass, tile, buffers.gathered);
    for start in (0..buffers.level.len())
        .step_by(lanes)
        .flat_map(|head| (head..head + lanes).step_by(panel))
    {
        let width = buffers.width::<V>(start);
        let shape = ProductShape {
            rows: tile.count,
            steps: head_dim,
            width,
        };
        // SAFETY: sizes as drawn in `panel.rs`; the caller guarantees the rest.
        unsafe {
            let queries = buffers.queries[head_dim * start..].as_ptr();
            product::<V>(shape, keys, queries, None, buffers.logits.as_mut_ptr());
            if let Some(cap) = task.scale.cap {
                soft_cap_lanes::<V>(&mut buffers.logits[..tile.count * width], cap);
            }
            reduce_panel::<V>(task, rows, pass, tile, start, buffers);
        }
    }
    // SAFETY: guaranteed by the caller; `together` was written above.
    unsafe { write_marks::<V>(task, rows, pass, tile, buffers) };
}

/// The keys of a tile, gathered if only some keys are visited.
#[inline(always)]
fn tile_keys(
    task: &WindowScores<'_>,
    rows: &Rows,
    pass: &Pass<'_>,
    tile: &Tile,
    gathered: &mut [f32],
) -> Strided {
    let head_dim = task.shape.head_dim;
    let keys = task.keys.head(rows.kv_head);
    let keys = match pass.among() {
        Some(among) => {
            let numbers = among[tile.first..tile.first + tile.count].iter();
            for (to, &number) in gathered.chunks_exact_mut(head_dim).zip(numbers) {
                to.copy_from_slice(&keys[number as usize * head_dim..][..head_dim]);
            }
            &*gathered
        }
        None => &keys[tile.first * head_dim..],
    };
    Strided {
        start: keys.as_ptr(),
        row_stride: head_dim,
        step_stride: 1,
    }
}

/// Reduces the logits of the panel whose first lane is `start` as the pass requires.
///
/// # Safety
/// As [`visit_span`].
#[inline(always)]
unsafe fn reduce_panel<V: Lanes>(
    task: &WindowScores<'_>,
    rows: &Rows,
    pass: &Pass<'_>,
    tile: &Tile,
    start: usize,
    buffers: &mut Buffers<'_>,
) {
    let (count, width) = (tile.count, buffers.width::<V>(start));
    let across = width / V::N;
    let (g, first) = (start / buffers.lanes, start % buffers.lanes);
    let head = rows.kv_head * task.shape.group() + g;
    let visible = tile.causal.then_some(buffers.visible[first..].as_ptr());
    let logits = buffers.logits.as_mut_ptr();
    let level = buffers.level[start..].as_mut_ptr();
    let share = buffers.share[start..].as_mut_ptr();
    // SAFETY: sizes as drawn in `panel.rs`; only this item writes these columns of `out`.
    unsafe {
        match pass {
            Pass::Measure { .. } => {
                let running = Running {
                    max: level,
                    sum: share,
                    keep: buffers.keep[start..].as_mut_ptr(),
                };
                softmax_tile::<V>(count, across, logits, visible, running);
            }
            Pass::Add { out, stride, .. } => {
                let at = head * stride + tile.first;
                let out = out.part(at..at + count);
                add_probabilities::<V>(across, logits, visible, level, share, out);
            }
            Pass::Raise { columns, out, .. } => {
                let at = head * columns.len() + tile.first - columns.start;
                let out = out.part(at..at + count);
                raise_to_probabilities::<V>(across, logits, visible, level, out);
            }
            Pass::Each { out, stride, .. } => {
                to_probabilities::<V>(count, across, logits, level);
                for lane in 0..width.min(rows.rows.saturating_sub(first)) {
                    let row = rows.first + first + lane;
                    let seen = count.min((task.last_key(row) + 1).saturating_sub(tile.first));
                    let at = (row * task.shape.q_heads + head) * stride + tile.first;
                    let out = out.part(at..at + seen);
                    let column = buffers.logits[lane..].iter().step_by(width);
                    out.iter_mut().zip(column).for_each(|(o, p)| *o = *p);
                }
            }
            Pass::Mark { .. } => {
                let sums = buffers.together[TILE * first..].as_mut_ptr();
                join_heads::<V>(count, across, logits, visible, level, sums, g > 0);
            }
        }
    }
}

/// [`Pass::Mark`]: writes the bits of a tile from the sums over the heads.
///
/// # Safety
/// As [`visit_span`].
#[inline(always)]
unsafe fn write_marks<V: Lanes>(
    task: &WindowScores<'_>,
    rows: &Rows,
    pass: &Pass<'_>,
    tile: &Tile,
    buffers: &Buffers<'_>,
) {
    let Pass::Mark { bits, words, .. } = pass else {
        return;
    };
    let at = (rows.kv_head * task.tokens + tile.first) * words + rows.first / ROWS;
    // SAFETY: guaranteed by the caller; the range covers one word per key of this item, `words` apart.
    let bits = unsafe { bits.part(at..at + (tile.count - 1) * words + 1) };
    for (key, word) in bits.iter_mut().step_by(*words).enumerate() {
        *word = 0;
        for start in (0..buffers.lanes).step_by(V::ACROSS * V::N) {
            let width = buffers.width::<V>(start);
            let sums = &buffers.together[TILE * start + key * width..];
            for lane in (0..width).step_by(V::N) {
                // SAFETY: whole vectors of both slices.
                unsafe {
                    let sum = V::load(sums[lane..].as_ptr());
                    let average = V::load(buffers.share[start + lane..].as_ptr());
                    *word |= V::less_bits(sum, average) << (start + lane);
                }
            }
        }
    }
}

/// [`Pass::Measure`]: writes the running softmax of the rows over the span from key `start` on.
///
/// # Safety
/// As [`visit_span`].
#[inline(always)]
unsafe fn write_measures(
    task: &WindowScores<'_>,
    rows: &Rows,
    pass: &Pass<'_>,
    start: usize,
    buffers: &Buffers<'_>,
) {
    let Pass::Measure { span, max, sum } = pass else {
        return;
    };
    let group = task.shape.group();
    for g in 0..group {
        let h = rows.kv_head * group + g;
        let at = (start / span * task.shape.q_heads + h) * task.rows() + rows.first;
        let lanes = g * buffers.lanes..g * buffers.lanes + rows.rows;
        // SAFETY: only this item writes these rows, heads and span.
        unsafe {
            max.part(at..at + rows.rows)
                .copy_from_slice(&buffers.level[lanes.clone()]);
            sum.part(at..at + rows.rows)
                .copy_from_slice(&buffers.share[lanes]);
        }
    }
}
