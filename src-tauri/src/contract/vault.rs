//! The vaults on disk in the page's form. Data types only, like the rest of `contract`.

use serde::Serialize;
use ts_rs::TS;

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
}
