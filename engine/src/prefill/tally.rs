//! What is in use while reading, told as it grows.

use kept_models::{Model, RopeTable};

use crate::compact::CompactLayer;
use crate::sizes::{Sizes, full_cache_bytes};
use crate::watch::ProgressMeter;
use crate::{MemoryNow, Phase, Watch};

/// How far reading has come, over all readings of one prompt, and what is in use: the same scratch all the time, and ever more
/// kept rows.
pub(super) struct Tally {
    now: MemoryNow,
    meter: ProgressMeter,
    /// Rows that have passed a layer.
    passed: usize,
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
            meter: ProgressMeter::new(Phase::Reading, sizes.tokens_read(), sizes.steps()),
            passed: 0,
        }
    }

    pub(super) fn cut(&mut self, layer: &CompactLayer) {
        self.now.kept += layer.live_bytes();
        self.now.tables += layer.table_bytes();
        self.now.scratch += layer.allocated_bytes() - layer.live_bytes();
    }

    /// `rows` more rows have passed a layer.
    pub(super) fn passed(&mut self, rows: usize, watch: &mut dyn Watch) {
        self.passed += rows;
        if let Some(progress) = self.meter.after(self.passed) {
            watch.progress(&progress, &self.now);
        }
    }
}
