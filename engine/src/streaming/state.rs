//! The state of a prefill in streaming mode at a document's end, before any question. It is saved in the
//! vaults' folder, so that the next question continues from it. While a long document is read, the state is saved now
//! and then, so that an interrupted reading goes on.
//!
//! A layer's state depends on nothing after the document, and a new chunk always begins there, so an answer
//! from a restored state is bit-identical to one from a new prefill.

use kept_kernels::Stop;
use kept_models::RopeTable;
use kept_policies::Snapshot;

use super::{Stream, StreamLayer};
use crate::plan::StreamPlan;
use crate::{Engine, MethodSpec};
use kept_vault::{
    CheckpointInfo, LoadedCheckpoint, MIN_SHARED_TOKENS, VaultError, VaultFolder, VaultKey, Vaults,
};

impl Stream<'_> {
    /// Passes the state of every layer and of the method to `through`.
    fn snapshot(&mut self, through: &mut dyn Snapshot) {
        for layer in &mut self.layers {
            match layer {
                StreamLayer::Compressed(_, kept) => kept.snapshot(through),
                StreamLayer::Ring(ring) => ring.snapshot(through),
                StreamLayer::State(state) => {
                    for elements in state.elements() {
                        through.floats(elements);
                    }
                }
            }
        }
        if let Some(evictor) = &mut self.evictor {
            evictor.snapshot(through);
        }
    }
}

/// The checkpoint of a document in the vaults' folder: the saved state at its end.
pub(crate) struct StreamCheckpoint<'a> {
    folder: &'a VaultFolder,
    key: VaultKey,
    /// The key of the state of an unfinished reading.
    unfinished: VaultKey,
    /// Number of tokens up to the document's end.
    tokens: usize,
}

impl Engine {
    /// The checkpoint after the tokens `ids`, read with `method` and `plan`; `None` without vaults, or if
    /// the document is too short to be stored.
    pub(crate) fn checkpoint_of<'a>(
        &self,
        vaults: Option<Vaults<'a>>,
        ids: &[u32],
        method: &MethodSpec,
        plan: &StreamPlan,
    ) -> Option<StreamCheckpoint<'a>> {
        let vaults = vaults.filter(|_| ids.len() >= MIN_SHARED_TOKENS)?;
        let rope = RopeTable::frequencies_of(self.model().config(), plan.positions);
        let mut parameters: Vec<_> = method.parameters.iter().collect();
        parameters.sort();
        // The number is that of what methods save of themselves.
        let settings = format!("2 {} {parameters:?} {}", method.name, plan.fingerprint());
        let key =
            |settings: &str| VaultKey::of_checkpoint(self.fingerprint(), &rope, ids, settings);
        Some(StreamCheckpoint {
            folder: vaults.folder,
            key: key(&settings),
            unfinished: key(&format!("unfinished {settings}")),
            tokens: ids.len(),
        })
    }
}

impl StreamCheckpoint<'_> {
    /// Whether a saved state exists.
    pub(crate) fn is_known(&self) -> bool {
        self.folder.has_checkpoint(&self.key)
    }

    /// Number of tokens up to the document's end.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Restores the saved state into `stream`, which has read nothing: of the document's end, or else of an unfinished
    /// reading.
    ///
    /// # Errors
    /// If the file is invalid or `stop` was requested; the state of `stream` is then undefined.
    pub(super) fn restore(
        &self,
        stream: &mut Stream<'_>,
        stop: &Stop,
    ) -> Result<Option<LoadedCheckpoint>, VaultError> {
        let visit = &mut |through: &mut dyn Snapshot| stream.snapshot(through);
        let found = match self.folder.load_checkpoint(&self.key, visit, stop)? {
            None => self.folder.load_checkpoint(&self.unfinished, visit, stop)?,
            found => found,
        };
        if let Some(found) = found {
            stream.seen = found.tokens;
        }
        Ok(found)
    }

    /// Saves the state of `stream`, between two chunks of the document or at its end; returns the bytes of its file.
    ///
    /// # Errors
    /// For example a full disk, or if `stop` was requested.
    pub(super) fn save(
        &self,
        stream: &mut Stream<'_>,
        document: &str,
        method: &str,
        stop: &Stop,
    ) -> Result<u64, VaultError> {
        let (key, unfinished) = if stream.seen < self.tokens {
            (&self.unfinished, ", unfinished")
        } else {
            (&self.key, "")
        };
        let info = CheckpointInfo {
            document: document.to_owned(),
            model: stream.model.name().to_owned(),
            tokens: stream.seen,
            settings: format!("{} rows a head by {method}{unfinished}", stream.plan.rows),
        };
        let visit = &mut |through: &mut dyn Snapshot| stream.snapshot(through);
        let bytes = self.folder.save_checkpoint(key, info, visit, stop)?;
        if key == &self.key {
            self.folder.remove_or_warn(&self.unfinished);
        }
        Ok(bytes)
    }
}
