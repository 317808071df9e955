//! Types for the use of vaults by a question.

use kept_kernels::PackedRows;
use serde::{Deserialize, Serialize};

use super::{ModelFingerprint, VaultFolder};

/// The vaults that a question may read and extend.
#[derive(Debug, Clone, Copy)]
pub struct Vaults<'a> {
    /// The folder of the vaults.
    pub folder: &'a VaultFolder,
    /// Row format. With f16 the document's rows are rounded during prefill, so that the first question and every
    /// later one use the same numbers; with q8_0 a later question uses rounded numbers.
    pub kind: PackedRows,
}

impl<'a> Vaults<'a> {
    /// The vaults of `folder`, with rows of `kind`.
    pub fn new(folder: &'a VaultFolder, kind: PackedRows) -> Self {
        Self { folder, kind }
    }
}

/// The inputs of prefill for finding and writing a vault.
#[derive(Debug, Clone, Copy)]
pub struct VaultAccess<'a> {
    /// Folder and row format.
    pub vaults: Vaults<'a>,
    /// The model.
    pub model: &'a ModelFingerprint,
    /// Name of the document, for lists.
    pub document: &'a str,
    /// Ends of the prompt's earlier turns, oldest first, in tokens.
    pub turns: &'a [usize],
    /// Whether an existing vault must be ignored, because it was found to be damaged.
    pub rebuild: bool,
}

/// What a question read from and wrote to the vault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VaultUse {
    /// Whether rows came from a vault.
    pub used: bool,
    /// Tokens whose rows came from a vault: of the document and of earlier turns.
    pub tokens_from_vault: usize,
    /// Tokens that ran through the model, counted once per pass.
    pub tokens_read: usize,
    /// Bytes of the document's vault after the question; 0 without one.
    pub bytes: u64,
    /// Row format: `q8_0`, `f16`, or `off`; `end` for a checkpoint of streaming mode.
    pub kind: String,
    /// Whether this question wrote the vault.
    pub written: bool,
}

impl VaultUse {
    /// The value for a question without vaults, whose prompt has `tokens` tokens.
    pub fn none(tokens: usize) -> Self {
        Self {
            used: false,
            tokens_from_vault: 0,
            tokens_read: tokens,
            bytes: 0,
            kind: "off".to_owned(),
            written: false,
        }
    }
}
