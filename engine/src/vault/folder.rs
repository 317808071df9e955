//! All vaults of this computer: found by key, made within a budget of disk space, the least recently used removed first.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::format::VaultShape;
use super::read::describe;
use super::write::{PART, lock};
use super::{Vault, VaultError, VaultKey, VaultWriter};

/// A folder of vaults.
#[derive(Debug, Clone)]
pub struct VaultFolder {
    path: PathBuf,
    /// Bytes that all vaults may take together.
    budget: u64,
}

/// A vault as a list shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VaultEntry {
    /// Its key.
    pub key: VaultKey,
    /// Name of the document; `None` where the vault is not whole.
    pub document: Option<String>,
    /// Name of the model; `None` where the vault is not whole.
    pub model: Option<String>,
    /// Tokens; 0 where the vault is not whole.
    pub tokens: usize,
    /// Bytes on disk.
    pub bytes: u64,
    /// When it was last used.
    pub used: SystemTime,
}

impl VaultFolder {
    /// The vaults in the folder at `path`, which is made when the first one is written. They may take `budget` bytes.
    pub fn new(path: &Path, budget: u64) -> Self {
        Self {
            path: path.to_owned(),
            budget,
        }
    }

    /// The vault of `key`, and notes that it is used now. One that is damaged is removed, and there is none.
    ///
    /// # Errors
    /// [`VaultError::Io`] for anything but a missing file.
    pub fn find(&self, key: &VaultKey) -> Result<Option<Vault>, VaultError> {
        let path = self.file(key);
        match Vault::open(&path, key) {
            Ok(vault) => {
                touch(&path);
                Ok(Some(vault))
            }
            Err(VaultError::Io { error, .. }) if error.kind() == std::io::ErrorKind::NotFound => {
                Ok(None)
            }
            Err(error @ VaultError::Damaged { .. }) => {
                tracing::warn!(%error, "the document will be read again");
                self.remove(key)?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Begins the vault of `key`, and makes room for it: the least recently used ones go, but none that is open in any process.
    ///
    /// # Errors
    /// [`VaultError::TooLarge`] where it does not fit into the budget; [`VaultError::Busy`]; [`VaultError::Io`].
    pub fn begin(
        &self,
        key: &VaultKey,
        document: &str,
        model: &str,
        shape: VaultShape,
    ) -> Result<VaultWriter, VaultError> {
        let needed = shape.bytes();
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
        made.map_err(VaultError::io(&self.path))?;
        self.make_room(needed)?;
        VaultWriter::begin(&self.file(key), key, document, model, shape)
    }

    /// All vaults, the most recently used first.
    ///
    /// # Errors
    /// [`VaultError::Io`] where the folder cannot be read.
    pub fn list(&self) -> Result<Vec<VaultEntry>, VaultError> {
        let files = match std::fs::read_dir(&self.path) {
            Ok(files) => files,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(VaultError::io(&self.path)(error)),
        };
        let mut entries = Vec::new();
        for file in files {
            let path = file.map_err(VaultError::io(&self.path))?.path();
            if path.extension().is_none_or(|e| e != EXTENSION) {
                continue;
            }
            // Another process may just have removed it.
            let (Some(key), Ok(facts)) = (VaultKey::of_file(&path), path.metadata()) else {
                continue;
            };
            let (document, model, tokens) = match describe(&path) {
                Some((document, model, tokens)) => (Some(document), Some(model), tokens),
                None => (None, None, 0),
            };
            entries.push(VaultEntry {
                key,
                document,
                model,
                tokens,
                bytes: facts.len(),
                used: facts.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            });
        }
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.used));
        Ok(entries)
    }

    /// Removes the vault of `key`, unless some process has it open. Gives whether it is gone.
    ///
    /// # Errors
    /// [`VaultError::Io`].
    pub fn remove(&self, key: &VaultKey) -> Result<bool, VaultError> {
        let path = self.file(key);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(true),
            Err(error) => return Err(VaultError::io(&path)(error)),
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(VaultError::io(&path)(error)),
        }
        std::fs::remove_file(&path).map_err(VaultError::io(&path))?;
        Ok(true)
    }

    /// Removes the least recently used vaults until `needed` more bytes fit into the budget.
    fn make_room(&self, needed: u64) -> Result<(), VaultError> {
        self.sweep()?;
        let entries = self.list()?;
        let mut taken: u64 = entries.iter().map(|entry| entry.bytes).sum();
        for entry in entries.iter().rev() {
            if taken + needed <= self.budget {
                break;
            }
            if self.remove(&entry.key)? {
                taken -= entry.bytes;
                tracing::info!(key = %entry.key, bytes = entry.bytes, "a vault made room");
            }
        }
        Ok(())
    }

    /// Removes what a process that died left of vaults it was making.
    fn sweep(&self) -> Result<(), VaultError> {
        for file in std::fs::read_dir(&self.path).map_err(VaultError::io(&self.path))? {
            let path = file.map_err(VaultError::io(&self.path))?.path();
            if path.extension().is_some_and(|e| e == PART)
                && let Some(key) = VaultKey::of_file(&path)
                && let Some(_nobody_writes_it) = lock(&path, &key)?
            {
                std::fs::remove_file(&path).map_err(VaultError::io(&path))?;
            }
        }
        Ok(())
    }

    fn file(&self, key: &VaultKey) -> PathBuf {
        self.path.join(format!("{key}.{EXTENSION}"))
    }
}

const EXTENSION: &str = "vault";

/// Notes that the vault is used now. That the system refuses costs nothing but its place in the order.
fn touch(path: &Path) {
    let touched = File::options()
        .append(true)
        .open(path)
        .and_then(|file| file.set_modified(SystemTime::now()));
    if let Err(error) = touched {
        tracing::debug!(%error, "a vault's last use was not noted");
    }
}
