//! A conversation in the list, and as it is stored.

use super::document::OpenDocument;
use crate::contract::{ConversationEntry, Turn, TurnState};

/// The error of a turn that was running when Kept was closed.
pub const CLOSED_BEFORE_END: &str = "Kept was closed before this answer ended.";

/// A conversation in the list: it has at least one question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversation {
    /// Unique for every conversation.
    pub id: u64,
    /// Id of its document.
    pub document: u64,
    /// The document's name.
    pub name: String,
    /// The document's pages, if it has any.
    pub pages: usize,
    /// The user's title, if there is one.
    pub title: Option<String>,
    /// The first question.
    pub first: String,
    /// Number of questions.
    pub questions: usize,
    /// Time of the last question, in seconds since 1970.
    pub updated: u64,
    /// Whether it stands above the others.
    pub pinned: bool,
}

impl Conversation {
    pub(super) fn entry(&self) -> ConversationEntry {
        ConversationEntry {
            id: self.id,
            title: self.title.as_ref().unwrap_or(&self.first).clone(),
            document: self.name.clone(),
            document_id: self.document,
            pages: self.pages,
            questions: self.questions,
            updated: self.updated,
            pinned: self.pinned,
        }
    }
}

/// A conversation as it is stored, with its document.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// Its id.
    pub conversation: u64,
    /// The document.
    pub document: OpenDocument,
    /// The turns, oldest first.
    pub turns: Vec<Turn>,
}

/// Marks the turns that were running when Kept was closed as failed, and returns them.
pub(super) fn interrupt(turns: &mut [Turn]) -> Vec<Turn> {
    let running = turns.iter_mut().filter(|turn| turn.state.is_open());
    let interrupted = running.map(|turn| {
        turn.state = TurnState::Failed;
        turn.error = Some(CLOSED_BEFORE_END.to_owned());
        turn.clone()
    });
    interrupted.collect()
}
