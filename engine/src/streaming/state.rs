//! A streamed reading at a document's end, before any question: left in the vaults' folder, so that the next question goes on from there.
//!
//! What a layer keeps depends on nothing behind the document, and reading makes a new chunk begin there in any case: an answer is to the
//! bit what it is when everything is read anew.

use kept_kernels::Stop;
use kept_models::RopeTable;
use kept_policies::Snapshot;

use super::{Stream, StreamLayer, StreamPlan};
use crate::vault::{EndOf, FEW_SHARED, VaultError, VaultFolder, VaultKey, Vaults};
use crate::{Engine, Method};

impl Stream<'_> {
    /// Shows every layer's numbers and the method's.
    fn snapshot(&mut self, through: &mut dyn Snapshot) {
        for layer in &mut self.layers {
            match layer {
                StreamLayer::Cut(_, kept) => kept.snapshot(through),
                StreamLayer::Ring(ring) => ring.snapshot(through),
            }
        }
        self.policy.snapshot(through);
    }
}

/// The place of a document's end in the vaults' folder.
pub(crate) struct End<'a> {
    folder: &'a VaultFolder,
    key: VaultKey,
    /// Tokens up to it.
    tokens: usize,
}

impl Engine {
    /// Where the end of a document is, of which `ids` are the tokens and all that stands before it, read by `method` as `plan` says; `None`
    /// where nothing is kept, or the document is as short as that.
    pub(crate) fn end_of<'a>(
        &self,
        vaults: Option<Vaults<'a>>,
        ids: &[u32],
        (method, plan): (&Method, &StreamPlan),
    ) -> Option<End<'a>> {
        let vaults = vaults.filter(|_| ids.len() >= FEW_SHARED)?;
        let rope = RopeTable::frequencies_of(self.model().config(), plan.positions);
        let mut parameters: Vec<_> = method.parameters.iter().collect();
        parameters.sort();
        let how = format!("{} {parameters:?} {}", method.name, plan.of_any_text());
        Some(End {
            folder: vaults.folder,
            key: VaultKey::of_end(self.print(), &rope, ids, &how),
            tokens: ids.len(),
        })
    }
}

impl End<'_> {
    /// Whether it was left.
    pub(crate) fn is_known(&self) -> bool {
        self.folder.has_end(&self.key)
    }

    /// Tokens up to it.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Puts `stream`, which has read nothing, where it was left; gives the bytes of its file, if there is one.
    ///
    /// # Errors
    /// What is wrong with the file, or that `stop` was requested: `stream` and its policy are then anything.
    pub(super) fn recall(
        &self,
        stream: &mut Stream<'_>,
        stop: &Stop,
    ) -> Result<Option<u64>, VaultError> {
        let walk = &mut |through: &mut dyn Snapshot| stream.snapshot(through);
        let found = self.folder.recall_end(&self.key, walk, stop)?;
        if found.is_some() {
            stream.seen = self.tokens;
        }
        Ok(found)
    }

    /// Leaves it: `stream` has read this far. Gives the bytes of its file.
    ///
    /// # Errors
    /// A full disk, for one, or that `stop` was requested.
    pub(super) fn leave(
        &self,
        stream: &mut Stream<'_>,
        (document, method): (&str, &str),
        stop: &Stop,
    ) -> Result<u64, VaultError> {
        let of = EndOf {
            document: document.to_owned(),
            model: stream.model.name().to_owned(),
            tokens: self.tokens,
            how: format!("{} rows a head by {method}", stream.plan.rows),
        };
        let walk = &mut |through: &mut dyn Snapshot| stream.snapshot(through);
        self.folder.leave_end(&self.key, of, walk, stop)
    }
}
