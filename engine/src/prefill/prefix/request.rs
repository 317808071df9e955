//! Methods' requests that a vault can serve.

use kept_policies::PromptShape;

use crate::plan::PrefillPlan;
use kept_vault::StoredMeasurement;

/// Measurements and queries that methods request and a vault may hold.
pub(super) struct MeasurementRequest {
    /// Number of last queries of the prompt.
    pub(super) query_rows: usize,
    /// Measurements requested in at least one layer.
    pub(super) measurements: Vec<StoredMeasurement>,
    /// Measurements requested in every layer that a method compacts.
    pub(super) everywhere: Vec<StoredMeasurement>,
}

impl MeasurementRequest {
    pub(super) fn new(plan: &PrefillPlan, prompt: &PromptShape) -> Self {
        let of_layer: Vec<Vec<StoredMeasurement>> = (plan.needs.iter())
            .map(|needs| {
                let sums = needs.column_sums.then_some(StoredMeasurement::ColumnSums);
                let expected_queries = needs
                    .expected_queries
                    .map(StoredMeasurement::of_expected_queries);
                let reconstruction = needs
                    .reconstruction
                    .filter(|_| plan.reconstruction_plan.is_some());
                let reconstruction =
                    reconstruction.map(|r| StoredMeasurement::of_reconstruction(r, prompt.before));
                let scores = needs.score_cache.map(StoredMeasurement::of_scores);
                (sums
                    .into_iter()
                    .chain(expected_queries)
                    .chain(reconstruction)
                    .chain(scores))
                .collect()
            })
            .collect();
        let mut measurements: Vec<StoredMeasurement> = Vec::new();
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
