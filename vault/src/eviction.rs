//! Eviction in a vault folder: removes vaults so that another one fits, and files of dead processes. Vaults that a
//! process has open are never removed, and none are removed if that would not free enough space.

use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::PathBuf;

use super::describe::describe;
use super::folder::EXTENSION;
use super::unfinished_file::{
    LOCK, LockedFile, PART, lock, open, open_to_read, private, still_at_path, wait_for,
};
use super::{VaultError, VaultFolder, VaultKey};

/// Lock file: its holder has exclusive access to the sum of all file sizes.
const SIZE_LOCK: &str = "counting.lock";

impl VaultFolder {
    /// Creates the folder and evicts vaults so that `needed` bytes fit under `key`. The caller must hold the returned
    /// lock until it has created its file.
    pub(super) fn reserve_space(
        &self,
        key: &VaultKey,
        needed: u64,
    ) -> Result<LockedFile, VaultError> {
        let mut folder = std::fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut folder, 0o700);
        let made = folder.recursive(true).create(&self.path);
        made.map_err(|error| self.folder_error(error))?;
        if needed > self.budget {
            return Err(VaultError::TooLarge {
                needed,
                budget: self.budget,
            });
        }
        let size_lock = self.lock_sizes()?;
        self.evict_for(Some(key), needed)?;
        Ok(size_lock)
    }

    /// Removes the vault of `key`, unless a process has it open. Returns whether the vault is removed.
    ///
    /// # Errors
    /// [`VaultError::Io`].
    pub fn remove(&self, key: &VaultKey) -> Result<bool, VaultError> {
        match self.lock_unused(key)? {
            Locking::Missing => Ok(true),
            Locking::InUse => Ok(false),
            Locking::Unused(unused) => unused.remove().map(|()| true),
        }
    }

    /// Removes an unusable vault; a failure is only logged.
    pub fn remove_or_warn(&self, key: &VaultKey) {
        if let Err(error) = self.remove(key) {
            tracing::warn!(%error, "a vault could not be removed");
        }
    }

    /// Locks the vault of `key` exclusively so that no process can open it, unless a process has it open.
    fn lock_unused(&self, key: &VaultKey) -> Result<Locking, VaultError> {
        let path = self.file(key);
        loop {
            let file = match open_to_read(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Locking::Missing),
                Err(error) => return Err(VaultError::io(&path)(error)),
            };
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(Locking::InUse),
                Err(TryLockError::Error(error)) => return Err(VaultError::io(&path)(error)),
            }
            let locked = LockedFile(file);
            // Another process may have replaced the file since it was opened.
            if still_at_path(&locked.0, &path).map_err(VaultError::io(&path))? {
                return Ok(Locking::Unused(UnusedVault {
                    path,
                    _locked: locked,
                }));
            }
        }
    }

    /// Removes every vault that no process has open, and files of dead processes. Returns the numbers of removed and
    /// of remaining vaults.
    ///
    /// # Errors
    /// [`VaultError::Io`] if a vault cannot be removed; all others are removed nevertheless.
    pub fn clear(&self) -> Result<(usize, usize), VaultError> {
        if self.path.exists() {
            let _size_lock = self.lock_sizes()?;
            self.remove_leftovers()?;
        }
        let (mut removed, mut remaining, mut failed) = (0, 0, None);
        for (_, key) in self.files(EXTENSION)? {
            match self.remove(&key) {
                Ok(true) => removed += 1,
                Ok(false) => remaining += 1,
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok((removed, remaining)), Err)
    }

    /// Waits for the lock that serialises the creation of vaults; held only briefly.
    fn lock_sizes(&self) -> Result<LockedFile, VaultError> {
        let path = self.path.join(SIZE_LOCK);
        let mut options = private();
        let options = options.write(true).create(true).truncate(false);
        let file = open(options, &path).map_err(|error| self.folder_error(error))?;
        wait_for(&file, &path, File::try_lock)?;
        Ok(LockedFile(file))
    }

    fn folder_error(&self, error: std::io::Error) -> VaultError {
        VaultError::Folder {
            path: self.path.clone(),
            error,
        }
    }

    /// Removes files of dead processes, then the least recently used vaults that no process has open, until the rest
    /// is within the budget.
    ///
    /// # Errors
    /// [`VaultError::Folder`], [`VaultError::Io`].
    pub fn trim(&self) -> Result<(), VaultError> {
        if !self.path.exists() {
            return Ok(());
        }
        let _size_lock = self.lock_sizes()?;
        self.evict_for(None, 0)
    }

    /// Evicts the least recently used vaults until `needed` more bytes, for the vault of `key`, fit in the budget;
    /// evicts none if that would not be enough. Without a key: evicts as many as possible until the rest fits.
    fn evict_for(&self, key: Option<&VaultKey>, needed: u64) -> Result<(), VaultError> {
        self.remove_leftovers()?;
        let mut entries = self.list()?;
        // A vault that is written again replaces the existing one.
        entries.retain(|entry| Some(&entry.key) != key);
        let mut taken: u64 = entries.iter().map(|entry| entry.bytes).sum();
        // Files that other processes are writing have their final length from the beginning.
        let parts = self.files(PART)?.into_iter();
        let parts = parts.filter(|(_, of)| Some(of) != key);
        taken += (parts.filter_map(|(path, _)| path.metadata().ok()))
            .map(|facts| facts.len())
            .sum::<u64>();
        let mut evicted = Vec::new();
        for entry in entries.iter().rev() {
            if taken + needed <= self.budget {
                break;
            }
            match self.lock_unused(&entry.key) {
                Ok(Locking::InUse) => {}
                Ok(Locking::Missing) => taken -= entry.bytes,
                Ok(Locking::Unused(unused)) => {
                    taken -= entry.bytes;
                    evicted.push((entry, unused));
                }
                Err(error) => tracing::warn!(%error, "a vault could not be locked for eviction"),
            }
        }
        if taken + needed > self.budget && key.is_some() {
            // The remaining vaults are in use.
            return Err(VaultError::TooLarge {
                needed,
                budget: self.budget,
            });
        }
        for (entry, unused) in evicted {
            unused.remove()?;
            tracing::info!(key = %entry.key, bytes = entry.bytes, "evicted a vault");
        }
        Ok(())
    }

    /// Removes unfinished files of dead processes, and vaults of other versions, which are unreadable. Files that
    /// cannot be removed are kept.
    fn remove_leftovers(&self) -> Result<(), VaultError> {
        let unfinished = self.files(PART)?.into_iter().chain(self.files(LOCK)?);
        for (path, _) in unfinished {
            let removed = lock(&path).and_then(|write_lock| match write_lock {
                // Dropping the lock removes its file.
                Some(_lock) => {
                    let part = path.with_extension(PART);
                    ignore_missing(std::fs::remove_file(&part)).map_err(VaultError::io(&part))
                }
                None => Ok(()),
            });
            if let Err(error) = removed {
                tracing::warn!(%error, "a leftover vault file could not be removed");
            }
        }
        for (path, key) in self.files(EXTENSION)? {
            // On an I/O error the vault may still be intact.
            if let Ok(None) = describe(&path) {
                self.remove_or_warn(&key);
            }
        }
        Ok(())
    }
}

/// Result of [`VaultFolder::lock_unused`].
enum Locking {
    /// The vault does not exist.
    Missing,
    /// A process has the vault open.
    InUse,
    /// No process has the vault open, and it is locked.
    Unused(UnusedVault),
}

/// A vault that no process has open; no process can open it while this value exists.
struct UnusedVault {
    path: PathBuf,
    // Released after the file is removed.
    _locked: LockedFile,
}

impl UnusedVault {
    fn remove(self) -> Result<(), VaultError> {
        ignore_missing(std::fs::remove_file(&self.path)).map_err(VaultError::io(&self.path))
    }
}

/// A missing file counts as removed: another process removed it.
fn ignore_missing(removed: std::io::Result<()>) -> std::io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
