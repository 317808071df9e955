//! Prefill: layers outside, chunks inside, each layer cut right after its own attention.
//!
//! At any moment one layer's full keys and values exist, beside the residual stream of the whole prompt. The result is exact:
//! a layer's attention sees all of its keys, whatever the layers before it kept.
//!
//! ```text
//! residual [n, width] --layer 0: chunk, chunk, chunk--> residual --layer 1: ...--> last row -> logits
//!                            | keys, values [n]
//!                            v
//!                     observe -> select -> gather -> CompactLayer 0
//! ```

use std::time::{Duration, Instant};

use kept_kernels::{
    HeadShape, Normalise, PrefillAttention, RowStore, Stop, WindowScores, prefill_attention,
    window_scores,
};
use kept_models::{Model, RopeTable};
use kept_policies::{
    BelowAverage, ClassTable, Entry, ModelShape, Observation, Policy, Pos, Positions, Retention,
    Softmax,
};

use crate::compact::{CompactCache, CompactLayer};
use crate::observe::{AverageTurn, LastQueries, Measured};
use crate::sizes::Sizes;
use crate::watch::{ProgressMeter, Told};
use crate::{EngineError, MemoryLedger, MemoryNow, Phase, RetentionMap, Watch};

/// Tokens that run through a layer together: enough for the matrix kernels, small enough for the scratch.
pub(crate) const CHUNK: usize = 512;

/// What is to be read, and how it is cut.
pub struct Prefill<'a> {
    /// The model.
    pub model: &'a Model,
    /// `[n]`: the prompt.
    pub ids: &'a [u32],
    /// The method.
    pub policy: &'a mut dyn Policy,
    /// Rows per kv head and layer on average.
    pub budget: usize,
    /// Tokens that may follow the prompt.
    pub room: usize,
    /// Rotation for every position of the prompt.
    pub rope: &'a RopeTable,
    /// Keep the last layer's output of every row, not only of the last: for logits of the whole prompt.
    pub every_row: bool,
    /// Tokens per chunk; the result does not depend on it.
    pub chunk: usize,
}

/// A prompt that was read.
pub struct PrefillOutcome {
    /// The kept rows.
    pub cache: CompactCache,
    /// What was kept.
    pub map: RetentionMap,
    /// `[width]`, or `[n, width]` with `every_row`: the last layer's output, before the final norm.
    pub hidden: Vec<f32>,
    /// Rows per kv head that the method may keep, per layer.
    pub rows: Vec<usize>,
    /// Time spent observing, selecting and gathering.
    pub selecting: Duration,
    /// Memory, by category.
    pub ledger: MemoryLedger,
}

/// The scratch of one layer's pass, made once.
struct Scratch {
    /// `[n]` rows per kv head.
    keys: RowStore,
    /// `[n]` rows per kv head.
    values: RowStore,
    /// `[chunk, q_heads, head_dim]`
    q: Vec<f32>,
    /// `[chunk, kv_heads, head_dim]`
    k: Vec<f32>,
    /// `[chunk, kv_heads, head_dim]`
    v: Vec<f32>,
    /// `[chunk, q_heads, head_dim]`
    attention: Vec<f32>,
    /// `[w, q_heads, head_dim]`: the rotated queries of the observation window, if there is one.
    window_queries: Vec<f32>,
    /// `[q_heads, n]`: what the window sees.
    window_scores: Vec<f32>,
    /// `[q_heads, n]`: what all rows see, where the method asks for it.
    column_sums: Vec<f32>,
    /// `[q_heads, first + chunk]`: what one chunk of rows sees.
    chunk_sums: Vec<f32>,
    /// What only some methods ask for.
    measured: Measured,
    /// Floats (4 bytes) of `measured` at its largest.
    measured_floats: usize,
}

impl Scratch {
    fn new(sizes: &Sizes, heads: HeadShape) -> Self {
        let rows = || RowStore::uniform(heads.kv_heads, sizes.tokens, heads.head_dim);
        Self {
            keys: rows(),
            values: rows(),
            q: vec![0.0; sizes.q()],
            k: vec![0.0; sizes.kv()],
            v: vec![0.0; sizes.kv()],
            attention: vec![0.0; sizes.q()],
            window_queries: Vec::with_capacity(sizes.window_queries()),
            window_scores: Vec::with_capacity(sizes.window_scores()),
            column_sums: Vec::with_capacity(sizes.column_sums() / 2),
            chunk_sums: Vec::with_capacity(sizes.column_sums() / 2),
            measured: Measured::default(),
            measured_floats: sizes.measured(),
        }
    }

    /// Bytes of all of it but keys and values.
    fn bytes(&self) -> u64 {
        let floats = self.q.len()
            + self.k.len()
            + self.v.len()
            + self.attention.len()
            + self.window_queries.capacity()
            + self.window_scores.capacity()
            + self.column_sums.capacity()
            + self.chunk_sums.capacity()
            + self.measured_floats;
        (floats * size_of::<f32>()) as u64
    }
}

impl<'a> Prefill<'a> {
    /// Reading `ids` with the usual chunks, for an answer of up to `room` tokens.
    pub fn new(
        model: &'a Model,
        ids: &'a [u32],
        policy: &'a mut dyn Policy,
        budget: usize,
        room: usize,
        rope: &'a RopeTable,
    ) -> Self {
        Self {
            model,
            ids,
            policy,
            budget,
            room,
            rope,
            every_row: false,
            chunk: CHUNK,
        }
    }

    /// Reads the prompt. `progress` hears about it; `stop` ends it within about a tenth of a second.
    pub fn run(
        self,
        progress: &mut dyn FnMut(crate::Event),
        stop: &Stop,
    ) -> Result<PrefillOutcome, EngineError> {
        self.run_watched(&mut Told(progress), stop)
    }

    /// Reads the prompt; `watch` hears about progress and every layer that is cut. `stop` as in [`Prefill::run`].
    pub fn run_watched(
        self,
        watch: &mut dyn Watch,
        stop: &Stop,
    ) -> Result<PrefillOutcome, EngineError> {
        let n = self.ids.len();
        let shape = shape_of(self.model);
        let heads = head_shape(self.model);
        let sizes = Sizes::new(
            self.model,
            &mut *self.policy,
            n,
            self.budget,
            self.room,
            self.chunk,
        )?;
        let (chunk, positions) = (sizes.chunk, sizes.positions);
        let width = self.model.config().width;

        let mut residual = vec![0.0f32; sizes.residual()];
        self.model.embed(self.ids, &mut residual);
        let mut scratch = Scratch::new(&sizes, heads);
        let mut meter = ProgressMeter::new(Phase::Reading, n, n * shape.layers);
        let mut tally = Tally::new(&sizes, self.model, self.rope);
        let mut map = RetentionMap::new(n, shape.kv_heads);
        let mut layers = Vec::with_capacity(shape.layers);
        let mut selecting = Duration::ZERO;
        let mut largest_pass = 0;
        let ones = vec![1.0f32; chunk];
        let mut turn = None;

        for (layer, &layer_rows) in sizes.rows.iter().enumerate() {
            let last_layer = layer + 1 == shape.layers;
            let window = sizes.windows[layer];
            let needs = sizes.needs[layer];
            let window_from = n - sizes.query_rows(layer);
            if let Some(future) = needs.future {
                scratch.measured.moments.start(heads, future);
            }
            scratch.window_queries.clear();
            let column_sums = sizes.column_sums[layer];
            if column_sums {
                scratch.column_sums.clear();
                scratch.column_sums.resize(shape.q_heads * n, 0.0);
            }
            let mut pass = self.model.layer_pass(layer, chunk)?;
            for first in (0..n).step_by(chunk) {
                let count = chunk.min(n - first);
                let q_width = shape.q_heads * shape.head_dim;
                let kv_width = shape.kv_heads * shape.head_dim;
                let q = &mut scratch.q[..count * q_width];
                let k = &mut scratch.k[..count * kv_width];
                let v = &mut scratch.v[..count * kv_width];
                let stream = &mut residual[first * width..(first + count) * width];
                pass.project(stream, q, k, v, stop)?;
                if let Some(future) = needs.future {
                    let started = Instant::now();
                    let skip = future.skip.saturating_sub(first).min(count);
                    scratch.measured.moments.add(&q[skip * q_width..]);
                    selecting += started.elapsed();
                }
                self.rope.rotate_rows(q, shape.q_heads, first);
                self.rope.rotate_rows(k, shape.kv_heads, first);
                scratch.keys.copy_in(first, k);
                scratch.values.copy_in(first, v);
                if first + count > window_from {
                    let skip = window_from.saturating_sub(first) * q_width;
                    scratch.window_queries.extend_from_slice(&q[skip..]);
                }
                if column_sums {
                    let started = Instant::now();
                    let seen = first + count;
                    scratch.chunk_sums.clear();
                    scratch.chunk_sums.resize(shape.q_heads * seen, 0.0);
                    let task = WindowScores {
                        shape: heads,
                        scale: attention_scale(self.model),
                        queries: q,
                        keys: &scratch.keys,
                        tokens: seen,
                        normalise: Normalise::All,
                        row_weights: Some(&ones[..count]),
                    };
                    window_scores(&task, &mut scratch.chunk_sums, stop)?;
                    let sums = scratch.column_sums.chunks_exact_mut(n);
                    for (sums, chunk) in sums.zip(scratch.chunk_sums.chunks_exact(seen)) {
                        sums.iter_mut().zip(chunk).for_each(|(s, p)| *s += p);
                    }
                    selecting += started.elapsed();
                }
                // The last layer's output matters in the last row only.
                let needed = match last_layer && !self.every_row {
                    false => first..first + count,
                    true if first + count == n => n - 1..n,
                    true => {
                        tally.report(&mut meter, layer * n + first + count, watch);
                        continue;
                    }
                };
                let local = needed.start - first..needed.end - first;
                let out = &mut scratch.attention[..needed.len() * q_width];
                let task = PrefillAttention {
                    shape: heads,
                    scale: attention_scale(self.model),
                    queries: &q[local.start * q_width..local.end * q_width],
                    first: needed.start,
                    keys: &scratch.keys,
                    values: &scratch.values,
                };
                prefill_attention(&task, out, None, stop)?;
                let stream = &mut stream[local.start * width..local.end * width];
                pass.finish(out, stream, stop)?;
                tally.report(&mut meter, layer * n + first + count, watch);
            }
            largest_pass = largest_pass.max(pass.bytes());
            drop(pass);

            let started = Instant::now();
            let _span =
                tracing::debug_span!("selecting", layer, method = self.policy.name()).entered();
            let last = LastQueries {
                shape: heads,
                scale: attention_scale(self.model),
                queries: &scratch.window_queries,
                keys: &scratch.keys,
                tokens: n,
            };
            let measured = &mut scratch.measured;
            if let Some(ramp) = needs.ramp {
                last.ramp(ramp, &mut measured.ramp, stop)?;
            }
            if let Some(rows) = needs.below {
                last.below(rows, &mut measured.seen, &mut measured.bits, stop)?;
            }
            if let Some(future) = needs.future
                && turn.is_none()
            {
                turn = Some(AverageTurn::new(self.rope, n, future.positions));
            }
            if let Some(window) = window {
                scratch.window_scores.resize(shape.q_heads * n, 0.0);
                let task = WindowScores {
                    shape: heads,
                    scale: attention_scale(self.model),
                    queries: last.last(window.rows),
                    keys: &scratch.keys,
                    tokens: n,
                    normalise: match window.softmax {
                        Softmax::All => Normalise::All,
                        Softmax::Prefix => Normalise::Prefix,
                    },
                    row_weights: None,
                };
                window_scores(&task, &mut scratch.window_scores, stop)?;
            }
            let needs_rows = self.policy.needs(layer).rows;
            // A method that looks at keys and re-assigns positions looks at them as they will be stored: before RoPE.
            let raw = needs_rows && positions == Positions::Reassigned;
            if raw {
                unrotate_all(&mut scratch.keys, self.rope);
            }
            let measured = &mut scratch.measured;
            let future = match needs.future {
                Some(_) => measured.moments.finish(turn.as_ref()),
                None => None,
            };
            let observation = Observation {
                layer,
                tokens: n,
                kv_heads: shape.kv_heads,
                group: shape.group(),
                window: window.map(|_| scratch.window_scores.as_slice()),
                column_sums: column_sums.then_some(scratch.column_sums.as_slice()),
                ramp: needs.ramp.map(|_| measured.ramp.as_slice()),
                below: needs.below.map(|rows| BelowAverage {
                    rows,
                    bits: &measured.bits,
                }),
                future,
                keys: needs_rows.then(|| scratch.keys.as_slice()),
                values: needs_rows.then(|| scratch.values.as_slice()),
            };
            let retention = self.policy.select(&observation, layer_rows);
            let spreads = self.policy.spreads(&observation, &retention);
            check(&retention, n, layer_rows, sizes.tables[layer]);
            let mut compact = CompactLayer::gather(
                &scratch.keys,
                &scratch.values,
                n,
                &retention,
                &sizes.head_capacities(layer, &retention),
                positions,
            );
            compact.spread(&scratch.values, &spreads);
            if let Some(table) = sizes.tables[layer] {
                compact = compact.with_table(&scratch.keys, &scratch.values, &retention, table);
            }
            if positions == Positions::Reassigned && !raw {
                unrotate(&mut compact, self.rope);
            }
            map.push(&retention);
            selecting += started.elapsed();
            tally.cut(&compact);
            watch.layer(layer, &compact);
            layers.push(compact);
        }

        let cache = CompactCache {
            layers,
            next: Pos(n as u32),
            reassigned: positions == Positions::Reassigned,
            widest: sizes.max_capacity,
        };
        let ledger = MemoryLedger {
            weights: self.model.weights_bytes(),
            layer_tiles: self.model.layer_tiles_bytes(),
            layer_kv: (scratch.keys.bytes() + scratch.values.bytes()) as u64,
            residual: size_of_val(residual.as_slice()) as u64,
            activations: scratch.bytes() + largest_pass,
            rope: self.rope.bytes(),
            kept_rows: cache.allocated_bytes(),
            tables: cache.table_bytes(),
            decode: 0,
        };
        let hidden = match self.every_row {
            true => residual,
            false => residual[(n - 1) * width..].to_vec(),
        };
        Ok(PrefillOutcome {
            cache,
            map,
            hidden,
            rows: sizes.rows,
            selecting,
            ledger,
        })
    }
}

/// What is in use while reading: the same scratch all the time, and ever more kept rows.
struct Tally {
    now: MemoryNow,
}

impl Tally {
    fn new(sizes: &Sizes, model: &Model, rope: &RopeTable) -> Self {
        let ledger = sizes.ledger(model);
        let a_row: usize = 2 * model.config().kv_width() * size_of::<f32>();
        Self {
            now: MemoryNow {
                weights: ledger.weights,
                kept_full: (sizes.tokens * sizes.rows.len() * a_row) as u64,
                scratch: ledger.reading() + rope.bytes(),
                ..MemoryNow::default()
            },
        }
    }

    fn cut(&mut self, layer: &CompactLayer) {
        self.now.kept += layer.live_bytes();
        self.now.tables += layer.table_bytes();
        self.now.scratch += layer.allocated_bytes() - layer.live_bytes();
    }

    fn report(&self, meter: &mut ProgressMeter, steps_done: usize, watch: &mut dyn Watch) {
        if let Some(progress) = meter.after(steps_done) {
            watch.progress(&progress, &self.now);
        }
    }
}

/// Scores are divided by the root of the head's width, as in every llama.
pub(crate) fn attention_scale(model: &Model) -> f32 {
    1.0 / (model.config().head_dim as f32).sqrt()
}

/// The model's numbers as a policy knows them.
pub(crate) fn shape_of(model: &Model) -> ModelShape {
    let config = model.config();
    ModelShape {
        layers: config.layers,
        q_heads: config.q_heads,
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
    }
}

/// The model's heads as the kernels know them.
pub(crate) fn head_shape(model: &Model) -> HeadShape {
    heads_of(&shape_of(model))
}

/// A policy's numbers as the kernels know them.
pub(crate) fn heads_of(shape: &ModelShape) -> HeadShape {
    HeadShape {
        q_heads: shape.q_heads,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
    }
}

/// Keys of a method that re-assigns positions are stored before RoPE.
fn unrotate(layer: &mut CompactLayer, rope: &RopeTable) {
    for head in 0..layer.rows.len() {
        for row in 0..layer.rows[head] {
            let position = layer.positions_of(head)[row].0 as usize;
            rope.unrotate_at(layer.keys.row_mut(head, row), position);
        }
    }
}

/// Row i of every head stands at position i: all of a prompt.
fn unrotate_all(keys: &mut RowStore, rope: &RopeTable) {
    for head in 0..keys.kv_heads() {
        for position in 0..keys.capacity(head) {
            rope.unrotate_at(keys.row_mut(head, position), position);
        }
    }
}

/// A policy's word is checked once, here: ascending, inside the prompt, no more than it may keep over all heads.
fn check(retention: &Retention, tokens: usize, rows: usize, table: Option<ClassTable>) {
    let heads: Vec<&[Pos]> = match retention {
        Retention::Everything => return,
        Retention::Keep(heads) => heads.iter().map(Vec::as_slice).collect(),
        Retention::Merge(heads) => {
            let room = table
                .expect("a method that merges asked for a table")
                .entries;
            for head in heads {
                let known = |e: &Entry| (e.class as usize) < head.centres.len();
                assert!(head.entries.iter().all(known), "every class has a centre");
                assert!(head.entries.len() <= room, "a table is not exceeded");
                ascending(head.entries.iter().map(|e| e.pos), tokens);
            }
            heads.iter().map(|head| head.centres.as_slice()).collect()
        }
    };
    for kept in &heads {
        ascending(kept.iter().copied(), tokens);
    }
    let kept: usize = heads.iter().map(|kept| kept.len()).sum();
    assert!(
        kept <= rows.min(tokens) * heads.len(),
        "a budget is not exceeded"
    );
}

fn ascending(positions: impl Iterator<Item = Pos> + Clone, tokens: usize) {
    assert!(
        positions.clone().is_sorted_by(|a, b| a < b),
        "kept positions ascend without repeats"
    );
    assert!(
        positions.last().is_some_and(|p| (p.0 as usize) < tokens),
        "kept positions lie in the prompt"
    );
}
