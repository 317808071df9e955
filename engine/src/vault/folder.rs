//! All vaults of this computer: found by key or by their first tokens, made within a budget of disk space, the least recently used removed first.

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use kept_kernels::{PackedRows, Stop};

use super::end::{self, EndOf, Walk};
use super::format::VaultShape;
use super::making::{LOCK, Locked, Making, PART, is_named, lock, private, wait_for};
use super::read::describe;
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

    /// Bytes that all vaults take.
    ///
    /// # Errors
    /// [`VaultError::Io`] where the folder cannot be read.
    pub fn bytes(&self) -> Result<u64, VaultError> {
        let files = self.files(EXTENSION)?;
        // Another process may just have removed one.
        let sizes = files.iter().filter_map(|(path, _)| path.metadata().ok());
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

    /// Notes that `vault` is used now. That the system refuses costs nothing but its place in the order.
    pub fn used(&self, vault: &Vault) {
        touch(vault.path());
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
                touch(&path);
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
        describe(&self.file(key)).is_some_and(|found| matches!(found.holds, Holds::End(_)))
    }

    /// Makes the folder, and room in it for `needed` bytes under `key`; whoever begins a file there does it as long as the lock is held.
    fn make_place(&self, key: &VaultKey, needed: u64) -> Result<Locked, VaultError> {
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
        let counting = self.counting()?;
        self.make_room(key, needed)?;
        Ok(counting)
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
            let (document, model, tokens, holds) = match describe(&path) {
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
        let file = options.open(&path).map_err(VaultError::io(&path))?;
        wait_for(&file, &path, File::try_lock)?;
        Ok(Locked(file))
    }

    /// Removes the least recently used vaults until `needed` more bytes, for the vault of `key`, fit into the budget; none, where that would
    /// not be enough.
    fn make_room(&self, key: &VaultKey, needed: u64) -> Result<(), VaultError> {
        self.sweep()?;
        let mut entries = self.list()?;
        // One that is made anew takes the place of what is there.
        entries.retain(|entry| entry.key != *key);
        let mut taken: u64 = entries.iter().map(|entry| entry.bytes).sum();
        // What others are writing has its whole length from the beginning.
        let parts = self.files(PART)?.into_iter().filter(|(_, of)| of != key);
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
        if taken + needed > self.budget {
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
            if describe(&path).is_none() {
                self.remove_or_warn(&key);
            }
        }
        Ok(())
    }

    /// Files of a key's name with `extension`; none where there is no folder.
    fn files(&self, extension: &str) -> Result<Vec<(PathBuf, VaultKey)>, VaultError> {
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

    fn file(&self, key: &VaultKey) -> PathBuf {
        self.path.join(format!("{key}.{EXTENSION}"))
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

const EXTENSION: &str = "vault";
/// Whoever has its lock counts what is there.
const COUNTING: &str = "counting.lock";
/// More than this is never taken unless it is asked for.
const LARGEST_BUDGET: u64 = 20 << 30;
/// First tokens that a vault must share with a document to be of use to it: fewer are read as fast.
pub const FEW_SHARED: usize = 64;

/// How many first tokens two texts share.
pub(crate) fn shared(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// A file that somebody else removed is gone too.
fn gone(removed: std::io::Result<()>) -> std::io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
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

/// See [`VaultFolder::used`].
fn touch(path: &Path) {
    let touched = File::options()
        .append(true)
        .open(path)
        .and_then(|file| file.set_modified(SystemTime::now()));
    if let Err(error) = touched {
        tracing::debug!(%error, "a vault's last use was not noted");
    }
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
