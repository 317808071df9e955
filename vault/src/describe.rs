//! The content of a file in the vault folder, from its footer.

use std::path::Path;

use kept_kernels::PackedRows;
use serde::Deserialize;

use super::checkpoint::CheckpointFooter;
use super::footer::footer;
use super::format::Footer;
use super::unfinished_file::open_to_read;

/// The content of a vault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VaultContent {
    /// Keys and values of all tokens, in this row format.
    Rows(PackedRows),
    /// Keys and values of the turns of a conversation, in this row format.
    Turns(PackedRows),
    /// The checkpoint of streaming mode; with the settings of streaming mode, in words.
    Checkpoint(String),
}

/// The content of a file in the vault folder, for lists.
pub(super) struct Described {
    pub(super) document: String,
    pub(super) model: String,
    pub(super) tokens: usize,
    pub(super) holds: VaultContent,
}

/// The footer of either kind of file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Either {
    Rows(Footer),
    Checkpoint(CheckpointFooter),
}

/// Describes the file at `path`; `None` if it is damaged.
pub(super) fn describe(path: &Path) -> std::io::Result<Option<Described>> {
    let mut file = open_to_read(path)?;
    let bytes = file.metadata()?.len();
    let Ok((footer, _)) = footer(&mut file, bytes)? else {
        return Ok(None);
    };
    Ok(match footer {
        Either::Rows(footer) => footer.is_valid().then_some(Described {
            document: footer.document,
            model: footer.model,
            tokens: footer.shape.tokens,
            holds: match footer.shape.from {
                Some(_) => VaultContent::Turns(footer.shape.kind),
                None => VaultContent::Rows(footer.shape.kind),
            },
        }),
        Either::Checkpoint(CheckpointFooter { of, .. }) => Some(Described {
            document: of.document,
            model: of.model,
            tokens: of.tokens,
            holds: VaultContent::Checkpoint(of.settings),
        }),
    })
}
