//! One reading on a graphics card: the residual stream and one layer's keys and values live there, and so does what its queries
//! look at. A residual stream that the card has no room for lies on the host, and each chunk's rows are brought and taken back. What a
//! method is shown comes to the host, and the cut is the host's; the rows that are kept come there too, or stay, where the card will write
//! the answer by itself.
//!
//! What a chunk does is [`Reader::read_chunk`](super::reader)'s, step for step.

mod ahead;
mod asked;
mod carrying;
mod kept;
mod looking;
mod residual;

pub(in crate::prefill) use asked::CardRows;
pub(crate) use carrying::carrying_bytes;

use std::ops::Range;
use std::sync::Mutex;

use half::f16;
use half::slice::HalfFloatSliceExt;
use kept_cuda::{
    AttentionScratch, Bringing, Buffer, Device, DeviceError, Indices, LayerRoom, LayerRows, Places,
    PrefillAttention, QuerySums, Scores, ScoresScratch, Sending,
};
use kept_kernels::{HeadShape, Normalise, Scale, words};
use kept_models::{CardModel, CardPass, CardRope, Model, RopeTable, Stand};
use kept_policies::Future;

use super::repetition::Repetition;
use crate::EngineError;
use crate::shape::{attention_scale, head_shape};
use crate::sizes::Sizes;
use crate::vault::{LayerNumbers, Vault};
use ahead::Carrier;
use carrying::{Leaving, SENT_AT_ONCE};
use kept::KeptGo;
use residual::Residual;

/// All buffers of one reading on a card.
pub(super) struct CardReading<'a> {
    card: &'a CardModel,
    rope: CardRope,
    heads: HeadShape,
    scale: Scale,
    pass: CardPass,
    residual: Residual,
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
    /// Brings what is seen and summed.
    bringing: Bringing<f32>,
    /// `[q_heads, entering]`, at most `[q_heads, n]`: what all rows see, where that is asked for.
    column_sums: Buffer<f32>,
    /// Numbers of them in this layer.
    columns: usize,
    /// `[q_heads, chunk]`
    log_sum_exp: Buffer<f32>,
    /// `[kv_heads, n, words]`
    marks: Buffer<u64>,
    /// Rows of a vault on their way here, where there may be one.
    sending: Option<Sending>,
    /// And of the layer behind, where the card has room for them.
    ahead: Option<Carrier>,
    /// And those that are left in one.
    leaving: Option<Leaving>,
    /// Kept rows.
    kept: KeptGo,
    /// Sums over queries before RoPE, for each request there is.
    query_sums: Vec<(Future, QuerySums)>,
    /// For answers about rows, if a method asks.
    asked: Option<Mutex<asked::Room>>,
    /// Brings all rows, where the host repeats the document, measures what no method is told, or keeps everything.
    bringing_rows: Bringing<f16>,
    /// Numbers on their way to the host.
    halves: Vec<f16>,
}

/// Some tokens on their way through a layer.
pub(super) struct CardChunk<'c> {
    pub(super) layer: usize,
    /// First row, in the layer's keys.
    pub(super) first: usize,
    /// Where it lies in the residual stream.
    pub(super) at: usize,
    pub(super) count: usize,
    /// Rows of the stream that pass the layer next, if any.
    pub(super) next: Range<usize>,
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
    /// Everything is allocated here but the kept rows. The residual stream is still to be written.
    pub(super) fn new(
        card: &'a CardModel,
        model: &Model,
        rope: &RopeTable,
        sizes: &[Sizes],
    ) -> Result<Self, DeviceError> {
        Self::on(card.device(), card, model, rope, sizes)
    }

    /// What it would take of the card at its worst moment, without the weights: with all rows that are kept, where they stay there.
    pub(super) fn bytes_for(
        card: &'a CardModel,
        model: &Model,
        sizes: &Sizes,
    ) -> Result<u64, DeviceError> {
        // A table's bytes are the same for every position.
        let a_position = RopeTable::new(model.config(), 1);
        let only = std::slice::from_ref(sizes);
        let with = |rooms: &[LayerRoom]| {
            card.device().rehearse(|device| {
                let mut reading = Self::on(device, card, model, &a_position, only)?;
                reading.add_layers(rooms)?;
                Ok(reading)
            })
        };
        let rooms = match sizes.rows_on_card {
            true => sizes.card_rooms().layers,
            false => Vec::new(),
        };
        let repeated = match &sizes.rereading {
            Some(plan) => Repetition::card_bytes(card, model, sizes, plan)?,
            None => 0,
        };
        let taken = match sizes.surveys {
            // The first reading repeats the document and keeps nothing, the second is the other way around.
            true => (with(&[])? + repeated).max(with(&rooms)?),
            false => with(&rooms)? + repeated,
        };
        let positions = (sizes.tokens + sizes.room).max(1) as u64;
        Ok(taken + (positions - 1) * a_position.bytes())
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
            residual: Residual::new(device, model.config().width, first)?,
            keys: rows()?,
            values: rows()?,
            queries: device.room(first.chunk * q_width)?,
            attention: device.room(first.chunk * q_width)?,
            parts: AttentionScratch::new(device, heads)?,
            window_queries: device.room(window * q_width)?,
            window_rows: 0,
            scores: ScoresScratch::new(device, heads, window)?,
            seen: device.room(if looks { heads.q_heads * n } else { 0 })?,
            bringing: Bringing::new(device, Bringing::<f32>::PIECE.min(heads.q_heads * n))?,
            column_sums: device.room(most(Sizes::column_sums))?,
            columns: 0,
            log_sum_exp: device.room(most(Sizes::log_sum_exp))?,
            marks: device.room(below.map_or(0, |rows| heads.kv_heads * n * words(rows)))?,
            sending: (first.vault_rows())
                .map(|_| Sending::new(device, SENT_AT_ONCE))
                .transpose()?,
            ahead: (first.ahead > 0)
                .then(|| Carrier::new(device, first.ahead))
                .transpose()?,
            leaving: (first.vault_rows())
                .map(|kind| Leaving::new(device, kind, heads, first.chunk))
                .transpose()?,
            kept: KeptGo::new(device, heads, sizes)?,
            query_sums: looking::query_sums(device, heads, needs().filter_map(|n| n.future))?,
            asked: asked::Room::new(device, sizes, (n, heads.head_dim))?,
            bringing_rows: Bringing::new(device, Bringing::<f16>::PIECE.min(n * heads.head_dim))?,
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

    /// Bytes on the card, the weights' apart.
    pub(super) fn bytes(&self) -> u64 {
        let floats = [
            &self.attention,
            &self.seen,
            &self.column_sums,
            &self.log_sum_exp,
        ];
        floats.iter().map(|b| b.bytes()).sum::<u64>()
            + self.residual.bytes()
            + self.queries.bytes()
            + self.window_queries.bytes()
            + self.marks.bytes()
            + self.sending.as_ref().map_or(0, Sending::bytes)
            + self.ahead.as_ref().map_or(0, Carrier::bytes)
            + self.leaving.as_ref().map_or(0, Leaving::bytes)
            + self.kept.bytes()
            + self.query_sums.iter().map(|(_, s)| s.bytes()).sum::<u64>()
            + asked::Room::bytes(&self.asked)
            + self.rope.bytes()
            + self.pass.bytes()
            + self.keys.bytes()
            + self.values.bytes()
            + self.parts.bytes()
            + self.scores.bytes()
    }

    /// Whether layers are brought ahead.
    pub(super) fn goes_ahead(&self) -> bool {
        self.ahead.is_some()
    }

    /// Begins to bring the first `tokens` tokens' rows of `layer` of the vault.
    pub(super) fn bring_ahead(
        &mut self,
        (vault, layer, tokens): (Vault, usize, usize),
    ) -> Result<(), EngineError> {
        let sending = self.sending.take().expect("a reading with a vault");
        let ahead = self.ahead.as_mut().expect("layers are brought ahead");
        ahead.bring((vault, layer, tokens), sending)
    }

    /// The vault of a layer that was brought, whose rows are there now, and what it holds of the layer besides; `None` where none was.
    pub(super) fn brought(&mut self) -> Result<Option<(Vault, LayerNumbers)>, EngineError> {
        let device = self.device();
        let Some(ahead) = &mut self.ahead else {
            return Ok(None);
        };
        let arrived = ahead.arrived(device, &mut self.keys, &mut self.values)?;
        Ok(arrived.map(|(vault, numbers, sending)| {
            self.sending = Some(sending);
            (vault, numbers)
        }))
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

    /// Projects a chunk's rows, and adds up queries before RoPE as `wanted`.
    pub(super) fn project(
        &mut self,
        chunk: &CardChunk<'_>,
        wanted: impl Iterator<Item = Future>,
    ) -> Result<(), DeviceError> {
        let (layer, first, count) = (chunk.layer, chunk.first, chunk.count);
        let stream = (self.residual).enter(chunk.at..chunk.at + count, &chunk.next)?;
        self.card.project(layer, &stream, count, &mut self.pass)?;
        let mut wanted = wanted.peekable();
        if wanted.peek().is_some() {
            let (card, pass, queries) = (self.card, &self.pass, &mut self.queries);
            card.ready_queries(layer, count, Stand::RAW, pass, queries)?;
        }
        wanted.try_for_each(|future| self.add_queries(future, first..first + count))
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

    /// Attention and the rest of the layer, for the rows that are needed. Asked for only: [`CardReading::wait`] waits.
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
            let mut stream = self.residual.rows(chunk.at, skip..count);
            self.card.finish(
                layer,
                &self.attention,
                (&mut stream, needed),
                &mut self.pass,
            )?;
            self.residual.leave(chunk.at + skip..chunk.at + count)?;
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
        Ok(())
    }

    /// Waits for what was asked for: nothing runs further ahead than a person who stops it wants to wait.
    pub(super) fn wait(&self) -> Result<(), DeviceError> {
        self.device().wait()
    }
}
