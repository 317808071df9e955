//! The lock of the store's folder: one writer per folder, also without a session bus, which otherwise prevents a second
//! process.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;

use super::StoreError;

/// Held while the store is in use; the operating system releases it however the process ends.
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
