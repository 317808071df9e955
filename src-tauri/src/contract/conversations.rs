//! Conversations in the page's form. Data types only, like the rest of `contract`.

use serde::Serialize;
use ts_rs::TS;

use super::Progress;

/// A conversation in the list: questions about one document, or about several read together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct ConversationEntry {
    /// Unique for every conversation.
    pub id: u64,
    /// The title: the user's, else the first question.
    pub title: String,
    /// The name of its document; empty without one.
    pub document: String,
    /// The document's id.
    pub document_id: u64,
    /// The document's pages, if it has any.
    pub pages: usize,
    /// What its pages are called: `page`, `slide`, `sheet` or `chapter`.
    pub page_noun: String,
    /// Number of questions.
    pub questions: usize,
    /// Time of the last question, in seconds since 1970.
    pub updated: u64,
    /// Whether it stands above the others.
    pub pinned: bool,
    /// The first question.
    #[serde(skip)]
    pub first: String,
}

/// A conversation that was left while it worked, until it is opened again.
#[derive(Debug, Clone, PartialEq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct Elsewhere {
    /// The conversation.
    pub conversation: u64,
    /// The name of its document; empty without one.
    pub document: String,
    /// The question that is answered or compared, or was last.
    pub question: String,
    /// What goes on there, or has ended.
    pub state: ElsewhereState,
    /// Further questions that wait.
    pub waiting: usize,
    /// Of a comparison, how many runs are done, of how many.
    pub runs: Option<[usize; 2]>,
    /// How far the running question or comparison is.
    pub progress: Option<Progress>,
}

/// What goes on in a conversation that is not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "lowercase")]
pub enum ElsewhereState {
    /// Its questions wait for those of other conversations.
    Waiting,
    /// A question is being answered.
    Answering,
    /// Methods are being compared.
    Comparing,
    /// That has ended.
    Done,
    /// The last question or the comparison failed.
    Failed,
    /// Kept was closed before its questions were answered.
    Interrupted,
}

/// A passage that a search found: of a question or an answer, or of the document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct FoundPassage {
    /// The conversation.
    pub conversation: u64,
    /// The turn; `None` for the document's text.
    pub turn: Option<u64>,
    /// The passage, in pieces.
    pub pieces: Vec<FoundPiece>,
}

/// A piece of a found passage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct FoundPiece {
    /// Its text.
    pub text: String,
    /// Whether it is a searched word.
    pub hit: bool,
}
