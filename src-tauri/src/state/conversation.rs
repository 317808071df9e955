//! A conversation as it is stored.

use std::sync::Arc;

use super::background::StoredComparison;
use super::document::OpenDocument;
use crate::contract::Turn;

/// The error of a turn that was running when Kept was closed.
pub const CLOSED_BEFORE_END: &str = "Kept was closed before this answer ended.";
/// The error of a turn that was waiting.
pub const CLOSED_BEFORE_START: &str =
    "Kept was closed before this question's turn came: ask it again.";

/// A conversation as it is stored, with its document.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// Its id.
    pub conversation: u64,
    /// The document.
    pub document: Arc<OpenDocument>,
    /// The document's comparison; ignored if the document is open.
    pub comparison: Option<StoredComparison>,
    /// The turns, oldest first.
    pub turns: Vec<Turn>,
}
