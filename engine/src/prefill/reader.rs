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

use super::Repeated;
use super::check::check;
use super::repetition::{Repetition, Wanted};
use super::scratch::Scratch;
use super::tally::Tally;
use super::thinning::Alive;
use crate::compact::CompactLayer;
use crate::observe::{LastQueries, LogSumExp};
use crate::shape::{attention_scale, head_shape};
use crate::sizes::Sizes;
use crate::turns::Turns;
use crate::{EngineError, MemoryLedger, Watch};

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
    /// One for each method. Where tokens are dropped on the way or the document is repeated, there is one only.
    sizes: &'a [Sizes],
    heads: HeadShape,
    /// `[entering, width]`: of the tokens that enter the layer.
    residual: Vec<f32>,
    /// Which these are.
    alive: Alive,
    /// `[chunk]`: rotations, where rows are not positions.
    turns: Option<Turns>,
    /// The second stream, where the method asks for it.
    repetition: Option<Repetition<'a>>,
    scratch: Scratch,
    /// Of this layer's measurements those that the scratch holds now: the next method may ask for the same.
    held: Held,
    /// Keys before RoPE, for one of several methods that looks at them so: the others need them as they are.
    raw_keys: Option<RowStore>,
    tally: &'a mut Tally,
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
    pub(super) fn new(of: Read<'a>, sizes: &'a [Sizes], tally: &'a mut Tally) -> Self {
        assert!(
            sizes.len() == 1 || !sizes.iter().any(Sizes::reads_alone),
            "a method that reads in its own way shares no reading"
        );
        let Read {
            model, ids, rope, ..
        } = of;
        let (heads, first) = (head_shape(model), &sizes[0]);
        let mut residual = vec![0.0f32; first.residual()];
        model.embed(ids, &mut residual);
        let repetition = (first.rereading.as_ref())
            .map(|plan| Repetition::new(model, ids, rope, first, plan, heads));
        Self {
            of,
            sizes,
            heads,
            residual,
            alive: Alive::default(),
            turns: first.thins().then(|| Turns::new(rope, first.chunk)),
            repetition,
            scratch: Scratch::new(sizes, heads),
            held: Held::default(),
            raw_keys: None,
            tally,
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
            self.sizes[0].entering_in(layer),
            self.sizes[0].chunk,
            model.config().width,
        );
        let last_layer = layer + 1 == self.sizes[0].keeps.len();
        let needs = || self.sizes.iter().map(|sizes| sizes.needs_in(layer));
        let (column_sums, reread) = (
            needs().any(|needs| needs.column_sums),
            needs().any(|needs| needs.reread.is_some()),
        );
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
            match (
                rope.of_layer(layer),
                self.alive.positions(),
                &mut self.turns,
            ) {
                (None, ..) => {}
                (Some(rope), Some(alive), Some(turns)) => {
                    let positions = alive[first..first + count].iter();
                    turns.stand(rope, positions.map(|&p| p as usize));
                    turns.rotate(q, self.heads.q_heads, 0..count);
                    turns.rotate(k, self.heads.kv_heads, 0..count);
                }
                (Some(rope), ..) => {
                    rope.rotate_rows(q, self.heads.q_heads, first);
                    rope.rotate_rows(k, self.heads.kv_heads, first);
                }
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
            self.tally.passed(count, watch);
        }
        if let Some(repetition) = &mut self.repetition {
            let started = Instant::now();
            let wanted = Wanted {
                scores: reread,
                outputs: !last_layer || self.of.every_row,
            };
            let mut told = |rows| self.tally.passed(rows, watch);
            repetition.read((layer, &mut pass), scratch, wanted, chunk, stop, &mut told)?;
            measuring += started.elapsed();
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
        let all = self.sizes;
        let sizes = &all[which];
        let (n, positions) = (sizes.entering[layer], sizes.positions);
        let rope = self.of.rope.of_layer(model_layer);
        let needs_rows = policy.needs(layer).rows;
        // A method that looks at keys and re-assigns positions looks at them as they will be stored: before RoPE.
        let raw = needs_rows && positions == Positions::Reassigned;
        self.measure(layer, which, rope.is_some(), stop)?;
        if raw {
            match self.sizes.len() {
                // Nobody looks at them afterwards.
                1 => unrotate_all(&mut self.scratch.keys, rope),
                _ => {
                    let keys = self.raw_keys.insert(self.scratch.keys.clone());
                    unrotate_all(keys, rope);
                }
            }
        }
        let keys = match &self.raw_keys {
            Some(keys) if raw => keys,
            _ => &self.scratch.keys,
        };
        let observation = self.observation(layer, which, needs_rows.then_some(keys));
        let retention = policy.select(&observation, sizes.rows[layer]);
        let spreads = policy.spreads(&observation, &retention);
        let passed = policy.pass_on(&observation);
        check(&retention, n, sizes.rows[layer], sizes.tables[layer]);
        let values = &self.scratch.values;
        let mut compact = CompactLayer::gather(
            keys,
            values,
            n,
            &retention,
            &sizes.head_capacities(layer, &retention),
            positions,
        );
        compact.spread(values, &spreads);
        if let Some(table) = sizes.tables[layer] {
            compact = compact.with_table(keys, values, &retention, table);
        }
        if let Some(rope) = rope.filter(|_| positions == Positions::Reassigned && !raw) {
            unrotate(&mut compact, rope);
        }
        if let Some(alive) = self.alive.positions() {
            compact.place(alive);
        }
        let retention = self.alive.at_positions(retention, self.heads.kv_heads);
        let entering = passed.as_ref().map_or(n, Vec::len);
        let announced = sizes.entering.get(layer + 1);
        assert!(
            announced.is_none_or(|&next| next == entering),
            "as many tokens enter the next layer as the method announced"
        );
        if let Some(passed) = passed {
            let width = self.of.model.config().width;
            self.alive.pass_on(&passed, &mut self.residual, width);
        }
        self.tally.cut(Some(layer), &compact);
        Ok((compact, retention))
    }

    /// Measures what the only method needs of the model's layer `model_layer`, which was just read and is its own layer `layer`,
    /// and tells it; nothing is kept.
    pub(super) fn survey(
        &mut self,
        (model_layer, layer): (usize, usize),
        policy: &mut dyn Policy,
        stop: &Stop,
    ) -> Result<(), EngineError> {
        let rotated = self.of.rope.of_layer(model_layer).is_some();
        self.measure(layer, 0, rotated, stop)?;
        let keys = policy.needs(layer).rows.then_some(&self.scratch.keys);
        policy.survey(&self.observation(layer, 0, keys));
        Ok(())
    }

    /// What was measured in `layer` for method number `which`, with these keys and the values if it asked for them.
    fn observation<'o>(
        &'o self,
        layer: usize,
        which: usize,
        keys: Option<&'o RowStore>,
    ) -> Observation<'o> {
        let (sizes, scratch) = (&self.sizes[which], &self.scratch);
        let (needs, measured) = (sizes.needs[layer], &scratch.measured);
        assert!(
            keys.is_none() || sizes.layer_rows() == sizes.tokens,
            "a method that looks at keys and values does not have the document repeated"
        );
        let repetition = self.repetition.as_ref();
        Observation {
            layer,
            tokens: sizes.entering[layer],
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
            reread: (needs.reread.and(repetition)).map(|r| r.scores.as_slice()),
            keys: keys.map(RowStore::as_slice),
            values: keys.map(|_| scratch.values.as_slice()),
        }
    }

    /// What the last queries of `layer`, which RoPE has rotated or not, saw, as far as method number `which` asks for it.
    fn measure(
        &mut self,
        layer: usize,
        which: usize,
        rotated: bool,
        stop: &Stop,
    ) -> Result<(), EngineError> {
        let all = self.sizes;
        let sizes = &all[which];
        let needs = sizes.needs[layer];
        let scratch = &mut self.scratch;
        let last = LastQueries {
            shape: self.heads,
            scale: attention_scale(self.of.model),
            queries: &scratch.window_queries,
            keys: &scratch.keys,
            tokens: sizes.entering[layer],
        };
        let measured = &mut scratch.measured;
        if let Some(future) = needs.future {
            let rope = rotated.then_some(self.of.rope);
            measured.finish(future, rope, sizes.tokens);
        }
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
        let repetition = self.repetition.as_ref();
        let own = repetition.map_or(0, Repetition::store_bytes);
        let raw_keys = self.raw_keys.as_ref().map_or(0, RowStore::bytes);
        // As it was made: a stream that was thinned still stands in the memory it began in.
        let residual = (self.sizes[0].residual() * size_of::<f32>()) as u64;
        MemoryLedger {
            layer_kv: (scratch.keys.bytes() + scratch.values.bytes() + raw_keys) as u64 + own,
            residual: residual + repetition.map_or(0, Repetition::residual_bytes),
            activations: scratch.bytes() + self.largest_pass,
            ..MemoryLedger::default()
        }
    }

    /// The last layer's output: of the last row, `[width]`, or of every row that was asked for, `[n, width]`; and that of the
    /// repetition, likewise.
    pub(super) fn into_output(self) -> (Vec<f32>, Option<Repeated>) {
        let width = self.of.model.config().width;
        let hidden = match self.of.every_row {
            true => self.residual,
            false => self.residual[self.residual.len() - width..].to_vec(),
        };
        let plan = self.sizes[0]
            .rereading
            .as_ref()
            .filter(|_| self.of.every_row);
        let repeated = plan.zip(self.repetition).map(|(plan, rows)| Repeated {
            segments: plan.segments().collect(),
            ids: plan.ids(self.of.ids),
            hidden: rows.into_residual(),
        });
        (hidden, repeated)
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
