//! Loading from vaults: a layer's known rows, queries and measurements.

use kept_kernels::{PackedRows, Stop};
use kept_policies::{ExpectedQueriesRequest, ScoreCacheKey};
use kept_vault::{MeasuredValues, Run, StoredMeasurement, VaultError, VaultRows, VaultWriter};

use super::Prefix;
use crate::observe::MeasurementBuffers;

impl Prefix {
    /// The document's part of [`PrefixRows::begin_layer`](crate::backend::PrefixRows::begin_layer).
    pub(super) fn begin_document(
        &mut self,
        layer: usize,
        rows: &mut dyn VaultRows,
        stop: &Stop,
    ) -> Result<(), VaultError> {
        let Some(vault) = &mut self.vault else {
            return Ok(());
        };
        // If the document is read again, only measurements may be useful.
        if self.known > 0 || self.writer.is_some() || !self.taken.is_empty() {
            let mut tee = Tee {
                rows,
                writer: self.writer.as_mut(),
                outcome: Ok(()),
                stop,
            };
            self.elements = vault.layer(layer, self.known, &mut tee)?;
            if let Err(error) = tee.outcome {
                self.give_up_writing(&error);
            }
        }
        if let Some(writer) = &self.writer {
            let from = self.tokens - writer.shape().queries;
            let mut queries = std::mem::take(&mut self.queries);
            self.append_queries(from, &mut queries);
            self.queries = queries;
        }
        Ok(())
    }

    /// Appends the stored rotated queries of the known tokens from `from` on, if the layer has some.
    pub(in crate::prefill) fn append_queries(&self, from: usize, out: &mut Vec<f32>) {
        let Some(shape) = &self.shape else { return };
        let first = shape.tokens - shape.queries;
        if from < self.known && !self.elements.queries.is_empty() {
            let stored = from.max(first) - first..self.known - first;
            out.extend_from_slice(
                &self.elements.queries[stored.start * self.width..stored.end * self.width],
            );
        }
    }

    /// Copies the known tokens' column sums into `sums [q_heads, n]`.
    pub(in crate::prefill) fn fill_column_sums(&self, sums: &mut [f32], n: usize) {
        if self.known > 0
            && let Some(stored) = self.stored(StoredMeasurement::ColumnSums)
        {
            copy_columns(stored.single(), sums, n);
        }
    }

    /// Restores the sums over the known tokens' queries.
    pub(in crate::prefill) fn fill_query_sums(
        &self,
        request: ExpectedQueriesRequest,
        measured: &mut MeasurementBuffers,
    ) {
        if self.known > 0
            && let Some(stored) = self.stored(StoredMeasurement::of_expected_queries(request))
        {
            measured.restore(request, self.known, stored.double());
        }
    }

    /// Copies the reconstruction's scores into `scores [kv_heads, n]`; other columns are 0.
    pub(in crate::prefill) fn fill_reconstruction(&self, scores: &mut [f32], n: usize) {
        scores.fill(0.0);
        let mut taken = self.taken.iter().filter(|m| m.is_reconstruction());
        if let Some(stored) = taken.next().and_then(|m| self.stored(*m)) {
            copy_columns(stored.single(), scores, n);
        }
    }

    /// Copies the document's scores into `scores [kv_heads, n]`, 0 after the document. Returns whether the
    /// vault has them.
    pub(in crate::prefill) fn fill_scores(
        &self,
        score_cache: ScoreCacheKey,
        scores: &mut [f32],
        n: usize,
    ) -> bool {
        let measurement = StoredMeasurement::of_scores(score_cache);
        let stored = self
            .taken
            .contains(&measurement)
            .then(|| self.stored(measurement));
        let Some(stored) = stored.flatten() else {
            return false;
        };
        scores.fill(0.0);
        copy_columns(stored.single(), scores, n);
        true
    }

    pub(super) fn stored(&self, measurement: StoredMeasurement) -> Option<&MeasuredValues> {
        self.elements.measurement(self.shape.as_ref()?, measurement)
    }
}

/// Passes rows of a vault to a layer and, if another vault is written, to its writer.
pub(super) struct Tee<'a> {
    pub(super) rows: &'a mut dyn VaultRows,
    pub(super) writer: Option<&'a mut VaultWriter>,
    pub(super) outcome: Result<(), VaultError>,
    pub(super) stop: &'a Stop,
}

impl VaultRows for Tee<'_> {
    fn space(&mut self) -> Option<&mut [u8]> {
        if self.stop.is_requested() {
            None
        } else {
            self.rows.space()
        }
    }

    fn take(&mut self, kind: PackedRows, runs: &[Run]) {
        if let Some(writer) = &mut self.writer
            && let Some(space) = self.rows.space()
        {
            for run in runs {
                if self.outcome.is_ok() {
                    let packed = &space[run.at.clone()];
                    self.outcome = writer.packed(run.side, run.head, run.first, packed);
                }
            }
        }
        self.rows.take(kind, runs);
    }
}

/// Copies `from [heads, stored]` to the first columns of `to [heads, n]`.
fn copy_columns(from: &[f32], to: &mut [f32], n: usize) {
    let stored = from.len() / (to.len() / n).max(1);
    for (to, from) in to.chunks_exact_mut(n).zip(from.chunks_exact(stored.max(1))) {
        to[..stored].copy_from_slice(from);
    }
}
