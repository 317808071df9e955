//! Errors of vaults. None of them prevents an answer: a document without a usable vault is prefilled again.

use std::io;
use std::path::PathBuf;

use kept_kernels::format_bytes;

/// Why a vault could not be written or used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum VaultError {
    /// A file system error.
    #[error("{}: {error}", file_name(.path))]
    Io { path: PathBuf, error: io::Error },
    /// The vault folder is not writable.
    #[error(
        "no documents can be kept in {}: {error}; make the folder writable, or name another one in KEPT_VAULTS", .path.display()
    )]
    Folder { path: PathBuf, error: io::Error },
    /// The file is not a complete vault: truncated, changed, or of another version.
    #[error("{} is not whole: {what}", file_name(.path))]
    Damaged { path: PathBuf, what: String },
    /// The vault does not fit in the budget.
    #[error(
        "a vault of this document takes {}, and the vaults may take {} in all, those in use included (unless set, half of the free disk space); free disk space, allow them more, or work without", format_bytes(*.needed), format_bytes(*.budget)
    )]
    TooLarge { needed: u64, budget: u64 },
    /// The file is a valid vault of another model.
    #[error("the vault file belongs to another model than its file name says")]
    Foreign,
    /// Another process is writing the same vault.
    #[error("another program is reading this document right now")]
    Busy,
    /// No folder for vaults is configured or known.
    #[error("there is no home folder to keep vaults in; set KEPT_VAULTS to a folder")]
    NoHome,
}

impl VaultError {
    /// The note for the user if the vault could not be written; `stored`: the document has a vault nevertheless, or one of
    /// its first `known` tokens.
    pub fn unwritten(&self, stored: bool, known: usize) -> String {
        tracing::warn!(error = %self, "a vault could not be written");
        match self {
            VaultError::Busy => "another program is just making a vault of this document; this answer did not wait for it".to_owned(),
            error if stored => format!("what this method measured of the document could not be added to its vault: {error}"),
            error if known > 0 => format!("the vault holds the document's first {known} tokens and could not be extended, so the next question reads the rest again: {error}"),
            error => format!("the vault could not be written, so the next question reads the document again: {error}"),
        }
    }

    /// The note for the user if the turns of a conversation could not be stored.
    pub fn turns_unwritten(&self) -> Option<String> {
        tracing::warn!(error = %self, "the vault of a conversation could not be written");
        let is_busy = matches!(self, VaultError::Busy);
        (!is_busy).then(|| {
            format!("this conversation could not be stored in a vault, so the next question reads its turns again: {self}")
        })
    }

    /// The note for the user if an existing vault could not be used.
    pub fn unread(&self) -> String {
        tracing::warn!(error = %self, "a vault could not be read");
        format!("the document's vault could not be used: {self}")
    }

    /// The note for the user if a vault failed while it was read.
    pub fn read_again(&self) -> String {
        let what = match self {
            VaultError::Damaged { .. } => "is damaged",
            _ => "could not be read",
        };
        format!("the document's vault {what}, so the document was read again: {self}")
    }

    /// The file at `path` is damaged in the described way.
    pub(super) fn damaged(path: &std::path::Path) -> impl Fn(&str) -> VaultError + '_ {
        |what| VaultError::Damaged {
            path: path.to_owned(),
            what: what.to_owned(),
        }
    }

    /// Wraps an I/O error at `path`.
    pub fn io(path: &std::path::Path) -> impl FnOnce(io::Error) -> VaultError + '_ {
        |error| VaultError::Io {
            path: path.to_owned(),
            error,
        }
    }
}

/// The file name of a path for messages: users know the folder, and a key is meaningless to them.
fn file_name(path: &std::path::Path) -> std::borrow::Cow<'_, str> {
    if super::VaultKey::of_file(path).is_some() {
        return "the vault's file".into();
    }
    path.file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy()
}
