//! [`CardCache`]: the rows of a compact cache on a device. The host keeps the books (which slot is filled, where it stands in the
//! text), tells what changes with each token in one go, and everything that a kernel relies on is checked against the rooms as it is
//! told.
//!
//! ```text
//! slots of a layer   head 0 | 0 1 2 3 4 | head 1 | 0 1 2 |       capacities [5, 3]
//! a new token        rows [4, 2], targets [1, 6]                 head 0 puts it in a hole, head 1 at its end
//! ```

use half::f16;
use half::slice::HalfFloatSliceExt;
use kept_kernels::{HeadShape, Scale};

use crate::{
    Angles, Buffer, ClassAttention, ClassScratch, DecodeAttention, DecodeScratch, Device,
    DeviceError, Indices, Kept, KeptRows, LayerRows, Ranks, RowKind,
};

/// What a layer has room for.
#[derive(Debug, Clone)]
pub struct LayerRoom {
    /// `[kv_heads]`: slots of each head.
    pub capacities: Vec<usize>,
    /// Keys are stored before RoPE, and each slot has a rank.
    pub ranked: bool,
    /// Entries of each head's look-up table; 0 where there is none.
    pub entries: usize,
}

/// The look-up tables of a layer whose rows several tokens share.
struct Tables {
    /// `[kv_heads, capacity]`
    classes: Buffer<u32>,
    /// `[kv_heads, capacity]`
    lengths: Buffer<f32>,
    capacity: usize,
    /// `[kv_heads]`: one more than the largest class of each head's table.
    ends: Vec<usize>,
}

struct Layer {
    keys: KeptRows,
    values: KeptRows,
    /// `[kv_heads]`: first slot of each head.
    first_rows: Buffer<u32>,
    capacities: Vec<usize>,
    /// `[slots]`
    ranks: Option<Indices>,
    tables: Option<Tables>,
    /// `[kv_heads]`, parts of what is sent for each token.
    rows: Buffer<u32>,
    targets: Indices,
    places: Indices,
    entries: Buffer<u32>,
    /// `[kv_heads]`: where the layer's new rows lie.
    source: Indices,
    /// `[kv_heads]`, as they were told.
    told_rows: Vec<usize>,
    told_entries: Vec<usize>,
}

/// What a new token is for one layer.
pub struct NewToken<'a> {
    /// `[kv_heads]`: filled slots, its own included; no hole among them.
    pub rows: &'a [usize],
    /// `[kv_heads]`: its slot in each head.
    pub slots: &'a [usize],
    /// `[kv_heads]`: where its queries stand, where that differs from head to head.
    pub places: Option<&'a [usize]>,
    /// `[kv_heads]`: entries of the tables, its own included, where there are any.
    pub entries: Option<&'a [usize]>,
}

/// Rows of all layers.
pub struct CardCache {
    device: Device,
    shape: HeadShape,
    layers: Vec<Layer>,
    /// `[0, 1, ..]`: the heads.
    heads: Indices,
    /// `[layers, 4, kv_heads]`: rows, targets, places, entries.
    token: Buffer<u32>,
    staged: Vec<u32>,
    /// Keys and values of the newest token: `[kv_heads, layers, head_dim]`, row == layer.
    new: [LayerRows; 2],
}

const ROWS: usize = 0;
const TARGETS: usize = 1;
const PLACES: usize = 2;
const ENTRIES: usize = 3;
/// Numbers of a head that are sent for each layer and token.
const SENT: usize = 4;

impl CardCache {
    /// Room for layers of these heads, empty.
    pub fn new(
        device: &Device,
        shape: HeadShape,
        rooms: &[LayerRoom],
    ) -> Result<Self, DeviceError> {
        let (kv_heads, dim) = (shape.kv_heads, shape.head_dim);
        let of_layer = SENT * kv_heads;
        let token: Buffer<u32> = device.zeros(rooms.len() * of_layer)?;
        let new = || LayerRows::new(device, kv_heads, rooms.len(), dim);
        let new = [new()?, new()?];
        let layer = |(layer, room): (usize, &LayerRoom)| {
            assert_eq!(room.capacities.len(), kv_heads, "a room for each kv head");
            let slots: usize = room.capacities.iter().sum();
            let mut first = 0;
            let first_rows: Vec<u32> = (room.capacities.iter())
                .map(|capacity| {
                    first += capacity;
                    (first - capacity) as u32
                })
                .collect();
            let part = |kind: usize| {
                let at = layer * of_layer + kind * kv_heads;
                token.share(at..at + kv_heads)
            };
            let tables = |entries: usize| -> Result<Tables, DeviceError> {
                Ok(Tables {
                    classes: device.zeros(kv_heads * entries)?,
                    lengths: device.zeros(kv_heads * entries)?,
                    capacity: entries,
                    ends: vec![0; kv_heads],
                })
            };
            Ok(Layer {
                keys: KeptRows::new(device, RowKind::F16, slots, dim)?,
                values: KeptRows::new(device, RowKind::F16, slots, dim)?,
                first_rows: device.copy_of(&first_rows)?,
                capacities: room.capacities.clone(),
                ranks: match room.ranked {
                    true => Some(Indices::new(device, &vec![0; slots])?),
                    false => None,
                },
                tables: match room.entries {
                    0 => None,
                    entries => Some(tables(entries)?),
                },
                rows: part(ROWS),
                targets: Indices::known(part(TARGETS), slots),
                places: Indices::known(part(PLACES), 0),
                entries: part(ENTRIES),
                source: Indices::new(device, &vec![layer as u32; kv_heads])?,
                told_rows: vec![0; kv_heads],
                told_entries: vec![0; kv_heads],
            })
        };
        let heads: Vec<u32> = (0..kv_heads as u32).collect();
        Ok(Self {
            device: device.clone(),
            shape,
            layers: (rooms.iter().enumerate())
                .map(layer)
                .collect::<Result<_, DeviceError>>()?,
            heads: Indices::new(device, &heads)?,
            staged: vec![0; rooms.len() * of_layer],
            token,
            new,
        })
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        let layers = self.layers.iter().map(|layer| {
            let tables = layer.tables.as_ref();
            let ranks = layer.ranks.as_ref().map_or(0, Indices::bytes);
            layer.keys.bytes()
                + layer.values.bytes()
                + ranks
                + tables.map_or(0, |t| t.classes.bytes() + t.lengths.bytes())
        });
        let new: u64 = self.new.iter().map(LayerRows::bytes).sum();
        layers.sum::<u64>() + self.token.bytes() + new
    }

    /// Replaces rows of one head of a layer from `slot` on: `keys` and `values [rows, head_dim]`.
    ///
    /// # Panics
    /// When there are no such slots.
    pub fn write_rows(
        &mut self,
        (layer, head): (usize, usize),
        slot: usize,
        keys: &[f32],
        values: &[f32],
    ) -> Result<(), DeviceError> {
        let (dim, layer) = (self.shape.head_dim, &mut self.layers[layer]);
        assert_eq!(
            (keys.len() % dim, keys.len()),
            (0, values.len()),
            "whole rows"
        );
        let capacity = layer.capacities[head];
        assert!(
            slot + keys.len() / dim <= capacity,
            "rows {slot}..{} of a head that holds {capacity}",
            slot + keys.len() / dim
        );
        let first: usize = layer.capacities[..head].iter().sum::<usize>() + slot;
        for (store, rows) in [(&mut layer.keys, keys), (&mut layer.values, values)] {
            let bytes: Vec<u8> = (rows.iter())
                .flat_map(|&x| f16::from_f32(x).to_le_bytes())
                .collect();
            store.numbers.write(first * dim * 2, &bytes)?;
        }
        Ok(())
    }

    /// Replaces the ranks of a ranked layer, `[slots]`; those of slots that are not filled may be anything that angles reach.
    ///
    /// # Panics
    /// When the layer is not ranked, or has another number of slots.
    pub fn write_ranks(&mut self, layer: usize, ranks: &[u32]) -> Result<(), DeviceError> {
        let own = self.layers[layer].ranks.as_mut().expect("a ranked layer");
        assert_eq!(ranks.len(), own.len(), "ranks are [slots]");
        own.write(0, ranks)
    }

    /// Replaces entries of one head's look-up table from `first` on.
    ///
    /// # Panics
    /// When the layer has no table, or not as much room.
    pub fn write_entries(
        &mut self,
        (layer, head): (usize, usize),
        first: usize,
        classes: &[u32],
        lengths: &[f32],
    ) -> Result<(), DeviceError> {
        let layer = &mut self.layers[layer];
        let tables = layer.tables.as_mut().expect("a layer with a table");
        assert!(
            classes.len() == lengths.len() && first + classes.len() <= tables.capacity,
            "{} entries from {first} on, of {}",
            classes.len(),
            tables.capacity
        );
        let end = classes.iter().max().map_or(0, |&most| most as usize + 1);
        tables.ends[head] = match first {
            0 => end,
            _ => tables.ends[head].max(end),
        };
        let at = head * tables.capacity + first;
        tables.classes.write(at, classes)?;
        tables.lengths.write(at, lengths)
    }

    /// Tells what the next token is for a layer; [`CardCache::send`] follows when all layers were told.
    ///
    /// # Panics
    /// When it does not fit the layer.
    pub fn tell(&mut self, layer: usize, token: &NewToken<'_>) {
        let kv_heads = self.shape.kv_heads;
        let at = layer * SENT * kv_heads;
        let layer = &mut self.layers[layer];
        let mut first = 0;
        for head in 0..kv_heads {
            let (rows, slot, capacity) =
                (token.rows[head], token.slots[head], layer.capacities[head]);
            assert!(
                slot < rows && rows <= capacity,
                "slot {slot} of {rows} rows in a head that holds {capacity}"
            );
            let place = token.places.map_or(0, |places| places[head]);
            let entries = token.entries.map_or(0, |entries| entries[head]);
            let staged = &mut self.staged[at..];
            staged[ROWS * kv_heads + head] = rows as u32;
            staged[TARGETS * kv_heads + head] = (first + slot) as u32;
            staged[PLACES * kv_heads + head] = place as u32;
            staged[ENTRIES * kv_heads + head] = entries as u32;
            layer.told_rows[head] = rows;
            layer.told_entries[head] = entries;
            first += capacity;
        }
        let places = token.places.unwrap_or(&[]).iter();
        let end = places.max().map_or(0, |most| most + 1);
        let part = layer.places.share();
        layer.places = Indices::known(part, end);
    }

    /// Sends what was told.
    pub fn send(&mut self) -> Result<(), DeviceError> {
        self.token.write(0, &self.staged)
    }

    /// `[kv_heads]`: where the new token's queries stand in a layer, if that was told.
    pub fn places(&self, layer: usize) -> &Indices {
        &self.layers[layer].places
    }

    /// Keys and values of the newest token, to be written in row `layer` of every head.
    pub fn new_rows(&mut self) -> &mut [LayerRows; 2] {
        &mut self.new
    }

    /// Puts a layer's new rows into their slots.
    pub fn append(&mut self, layer: usize) -> Result<(), DeviceError> {
        let layer = &mut self.layers[layer];
        let which = Kept {
            positions: &layer.source,
            heads: &self.heads,
            targets: Some(&layer.targets),
            slots: self.shape.kv_heads,
        };
        let [keys, values] = &self.new;
        self.device.keep(keys, &which, None, &mut layer.keys)?;
        self.device.keep(values, &which, None, &mut layer.values)
    }

    /// Keys and values of the newest token of all layers, each `[kv_heads, layers, head_dim]`, on the host.
    pub fn read_new(&self, keys: &mut [f32], values: &mut [f32]) -> Result<(), DeviceError> {
        for (rows, out) in self.new.iter().zip([keys, values]) {
            rows.data().to_vec()?.as_slice().convert_to_f32_slice(out);
        }
        Ok(())
    }

    /// Attention of the new token's `queries [q_heads, head_dim]` over a layer's rows; in a ranked layer keys are turned to their
    /// ranks by `angles`, if it is rotated. Writes `out [q_heads, head_dim]`; probabilities stay in the scratch.
    ///
    /// # Panics
    /// When shapes do not fit, or nothing was told.
    pub fn attend(
        &self,
        layer: usize,
        (scale, queries): (Scale, &Buffer<f16>),
        angles: Option<Angles<'_>>,
        scratch: &mut DecodeScratch,
        out: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        let layer = &self.layers[layer];
        assert!(
            (layer.told_rows.iter()).all(|rows| (1..=scratch.stride()).contains(rows)),
            "rows {:?}, the scratch is for up to {}",
            layer.told_rows,
            scratch.stride()
        );
        let ranks = match (&layer.ranks, angles) {
            (Some(ranks), Some(angles)) => {
                angles.check(ranks.end(), self.shape.head_dim);
                let ranks = ranks.numbers();
                Some(Ranks { ranks, angles })
            }
            _ => None,
        };
        let task = DecodeAttention {
            shape: self.shape,
            scale,
            queries,
            keys: &layer.keys,
            values: &layer.values,
            first_rows: &layer.first_rows,
            rows: &layer.rows,
            ranks,
        };
        // SAFETY: rows were checked when they were told and above, ranks against the angles.
        unsafe { self.device.decode_attention(&task, scratch, out) }
    }

    /// The same over the entries of a layer whose rows tokens share.
    ///
    /// # Panics
    /// When shapes do not fit, or nothing was told.
    pub fn attend_by_table(
        &self,
        layer: usize,
        (scale, queries): (Scale, &Buffer<f16>),
        angles: Option<Angles<'_>>,
        scratch: &mut ClassScratch,
        out: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        let layer = &self.layers[layer];
        let tables = layer.tables.as_ref().expect("a layer with a table");
        let told = layer.told_rows.iter().zip(&layer.told_entries);
        for ((&rows, &entries), &end) in told.zip(&tables.ends) {
            assert!(
                (1..=scratch.rows()).contains(&rows)
                    && (1..=tables.capacity).contains(&entries)
                    && end <= rows,
                "{entries} entries of {} over {rows} rows, with classes below {end}",
                tables.capacity
            );
        }
        if let Some(angles) = &angles {
            let most = layer.told_entries.iter().copied().max().unwrap_or(0);
            angles.check(most, self.shape.head_dim);
        }
        let task = ClassAttention {
            shape: self.shape,
            scale,
            queries,
            keys: &layer.keys,
            values: &layer.values,
            first_rows: &layer.first_rows,
            rows: &layer.rows,
            classes: &tables.classes,
            lengths: &tables.lengths,
            entries: &layer.entries,
            capacity: tables.capacity,
            angles,
        };
        // SAFETY: rows, entries and classes were checked above.
        unsafe { self.device.class_attention(&task, scratch, out) }
    }

    /// Writes to `out [q_heads, 2]` the largest probability of each query head in a layer, and the place of it, as a number: of the
    /// rows, or of the entries where they were attended by their table.
    ///
    /// # Panics
    /// When shapes do not fit.
    pub fn best(
        &self,
        layer: usize,
        (probabilities, stride): (&Buffer<f32>, usize),
        by_table: bool,
        out: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        let layer = &self.layers[layer];
        let (counts, told) = match by_table {
            true => (&layer.entries, &layer.told_entries),
            false => (&layer.rows, &layer.told_rows),
        };
        assert!(
            told.iter().all(|count| (1..=stride).contains(count)),
            "{told:?} probabilities of up to {stride}"
        );
        let counts = (counts, self.shape.group());
        // SAFETY: the counts were checked.
        unsafe {
            self.device
                .best((probabilities, stride), counts, self.shape.q_heads, out)
        }
    }
}
