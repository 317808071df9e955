//! Saving a layer's state and restoring it into a layer that was built in the same way.

use kept_policies::{Row, Snapshot};

use super::CompactLayer;
use super::snapshot::{snapshot_positions, snapshot_rows};

impl CompactLayer {
    /// Passes all mutable state of the layer to `through`.
    pub(crate) fn snapshot(&mut self, through: &mut dyn Snapshot) {
        snapshot_rows(&mut self.keys, through);
        snapshot_rows(&mut self.values, through);
        snapshot_positions(&mut self.positions, through);
        through.words(&mut self.ranks);
        for head in 0..self.rows.len() {
            let capacity = self.keys.capacity(head);
            through.count(&mut self.rows[head], capacity);
            // 0 if the head has no hole.
            let mut hole = self.hole[head].map_or(0, |Row(row)| row as usize + 1);
            through.count(&mut hole, capacity);
            self.hole[head] = hole.checked_sub(1).map(|row| Row(row as u32));
        }
        if let Some(classes) = &mut self.classes {
            classes.snapshot(through);
        }
    }
}
