//! One reading on a graphics card: the residual stream and one layer's keys and values live there, and so does what its queries
//! look at. A residual stream that the card has no room for lies on the host, and each chunk's rows are brought and taken back. What a
//! method is shown comes to the host, and of the rows those that are kept: the cut is the host's.
//!
//! What a chunk does is [`Reader::read_chunk`](super::reader)'s, step for step.

use std::ops::Range;

use half::f16;
use half::slice::HalfFloatSliceExt;
use kept_cuda::{
    AttentionScratch, Buffer, Device, DeviceError, Home, Indices, Kept, KeptRows, LayerRows,
    Places, PrefillAttention, RowKind, Scores, ScoresScratch,
};
use kept_kernels::{HeadShape, Normalise, PackedRows, RowStore, Scale, words};
use kept_models::{CardModel, CardPass, CardRope, Model, RopeTable, Stand};
use kept_policies::{Pos, Ramp, Softmax, Window};

use super::repetition::Repetition;
use crate::shape::{attention_scale, head_shape};
use crate::sizes::Sizes;
use crate::vault::{RowsOf, Vault, VaultRows};

/// All buffers of one reading on a card.
pub(super) struct CardReading<'a> {
    card: &'a CardModel,
    rope: CardRope,
    heads: HeadShape,
    scale: Scale,
    pass: CardPass,
    /// `[entering, width]`, on the card or on the host.
    residual: Buffer<f32>,
    /// `[chunk, width]`: of a residual stream on the host the rows that are on their way.
    stage: Option<Buffer<f32>>,
    width: usize,
    /// `[kv_heads, n, head_dim]`
    keys: LayerRows,
    /// As `keys`.
    values: LayerRows,
    /// `[chunk, q_heads, head_dim]`
    queries: Buffer<f16>,
    /// `[chunk, q_heads, head_dim]`
    attention: Buffer<f32>,
    parts: AttentionScratch,
    /// `[w, q_heads, head_dim]`: the rotated queries of the observation window.
    window_queries: Buffer<f16>,
    /// Rows of them that are there.
    window_rows: usize,
    scores: ScoresScratch,
    /// `[q_heads, n]`: what some rows see.
    seen: Buffer<f32>,
    /// `[q_heads, entering]`, at most `[q_heads, n]`: what all rows see, where that is asked for.
    column_sums: Buffer<f32>,
    /// Numbers of them in this layer.
    columns: usize,
    /// `[q_heads, chunk]`
    log_sum_exp: Buffer<f32>,
    /// `[kv_heads, n, words]`
    marks: Buffer<u64>,
    /// Rows of a vault on their way.
    packed: Buffer<u8>,
    /// `[AT_ONCE, head_dim]`: kept rows on their way to the host.
    kept: KeptRows,
    /// `[AT_ONCE]`: which these are.
    kept_at: Indices,
    /// `[AT_ONCE]`: and whose.
    kept_heads: Indices,
    /// Numbers on their way to the host.
    halves: Vec<f16>,
}

/// Kept rows that come to the host at a time.
const AT_ONCE: usize = 1024;

/// A reading that takes rows from a vault, as long as nothing fails.
pub(super) struct KnownRows<'r, 'a> {
    reading: &'r mut CardReading<'a>,
    pub(super) outcome: Result<(), DeviceError>,
}

impl VaultRows for KnownRows<'_, '_> {
    fn take(&mut self, of: RowsOf, head: usize, first: usize, packed: (PackedRows, &[u8])) {
        if self.outcome.is_err() {
            return;
        }
        let device = self.reading.device();
        let CardReading {
            keys,
            values,
            packed: room,
            ..
        } = &mut *self.reading;
        let rows = match of {
            RowsOf::Keys => keys,
            RowsOf::Values => values,
        };
        self.outcome = device.write_packed(rows, (head, first), packed, room);
    }
}

/// Some tokens on their way through a layer.
pub(super) struct CardChunk<'c> {
    pub(super) layer: usize,
    /// First row, in the layer's keys.
    pub(super) first: usize,
    /// Where it lies in the residual stream.
    pub(super) at: usize,
    pub(super) count: usize,
    /// Positions of the rows, where they are not the rows themselves.
    pub(super) positions: Option<&'c [u32]>,
    /// Positions that a row sees, its own included.
    pub(super) window: Option<usize>,
    /// How many of the chunk's last rows go on to the rest of the layer.
    pub(super) needed: usize,
    /// How many of its last rows belong to the observed window.
    pub(super) observed: usize,
    pub(super) column_sums: bool,
}

impl<'a> CardReading<'a> {
    /// Everything is allocated here. The residual stream is still to be written.
    pub(super) fn new(
        card: &'a CardModel,
        model: &Model,
        rope: &RopeTable,
        sizes: &[Sizes],
    ) -> Result<Self, DeviceError> {
        Self::on(card.device(), card, model, rope, sizes)
    }

    /// What it would take of the card, without the weights.
    pub(super) fn bytes_for(
        card: &'a CardModel,
        model: &Model,
        sizes: &Sizes,
    ) -> Result<u64, DeviceError> {
        // A table's bytes are the same for every position.
        let a_position = RopeTable::new(model.config(), 1);
        let only = std::slice::from_ref(sizes);
        let taken = card
            .device()
            .rehearse(|device| Self::on(device, card, model, &a_position, only))?;
        let repeated = match &sizes.rereading {
            Some(plan) => Repetition::card_bytes(card, model, sizes, plan)?,
            None => 0,
        };
        let positions = (sizes.tokens + sizes.room).max(1) as u64;
        Ok(taken + repeated + (positions - 1) * a_position.bytes())
    }

    /// [`CardReading::new`] with everything in memory of `device`, which is the card or stands for it.
    fn on(
        device: &Device,
        card: &'a CardModel,
        model: &Model,
        rope: &RopeTable,
        sizes: &[Sizes],
    ) -> Result<Self, DeviceError> {
        let heads = head_shape(model);
        let first = &sizes[0];
        let most = |of: fn(&Sizes) -> usize| sizes.iter().map(of).max().unwrap_or(0);
        let q_width = heads.q_heads * heads.head_dim;
        let width = model.config().width;
        let home = match first.residual_on_host {
            true => Home::Host,
            false => Home::Device,
        };
        let window = most(Sizes::window_queries) / q_width;
        let needs = || sizes.iter().flat_map(|sizes| &sizes.needs);
        let looks = needs().any(|n| n.window.is_some() || n.ramp.is_some());
        let below = needs().filter_map(|n| n.below).max();
        let n = first.tokens;
        let rows = || LayerRows::new(device, heads.kv_heads, n, heads.head_dim);
        Ok(Self {
            rope: CardRope::new(device, rope)?,
            heads,
            scale: attention_scale(model),
            pass: CardPass::new(device, card, first.chunk)?,
            residual: device.room_at(home, first.residual())?,
            stage: (home == Home::Host)
                .then(|| device.room(first.chunk * width))
                .transpose()?,
            width,
            keys: rows()?,
            values: rows()?,
            queries: device.room(first.chunk * q_width)?,
            attention: device.room(first.chunk * q_width)?,
            parts: AttentionScratch::new(device, heads)?,
            window_queries: device.room(window * q_width)?,
            window_rows: 0,
            scores: ScoresScratch::new(device, heads, window)?,
            seen: device.room(if looks { heads.q_heads * n } else { 0 })?,
            column_sums: device.room(most(Sizes::column_sums))?,
            columns: 0,
            log_sum_exp: device.room(most(Sizes::log_sum_exp))?,
            marks: device.room(below.map_or(0, |rows| heads.kv_heads * n * words(rows)))?,
            packed: device.room(match first.known() {
                0 => 0,
                _ => Vault::buffer_bytes() as usize,
            })?,
            kept: KeptRows::new(device, RowKind::F16, AT_ONCE, heads.head_dim)?,
            kept_at: Indices::zeros(device, AT_ONCE)?,
            kept_heads: Indices::zeros(device, AT_ONCE)?,
            halves: Vec::new(),
            card,
        })
    }

    fn device(&self) -> &'a Device {
        self.card.device()
    }

    fn q_width(&self) -> usize {
        self.heads.q_heads * self.heads.head_dim
    }

    /// `rows` of the chunk that lies at `at` in the residual stream, on the card.
    fn stream(&self, at: usize, rows: Range<usize>) -> Buffer<f32> {
        let (stream, at) = match &self.stage {
            Some(stage) => (stage, 0),
            None => (&self.residual, at),
        };
        stream.share((at + rows.start) * self.width..(at + rows.end) * self.width)
    }

    /// Bytes on the card, the weights' apart.
    pub(super) fn bytes(&self) -> u64 {
        let floats = [
            &self.residual,
            &self.attention,
            &self.seen,
            &self.column_sums,
            &self.log_sum_exp,
        ];
        floats.iter().map(|b| b.bytes()).sum::<u64>()
            + self.stage.as_ref().map_or(0, Buffer::bytes)
            + self.queries.bytes()
            + self.window_queries.bytes()
            + self.marks.bytes()
            + self.packed.bytes()
            + self.kept.bytes()
            + self.kept_at.bytes()
            + self.kept_heads.bytes()
            + self.rope.bytes()
            + self.pass.bytes()
            + self.keys.bytes()
            + self.values.bytes()
            + self.parts.bytes()
            + self.scores.bytes()
    }

    /// Takes rows that come from a vault.
    pub(super) fn known_rows(&mut self) -> KnownRows<'_, 'a> {
        KnownRows {
            reading: self,
            outcome: Ok(()),
        }
    }

    /// Begins a layer of whose known tokens the host has the column sums `[q_heads, n]` and, of those that are observed,
    /// `window_queries`.
    pub(super) fn begin(
        &mut self,
        column_sums: &[f32],
        window_queries: &[f32],
    ) -> Result<(), DeviceError> {
        self.column_sums.write(0, column_sums)?;
        self.columns = column_sums.len();
        let halves: Vec<f16> = window_queries.iter().map(|x| f16::from_f32(*x)).collect();
        self.window_queries.write(0, &halves)?;
        self.window_rows = halves.len() / self.q_width();
        Ok(())
    }

    /// Projects a chunk's rows. Gives queries before RoPE `[count, q_heads, head_dim]` where they are wanted.
    pub(super) fn project(
        &mut self,
        chunk: &CardChunk<'_>,
        raw: Option<&mut [f32]>,
    ) -> Result<(), DeviceError> {
        let (layer, count) = (chunk.layer, chunk.count);
        if let Some(stage) = &mut self.stage {
            let at = chunk.at * self.width;
            stage.copy_from(0, &self.residual, at..at + count * self.width)?;
        }
        let stream = self.stream(chunk.at, 0..count);
        self.card.project(layer, &stream, count, &mut self.pass)?;
        let Some(raw) = raw else { return Ok(()) };
        let queries = &mut self.queries;
        self.card
            .ready_queries(layer, count, Stand::RAW, &self.pass, queries)?;
        self.bring_queries(count, raw)
    }

    /// The chunk's queries as they are now, `[count, q_heads, head_dim]`, on the host.
    pub(super) fn bring_queries(
        &mut self,
        count: usize,
        out: &mut [f32],
    ) -> Result<(), DeviceError> {
        self.halves.resize(count * self.q_width(), f16::ZERO);
        self.queries.read(0, &mut self.halves)?;
        self.halves.as_slice().convert_to_f32_slice(out);
        Ok(())
    }

    /// Turns what was projected and stores keys and values; the queries that are observed are put aside.
    pub(super) fn store(&mut self, chunk: &CardChunk<'_>) -> Result<(), DeviceError> {
        let &CardChunk {
            layer,
            first,
            count,
            ..
        } = chunk;
        let apart = (chunk.positions)
            .map(|positions| Indices::new(self.card.device(), positions))
            .transpose()?;
        let stand = Stand {
            angles: self.rope.of_layer(layer),
            places: apart.as_ref().map_or(Places::From(first), Places::At),
        };
        let (card, pass) = (self.card, &self.pass);
        card.ready_queries(layer, count, stand, pass, &mut self.queries)?;
        card.ready_keys(layer, count, stand, pass, (first, &mut self.keys))?;
        card.ready_values(layer, count, pass, (first, &mut self.values))?;
        if chunk.observed > 0 {
            let width = self.heads.q_heads * self.heads.head_dim;
            let last = (count - chunk.observed) * width..count * width;
            self.window_queries
                .copy_from(self.window_rows * width, &self.queries, last)?;
            self.window_rows += chunk.observed;
        }
        Ok(())
    }

    /// Attention and the rest of the layer, for the rows that are needed.
    pub(super) fn attend(&mut self, chunk: &CardChunk<'_>) -> Result<(), DeviceError> {
        let &CardChunk {
            layer,
            first,
            count,
            needed,
            ..
        } = chunk;
        let (device, q_width) = (self.device(), self.q_width());
        let whole = needed == count;
        if needed > 0 {
            let skip = count - needed;
            let queries = self.queries.share(skip * q_width..count * q_width);
            let task = PrefillAttention {
                shape: self.heads,
                scale: self.scale,
                window: chunk.window,
                queries: &queries,
                rows: needed,
                first: first + skip,
                keys: &self.keys,
                values: &self.values,
            };
            let known = (chunk.column_sums && whole).then_some(&mut self.log_sum_exp);
            device.prefill_attention(&task, &mut self.parts, &mut self.attention, known)?;
            let mut stream = self.stream(chunk.at, skip..count);
            self.card.finish(
                layer,
                &self.attention,
                (&mut stream, needed),
                &mut self.pass,
            )?;
            if self.stage.is_some() {
                let at = (chunk.at + skip) * self.width;
                self.residual.copy_from(at, &stream, 0..stream.len())?;
            }
        }
        if chunk.column_sums {
            let task = Scores {
                shape: self.heads,
                scale: self.scale,
                queries: &self.queries,
                rows: count,
                keys: &self.keys,
                tokens: first + count,
                normalise: Normalise::All,
            };
            if !whole {
                device.log_sum_exp(&task, &mut self.parts, &mut self.log_sum_exp)?;
            }
            let mut sums = self.column_sums.share(0..self.columns);
            device.add_column_sums(&task, &self.log_sum_exp, &mut sums)?;
        }
        // Not further ahead than a person who stops it wants to wait.
        device.wait()
    }

    /// The first `rows` keys and values of every head, on the host.
    pub(super) fn bring_rows(
        &self,
        rows: usize,
        keys: &mut RowStore,
        values: &mut RowStore,
    ) -> Result<(), DeviceError> {
        let numbers = rows * self.heads.head_dim;
        for head in 0..self.heads.kv_heads {
            self.keys
                .read_head(head, &mut keys.head_mut(head)[..numbers])?;
            self.values
                .read_head(head, &mut values.head_mut(head)[..numbers])?;
        }
        Ok(())
    }

    /// Of every head the rows `kept`, on the host, each at its own number.
    pub(super) fn bring_kept(
        &mut self,
        kept: &[Vec<Pos>],
        keys: &mut RowStore,
        values: &mut RowStore,
    ) -> Result<(), DeviceError> {
        let (device, dim) = (self.device(), self.heads.head_dim);
        let heads = kept.iter().enumerate();
        let all: Vec<(usize, Pos)> = heads
            .flat_map(|(head, kept)| kept.iter().map(move |&pos| (head, pos)))
            .collect();
        let row_bytes = dim * size_of::<f16>();
        let (mut bytes, mut row) = (vec![0; AT_ONCE * row_bytes], vec![f16::ZERO; dim]);
        for some in all.chunks(AT_ONCE) {
            let heads: Vec<u32> = some.iter().map(|&(head, _)| head as u32).collect();
            let rows: Vec<u32> = some.iter().map(|(_, pos)| pos.0).collect();
            self.kept_heads.write(0, &heads)?;
            self.kept_at.write(0, &rows)?;
            let kept = Kept {
                positions: &self.kept_at,
                heads: &self.kept_heads,
                targets: None,
                slots: some.len(),
            };
            let bytes = &mut bytes[..some.len() * row_bytes];
            for (there, here) in [(&self.keys, &mut *keys), (&self.values, &mut *values)] {
                device.keep(there, &kept, None, &mut self.kept)?;
                self.kept.numbers().read(0, bytes)?;
                for (&(head, pos), found) in some.iter().zip(bytes.chunks_exact(row_bytes)) {
                    for (half, bytes) in row.iter_mut().zip(found.as_chunks::<2>().0) {
                        *half = f16::from_le_bytes(*bytes);
                    }
                    row.convert_to_f32_slice(here.row_mut(head, pos.0 as usize));
                }
            }
        }
        Ok(())
    }

    /// The column sums so far, `[q_heads, n]`, on the host.
    pub(super) fn bring_column_sums(&self, sums: &mut [f32]) -> Result<(), DeviceError> {
        self.column_sums.read(0, sums)
    }

    /// `out [q_heads, tokens]`: what the window sees.
    pub(super) fn window(
        &mut self,
        window: Window,
        tokens: usize,
        out: &mut [f32],
    ) -> Result<(), DeviceError> {
        let normalise = match window.softmax {
            Softmax::All => Normalise::All,
            Softmax::Prefix => Normalise::Prefix,
        };
        self.look((window.rows, normalise), tokens, None, out)
    }

    /// `out [q_heads, tokens]`: what the last rows see, the newest weighing most.
    pub(super) fn ramp(
        &mut self,
        ramp: Ramp,
        weights: &[f32],
        tokens: usize,
        out: &mut [f32],
    ) -> Result<(), DeviceError> {
        self.look((ramp.rows, Normalise::All), tokens, Some(weights), out)
    }

    fn look(
        &mut self,
        (rows, normalise): (usize, Normalise),
        tokens: usize,
        weights: Option<&[f32]>,
        out: &mut [f32],
    ) -> Result<(), DeviceError> {
        let device = self.device();
        let weights = weights.map(|w| device.copy_of(w)).transpose()?;
        let queries = self.last_queries(rows);
        let task = Scores {
            shape: self.heads,
            scale: self.scale,
            queries: &queries,
            rows,
            keys: &self.keys,
            tokens,
            normalise,
        };
        let parts = (&mut self.parts, &mut self.scores);
        device.window_scores(&task, weights.as_ref(), parts.0, parts.1, &mut self.seen)?;
        self.seen.read(0, out)
    }

    /// `bits [kv_heads, tokens, words]` as [`BelowAverage`](kept_policies::BelowAverage) describes them.
    pub(super) fn below(
        &mut self,
        rows: usize,
        tokens: usize,
        bits: &mut Vec<u64>,
    ) -> Result<(), DeviceError> {
        let device = self.device();
        let queries = self.last_queries(rows);
        let task = Scores {
            shape: self.heads,
            scale: self.scale,
            queries: &queries,
            rows,
            keys: &self.keys,
            tokens,
            normalise: Normalise::All,
        };
        let parts = (&mut self.parts, &mut self.scores);
        device.mark_below_average(&task, parts.0, parts.1, &mut self.marks)?;
        bits.clear();
        bits.resize(self.heads.kv_heads * tokens * words(rows), 0);
        self.marks.read(0, bits)
    }

    fn last_queries(&self, rows: usize) -> Buffer<f16> {
        let width = self.q_width();
        let end = self.window_rows * width;
        self.window_queries.share(end - rows * width..end)
    }

    /// The residual stream `[rows, width]`, on the host.
    pub(super) fn bring_residual(&self, rows: Range<usize>) -> Result<Vec<f32>, DeviceError> {
        let mut out = vec![0.0; rows.len() * self.width];
        self.residual.read(rows.start * self.width, &mut out)?;
        Ok(out)
    }

    /// Replaces the first rows of the residual stream.
    pub(super) fn write_residual(&mut self, rows: &[f32]) -> Result<(), DeviceError> {
        self.residual.write(0, rows)
    }
}
