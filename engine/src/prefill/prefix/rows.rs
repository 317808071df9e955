//! The rows of the prefix, as a backend loads and writes them.

use std::ops::Range;

use kept_kernels::{RowStore, Stop};
use kept_vault::{LayerElements, VaultError, VaultRows};

use super::Prefix;
use super::writing::write_packed;
use crate::backend::PrefixRows;

impl PrefixRows for Prefix {
    fn begin_layer(
        &mut self,
        layer: usize,
        rows: &mut dyn VaultRows,
        stop: &Stop,
    ) -> Result<(), VaultError> {
        self.queries.clear();
        self.elements = LayerElements::default();
        self.begin_document(layer, rows, stop)?;
        if let Some(turns) = &mut self.turns
            && let Some(error) = turns.begin_layer(layer, rows, stop)?
        {
            self.notes.extend(error.turns_unwritten());
        }
        Ok(())
    }

    fn state(&self) -> Option<&[f32]> {
        let turns = self.turns.as_ref().map(|turns| turns.state.as_slice());
        let own = Some(self.elements.state.as_slice()).filter(|_| self.known > 0);
        let mut states = [turns, own].into_iter().flatten();
        states.find(|state| !state.is_empty())
    }

    fn write_rows(&mut self, keys: &RowStore, values: &RowStore, which: Range<usize>) {
        if let Some(turns) = self.turns.as_mut().filter(|_| which.start >= self.tokens) {
            let written = turns.write_rows(keys, values, which);
            return self.note_turns(written);
        }
        let Some(writer) = &mut self.writer else {
            return;
        };
        if let Err(error) = writer.rows(keys, values, which) {
            self.give_up_writing(&error);
        }
    }

    fn write_packed(&mut self, first: usize, packed: &[u8]) {
        if let Some(turns) = self.turns.as_mut().filter(|_| first >= self.tokens) {
            let written = turns.write_packed(first, packed);
            return self.note_turns(written);
        }
        let Some(writer) = &mut self.writer else {
            return;
        };
        if let Err(error) = write_packed(writer, first, packed) {
            self.give_up_writing(&error);
        }
    }
}
