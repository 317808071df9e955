//! Adds layers to a cache, and copies rows to a layer on the device during prefill.

use kept_kernels::{HeadShape, RowStore};

use super::capacity::HeadCapacity;
use super::{
    ENTRIES, FIELDS_PER_HEAD, GpuCache, HostTables, Layer, LayerBuffers, NARROW_TARGETS,
    QUERY_POSITIONS, ROWS, TARGETS, Tables, WIDE_SOURCES,
};
use crate::{
    Buffer, Device, DeviceError, GatherIndices, Indices, KeptRows, LayerCapacity, LayerRows,
    RowKind,
};

/// Staging of the indices of a gather: the rows to copy and their targets, for a limited number of rows per launch.
pub struct GatherStaging {
    /// `[3, rows_per_launch]` at most: source rows, heads and target rows.
    which: Buffer<u32>,
    staged: Vec<u32>,
    rows_per_launch: usize,
}

impl GatherStaging {
    /// For up to `rows_per_launch` rows per launch.
    ///
    /// # Panics
    /// When `rows_per_launch` is 0.
    pub fn new(device: &Device, rows_per_launch: usize) -> Result<Self, DeviceError> {
        assert!(rows_per_launch > 0, "no rows at a time");
        Ok(Self {
            which: device.alloc_uninit(3 * rows_per_launch)?,
            staged: Vec::with_capacity(3 * rows_per_launch),
            rows_per_launch,
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
        let fields = layers * FIELDS_PER_HEAD * shape.kv_heads + 1;
        Ok(Self {
            token: device.zeros(fields)?,
            device,
            shape,
            layers: Vec::with_capacity(layers),
            staged: vec![0; fields],
            changed: None,
            position_limit: 0,
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
        let (device, layer, of_layer) =
            (&self.device, self.layers.len(), FIELDS_PER_HEAD * kv_heads);
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
            physical_rows: match capacity.kind {
                RowKind::F16 => None,
                // Every value that is written is a row.
                RowKind::Q8_0 | RowKind::Q4_0 => Some(Indices::known(device.zeros(slots)?, slots)),
            },
            ranks: (capacity.ranked.then(|| Indices::zeros(device, slots))).transpose()?,
            tables: entries.map(tables).transpose()?,
            rows: part(ROWS),
            targets: part(TARGETS),
            query_positions: part(QUERY_POSITIONS),
            entries: part(ENTRIES),
        };
        let added = Layer {
            buffers,
            heads,
            tables: entries.map(host_tables),
            requantised: [
                Indices::known(part(WIDE_SOURCES), 0),
                Indices::known(part(NARROW_TARGETS), 0),
            ],
            requantised_len: 0,
        };
        self.layers.push(added);
        Ok(layer)
    }

    /// Copies rows of a layer's full `keys` and `values` to slots of the cache, at the physical rows that `store`
    /// gives them and in the store's type: slot i of head h takes row `slots[h][i]`.
    ///
    /// # Panics
    /// When a row or a slot does not exist.
    pub fn gather_rows(
        &mut self,
        layer: usize,
        keys: &LayerRows,
        values: &LayerRows,
        store: &RowStore,
        slots: &[Vec<u32>],
        staging: &mut GatherStaging,
    ) -> Result<(), DeviceError> {
        let layer = &mut self.layers[layer];
        assert_eq!(slots.len(), layer.heads.len(), "slots of each kv head");
        let heads = slots.iter().zip(&layer.heads).enumerate();
        let mut all = heads.flat_map(|(head, (rows, capacity))| {
            let slots = rows.iter().enumerate();
            slots.map(move |(slot, &row)| {
                let physical_row = store.physical_row(head, slot);
                (head, row, capacity.buffer_row(physical_row))
            })
        });
        let mut some = Vec::with_capacity(staging.rows_per_launch);
        loop {
            some.clear();
            some.extend(all.by_ref().take(staging.rows_per_launch));
            if some.is_empty() {
                return Ok(());
            }
            let [positions, heads, targets] = &staging.upload(&some)?;
            let which = GatherIndices {
                positions,
                heads,
                targets: Some(targets),
                slots: some.len(),
            };
            let buffers = &mut layer.buffers;
            self.device
                .gather_rows(keys, &which, None, &mut buffers.keys)?;
            self.device
                .gather_rows(values, &which, None, &mut buffers.values)?;
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
    const SHAPE: HeadShape = HeadShape::new(2, 2, DIM);
    const CAPACITIES: [usize; 2] = [20, 12];

    /// The host's stores of one layer. Physical rows of quantised stores differ from their slots.
    struct HostRows {
        /// Places only.
        physical_rows: RowStore,
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
                physical_rows: RowStore::without_data(cache, DIM, &CAPACITIES, &narrow, quantised),
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
                for store in [&mut rows.physical_rows, &mut rows.keys, &mut rows.values] {
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
        let numbers = |rows: &KeptRows| rows.elements().to_vec().expect("read");
        let scales = |rows: &KeptRows| rows.scales().to_vec().expect("read");
        let wide = |rows: &KeptRows| rows.wide().to_vec().expect("read");
        assert!(numbers(found) == numbers(expected), "{kind:?}: numbers");
        assert!(scales(found) == scales(expected), "{kind:?}: scales");
        assert!(wide(found) == wide(expected), "{kind:?}: wide rows");
        assert!(numbers(found).iter().any(|byte| *byte != 0), "{kind:?}");
    }

    /// Rows copied on the device, in pieces that end within a head, equal the rows uploaded from the host, bit by bit
    /// and at the same physical rows.
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
            let mut staging = GatherStaging::new(&device, 7).expect("memory");
            found
                .gather_rows(
                    0,
                    &all_keys,
                    &all_values,
                    &host.physical_rows,
                    &slots,
                    &mut staging,
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
