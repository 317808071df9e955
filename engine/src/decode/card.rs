//! One token on a graphics card. The rows are there; the host keeps the books, and a copy of the rows for what methods do to them
//! (merge, add, move), which is sent again where it changes. Everything goes there once a token and comes back once.
//!
//! ```text
//! host   slots, ranks, tables of all layers | ............................ | logits, what was looked at, the new rows | method
//! card                                      | layer 0, layer 1, ..., logits |
//! ```

use half::f16;
use kept_cuda::{
    Buffer, CardCache, ClassScratch, DecodeScratch, Device, DeviceError, LayerRoom, NewToken,
    Places, RowKind,
};
use kept_kernels::{CacheType, HeadShape, Scale};
use kept_models::{CardModel, CardPass, CardRope, Model, RopeTable, Stand};

use crate::EngineError;
use crate::compact::{Changed, CompactCache, CompactLayer, Widened};
use crate::shape::{attention_scale, head_shape};
use crate::sizes::LayerKeeps;

/// The cache on a card, and all buffers of the decode loop.
pub(super) struct CardDecoding<'a> {
    card: &'a CardModel,
    rope: CardRope,
    shape: HeadShape,
    scale: Scale,
    rows: CardCache,
    pass: CardPass,
    /// `[width]`
    residual: Buffer<f32>,
    /// `[q_heads, head_dim]`
    queries: Buffer<f16>,
    /// `[q_heads, head_dim]`
    attention: Buffer<f32>,
    /// `[vocab]`
    logits: Buffer<f32>,
    attend: DecodeScratch,
    by_table: Option<ClassScratch>,
    /// `[layers, q_heads, 2]`: the largest probability of each query head, and its place.
    best: Buffer<f32>,
    /// `[layers, q_heads, stride]`: all probabilities, where a method looks at them.
    seen: Buffer<f32>,
    stride: usize,
    /// As `best`, on the host.
    best_here: Vec<f32>,
    /// As `seen`, on the host.
    seen_here: Vec<f32>,
    /// `[kv_heads, layers, head_dim]`: the new token's, on the host.
    new_keys: Vec<f32>,
    /// As `new_keys`.
    new_values: Vec<f32>,
    /// `[layers, kv_heads]`: the slots that it took.
    slots: Vec<usize>,
    /// `[kv_heads]`: their places in one layer.
    targets: Vec<usize>,
    /// Rows of one layer that leave a wide place to it.
    aged: Vec<(usize, usize, usize)>,
    /// `[layers]`: whether the look-up table has changed in more than its newest entry.
    tables_changed: Vec<bool>,
    /// `[layers]`: whether slots lie in other places than the card was told.
    places_changed: Vec<bool>,
}

/// What the cache on a card, and the decode loop's buffers there, have room for.
pub(crate) struct CardRooms {
    /// `[layers of the model]`
    pub(crate) layers: Vec<LayerRoom>,
    /// Rows of the largest head.
    pub(crate) max_rows: usize,
    /// Entries of the largest look-up table; 0 where nothing is merged.
    pub(crate) max_entries: usize,
    /// Whether the method looks at probabilities.
    pub(crate) looks: bool,
}

/// Each head's room in a layer that a method cuts.
pub(crate) struct CutRoom {
    pub(crate) slots: usize,
    /// First places that are of the cache's type, where that is a quantised one.
    pub(crate) narrow: usize,
    /// Entries of its look-up table.
    pub(crate) entries: usize,
}

impl CardRooms {
    /// Layers as `keeps` says: the method's with the room of `cut`, those with a window with room for as many of `tokens` as that has.
    pub(crate) fn layers(
        keeps: &[LayerKeeps],
        kv_heads: usize,
        (cache, ranked): (CacheType, bool),
        tokens: usize,
        cut: &dyn Fn(usize) -> CutRoom,
    ) -> Vec<LayerRoom> {
        let kind = |cache: CacheType| RowKind::of(cache).unwrap_or(RowKind::F16);
        let layer = |keeps: &LayerKeeps| {
            let (kind, ranked, room) = match *keeps {
                LayerKeeps::Cut(own) => (kind(cache), ranked, cut(own)),
                LayerKeeps::Window(window) => {
                    let ring = CutRoom {
                        slots: window.min(tokens),
                        narrow: 0,
                        entries: 0,
                    };
                    (kind(cache.wide()), false, ring)
                }
            };
            LayerRoom {
                capacities: vec![room.slots; kv_heads],
                kind,
                narrow: vec![room.narrow; kv_heads],
                ranked,
                entries: room.entries,
            }
        };
        keeps.iter().map(layer).collect()
    }

    /// For `cache` as it is.
    fn of(cache: &CompactCache, looks: bool) -> Result<Self, EngineError> {
        let room = |layer: &CompactLayer| {
            let heads = 0..layer.kv_heads();
            let cache = layer.keys.cache_type();
            Ok(LayerRoom {
                capacities: heads.clone().map(|h| layer.keys.capacity(h)).collect(),
                kind: RowKind::of(cache).ok_or(EngineError::CardRows { cache })?,
                narrow: heads.map(|h| layer.keys.narrow_places(h)).collect(),
                ranked: !layer.ranks.is_empty(),
                entries: layer.entry_capacity(),
            })
        };
        Ok(Self {
            layers: (cache.layers.iter())
                .map(room)
                .collect::<Result<_, EngineError>>()?,
            max_rows: cache.max_capacity(),
            max_entries: cache.max_entries(),
            looks,
        })
    }

    /// Bytes that answering takes of the card, the weights' apart, with rotations of `positions`.
    pub(crate) fn bytes(
        &self,
        card: &CardModel,
        model: &Model,
        positions: usize,
    ) -> Result<u64, DeviceError> {
        // A table's bytes are the same for every position.
        let a_position = RopeTable::new(model.config(), 1);
        let taken = card
            .device()
            .rehearse(|device| CardDecoding::on(device, card, model, &a_position, self))?;
        Ok(taken + (positions.max(1) as u64 - 1) * a_position.bytes())
    }
}

impl<'a> CardDecoding<'a> {
    /// Copies `cache` to the card. `looks`: the method wants to see probabilities.
    pub(super) fn new(
        card: &'a CardModel,
        model: &Model,
        rope: &RopeTable,
        cache: &CompactCache,
        looks: bool,
    ) -> Result<Self, EngineError> {
        let rooms = CardRooms::of(cache, looks)?;
        let mut decoding = Self::on(card.device(), card, model, rope, &rooms)?;
        for (layer, cached) in cache.layers.iter().enumerate() {
            decoding.send_rows(layer, cached)?;
        }
        Ok(decoding)
    }

    /// Everything in memory of `device`, which is the card or stands for it; without rows.
    fn on(
        device: &Device,
        card: &'a CardModel,
        model: &Model,
        rope: &RopeTable,
        rooms: &CardRooms,
    ) -> Result<Self, DeviceError> {
        let (config, shape) = (model.config(), head_shape(model));
        let layers = rooms.layers.len();
        let (max_rows, max_entries) = (rooms.max_rows, rooms.max_entries);
        let stride = max_rows.max(max_entries);
        let new = shape.kv_heads * layers * shape.head_dim;
        let best = layers * shape.q_heads * 2;
        let seen = match rooms.looks {
            true => layers * shape.q_heads * stride,
            false => 0,
        };
        Ok(Self {
            rope: CardRope::new(device, rope)?,
            shape,
            scale: attention_scale(model),
            rows: CardCache::new(device, shape, &rooms.layers)?,
            pass: CardPass::new(device, config, 1)?,
            residual: device.room(config.width)?,
            queries: device.room(config.q_width())?,
            attention: device.room(config.q_width())?,
            logits: device.room(config.vocab)?,
            attend: DecodeScratch::new(device, shape, max_rows, true)?,
            by_table: (max_entries > 0)
                .then(|| ClassScratch::new(device, shape, max_rows, max_entries))
                .transpose()?,
            best: device.room(best)?,
            seen: device.room(seen)?,
            stride,
            best_here: vec![0.0; best],
            seen_here: vec![0.0; seen],
            new_keys: vec![0.0; new],
            new_values: vec![0.0; new],
            slots: vec![0; layers * shape.kv_heads],
            targets: vec![0; shape.kv_heads],
            aged: Vec::with_capacity(shape.kv_heads),
            tables_changed: vec![true; layers],
            places_changed: vec![true; layers],
            card,
        })
    }

    /// Bytes on the card, the weights' apart.
    pub(super) fn bytes(&self) -> u64 {
        let floats = [
            &self.residual,
            &self.attention,
            &self.logits,
            &self.best,
            &self.seen,
        ];
        floats.iter().map(|b| b.bytes()).sum::<u64>()
            + self.queries.bytes()
            + self.rope.bytes()
            + self.rows.bytes()
            + self.pass.bytes()
            + self.attend.bytes()
            + self.by_table.as_ref().map_or(0, ClassScratch::bytes)
    }

    /// Sends all filled rows of a layer.
    fn send_rows(&mut self, layer: usize, cached: &CompactLayer) -> Result<(), DeviceError> {
        let stores = (&cached.keys, &cached.values);
        for head in 0..self.shape.kv_heads {
            let slots = 0..cached.rows[head];
            self.rows.write_rows((layer, head), slots, stores)?;
        }
        Ok(())
    }

    /// Sends what a method has changed in a layer.
    pub(super) fn send(
        &mut self,
        layer: usize,
        cached: &CompactLayer,
        changed: &[Changed],
    ) -> Result<(), DeviceError> {
        for change in changed {
            match *change {
                Changed::Row(head, row) => {
                    let slot = row.0 as usize;
                    let stores = (&cached.keys, &cached.values);
                    self.rows
                        .write_rows((layer, head), slot..slot + 1, stores)?;
                }
                Changed::Table => self.tables_changed[layer] = true,
                // Where rows trade places, slots were moved by that alone.
                Changed::Rows if cached.keys.cache_type().is_quantised() => {
                    self.places_changed[layer] = true;
                }
                Changed::Rows => self.send_rows(layer, cached)?,
            }
        }
        Ok(())
    }

    /// Tells the card where the token at `cache.next` goes, after the books were told.
    fn make_room(&mut self, cache: &mut CompactCache) -> Result<(), DeviceError> {
        let (kv_heads, position) = (self.shape.kv_heads, cache.next);
        for (layer, cached) in cache.layers.iter_mut().enumerate() {
            let slots = &mut self.slots[layer * kv_heads..][..kv_heads];
            self.aged.clear();
            for (head, slot) in slots.iter_mut().enumerate() {
                *slot = cached.make_room(head, position);
                let widened = cached.make_wide(head, *slot);
                self.places_changed[layer] |= widened != Widened::No;
                if let Widened::Traded { wide, narrow } = widened {
                    self.aged.push((head, wide, narrow));
                }
                self.targets[head] = cached.keys.place(head, *slot);
            }
            let stands: Option<Vec<usize>> = (cache.reassigned && cached.window().is_none())
                .then(|| (0..kv_heads).map(|head| cached.last_rank(head)).collect());
            let tables = (0..kv_heads).map(|head| cached.table_of(head));
            let entries: Option<Vec<usize>> = tables
                .map(|table| table.map(|(classes, _)| classes.len()))
                .collect();
            let token = NewToken {
                rows: &cached.rows,
                targets: &self.targets,
                aged: &self.aged,
                stands: stands.as_deref(),
                entries: entries.as_deref(),
            };
            self.rows.tell(layer, &token);
            if std::mem::take(&mut self.places_changed[layer]) {
                self.rows.write_places(layer, &cached.keys)?;
            }
            if !cached.ranks.is_empty() {
                self.rows.write_ranks(layer, &cached.ranks)?;
            }
            if cached.is_shared() {
                self.send_tables(layer, cached)?;
            }
        }
        self.rows.send()
    }

    fn send_tables(&mut self, layer: usize, cached: &CompactLayer) -> Result<(), DeviceError> {
        let whole = std::mem::take(&mut self.tables_changed[layer]);
        for head in 0..self.shape.kv_heads {
            let Some((classes, lengths)) = cached.table_of(head) else {
                continue;
            };
            let first = if whole { 0 } else { classes.len() - 1 };
            let own = (layer, head);
            self.rows
                .write_entries(own, first, &classes[first..], &lengths[first..])?;
        }
        Ok(())
    }

    /// Runs a token, whose embedding is `embedded [width]`, through all layers: its logits come to `logits [vocab]`, its rows to
    /// the cache. What it looked at is asked for afterwards.
    pub(super) fn step(
        &mut self,
        cache: &mut CompactCache,
        embedded: &[f32],
        logits: &mut [f32],
    ) -> Result<(), DeviceError> {
        self.residual.write(0, embedded)?;
        self.make_room(cache)?;
        for layer in 0..cache.layers.len() {
            self.layer(layer, cache)?;
        }
        self.card
            .logits(&self.residual, &mut self.pass, &mut self.logits)?;
        self.logits.read(0, logits)?;
        self.best.read(0, &mut self.best_here)?;
        self.seen.read(0, &mut self.seen_here)?;
        self.rows
            .read_new(&mut self.new_keys, &mut self.new_values)?;
        let (layers, dim) = (cache.layers.len(), self.shape.head_dim);
        for (layer, cached) in cache.layers.iter_mut().enumerate() {
            for head in 0..self.shape.kv_heads {
                let at = (head * layers + layer) * dim;
                let slot = self.slots[layer * self.shape.kv_heads + head];
                let (key, value) = (&self.new_keys[at..][..dim], &self.new_values[at..][..dim]);
                cached.write(head, slot, key, value);
            }
        }
        Ok(())
    }

    fn layer(&mut self, layer: usize, cache: &CompactCache) -> Result<(), DeviceError> {
        let (card, cached) = (self.card, &cache.layers[layer]);
        let angles = self.rope.of_layer(layer);
        card.project(layer, &self.residual, 1, &mut self.pass)?;
        // Rotated as they are read, by their rank; else here, by their position.
        let ranked = cache.reassigned && cached.window().is_none();
        let placed = match ranked {
            true => Stand::RAW,
            false => Stand {
                angles,
                places: Places::From((cache.next.0 - cache.turned_from.0) as usize),
            },
        };
        if ranked {
            let apart = Stand {
                angles,
                places: Places::At(self.rows.stands(layer)),
            };
            card.ready_queries_apart(layer, apart, &mut self.pass, &mut self.queries)?;
        } else {
            card.ready_queries(layer, 1, placed, &self.pass, &mut self.queries)?;
        }
        let [keys, values] = self.rows.new_rows();
        card.ready_keys(layer, 1, placed, &self.pass, (layer, keys))?;
        card.ready_values(layer, 1, &self.pass, (layer, values))?;
        self.rows.append(layer)?;

        let angles = angles.filter(|_| ranked);
        let shared = cached.is_shared();
        let by_table = self.by_table.as_mut().filter(|_| shared);
        let (probabilities, stride) = match by_table {
            Some(scratch) => {
                let (queries, out) = ((self.scale, &self.queries), &mut self.attention);
                self.rows
                    .attend_by_table(layer, queries, angles, scratch, out)?;
                (scratch.probabilities(), scratch.stride())
            }
            None => {
                let (queries, out) = ((self.scale, &mut self.queries), &mut self.attention);
                self.rows
                    .attend(layer, queries, angles, &mut self.attend, out)?;
                (self.attend.probabilities(), self.attend.stride())
            }
        };
        let heads = self.shape.q_heads;
        let mut best = self.best.share(layer * heads * 2..(layer + 1) * heads * 2);
        self.rows
            .best(layer, (probabilities, stride), shared, &mut best)?;
        if !self.seen.is_empty() {
            let at = layer * heads * self.stride;
            self.seen.copy_from(at, probabilities, 0..heads * stride)?;
        }
        let residual = (&mut self.residual, 1);
        card.finish(layer, &self.attention, residual, &mut self.pass)
    }

    /// `[q_heads, stride]`: probabilities of the last token in a layer, and the stride; of its entries where it `is_shared` was true as
    /// the token ran.
    pub(super) fn seen(&self, layer: usize, shared: bool) -> (&[f32], usize) {
        let stride = match (&self.by_table, shared) {
            (Some(scratch), true) => scratch.stride(),
            _ => self.attend.stride(),
        };
        let heads = self.shape.q_heads;
        let at = layer * heads * self.stride;
        (&self.seen_here[at..][..heads * stride], stride)
    }

    /// The largest probability of a query head in a layer, and the slot or entry that got it.
    pub(super) fn best(&self, layer: usize, q_head: usize) -> (f32, usize) {
        let at = (layer * self.shape.q_heads + q_head) * 2;
        (self.best_here[at], self.best_here[at + 1] as usize)
    }

    /// Logits `[vocab]` of a row `[width]` after the last layer.
    pub(super) fn logits_of(
        &mut self,
        hidden: &[f32],
        logits: &mut [f32],
    ) -> Result<(), DeviceError> {
        self.residual.write(0, hidden)?;
        self.card
            .logits(&self.residual, &mut self.pass, &mut self.logits)?;
        self.logits.read(0, logits)
    }
}
