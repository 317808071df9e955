//! All vaults of this computer: found by key or by their first tokens, made within a budget of disk space, the least recently used removed first.

use std::ffi::OsString;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use kept_kernels::{PackedRows, Stop};

use super::end::{self, EndOf, Walk};
use super::footer::describe;
use super::format::VaultShape;
use super::making::{Making, PART};
use super::{Vault, VaultError, VaultKey, VaultWriter};

/// A folder of vaults.
#[derive(Debug, Clone)]
pub struct VaultFolder {
    pub(super) path: PathBuf,
    /// Bytes that all vaults may take together.
    pub(super) budget: u64,
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
    /// What is in it; `None` where the vault is not whole.
    pub holds: Option<Holds>,
    /// Bytes on disk.
    pub bytes: u64,
    /// When it was last used.
    pub used: SystemTime,
}

/// What a vault holds of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holds {
    /// All keys and values, and how they are stored.
    Rows(PackedRows),
    /// What a reading in streaming had kept at the document's end; and how it was read, in words.
    End(String),
}

impl VaultFolder {
    /// The vaults in the folder at `path`, which is made when the first one is written. They may take `budget` bytes.
    pub fn new(path: &Path, budget: u64) -> Self {
        Self {
            path: path.to_owned(),
            budget,
        }
    }

    /// The vaults of this person, for window and terminal alike: `KEPT_VAULTS` names the folder; else it is `kept/vaults` where
    /// the system keeps what can be made again. They may take `budget` bytes, or [`VaultFolder::default_budget`].
    ///
    /// # Errors
    /// [`VaultError::NoHome`] where neither is known.
    pub fn standard(budget: Option<u64>) -> Result<Self, VaultError> {
        let path = standard_path(&|name| std::env::var_os(name))?;
        let budget = budget.unwrap_or_else(|| Self::default_budget(&path));
        Ok(Self { path, budget })
    }

    /// 20 GiB, or half of what is free on the disk of `path` besides what vaults take there already, whichever is less.
    pub fn default_budget(path: &Path) -> u64 {
        let exists = path.ancestors().find(|folder| folder.exists());
        let Some(Ok(free)) = exists.map(fs4::available_space) else {
            return LARGEST_BUDGET;
        };
        let taken = Self::new(path, 0).bytes().unwrap_or(0);
        LARGEST_BUDGET.min((free + taken) / 2)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes that all vaults may take together.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Bytes that all vaults take, those in the making included.
    ///
    /// # Errors
    /// [`VaultError::Io`] where the folder cannot be read.
    pub fn bytes(&self) -> Result<u64, VaultError> {
        let files = self.files(EXTENSION)?.into_iter().chain(self.files(PART)?);
        // Another process may just have removed one.
        let sizes = files.filter_map(|(path, _)| path.metadata().ok());
        Ok(sizes.map(|facts| facts.len()).sum())
    }

    /// The vault of `key`, or the one that shares most of its first tokens with `prefix`, at least [`FEW_SHARED`]. One that is damaged is
    /// removed, and there is none.
    ///
    /// # Errors
    /// [`VaultError::Io`] for anything but a missing file.
    pub fn find(&self, key: &VaultKey, prefix: &[u32]) -> Result<Option<Vault>, VaultError> {
        if let Some(vault) = self.open(key)? {
            return Ok(Some(vault));
        }
        let akin = self.files(EXTENSION)?.into_iter();
        let akin = akin.filter(|(_, other)| other.is_akin(key) && other != key);
        let mut best: Option<(usize, Vault)> = None;
        for (_, other) in akin {
            // One that cannot be opened is no reason not to use others.
            let vault = self.open(&other).unwrap_or_else(|error| {
                tracing::warn!(%error, "a vault could not be opened");
                None
            });
            let Some(vault) = vault else {
                continue;
            };
            let shared = shared(vault.ids(), prefix);
            let most = best.as_ref().map_or(FEW_SHARED - 1, |(most, _)| *most);
            if shared > most {
                best = Some((shared, vault));
            }
        }
        Ok(best.map(|(_, vault)| vault))
    }

    /// Removes the vault that `error` says is damaged, if it says that: whose document it is, nobody is helped by it.
    pub(crate) fn give_up(&self, error: &VaultError) {
        if let VaultError::Damaged { path, .. } = error
            && let Some(key) = VaultKey::of_file(path)
        {
            self.remove_or_warn(&key);
        }
    }

    /// Notes that `vault` is used now. That the system refuses costs nothing but its place in the order.
    pub fn used(&self, vault: &Vault) {
        self.touch(vault.path());
    }

    /// The vault of `key`; one that is damaged is removed.
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
        // Between counting and beginning nobody else may begin.
        let _counting = self.make_place(key, shape.bytes())?;
        VaultWriter::begin(&self.file(key), key, document, model, shape)
    }

    /// Leaves a document's end, whose numbers `walk` shows, and makes room for it as [`VaultFolder::begin`] does. Gives how large it is.
    ///
    /// # Errors
    /// As [`VaultFolder::begin`]; one of any kind where `stop` was requested.
    pub(crate) fn leave_end(
        &self,
        key: &VaultKey,
        of: EndOf,
        walk: Walk<'_>,
        stop: &Stop,
    ) -> Result<u64, VaultError> {
        let bytes = end::bytes_of(walk);
        let making = {
            let _counting = self.make_place(key, bytes + 1024)?;
            Making::begin(&self.file(key), bytes)?
        };
        end::write(making, key, of, (walk, stop))
    }

    /// Puts what was left of a document's end into a state that was made as that was; gives how large it is, if there is one. One that
    /// is damaged is removed.
    ///
    /// # Errors
    /// [`VaultError::Io`], [`VaultError::Damaged`]: the state is then anything.
    pub(crate) fn recall_end(
        &self,
        key: &VaultKey,
        walk: Walk<'_>,
        stop: &Stop,
    ) -> Result<Option<u64>, VaultError> {
        let path = self.file(key);
        match end::read(&path, key, (walk, stop)) {
            Ok(bytes) => {
                self.touch(&path);
                Ok(Some(bytes))
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

    /// Whether a document's end was left under `key`.
    pub(crate) fn has_end(&self, key: &VaultKey) -> bool {
        matches!(describe(&self.file(key)), Ok(Some(found)) if matches!(found.holds, Holds::End(_)))
    }

    /// All vaults, the most recently used first.
    ///
    /// # Errors
    /// [`VaultError::Io`] where the folder cannot be read.
    pub fn list(&self) -> Result<Vec<VaultEntry>, VaultError> {
        let mut entries = Vec::new();
        for (path, key) in self.files(EXTENSION)? {
            // Another process may just have removed it.
            let Ok(facts) = path.metadata() else {
                continue;
            };
            let (document, model, tokens, holds) = match describe(&path).ok().flatten() {
                Some(found) => (
                    Some(found.document),
                    Some(found.model),
                    found.tokens,
                    Some(found.holds),
                ),
                None => (None, None, 0, None),
            };
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

    /// Files of a key's name with `extension`; none where there is no folder.
    pub(super) fn files(&self, extension: &str) -> Result<Vec<(PathBuf, VaultKey)>, VaultError> {
        let files = match std::fs::read_dir(&self.path) {
            Ok(files) => files,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(VaultError::io(&self.path)(error)),
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

    /// See [`VaultFolder::used`]. What is used last is the newest, also where the clock was set back meanwhile.
    pub(super) fn touch(&self, path: &Path) {
        let touched = File::options().append(true).open(path);
        let touched = touched.and_then(|file| file.set_modified(self.after_all_but(path)));
        if let Err(error) = touched {
            tracing::debug!(%error, "a vault's last use was not noted");
        }
    }

    /// Now, or a moment after the last use of any vault but that at `path`, whichever is later.
    fn after_all_but(&self, path: &Path) -> SystemTime {
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

/// Extension of a whole vault.
pub(super) const EXTENSION: &str = "vault";
/// More than this is never taken unless it is asked for.
const LARGEST_BUDGET: u64 = 20 << 30;
/// What file systems tell apart.
const TICK: Duration = Duration::from_millis(10);
/// First tokens that a vault must share with a document to be of use to it: fewer are read as fast.
pub const FEW_SHARED: usize = 64;

/// How many first tokens two texts share.
pub(crate) fn shared(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Where vaults lie, by these variables.
fn standard_path(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<PathBuf, VaultError> {
    let path = |name: &str| {
        let value = variable(name).filter(|value| !value.is_empty());
        value.map(PathBuf::from)
    };
    if let Some(named) = path("KEPT_VAULTS") {
        return Ok(named);
    }
    // Relative paths are against the convention, and would mean another folder wherever the program is started.
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
    fn the_folder_is_where_the_variables_say() {
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
