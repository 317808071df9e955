//! What can go wrong with a vault. None of it costs an answer: a document that has no usable vault is read again.

use std::io;
use std::path::PathBuf;

use kept_kernels::format_bytes;

/// Why a vault could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum VaultError {
    /// The file system refused.
    #[error("{}: {error}", file_name(.path))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The folder of the vaults takes no files.
    #[error(
        "no documents can be kept in {}: {error}; make the folder writable, or name another one in KEPT_VAULTS", .path.display()
    )]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The file is not a whole vault: cut short, changed, or of another version.
    #[error("{} is not whole: {what}", file_name(.path))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// There is less room than the vault needs.
    #[error(
        "a vault of this document takes {}, and the vaults may take {} in all, those in use included; allow them more, or work without", format_bytes(*.needed), format_bytes(*.budget)
    )]
    TooLarge {
        /// Bytes of this vault.
        needed: u64,
        /// Bytes that all vaults may take.
        budget: u64,
    },
    /// The file has a whole vault in it, but not of this model.
    #[error("the vault's file was left by another model than its name says")]
    Foreign,
    /// Another program is writing the same vault.
    #[error("another program is reading this document right now")]
    Busy,
    /// There is no place for vaults.
    #[error("there is no home folder to keep vaults in; set KEPT_VAULTS to a folder")]
    NoHome,
}

impl VaultError {
    /// What a person is told where nothing could be left for the next question; `there` says that the document has a vault all the same.
    pub(crate) fn unwritten(&self, there: bool) -> String {
        tracing::warn!(error = %self, "a vault could not be written");
        match self {
            VaultError::Busy => "another program is just making a vault of this document; this answer did not wait for it".to_owned(),
            error if there => format!("what this method measured of the document could not be added to its vault: {error}"),
            error => format!("no vault was left, so the next question reads the document again: {error}"),
        }
    }

    /// What a person is told where what there was could not be used.
    pub(crate) fn unread(&self) -> String {
        tracing::warn!(error = %self, "a vault could not be read");
        format!("the document's vault could not be used: {self}")
    }

    /// What a person is told where what there was failed while it was used.
    pub(crate) fn read_again(&self) -> String {
        let what = match self {
            VaultError::Damaged { .. } => "is damaged",
            _ => "could not be read",
        };
        format!("the document's vault {what}, so the document was read again: {self}")
    }

    /// Wraps what the system said about `path`.
    pub(crate) fn io(path: &std::path::Path) -> impl FnOnce(io::Error) -> VaultError + '_ {
        |error| VaultError::Io {
            path: path.to_owned(),
            error,
        }
    }
}

/// The last part of a path: a person knows the folder, or does not care; and a key says nothing to a person.
fn file_name(path: &std::path::Path) -> std::borrow::Cow<'_, str> {
    if super::VaultKey::of_file(path).is_some() {
        return "the vault's file".into();
    }
    path.file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy()
}
