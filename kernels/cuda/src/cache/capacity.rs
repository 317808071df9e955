//! What a layer of a cache has room for, and where each head's rows are.

use crate::RowKind;

/// What a layer has room for.
#[derive(Debug, Clone)]
pub struct LayerCapacity {
    /// `[kv_heads]`: slots of each head.
    pub capacities: Vec<usize>,
    /// How rows are stored.
    pub kind: RowKind,
    /// `[kv_heads]`: of a quantised kind, places of each head that are stored so; those behind them are f16. Else of no meaning.
    pub narrow: Vec<usize>,
    /// Keys are stored before RoPE, and each slot has a rank.
    pub ranked: bool,
    /// Entries of each head's look-up table; 0 where there is none.
    pub entries: usize,
}

/// Where one head's rows are.
#[derive(Clone, Copy)]
pub(super) struct HeadCapacity {
    /// First slot, in the layer.
    pub(super) slot: usize,
    pub(super) capacity: usize,
    /// First narrow row, and how many.
    pub(super) first: usize,
    pub(super) narrow: usize,
    /// First wide row, counted with all narrow ones before.
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

    /// The row in a place.
    pub(super) fn row(&self, place: usize) -> usize {
        assert!(
            place < self.capacity,
            "place {place} of a head that holds {}",
            self.capacity
        );
        match place.checked_sub(self.narrow) {
            None => self.first + place,
            Some(wide) => self.wide + wide,
        }
    }
}
