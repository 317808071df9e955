//! How a question uses vaults: which it may, and what came of it.

use kept_kernels::PackedRows;
use serde::{Deserialize, Serialize};

use super::{ModelPrint, VaultFolder};

/// The vaults that a question may use and add to.
#[derive(Debug, Clone, Copy)]
pub struct Vaults<'a> {
    /// Where they are.
    pub folder: &'a VaultFolder,
    /// How rows are stored. With f16 the document's rows are rounded as they are read, so that a first question and every later
    /// one see the same numbers; with q8_0 a later question sees rounded ones.
    pub kind: PackedRows,
}

/// What a reading needs to find a vault and to make one.
#[derive(Debug, Clone, Copy)]
pub struct VaultAccess<'a> {
    /// Where, and how stored.
    pub vaults: Vaults<'a>,
    /// The model.
    pub model: &'a ModelPrint,
    /// Name of the document, for lists.
    pub document: &'a str,
    /// Whether what is there must not be used: it was found to be damaged.
    pub anew: bool,
}

/// What a question took from the vault and left there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VaultUse {
    /// Whether rows came from a vault.
    pub used: bool,
    /// Tokens whose rows came from it.
    pub tokens_from_vault: usize,
    /// Tokens that ran through the model, as often as they did.
    pub tokens_read: usize,
    /// Bytes of the document's vault after the question; 0 where there is none.
    pub bytes: u64,
    /// How its rows are stored: `q8_0`, `f16`, or `off`; `end` of a document read in streaming, of which the end is kept as it stands.
    pub kind: String,
    /// Whether this question wrote it.
    pub written: bool,
}

impl VaultUse {
    /// Of a question without vaults, whose prompt has `tokens` tokens.
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
