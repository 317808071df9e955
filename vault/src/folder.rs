//! The folder of all vaults of this user: lookup by key or by shared first tokens, creation within a budget of disk
//! space, eviction of the least recently used vaults.

use std::ffi::OsString;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use kept_kernels::Stop;

use super::checkpoint::{self, CheckpointInfo, LoadedCheckpoint, VisitState};
use super::describe::{VaultContent, describe};
use super::format::VaultShape;
use super::unfinished_file::{PART, UnfinishedFile};
use super::{Vault, VaultError, VaultKey, VaultWriter};

/// A folder of vaults.
#[derive(Debug, Clone)]
pub struct VaultFolder {
    pub(super) path: PathBuf,
    /// Bytes that all vaults may take together.
    pub(super) budget: u64,
}

/// A vault in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VaultEntry {
    /// Its key.
    pub key: VaultKey,
    /// Name of the document; `None` if the vault is damaged.
    pub document: Option<String>,
    /// Name of the model; `None` if the vault is damaged.
    pub model: Option<String>,
    /// Number of tokens; 0 if the vault is damaged.
    pub tokens: usize,
    /// The content; `None` if the vault is damaged.
    pub holds: Option<VaultContent>,
    /// Bytes on disk.
    pub bytes: u64,
    /// When it was last used.
    pub used: SystemTime,
}

impl VaultFolder {
    /// The vaults in the folder at `path`, which is created with the first vault. They may take `budget` bytes.
    pub fn new(path: &Path, budget: u64) -> Self {
        Self {
            path: path.to_owned(),
            budget,
        }
    }

    /// The vaults of the current user, shared by app and CLI: the folder `KEPT_VAULTS`, otherwise `kept/vaults` in
    /// the system's cache folder. They may take `budget` bytes, or [`VaultFolder::default_budget`].
    ///
    /// # Errors
    /// [`VaultError::NoHome`] if neither folder is known.
    pub fn standard(budget: Option<u64>) -> Result<Self, VaultError> {
        let path = standard_path(&|name| std::env::var_os(name))?;
        let budget = budget.unwrap_or_else(|| Self::default_budget(&path));
        Ok(Self { path, budget })
    }

    /// The smaller of 20 GiB and half of the disk space of `path` that is free or taken by vaults.
    pub fn default_budget(path: &Path) -> u64 {
        let exists = path.ancestors().find(|folder| folder.exists());
        let Some(Ok(free)) = exists.map(fs4::available_space) else {
            return MAX_DEFAULT_BUDGET;
        };
        let taken = Self::new(path, 0).bytes().unwrap_or(0);
        MAX_DEFAULT_BUDGET.min((free + taken) / 2)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes that all vaults may take together.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Bytes of all vaults, unfinished ones included.
    ///
    /// # Errors
    /// [`VaultError::Io`] if the folder cannot be read.
    pub fn bytes(&self) -> Result<u64, VaultError> {
        let files = self.files(EXTENSION)?.into_iter().chain(self.files(PART)?);
        // Another process may have removed a file since the listing.
        let sizes = files.filter_map(|(path, _)| path.metadata().ok());
        Ok(sizes.map(|facts| facts.len()).sum())
    }

    /// The vault of `key`, or the one that shares the most first tokens with `prefix`, at least [`MIN_SHARED_TOKENS`].
    /// A damaged vault is removed and not returned.
    ///
    /// # Errors
    /// [`VaultError::Io`] for anything but a missing file.
    pub fn find(&self, key: &VaultKey, prefix: &[u32]) -> Result<Option<Vault>, VaultError> {
        if let Some(vault) = self.open(key)? {
            return Ok(Some(vault));
        }
        let candidates = self.files(EXTENSION)?.into_iter();
        let candidates = candidates.filter(|(_, other)| other.has_same_inputs(key) && other != key);
        let mut best: Option<(usize, Vault)> = None;
        for (_, other) in candidates {
            // A vault that cannot be opened must not prevent the use of others.
            let vault = self.open(&other).unwrap_or_else(|error| {
                tracing::warn!(%error, "a vault could not be opened");
                None
            });
            let Some(vault) = vault else {
                continue;
            };
            let shared = shared(vault.ids(), prefix);
            let most = best
                .as_ref()
                .map_or(MIN_SHARED_TOKENS - 1, |(most, _)| *most);
            if shared > most {
                best = Some((shared, vault));
            }
        }
        Ok(best.map(|(_, vault)| vault))
    }

    /// Removes the vault that `error` reports as damaged, if so, whatever document it belongs to.
    pub fn remove_if_damaged(&self, error: &VaultError) {
        if let VaultError::Damaged { path, .. } = error
            && let Some(key) = VaultKey::of_file(path)
        {
            self.remove_or_warn(&key);
        }
    }

    /// Records the use of `vault`. A failure only affects the order of eviction.
    pub fn record_use(&self, vault: &Vault) {
        self.touch(vault.path());
    }

    /// The vault of `key`; a damaged vault is removed.
    fn open(&self, key: &VaultKey) -> Result<Option<Vault>, VaultError> {
        match Vault::open(&self.file(key), key) {
            Ok(vault) => Ok(Some(vault)),
            Err(VaultError::Io { error, .. }) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error @ VaultError::Damaged { .. }) => {
                tracing::warn!(%error, "the document will be read again");
                self.remove_or_warn(key);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Begins to write the vault of `key`, and evicts the least recently used vaults that no process has open to free
    /// space for it.
    ///
    /// # Errors
    /// [`VaultError::TooLarge`] if the vault does not fit in the budget; [`VaultError::Busy`]; [`VaultError::Io`].
    pub fn begin(
        &self,
        key: &VaultKey,
        document: &str,
        model: &str,
        shape: VaultShape,
    ) -> Result<VaultWriter, VaultError> {
        // The lock prevents others from creating a vault between the computation of free space and the creation of
        // this one.
        let _size_lock = self.reserve_space(key, shape.bytes())?;
        VaultWriter::begin(&self.file(key), key, document, model, shape)
    }

    /// Writes a checkpoint, whose numbers `visit` provides, and evicts vaults as [`VaultFolder::begin`] does. Returns
    /// its size in bytes.
    ///
    /// # Errors
    /// As [`VaultFolder::begin`]; an unspecified error if `stop` was requested.
    pub fn save_checkpoint(
        &self,
        key: &VaultKey,
        of: CheckpointInfo,
        visit: VisitState<'_>,
        stop: &Stop,
    ) -> Result<u64, VaultError> {
        let bytes = checkpoint::bytes_of(visit);
        let file = {
            let _size_lock = self.reserve_space(key, bytes + 1024)?;
            UnfinishedFile::begin(&self.file(key), bytes)?
        };
        checkpoint::write(file, key, of, visit, stop)
    }

    /// Reads a checkpoint into a state that was constructed in the same way; `None` if none is stored. A damaged one is
    /// removed.
    ///
    /// # Errors
    /// [`VaultError::Io`], [`VaultError::Damaged`]: the state is then unspecified.
    pub fn load_checkpoint(
        &self,
        key: &VaultKey,
        visit: VisitState<'_>,
        stop: &Stop,
    ) -> Result<Option<LoadedCheckpoint>, VaultError> {
        let path = self.file(key);
        match checkpoint::read(&path, key, visit, stop) {
            Ok(loaded) => {
                self.touch(&path);
                Ok(Some(loaded))
            }
            Err(VaultError::Io { error, .. }) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => {
                if matches!(error, VaultError::Damaged { .. }) {
                    self.remove_or_warn(key);
                }
                Err(error)
            }
        }
    }

    /// Whether a checkpoint is stored under `key`.
    pub fn has_checkpoint(&self, key: &VaultKey) -> bool {
        matches!(describe(&self.file(key)), Ok(Some(found)) if matches!(found.holds, VaultContent::Checkpoint(_)))
    }

    /// All vaults, the most recently used first.
    ///
    /// # Errors
    /// [`VaultError::Folder`] if the folder cannot be read.
    pub fn list(&self) -> Result<Vec<VaultEntry>, VaultError> {
        let mut entries = Vec::new();
        for (path, key) in self.files(EXTENSION)? {
            // Another process may have removed the file since the listing.
            let Ok(facts) = path.metadata() else {
                continue;
            };
            let found = describe(&path).ok().flatten();
            let found = found.map(|f| (Some(f.document), Some(f.model), f.tokens, Some(f.holds)));
            let (document, model, tokens, holds) = found.unwrap_or_default();
            entries.push(VaultEntry {
                key,
                document,
                model,
                tokens,
                holds,
                bytes: facts.len(),
                used: facts.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            });
        }
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.used));
        Ok(entries)
    }

    /// Files with `extension` whose name is a key; empty if the folder does not exist.
    pub(super) fn files(&self, extension: &str) -> Result<Vec<(PathBuf, VaultKey)>, VaultError> {
        let files = match std::fs::read_dir(&self.path) {
            Ok(files) => files,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => {
                let path = self.path.clone();
                return Err(VaultError::Folder { path, error });
            }
        };
        let mut found = Vec::new();
        for file in files {
            let path = file.map_err(VaultError::io(&self.path))?.path();
            if path.extension().is_some_and(|e| e == extension)
                && let Some(key) = VaultKey::of_file(&path)
            {
                found.push((path, key));
            }
        }
        found.sort();
        Ok(found)
    }

    /// Implements [`VaultFolder::record_use`]. The vault becomes the most recently used one, even if the clock was set
    /// back.
    pub(super) fn touch(&self, path: &Path) {
        let touched = File::options().append(true).open(path);
        let touched = touched.and_then(|file| file.set_modified(self.next_use_time(path)));
        if let Err(error) = touched {
            tracing::debug!(%error, "a vault's last use was not noted");
        }
    }

    /// The current time, or one tick after the last use of any vault except the one at `path`, whichever is later.
    fn next_use_time(&self, path: &Path) -> SystemTime {
        let others = self.files(EXTENSION).unwrap_or_default().into_iter();
        let others = others.filter(|(other, _)| other != path);
        let used = others.filter_map(|(other, _)| other.metadata().ok()?.modified().ok());
        let now = SystemTime::now();
        used.max().map_or(now, |newest| now.max(newest + TICK))
    }

    pub(super) fn file(&self, key: &VaultKey) -> PathBuf {
        self.path.join(format!("{key}.{EXTENSION}"))
    }
}

/// Extension of a complete vault.
pub(super) const EXTENSION: &str = "vault";
/// The largest default budget, in bytes.
const MAX_DEFAULT_BUDGET: u64 = 20 << 30;
/// Time resolution of file systems.
const TICK: Duration = Duration::from_millis(10);
/// Minimum number of first tokens that a vault must share with a document: fewer are prefilled as fast.
pub const MIN_SHARED_TOKENS: usize = 64;

/// Number of first tokens that two texts share.
pub fn shared(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Path of the vault folder, from environment variables.
fn standard_path(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<PathBuf, VaultError> {
    let path = |name: &str| {
        let value = variable(name).filter(|value| !value.is_empty());
        value.map(PathBuf::from)
    };
    if let Some(named) = path("KEPT_VAULTS") {
        return Ok(named);
    }
    // Relative paths violate the XDG convention, and would depend on the current folder.
    let absolute = |path: &PathBuf| path.is_absolute();
    let cache = if cfg!(windows) {
        path("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        path("HOME").map(|home| home.join("Library/Caches"))
    } else {
        path("XDG_CACHE_HOME")
            .filter(absolute)
            .or_else(|| path("HOME").map(|home| home.join(".cache")))
    };
    let cache = cache.filter(absolute).ok_or(VaultError::NoHome)?;
    Ok(cache.join("kept").join("vaults"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(all(unix, not(target_os = "macos")))]
    fn standard_path_follows_environment_variables() {
        let found = |set: &[(&str, &str)]| {
            let value = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into());
            standard_path(&value).map_err(|error| error.to_string())
        };
        let cases: [(&[_], &str); 4] = [
            (&[("KEPT_VAULTS", "/v"), ("HOME", "/h")], "/v"),
            (
                &[("XDG_CACHE_HOME", "/c"), ("HOME", "/h")],
                "/c/kept/vaults",
            ),
            (&[("HOME", "/h")], "/h/.cache/kept/vaults"),
            (
                &[("XDG_CACHE_HOME", "c"), ("HOME", "/h"), ("KEPT_VAULTS", "")],
                "/h/.cache/kept/vaults",
            ),
        ];
        for (set, expected) in cases {
            assert_eq!(found(set), Ok(PathBuf::from(expected)), "{set:?}");
        }
        let sentence = found(&[("HOME", "here")]).expect_err("no folder");
        assert!(sentence.contains("KEPT_VAULTS"), "{sentence}");
    }
}
