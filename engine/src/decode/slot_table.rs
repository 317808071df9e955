//! Where each token of an answer goes in a cache on a GPU: the host's books say it, and the GPU is told.

use kept_cuda::{DeviceError, GpuCache, NewToken};

use crate::compact::{CompactCache, CompactLayer, Widened};

/// What is told with each token; all memory of it.
pub(super) struct SlotTable {
    kv_heads: usize,
    /// `[layers, kv_heads]`: the slots that the newest token took.
    slots: Vec<usize>,
    /// `[kv_heads]`: their places in one layer.
    targets: Vec<usize>,
    /// Rows of one layer that leave a wide place to it.
    aged: Vec<(usize, usize, usize)>,
    /// `[layers]`: whether the look-up table has changed in more than its newest entry.
    tables_changed: Vec<bool>,
    /// `[layers]`: whether slots lie in other places than the GPU was told.
    places_changed: Vec<bool>,
}

/// Sends all filled rows of a layer.
pub(super) fn send_rows(
    there: &mut GpuCache,
    layer: usize,
    cached: &CompactLayer,
) -> Result<(), DeviceError> {
    let stores = (&cached.keys, &cached.values);
    for head in 0..cached.kv_heads() {
        let slots = 0..cached.rows[head];
        there.write_rows((layer, head), slots, stores)?;
    }
    Ok(())
}

impl SlotTable {
    pub(super) fn new(layers: usize, kv_heads: usize) -> Self {
        Self {
            kv_heads,
            slots: vec![0; layers * kv_heads],
            targets: vec![0; kv_heads],
            aged: Vec::with_capacity(kv_heads),
            tables_changed: vec![true; layers],
            places_changed: vec![true; layers],
        }
    }

    /// The slot that the newest token took.
    pub(super) fn slot(&self, layer: usize, head: usize) -> usize {
        self.slots[layer * self.kv_heads + head]
    }

    /// A layer's look-up table is another.
    pub(super) fn table_changed(&mut self, layer: usize) {
        self.tables_changed[layer] = true;
    }

    /// A layer's slots lie in other places.
    pub(super) fn places_changed(&mut self, layer: usize) {
        self.places_changed[layer] = true;
    }

    /// Writes the token at `cache.next` into the books, and tells the GPU where it goes; [`GpuCache::send`] is to follow.
    pub(super) fn tell(
        &mut self,
        cache: &mut CompactCache,
        there: &mut GpuCache,
    ) -> Result<(), DeviceError> {
        let (kv_heads, position) = (self.kv_heads, cache.next);
        for (layer, cached) in cache.layers.iter_mut().enumerate() {
            let slots = &mut self.slots[layer * kv_heads..][..kv_heads];
            self.aged.clear();
            for (head, slot) in slots.iter_mut().enumerate() {
                *slot = cached.evict_oldest(head, position);
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
            there.tell(layer, &token);
            if std::mem::take(&mut self.places_changed[layer]) {
                there.write_places(layer, &cached.keys)?;
            }
            if !cached.ranks.is_empty() {
                there.write_ranks(layer, &cached.ranks)?;
            }
            if cached.is_shared() {
                self.send_tables(layer, cached, there)?;
            }
        }
        Ok(())
    }

    fn send_tables(
        &mut self,
        layer: usize,
        cached: &CompactLayer,
        there: &mut GpuCache,
    ) -> Result<(), DeviceError> {
        let whole = std::mem::take(&mut self.tables_changed[layer]);
        for head in 0..self.kv_heads {
            let Some((classes, lengths)) = cached.table_of(head) else {
                continue;
            };
            let first = if whole { 0 } else { classes.len() - 1 };
            let own = (layer, head);
            there.write_entries(own, first, &classes[first..], &lengths[first..])?;
        }
        Ok(())
    }
}
