//! What a reading leaves in the vault.

use std::ops::Range;

use kept_kernels::{RowStore, Stop};
use kept_policies::ScoreCacheKey;

use super::Prefix;
use crate::observe::Measured;
use crate::vault::{Measurement, Numbers, RowsOf, VaultError, VaultWriter};

/// What a layer's reading came to, for the vault.
pub(in crate::prefill) struct Learned<'a> {
    /// Keys and values, row == position; `None` where they were left as they were read ([`Prefix::leave`]).
    pub(in crate::prefill) rows: Option<(&'a RowStore, &'a RowStore)>,
    /// Tokens of the prompt.
    pub(in crate::prefill) tokens: usize,
    /// `[q_heads, tokens]`: of the prefix's rows.
    pub(in crate::prefill) column_sums: &'a [f32],
    pub(in crate::prefill) measured: &'a Measured,
    /// `[kv_heads, tokens]`
    pub(in crate::prefill) reconstruction: &'a [f32],
}

impl Prefix {
    /// Whether anything goes to a vault.
    pub(in crate::prefill) fn writes(&self) -> bool {
        self.writer.is_some()
    }

    /// Hears the rotated queries `[rows, q_heads, head_dim]` of tokens that were just read, from `first` on.
    pub(in crate::prefill) fn hear_queries(&mut self, first: usize, queries: &[f32]) {
        let Some(writer) = &self.writer else { return };
        let from = self.tokens - writer.shape().queries;
        let end = (queries.len() / self.width).min(self.tokens.saturating_sub(first));
        let skip = from.saturating_sub(first).min(end);
        self.queries
            .extend_from_slice(&queries[skip * self.width..end * self.width]);
    }

    /// Whether the queries of the tokens `rows` are among those that are kept.
    pub(in crate::prefill) fn wants_queries(&self, rows: &Range<usize>) -> bool {
        (self.writer.as_ref()).is_some_and(|writer| {
            let from = self.tokens - writer.shape().queries;
            rows.start < self.tokens && from < rows.end
        })
    }

    /// Leaves rows of the tokens from `first` on in the vault: keys, then values, `packed [2, kv_heads, count, row_bytes]`. What cannot be
    /// written is noted, and not tried again.
    pub(in crate::prefill) fn leave(&mut self, first: usize, packed: &[u8]) {
        let Some(writer) = &mut self.writer else {
            return;
        };
        let heads = writer.shape().heads.kv_heads;
        let head_bytes = (packed.len() / (2 * heads)).max(1);
        let parts = RowsOf::BOTH.into_iter();
        let parts = parts.flat_map(|of| (0..heads).map(move |head| (of, head)));
        let written = parts
            .zip(packed.chunks_exact(head_bytes))
            .try_for_each(|(of, packed)| writer.packed(of, first, packed));
        if let Err(error) = written {
            self.give_up_writing(&error);
        }
    }

    /// Ends a layer, all of whose prefix has been read: writes what is not there yet, but for scores that the method is still to give
    /// ([`Prefix::end_scored`]). What cannot be written is noted, and not tried again.
    /// After a stop nothing is left any more.
    pub(in crate::prefill) fn end_layer(
        &mut self,
        layer: usize,
        learned: &Learned<'_>,
        stop: &Stop,
    ) {
        let Some(mut writer) = self.writer.take() else {
            return;
        };
        match self.write_layer(&mut writer, layer, learned, stop) {
            Ok(()) if stop.is_requested() => {}
            Ok(()) => self.writer = Some(writer),
            Err(error) => self.note_unwritten(&error),
        }
    }

    fn write_layer(
        &self,
        writer: &mut VaultWriter,
        layer: usize,
        learned: &Learned<'_>,
        stop: &Stop,
    ) -> Result<(), VaultError> {
        if let Some((keys, values)) = learned.rows {
            let at_once = writer.rows_at_once();
            for first in (self.known..self.tokens).step_by(at_once) {
                if stop.is_requested() {
                    return Ok(());
                }
                writer.rows(keys, values, first..self.tokens.min(first + at_once))?;
            }
        }
        let shape = writer.shape().clone();
        if shape.windows[layer].is_none() {
            writer.numbers(&self.queries)?;
            for measurement in shape.measurements {
                match (measurement, self.stored(measurement)) {
                    // What is there of this very document is not measured again, or came out the same.
                    (_, Some(Numbers::Single(stored))) if self.same => writer.numbers(stored)?,
                    (_, Some(Numbers::Double(stored))) if self.same => writer.sums(stored)?,
                    (Measurement::ColumnSums, _) => {
                        let sums = learned.column_sums.chunks_exact(learned.tokens);
                        for sums in sums {
                            writer.numbers(&sums[..self.tokens])?;
                        }
                    }
                    (Measurement::QuerySums { skip, products }, _) => {
                        writer.sums(&learned.measured.sums(skip, products))?;
                    }
                    (Measurement::Repetition { .. }, _) => {
                        for scores in learned.reconstruction.chunks_exact(learned.tokens) {
                            writer.numbers(&scores[..self.tokens])?;
                        }
                    }
                    // The last ones there are.
                    (Measurement::Scores { .. }, _) => return Ok(()),
                }
            }
        }
        writer.end_layer();
        Ok(())
    }

    /// Whether a layer's end waits for these scores.
    pub(in crate::prefill) fn awaits(&self, score_cache: ScoreCacheKey) -> bool {
        let request = Measurement::of_scores(score_cache);
        let writes = |writer: &VaultWriter| writer.shape().measurements.contains(&request);
        let there = self.same && self.stored(request).is_some();
        self.writer.as_ref().is_some_and(writes) && !there
    }

    /// Ends a layer that waited for its scores `[kv_heads][tokens]`.
    pub(in crate::prefill) fn end_scored(&mut self, scores: &[Vec<f32>]) {
        let Some(writer) = &mut self.writer else {
            return;
        };
        let mut heads = scores.iter();
        match heads.try_for_each(|head| writer.numbers(&head[..self.tokens])) {
            Ok(()) => writer.end_layer(),
            Err(error) => self.give_up_writing(&error),
        }
    }

    /// Ends a reading of `ids`: what was written becomes the document's vault.
    pub(in crate::prefill) fn end(&mut self, ids: &[u32]) {
        let Some(writer) = self.writer.take() else {
            return;
        };
        match writer.finish(&ids[..self.tokens]) {
            Ok(bytes) => {
                self.bytes = bytes;
                self.written = true;
            }
            Err(error) => self.note_unwritten(&error),
        }
    }

    /// Goes on without the vault that was being made.
    pub(super) fn give_up_writing(&mut self, error: &VaultError) {
        self.writer = None;
        self.note_unwritten(error);
    }

    pub(super) fn note_unwritten(&mut self, error: &VaultError) {
        self.notes.push(error.unwritten(self.same));
    }
}
