//! How a cache comes to its layers, and a layer to its rows, where these are on the device already: while a prompt is read there.

use kept_kernels::{HeadShape, RowStore};

use super::rooms::HeadRoom;
use super::{AGED, CardCache, ENTRIES, Layer, NARROWED, ROWS, SENT, STANDS, TARGETS, Tables};
use crate::{Buffer, Device, DeviceError, Indices, Kept, KeptRows, LayerRoom, LayerRows, RowKind};

/// Which rows are kept and where they go, on their way to a device: some at a time.
pub struct Keeping {
    /// `[3, at_once]` at most: rows, heads, and the rows that they become.
    which: Buffer<u32>,
    staged: Vec<u32>,
    at_once: usize,
}

impl Keeping {
    /// For `at_once` rows at a time.
    ///
    /// # Panics
    /// When that is none.
    pub fn new(device: &Device, at_once: usize) -> Result<Self, DeviceError> {
        assert!(at_once > 0, "no rows at a time");
        Ok(Self {
            which: device.room(3 * at_once)?,
            staged: Vec::with_capacity(3 * at_once),
            at_once,
        })
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> u64 {
        self.which.bytes()
    }

    /// Sends `some` rows, each a head, its row there and the one that it becomes; gives the three of them apart.
    fn send(&mut self, some: &[(usize, u32, usize)]) -> Result<[Indices; 3], DeviceError> {
        self.staged.clear();
        self.staged.extend(some.iter().map(|&(_, row, _)| row));
        self.staged
            .extend(some.iter().map(|&(head, ..)| head as u32));
        self.staged.extend(some.iter().map(|&(.., to)| to as u32));
        self.which.write(0, &self.staged)?;
        let part = |which: usize| {
            let own = which * some.len()..(which + 1) * some.len();
            let end = self.staged[own.clone()].iter().max();
            let end = end.map_or(0, |&most| most as usize + 1);
            Indices::known(self.which.share(own), end)
        };
        Ok([part(0), part(1), part(2)])
    }
}

impl CardCache {
    /// A cache that `layers` layers are to be added to.
    pub fn without_rows(
        device: &Device,
        shape: HeadShape,
        layers: usize,
    ) -> Result<Self, DeviceError> {
        let kv_heads = shape.kv_heads;
        let new = || LayerRows::new(device, kv_heads, layers, shape.head_dim);
        let new = [new()?, new()?];
        let heads: Vec<u32> = (0..kv_heads as u32).collect();
        let sent = layers * SENT * kv_heads + 1;
        Ok(Self {
            device: device.clone(),
            shape,
            layers: Vec::with_capacity(layers),
            heads: Indices::new(device, &heads)?,
            staged: vec![0; sent],
            reach: 0,
            token: device.zeros(sent)?,
            new,
        })
    }

    /// Room for the next layer, empty; gives its number.
    ///
    /// # Panics
    /// When all layers are there, or the room is of other heads.
    pub fn add_layer(&mut self, room: &LayerRoom) -> Result<usize, DeviceError> {
        let (kv_heads, dim) = (self.shape.kv_heads, self.shape.head_dim);
        assert_eq!(room.capacities.len(), kv_heads, "a room for each kv head");
        let (device, layer, of_layer) = (&self.device, self.layers.len(), SENT * kv_heads);
        let heads = HeadRoom::all(room);
        let slots: usize = room.capacities.iter().sum();
        let narrow: usize = heads.iter().map(|head| head.narrow).sum();
        let first_rows: Vec<u32> = heads.iter().map(|head| head.slot as u32).collect();
        let store = || KeptRows::with_wide(device, room.kind, (narrow, slots - narrow), dim);
        let part = |kind: usize| {
            let at = layer * of_layer + kind * kv_heads;
            self.token.share(at..at + kv_heads)
        };
        let tables = |entries: usize| -> Result<Tables, DeviceError> {
            Ok(Tables {
                classes: device.zeros(kv_heads * entries)?,
                lengths: device.zeros(kv_heads * entries)?,
                capacity: entries,
                ends: vec![0; kv_heads],
            })
        };
        let added = Layer {
            keys: store()?,
            values: store()?,
            first_rows: device.copy_of(&first_rows)?,
            heads,
            places: match room.kind {
                RowKind::F16 => None,
                RowKind::Q8_0 | RowKind::Q4_0 => Some(Indices::zeros(device, slots)?),
            },
            ranks: match room.ranked {
                true => Some(Indices::zeros(device, slots)?),
                false => None,
            },
            tables: match room.entries {
                0 => None,
                entries => Some(tables(entries)?),
            },
            rows: part(ROWS),
            targets: Indices::known(part(TARGETS), slots),
            stands: Indices::known(part(STANDS), 0),
            entries: part(ENTRIES),
            aged: [
                Indices::known(part(AGED), 0),
                Indices::known(part(NARROWED), 0),
            ],
            source: Indices::new(device, &vec![layer as u32; kv_heads])?,
            told_rows: vec![0; kv_heads],
            told_entries: vec![0; kv_heads],
            told_aged: 0,
        };
        self.layers.push(added);
        Ok(layer)
    }

    /// Copies rows of a layer's full `keys` and `values` into slots of the cache, in the places that `store` gives them, rounded as they are
    /// stored there: slot i of head h takes the row `slots[h][i]`.
    ///
    /// # Panics
    /// When there are no such rows or slots.
    pub fn keep(
        &mut self,
        layer: usize,
        (keys, values): (&LayerRows, &LayerRows),
        (store, slots): (&RowStore, &[Vec<u32>]),
        keeping: &mut Keeping,
    ) -> Result<(), DeviceError> {
        let layer = &mut self.layers[layer];
        assert_eq!(slots.len(), layer.heads.len(), "slots of each kv head");
        let heads = slots.iter().zip(&layer.heads).enumerate();
        let mut all = heads.flat_map(|(head, (rows, room))| {
            let slots = rows.iter().enumerate();
            slots.map(move |(slot, &row)| (head, row, room.row(store.place(head, slot))))
        });
        let mut some = Vec::with_capacity(keeping.at_once);
        loop {
            some.clear();
            some.extend(all.by_ref().take(keeping.at_once));
            if some.is_empty() {
                return Ok(());
            }
            let [positions, heads, targets] = &keeping.send(&some)?;
            let which = Kept {
                positions,
                heads,
                targets: Some(targets),
                slots: some.len(),
            };
            self.device.keep(keys, &which, None, &mut layer.keys)?;
            self.device.keep(values, &which, None, &mut layer.values)?;
        }
    }
}
