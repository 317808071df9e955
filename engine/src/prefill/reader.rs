//! One reading on its way through the layers: [`Reader::read`] runs every token through a layer, [`Reader::cut`] keeps of its
//! keys and values what a method says. Several methods may cut the same layer, each for itself.

use std::ops::Range;
use std::time::{Duration, Instant};

use kept_kernels::{
    HeadShape, Normalise, PrefillAttention, RowStore, Stop, WindowScores, prefill_attention,
    window_scores,
};
use kept_models::{CardModel, LayerPass, Model, RopeTable};
use kept_policies::{
    BelowAverage, Observation, Policy, Positions, Ramp, Retention, Softmax, Window,
};

use super::Repeated;
use super::card::{CardChunk, CardReading};
use super::check::check;
use super::prefix::{FEW_ROWS, Learned, Prefix};
use super::repetition::{Repetition, Wanted};
use super::scratch::Scratch;
use super::tally::Tally;
use super::thinning::Alive;
use crate::compact::{CompactLayer, Gather};
use crate::observe::{LastQueries, LogSumExp, ramp_weights};
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
    /// Rows of it, wherever it is.
    entered: usize,
    /// Which these are.
    alive: Alive,
    /// `[chunk]`: rotations, where rows are not positions.
    turns: Option<Turns>,
    /// The second stream, where the method asks for it.
    repetition: Option<Repetition<'a>>,
    /// `[kv_heads, n]`: its scores, where the vault has them.
    known_scores: Vec<f32>,
    /// What comes from the vault and goes there.
    prefix: &'a mut Prefix,
    scratch: Scratch,
    /// On a graphics card the layer itself, in place of `residual` and of most of `scratch`.
    card: Option<CardReading<'a>>,
    /// Of this layer's measurements those that the scratch holds now: the next method may ask for the same.
    held: Held,
    /// The last so many rows of the prompt whose log-sum-exp the scratch holds, as attention left it in this layer.
    attended: usize,
    /// Keys before RoPE, for one of several methods that looks at them so: the others need them as they are.
    raw_keys: Option<RowStore>,
    tally: &'a mut Tally,
    /// Bytes of the largest layer's pass so far.
    largest_pass: u64,
    /// Bytes on the card for the second stream.
    staged: u64,
}

/// What is asked of one layer's reading.
struct Asked {
    /// Tokens that enter.
    n: usize,
    column_sums: bool,
    /// The first token whose queries are observed.
    window_from: usize,
    last_layer: bool,
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
    ///
    /// # Errors
    /// [`EngineError::Card`] when a graphics card has too little memory.
    pub(super) fn new(
        of: Read<'a>,
        sizes: &'a [Sizes],
        prefix: &'a mut Prefix,
        tally: &'a mut Tally,
    ) -> Result<Self, EngineError> {
        assert!(
            sizes.len() == 1 || !sizes.iter().any(Sizes::reads_alone),
            "a method that reads in its own way shares no reading"
        );
        let Read {
            model, ids, rope, ..
        } = of;
        let (heads, first) = (head_shape(model), &sizes[0]);
        let mut residual = vec![0.0f32; first.residual()];
        model.embed(&ids[prefix.known()..], &mut residual);
        let known_scores = match prefix.knows_repetition() {
            true => vec![0.0; heads.kv_heads * ids.len()],
            false => Vec::new(),
        };
        let repetition = (first.rereading.as_ref())
            .map(|plan| Repetition::new(model, ids, rope, first, plan, heads));
        let mut card = (model.card())
            .map(|card| CardReading::new(card, model, rope, sizes))
            .transpose()?;
        if let Some(card) = &mut card {
            card.write_residual(&std::mem::take(&mut residual))?;
        }
        let staged = match (model.card(), &first.rereading) {
            (Some(card), Some(plan)) => Repetition::card_bytes(card, model, first, plan)?,
            _ => 0,
        };
        Ok(Self {
            of,
            sizes,
            heads,
            entered: first.residual() / model.config().width,
            residual,
            alive: Alive::default(),
            turns: first.thins().then(|| Turns::new(rope, first.chunk)),
            repetition,
            known_scores,
            prefix,
            scratch: Scratch::new(sizes, heads),
            card,
            held: Held::default(),
            attended: 0,
            raw_keys: None,
            tally,
            largest_pass: 0,
            staged,
        })
    }

    /// Runs what is not known of the prompt through `layer`: its keys and values, its output, and what its queries saw. Gives the
    /// time that went into measuring.
    ///
    /// # Errors
    /// [`EngineError::Stopped`]; [`EngineError::Vault`] when known rows cannot be read.
    pub(super) fn read(
        &mut self,
        layer: usize,
        watch: &mut dyn Watch,
        stop: &Stop,
    ) -> Result<Duration, EngineError> {
        let model = self.of.model;
        let sizes = &self.sizes[0];
        let (n, chunk) = (sizes.entering_in(layer), sizes.chunk);
        // What is dropped on the way is behind no vault: all that enters is then the prefix.
        let (known, prefix) = (self.prefix.known(), self.prefix.tokens().min(n));
        let needs = || self.sizes.iter().map(|sizes| sizes.needs_in(layer));
        let asked = Asked {
            n,
            column_sums: needs().any(|needs| needs.column_sums),
            window_from: n - needs().map(|needs| needs.query_rows()).max().unwrap_or(0),
            last_layer: layer + 1 == sizes.keeps.len(),
        };
        let reread = needs().any(|needs| needs.reread.is_some());
        let scratch = &mut self.scratch;
        scratch.measured.start(
            self.heads,
            self.sizes.iter().filter_map(|s| s.needs_in(layer).future),
        );
        scratch.window_queries.clear();
        self.held = Held::default();
        if asked.column_sums {
            scratch.column_sums.clear();
            scratch.column_sums.resize(self.heads.q_heads * n, 0.0);
        }
        self.fill_known(layer, &asked)?;

        let mut measuring = Duration::ZERO;
        // Its weights are rearranged for many rows, if there are any.
        let mut pass = None;
        for first in (known..prefix).step_by(chunk) {
            let rows = first..prefix.min(first + chunk);
            if self.card.is_some() {
                measuring += self.read_chunk_on_card(layer, rows, &asked, watch, stop)?;
                continue;
            }
            let pass = match &mut pass {
                Some(pass) => pass,
                none => none.insert(model.layer_pass(layer, chunk.min(prefix))?),
            };
            measuring += self.read_chunk((layer, pass), rows, &asked, watch, stop)?;
        }
        if self.repetition.is_some() || self.prefix.writes() {
            self.bring(prefix)?;
        }
        if let Some(repetition) = &mut self.repetition {
            let pass = match &mut pass {
                Some(pass) => pass,
                none => none.insert(model.layer_pass(layer, chunk.min(prefix))?),
            };
            let started = Instant::now();
            let wanted = Wanted {
                scores: reread,
                outputs: !asked.last_layer || self.of.every_row,
            };
            let mut told = |rows| self.tally.passed(rows, watch);
            let scratch = &mut self.scratch;
            repetition.read((layer, pass), scratch, wanted, chunk, stop, &mut told)?;
            measuring += started.elapsed();
        }
        self.end_prefix(layer, n);
        let tiles = pass.take().map_or(0, |pass| pass.bytes());
        self.largest_pass = self.largest_pass.max(tiles);

        let rest = n - prefix;
        if self.card.is_some() {
            for first in (prefix..n).step_by(chunk) {
                let rows = first..n.min(first + chunk);
                measuring += self.read_chunk_on_card(layer, rows, &asked, watch, stop)?;
            }
            self.bring(n)?;
        } else if rest > 0 {
            // In the same way whether or not the weights were just rearranged: an answer does not depend on it.
            let mut pass = match rest <= FEW_ROWS {
                true => model.layer_pass_mapped(layer, rest),
                false => model.layer_pass(layer, chunk.min(rest))?,
            };
            for first in (prefix..n).step_by(chunk) {
                let rows = first..n.min(first + chunk);
                measuring += self.read_chunk((layer, &mut pass), rows, &asked, watch, stop)?;
            }
            self.largest_pass = self.largest_pass.max(pass.bytes());
        }
        Ok(measuring)
    }

    /// What is known of the layer, from the vault.
    fn fill_known(&mut self, layer: usize, asked: &Asked) -> Result<(), EngineError> {
        let scratch = &mut self.scratch;
        let prefix = &mut *self.prefix;
        prefix.begin_layer(layer, &mut scratch.keys, &mut scratch.values)?;
        prefix.append_queries(asked.window_from, &mut scratch.window_queries);
        if asked.column_sums {
            prefix.fill_column_sums(&mut scratch.column_sums, asked.n);
        }
        for future in (self.sizes.iter()).filter_map(|sizes| sizes.needs_in(layer).future) {
            prefix.fill_query_sums(future, &mut scratch.measured);
        }
        if !self.known_scores.is_empty() {
            prefix.fill_repetition(&mut self.known_scores, asked.n);
        }
        if let Some(card) = &mut self.card {
            let rows = (&scratch.keys, &scratch.values);
            let sums = match asked.column_sums {
                true => scratch.column_sums.as_slice(),
                false => &[],
            };
            card.begin(prefix.known(), rows, sums, &scratch.window_queries)?;
        }
        Ok(())
    }

    /// What is on a graphics card of the first `rows` rows of the layer comes to the host, and what all rows have seen.
    fn bring(&mut self, rows: usize) -> Result<(), EngineError> {
        let Some(card) = &self.card else {
            return Ok(());
        };
        let scratch = &mut self.scratch;
        card.bring_rows(rows, &mut scratch.keys, &mut scratch.values)?;
        card.bring_column_sums(&mut scratch.column_sums)?;
        Ok(())
    }

    /// [`Reader::read_chunk`] on a graphics card.
    fn read_chunk_on_card(
        &mut self,
        layer: usize,
        rows: Range<usize>,
        asked: &Asked,
        watch: &mut dyn Watch,
        stop: &Stop,
    ) -> Result<Duration, EngineError> {
        let card = self.card.as_mut().expect("a reading on a card");
        let scratch = &mut self.scratch;
        let (first, count) = (rows.start, rows.len());
        stop.check()?;
        let alive = self.alive.positions();
        let chunk = CardChunk {
            layer,
            first,
            at: first - self.prefix.known(),
            count,
            positions: alive.map(|positions| &positions[rows.clone()]),
            window: self.of.model.config().kinds[layer].window,
            // The last layer's output matters in the last row only.
            needed: match asked.last_layer && !self.of.every_row {
                false => count,
                true => usize::from(rows.end == asked.n),
            },
            observed: rows.end - asked.window_from.clamp(first, rows.end),
            column_sums: asked.column_sums,
        };
        let mut measuring = Duration::ZERO;
        let raw = scratch.measured.takes_queries();
        let q = &mut scratch.q[..count * self.heads.q_heads * self.heads.head_dim];
        card.project(&chunk, raw.then_some(&mut *q))?;
        if raw {
            let started = Instant::now();
            scratch.measured.add(q, first);
            measuring += started.elapsed();
        }
        card.store(&chunk)?;
        if self.prefix.writes() && first < self.prefix.tokens() {
            card.bring_queries(count, q)?;
            self.prefix.hear_queries(first, q);
        }
        card.attend(&chunk)?;
        self.tally.passed(count, watch);
        Ok(measuring)
    }

    /// The prefix has been read in this layer: what is to be kept of it goes to the vault.
    fn end_prefix(&mut self, layer: usize, n: usize) {
        let scratch = &self.scratch;
        let learned = Learned {
            keys: &scratch.keys,
            values: &scratch.values,
            tokens: n,
            column_sums: &scratch.column_sums,
            measured: &scratch.measured,
            repetition: (self.repetition.as_ref()).map_or(&[], |r| r.scores.as_slice()),
        };
        self.prefix.end_layer(layer, &learned);
    }

    /// Runs the tokens `rows` through a layer, which those before them have passed already or are known of. Gives the time that
    /// went into measuring.
    fn read_chunk(
        &mut self,
        (layer, pass): (usize, &mut LayerPass<'_>),
        rows: Range<usize>,
        asked: &Asked,
        watch: &mut dyn Watch,
        stop: &Stop,
    ) -> Result<Duration, EngineError> {
        let Read { model, rope, .. } = self.of;
        let width = model.config().width;
        let (first, count) = (rows.start, rows.len());
        let dim = self.heads.head_dim;
        let (q_width, kv_width) = (self.heads.q_heads * dim, self.heads.kv_heads * dim);
        let scratch = &mut self.scratch;
        let mut measuring = Duration::ZERO;
        let q = &mut scratch.q[..count * q_width];
        let k = &mut scratch.k[..count * kv_width];
        let v = &mut scratch.v[..count * kv_width];
        let at = (first - self.prefix.known()) * width;
        let stream = &mut self.residual[at..at + count * width];
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
        self.prefix.round(first, k, dim);
        self.prefix.round(first, v, dim);
        scratch.keys.copy_in(first, k);
        scratch.values.copy_in(first, v);
        self.prefix.hear_queries(first, q);
        if first + count > asked.window_from {
            let skip = asked.window_from.saturating_sub(first) * q_width;
            scratch.window_queries.extend_from_slice(&q[skip..]);
        }
        // The last layer's output matters in the last row only.
        let needed = match asked.last_layer && !self.of.every_row {
            false => first..first + count,
            true if first + count == asked.n => asked.n - 1..asked.n,
            true => first..first,
        };
        let whole = needed.len() == count;
        // Room for it is there where something is measured with it.
        let floats = (self.heads.q_heads * count).min(scratch.log_sum_exp.len());
        let log_sum_exp = &mut scratch.log_sum_exp[..floats];
        let known = whole && !log_sum_exp.is_empty();
        self.attended = if known { count } else { 0 };
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
            prefill_attention(&task, out, known.then_some(&mut *log_sum_exp), stop)?;
            let stream = &mut stream[local.start * width..local.end * width];
            pass.finish(out, stream, stop)?;
        }
        if asked.column_sums {
            let started = Instant::now();
            let rows = LastQueries {
                shape: self.heads,
                scale: attention_scale(model),
                queries: q,
                keys: &scratch.keys,
                tokens: first + count,
                log_sum_exp: &[],
            };
            let known = match known {
                true => LogSumExp::Known(log_sum_exp),
                false => LogSumExp::Unknown(log_sum_exp),
            };
            rows.add_column_sums(known, &mut scratch.column_sums, stop)?;
            measuring += started.elapsed();
        }
        self.tally.passed(count, watch);
        Ok(measuring)
    }

    /// Keeps the last positions of the layer that was just read, as many as its window, for method number `which`. Every method
    /// holds them.
    pub(super) fn keep_window(&mut self, window: usize, which: usize) -> CompactLayer {
        let (scratch, sizes) = (&mut self.scratch, &self.sizes[which]);
        let ring = CompactLayer::ring(
            (&scratch.keys, &scratch.values),
            sizes.tokens,
            window,
            sizes.room,
            sizes.cache,
            &mut scratch.gathered,
        );
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
        let keys = match &self.raw_keys {
            Some(keys) if raw => keys,
            _ => &self.scratch.keys,
        };
        let gather = Gather {
            keys,
            values: &self.scratch.values,
            tokens: n,
            retention: &retention,
            capacities: &sizes.head_capacities(layer, &retention),
            positions,
            stored: sizes.stored(layer),
            places: self.alive.positions(),
            // Keys of a method that re-assigns positions are stored before RoPE.
            unrotate: rope.filter(|_| positions == Positions::Reassigned && !raw),
            spreads: &spreads,
        };
        let mut compact = gather.layer(&mut self.scratch.gathered);
        if let Some(table) = sizes.tables[layer] {
            compact = compact.with_table(keys, &retention, table);
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
            if let Some(card) = &self.card {
                self.residual = card.bring_residual(0..n)?;
            }
            self.alive.pass_on(&passed, &mut self.residual, width);
            self.entered = self.residual.len() / width;
            if let Some(card) = &mut self.card {
                card.write_residual(&std::mem::take(&mut self.residual))?;
            }
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
            reread: (needs.reread.and(repetition))
                .map(|r| r.scores.as_slice())
                .or((needs.reread.is_some() && !self.known_scores.is_empty())
                    .then_some(&self.known_scores)),
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
            log_sum_exp: &scratch.log_sum_exp[..self.heads.q_heads * self.attended],
        };
        let (measured, tokens) = (&mut scratch.measured, last.tokens);
        let floats = self.heads.q_heads * tokens;
        if let Some(future) = needs.future {
            let rope = rotated.then_some(self.of.rope);
            measured.finish(future, rope, sizes.tokens);
        }
        if let Some(ramp) = needs.ramp
            && self.held.ramp != Some(ramp)
        {
            match &mut self.card {
                Some(card) => {
                    measured.ramp.resize(floats, 0.0);
                    card.ramp(ramp, &ramp_weights(ramp), tokens, &mut measured.ramp)?;
                }
                None => last.ramp(ramp, &mut measured.ramp, stop)?,
            }
            self.held.ramp = Some(ramp);
        }
        if let Some(rows) = needs.below
            && self.held.below != Some(rows)
        {
            match &mut self.card {
                Some(card) => card.below(rows, tokens, &mut measured.bits)?,
                None => last.below(rows, &mut measured.bits, stop)?,
            }
            self.held.below = Some(rows);
        }
        if let Some(window) = needs.window
            && self.held.window != Some(window)
        {
            scratch.window_scores.resize(floats, 0.0);
            self.held.window = Some(window);
            if let Some(card) = &mut self.card {
                card.window(window, tokens, &mut scratch.window_scores)?;
                return Ok(());
            }
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
                log_sum_exp: last.log_sum_exp,
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
        let raw_keys = self.raw_keys.as_ref().map_or(0, RowStore::bytes);
        // As it was made: a stream that was thinned still stands in the memory it began in.
        let residual = (self.sizes[0].residual() * size_of::<f32>()) as u64;
        let weights = self.of.model.card().map_or(0, CardModel::bytes);
        MemoryLedger {
            card: weights + self.card.as_ref().map_or(0, CardReading::bytes) + self.staged,
            layer_tiles: self.sizes[0].tiles_bytes(self.of.model),
            layer_kv: (scratch.keys.bytes() + scratch.values.bytes() + raw_keys) as u64 + own,
            residual: residual + repetition.map_or(0, Repetition::residual_bytes),
            activations: scratch.bytes() + self.largest_pass,
            vault: self.prefix.buffer_bytes() + size_of_val(self.known_scores.as_slice()) as u64,
            ..MemoryLedger::default()
        }
    }

    /// The last layer has been read: the document's vault is complete.
    pub(super) fn end(&mut self) {
        self.prefix.end(self.of.ids);
    }

    /// The last layer's output: of the last row, `[width]`, or of every row that was asked for, `[n, width]`; and that of the
    /// repetition, likewise.
    ///
    /// # Errors
    /// [`EngineError::Card`].
    pub(super) fn into_output(self) -> Result<(Vec<f32>, Option<Repeated>), EngineError> {
        let width = self.of.model.config().width;
        let last = self.entered - 1..self.entered;
        let hidden = match (&self.card, self.of.every_row) {
            (Some(card), true) => card.bring_residual(0..self.entered)?,
            (Some(card), false) => card.bring_residual(last)?,
            (None, true) => self.residual,
            (None, false) => self.residual[self.residual.len() - width..].to_vec(),
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
        Ok((hidden, repeated))
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
