//! Numbers that a method keeps per slot of the cache during decode: one list per layer and KV head.
//!
//! `set` allocates all memory, during prefill; a decode step allocates nothing.

use crate::{ModelShape, Pos, Snapshot};

/// `[layers][kv_heads, capacity]`: one number per slot.
#[derive(Debug, Clone)]
pub(crate) struct SlotNumbers {
    layers: Vec<Vec<f32>>,
    kv_heads: usize,
    capacity: usize,
}

impl SlotNumbers {
    /// No numbers yet; a head will fill at most `capacity` slots.
    pub(crate) fn new(model: &ModelShape, capacity: usize) -> Self {
        Self {
            layers: vec![Vec::new(); model.layers],
            kv_heads: model.kv_heads,
            capacity,
        }
    }

    /// Bytes of the numbers after every layer is set.
    pub(crate) fn bytes(&self) -> u64 {
        (self.layers.len() * self.kv_heads * self.capacity * size_of::<f32>()) as u64
    }

    /// Sets the numbers of `layer`: slot i of a head gets `values(head, position)` of the head's i-th kept position.
    pub(crate) fn set(
        &mut self,
        layer: usize,
        kept: &[Vec<Pos>],
        values: impl Fn(usize, usize) -> f32,
    ) {
        let mut numbers = vec![0.0; kept.len() * self.capacity];
        for (head, positions) in kept.iter().enumerate() {
            let slots = &mut numbers[head * self.capacity..][..self.capacity];
            for (slot, pos) in slots.iter_mut().zip(positions) {
                *slot = values(head, pos.0 as usize);
            }
        }
        self.layers[layer] = numbers;
    }

    /// Sets the numbers of layers that are not set yet to 0.
    pub(crate) fn set_missing(&mut self) {
        let length = self.kv_heads * self.capacity;
        let missing = self.layers.iter_mut().filter(|layer| layer.is_empty());
        missing.for_each(|layer| *layer = vec![0.0; length]);
    }

    /// Saves or restores the numbers of all layers that are set.
    pub(crate) fn snapshot(&mut self, through: &mut dyn Snapshot) {
        for layer in &mut self.layers {
            through.floats(layer);
        }
    }

    /// The numbers of the first `rows` slots of a head.
    pub(crate) fn of(&mut self, layer: usize, head: usize, rows: usize) -> &mut [f32] {
        &mut self.layers[layer][head * self.capacity..][..rows]
    }
}

/// The slot with the lowest number among those whose position `may_go` accepts. On equal numbers the later position, so
/// that the earlier one is kept, as in every method.
pub(crate) fn lowest(
    numbers: &[f32],
    positions: &[Pos],
    may_go: impl Fn(Pos) -> bool,
) -> Option<usize> {
    (0..positions.len())
        .filter(|&slot| may_go(positions[slot]))
        .min_by(|&a, &b| {
            numbers[a]
                .total_cmp(&numbers[b])
                .then(positions[b].cmp(&positions[a]))
        })
}
