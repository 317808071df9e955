//! The vault: a prefix cache on disk. It stores the full keys and values of a document, so that the next question on
//! it skips prefill of the document.
//!
//! Prefill writes each layer's full keys and values once, as soon as the layer is complete. A later question on the
//! same document reads them back layer by layer: its own rows are added, and the method observes and compresses as
//! after a complete prefill.
//!
//! - `key.rs`: the document, model and settings that a vault belongs to.
//! - `format.rs`: the layout of the file. `write.rs`, `read.rs`: writing and reading a vault.
//! - `checkpoint.rs`: the checkpoint of a document that was read in streaming mode. `unfinished_file.rs`: creation of
//!   both kinds of files.
//! - `folder.rs`: all vaults of this user. `eviction.rs`: the budget of disk space.
//! - `access.rs`: types for the use of vaults by a question. `prefill/prefix.rs` decides what prefill reads from and
//!   writes to a vault.
//!
//! The vault of a document contains no questions and answers. The turns of a conversation have a vault of their own.

mod access;
mod checkpoint;
mod describe;
mod error;
mod eviction;
mod folder;
mod footer;
mod format;
mod key;
mod read;
#[cfg(test)]
mod tests;
mod unfinished_file;
mod write;

pub use access::{VaultAccess, VaultUse, Vaults};
pub use checkpoint::{CheckpointInfo, LoadedCheckpoint};
pub use describe::VaultContent;
pub use error::VaultError;
pub use folder::{MIN_SHARED_TOKENS, VaultEntry, VaultFolder, shared};
pub use format::{LAST_QUERIES, MAX_QUERIES, StoredMeasurement, StoredRows, VaultShape};
pub use key::{ModelFingerprint, VaultKey};
pub use read::{HostRows, LayerElements, MeasuredValues, RowsOf, Run, Vault, VaultRows};
pub use write::VaultWriter;
