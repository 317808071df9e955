//! [`GpuCache`]: the rows of a compact KV cache on a device. The host tracks which slots are filled and their
//! positions, and uploads the changes of each token in one copy. Every value that a kernel relies on is checked against
//! the capacities when the host sets it.
//!
//! ```text
//! slots of a layer   head 0 | 0 1 2 3 4 | head 1 | 0 1 2 |       capacities [5, 3]
//! a new token        rows [4, 2], targets [1, 6]                 head 0 reuses a free slot, head 1 appends
//! ```
//!
//! In a quantised cache some rows are wide (f16) and the others narrow. The host's [`RowStore`] maps each slot of a
//! head to a physical row, an index into the head's narrow and wide rows. When a new token's slot has a narrow physical
//! row, the token takes the wide one of an older slot, whose data is quantised into the narrow one. The device does
//! this exchange too.
//!
//! ```text
//! physical rows of a head   | narrow .. | wide .. |
//! rows of a layer           | narrow of head 0 | narrow of head 1 | wide of head 0 | wide of head 1 |
//! ```

mod capacity;
mod changes;
mod gathering;
mod step_layer;

use std::ops::Range;

use half::f16;
use kept_kernels::{HeadShape, RowStore};

use crate::{Buffer, Device, DeviceError, Indices, KeptRows};
use capacity::HeadCapacity;
use changes::ChangedRows;

pub use capacity::LayerCapacity;
pub use gathering::GatherStaging;
pub use step_layer::{StepLayer, StepScratch};

/// Look-up tables of a layer in which several tokens share a row. A clone is a second handle to them.
#[derive(Clone)]
struct Tables {
    /// `[kv_heads, capacity]`
    classes: Buffer<u32>,
    /// `[kv_heads, capacity]`
    norms: Buffer<f32>,
    capacity: usize,
}

/// What the host knows of [`Tables`].
struct HostTables {
    classes: Vec<u32>,
    norms: Vec<f32>,
    /// Entries that the device does not have yet, and perhaps others between them.
    changed: Range<usize>,
    /// `[kv_heads]`: one more than the largest class in each head's table.
    ends: Vec<usize>,
    /// `[kv_heads]`: last values of [`NewToken::rows`].
    rows: Vec<usize>,
}

/// What the device has of a layer. A clone is a second handle to it.
#[derive(Clone)]
pub(crate) struct LayerBuffers {
    pub(crate) keys: KeptRows,
    pub(crate) values: KeptRows,
    /// `[kv_heads]`: first slot of each head.
    first_rows: Buffer<u32>,
    /// `[slots]`: the row of each slot; `None` in f16, where they are equal.
    physical_rows: Option<Indices>,
    /// `[slots]`, if keys are stored before RoPE.
    pub(crate) ranks: Option<Indices>,
    tables: Option<Tables>,
    /// `[kv_heads]`: as the next three a part of `token`, the upload of each token.
    rows: Buffer<u32>,
    pub(crate) targets: Buffer<u32>,
    pub(crate) query_positions: Buffer<u32>,
    entries: Buffer<u32>,
}

struct Layer {
    buffers: LayerBuffers,
    /// `[kv_heads]`
    heads: Vec<HeadCapacity>,
    tables: Option<HostTables>,
    /// Wide rows to quantise, and the narrow rows that receive their data.
    requantised: [Indices; 2],
    /// Length of the last [`NewToken::requantised`].
    requantised_len: usize,
}

/// One layer's changes for a new token.
pub struct NewToken<'a> {
    /// `[kv_heads]`: filled slots, the new token's included; they are the first slots of the head.
    pub rows: &'a [usize],
    /// `[kv_heads]`: physical row of the new token's slot in each head ([`RowStore::physical_row`]).
    pub targets: &'a [usize],
    /// Rows that move from f16 to quantised: (head, wide physical row, narrow physical row).
    pub requantised: &'a [(usize, usize, usize)],
    /// `[kv_heads]`: positions of the token's queries, where they differ between heads.
    pub query_positions: Option<&'a [usize]>,
    /// `[kv_heads]`: entries of the tables, the new token's included, in a layer with tables.
    pub entries: Option<&'a [usize]>,
}

/// The compact KV cache of all layers.
pub struct GpuCache {
    /// Counts the cache's own buffers.
    device: Device,
    shape: HeadShape,
    layers: Vec<Layer>,
    /// `[layers, FIELDS_PER_HEAD, kv_heads]`: rows, targets, query positions, entries, wide sources and narrow targets
    /// of the requantised rows; then the token's position for RoPE.
    token: Buffer<u32>,
    staged: Vec<u32>,
    /// If a method changes rows while it answers.
    changed: Option<ChangedRows>,
    /// Upper bound (exclusive) of positions and ranks.
    position_limit: usize,
}

const ROWS: usize = 0;
const TARGETS: usize = 1;
const QUERY_POSITIONS: usize = 2;
const ENTRIES: usize = 3;
const WIDE_SOURCES: usize = 4;
const NARROW_TARGETS: usize = 5;
/// Fields per head that are uploaded for each layer and token.
const FIELDS_PER_HEAD: usize = 6;

impl GpuCache {
    /// Allocates an empty cache for layers of these capacities.
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

    /// Bytes of device memory.
    pub fn bytes(&self) -> u64 {
        self.device.held()
    }

    /// Replaces the rows of some slots of one head of a layer by rows of the host's stores, at the stores'
    /// physical rows.
    ///
    /// # Panics
    /// When the slots exceed the head's capacity, or the stores have another row type.
    pub fn write_rows(
        &mut self,
        layer: usize,
        head: usize,
        slots: Range<usize>,
        keys: &RowStore,
        values: &RowStore,
    ) -> Result<(), DeviceError> {
        let layer = &mut self.layers[layer];
        let capacity = layer.heads[head];
        let buffers = &mut layer.buffers;
        for (rows, store) in [(&mut buffers.keys, keys), (&mut buffers.values, values)] {
            let row = |slot: usize| (capacity.buffer_row(store.physical_row(head, slot)), slot);
            let mut which: Vec<(usize, usize)> = slots.clone().map(row).collect();
            which.sort_unstable();
            rows.write(store, head, &which)?;
        }
        Ok(())
    }

    /// Copies the physical rows of a layer's slots from the host's store. Without effect on a cache of f16 rows.
    ///
    /// # Panics
    /// When the store has other slots.
    pub fn write_physical_rows(
        &mut self,
        layer: usize,
        store: &RowStore,
    ) -> Result<(), DeviceError> {
        let layer = &mut self.layers[layer];
        let Some(physical_rows) = &mut layer.buffers.physical_rows else {
            return Ok(());
        };
        let of_head = |(head, capacity): (usize, &HeadCapacity)| {
            let slots = (0..capacity.capacity).map(move |slot| store.physical_row(head, slot));
            slots
                .map(|physical_row| capacity.buffer_row(physical_row) as u32)
                .collect::<Vec<_>>()
        };
        let rows: Vec<u32> = layer.heads.iter().enumerate().flat_map(of_head).collect();
        assert_eq!(rows.len(), physical_rows.len(), "physical rows are [slots]");
        physical_rows.write(0, &rows)
    }

    /// Replaces the ranks of a ranked layer, `[slots]`. Ranks of empty slots may have any value below the
    /// `position_limit` of [`GpuCache::step_layers`].
    ///
    /// # Panics
    /// When the layer is not ranked, or has another number of slots, or a rank is not below `position_limit`.
    pub fn write_ranks(&mut self, layer: usize, ranks: &[u32]) -> Result<(), DeviceError> {
        let (limit, highest) = (
            self.position_limit,
            ranks.iter().copied().max().unwrap_or(0),
        );
        assert!((highest as usize) < limit, "rank {highest} of {limit}");
        let own = &mut self.layers[layer].buffers.ranks;
        let own = own.as_mut().expect("a ranked layer");
        assert_eq!(ranks.len(), own.len(), "ranks are [slots]");
        own.write(0, ranks)
    }

    /// Stages one layer's changes for the next token. Call [`GpuCache::send`] after all layers.
    ///
    /// # Panics
    /// When the changes do not fit the layer, or a query's position is not below the `position_limit` of
    /// [`GpuCache::step_layers`].
    pub fn stage_token(&mut self, layer: usize, token: &NewToken<'_>) {
        let (kv_heads, limit) = (self.shape.kv_heads, self.position_limit);
        let at = layer * FIELDS_PER_HEAD * kv_heads;
        let layer = &mut self.layers[layer];
        for (head, own) in layer.heads.iter().enumerate() {
            let (rows, capacity) = (token.rows[head], own.capacity);
            assert!(
                (1..=capacity).contains(&rows),
                "{rows} rows in a head that holds {capacity}"
            );
            let query_position = token.query_positions.map_or(0, |positions| positions[head]);
            let entries = token.entries.map_or(0, |entries| entries[head]);
            // The position of the query is the rank of the newest row or entry.
            let ranked = layer.buffers.ranks.as_ref().map_or(0, |_| entries);
            assert!(
                query_position < limit && ranked <= limit,
                "rank {query_position} of {limit}"
            );
            if let (Some(tables), Some(own)) = (&mut layer.tables, &layer.buffers.tables) {
                let capacity = own.capacity;
                let fits = (1..=capacity).contains(&entries);
                assert!(fits, "{entries} entries of {capacity}");
                tables.rows[head] = rows;
            }
            let staged = &mut self.staged[at..];
            staged[ROWS * kv_heads + head] = rows as u32;
            staged[TARGETS * kv_heads + head] = own.buffer_row(token.targets[head]) as u32;
            staged[QUERY_POSITIONS * kv_heads + head] = query_position as u32;
            staged[ENTRIES * kv_heads + head] = entries as u32;
        }
        layer.requantised_len = token.requantised.len();
        for (i, &(head, wide, narrow)) in token.requantised.iter().enumerate() {
            let capacity = layer.heads[head];
            let staged = &mut self.staged[at..];
            // The kernel counts wide rows from the first wide row.
            staged[WIDE_SOURCES * kv_heads + i] =
                (capacity.buffer_row(wide) - layer.buffers.keys.narrow) as u32;
            staged[NARROW_TARGETS * kv_heads + i] = capacity.buffer_row(narrow) as u32;
        }
        let pairs = &self.staged[at + WIDE_SOURCES * kv_heads..at + FIELDS_PER_HEAD * kv_heads];
        let (sources, targets) = pairs.split_at(kv_heads);
        for (indices, staged) in layer.requantised.iter_mut().zip([sources, targets]) {
            *indices = indices.with_bound_of(&staged[..layer.requantised_len]);
        }
    }

    /// Uploads all changes and the token at `position`, and quantises the rows that lose their wide physical
    /// rows to it.
    ///
    /// # Panics
    /// When the position, if a layer is not ranked, is not below the `position_limit` of [`GpuCache::step_layers`]; when
    /// a table refers to rows that do not exist.
    pub fn send(&mut self, position: usize) -> Result<(), DeviceError> {
        let limit = self.position_limit;
        let ranked = (self.layers.iter()).all(|layer| layer.buffers.ranks.is_some());
        assert!(ranked || position < limit, "position {position} of {limit}");
        for tables in self.layers.iter().filter_map(|layer| layer.tables.as_ref()) {
            for (&end, &rows) in tables.ends.iter().zip(&tables.rows) {
                assert!(end <= rows, "classes below {end} of {rows} rows");
            }
        }
        *self.staged.last_mut().expect("the position is there") = position as u32;
        self.token.write(0, &self.staged)?;
        self.send_changes()?;
        for layer in &mut self.layers {
            let ([from, to], count) = (&layer.requantised, layer.requantised_len);
            let LayerBuffers { keys, values, .. } = &mut layer.buffers;
            self.device.narrow(keys, from, to, count)?;
            self.device.narrow(values, from, to, count)?;
        }
        Ok(())
    }

    /// All layers for a captured step, in which positions and ranks are below `position_limit`. `copies [layers, 2,
    /// kv_heads, head_dim]` receives the new token's keys and values.
    ///
    /// # Panics
    /// When `copies` is shorter.
    pub fn step_layers(
        &mut self,
        position_limit: usize,
        copies: Option<&Buffer<f16>>,
    ) -> Vec<StepLayer> {
        self.position_limit = position_limit;
        let last = self.token.len() - 1;
        let copied = 2 * self.shape.kv_heads * self.shape.head_dim;
        let layer = |(index, layer): (usize, &Layer)| StepLayer {
            shape: self.shape,
            buffers: layer.buffers.clone(),
            position: self.token.share(last..last + 1),
            copies: copies.map(|all| all.share(index * copied..(index + 1) * copied)),
            capacity: layer.heads.iter().map(|head| head.capacity).max(),
            position_limit,
        };
        self.layers.iter().enumerate().map(layer).collect()
    }
}
