//! What runs in the worker, and what waits for it.

use std::path::PathBuf;

use kept_worker::protocol::Access;

use crate::contract::{Choice, Memory, Progress};

/// The request that runs in the worker.
pub(super) struct Running {
    /// Its ticket in the protocol.
    pub(super) ticket: u64,
    /// The turn it answers; `None` once its conversation was deleted.
    pub(super) turn: Option<u64>,
    /// The last progress, sent again with the final memory.
    pub(super) progress: Option<(Progress, Memory)>,
}

impl Running {
    /// A request without a turn.
    pub(super) fn without_turn(ticket: u64) -> Self {
        Self {
            ticket,
            turn: None,
            progress: None,
        }
    }
}

/// A file that is being opened as the document.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Opening {
    pub(super) path: PathBuf,
    pub(super) name: String,
    /// It is added to the open document.
    pub(super) adds: bool,
    pub(super) access: Access,
}

/// The model that the worker should open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) path: String,
    pub(super) stretch: Option<String>,
}

/// A question that waits. Its turn is the last one, or followed by other waiting ones.
#[derive(Debug)]
pub(super) struct Queued {
    /// Its turn.
    pub turn: u64,
    /// Earlier ones are asked first.
    pub order: u64,
    /// Method and budget.
    pub choice: Choice,
    /// The model does not see the earlier turns.
    pub alone: bool,
}

/// Why a question cannot be asked now. One sentence each.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unready {
    /// Something has to start or open first.
    NotYet(&'static str),
    /// The user has to change something.
    Never(String),
}

impl From<Unready> for String {
    fn from(unready: Unready) -> Self {
        match unready {
            Unready::NotYet(why) => why.to_owned(),
            Unready::Never(why) => why,
        }
    }
}
