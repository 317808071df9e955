//! Methods' requests that a vault can serve.

use kept_policies::Needs;

use crate::plan::PrefillPlan;
use kept_vault::StoredMeasurement;

/// Measurements and queries that methods request and a vault may hold.
#[derive(Default)]
pub(super) struct MeasurementRequest {
    /// Number of last queries of the prompt.
    pub(super) query_rows: usize,
    /// Measurements requested in at least one layer.
    pub(super) measurements: Vec<StoredMeasurement>,
    /// Measurements that a method requests in every layer that it compacts.
    pub(super) everywhere: Vec<StoredMeasurement>,
}

impl MeasurementRequest {
    /// The requests of methods that share a prefill. Scores are stored for a method with its own prefill only.
    pub(super) fn new(plans: &[PrefillPlan]) -> Self {
        let mut all = Self::default();
        for plan in plans {
            let of_layer: Vec<Vec<StoredMeasurement>> = (plan.needs.iter())
                .map(|needs| stored(needs, plan, plans.len() == 1))
                .collect();
            for &measurement in of_layer.iter().flatten() {
                if !all.measurements.contains(&measurement) {
                    all.measurements.push(measurement);
                }
                let everywhere = of_layer.iter().all(|layer| layer.contains(&measurement));
                if everywhere && !all.everywhere.contains(&measurement) {
                    all.everywhere.push(measurement);
                }
            }
            let query_rows = plan.needs.iter().map(Needs::query_rows);
            all.query_rows = query_rows.fold(all.query_rows, usize::max);
        }
        all
    }
}

/// What a vault may hold of a layer's `needs`, with or without scores.
fn stored(needs: &Needs, plan: &PrefillPlan, scores: bool) -> Vec<StoredMeasurement> {
    let sums = needs.column_sums.then_some(StoredMeasurement::ColumnSums);
    let expected_queries = (needs.expected_queries).map(StoredMeasurement::of_expected_queries);
    let repeats = plan.reconstruction_plan.is_some();
    let before = plan.row_plan.prompt.before;
    let reconstruction = (needs.reconstruction.filter(|_| repeats))
        .map(|asked| StoredMeasurement::of_reconstruction(asked, before));
    let scores = (needs.score_cache.filter(|_| scores)).map(StoredMeasurement::of_scores);
    [sums, expected_queries, reconstruction, scores]
        .into_iter()
        .flatten()
        .collect()
}
