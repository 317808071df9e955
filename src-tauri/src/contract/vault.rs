//! The vaults on disk in the page's form. Data types only, like the rest of `contract`.

use kept_worker::protocol::StoredDocument;
use serde::Serialize;
use ts_rs::TS;

use super::Progress;

/// The document is read in the background, or this was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct ReadAhead {
    /// It runs; otherwise the user can let it go on.
    pub running: bool,
    /// How far it has come.
    pub progress: Progress,
}

/// The vault folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct Vault {
    /// Path for display.
    pub folder: String,
    /// Number of stored documents.
    pub documents: usize,
    /// Bytes used on disk.
    pub bytes: u64,
    /// Maximum bytes on disk.
    pub budget: u64,
    /// The stored documents, most recently used first.
    pub stored: Vec<StoredDocument>,
}
