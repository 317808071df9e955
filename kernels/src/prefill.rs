//! Causal attention of a chunk of prompt rows over all positions up to each row.
//!
//! In the stores of this module, row == position: nothing is evicted yet. `decode.rs` attends to the compact KV cache.

mod buffers;
pub(crate) mod products;

use std::ops::Range;

use buffers::{Buffers, Item, Panel};
use products::{Fused, Products};

#[cfg(target_arch = "x86_64")]
use crate::amx::{Configured, Tiles};
use crate::elementwise::soft_cap_lanes;
use crate::panel::{OnlineSoftmax, TILE, hide_before, softmax_tile, with_scratch};
use crate::simd::{Lanes, Portable, SimdLevel, by_level, simd_level};
use crate::threads::{SharedMut, for_each_range};
use crate::{HeadShape, RowStore, Scale, Stop, Stopped};

/// Position from which a row sees enough keys for AMX to pay off, despite the cost of splitting them into bfloat16
/// (`docs/performance.md`).
const AMX_MIN_POSITION: usize = 1024;

/// Attention of the prompt rows `first..first + rows` over all positions up to their own, or over the last `window` of
/// them.
///
/// ```text
/// first = 2, rows = 3        key row == position        window = 2
///            0 1 2 3 4                                             0 1 2 3 4
/// query 2    x x x                                      query 2      x x
/// query 3    x x x x                                    query 3        x x
/// query 4    x x x x x                                  query 4          x x
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PrefillAttention<'a> {
    /// Heads of the layer.
    pub shape: HeadShape,
    /// Converts dot products to logits.
    pub scale: Scale<'a>,
    /// Sliding window: the number of positions that each row sees, including its own, at least 1; `None` for all.
    pub window: Option<usize>,
    /// `[rows, q_heads, head_dim]`, already rotated.
    pub queries: &'a [f32],
    /// Position of the first query row.
    pub first: usize,
    /// Rotated keys; rows `0..first + rows` of each head are valid, row == position.
    pub keys: &'a RowStore,
    /// Values, row == position.
    pub values: &'a RowStore,
}

impl PrefillAttention<'_> {
    /// First position visible to the row at `position`.
    fn first_seen(&self, position: usize) -> usize {
        self.window
            .map_or(0, |window| (position + 1).saturating_sub(window))
    }

    /// Number of query rows.
    pub fn rows(&self) -> usize {
        self.queries.len() / (self.shape.q_heads * self.shape.head_dim)
    }

    /// Number of leading rows that use fused multiply-adds. The choice depends on the position alone, so a row's result
    /// does not depend on its chunk.
    fn rows_of_few_keys(&self, level: SimdLevel) -> usize {
        let pays =
            level == SimdLevel::Amx && self.window.is_none_or(|window| window > AMX_MIN_POSITION);
        if pays {
            AMX_MIN_POSITION.saturating_sub(self.first).min(self.rows())
        } else {
            self.rows()
        }
    }

    fn check(&self, out: &[f32], log_sum_exp: Option<&[f32]>) {
        let (shape, rows) = (&self.shape, self.rows());
        shape.check_rows("queries", self.queries, rows);
        shape.check_rows("out", out, rows);
        shape.check_store("keys", self.keys, |_| self.first + rows);
        shape.check_store("values", self.values, |_| self.first + rows);
        assert_ne!(self.window, Some(0), "a row sees itself at least");
        if let Some(log_sum_exp) = log_sum_exp {
            assert_eq!(
                log_sum_exp.len(),
                shape.q_heads * rows,
                "log_sum_exp must be [q_heads {}, rows {rows}]",
                shape.q_heads
            );
        }
    }
}

/// Writes `out [rows, q_heads, head_dim]` and optionally `log_sum_exp [q_heads, rows]`: the natural logarithm of each
/// row's sum of `exp(logit)`.
///
/// # Errors
/// [`Stopped`], after [`Stop::request`]; the outputs are then incomplete.
///
/// # Panics
/// If a shape does not match.
pub fn prefill_attention(
    task: &PrefillAttention<'_>,
    out: &mut [f32],
    log_sum_exp: Option<&mut [f32]>,
    stop: &Stop,
) -> Result<(), Stopped> {
    task.check(out, log_sum_exp.as_deref());
    stop.check()?;
    let outputs = Outputs {
        out: SharedMut::new(out),
        log_sum_exp: log_sum_exp.map(SharedMut::new),
    };
    let level = simd_level();
    let few = task.rows_of_few_keys(level);
    #[cfg(target_arch = "x86_64")]
    if level == SimdLevel::Amx {
        for_each_item::<Tiles>(task, few..task.rows(), |item, scratch| {
            // SAFETY: as below; the CPU has AMX at this level.
            unsafe { attend_tiles(task, item, &outputs, stop, scratch) }
        });
    }
    // `LANES` of `Fused` is the same at every level.
    for_each_item::<Fused<Portable>>(task, 0..few, |item, scratch| {
        // SAFETY: `level` was detected; items cover disjoint (KV head, rows) of the outputs, whose sizes are checked;
        // the scratch has the item's size.
        unsafe { attend(level, task, item, &outputs, stop, scratch) }
    });
    // A thread that sees the flag leaves its item unfinished; the flag is never reset, so this check sees it too.
    stop.check()
}

/// Runs `work` on every item of `rows`, with scratch.
fn for_each_item<P: Products>(
    task: &PrefillAttention<'_>,
    rows: Range<usize>,
    work: impl Fn(&Item, &mut [f32]) + Sync,
) {
    let shape = &task.shape;
    let block = P::LANES.div_ceil(shape.group()).min(rows.len().max(1));
    let blocks = rows.len().div_ceil(block);
    for_each_range(blocks * shape.kv_heads, |items| {
        for item in items {
            // Longest items first (the last block sees the most keys), so that all threads finish at about the same
            // time.
            let start = rows.start + (blocks - 1 - item / shape.kv_heads) * block;
            let item = Item {
                kv_head: item % shape.kv_heads,
                group: shape.group(),
                start,
                rows: block.min(rows.end - start),
            };
            with_scratch(item.scratch::<P>(shape), |scratch| work(&item, scratch));
        }
    });
}

struct Outputs<'a> {
    /// `[rows, q_heads, head_dim]`
    out: SharedMut<'a, f32>,
    /// `[q_heads, rows]`
    log_sum_exp: Option<SharedMut<'a, f32>>,
}

by_level! {
    /// # Safety
    /// The CPU supports the level's instructions, and no other thread writes the item's rows and heads.
    unsafe fn attend(task: &PrefillAttention<'_>, item: &Item, outputs: &Outputs<'_>, stop: &Stop, scratch: &mut [f32]) = attend_fused;
}

#[inline(always)]
unsafe fn attend_fused<V: Lanes>(
    task: &PrefillAttention<'_>,
    item: &Item,
    outputs: &Outputs<'_>,
    stop: &Stop,
    scratch: &mut [f32],
) {
    // SAFETY: guaranteed by the caller.
    unsafe { attend_lanes::<Fused<V>>(task, item, outputs, stop, scratch) };
}

/// # Safety
/// The CPU has AVX-512 and AMX, and no other thread writes the item's rows and heads.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma,f16c")]
unsafe fn attend_tiles(
    task: &PrefillAttention<'_>,
    item: &Item,
    outputs: &Outputs<'_>,
    stop: &Stop,
    scratch: &mut [f32],
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let _configured = Configured::new();
        attend_lanes::<Tiles>(task, item, outputs, stop, scratch);
    }
}

#[inline(always)]
unsafe fn attend_lanes<P: Products>(
    task: &PrefillAttention<'_>,
    item: &Item,
    outputs: &Outputs<'_>,
    stop: &Stop,
    scratch: &mut [f32],
) {
    let mut buffers = Buffers::new::<P>(scratch, item, task.shape.head_dim);
    // SAFETY: guaranteed by the caller.
    unsafe { load_queries::<P>(task, item, &mut buffers) };
    let first = task.first + item.start;
    let last = first + item.rows - 1;
    for tile in (task.first_seen(first) / TILE * TILE..=last).step_by(TILE) {
        if stop.is_requested() {
            return;
        }
        // SAFETY: guaranteed by the caller.
        unsafe { attend_tile::<P>(task, item, tile, &mut buffers) };
    }
    // SAFETY: guaranteed by the caller.
    unsafe { write_outputs::<P>(task, item, outputs, &buffers) };
}

/// Packs the scaled queries into panels.
///
/// # Safety
/// The CPU supports the level of `P`.
#[inline(always)]
unsafe fn load_queries<P: Products>(
    task: &PrefillAttention<'_>,
    item: &Item,
    buffers: &mut Buffers<'_>,
) {
    let HeadShape {
        q_heads, head_dim, ..
    } = task.shape;
    for lane in 0..item.used_lanes() {
        let at = (item.row(lane) * q_heads + item.q_head(lane)) * head_dim;
        let query = &task.queries[at..at + head_dim];
        let Panel { first, width } = buffers.panel::<P>(lane);
        let panel = buffers.queries[P::dims(head_dim) * first..].as_mut_ptr();
        // SAFETY: the panel, `dims` numbers for `width` lanes, starts at element `dims * first` of `queries`; the
        // caller guarantees the level.
        unsafe { P::pack_query(query, task.scale.factor, panel, width, lane - first) };
    }
}

/// Attention to the keys from position `tile` on, at most [`TILE`], panel by panel.
///
/// # Safety
/// As [`load_queries`].
#[inline(always)]
unsafe fn attend_tile<P: Products>(
    task: &PrefillAttention<'_>,
    item: &Item,
    tile: usize,
    buffers: &mut Buffers<'_>,
) {
    let head_dim = task.shape.head_dim;
    let (keys, values) = (task.keys.head(item.kv_head), task.values.head(item.kv_head));
    let end = (tile + TILE).min(task.first + item.start + item.rows);
    let part = tile * head_dim..end * head_dim;
    // SAFETY: the caller guarantees the level.
    let products = unsafe { P::tile(&keys[part.clone()], &values[part], head_dim, buffers.tile) };
    for first in (0..buffers.max.len()).step_by(P::V::ACROSS * P::V::N) {
        let panel = buffers.panel::<P>(first);
        // SAFETY: guaranteed by the caller.
        unsafe { attend_panel::<P>(task, item, &products, tile, panel, buffers) };
    }
}

/// [`attend_tile`] for one panel: logits, running softmax, weighted values.
///
/// # Safety
/// As [`load_queries`].
#[inline(always)]
unsafe fn attend_panel<P: Products>(
    task: &PrefillAttention<'_>,
    item: &Item,
    products: &P,
    tile: usize,
    panel: Panel,
    buffers: &mut Buffers<'_>,
) {
    let Panel { first, width } = panel;
    let position = |lane: usize| task.first + item.row(lane);
    let last = position(first + width - 1);
    if tile > last || task.first_seen(position(first)) >= tile + TILE {
        return;
    }
    let rows = TILE.min(last + 1 - tile);
    let visible = &mut buffers.visible[first..first + width];
    let causal = position(first) < tile + rows - 1;
    if causal {
        for (lane, visible) in visible.iter_mut().enumerate() {
            // Negative if the whole tile lies after the lane; exact in f32 below 2^24.
            *visible = position(first + lane) as f32 - tile as f32;
        }
    }
    let visible = causal.then_some(visible.as_ptr());
    let running = OnlineSoftmax {
        max: buffers.max[first..].as_mut_ptr(),
        sum: buffers.sum[first..].as_mut_ptr(),
        rescale: buffers.rescale[first..].as_mut_ptr(),
    };
    let dims = P::dims(task.shape.head_dim);
    let queries = buffers.queries[dims * first..].as_ptr();
    let sums = buffers.sums[dims * first..].as_mut_ptr();
    // SAFETY: sizes as drawn in `panel.rs`; the caller guarantees the level.
    unsafe {
        products.dots(rows, width, queries, buffers.logits.as_mut_ptr());
        let logits = &mut buffers.logits[..rows * width];
        if let Some(cap) = task.scale.cap {
            soft_cap_lanes::<P::V>(logits, cap);
        }
        if task.first_seen(last) > tile {
            let seen = |lane: usize| task.first_seen(position(first + lane)).saturating_sub(tile);
            hide_before(logits, width, seen);
        }
        let logits = buffers.logits.as_mut_ptr();
        softmax_tile::<P::V>(rows, width / P::V::N, logits, visible, running);
        products.add(rows, width, logits, running.rescale, sums);
    }
}

/// Divides the weighted values by the sums of the weights.
///
/// # Safety
/// No other thread writes the item's rows and heads.
#[inline(always)]
unsafe fn write_outputs<P: Products>(
    task: &PrefillAttention<'_>,
    item: &Item,
    outputs: &Outputs<'_>,
    buffers: &Buffers<'_>,
) {
    let HeadShape {
        q_heads, head_dim, ..
    } = task.shape;
    for lane in 0..item.used_lanes() {
        let (row, h) = (item.row(lane), item.q_head(lane));
        let Panel { first, width } = buffers.panel::<P>(lane);
        let at = (row * q_heads + h) * head_dim;
        // SAFETY: only this item writes these rows and heads.
        let out = unsafe { outputs.out.part(at..at + head_dim) };
        let sums = &buffers.sums[P::dims(head_dim) * first..];
        let scale = &task.scale;
        let (sum, total) = scale.complete(h, buffers.max[lane], buffers.sum[lane]);
        let factor = 1.0 / sum;
        for (i, out) in out.iter_mut().enumerate() {
            *out = sums[i * width + lane - first] * factor;
        }
        if let Some(log_sum_exp) = &outputs.log_sum_exp {
            let at = h * task.rows() + row;
            // SAFETY: as above.
            unsafe { log_sum_exp.part(at..at + 1)[0] = total };
        }
    }
}
