//! What survives a restart: settings, chosen models, the last document with its text, its conversation, the maps, the draft.
//!
//! One SQLite file, written by one task in the order in which things happened ([`Writer`]). A file that is damaged or comes
//! from a newer Kept is moved aside, never deleted. What is absent: any decision; the desk says what is to be written.

mod lock;
mod open;
mod rows;
mod writer;

pub use lock::{Lock, lock};
pub use open::{Opened, open, open_in_memory};
pub use rows::Store;
pub use writer::{Writer, start_writing};

/// Why the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// SQLite says so.
    #[error("the saved conversation cannot be used: {0}")]
    Sql(#[from] sqlx::Error),
    /// The file is from a newer Kept, or its schema was changed by something else.
    #[error("the saved conversation has another shape: {0}")]
    Schema(#[from] sqlx::migrate::MigrateError),
    /// SQLite finds the file damaged.
    #[error("the saved conversation is damaged: {0}")]
    Damaged(String),
    /// A value in it is not what it should be.
    #[error("the saved conversation holds a value that is not understood: {0}")]
    Value(String),
    /// The folder or file cannot be used.
    #[error("{path} cannot be used: {error}")]
    File {
        /// The folder or file.
        path: String,
        /// What the system said.
        error: std::io::Error,
    },
}

impl StoreError {
    /// Whether the file itself is to blame, so that moving it aside helps.
    pub fn is_about_contents(&self) -> bool {
        match self {
            StoreError::Schema(sqlx::migrate::MigrateError::Execute(error))
            | StoreError::Schema(sqlx::migrate::MigrateError::ExecuteMigration(error, _))
            | StoreError::Sql(error) => match error {
                sqlx::Error::Database(error) => {
                    // SQLITE_BUSY, _LOCKED, _READONLY, _IOERR, _FULL, _CANTOPEN: the place is to blame.
                    let primary = error.code().and_then(|code| code.parse::<u32>().ok());
                    !matches!(
                        primary.map(|code| code & 0xff),
                        Some(5 | 6 | 8 | 10 | 13 | 14)
                    )
                }
                sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut => false,
                _ => true,
            },
            StoreError::Schema(_) | StoreError::Damaged(_) | StoreError::Value(_) => true,
            StoreError::File { .. } => false,
        }
    }
}
