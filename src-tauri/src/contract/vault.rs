//! What is kept on disk of documents that were read, as the page sees it. A shape alone, like the rest of `contract`.

use serde::Serialize;

/// What is kept of documents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Vault {
    /// Where it lies, to be written out.
    pub folder: String,
    /// Documents that are kept.
    pub documents: usize,
    /// Bytes that they take on disk.
    pub bytes: u64,
    /// Bytes that they may take.
    pub budget: u64,
}
