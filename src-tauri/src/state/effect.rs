//! What follows from a state change: events, requests to the worker, writes to the store.

use std::sync::Arc;

use kept_engine::MapGrid;
use kept_worker::protocol::{Request, Speed};
use serde::{Deserialize, Serialize};

use super::document::OpenDocument;
use super::remembered::{BegunDownload, ModelEntry};
use super::turn_map::SharedMap;
use crate::contract::{AppEvent, Comparison, ConversationEntry, Drafts, Settings, Theme, Turn};

/// A side effect of a state change. Effects are executed in order.
#[allow(missing_docs)] // names and types say the rest
pub enum Effect {
    /// Send an event to the page.
    Page(AppEvent),
    /// Send a request to the worker of this generation (see [`AppState::worker_hello`](super::AppState::worker_hello)).
    Worker {
        /// The process that the request is for; a later process does not get it.
        generation: u64,
        request: Request,
        /// Bytes that follow it.
        bytes: Option<Arc<str>>,
    },
    /// End the worker, if it runs, and start a new one.
    RestartWorker,
    /// Write to the store.
    Save(Save),
    /// The window's title.
    Title(String),
    /// The window's theme.
    Theme(Theme),
}

/// A write to the store.
#[allow(missing_docs)] // names and types say the rest
pub enum Save {
    /// The current settings.
    Settings(Box<Settings>),
    /// A model file that was chosen and could be opened.
    Model(ModelEntry),
    /// A document, new or extended.
    Document(Arc<OpenDocument>),
    /// What is open.
    Open(Open),
    /// A conversation, new or changed.
    Conversation(Box<ConversationEntry>),
    /// A deleted conversation, which can be restored until the app ends.
    HideConversation(u64),
    /// A turn of a conversation, new or changed.
    Turn { conversation: u64, turn: Box<Turn> },
    /// A question that was removed before it was asked.
    RemoveTurn(u64),
    /// A turn's map, also for a copy of the turn.
    CopyMap { from: u64, to: u64 },
    /// A turn's map.
    Map {
        turn: u64,
        /// The map; its contents are read when it is written.
        map: SharedMap,
    },
    /// What the method of a turn keeps whatever is asked.
    Neutral { turn: u64, map: SharedMap<MapGrid> },
    /// The comparison of a document, in place of the one before; `None` removes it.
    Comparison {
        document: u64,
        comparison: Option<Box<Comparison>>,
    },
    /// A map of the document's comparison.
    ComparedMap {
        document: u64,
        /// The run; `None` for the ends of the cells, which remove the maps of all runs.
        run: Option<usize>,
        bytes: Vec<u8>,
    },
    /// The draft questions.
    Drafts(Drafts),
    /// Names of documents whose vaults are to be removed.
    VaultsToClear(Vec<String>),
    /// Whether models think before they answer, in this conversation.
    Thinking(bool),
    /// A model that was removed from the list, by its id.
    NoModel(String),
    /// Unfinished downloads.
    Downloads(Vec<BegunDownload>),
    /// The processor's speed.
    Speed(Speed),
}

/// What is open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// The document.
    pub document: Option<u64>,
    /// Its conversation; `None` before the first question.
    pub conversation: Option<u64>,
}
