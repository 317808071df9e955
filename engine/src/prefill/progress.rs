//! Progress and memory in use during prefill.

use kept_models::{Model, RopeTable};

use crate::compact::CompactLayer;
use crate::plan::{PrefillPlan, full_cache_bytes};
use crate::progress_meter::ProgressMeter;
use crate::{Event, MemoryNow, Phase};

/// Progress over all passes of one prompt, and memory in use: constant scratch buffers and a growing number
/// of kept rows.
pub(super) struct ReadingProgress {
    now: MemoryNow,
    meter: ProgressMeter,
    /// Rows that have passed a layer, over all layers.
    passed: usize,
    /// `[layers]`: growth of the method's own state in bytes, per layer.
    method: Vec<u64>,
}

impl ReadingProgress {
    pub(super) fn new(plan: &PrefillPlan, model: &Model, rope: &RopeTable) -> Self {
        let ledger = plan.ledger(model);
        let layers = plan.row_plan.rows.len() as u64;
        let bytes_after = |layer: u64| plan.row_plan.bytes * layer / layers;
        Self {
            method: (0..layers)
                .map(|l| bytes_after(l + 1) - bytes_after(l))
                .collect(),
            now: MemoryNow {
                weights: ledger.weights,
                kept_full: full_cache_bytes(model.config(), plan.tokens(), plan.cache),
                scratch: ledger.reading() + rope.bytes(),
                ..MemoryNow::default()
            },
            meter: ProgressMeter::new(Phase::Reading, plan.tokens_read(), plan.steps())
                .with_vault_tokens(plan.known),
            passed: 0,
        }
    }

    /// Adds the memory of a compacted layer; `layer` is its index among the method's layers, if it has one.
    pub(super) fn add_layer(&mut self, layer: Option<usize>, compressed: &CompactLayer) {
        let method = layer.map_or(0, |layer| self.method[layer]);
        self.now.kept += compressed.live_bytes();
        self.now.tables += compressed.table_bytes() + method;
        self.now.scratch += compressed.allocated_bytes() - compressed.live_bytes();
    }

    /// Adds `rows` rows that have passed a layer.
    pub(super) fn add_rows(&mut self, rows: usize, watch: &mut dyn FnMut(Event<'_>)) {
        self.passed += rows;
        if let Some(progress) = self.meter.progress_if_due(self.passed) {
            watch(Event::Progress(progress, self.now));
        }
    }
}
