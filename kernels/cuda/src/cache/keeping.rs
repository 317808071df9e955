//! Adds layers to a cache, and copies rows to a layer on the device during prefill.

use kept_kernels::{HeadShape, RowStore};

use super::capacity::HeadCapacity;
use super::{
    AGED, ENTRIES, GpuCache, HostTables, Layer, LayerBuffers, NARROWED, ROWS, SENT, STANDS,
    TARGETS, Tables,
};
use crate::{
    Buffer, Device, DeviceError, Indices, Kept, KeptRows, LayerCapacity, LayerRows, RowKind,
};

/// Staging of the rows to keep and their targets, for a limited number of rows at a time.
pub struct Keeping {
    /// `[3, at_once]` at most: source rows, heads and target rows.
    which: Buffer<u32>,
    staged: Vec<u32>,
    at_once: usize,
}

impl Keeping {
    /// For `at_once` rows at a time.
    ///
    /// # Panics
    /// When `at_once` is 0.
    pub fn new(device: &Device, at_once: usize) -> Result<Self, DeviceError> {
        assert!(at_once > 0, "no rows at a time");
        Ok(Self {
            which: device.alloc_uninit(3 * at_once)?,
            staged: Vec::with_capacity(3 * at_once),
            at_once,
        })
    }

    /// Uploads `some` rows, each (head, source row, target row), as three lists: source rows, heads, target rows.
    fn upload(&mut self, some: &[(usize, u32, usize)]) -> Result<[Indices; 3], DeviceError> {
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

impl GpuCache {
    /// A cache without layers, for up to `layers` of them ([`GpuCache::add_layer`]).
    pub fn without_rows(
        device: &Device,
        shape: HeadShape,
        layers: usize,
    ) -> Result<Self, DeviceError> {
        let device = device.counting();
        let sent = layers * SENT * shape.kv_heads + 1;
        Ok(Self {
            token: device.zeros(sent)?,
            device,
            shape,
            layers: Vec::with_capacity(layers),
            staged: vec![0; sent],
            changed: None,
            reach: 0,
        })
    }

    /// Allocates the next layer, empty, and returns its index.
    ///
    /// # Panics
    /// When the cache has all its layers, or `capacity` has another number of heads.
    pub fn add_layer(&mut self, capacity: &LayerCapacity) -> Result<usize, DeviceError> {
        let (kv_heads, dim) = (self.shape.kv_heads, self.shape.head_dim);
        assert_eq!(
            capacity.capacities.len(),
            kv_heads,
            "a capacity for each kv head"
        );
        let (device, layer, of_layer) = (&self.device, self.layers.len(), SENT * kv_heads);
        let heads = HeadCapacity::all(capacity);
        let slots: usize = capacity.capacities.iter().sum();
        let narrow: usize = heads.iter().map(|head| head.narrow).sum();
        let first_rows: Vec<u32> = heads.iter().map(|head| head.slot as u32).collect();
        let wide = slots - narrow;
        let store = || KeptRows::with_wide(device, capacity.kind, narrow, wide, dim);
        let part = |kind: usize| {
            let at = layer * of_layer + kind * kv_heads;
            self.token.share(at..at + kv_heads)
        };
        let tables = |entries: usize| -> Result<Tables, DeviceError> {
            Ok(Tables {
                classes: device.zeros(kv_heads * entries)?,
                norms: device.zeros(kv_heads * entries)?,
                capacity: entries,
            })
        };
        let host_tables = |entries: usize| HostTables {
            classes: vec![0; kv_heads * entries],
            norms: vec![0.0; kv_heads * entries],
            changed: 0..0,
            ends: vec![0; kv_heads],
            rows: vec![0; kv_heads],
        };
        let entries = (capacity.entries > 0).then_some(capacity.entries);
        let buffers = LayerBuffers {
            keys: store()?,
            values: store()?,
            first_rows: device.copy_of(&first_rows)?,
            places: match capacity.kind {
                RowKind::F16 => None,
                // Every value that is written is a row.
                RowKind::Q8_0 | RowKind::Q4_0 => Some(Indices::known(device.zeros(slots)?, slots)),
            },
            ranks: (capacity.ranked.then(|| Indices::zeros(device, slots))).transpose()?,
            tables: entries.map(tables).transpose()?,
            rows: part(ROWS),
            targets: part(TARGETS),
            query_positions: part(STANDS),
            entries: part(ENTRIES),
        };
        let added = Layer {
            buffers,
            heads,
            tables: entries.map(host_tables),
            aged: [
                Indices::known(part(AGED), 0),
                Indices::known(part(NARROWED), 0),
            ],
            told_aged: 0,
        };
        self.layers.push(added);
        Ok(layer)
    }

    /// Copies rows of a layer's full `keys` and `values` to slots of the cache, at the places that `store` gives them
    /// and in the store's type: slot i of head h takes row `slots[h][i]`.
    ///
    /// # Panics
    /// When a row or a slot does not exist.
    pub fn keep(
        &mut self,
        layer: usize,
        keys: &LayerRows,
        values: &LayerRows,
        store: &RowStore,
        slots: &[Vec<u32>],
        keeping: &mut Keeping,
    ) -> Result<(), DeviceError> {
        let layer = &mut self.layers[layer];
        assert_eq!(slots.len(), layer.heads.len(), "slots of each kv head");
        let heads = slots.iter().zip(&layer.heads).enumerate();
        let mut all = heads.flat_map(|(head, (rows, capacity))| {
            let slots = rows.iter().enumerate();
            slots.map(move |(slot, &row)| (head, row, capacity.row(store.physical_row(head, slot))))
        });
        let mut some = Vec::with_capacity(keeping.at_once);
        loop {
            some.clear();
            some.extend(all.by_ref().take(keeping.at_once));
            if some.is_empty() {
                return Ok(());
            }
            let [positions, heads, targets] = &keeping.upload(&some)?;
            let which = Kept {
                positions,
                heads,
                targets: Some(targets),
                slots: some.len(),
            };
            let buffers = &mut layer.buffers;
            self.device.keep(keys, &which, None, &mut buffers.keys)?;
            self.device
                .keep(values, &which, None, &mut buffers.values)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use half::f16;
    use kept_kernels::CacheType;

    use super::*;
    use crate::emulated;

    const DIM: usize = 64;
    const TOKENS: usize = 50;
    const SHAPE: HeadShape = HeadShape {
        q_heads: 2,
        kv_heads: 2,
        head_dim: DIM,
    };
    const CAPACITIES: [usize; 2] = [20, 12];

    /// The host's stores of one layer. Quantised rows lie at places that differ from their slots.
    struct HostRows {
        /// Places only.
        places: RowStore,
        keys: RowStore,
        values: RowStore,
        capacity: LayerCapacity,
    }

    impl HostRows {
        fn new(kind: RowKind) -> Self {
            let (cache, quantised) = match kind {
                RowKind::F16 => (CacheType::F16, false),
                RowKind::Q8_0 => (CacheType::Q8_0, true),
                RowKind::Q4_0 => (CacheType::Q4_0, true),
            };
            let narrow = if quantised { vec![11, 5] } else { vec![0, 0] };
            let store = || RowStore::stored(cache, DIM, &CAPACITIES, &narrow, quantised);
            let mut rows = Self {
                places: RowStore::without_data(cache, DIM, &CAPACITIES, &narrow, quantised),
                keys: store(),
                values: store(),
                capacity: LayerCapacity {
                    capacities: CAPACITIES.to_vec(),
                    kind,
                    narrow,
                    ranked: false,
                    entries: 0,
                },
            };
            if quantised {
                let order: Vec<usize> = (0..17).map(|i| (5 * i + 3) % 17).collect();
                for store in [&mut rows.places, &mut rows.keys, &mut rows.values] {
                    store.assign_physical_rows(0, &order);
                }
            }
            rows
        }

        /// A cache of this layer, all 0.
        fn zeros(&self, device: &Device) -> GpuCache {
            let mut cache = GpuCache::without_rows(device, SHAPE, 1).expect("memory");
            assert_eq!(cache.add_layer(&self.capacity).expect("memory"), 0);
            let layer = &mut cache.layers[0];
            layer.buffers.keys.clear();
            layer.buffers.values.clear();
            cache
        }
    }

    /// Numbers of a layer, `[kv_heads, TOKENS, DIM]`.
    fn numbers(salt: usize) -> Vec<f16> {
        let number = |i: usize| f16::from_f32(((i * 7919 + salt) % 1013) as f32 / 500.0 - 1.0);
        (0..SHAPE.kv_heads * TOKENS * DIM).map(number).collect()
    }

    fn uploaded(device: &Device, numbers: &[f16]) -> LayerRows {
        let mut rows = LayerRows::new(device, SHAPE.kv_heads, TOKENS, DIM).expect("memory");
        rows.data_mut().write(0, numbers).expect("written");
        rows
    }

    /// Writes row `slots[h][i]` of `numbers` to slot i of each head h.
    fn write(store: &mut RowStore, numbers: &[f16], slots: &[Vec<u32>]) {
        for (head, rows) in slots.iter().enumerate() {
            for (slot, &row) in rows.iter().enumerate() {
                let at = (head * TOKENS + row as usize) * DIM;
                let row = numbers[at..at + DIM].iter().map(|x| x.to_f32());
                store.write(head, slot, &row.collect::<Vec<f32>>());
            }
        }
    }

    fn assert_same(found: &KeptRows, expected: &KeptRows, kind: RowKind) {
        let numbers = |rows: &KeptRows| rows.numbers().to_vec().expect("read");
        let scales = |rows: &KeptRows| rows.scales().to_vec().expect("read");
        let wide = |rows: &KeptRows| rows.wide().to_vec().expect("read");
        assert!(numbers(found) == numbers(expected), "{kind:?}: numbers");
        assert!(scales(found) == scales(expected), "{kind:?}: scales");
        assert!(wide(found) == wide(expected), "{kind:?}: wide rows");
        assert!(numbers(found).iter().any(|byte| *byte != 0), "{kind:?}");
    }

    /// Rows copied on the device, in pieces that end within a head, equal the rows uploaded from the host, bit by bit
    /// and at the same places.
    #[test]
    fn rows_copied_on_the_device_equal_rows_uploaded() {
        let device = emulated::device(86, 1 << 26);
        let [keys, values] = [1, 2].map(numbers);
        let [all_keys, all_values] = [&keys, &values].map(|numbers| uploaded(&device, numbers));
        let slots: Vec<Vec<u32>> = vec![
            (0..17).map(|i| i * 13 % 50).collect(),
            (0..9).map(|i| 49 - i).collect(),
        ];
        for kind in [RowKind::F16, RowKind::Q8_0, RowKind::Q4_0] {
            let mut host = HostRows::new(kind);
            write(&mut host.keys, &keys, &slots);
            write(&mut host.values, &values, &slots);
            let (mut found, mut expected) = (host.zeros(&device), host.zeros(&device));
            let mut keeping = Keeping::new(&device, 7).expect("memory");
            found
                .keep(
                    0,
                    &all_keys,
                    &all_values,
                    &host.places,
                    &slots,
                    &mut keeping,
                )
                .expect("it runs");
            for (head, rows) in slots.iter().enumerate() {
                expected
                    .write_rows(0, head, 0..rows.len(), &host.keys, &host.values)
                    .expect("written");
            }
            let (found, expected) = (&found.layers[0], &expected.layers[0]);
            assert_same(&found.buffers.keys, &expected.buffers.keys, kind);
            assert_same(&found.buffers.values, &expected.buffers.values, kind);
        }
    }
}
