//! Room in a folder of vaults: what goes so that another one fits, and what nobody has any more. Nothing that some process has open goes, and
//! nothing where that would not be enough.

use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::PathBuf;

use super::folder::EXTENSION;
use super::footer::describe;
use super::making::{LOCK, Locked, PART, is_named, lock, private, wait_for};
use super::{VaultError, VaultFolder, VaultKey};

/// Whoever has its lock counts what is there.
const COUNTING: &str = "counting.lock";

impl VaultFolder {
    /// Makes the folder, and room in it for `needed` bytes under `key`; whoever begins a file there does it as long as the lock is held.
    pub(super) fn make_place(&self, key: &VaultKey, needed: u64) -> Result<Locked, VaultError> {
        if needed > self.budget {
            return Err(VaultError::TooLarge {
                needed,
                budget: self.budget,
            });
        }
        let mut folder = std::fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut folder, 0o700);
        let made = folder.recursive(true).create(&self.path);
        made.map_err(|error| self.refused(error))?;
        let counting = self.counting()?;
        self.evict_for(Some(key), needed)?;
        Ok(counting)
    }

    /// Removes the vault of `key`, unless some process has it open. Gives whether it is gone.
    ///
    /// # Errors
    /// [`VaultError::Io`].
    pub fn remove(&self, key: &VaultKey) -> Result<bool, VaultError> {
        match self.seize(key)? {
            Seized::Gone => Ok(true),
            Seized::InUse => Ok(false),
            Seized::Closed(closed) => closed.remove().map(|()| true),
        }
    }

    /// Removes a vault that is of no use; that it cannot be is nobody's concern who asks a question.
    pub(crate) fn remove_or_warn(&self, key: &VaultKey) {
        if let Err(error) = self.remove(key) {
            tracing::warn!(%error, "a vault could not be removed");
        }
    }

    /// The vault of `key` so that nobody opens it, unless some process has it open.
    fn seize(&self, key: &VaultKey) -> Result<Seized, VaultError> {
        let path = self.file(key);
        loop {
            let file = match File::open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Seized::Gone),
                Err(error) => return Err(VaultError::io(&path)(error)),
            };
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(Seized::InUse),
                Err(TryLockError::Error(error)) => return Err(VaultError::io(&path)(error)),
            }
            let locked = Locked(file);
            // Another process may just have made it anew.
            if is_named(&locked.0, &path).map_err(VaultError::io(&path))? {
                return Ok(Seized::Closed(Closed {
                    path,
                    _locked: locked,
                }));
            }
        }
    }

    /// Removes every vault that no process has open, and what dead processes left. Gives how many are gone and how many stay.
    ///
    /// # Errors
    /// [`VaultError::Io`]: one that cannot be removed; all others are.
    pub fn clear(&self) -> Result<(usize, usize), VaultError> {
        if self.path.exists() {
            let _counting = self.counting()?;
            self.sweep()?;
        }
        let (mut gone, mut stay, mut failed) = (0, 0, None);
        for (_, key) in self.files(EXTENSION)? {
            match self.remove(&key) {
                Ok(true) => gone += 1,
                Ok(false) => stay += 1,
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok((gone, stay)), Err)
    }

    /// Waits for its turn among those who begin a vault: as long as a list of files takes.
    fn counting(&self) -> Result<Locked, VaultError> {
        let path = self.path.join(COUNTING);
        let mut options = private();
        let options = options.write(true).create(true).truncate(false);
        let file = options.open(&path).map_err(|error| self.refused(error))?;
        wait_for(&file, &path, File::try_lock)?;
        Ok(Locked(file))
    }

    fn refused(&self, error: std::io::Error) -> VaultError {
        VaultError::Folder {
            path: self.path.clone(),
            error,
        }
    }

    /// Removes the least recently used vaults, none that is open in any process, until the others keep to the budget, and what dead
    /// processes left.
    ///
    /// # Errors
    /// [`VaultError::Folder`], [`VaultError::Io`].
    pub fn trim(&self) -> Result<(), VaultError> {
        if !self.path.exists() {
            return Ok(());
        }
        let _counting = self.counting()?;
        self.evict_for(None, 0)
    }

    /// Removes the least recently used vaults until `needed` more bytes, for the vault of `key`, fit into the budget; none, where that would
    /// not be enough. Without a key all that can go, until the others fit.
    fn evict_for(&self, key: Option<&VaultKey>, needed: u64) -> Result<(), VaultError> {
        self.sweep()?;
        let mut entries = self.list()?;
        // One that is made anew takes the place of what is there.
        entries.retain(|entry| Some(&entry.key) != key);
        let mut taken: u64 = entries.iter().map(|entry| entry.bytes).sum();
        // What others are writing has its whole length from the beginning.
        let parts = self.files(PART)?.into_iter();
        let parts = parts.filter(|(_, of)| Some(of) != key);
        taken += (parts.filter_map(|(path, _)| path.metadata().ok()))
            .map(|facts| facts.len())
            .sum::<u64>();
        let mut going = Vec::new();
        for entry in entries.iter().rev() {
            if taken + needed <= self.budget {
                break;
            }
            match self.seize(&entry.key) {
                Ok(Seized::InUse) => {}
                Ok(Seized::Gone) => taken -= entry.bytes,
                Ok(Seized::Closed(closed)) => {
                    taken -= entry.bytes;
                    going.push((entry, closed));
                }
                Err(error) => tracing::warn!(%error, "a vault cannot make room"),
            }
        }
        if taken + needed > self.budget && key.is_some() {
            // The others are in use.
            return Err(VaultError::TooLarge {
                needed,
                budget: self.budget,
            });
        }
        for (entry, closed) in going {
            closed.remove()?;
            tracing::info!(key = %entry.key, bytes = entry.bytes, "a vault made room");
        }
        Ok(())
    }

    /// Removes what a process that died left of vaults it was making, and vaults of other versions, which nobody reads any more. What cannot
    /// be removed stays.
    fn sweep(&self) -> Result<(), VaultError> {
        let unfinished = self.files(PART)?.into_iter().chain(self.files(LOCK)?);
        for (path, _) in unfinished {
            let swept = lock(&path).and_then(|nobody_writes_it| match nobody_writes_it {
                // The lock goes by itself.
                Some(_lock) => {
                    let part = path.with_extension(PART);
                    gone(std::fs::remove_file(&part)).map_err(VaultError::io(&part))
                }
                None => Ok(()),
            });
            if let Err(error) = swept {
                tracing::warn!(%error, "what was left of a vault stays");
            }
        }
        for (path, key) in self.files(EXTENSION)? {
            // One that the system does not show now may be whole.
            if let Ok(None) = describe(&path) {
                self.remove_or_warn(&key);
            }
        }
        Ok(())
    }
}

/// What came of seizing a vault.
enum Seized {
    /// There is none.
    Gone,
    /// Some process has it open.
    InUse,
    /// Nobody has.
    Closed(Closed),
}

/// A vault that nobody has open, and that nobody opens as long as this exists.
struct Closed {
    path: PathBuf,
    // Let go of after it was removed.
    _locked: Locked,
}

impl Closed {
    fn remove(self) -> Result<(), VaultError> {
        gone(std::fs::remove_file(&self.path)).map_err(VaultError::io(&self.path))
    }
}

/// A file that somebody else removed is gone too.
fn gone(removed: std::io::Result<()>) -> std::io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
