//! Rows and table entries that a method changes while it answers. The host collects them, and uploads all of a token's
//! together: a copy for each small change costs more than the step itself.

use std::ops::Range;

use half::f16;
use kept_kernels::{CacheType, RowStore};

use super::{GpuCache, HostTables, Layer, LayerBuffers, Tables};
use crate::{Buffer, Device, DeviceError, GatherIndices, Indices, LayerRows};

/// Rows per upload.
const ROWS_PER_UPLOAD: usize = 1024;

/// Changed rows that the device does not have yet.
pub(super) struct ChangedRows {
    /// Layer and target row, layer after layer.
    which: Vec<(usize, u32)>,
    /// `[2, ROWS_PER_UPLOAD, head_dim]`: their keys, then their values.
    staged: Vec<f16>,
    /// As `staged`, with keys as head 0 and values as head 1.
    rows: LayerRows,
    /// `[ROWS_PER_UPLOAD]`
    targets: Buffer<u32>,
    /// `[3, ROWS_PER_UPLOAD]`: 0, 1, 2, ..; zeros; ones.
    constants: Buffer<u32>,
}

impl ChangedRows {
    fn new(device: &Device, dim: usize) -> Result<Self, DeviceError> {
        let ordinals = 0..ROWS_PER_UPLOAD as u32;
        let heads = (0..2).flat_map(|head| [head; ROWS_PER_UPLOAD]);
        let constants: Vec<u32> = ordinals.chain(heads).collect();
        Ok(Self {
            which: Vec::with_capacity(ROWS_PER_UPLOAD),
            staged: vec![f16::ZERO; 2 * ROWS_PER_UPLOAD * dim],
            rows: LayerRows::new(device, 2, ROWS_PER_UPLOAD, dim)?,
            targets: device.alloc_uninit(ROWS_PER_UPLOAD)?,
            constants: device.copy_of(&constants)?,
        })
    }

    /// Index of the row `target` of `layer` among the staged ones; a row that changed twice is uploaded once.
    fn staged_index(&mut self, layer: usize, target: u32) -> usize {
        let of_layer = self.which.iter().rev().take_while(|row| row.0 == layer);
        let known = of_layer.clone().position(|row| row.1 == target);
        match known {
            Some(from_end) => self.which.len() - 1 - from_end,
            None => {
                self.which.push((layer, target));
                self.which.len() - 1
            }
        }
    }

    /// Uploads the collected rows.
    fn send(&mut self, device: &Device, layers: &mut [Layer]) -> Result<(), DeviceError> {
        let dim = self.staged.len() / (2 * ROWS_PER_UPLOAD);
        let count = self.which.len();
        if count == 0 {
            return Ok(());
        }
        for head in 0..2 {
            let own = head * ROWS_PER_UPLOAD * dim..(head * ROWS_PER_UPLOAD + count) * dim;
            self.rows
                .data_mut()
                .write(own.start, &self.staged[own.clone()])?;
        }
        let targets: Vec<u32> = self.which.iter().map(|row| row.1).collect();
        self.targets.write(0, &targets)?;
        let mut first = 0;
        for of_layer in self.which.chunk_by(|a, b| a.0 == b.0) {
            let rows = first..first + of_layer.len();
            first = rows.end;
            let layer = &mut layers[of_layer[0].0];
            let end = of_layer.iter().map(|row| row.1 + 1).max().unwrap_or(0);
            let targets = Indices::known(self.targets.share(rows.clone()), end as usize);
            let positions = Indices::known(self.constants.share(rows.clone()), rows.end);
            let LayerBuffers { keys, values, .. } = &mut layer.buffers;
            for (head, kept) in [keys, values].into_iter().enumerate() {
                let own = (1 + head) * ROWS_PER_UPLOAD..(1 + head) * ROWS_PER_UPLOAD + rows.len();
                let which = GatherIndices {
                    positions: &positions,
                    heads: &Indices::known(self.constants.share(own), head + 1),
                    targets: Some(&targets),
                    slots: rows.len(),
                };
                device.gather_rows(&self.rows, &which, None, kept)?;
            }
        }
        self.which.clear();
        Ok(())
    }
}

/// Copies an f16 row of a store.
///
/// # Panics
/// When the row has another type.
fn copy_row(store: &RowStore, head: usize, slot: usize, to: &mut [f16]) {
    let (stored, bytes) = store.packed_row(head, slot).expect("a packed store");
    assert_eq!(stored, CacheType::F16, "rows that change are f16");
    for (to, bytes) in to.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *to = f16::from_le_bytes(*bytes);
    }
}

impl Tables {
    /// Uploads the entries that changed since the last call.
    fn send(&mut self, host: &mut HostTables) -> Result<(), DeviceError> {
        let Range { start, end } = std::mem::take(&mut host.changed);
        if start < end {
            self.classes.write(start, &host.classes[start..end])?;
            self.norms.write(start, &host.norms[start..end])?;
        }
        Ok(())
    }
}

impl GpuCache {
    /// Allocates what [`GpuCache::change_row`] needs.
    pub fn prepare_changes(&mut self) -> Result<(), DeviceError> {
        let changed = ChangedRows::new(&self.device, self.shape.head_dim)?;
        self.changed = Some(changed);
        Ok(())
    }

    /// Replaces the row of a slot by that of the host's stores, when the next token is sent.
    ///
    /// # Panics
    /// Without [`GpuCache::prepare_changes`]; when the slot does not exist or its row is not f16.
    pub fn change_row(
        &mut self,
        layer: usize,
        head: usize,
        slot: usize,
        keys: &RowStore,
        values: &RowStore,
    ) -> Result<(), DeviceError> {
        let changed = self.changed.as_mut().expect("changes are prepared");
        if changed.which.len() == ROWS_PER_UPLOAD {
            changed.send(&self.device, &mut self.layers)?;
        }
        let target = self.layers[layer].heads[head].buffer_row(keys.physical_row(head, slot));
        let (row, dim) = (
            changed.staged_index(layer, target as u32),
            self.shape.head_dim,
        );
        for (part, store) in [keys, values].into_iter().enumerate() {
            let at = (part * ROWS_PER_UPLOAD + row) * dim;
            copy_row(store, head, slot, &mut changed.staged[at..at + dim]);
        }
        Ok(())
    }

    /// Replaces entries of one head's look-up table from `first` on, when the next token is sent.
    ///
    /// # Panics
    /// When the layer has no table, or the entries exceed its capacity.
    pub fn write_entries(
        &mut self,
        layer: usize,
        head: usize,
        first: usize,
        classes: &[u32],
        norms: &[f32],
    ) {
        let layer = &mut self.layers[layer];
        let tables = layer.tables.as_mut().expect("a layer with a table");
        let capacity = (layer.buffers.tables.as_ref()).map_or(0, |tables| tables.capacity);
        assert!(
            classes.len() == norms.len() && first + classes.len() <= capacity,
            "{} entries from {first} on, of {capacity}",
            classes.len(),
        );
        let end = classes.iter().max().map_or(0, |&most| most as usize + 1);
        tables.ends[head] = match first {
            0 => end,
            _ => tables.ends[head].max(end),
        };
        let at = head * capacity + first;
        let own = at..at + classes.len();
        tables.classes[own.clone()].copy_from_slice(classes);
        tables.norms[own.clone()].copy_from_slice(norms);
        tables.changed = match tables.changed.is_empty() {
            true => own,
            false => tables.changed.start.min(own.start)..tables.changed.end.max(own.end),
        };
    }

    /// Uploads all changes of rows and tables.
    pub(super) fn send_changes(&mut self) -> Result<(), DeviceError> {
        if let Some(changed) = &mut self.changed {
            changed.send(&self.device, &mut self.layers)?;
        }
        let layers = self.layers.iter_mut();
        let mut tables = layers.filter_map(|l| l.buffers.tables.as_mut().zip(l.tables.as_mut()));
        tables.try_for_each(|(tables, host)| tables.send(host))
    }
}
