//! What stays of a document that was read in streaming: every layer as it stood at the document's end, before any question, so that the
//! next question goes on from there. In memory, of the last such document, until another is read or the model is closed.
//!
//! What a layer keeps depends on nothing behind the document, and reading makes a new chunk begin there in any case: an answer is to the
//! bit what it is when everything is read anew.

use std::sync::{Mutex, PoisonError};

use kept_policies::Policy;

use super::{Stream, StreamLayer, StreamPlan};
use crate::Method;

/// A document's layers, and how it was read.
struct Remembered {
    /// The prompt up to the document's end.
    ids: Vec<u32>,
    method: Method,
    plan: StreamPlan,
    layers: Vec<StreamLayer>,
    policy: Box<dyn Policy>,
}

/// Room for one of them.
#[derive(Default)]
pub(crate) struct Memory(Mutex<Option<Remembered>>);

/// A reading that goes on: the method as it stood, and its layers.
pub(super) type Resumed = (Box<dyn Policy>, Vec<StreamLayer>);

impl Memory {
    /// The state at the end of `ids`, if these were read by `method` in this very way.
    pub(super) fn recall(
        &self,
        ids: &[u32],
        method: &Method,
        plan: &StreamPlan,
    ) -> Option<Resumed> {
        let memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = memory.as_ref().filter(|known| {
            known.ids == ids && known.method == *method && known.plan.reads_as(plan)
        });
        known.and_then(|known| Some((known.policy.copied()?, known.layers.clone())))
    }

    /// First tokens of `ids` that a question under `method` would not read again.
    pub(crate) fn known(&self, ids: &[u32], method: &Method, plan: &StreamPlan) -> usize {
        let memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = memory.as_ref().filter(|known| {
            ids.starts_with(&known.ids) && known.method == *method && known.plan.reads_as(plan)
        });
        known.map_or(0, |known| known.ids.len())
    }

    /// Remembers where `stream` stands, which has read `ids` and nothing else.
    pub(super) fn remember(&self, ids: &[u32], method: &Method, stream: &Stream<'_>) {
        let Some(policy) = stream.policy.copied() else {
            return;
        };
        let state = Remembered {
            ids: ids.to_vec(),
            method: method.clone(),
            plan: stream.plan.clone(),
            layers: stream.layers.clone(),
            policy,
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(state);
    }

    /// Lets go of it.
    pub(crate) fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Stream<'_> {
    /// The same stream as it stood after its first `seen` tokens.
    pub(super) fn resumed(self, layers: Vec<StreamLayer>, seen: usize) -> Self {
        Self {
            layers,
            seen,
            ..self
        }
    }
}
