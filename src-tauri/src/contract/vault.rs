//! The vaults on disk in the page's form. Data types only, like the rest of `contract`.

use serde::Serialize;
use ts_rs::TS;

/// The document is read in the background, or this was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct ReadAhead {
    /// It runs; otherwise the user can let it go on.
    pub running: bool,
    /// Share of the document that is read, 0 to 1.
    pub share: f64,
    /// Estimated rest, in seconds; `None` until it is known.
    pub seconds_left: Option<f64>,
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

/// A document in the vaults.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "camelCase")]
pub struct StoredDocument {
    /// Its name.
    pub name: String,
    /// Its tokens.
    pub tokens: usize,
    /// Bytes on disk.
    pub bytes: u64,
    /// When it was last read, in seconds since 1970.
    pub used: u64,
}
