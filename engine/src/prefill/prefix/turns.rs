//! The vault's part in the earlier turns of a conversation, which follow the document in the prompt.
//!
//! ```text
//! prompt   template document | turn 0 | turn 1 | turn 2 | question tail
//!          known             | known           | read, and stored
//! ```
//!
//! The rows of all turns of a conversation are one file, which replaces that of the conversation with fewer turns. They
//! are only of use if all rows of the document are known. Each turn is read by itself, in chunks of its own: so its rows
//! are the same, whichever turns before it were just read.

use std::ops::Range;

use kept_kernels::{RowStore, Stop};
use kept_vault::{
    Vault, VaultAccess, VaultError, VaultFolder, VaultKey, VaultRows, VaultShape, VaultWriter,
    shared,
};

use super::loading::Tee;
use super::{fits_model, rows_shape};
use crate::prefill::input::PrefillTask;

/// The state of the vault of a conversation in one prefill.
pub(super) struct TurnRows {
    /// Ends of the turns, ascending.
    pub(super) ends: Vec<usize>,
    /// Tokens with known rows, those of the document included; 0 without `vault`.
    pub(super) known: usize,
    /// The vault that is read, if any.
    vault: Option<Vault>,
    writer: Option<VaultWriter>,
    folder: VaultFolder,
    /// The state of the current layer after the known turns, if it is recurrent.
    pub(super) state: Vec<f32>,
}

impl TurnRows {
    /// Finds the vault of the conversation, whose first turn begins at `from`, and begins a new one if a turn is not
    /// in it. `latest`: the last token whose rows may come from a vault, because the queries after it are needed.
    pub(super) fn open(
        access: &VaultAccess<'_>,
        input: PrefillTask<'_>,
        from: usize,
        latest: usize,
        notes: &mut Vec<String>,
    ) -> Option<Self> {
        let end = *access.turns.last()?;
        let (ids, kind) = (&input.ids[..end], access.vaults.kind);
        let (folder, key) = (
            access.vaults.folder,
            VaultKey::of_turns(access.model, input.rope, ids, kind),
        );
        let mut turns = Self {
            ends: access.turns.to_vec(),
            known: 0,
            vault: None,
            writer: None,
            folder: folder.clone(),
            state: Vec::new(),
        };
        if !access.rebuild {
            match folder.find(&key, ids) {
                Ok(Some(vault)) if fits_model(&vault, input.model) => {
                    turns.use_vault(vault, ids, from, latest);
                }
                Ok(_) => {}
                Err(error) => notes.push(error.unread()),
            }
        }
        let stored = turns.vault.as_ref().map_or(0, |vault| {
            folder.record_use(vault);
            shared(vault.ids(), ids)
        });
        if stored < end {
            let shape = VaultShape {
                from: Some(from),
                ..rows_shape(input.model, end, kind)
            };
            match folder.begin(&key, access.document, input.model.name(), shape) {
                Ok(writer) => turns.writer = Some(writer),
                Err(error) => notes.extend(error.turns_unwritten()),
            }
        }
        Some(turns)
    }

    /// Determines how many turns of `vault` can be used.
    fn use_vault(&mut self, vault: Vault, ids: &[u32], from: usize, latest: usize) {
        if vault.shape().from != Some(from) {
            return;
        }
        let most = shared(vault.ids(), ids).min(latest);
        // A state is that after all tokens of the vault.
        let whole = |end: usize| vault.shape().state == 0 || end == vault.shape().tokens;
        let known = self.ends.iter();
        let known = known.filter(|&&end| end <= most && whole(end)).max();
        if let Some(&known) = known {
            self.known = known;
            self.vault = Some(vault);
        }
    }

    /// End of the last turn.
    pub(super) fn end(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Whether a vault is being written.
    pub(super) fn writes(&self) -> bool {
        self.writer.is_some()
    }

    /// Bytes of the buffers.
    pub(super) fn buffer_bytes(&self) -> u64 {
        let reading = |vault: &Vault| Vault::buffer_bytes() + size_of_val(vault.ids()) as u64;
        self.vault.as_ref().map_or(0, reading)
            + self
                .writer
                .as_ref()
                .map_or(0, |_| VaultWriter::buffer_bytes())
    }

    /// Passes the known rows of `layer` to `rows` and to the vault that is written. Returns the error of writing, after
    /// which nothing more is written.
    pub(super) fn begin_layer(
        &mut self,
        layer: usize,
        rows: &mut dyn VaultRows,
        stop: &Stop,
    ) -> Result<Option<VaultError>, VaultError> {
        let Some(vault) = &mut self.vault else {
            return Ok(None);
        };
        let mut tee = Tee {
            rows,
            writer: self.writer.as_mut(),
            outcome: Ok(()),
            stop,
        };
        self.state = vault.layer(layer, self.known, &mut tee)?.state;
        let outcome = tee.outcome;
        Ok(outcome.err().inspect(|_| self.writer = None))
    }

    /// Writes the rows `which` of a layer, row == position.
    ///
    /// # Errors
    /// As [`VaultWriter::rows`]; nothing more is written then.
    pub(super) fn write_rows(
        &mut self,
        keys: &RowStore,
        values: &RowStore,
        which: Range<usize>,
    ) -> Result<(), VaultError> {
        self.writing(|writer| writer.rows(keys, values, which))
    }

    /// As [`TurnRows::write_rows`], for packed rows as in `Prefix::write_packed`.
    pub(super) fn write_packed(&mut self, first: usize, packed: &[u8]) -> Result<(), VaultError> {
        self.writing(|writer| super::writing::write_packed(writer, first, packed))
    }

    fn writing(
        &mut self,
        write: impl FnOnce(&mut VaultWriter) -> Result<(), VaultError>,
    ) -> Result<(), VaultError> {
        let written = self.writer.as_mut().map_or(Ok(()), write);
        written.inspect_err(|_| self.writer = None)
    }

    /// Ends a layer after its last turn, with the `state` of a recurrent layer. After a stop, the vault is discarded.
    ///
    /// # Errors
    /// As [`VaultWriter::elements`]; nothing more is written then.
    pub(super) fn end_layer(
        &mut self,
        state: Option<[&[f32]; 2]>,
        stop: &Stop,
    ) -> Result<(), VaultError> {
        if stop.is_requested() {
            self.writer = None;
        }
        self.writing(|writer| {
            for elements in state.iter().flatten() {
                writer.elements(elements)?;
            }
            writer.end_layer();
            Ok(())
        })
    }

    /// Ends the prefill of `ids`: the written file becomes the vault of the conversation, in place of that of the
    /// conversation with fewer turns.
    pub(super) fn finish(&mut self, ids: &[u32]) -> Result<(), VaultError> {
        let Some(writer) = self.writer.take() else {
            return Ok(());
        };
        writer.finish(&ids[..self.end()])?;
        let continued = (self.vault.take()).filter(|vault| ids.starts_with(vault.ids()));
        // An open file cannot be removed.
        let key = continued.and_then(|vault| vault.key());
        key.iter().for_each(|key| self.folder.remove_or_warn(key));
        Ok(())
    }
}
