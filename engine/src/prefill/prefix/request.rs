//! Methods' requests that a vault can serve.

use kept_policies::PromptShape;

use crate::plan::PrefillPlan;
use kept_vault::Measurement;

/// Measurements and queries that methods request and a vault may hold.
pub(super) struct MeasurementRequest {
    /// Number of last queries of the prompt.
    pub(super) query_rows: usize,
    /// Measurements requested in at least one layer.
    pub(super) measurements: Vec<Measurement>,
    /// Measurements requested in every layer that a method compacts.
    pub(super) everywhere: Vec<Measurement>,
}

impl MeasurementRequest {
    pub(super) fn new(plan: &PrefillPlan, prompt: &PromptShape) -> Self {
        let of_layer: Vec<Vec<Measurement>> = (plan.needs.iter())
            .map(|needs| {
                let sums = needs.column_sums.then_some(Measurement::ColumnSums);
                let future = needs.future.map(Measurement::of_future);
                let reconstruction = needs
                    .reconstruction
                    .filter(|_| plan.reconstruction_plan.is_some());
                let reconstruction =
                    reconstruction.map(|r| Measurement::of_reconstruction(r, prompt.before));
                let scores = needs.score_cache.map(Measurement::of_scores);
                (sums
                    .into_iter()
                    .chain(future)
                    .chain(reconstruction)
                    .chain(scores))
                .collect()
            })
            .collect();
        let mut measurements: Vec<Measurement> = Vec::new();
        for measurement in of_layer.iter().flatten() {
            if !measurements.contains(measurement) {
                measurements.push(*measurement);
            }
        }
        let everywhere = measurements.iter().copied();
        let everywhere = everywhere.filter(|m| of_layer.iter().all(|layer| layer.contains(m)));
        let query_rows = plan.needs.iter().map(|needs| needs.query_rows());
        Self {
            query_rows: query_rows.max().unwrap_or(0),
            everywhere: everywhere.collect(),
            measurements,
        }
    }
}
