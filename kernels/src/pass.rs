//! One pass of query rows over keys: computes logits tile by tile, then reduces them as the [`Pass`] requires: softmax
//! sums per row, scores per key, probabilities, or marks. The public functions are in `window.rs` and `measure.rs`.

use std::ops::Range;

use crate::elementwise::soft_cap_lanes;
use crate::panel::{
    Running, Strided, TILE, UNSEEN, WIDEST, add_probabilities, join_heads, pack_lane, product,
    raise_to_probabilities, softmax_tile, split, to_probabilities,
};
use crate::simd::{Lanes, by_level};
use crate::threads::SharedMut;
use crate::window::{Normalise, WindowScores};
use crate::{HeadShape, Stop};

/// Window rows that pass over the keys together; [`Pass::Mark`] stores them in one word.
pub(crate) const ROWS: usize = 64;

/// Window rows `first..first + rows` of the heads of one group. Head `g`, row `r` is lane `g * lanes + r`.
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
}

impl WindowScores<'_> {
    /// Number of keys visible to any of the first `rows` window rows.
    pub(crate) fn keys_of_rows(&self, rows: usize) -> usize {
        let prefix = self.tokens - self.rows();
        match self.normalise {
            Normalise::All => prefix + rows,
            Normalise::Prefix => prefix,
        }
    }

    /// Last key visible to window row `row`; requires a non-empty prefix.
    fn last_key(&self, row: usize) -> usize {
        self.keys_of_rows(row + 1) - 1
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
    let HeadShape {
        q_heads, head_dim, ..
    } = task.shape;
    let (group, window, tokens) = (task.shape.group(), task.rows(), task.tokens);
    let lanes = rows.rows.next_multiple_of(V::N);
    let panel = V::ACROSS * V::N;
    let all = lanes * group;
    // One entry per lane. `level`, `share` and `keep` hold: (max, sum, keep) for `Measure`; (log-sum-exp, row weight,
    // -) for `Add`; (log-sum-exp, -, -) for `Raise` and `Each`; (log-sum-exp, average, -) for `Mark`, with the average
    // in the lanes of the first head only.
    let sizes = [
        head_dim * all,
        TILE * lanes.min(panel),
        lanes,
        all,
        all,
        all,
        TILE * lanes,
        TILE * head_dim,
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
    queries.fill(0.0); // lanes past the last row must be finite
    level.fill(match pass {
        Pass::Measure { .. } => UNSEEN,
        Pass::Add { .. } | Pass::Mark { .. } | Pass::Each { .. } => 0.0,
        Pass::Raise { .. } => f32::INFINITY,
    });
    share.fill(0.0);
    for (g, r) in (0..group).flat_map(|g| (0..rows.rows).map(move |r| (g, r))) {
        let (h, row, lane) = (rows.kv_head * group + g, rows.first + r, g * lanes + r);
        let query = &task.queries[(row * q_heads + h) * head_dim..][..head_dim];
        let first = g * lanes + r / panel * panel;
        let width = panel.min((g + 1) * lanes - first);
        // SAFETY: the panel `[head_dim][width]` starts at element `head_dim * first` of `queries`.
        unsafe {
            pack_lane(
                query,
                task.scale.factor,
                queries[head_dim * first..].as_mut_ptr(),
                width,
                lane - first,
            )
        };
        match pass {
            Pass::Measure { .. } => {}
            Pass::Add {
                log_sum_exp,
                row_weight,
                ..
            } => {
                level[lane] = log_sum_exp[h * window + row];
                share[lane] = task.row_weights.map_or(*row_weight, |weights| weights[row]);
            }
            Pass::Raise { log_sum_exp, .. } | Pass::Each { log_sum_exp, .. } => {
                level[lane] = log_sum_exp[h * window + row]
            }
            Pass::Mark { log_sum_exp, .. } => {
                level[lane] = log_sum_exp[h * window + row];
                // Lanes past the last row keep average 0; no probability is below 0, so their bits stay clear.
                share[r] = group as f32 / (task.last_key(row) + 1) as f32;
            }
        }
    }
    let keys = task.keys.head(rows.kv_head);
    let last_row = rows.first + rows.rows - 1;
    let among = match pass {
        Pass::Add { among, .. } => *among,
        _ => None,
    };
    let end = match among {
        Some(_) => columns.end,
        None => columns.end.min(task.last_key(last_row) + 1),
    };
    for tile in (columns.start..end).step_by(TILE) {
        if stop.is_requested() {
            return;
        }
        let count = TILE.min(end - tile);
        let causal = among.is_none() && task.last_key(rows.first) < tile + count - 1;
        for (r, visible) in visible.iter_mut().enumerate() {
            // Negative if the whole tile lies after the row; exact in f32 below 2^24.
            *visible = task.last_key((rows.first + r).min(last_row)) as f32 - tile as f32;
        }
        let tile_keys = match among {
            Some(among) => {
                let numbers = among[tile..tile + count].iter();
                for (to, &number) in gathered.chunks_exact_mut(head_dim).zip(numbers) {
                    to.copy_from_slice(&keys[number as usize * head_dim..][..head_dim]);
                }
                &*gathered
            }
            None => &keys[tile * head_dim..],
        };
        let left = Strided {
            start: tile_keys.as_ptr(),
            row_stride: head_dim,
            step_stride: 1,
        };
        for start in (0..all)
            .step_by(lanes)
            .flat_map(|head| (head..head + lanes).step_by(panel))
        {
            let (g, width) = (start / lanes, panel.min(lanes - start % lanes));
            let across = width / V::N;
            // SAFETY: sizes as drawn in `panel.rs`; only this item writes these columns of `out`.
            unsafe {
                let from = queries[head_dim * start..].as_ptr();
                product::<V>(
                    (count, head_dim, across),
                    left,
                    from,
                    None,
                    logits.as_mut_ptr(),
                );
                if let Some(cap) = task.scale.cap {
                    soft_cap_lanes::<V>(&mut logits[..count * width], cap);
                }
                let visible = causal.then_some(visible[start % lanes..].as_ptr());
                match pass {
                    Pass::Measure { .. } => {
                        let running = Running {
                            max: level[start..].as_mut_ptr(),
                            sum: share[start..].as_mut_ptr(),
                            keep: keep[start..].as_mut_ptr(),
                        };
                        softmax_tile::<V>(count, across, logits.as_mut_ptr(), visible, running);
                    }
                    Pass::Add { out, stride, .. } => {
                        let at = (rows.kv_head * group + g) * stride + tile;
                        let out = out.part(at..at + count);
                        let (level, share) = (level[start..].as_ptr(), share[start..].as_ptr());
                        add_probabilities::<V>(across, logits.as_ptr(), visible, level, share, out);
                    }
                    Pass::Raise { columns, out, .. } => {
                        let head = rows.kv_head * group + g;
                        let at = head * columns.len() + tile - columns.start;
                        let out = out.part(at..at + count);
                        let level = level[start..].as_ptr();
                        raise_to_probabilities::<V>(across, logits.as_ptr(), visible, level, out);
                    }
                    Pass::Each { out, stride, .. } => {
                        let head = rows.kv_head * group + g;
                        let first = start % lanes;
                        to_probabilities::<V>(
                            count,
                            across,
                            logits.as_mut_ptr(),
                            level[start..].as_ptr(),
                        );
                        for lane in 0..width.min(rows.rows.saturating_sub(first)) {
                            let row = rows.first + first + lane;
                            let seen = count.min((task.last_key(row) + 1).saturating_sub(tile));
                            let at = (row * q_heads + head) * stride + tile;
                            let out = out.part(at..at + seen);
                            let column = logits[lane..].iter().step_by(width);
                            out.iter_mut().zip(column).for_each(|(o, p)| *o = *p);
                        }
                    }
                    Pass::Mark { .. } => {
                        // The panel `[TILE][width]` with the sums over the heads starts at element `TILE * first lane`.
                        let sums = together[TILE * (start % lanes)..].as_mut_ptr();
                        let level = level[start..].as_ptr();
                        let logits = logits.as_ptr();
                        join_heads::<V>(count, across, logits, visible, level, sums, g > 0);
                    }
                }
            }
        }
        if let Pass::Mark { bits, words, .. } = pass {
            let at = (rows.kv_head * tokens + tile) * words + rows.first / ROWS;
            // SAFETY: as above; the range covers one word per key of this item, `words` apart.
            let bits = unsafe { bits.part(at..at + (count - 1) * words + 1) };
            for (key, word) in bits.iter_mut().step_by(*words).enumerate() {
                *word = 0;
                for start in (0..lanes).step_by(panel) {
                    let width = panel.min(lanes - start);
                    for lane in (0..width).step_by(V::N) {
                        // SAFETY: the panels were written above.
                        unsafe {
                            let sum =
                                V::load(together[TILE * start + key * width + lane..].as_ptr());
                            let average = V::load(share[start + lane..].as_ptr());
                            *word |= V::less_bits(sum, average) << (start + lane);
                        }
                    }
                }
            }
        }
    }
    if let Pass::Measure { span, max, sum } = pass {
        for g in 0..group {
            let h = rows.kv_head * group + g;
            let at = (columns.start / span * q_heads + h) * window + rows.first;
            // SAFETY: only this item writes these rows, heads and span.
            unsafe {
                max.part(at..at + rows.rows)
                    .copy_from_slice(&level[g * lanes..][..rows.rows]);
                sum.part(at..at + rows.rows)
                    .copy_from_slice(&share[g * lanes..][..rows.rows]);
            }
        }
    }
}
