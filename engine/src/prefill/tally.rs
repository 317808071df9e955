//! What is in use while reading, told as it grows.

use kept_models::{Model, RopeTable};

use crate::compact::CompactLayer;
use crate::sizes::{Sizes, full_cache_bytes};
use crate::watch::ProgressMeter;
use crate::{MemoryNow, Watch};

/// What is in use while reading: the same scratch all the time, and ever more kept rows.
pub(super) struct Tally {
    now: MemoryNow,
}

impl Tally {
    pub(super) fn new(sizes: &Sizes, model: &Model, rope: &RopeTable) -> Self {
        let ledger = sizes.ledger(model);
        Self {
            now: MemoryNow {
                weights: ledger.weights,
                kept_full: full_cache_bytes(model.config(), sizes.tokens),
                scratch: ledger.reading() + rope.bytes(),
                ..MemoryNow::default()
            },
        }
    }

    pub(super) fn cut(&mut self, layer: &CompactLayer) {
        self.now.kept += layer.live_bytes();
        self.now.tables += layer.table_bytes();
        self.now.scratch += layer.allocated_bytes() - layer.live_bytes();
    }

    pub(super) fn report(
        &self,
        meter: &mut ProgressMeter,
        steps_done: usize,
        watch: &mut dyn Watch,
    ) {
        if let Some(progress) = meter.after(steps_done) {
            watch.progress(&progress, &self.now);
        }
    }
}
