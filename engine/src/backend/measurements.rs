//! Measurements of one layer on the host, allocated before the prefill begins.

use crate::observe::MeasurementBuffers;
use crate::plan::PrefillPlan;

/// What methods and the vault read of one layer; reused for all layers.
pub struct LayerMeasurements {
    /// `[w, q_heads, head_dim]`: rotated queries of the observation window, if any, as far as they are on the host.
    pub window_queries: Vec<f32>,
    /// `[q_heads, n]`: attention of the observation window.
    pub window_scores: Vec<f32>,
    /// `[q_heads, n]`: attention of all rows, if a method needs it.
    pub column_sums: Vec<f32>,
    /// Measurements that only some methods need.
    pub measured: MeasurementBuffers,
    /// Size of `measured` at its largest, plus other memory for some methods, in floats (4 bytes).
    measured_floats: usize,
}

impl LayerMeasurements {
    /// Allocates the buffers for methods of these plans on one prefill.
    pub fn new(plans: &[PrefillPlan]) -> Self {
        let most = |size: fn(&PrefillPlan) -> usize| plans.iter().map(size).max().unwrap_or(0);
        Self {
            window_queries: Vec::with_capacity(most(PrefillPlan::window_queries)),
            window_scores: Vec::with_capacity(most(PrefillPlan::window_scores)),
            column_sums: Vec::with_capacity(most(PrefillPlan::column_sums)),
            measured: MeasurementBuffers::default(),
            measured_floats: most(|plan| plan.measured() + plan.other_scratch()),
        }
    }

    /// Bytes of all buffers.
    pub fn bytes(&self) -> u64 {
        let floats = self.window_queries.capacity()
            + self.window_scores.capacity()
            + self.column_sums.capacity()
            + self.measured_floats;
        (floats * size_of::<f32>()) as u64
    }
}
