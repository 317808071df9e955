//! The state of a prefill in streaming mode at a document's end, before any question. It is saved in the
//! vaults' folder, so that the next question continues from it.
//!
//! A layer's state depends on nothing after the document, and a new chunk always begins there, so an answer
//! from a restored state is bit-identical to one from a new prefill.

use kept_kernels::Stop;
use kept_models::RopeTable;
use kept_policies::Snapshot;

use super::{Stream, StreamLayer};
use crate::plan::StreamPlan;
use crate::{Engine, MethodSpec};
use kept_vault::{EndOf, FEW_SHARED, VaultError, VaultFolder, VaultKey, Vaults};

impl Stream<'_> {
    /// Passes the state of every layer and of the method to `through`.
    fn snapshot(&mut self, through: &mut dyn Snapshot) {
        for layer in &mut self.layers {
            match layer {
                StreamLayer::Cut(_, kept) => kept.snapshot(through),
                StreamLayer::Ring(ring) => ring.snapshot(through),
            }
        }
        if let Some(evictor) = &mut self.evictor {
            evictor.snapshot(through);
        }
    }
}

/// The saved state of a document's end in the vaults' folder.
pub(crate) struct End<'a> {
    folder: &'a VaultFolder,
    key: VaultKey,
    /// Number of tokens up to the document's end.
    tokens: usize,
}

impl Engine {
    /// The document's end after the tokens `ids`, read with `method` and `plan`; `None` without vaults, or if
    /// the document is too short to be stored.
    pub(crate) fn end_of<'a>(
        &self,
        vaults: Option<Vaults<'a>>,
        ids: &[u32],
        method: &MethodSpec,
        plan: &StreamPlan,
    ) -> Option<End<'a>> {
        let vaults = vaults.filter(|_| ids.len() >= FEW_SHARED)?;
        let rope = RopeTable::frequencies_of(self.model().config(), plan.positions);
        let mut parameters: Vec<_> = method.parameters.iter().collect();
        parameters.sort();
        let how = format!("{} {parameters:?} {}", method.name, plan.fingerprint());
        Some(End {
            folder: vaults.folder,
            key: VaultKey::of_end(self.print(), &rope, ids, &how),
            tokens: ids.len(),
        })
    }
}

impl End<'_> {
    /// Whether a saved state exists.
    pub(crate) fn is_known(&self) -> bool {
        self.folder.has_end(&self.key)
    }

    /// Number of tokens up to the document's end.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Restores the saved state into `stream`, which has read nothing; returns the bytes of its file, if it
    /// exists.
    ///
    /// # Errors
    /// If the file is invalid or `stop` was requested; the state of `stream` is then undefined.
    pub(super) fn restore(
        &self,
        stream: &mut Stream<'_>,
        stop: &Stop,
    ) -> Result<Option<u64>, VaultError> {
        let walk = &mut |through: &mut dyn Snapshot| stream.snapshot(through);
        let found = self.folder.load_end(&self.key, walk, stop)?;
        if found.is_some() {
            stream.seen = self.tokens;
        }
        Ok(found)
    }

    /// Saves the state of `stream`, which has read the document; returns the bytes of its file.
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
        let of = EndOf {
            document: document.to_owned(),
            model: stream.model.name().to_owned(),
            tokens: self.tokens,
            how: format!("{} rows a head by {method}", stream.plan.rows),
        };
        let walk = &mut |through: &mut dyn Snapshot| stream.snapshot(through);
        self.folder.save_end(&self.key, of, walk, stop)
    }
}
