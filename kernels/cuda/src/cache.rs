//! [`GpuCache`]: the rows of a compact cache on a device. The host keeps the books (which slot is filled, where it stands in the
//! text), tells what changes with each token in one go, and everything that a kernel relies on is checked against the rooms as it is
//! told.
//!
//! ```text
//! slots of a layer   head 0 | 0 1 2 3 4 | head 1 | 0 1 2 |       capacities [5, 3]
//! a new token        rows [4, 2], targets [1, 6]                 head 0 puts it in a hole, head 1 at its end
//! ```
//!
//! Where the cache's type is a quantised one, a slot lies in the place that the host's store gives it: some places are wide (f16). A token
//! that takes a slot in a narrow one gets a wide place from an older row, which is rounded into the narrow one: that trade happens here too.
//!
//! ```text
//! places of a head   | narrow .. | wide .. |       rows of a layer   | narrow of head 0 | of head 1 | wide of head 0 | of head 1 |
//! ```

mod attending;
mod capacity;
mod keeping;
mod step_layer;

use std::ops::Range;

use half::slice::HalfFloatSliceExt;
use kept_kernels::{HeadShape, RowStore};

use crate::{Buffer, Device, DeviceError, Indices, Kept, KeptRows, LayerRows};
use capacity::HeadCapacity;

pub use capacity::LayerCapacity;
pub use keeping::Keeping;
pub use step_layer::StepLayer;

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
    /// `[kv_heads]`
    heads: Vec<HeadCapacity>,
    /// `[slots]`: the row of each, where rows are of two kinds.
    places: Option<Indices>,
    /// `[slots]`
    ranks: Option<Indices>,
    tables: Option<Tables>,
    /// `[kv_heads]`, parts of what is sent for each token.
    rows: Buffer<u32>,
    targets: Indices,
    stands: Indices,
    entries: Buffer<u32>,
    /// Wide rows that are rounded, and the narrow ones that they become.
    aged: [Indices; 2],
    /// `[kv_heads]`: where the layer's new rows lie.
    source: Indices,
    /// `[kv_heads]`, as they were told.
    told_rows: Vec<usize>,
    told_entries: Vec<usize>,
    /// How many rows are rounded, as it was told.
    told_aged: usize,
}

/// What a new token is for one layer.
pub struct NewToken<'a> {
    /// `[kv_heads]`: filled slots, its own included; no hole among them.
    pub rows: &'a [usize],
    /// `[kv_heads]`: the place of its slot in each head ([`RowStore::place`]).
    pub targets: &'a [usize],
    /// Rows that grew too old for a wide place: their head, the place, and the narrow one that they go to.
    pub aged: &'a [(usize, usize, usize)],
    /// `[kv_heads]`: where its queries stand, where that differs from head to head.
    pub stands: Option<&'a [usize]>,
    /// `[kv_heads]`: entries of the tables, its own included, where there are any.
    pub entries: Option<&'a [usize]>,
}

/// Rows of all layers.
pub struct GpuCache {
    device: Device,
    shape: HeadShape,
    layers: Vec<Layer>,
    /// `[0, 1, ..]`: the heads.
    heads: Indices,
    /// `[layers, 6, kv_heads]`: rows, targets, stands, entries, aged rows and where they go; then the token's place in the rotation.
    token: Buffer<u32>,
    staged: Vec<u32>,
    /// Places are below.
    reach: usize,
    /// Keys and values of the newest token: `[kv_heads, layers, head_dim]`, row == layer.
    new: [LayerRows; 2],
}

const ROWS: usize = 0;
const TARGETS: usize = 1;
const STANDS: usize = 2;
const ENTRIES: usize = 3;
const AGED: usize = 4;
const NARROWED: usize = 5;
/// Numbers of a head that are sent for each layer and token.
const SENT: usize = 6;

impl GpuCache {
    /// Room for layers of these heads, empty.
    pub fn new(
        device: &Device,
        shape: HeadShape,
        capacity: &[LayerCapacity],
    ) -> Result<Self, DeviceError> {
        let mut cache = Self::without_rows(device, shape, capacity.len())?;
        for capacity in capacity {
            cache.add_layer(capacity)?;
        }
        Ok(cache)
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        let layers = self.layers.iter().map(|layer| {
            let tables = layer.tables.as_ref();
            let indices = [&layer.ranks, &layer.places].into_iter().flatten();
            layer.keys.bytes()
                + layer.values.bytes()
                + indices.map(Indices::bytes).sum::<u64>()
                + layer.first_rows.bytes()
                + layer.source.bytes()
                + tables.map_or(0, |t| t.classes.bytes() + t.lengths.bytes())
        });
        let new: u64 = self.new.iter().map(LayerRows::bytes).sum();
        layers.sum::<u64>() + self.token.bytes() + self.heads.bytes() + new
    }

    /// Replaces the rows of some slots of one head of a layer by those of the host's stores, in the places they have there.
    ///
    /// # Panics
    /// When there are no such slots, or rows are stored in another way.
    pub fn write_rows(
        &mut self,
        (layer, head): (usize, usize),
        slots: Range<usize>,
        (keys, values): (&RowStore, &RowStore),
    ) -> Result<(), DeviceError> {
        let layer = &mut self.layers[layer];
        let capacity = layer.heads[head];
        for (there, here) in [(&mut layer.keys, keys), (&mut layer.values, values)] {
            let row = |slot: usize| (capacity.row(here.place(head, slot)), slot);
            let mut which: Vec<(usize, usize)> = slots.clone().map(row).collect();
            which.sort_unstable();
            there.write(here, head, &which)?;
        }
        Ok(())
    }

    /// The places of a layer's slots are those of the host's store, where it has some.
    ///
    /// # Panics
    /// When it has other slots.
    pub fn write_places(&mut self, layer: usize, store: &RowStore) -> Result<(), DeviceError> {
        let layer = &mut self.layers[layer];
        let Some(places) = &mut layer.places else {
            return Ok(());
        };
        let of_head = |(head, capacity): (usize, &HeadCapacity)| {
            let slots = (0..capacity.capacity).map(move |slot| store.place(head, slot));
            slots
                .map(|place| capacity.row(place) as u32)
                .collect::<Vec<_>>()
        };
        let rows: Vec<u32> = layer.heads.iter().enumerate().flat_map(of_head).collect();
        assert_eq!(rows.len(), places.len(), "places are [slots]");
        places.write(0, &rows)
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

    /// Tells what the next token is for a layer; [`GpuCache::send`] follows when all layers were told.
    ///
    /// # Panics
    /// When it does not fit the layer.
    pub fn tell(&mut self, layer: usize, token: &NewToken<'_>) {
        let kv_heads = self.shape.kv_heads;
        let at = layer * SENT * kv_heads;
        let layer = &mut self.layers[layer];
        for (head, own) in layer.heads.iter().enumerate() {
            let (rows, capacity) = (token.rows[head], own.capacity);
            assert!(
                (1..=capacity).contains(&rows),
                "{rows} rows in a head that holds {capacity}"
            );
            let stand = token.stands.map_or(0, |stands| stands[head]);
            let entries = token.entries.map_or(0, |entries| entries[head]);
            let staged = &mut self.staged[at..];
            staged[ROWS * kv_heads + head] = rows as u32;
            staged[TARGETS * kv_heads + head] = own.row(token.targets[head]) as u32;
            staged[STANDS * kv_heads + head] = stand as u32;
            staged[ENTRIES * kv_heads + head] = entries as u32;
            layer.told_rows[head] = rows;
            layer.told_entries[head] = entries;
        }
        layer.told_aged = token.aged.len();
        for (i, &(head, wide, narrow)) in token.aged.iter().enumerate() {
            let capacity = layer.heads[head];
            let staged = &mut self.staged[at..];
            // Of wide rows the kernel counts from the first.
            staged[AGED * kv_heads + i] = (capacity.row(wide) - layer.keys.narrow) as u32;
            staged[NARROWED * kv_heads + i] = capacity.row(narrow) as u32;
        }
        let aged = &self.staged[at + AGED * kv_heads..at + SENT * kv_heads];
        let (aged, narrowed) = aged.split_at(kv_heads);
        for (indices, staged) in layer.aged.iter_mut().zip([aged, narrowed]) {
            *indices = indices.again(&staged[..layer.told_aged]);
        }
        let stands = token.stands.unwrap_or(&[]).iter();
        let end = stands.max().map_or(0, |most| most + 1);
        let part = layer.stands.share();
        layer.stands = Indices::known(part, end);
    }

    /// Sends what was told.
    pub fn send(&mut self) -> Result<(), DeviceError> {
        self.token.write(0, &self.staged)
    }

    /// `[kv_heads]`: where the new token's queries stand in a layer, if that was told.
    pub fn stands(&self, layer: usize) -> &Indices {
        &self.layers[layer].stands
    }

    /// Keys and values of the newest token, to be written in row `layer` of every head.
    pub fn new_rows(&mut self) -> &mut [LayerRows; 2] {
        &mut self.new
    }

    /// All layers as a step that is recorded meets them, in which a token may stand in places below `reach`.
    ///
    /// # Panics
    /// When a layer is ranked or has tables: there the host has something to do between layers.
    pub fn step_layers(&mut self, reach: usize) -> Vec<StepLayer> {
        self.reach = reach;
        let last = self.token.len() - 1;
        let layer = |layer: &Layer| {
            assert!(
                layer.ranks.is_none() && layer.tables.is_none(),
                "rows stand where they are, and are nobody else's"
            );
            let rows = layer.keys.rows();
            let whole = |buffer: &Buffer<u32>| buffer.share(0..buffer.len());
            StepLayer {
                shape: self.shape,
                keys: layer.keys.share(),
                values: layer.values.share(),
                first_rows: whole(&layer.first_rows),
                rows: whole(&layer.rows),
                targets: layer.targets.share(),
                // Whatever is written to them is below.
                places: (layer.places.as_ref()).map(|places| Indices::known(places.share(), rows)),
                position: self.token.share(last..last + 1),
                capacity: layer.heads.iter().map(|head| head.capacity).max(),
                reach,
            }
        };
        self.layers.iter().map(layer).collect()
    }

    /// Tells where the next token stands in the rotation, for a step that is recorded.
    ///
    /// # Panics
    /// When that is not below what [`GpuCache::step_layers`] was told.
    pub fn tell_place(&mut self, place: usize) {
        let reach = self.reach;
        assert!(place < reach, "place {place} of {reach}");
        *self.staged.last_mut().expect("the place is there") = place as u32;
    }

    /// Rounds a layer's rows that grew too old for a wide place.
    pub fn age(&mut self, layer: usize) -> Result<(), DeviceError> {
        let layer = &mut self.layers[layer];
        let ([from, to], count) = (&layer.aged, layer.told_aged);
        self.device.narrow(&mut layer.keys, (from, to), count)?;
        self.device.narrow(&mut layer.values, (from, to), count)
    }

    /// Puts a layer's new rows into their slots, after those that grew too old have left theirs.
    pub fn append(&mut self, layer: usize) -> Result<(), DeviceError> {
        self.age(layer)?;
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
}
