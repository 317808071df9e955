//! One writer per folder: a second process without a session bus finds the lock taken.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;

use super::StoreError;

/// Held as long as the store is used; the system releases it however the process ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Takes the lock of `folder`; `None` if another process holds it.
pub fn lock(folder: &Path) -> Result<Option<Lock>, StoreError> {
    let path = folder.join("kept.lock");
    let failed = |error| StoreError::File {
        path: path.display().to_string(),
        error,
    };
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(Lock { _file: file })),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}
