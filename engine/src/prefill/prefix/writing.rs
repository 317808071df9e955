//! Writing a vault during prefill.

use std::ops::Range;

use kept_kernels::Stop;
use kept_policies::ScoreCacheKey;

use super::Prefix;
use crate::observe::MeasurementBuffers;
use kept_vault::{MeasuredValues, RowsOf, StoredMeasurement, StoredRows, VaultError, VaultWriter};

/// A layer's results that the vault may store.
pub(in crate::prefill) struct MeasuredForVault<'a> {
    /// Tokens of the prompt.
    pub(in crate::prefill) tokens: usize,
    /// `[q_heads, tokens]`: column sums over the prefix's rows.
    pub(in crate::prefill) column_sums: &'a [f32],
    pub(in crate::prefill) buffers: &'a MeasurementBuffers,
    /// `[kv_heads, tokens]`
    pub(in crate::prefill) reconstruction: &'a [f32],
    /// The state of a recurrent layer after the prefix.
    pub(in crate::prefill) state: Option<[&'a [f32]; 2]>,
}

impl Prefix {
    /// Whether the document's vault is being written.
    pub(in crate::prefill) fn writes_document(&self) -> bool {
        self.writer.is_some()
    }

    /// Stores the rotated queries `[rows, q_heads, head_dim]` of the tokens from `first` on, as far as the
    /// vault keeps them.
    pub(in crate::prefill) fn store_queries(&mut self, first: usize, queries: &[f32]) {
        let Some(writer) = &self.writer else { return };
        let from = self.tokens - writer.shape().queries;
        let end = (queries.len() / self.width).min(self.tokens.saturating_sub(first));
        let skip = from.saturating_sub(first).min(end);
        self.queries
            .extend_from_slice(&queries[skip * self.width..end * self.width]);
    }

    /// Whether the vault keeps queries of some of the tokens `rows`.
    pub(in crate::prefill) fn wants_queries(&self, rows: &Range<usize>) -> bool {
        (self.writer.as_ref()).is_some_and(|writer| {
            let from = self.tokens - writer.shape().queries;
            rows.start < self.tokens && from < rows.end
        })
    }

    /// Ends a layer after the earlier turns, with the `state` of a recurrent layer. After a stop, their vault is
    /// discarded.
    pub(in crate::prefill) fn end_turns(&mut self, state: Option<[&[f32]; 2]>, stop: &Stop) {
        let turns = self.turns.as_mut();
        let written = turns.map_or(Ok(()), |turns| turns.end_layer(state, stop));
        self.note_turns(written);
    }

    /// Adds a note if the turns could not be written.
    pub(super) fn note_turns(&mut self, written: Result<(), VaultError>) {
        if let Err(error) = written {
            self.notes.extend(error.turns_unwritten());
        }
    }

    /// Ends a layer after its prefix: writes everything that is not yet written, except scores that the
    /// method computes later ([`Prefix::write_scores`]). After an error, writing ends with a note. After a
    /// stop, the vault is discarded.
    pub(in crate::prefill) fn end_layer(
        &mut self,
        layer: usize,
        measured: &MeasuredForVault<'_>,
        stop: &Stop,
    ) {
        let Some(mut writer) = self.writer.take() else {
            return;
        };
        if stop.is_requested() {
            return;
        }
        match self.write_layer(&mut writer, layer, measured) {
            Ok(()) => self.writer = Some(writer),
            Err(error) => self.note_unwritten(&error),
        }
    }

    fn write_layer(
        &self,
        writer: &mut VaultWriter,
        layer: usize,
        measured: &MeasuredForVault<'_>,
    ) -> Result<(), VaultError> {
        let shape = writer.shape().clone();
        for elements in measured.state.iter().flatten() {
            writer.elements(elements)?;
        }
        if shape.windows[layer] == StoredRows::All {
            writer.elements(&self.queries)?;
            for measurement in shape.measurements {
                match (measurement, self.stored(measurement)) {
                    // Values stored for this very document are copied: they were not measured again, or gave
                    // the same result.
                    (_, Some(MeasuredValues::Single(stored))) if self.same => {
                        writer.elements(stored)?
                    }
                    (_, Some(MeasuredValues::Double(stored))) if self.same => {
                        writer.sums(stored)?
                    }
                    (StoredMeasurement::ColumnSums, _) => {
                        let sums = measured.column_sums.chunks_exact(measured.tokens);
                        for sums in sums {
                            writer.elements(&sums[..self.tokens])?;
                        }
                    }
                    (StoredMeasurement::QuerySums { skip, products }, _) => {
                        writer.sums(&measured.buffers.sums(skip, products))?;
                    }
                    (StoredMeasurement::Reconstruction { .. }, _) => {
                        for scores in measured.reconstruction.chunks_exact(measured.tokens) {
                            writer.elements(&scores[..self.tokens])?;
                        }
                    }
                    // Scores are the last measurements of a layer.
                    (StoredMeasurement::Scores { .. }, _) => return Ok(()),
                }
            }
        }
        writer.end_layer();
        Ok(())
    }

    /// Whether the layer waits for these scores of the method.
    pub(in crate::prefill) fn awaits_scores(&self, score_cache: ScoreCacheKey) -> bool {
        let request = StoredMeasurement::of_scores(score_cache);
        let writes = |writer: &VaultWriter| writer.shape().measurements.contains(&request);
        let stored = self.same && self.stored(request).is_some();
        self.writer.as_ref().is_some_and(writes) && !stored
    }

    /// Ends a layer with the method's scores `[kv_heads][tokens]`.
    pub(in crate::prefill) fn write_scores(&mut self, scores: &[Vec<f32>]) {
        let Some(writer) = &mut self.writer else {
            return;
        };
        let mut heads = scores.iter();
        match heads.try_for_each(|head| writer.elements(&head[..self.tokens])) {
            Ok(()) => writer.end_layer(),
            Err(error) => self.give_up_writing(&error),
        }
    }

    /// Ends the prefill of `ids`: the written file becomes the document's vault.
    pub(in crate::prefill) fn end(&mut self, ids: &[u32]) {
        match self.writer.take().map(|w| w.finish(&ids[..self.tokens])) {
            Some(Ok(bytes)) => {
                self.bytes = bytes;
                self.written = true;
            }
            Some(Err(error)) => self.note_unwritten(&error),
            None => {}
        }
        let written = self
            .turns
            .as_mut()
            .map_or(Ok(()), |turns| turns.finish(ids));
        self.note_turns(written);
    }

    /// Discards the vault that is being written.
    pub(super) fn give_up_writing(&mut self, error: &VaultError) {
        self.writer = None;
        self.note_unwritten(error);
    }

    pub(super) fn note_unwritten(&mut self, error: &VaultError) {
        self.notes.push(error.unwritten(self.same, self.known));
    }
}

/// Writes rows of the tokens from `first` on: keys, then values, `packed [2, kv_heads, count, row_bytes]`.
pub(super) fn write_packed(
    writer: &mut VaultWriter,
    first: usize,
    packed: &[u8],
) -> Result<(), VaultError> {
    let heads = writer.heads().kv_heads;
    let head_bytes = (packed.len() / (2 * heads)).max(1);
    let sides = RowsOf::BOTH.into_iter();
    let parts = sides.flat_map(|side| (0..heads).map(move |head| (side, head)));
    (parts.zip(packed.chunks_exact(head_bytes)))
        .try_for_each(|((side, head), packed)| writer.packed(side, head, first, packed))
}
