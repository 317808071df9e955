//! Capacities of a layer of a cache, and the location of each head's rows.

use crate::RowKind;

/// Capacities of one layer.
#[derive(Debug, Clone)]
pub struct LayerCapacity {
    /// `[kv_heads]`: slots of each head.
    pub capacities: Vec<usize>,
    /// Row type.
    pub kind: RowKind,
    /// `[kv_heads]`: number of narrow rows of each head in a quantised cache; the physical rows after them are f16.
    /// Ignored for f16 rows.
    pub narrow: Vec<usize>,
    /// Whether keys are stored before RoPE and each slot has a rank.
    pub ranked: bool,
    /// Entries of each head's look-up table; 0 for no table.
    pub entries: usize,
}

/// Location of one head's rows in a layer.
#[derive(Clone, Copy)]
pub(super) struct HeadCapacity {
    /// First slot.
    pub(super) slot: usize,
    pub(super) capacity: usize,
    /// First narrow row, and number of narrow rows.
    pub(super) first: usize,
    pub(super) narrow: usize,
    /// First wide row. Wide rows follow all narrow rows of the layer.
    pub(super) wide: usize,
}

impl HeadCapacity {
    /// `[kv_heads]`
    pub(super) fn all(layer: &LayerCapacity) -> Vec<Self> {
        let narrow_of = |head: usize| match layer.kind {
            RowKind::F16 => layer.capacities[head],
            RowKind::Q8_0 | RowKind::Q4_0 => layer.narrow[head],
        };
        let heads = 0..layer.capacities.len();
        let (mut slot, mut first) = (0, 0);
        let mut wide = heads.clone().map(narrow_of).sum();
        let own = |head: usize| {
            let (capacity, narrow) = (layer.capacities[head], narrow_of(head));
            assert!(narrow <= capacity, "{narrow} narrow rows of {capacity}");
            let own = Self {
                slot,
                capacity,
                first,
                narrow,
                wide,
            };
            slot += capacity;
            first += narrow;
            wide += capacity - narrow;
            own
        };
        heads.map(own).collect()
    }

    /// The row of the layer's buffer that is this physical row of the head.
    pub(super) fn buffer_row(&self, physical_row: usize) -> usize {
        assert!(
            physical_row < self.capacity,
            "physical row {physical_row} of a head that holds {}",
            self.capacity
        );
        match physical_row.checked_sub(self.narrow) {
            None => self.first + physical_row,
            Some(wide) => self.wide + wide,
        }
    }
}
