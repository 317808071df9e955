//! The stored state: settings, chosen models, documents with their texts, conversations, maps, drafts.
//!
//! One SQLite file, written by one task in the order of the events ([`Writer`]). A file that is damaged or comes from a
//! newer Kept is moved aside, never deleted. The app state decides what is written; this module decides nothing.

mod comparisons;
mod conversations;
mod lock;
mod maps;
mod migrations;
mod open;
mod rows;
mod values;
mod writer;

pub use lock::{Lock, lock};
pub use open::{Opened, open, open_beside, open_in_memory};
pub use writer::{Writer, start_writing};

/// The open database.
#[derive(Debug, Clone)]
pub struct Store {
    pool: sqlx::SqlitePool,
}

impl Store {
    fn new(pool: sqlx::SqlitePool) -> Self {
        Self { pool }
    }

    /// Closes the file after all writes.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

/// Why the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Error of SQLite.
    #[error("the saved conversation cannot be used: {0}")]
    Sql(#[from] sqlx::Error),
    /// The file comes from a newer Kept, or another program changed its schema.
    #[error("the saved conversation has another shape: {0}")]
    Schema(#[from] sqlx::migrate::MigrateError),
    /// SQLite reports the file as damaged.
    #[error("the saved conversation is damaged: {0}")]
    Damaged(String),
    /// A stored value is invalid.
    #[error("the saved conversation holds a value that is not understood: {0}")]
    Value(String),
    /// The folder or file cannot be used.
    #[error("{path} cannot be used: {error}")]
    File {
        /// The folder or file.
        path: String,
        /// The error of the system.
        error: std::io::Error,
    },
}

impl StoreError {
    /// Whether the error lies in the file's contents, so that moving the file aside helps.
    pub fn is_about_contents(&self) -> bool {
        match self {
            StoreError::Schema(sqlx::migrate::MigrateError::Execute(error))
            | StoreError::Schema(sqlx::migrate::MigrateError::ExecuteMigration(error, _))
            | StoreError::Sql(error) => match error {
                sqlx::Error::Database(error) => {
                    // SQLITE_PERM, _BUSY, _LOCKED, _NOMEM, _READONLY, _INTERRUPT, _IOERR, _FULL, _CANTOPEN, _PROTOCOL:
                    // errors of the location or the moment, not of the contents.
                    let primary = error.code().and_then(|code| code.parse::<u32>().ok());
                    !matches!(
                        primary.map(|code| code & 0xff),
                        Some(3 | 5 | 6 | 7 | 8 | 9 | 10 | 13 | 14 | 15)
                    )
                }
                sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::WorkerCrashed => {
                    false
                }
                _ => true,
            },
            StoreError::Schema(_) | StoreError::Damaged(_) | StoreError::Value(_) => true,
            StoreError::File { .. } => false,
        }
    }
}
