//! One reading on its way through the layers: [`Reader::read`] runs every token through a layer, [`Reader::cut`] keeps of its
//! keys and values what the method says.

use std::time::{Duration, Instant};

use kept_kernels::{
    HeadShape, Normalise, PrefillAttention, RowStore, Stop, WindowScores, prefill_attention,
    window_scores,
};
use kept_models::{Model, RopeTable};
use kept_policies::{BelowAverage, Observation, Policy, Positions, Retention, Softmax};

use super::check::check;
use super::repetition::{Repetition, Wanted};
use super::scratch::Scratch;
use super::tally::Tally;
use super::thinning::Alive;
use super::{Prefill, Repeated};
use crate::compact::CompactLayer;
use crate::observe::{AverageTurn, LastQueries};
use crate::shape::{attention_scale, head_shape};
use crate::sizes::Sizes;
use crate::turns::Turns;
use crate::{EngineError, MemoryLedger, Watch};

/// The residual stream of a prompt, the layer it has come to, and what reading needs besides.
pub(super) struct Reader<'a> {
    model: &'a Model,
    rope: &'a RopeTable,
    ids: &'a [u32],
    every_row: bool,
    sizes: &'a Sizes,
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
    tally: &'a mut Tally,
    /// Bytes of the largest layer's pass so far.
    largest_pass: u64,
    /// `[chunk]`: every row counts once.
    ones: Vec<f32>,
    turn: Option<AverageTurn>,
}

impl<'a> Reader<'a> {
    /// Everything is allocated here.
    pub(super) fn new<'p: 'a>(
        prefill: &Prefill<'p>,
        sizes: &'a Sizes,
        tally: &'a mut Tally,
    ) -> Self {
        let model = prefill.model;
        let heads = head_shape(model);
        let mut residual = vec![0.0f32; sizes.residual()];
        model.embed(prefill.ids, &mut residual);
        let (ids, rope) = (prefill.ids, prefill.rope);
        let repetition = (sizes.rereading.as_ref())
            .map(|plan| Repetition::new(model, ids, rope, sizes, plan, heads));
        Self {
            model,
            rope,
            ids,
            every_row: prefill.every_row,
            sizes,
            heads,
            residual,
            alive: Alive::default(),
            turns: sizes.thins().then(|| Turns::new(rope, sizes.chunk)),
            repetition,
            scratch: Scratch::new(sizes, heads),
            tally,
            largest_pass: 0,
            ones: vec![1.0f32; sizes.chunk],
            turn: None,
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
        let (n, chunk, width) = (
            self.sizes.entering_in(layer),
            self.sizes.chunk,
            self.model.config().width,
        );
        let last_layer = layer + 1 == self.sizes.keeps.len();
        let needs = self.sizes.needs_in(layer);
        let window_from = n - needs.query_rows();
        let q_width = self.heads.q_heads * self.heads.head_dim;
        let kv_width = self.heads.kv_heads * self.heads.head_dim;
        let scratch = &mut self.scratch;
        let mut measuring = Duration::ZERO;
        if let Some(future) = needs.future {
            scratch.measured.moments.start(self.heads, future);
        }
        scratch.window_queries.clear();
        if needs.column_sums {
            scratch.column_sums.clear();
            scratch.column_sums.resize(self.heads.q_heads * n, 0.0);
        }
        let mut pass = self.model.layer_pass(layer, chunk)?;
        for first in (0..n).step_by(chunk) {
            let count = chunk.min(n - first);
            let q = &mut scratch.q[..count * q_width];
            let k = &mut scratch.k[..count * kv_width];
            let v = &mut scratch.v[..count * kv_width];
            let stream = &mut self.residual[first * width..(first + count) * width];
            pass.project(stream, q, k, v, stop)?;
            if let Some(future) = needs.future {
                let started = Instant::now();
                let skip = future.skip.saturating_sub(first).min(count);
                scratch.measured.moments.add(&q[skip * q_width..]);
                measuring += started.elapsed();
            }
            let rope = self.rope.of_layer(layer);
            match (rope, self.alive.positions(), &mut self.turns) {
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
            if needs.column_sums {
                let started = Instant::now();
                let seen = first + count;
                scratch.chunk_sums.clear();
                scratch.chunk_sums.resize(self.heads.q_heads * seen, 0.0);
                let task = WindowScores {
                    shape: self.heads,
                    scale: attention_scale(self.model),
                    queries: q,
                    keys: &scratch.keys,
                    tokens: seen,
                    normalise: Normalise::All,
                    row_weights: Some(&self.ones[..count]),
                };
                window_scores(&task, &mut scratch.chunk_sums, stop)?;
                let sums = scratch.column_sums.chunks_exact_mut(n);
                for (sums, chunk) in sums.zip(scratch.chunk_sums.chunks_exact(seen)) {
                    sums.iter_mut().zip(chunk).for_each(|(s, p)| *s += p);
                }
                measuring += started.elapsed();
            }
            // The last layer's output matters in the last row only.
            let needed = match last_layer && !self.every_row {
                false => first..first + count,
                true if first + count == n => n - 1..n,
                true => first..first,
            };
            if !needed.is_empty() {
                let local = needed.start - first..needed.end - first;
                let out = &mut scratch.attention[..needed.len() * q_width];
                let task = PrefillAttention {
                    shape: self.heads,
                    scale: attention_scale(self.model),
                    window: self.model.config().kinds[layer].window,
                    queries: &q[local.start * q_width..local.end * q_width],
                    first: needed.start,
                    keys: &scratch.keys,
                    values: &scratch.values,
                };
                prefill_attention(&task, out, None, stop)?;
                let stream = &mut stream[local.start * width..local.end * width];
                pass.finish(out, stream, stop)?;
            }
            self.tally.passed(count, watch);
        }
        if let Some(repetition) = &mut self.repetition {
            let started = Instant::now();
            let wanted = Wanted {
                scores: needs.reread.is_some(),
                outputs: !last_layer || self.every_row,
            };
            let mut told = |rows| self.tally.passed(rows, watch);
            repetition.read((layer, &mut pass), scratch, wanted, chunk, stop, &mut told)?;
            measuring += started.elapsed();
        }
        self.largest_pass = self.largest_pass.max(pass.bytes());
        Ok(measuring)
    }

    /// Keeps the last positions of the layer that was just read, as many as its window.
    pub(super) fn keep_window(&mut self, window: usize) -> CompactLayer {
        let (keys, values) = (&self.scratch.keys, &self.scratch.values);
        let ring = CompactLayer::ring(keys, values, self.sizes.tokens, window, self.sizes.room);
        self.tally.cut(&ring);
        ring
    }

    /// Measures what the method needs of the model's layer `model_layer`, which was just read and is its own layer `layer`, and
    /// keeps what it chooses.
    pub(super) fn cut(
        &mut self,
        model_layer: usize,
        layer: usize,
        policy: &mut dyn Policy,
        stop: &Stop,
    ) -> Result<(CompactLayer, Retention), EngineError> {
        let _span = tracing::debug_span!("selecting", layer, method = policy.name()).entered();
        let sizes = self.sizes;
        let (n, positions) = (sizes.entering[layer], sizes.positions);
        self.measure(layer, stop)?;
        let rope = self.rope.of_layer(model_layer);
        // A method that looks at keys and re-assigns positions looks at them as they will be stored: before RoPE.
        let raw = policy.needs(layer).rows && positions == Positions::Reassigned;
        if let Some(rope) = rope.filter(|_| raw) {
            unrotate_all(&mut self.scratch.keys, rope);
        }
        let observation = self.observation(layer, policy.needs(layer).rows, rope.is_some());
        let retention = policy.select(&observation, sizes.rows[layer]);
        let spreads = policy.spreads(&observation, &retention);
        let passed = policy.pass_on(&observation);
        check(&retention, n, sizes.rows[layer], sizes.tables[layer]);
        let scratch = &self.scratch;
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
            let width = self.model.config().width;
            self.alive.pass_on(&passed, &mut self.residual, width);
        }
        self.tally.cut(&compact);
        Ok((compact, retention))
    }

    /// Measures what the method needs of the model's layer `model_layer`, which was just read and is its own layer `layer`, and
    /// tells it; nothing is kept.
    pub(super) fn survey(
        &mut self,
        model_layer: usize,
        layer: usize,
        policy: &mut dyn Policy,
        stop: &Stop,
    ) -> Result<(), EngineError> {
        self.measure(layer, stop)?;
        let rotated = self.rope.of_layer(model_layer).is_some();
        let observation = self.observation(layer, policy.needs(layer).rows, rotated);
        policy.survey(&observation);
        Ok(())
    }

    /// What was measured in `layer`, whose keys are `rotated` or not, with its keys and values if `rows`.
    fn observation(&mut self, layer: usize, rows: bool, rotated: bool) -> Observation<'_> {
        let needs = self.sizes.needs[layer];
        let scratch = &mut self.scratch;
        let measured = &mut scratch.measured;
        let future = match needs.future {
            Some(_) => measured
                .moments
                .finish(self.turn.as_ref().filter(|_| rotated)),
            None => None,
        };
        assert!(
            !rows || self.sizes.layer_rows() == self.sizes.tokens,
            "a method that looks at keys and values does not have the document repeated"
        );
        let repetition = self.repetition.as_ref();
        Observation {
            layer,
            tokens: self.sizes.entering[layer],
            kv_heads: self.heads.kv_heads,
            group: self.heads.group(),
            window: (needs.window).map(|_| scratch.window_scores.as_slice()),
            column_sums: (needs.column_sums).then_some(scratch.column_sums.as_slice()),
            ramp: needs.ramp.map(|_| measured.ramp.as_slice()),
            below: needs.below.map(|rows| BelowAverage {
                rows,
                bits: &measured.bits,
            }),
            future,
            reread: (needs.reread.and(repetition)).map(|r| r.scores.as_slice()),
            keys: rows.then(|| scratch.keys.as_slice()),
            values: rows.then(|| scratch.values.as_slice()),
        }
    }

    /// What the last queries of `layer` saw, as far as the method asked for it.
    fn measure(&mut self, layer: usize, stop: &Stop) -> Result<(), EngineError> {
        let needs = self.sizes.needs[layer];
        let scratch = &mut self.scratch;
        let last = LastQueries {
            shape: self.heads,
            scale: attention_scale(self.model),
            queries: &scratch.window_queries,
            keys: &scratch.keys,
            tokens: self.sizes.entering[layer],
        };
        let measured = &mut scratch.measured;
        if let Some(ramp) = needs.ramp {
            last.ramp(ramp, &mut measured.ramp, stop)?;
        }
        if let Some(rows) = needs.below {
            last.below(rows, &mut measured.seen, &mut measured.bits, stop)?;
        }
        if let Some(future) = needs.future
            && self.turn.is_none()
        {
            let (n, positions) = (self.sizes.tokens, future.positions);
            self.turn = Some(AverageTurn::new(self.rope, n, positions));
        }
        if let Some(window) = needs.window {
            let floats = self.heads.q_heads * self.sizes.entering[layer];
            scratch.window_scores.resize(floats, 0.0);
            let task = WindowScores {
                shape: self.heads,
                scale: attention_scale(self.model),
                queries: last.last(window.rows),
                keys: &scratch.keys,
                tokens: self.sizes.entering[layer],
                normalise: match window.softmax {
                    Softmax::All => Normalise::All,
                    Softmax::Prefix => Normalise::Prefix,
                },
                row_weights: None,
            };
            window_scores(&task, &mut scratch.window_scores, stop)?;
        }
        Ok(())
    }

    /// What reading itself holds.
    pub(super) fn ledger(&self) -> MemoryLedger {
        let scratch = &self.scratch;
        let repetition = self.repetition.as_ref();
        let own = repetition.map_or(0, Repetition::store_bytes);
        // As it was made: a stream that was thinned still stands in the memory it began in.
        let residual = (self.sizes.residual() * size_of::<f32>()) as u64;
        MemoryLedger {
            layer_kv: (scratch.keys.bytes() + scratch.values.bytes()) as u64 + own,
            residual: residual + repetition.map_or(0, Repetition::residual_bytes),
            activations: scratch.bytes() + self.largest_pass,
            ..MemoryLedger::default()
        }
    }

    /// The last layer's output: of the last row, `[width]`, or of every row that was asked for, `[n, width]`; and that of the
    /// repetition, likewise.
    pub(super) fn into_output(self) -> (Vec<f32>, Option<Repeated>) {
        let width = self.model.config().width;
        let hidden = match self.every_row {
            true => self.residual,
            false => self.residual[self.residual.len() - width..].to_vec(),
        };
        let plan = self.sizes.rereading.as_ref().filter(|_| self.every_row);
        let repeated = plan.zip(self.repetition).map(|(plan, rows)| Repeated {
            segments: plan.segments().collect(),
            ids: plan.ids(self.ids),
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
fn unrotate_all(keys: &mut RowStore, rope: &RopeTable) {
    for head in 0..keys.kv_heads() {
        for position in 0..keys.capacity(head) {
            rope.unrotate_at(keys.row_mut(head, position), position);
        }
    }
}
