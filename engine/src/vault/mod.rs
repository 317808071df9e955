//! The vault: what a model computed of a document, kept in a file, so that the next question on it needs no second reading.
//!
//! Prefill writes each layer's full keys and values once, as the layer is done. A later question on the same document reads them
//! back layer by layer: its own rows are added, the method observes and cuts, as if everything had just been read.
//!
//! - `key.rs`: which document, model and settings a vault belongs to.
//! - `format.rs`: what stands where in the file. `write.rs`, `read.rs`: making one, and using one.
//! - `end.rs`: the same for a document that was read in streaming: what was kept at its end. `making.rs`: how either file comes to be.
//! - `folder.rs`: all vaults of this computer. `space.rs`: how they stay within a budget of disk space.
//! - `kept.rs`: how a question uses them. What a reading takes and leaves is decided in `prefill/prefix.rs`.
//!
//! What a vault is not: a conversation. It knows nothing of questions and answers.

mod end;
mod error;
mod eviction;
mod folder;
mod footer;
mod format;
mod kept;
mod key;
mod making;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use end::EndOf;
pub use error::VaultError;
pub(crate) use folder::shared;
pub use folder::{FEW_SHARED, Holds, VaultEntry, VaultFolder};
pub(crate) use format::LAST_QUERIES;
pub use format::{LayerShape, Measurement, VaultShape};
pub use kept::{VaultAccess, VaultUse, Vaults};
pub use key::{ModelPrint, VaultKey};
pub use read::{HostRows, LayerNumbers, Numbers, RowsOf, Run, Vault, VaultRows};
pub use write::VaultWriter;
