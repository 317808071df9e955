//! The map of a turn: what its question kept, and what its answer attended to.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kept_engine::{AttentionGrid, EvictionLog, GridError, MapGrid};
use serde::{Deserialize, Serialize};

use crate::contract::Attended;

/// A map that is being filled or was loaded; shared with the code that counts over it.
pub type SharedMap<T = TurnMap> = Arc<Mutex<T>>;

/// What a question kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnMap {
    /// Of the document.
    pub document: MapGrid,
    /// Of the earlier turns that the model saw; `None` without any.
    pub earlier: Option<EarlierMap>,
    /// What each token of the answer attended to, once it is complete.
    pub attended: Vec<Attended>,
    /// What each KV head attended to, once the answer is complete.
    pub by_head: AttentionGrid,
    /// What was forgotten during the answer, once it is complete; `document` is the map at its end.
    pub evictions: EvictionLog,
}

/// What a question kept of the earlier turns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarlierMap {
    /// The turns.
    pub texts: EarlierTexts,
    /// Of the text of [`kept_engine::Earlier::of`] these turns.
    pub grid: MapGrid,
}

/// The earlier turns that a model saw.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlierTexts {
    /// Oldest first.
    pub turns: Vec<kept_engine::Turn>,
    /// How many older ones it did not see.
    pub left_out: usize,
}

impl From<MapGrid> for TurnMap {
    fn from(document: MapGrid) -> Self {
        Self {
            document,
            earlier: None,
            attended: Vec::new(),
            by_head: AttentionGrid::default(),
            evictions: EvictionLog::default(),
        }
    }
}

impl TurnMap {
    /// Sets or replaces a layer by the bytes that follow [`kept_worker::protocol::Reply::Layer`].
    pub(super) fn set_layer(&mut self, layer: usize, bytes: &[u8]) -> Result<(), GridError> {
        let (own, rest) = bytes.split_at(self.document.layer_length().min(bytes.len()));
        let cells = (self.earlier.as_ref()).map_or(0, |earlier| earlier.grid.layer_length());
        if rest.len() != cells {
            return Err(GridError::wrong_length(rest.len(), cells));
        }
        self.document.set_layer_bytes(layer, own)?;
        match &mut self.earlier {
            Some(earlier) => earlier.grid.set_layer_bytes(layer, rest),
            None => Ok(()),
        }
    }
}

/// Location of a map.
pub enum MapPlace<T = TurnMap> {
    /// In memory.
    Here(SharedMap<T>),
    /// In the store; the caller loads it and passes it to [`AppState::keep_map`](super::AppState::keep_map).
    InStore,
}

/// Locks the map. A poisoned lock is accepted: a panic leaves counts that are always consistent.
pub fn lock<T>(map: &SharedMap<T>) -> MutexGuard<'_, T> {
    map.lock().unwrap_or_else(PoisonError::into_inner)
}
