//! Slots of new tokens in a GPU cache: the host assigns them and uploads the assignment.

use kept_cuda::{DeviceError, GpuCache, NewToken};
use kept_engine::backend::F16Placement;
use kept_engine::{CompactCache, CompactLayer};

/// Buffers for the assignment of one token.
pub(super) struct SlotTable {
    kv_heads: usize,
    /// `[layers, kv_heads]`: slots of the newest token.
    slots: Vec<usize>,
    /// `[kv_heads]`: physical rows of these slots in one layer.
    targets: Vec<usize>,
    /// Rows of one layer that move from f16 to quantised, for the new token: `(head, wide, narrow)`.
    requantised: Vec<(usize, usize, usize)>,
    /// `[layers]`: whether the class table has changed in more than its newest entry.
    tables_changed: Vec<bool>,
    /// `[layers]`: whether the GPU's map from slots to physical rows is out of date.
    physical_rows_changed: Vec<bool>,
}

/// Uploads all filled rows of a layer.
pub(super) fn upload_rows(
    rows: &mut GpuCache,
    layer: usize,
    cached: &CompactLayer,
) -> Result<(), DeviceError> {
    for head in 0..cached.kv_heads() {
        let slots = 0..cached.rows[head];
        rows.write_rows(layer, head, slots, &cached.keys, &cached.values)?;
    }
    Ok(())
}

impl SlotTable {
    pub(super) fn new(layers: usize, kv_heads: usize) -> Self {
        Self {
            kv_heads,
            slots: vec![0; layers * kv_heads],
            targets: vec![0; kv_heads],
            requantised: Vec::with_capacity(kv_heads),
            tables_changed: vec![true; layers],
            physical_rows_changed: vec![true; layers],
        }
    }

    /// Slot of the newest token.
    pub(super) fn slot(&self, layer: usize, head: usize) -> usize {
        self.slots[layer * self.kv_heads + head]
    }

    /// Marks a layer's class table as changed.
    pub(super) fn table_changed(&mut self, layer: usize) {
        self.tables_changed[layer] = true;
    }

    /// Marks a layer's map from slots to physical rows as changed.
    pub(super) fn physical_rows_changed(&mut self, layer: usize) {
        self.physical_rows_changed[layer] = true;
    }

    /// Assigns a slot to the token at `cache.next` in every layer and stages the assignment for the GPU; the
    /// caller then calls [`GpuCache::send`].
    pub(super) fn assign_slots(
        &mut self,
        cache: &mut CompactCache,
        rows: &mut GpuCache,
    ) -> Result<(), DeviceError> {
        let (kv_heads, position) = (self.kv_heads, cache.next);
        for (layer, cached) in cache.layers.iter_mut().enumerate() {
            let slots = &mut self.slots[layer * kv_heads..][..kv_heads];
            self.requantised.clear();
            for (head, slot) in slots.iter_mut().enumerate() {
                *slot = cached.assign_slot(head, position);
                let placement = cached.store_as_f16(head, *slot);
                self.physical_rows_changed[layer] |= placement != F16Placement::Unchanged;
                if let F16Placement::Swapped { wide, narrow } = placement {
                    self.requantised.push((head, wide, narrow));
                }
                self.targets[head] = cached.keys.physical_row(head, *slot);
            }
            let query_positions: Option<Vec<usize>> = (cache.reassigned
                && cached.window().is_none())
            .then(|| (0..kv_heads).map(|head| cached.last_rank(head)).collect());
            let tables = (0..kv_heads).map(|head| cached.table_of(head));
            let entries: Option<Vec<usize>> = tables
                .map(|table| table.map(|(classes, _)| classes.len()))
                .collect();
            let token = NewToken {
                rows: &cached.rows,
                targets: &self.targets,
                requantised: &self.requantised,
                query_positions: query_positions.as_deref(),
                entries: entries.as_deref(),
            };
            rows.stage_token(layer, &token);
            if std::mem::take(&mut self.physical_rows_changed[layer]) {
                rows.write_physical_rows(layer, &cached.keys)?;
            }
            if !cached.ranks.is_empty() {
                rows.write_ranks(layer, &cached.ranks)?;
            }
            if cached.entry_capacity() > 0 {
                self.stage_tables(layer, cached, rows);
            }
        }
        Ok(())
    }

    fn stage_tables(&mut self, layer: usize, cached: &CompactLayer, rows: &mut GpuCache) {
        let whole = std::mem::take(&mut self.tables_changed[layer]);
        for head in 0..self.kv_heads {
            let Some((classes, norms)) = cached.table_of(head) else {
                continue;
            };
            let first = if whole { 0 } else { classes.len() - 1 };
            rows.write_entries(layer, head, first, &classes[first..], &norms[first..]);
        }
    }
}
