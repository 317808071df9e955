//! One reading on its way through the layers: [`Reader::read`] runs every token through a layer, [`Reader::cut`] keeps of its
//! keys and values what a method says. Several methods may cut the same layer, each for itself.

use std::time::{Duration, Instant};

use kept_kernels::{
    HeadShape, Normalise, PrefillAttention, RowStore, Stop, WindowScores, prefill_attention,
    window_scores,
};
use kept_models::{Model, RopeTable};
use kept_policies::{
    BelowAverage, Observation, Policy, Positions, Ramp, Retention, Softmax, Window,
};

use super::check::check;
use super::scratch::Scratch;
use super::tally::Tally;
use crate::compact::CompactLayer;
use crate::observe::{LastQueries, LogSumExp};
use crate::shape::{attention_scale, head_shape};
use crate::sizes::Sizes;
use crate::watch::ProgressMeter;
use crate::{EngineError, MemoryLedger, Phase, Watch};

/// What is read, whoever cuts it.
#[derive(Clone, Copy)]
pub(super) struct Read<'a> {
    pub(super) model: &'a Model,
    /// `[n]`
    pub(super) ids: &'a [u32],
    pub(super) rope: &'a RopeTable,
    pub(super) every_row: bool,
}

/// The residual stream of a prompt, the layer it has come to, and what reading needs besides.
pub(super) struct Reader<'a> {
    of: Read<'a>,
    /// One for each method.
    sizes: &'a [Sizes],
    heads: HeadShape,
    /// `[n, width]`
    residual: Vec<f32>,
    scratch: Scratch,
    /// Of this layer's measurements those that the scratch holds now: the next method may ask for the same.
    held: Held,
    /// Keys before RoPE, for one of several methods that looks at them so: the others need them as they are.
    raw_keys: Option<RowStore>,
    meter: ProgressMeter,
    tally: Tally,
    /// Bytes of the largest layer's pass so far.
    largest_pass: u64,
}

/// What was measured last in a layer, by what was asked for.
#[derive(Default)]
struct Held {
    window: Option<Window>,
    ramp: Option<Ramp>,
    below: Option<usize>,
}

impl<'a> Reader<'a> {
    /// Everything is allocated here. `sizes` has an entry for each method that will cut.
    pub(super) fn new(of: Read<'a>, sizes: &'a [Sizes]) -> Self {
        let (model, n) = (of.model, of.ids.len());
        let heads = head_shape(model);
        let mut residual = vec![0.0f32; sizes[0].residual()];
        model.embed(of.ids, &mut residual);
        Self {
            of,
            sizes,
            heads,
            residual,
            scratch: Scratch::new(sizes, heads),
            held: Held::default(),
            raw_keys: None,
            meter: ProgressMeter::new(Phase::Reading, n, n * sizes[0].keeps.len()),
            tally: Tally::new(&sizes[0], model, of.rope),
            largest_pass: 0,
        }
    }

    /// Runs the whole prompt through `layer`: its keys and values, its output, and what its queries saw. Gives the time that
    /// went into measuring.
    pub(super) fn read(
        &mut self,
        layer: usize,
        watch: &mut dyn Watch,
        stop: &Stop,
    ) -> Result<Duration, EngineError> {
        let Read { model, rope, .. } = self.of;
        let (n, chunk, width) = (
            self.sizes[0].tokens,
            self.sizes[0].chunk,
            model.config().width,
        );
        let last_layer = layer + 1 == self.sizes[0].keeps.len();
        let needs = || self.sizes.iter().map(|sizes| sizes.needs_of(layer));
        let column_sums = needs().any(|needs| needs.column_sums);
        let window_from = n - needs().map(|needs| needs.query_rows()).max().unwrap_or(0);
        let q_width = self.heads.q_heads * self.heads.head_dim;
        let kv_width = self.heads.kv_heads * self.heads.head_dim;
        let scratch = &mut self.scratch;
        let mut measuring = Duration::ZERO;
        let futures = needs().filter_map(|needs| needs.future);
        scratch.measured.start(self.heads, futures);
        scratch.window_queries.clear();
        self.held = Held::default();
        if column_sums {
            scratch.column_sums.clear();
            scratch.column_sums.resize(self.heads.q_heads * n, 0.0);
        }
        let mut pass = model.layer_pass(layer, chunk)?;
        for first in (0..n).step_by(chunk) {
            let count = chunk.min(n - first);
            let q = &mut scratch.q[..count * q_width];
            let k = &mut scratch.k[..count * kv_width];
            let v = &mut scratch.v[..count * kv_width];
            let stream = &mut self.residual[first * width..(first + count) * width];
            pass.project(stream, q, k, v, stop)?;
            let started = Instant::now();
            scratch.measured.add(q, first);
            measuring += started.elapsed();
            if let Some(rope) = rope.of_layer(layer) {
                rope.rotate_rows(q, self.heads.q_heads, first);
                rope.rotate_rows(k, self.heads.kv_heads, first);
            }
            scratch.keys.copy_in(first, k);
            scratch.values.copy_in(first, v);
            if first + count > window_from {
                let skip = window_from.saturating_sub(first) * q_width;
                scratch.window_queries.extend_from_slice(&q[skip..]);
            }
            // The last layer's output matters in the last row only.
            let needed = match last_layer && !self.of.every_row {
                false => first..first + count,
                true if first + count == n => n - 1..n,
                true => first..first,
            };
            let log_sum_exp = match column_sums {
                true => &mut scratch.log_sum_exp[..self.heads.q_heads * count],
                false => &mut [],
            };
            let whole = needed.len() == count;
            if !needed.is_empty() {
                let local = needed.start - first..needed.end - first;
                let out = &mut scratch.attention[..needed.len() * q_width];
                let task = PrefillAttention {
                    shape: self.heads,
                    scale: attention_scale(model),
                    window: model.config().kinds[layer].window,
                    queries: &q[local.start * q_width..local.end * q_width],
                    first: needed.start,
                    keys: &scratch.keys,
                    values: &scratch.values,
                };
                let known = (column_sums && whole).then_some(&mut *log_sum_exp);
                prefill_attention(&task, out, known, stop)?;
                let stream = &mut stream[local.start * width..local.end * width];
                pass.finish(out, stream, stop)?;
            }
            if column_sums {
                let started = Instant::now();
                let rows = LastQueries {
                    shape: self.heads,
                    scale: attention_scale(model),
                    queries: q,
                    keys: &scratch.keys,
                    tokens: first + count,
                };
                let known = match whole {
                    true => LogSumExp::Known(log_sum_exp),
                    false => LogSumExp::Unknown(log_sum_exp),
                };
                rows.add_column_sums(known, &mut scratch.column_sums, stop)?;
                measuring += started.elapsed();
            }
            let done = layer * n + first + count;
            self.tally.report(&mut self.meter, done, watch);
        }
        self.largest_pass = self.largest_pass.max(pass.bytes());
        Ok(measuring)
    }

    /// Keeps the last positions of the layer that was just read, as many as its window. Every method holds them.
    pub(super) fn keep_window(&mut self, window: usize) -> CompactLayer {
        let (keys, values) = (&self.scratch.keys, &self.scratch.values);
        let sizes = &self.sizes[0];
        let ring = CompactLayer::ring(keys, values, sizes.tokens, window, sizes.room);
        self.tally.cut(None, &ring);
        ring
    }

    /// Measures what method number `which` needs of the model's layer `model_layer`, which was just read and is its own layer
    /// `layer`, and keeps what it chooses.
    pub(super) fn cut(
        &mut self,
        (model_layer, layer): (usize, usize),
        which: usize,
        policy: &mut dyn Policy,
        stop: &Stop,
    ) -> Result<(CompactLayer, Retention), EngineError> {
        let _span = tracing::debug_span!("selecting", layer, method = policy.name()).entered();
        let sizes = &self.sizes[which];
        let (n, positions, needs) = (sizes.tokens, sizes.positions, sizes.needs[layer]);
        self.measure(layer, which, stop)?;
        let rope = self.of.rope.of_layer(model_layer);
        let scratch = &mut self.scratch;
        let needs_rows = policy.needs(layer).rows;
        // A method that looks at keys and re-assigns positions looks at them as they will be stored: before RoPE.
        let raw = needs_rows && positions == Positions::Reassigned;
        let keys = match (raw, self.sizes.len()) {
            (false, _) => &scratch.keys,
            // Nobody looks at them afterwards.
            (true, 1) => {
                unrotate_all(&mut scratch.keys, rope);
                &scratch.keys
            }
            (true, _) => {
                let keys = self.raw_keys.insert(scratch.keys.clone());
                unrotate_all(keys, rope);
                keys
            }
        };
        if let Some(future) = needs.future {
            let rope = rope.map(|_| self.of.rope);
            scratch.measured.finish(future, rope, n);
        }
        let measured = &scratch.measured;
        let observation = Observation {
            layer,
            tokens: n,
            kv_heads: self.heads.kv_heads,
            group: self.heads.group(),
            window: (needs.window).map(|_| scratch.window_scores.as_slice()),
            column_sums: (needs.column_sums).then_some(scratch.column_sums.as_slice()),
            ramp: needs.ramp.map(|_| measured.ramp.as_slice()),
            below: needs.below.map(|rows| BelowAverage {
                rows,
                bits: &measured.bits,
            }),
            future: needs.future.and_then(|future| measured.found(future)),
            keys: needs_rows.then(|| keys.as_slice()),
            values: needs_rows.then(|| scratch.values.as_slice()),
        };
        let retention = policy.select(&observation, sizes.rows[layer]);
        let spreads = policy.spreads(&observation, &retention);
        check(&retention, n, sizes.rows[layer], sizes.tables[layer]);
        let mut compact = CompactLayer::gather(
            keys,
            &scratch.values,
            n,
            &retention,
            &sizes.head_capacities(layer, &retention),
            positions,
        );
        compact.spread(&scratch.values, &spreads);
        if let Some(table) = sizes.tables[layer] {
            compact = compact.with_table(keys, &scratch.values, &retention, table);
        }
        if let Some(rope) = rope.filter(|_| positions == Positions::Reassigned && !raw) {
            unrotate(&mut compact, rope);
        }
        self.tally.cut(Some(layer), &compact);
        Ok((compact, retention))
    }

    /// What the last queries of `layer` saw, as far as method number `which` asks for it.
    fn measure(&mut self, layer: usize, which: usize, stop: &Stop) -> Result<(), EngineError> {
        let needs = self.sizes[which].needs[layer];
        let scratch = &mut self.scratch;
        let last = LastQueries {
            shape: self.heads,
            scale: attention_scale(self.of.model),
            queries: &scratch.window_queries,
            keys: &scratch.keys,
            tokens: self.sizes[which].tokens,
        };
        let measured = &mut scratch.measured;
        if let Some(ramp) = needs.ramp
            && self.held.ramp != Some(ramp)
        {
            last.ramp(ramp, &mut measured.ramp, stop)?;
            self.held.ramp = Some(ramp);
        }
        if let Some(rows) = needs.below
            && self.held.below != Some(rows)
        {
            last.below(rows, &mut measured.bits, stop)?;
            self.held.below = Some(rows);
        }
        if let Some(window) = needs.window
            && self.held.window != Some(window)
        {
            let floats = self.heads.q_heads * last.tokens;
            scratch.window_scores.resize(floats, 0.0);
            let task = WindowScores {
                shape: self.heads,
                scale: last.scale,
                queries: last.last(window.rows),
                keys: &scratch.keys,
                tokens: last.tokens,
                normalise: match window.softmax {
                    Softmax::All => Normalise::All,
                    Softmax::Prefix => Normalise::Prefix,
                },
                row_weights: None,
            };
            window_scores(&task, &mut scratch.window_scores, stop)?;
            self.held.window = Some(window);
        }
        Ok(())
    }

    /// What reading itself holds.
    pub(super) fn ledger(&self) -> MemoryLedger {
        let scratch = &self.scratch;
        let raw_keys = self.raw_keys.as_ref().map_or(0, RowStore::bytes);
        MemoryLedger {
            layer_kv: (scratch.keys.bytes() + scratch.values.bytes() + raw_keys) as u64,
            residual: size_of_val(self.residual.as_slice()) as u64,
            activations: scratch.bytes() + self.largest_pass,
            ..MemoryLedger::default()
        }
    }

    /// `[n, width]`: the last layer's output; of all but the last row only if every row was asked for.
    pub(super) fn into_residual(self) -> Vec<f32> {
        self.residual
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
fn unrotate_all(keys: &mut RowStore, rope: Option<&RopeTable>) {
    let Some(rope) = rope else { return };
    for head in 0..keys.kv_heads() {
        for position in 0..keys.capacity(head) {
            rope.unrotate_at(keys.row_mut(head, position), position);
        }
    }
}
